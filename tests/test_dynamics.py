import math

import numpy as np
import pytest
import torch

from rlvr.analysis.dynamics import (
    correction_strength,
    independent_switch_frequencies,
    independent_switch_frequency,
    pad_records,
    switch_frequency,
    trace_variance,
    traced_ratio,
)
from rlvr.evaluation import ratio_of_means
from rlvr.ratios import forward_trace

NAN = float("nan")


def make_batch(rows=5, width=20, scale=0.3, seed=0):
    g = torch.Generator().manual_seed(seed)
    log_ratio = scale * torch.randn(rows, width, generator=g, dtype=torch.float64)
    mask = torch.rand(rows, width, generator=g) < 0.8
    mask[1] = False
    return log_ratio, mask


def slow_switch(weights, mask, rule, zone):
    top, bottom = [], []
    for row, valid in zip(weights.tolist(), mask.tolist(), strict=True):
        switches = pairs = 0
        for t in range(len(row) - 1):
            if not (valid[t] and valid[t + 1]):
                continue
            sides = [(w > 1 + zone) - (w < 1 - zone) for w in row[t : t + 2]]
            pairs += rule != "dead_zone_decided" or all(sides)
            switches += sides[0] * sides[1] < 0
        top.append(switches)
        bottom.append(pairs)
    return top, bottom


@pytest.mark.parametrize(
    ("rule", "zone"), [("strict", 0.0), ("dead_zone", 0.2), ("dead_zone_decided", 0.2), ("dead_zone", 0.0)]
)
def test_switch_frequency_slow_loop(rule, zone):
    log_ratio, mask = make_batch()
    weights = log_ratio.exp().masked_fill(~mask, NAN)
    weights[0, :4], mask[0, :4] = torch.tensor([1.0, 1.5, 1.0, 0.5]), True
    shares = switch_frequency(weights, mask, rule, zone)
    top, bottom = slow_switch(weights, mask, rule, zone)
    assert shares.numerator.tolist() == top and shares.denominator.tolist() == bottom
    assert shares.value == sum(top) / sum(bottom)


def test_switch_frequency_typed_in():
    weights = torch.tensor([[1.1, 0.9, 1.0, 1.2, 0.8, 0.7]])
    ones = torch.ones(1, 6)
    # pairs: switch, touches 1, touches 1, switch, none
    assert switch_frequency(weights, ones).value == pytest.approx(2 / 5)
    assert switch_frequency(weights, ones, "dead_zone_decided").value == pytest.approx(2 / 3)
    assert switch_frequency(weights, ones, "dead_zone", 0.15).value == pytest.approx(1 / 5)
    hole = torch.tensor([[1, 1, 1, 0, 1, 1]])  # pairs (0,1), (1,2), (4,5)
    assert switch_frequency(weights, hole).value == pytest.approx(1 / 3)
    assert switch_frequency(weights, torch.tensor([[1, 0, 1, 0, 1, 0]])).value == 0.0
    assert switch_frequency(torch.ones(1, 1), torch.ones(1, 1)).denominator.tolist() == [0.0]


def test_traced_ratio():
    log_ratio = torch.tensor([[1.1, 0.5, 4.0, 1.0, 1.05]], dtype=torch.float64).log()
    weights = traced_ratio(log_ratio, torch.ones(1, 5), 2, trace_clip=(0.8, 1.2))
    np.testing.assert_allclose(weights, [[0.88, 0.6, 4.0, 1.05, 1.05]])
    log_ratio, mask = make_batch()
    dirty = log_ratio.masked_fill(~mask, NAN)
    rho = traced_ratio(dirty, mask, 1)
    np.testing.assert_allclose(rho[mask], log_ratio.exp()[mask])
    assert (rho[~mask] == 1).all()
    expected = log_ratio.exp() * forward_trace(log_ratio, mask, 4)
    np.testing.assert_allclose(traced_ratio(dirty, mask, 4)[mask], expected[mask])


def test_correction_strength_and_variance_slow_loop():
    log_ratio, mask = make_batch()
    dirty = log_ratio.masked_fill(~mask, NAN)
    for horizon in (1, 4):
        weights = traced_ratio(dirty, mask, horizon)
        expected = [abs(w - 1) for w in weights[mask].tolist()]
        shares = correction_strength(weights.masked_fill(~mask, NAN), mask)
        assert shares.value == pytest.approx(sum(expected) / len(expected))
        assert shares.denominator.tolist() == mask.sum(-1).tolist()
    moments = trace_variance(dirty, mask, [1, 2, 4])
    for horizon in (1, 2, 4):
        for kind, clips in (("raw", (None, None)), ("clipped", (3.0, (0.8, 1.4)))):
            trace = forward_trace(log_ratio, mask, horizon, *clips)[mask].numpy()
            assert moments[horizon][kind].variance == pytest.approx(trace.var(), abs=1e-15)
            assert moments[horizon][kind].mean == pytest.approx(trace.mean())
    assert moments[1]["raw"].variance == 0.0 < moments[2]["clipped"].variance < moments[2]["raw"].variance
    nothing = trace_variance(dirty, torch.zeros_like(mask), [2])[2]["raw"]
    assert math.isnan(nothing.variance) and math.isnan(nothing.mean)


def test_independent_ratios_switch_less_under_a_longer_trace():
    # Independent log ratios alone fall from 50 % to 23 % at N = 4 without clips: the weights of
    # neighbours share N-1 of N factors, and two such sums have opposite signs with probability
    # arccos((N-1)/N) / pi.
    g = torch.Generator().manual_seed(0)
    log_ratio, mask = 0.01 * torch.randn(64, 400, generator=g), torch.ones(64, 400)
    for horizon in (1, 2, 4, 8):
        shares = independent_switch_frequency(log_ratio, mask, horizon, None, None)
        expected = math.acos((horizon - 1) / horizon) / math.pi
        assert shares.value == pytest.approx(expected, abs=0.01)
        observed = switch_frequency(traced_ratio(log_ratio, mask, horizon, None, None), mask)
        assert shares.value == pytest.approx(observed.value, abs=0.01)


def test_permutation_breaks_only_the_order():
    # Ratios in long runs on one side of 1 switch at 1 pair in 10; shuffled they switch at half of them.
    log_ratio = (0.1 * torch.tensor([1.0, -1.0]).repeat_interleave(10).repeat(20))[None].repeat(8, 1)
    mask = torch.ones_like(log_ratio)
    log_ratio, mask = (
        torch.nn.functional.pad(log_ratio, (0, 7), value=NAN),
        torch.nn.functional.pad(mask, (0, 7)),
    )
    observed = switch_frequency(traced_ratio(log_ratio, mask, 1), mask)
    shuffled = independent_switch_frequency(log_ratio, mask, 1, permutations=4)
    assert observed.value == pytest.approx(39 / 399)
    assert shuffled.value == pytest.approx(0.5, abs=0.02)
    assert torch.equal(shuffled.denominator, observed.denominator)
    again = independent_switch_frequency(log_ratio, mask, 1, permutations=4)
    other = independent_switch_frequency(log_ratio, mask, 1, permutations=4, seed=1)
    assert torch.equal(again.numerator, shuffled.numerator)
    assert not torch.equal(other.numerator, shuffled.numerator)


def test_several_rules_share_the_permutations_of_one():
    log_ratio, mask = 0.05 * torch.randn(6, 30, generator=torch.Generator().manual_seed(1)), torch.ones(6, 30)
    rules = [{"rule": "strict"}, {"rule": "dead_zone", "dead_zone": 0.02},
             {"rule": "dead_zone_decided", "dead_zone": 0.02}]  # fmt: skip
    found = independent_switch_frequencies(log_ratio, mask, 4, rules=rules, permutations=3, seed=5)
    for rule, shares in zip(rules, found, strict=True):
        alone = independent_switch_frequency(log_ratio, mask, 4, **rule, permutations=3, seed=5)
        assert torch.equal(shares.numerator, alone.numerator)
        assert torch.equal(shares.denominator, alone.denominator)
    assert len({float(shares.value) for shares in found}) == 3


def test_the_verdict_can_depend_on_the_rule():
    # Heavy-tailed independent log ratios: strict switches halve under the trace, switches across a dead
    # zone double if all pairs are counted, and fall again if only decided pairs are.
    g = torch.Generator().manual_seed(1)
    log_ratio, mask = 0.005 * torch.randn(32, 300, generator=g) ** 5, torch.ones(32, 300)
    rho, traced = (traced_ratio(log_ratio, mask, n) for n in (1, 4))

    def change(*rule):
        return switch_frequency(traced, mask, *rule).value / switch_frequency(rho, mask, *rule).value

    assert change("strict") < 0.5
    assert change("dead_zone", 0.05) > 2
    assert change("dead_zone_decided", 0.05) < 0.2


def test_sums_bootstrap_over_responses():
    log_ratio, mask = make_batch(rows=40)
    shares = switch_frequency(traced_ratio(log_ratio, mask, 4), mask)
    estimate = ratio_of_means(shares.numerator, shares.denominator, range(40))
    assert estimate.value == pytest.approx(shares.value)
    assert estimate.low < shares.value < estimate.high and estimate.n_unit == "responses"


def test_pad_records():
    log_ratio, mask = make_batch()
    row, position = (x.numpy() for x in mask.nonzero(as_tuple=True))
    order = np.random.default_rng(0).permutation(len(row))
    ids = np.array([10, 20, 30, 40, 50])[row][order]
    values = log_ratio[mask].numpy()[order]
    responses, padded_mask, columns = pad_records(ids, position[order], {"log_ratio": values})
    kept = mask.any(-1)
    width = padded_mask.shape[1]
    assert responses == [10, 30, 40, 50]
    assert torch.equal(padded_mask, mask[kept][:, :width]) and not mask[:, width:].any()
    assert torch.equal(columns["log_ratio"], torch.where(mask, log_ratio, 0.0)[kept][:, :width])


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x, m: switch_frequency(x, m, "loose"), "rule='loose'"),
        (lambda x, m: switch_frequency(x, m, "strict", 0.1), "dead_zone=0.1"),
        (lambda x, m: switch_frequency(x, m, "dead_zone", -0.1), "dead_zone=-0.1"),
        (lambda x, m: independent_switch_frequency(x, m, 4, permutations=0), "permutations=0"),
        (lambda x, m: traced_ratio(x, m[:1], 4), "log_ratio"),
        (lambda x, m: traced_ratio(x, m, 0), "horizon=0"),
        (lambda x, m: pad_records([1, 1], [0, 0], {}), "repeat"),
        (lambda x, m: pad_records([1, 1], [0], {}), "position"),
        (lambda x, m: pad_records([], [], {}), "at least one record"),
        (lambda x, m: pad_records([1, 1], [0, 1], {"v": [1.0]}), "columns"),
    ],
)
def test_bad_input(call, name):
    with pytest.raises(ValueError, match=name):
        call(*make_batch())
