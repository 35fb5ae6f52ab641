"""The benchmark of losses: it times what it says, and computes the right numbers from times."""

import statistics

import pytest
import torch
from notebook_factory import PROJECT

from rlvr import objectives


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(PROJECT / "bench"))
    import losses

    return losses


@pytest.fixture
def measure(monkeypatch):
    monkeypatch.syspath_prepend(str(PROJECT / "bench"))
    import measure

    return measure


def test_every_objective_is_timed(bench):
    assert sorted({case.name for case in bench.CASES}) == objectives.list_objectives()
    assert len({case.label for case in bench.CASES}) == len(bench.CASES)


@pytest.mark.parametrize("ragged", [False, True])
def test_every_case_runs_and_has_a_gradient(bench, ragged):
    inputs = bench.make_inputs(4, 24, ragged)
    mask = inputs["response_mask"]
    assert bool(mask.all()) is not ragged
    for case in bench.CASES:
        gradient = bench.ours(case, inputs)()
        assert gradient.isfinite().all() and gradient.any(), case.label
        assert not gradient[~mask].any(), case.label
        assert torch.equal(gradient, bench.ours(case, inputs, check=False)()), case.label


def test_ratio_of_medians(measure):
    a, b = [1.0, 2.0, 9.0, 2.0, 2.0], [4.0, 4.0, 4.0, 5.0, 3.0]
    value, low, high = measure.ratio_of_medians(a, b)
    assert value == statistics.median(a) / statistics.median(b) == 0.5
    assert low <= 0.5 <= high
    # both sides slow in the same rounds: resampled together, the ratio has no spread
    slow = [1.0, 1.0, 50.0, 50.0, 50.0]
    assert measure.ratio_of_medians(slow, [2 * x for x in slow]) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("interval", "expected"),
    [((0.5, 0.4, 0.6), "met"), ((0.6, 0.5, 0.7), "open"), ((0.7, 0.61, 0.8), "missed")],
)
def test_verdict(measure, interval, expected):
    assert measure.verdict(interval, 0.6) == f"<= 0.6: {expected}"
    assert measure.verdict(interval, None) == "-"


def test_calls_take_turns(measure, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    seen = []
    times = measure.interleaved({name: lambda name=name: seen.append(name) for name in "abc"}, 5, warm_up=1)
    assert {name: len(values) for name, values in times.items()} == {"a": 5, "b": 5, "c": 5}
    assert all(sorted(seen[i : i + 3]) == ["a", "b", "c"] for i in range(0, 18, 3))
    assert len({tuple(seen[i : i + 3]) for i in range(0, 18, 3)}) > 1  # not always in one order


def test_a_busy_machine_is_said(measure, monkeypatch):
    taken_away = iter(range(10**6))  # one more at every look
    monkeypatch.setattr(measure, "_preemptions", lambda: next(taken_away))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(measure.Busy, match="0 of 3"):
        measure.interleaved({"a": lambda: None}, 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # CPU time does not mind
    assert len(measure.interleaved({"a": lambda: None}, 3)["a"]) == 3


def test_peak_memory_is_the_most_held_at_once(measure):
    x = torch.randn(64, 1024)

    def call():
        y = x + 1  # 1 unit
        (y * 2).sum()  # 2 held, then 1
        return y.double()  # 1 + 2

    assert measure.peak_memory(call, x.nbytes) == pytest.approx(3, abs=0.01)


@pytest.mark.parametrize("gradient", ["stop", "full"])
def test_memory_of_nfpo_does_not_depend_on_the_horizon(bench, measure, gradient):
    inputs = bench.make_inputs(8, 1024, ragged=True)
    unit = inputs["old_log_prob"].nbytes

    def peak(horizon):
        parameters = {"horizon": horizon, "trace_gradient": gradient}
        return measure.peak_memory(bench.ours(bench.Case("nfpo", parameters, "dppo_tv", {}), inputs), unit)

    assert peak(256) == pytest.approx(peak(4), abs=1)  # N tensors more would be 252


def test_loop_of_the_trace(bench):
    ratios = torch.tensor([[1.1, 0.5, 4.0, 1.0, 1.05]])
    trace = bench.trace_by_loop(ratios.log(), 3, 3.0)
    torch.testing.assert_close(trace, torch.tensor([[1.5, 3.0, 1.05, 1.05, 1.0]], dtype=torch.float64))


@pytest.mark.verl
@pytest.mark.parametrize("ragged", [False, True])
def test_verl_computes_the_same(bench, ragged):
    pytest.importorskip("verl", reason="verl is not installed: pip install -e '.[verl]'")
    inputs = bench.make_inputs(8, 512, ragged)
    for case in bench.CASES:
        if case.same:
            bench.check_same(case, inputs)
        else:
            assert bench.theirs(case, inputs)().any()
    wrong = bench.Case("cispo", {}, "cispo", bench.verl_clip(0.2, 0.28))  # other bounds
    with pytest.raises(SystemExit, match="differs"):
        bench.check_same(wrong, inputs)
