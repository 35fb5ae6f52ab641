import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.evaluation import seed_interval
from rlvr.evaluation.budget import Reached, compute_ratio, compute_to_threshold, match_budget

NAN = float("nan")


def slow_crossing(compute, reward, threshold):
    """The first point of the broken line that is at the threshold, by walking along it."""
    points = [(c, r) for c, r in zip(compute, reward, strict=True) if not math.isnan(r)]
    if points[0][1] >= threshold:
        return "at start"
    for (c0, r0), (c1, r1) in pairwise(points):
        if r0 < threshold <= r1:
            return c0 + (c1 - c0) * (threshold - r0) / (r1 - r0)
    return "never"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1) | st.just(NAN)), min_size=1, max_size=12).filter(
        lambda rows: any(not math.isnan(r) for _, r in rows)
    ),
    st.floats(0, 1),
)
def test_crossing_slow_loop(steps, threshold):
    compute, reward = np.cumsum([c for c, _ in steps]), [r for _, r in steps]
    found = compute_to_threshold((compute, reward), threshold)
    expected = slow_crossing(compute, reward, threshold)
    if isinstance(expected, str):
        assert found.state == expected and found.compute is None
    else:
        assert found.state == "reached" and found.compute == pytest.approx(expected, abs=1e-9)
        assert found.interval() == (found.compute, found.compute)
    assert found.best == np.nanmax(reward)


def test_crossing_typed_in():
    curve = ([10, 20, 30, 40], [0.1, 0.5, 0.3, 0.9])
    found = compute_to_threshold(curve, 0.4)
    assert found.compute == 17.5 and found.format() == "17.5"
    assert compute_to_threshold(curve, 0.5).compute == 20
    assert compute_to_threshold(curve, 0.6).compute == 35
    never = compute_to_threshold(curve, 0.95)
    assert never == Reached(None, "never", 40.0, 0.95, 0.9)
    assert never.interval() == (40.0, math.inf) and never.format() == "above 40 (best 0.90)"
    start = compute_to_threshold(curve, 0.05)
    assert start.interval() == (0.0, 10.0) and start.format() == "at most 10 (at start)"
    # a missing step is bridged
    assert compute_to_threshold(([10, 20, 30], [0.0, NAN, 1.0]), 0.5).compute == 20
    assert compute_to_threshold(([10, 10], [0.0, 1.0]), 0.5).compute == 10


@settings(max_examples=60, deadline=None)
@given(st.floats(0.1, 10), st.integers(0, 10**6))
def test_units_of_compute_and_reward_do_not_matter(unit, seed):
    rng = np.random.default_rng(seed)
    compute, reward = np.cumsum(rng.random(8)), rng.random(8)
    found = compute_to_threshold((compute, reward), 0.7)
    other = compute_to_threshold((unit * compute, 2 * reward - 1), 2 * 0.7 - 1)
    assert other.state == found.state
    assert other.interval() == pytest.approx(tuple(unit * x for x in found.interval()))


def reached(value, threshold=0.75):
    return Reached(value, "reached", 100.0, threshold, 0.8)


NEVER, START = Reached(None, "never", 100.0, 0.75, 0.7), Reached(None, "at start", 4.0, 0.75, 0.9)


def test_ratio_typed_in():
    found = compute_ratio({0: reached(6.0), 1: reached(4.0)}, {1: reached(16.0), 0: reached(6.0)})
    assert found.estimate.value == pytest.approx(0.5) and found.low == found.high == pytest.approx(0.5)
    logs = seed_interval(np.log([1.0, 0.25]), [0, 1])
    assert (found.estimate.low, found.estimate.high) == pytest.approx(
        (math.exp(logs.low), math.exp(logs.high))
    )
    assert found.estimate.n == 2 and found.estimate.seeds == (0, 1) and "geometric" in found.estimate.method
    one = compute_ratio({3: reached(63.0)}, {3: reached(100.0)})
    assert one.format() == "0.63 [unknown]"


def test_pairs_share_their_seed():
    # methods differ less than seeds do; unpaired the interval would hold 1
    baseline = {seed: reached(10.0 * 3**seed) for seed in range(4)}
    method = {seed: reached(6.0 * 3**seed * (1 + 0.01 * seed)) for seed in range(4)}
    found = compute_ratio(method, baseline)
    assert 0.58 < found.estimate.low < found.estimate.value < found.estimate.high < 0.64
    back = compute_ratio(baseline, method)
    assert back.estimate.value == pytest.approx(1 / found.estimate.value)
    assert back.estimate.low == pytest.approx(1 / found.estimate.high)


@pytest.mark.parametrize(
    ("method", "baseline", "low", "high", "text"),
    [
        (NEVER, reached(50.0), 2.0, math.inf, "above 2.00"),
        (reached(50.0), NEVER, 0.0, 0.5, "below 0.50"),
        (NEVER, NEVER, 0.0, math.inf, "not known: bounded on neither side"),
        (START, reached(50.0), 0.0, 0.08, "below 0.08"),
        (reached(50.0), START, 12.5, math.inf, "above 12.50"),
    ],
)
def test_ratio_with_bounds_only(method, baseline, low, high, text):
    found = compute_ratio({0: method}, {0: baseline})
    assert found.estimate is None and found.format() == text
    assert found.low == pytest.approx(low) and found.high == pytest.approx(high)


def test_one_run_that_never_arrives_is_not_left_out():
    method = {0: reached(5.0), 1: reached(5.0), 2: NEVER}
    found = compute_ratio(method, {seed: reached(10.0) for seed in range(3)})
    assert found.estimate is None and found.low == pytest.approx((0.5 * 0.5 * 10) ** (1 / 3))
    assert found.format().startswith("above 1.3")
    assert found.by_seed.method.tolist() == ["5", "5", "above 100 (best 0.70)"]


# --- budgets --------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.1, 5), min_size=1, max_size=20), st.floats(0.1, 30), st.floats(0.1, 5))
def test_budget_slow_loop(costs, budget, single):
    total, steps = 0.0, 0
    for cost in costs:
        if total + cost > budget * (1 + 1e-12):
            break
        total, steps = total + cost, steps + 1
    if steps == len(costs) and total < budget * (1 - 1e-12):
        with pytest.raises(ValueError, match="is known: allowed is"):
            match_budget({"a": costs}, budget)
    elif not steps:
        with pytest.raises(ValueError, match="is below one step of 'a'"):
            match_budget({"a": costs}, budget)
    else:
        assert match_budget({"a": costs}, budget) == {"a": steps}
    if budget >= single:
        found = match_budget({"b": single}, budget)["b"]
        assert found * single <= budget * (1 + 1e-9) and (found + 1) * single > budget


def test_budget_typed_in():
    assert match_budget({"gspo": 8.0, "ibpo": [4.0, 5.0, 6.0, 7.0]}, 16.0) == {"gspo": 2, "ibpo": 3}
    assert match_budget({"a": 0.1}, 1.0) == {"a": 10} == match_budget({"a": [0.1] * 10}, 1.0)
    assert match_budget({}, 1.0) == {}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compute_to_threshold(([2, 1], [0, 1]), 0.5), "compute falls"),
        (lambda: compute_to_threshold(([-1, 1], [0, 1]), 0.5), "compute falls, is negative"),
        (lambda: compute_to_threshold(([NAN, 1], [0, 1]), 0.5), "missing"),
        (lambda: compute_to_threshold(([1, 2], [0]), 0.5), "one common shape"),
        (lambda: compute_to_threshold(([1], [NAN]), 0.5), "reward is empty or all missing"),
        (lambda: compute_to_threshold(([], []), 0.5), "reward is empty"),
        (lambda: compute_to_threshold([1, 2, 3], 0.5), "curve holds 3 arrays"),
        (lambda: compute_to_threshold(([1], [1]), NAN), "threshold=nan"),
        (lambda: compute_ratio({0: NEVER}, {1: NEVER}), r"method has seeds \[0\], baseline \[1\]"),
        (lambda: compute_ratio({}, {}), "method has seeds"),
        (lambda: compute_ratio({0: reached(1.0)}, {0: reached(1.0, 0.5)}), "thresholds"),
        (lambda: compute_ratio({0: reached(0.0)}, {0: reached(1.0)}), "compute 0"),
        (lambda: match_budget({"a": 0.0}, 1.0), r"costs_per_step\['a'\]=0.0"),
        (lambda: match_budget({"a": []}, 1.0), r"costs_per_step\['a'\]"),
        (lambda: match_budget({"a": 1.0}, math.inf), "budget=inf"),
        (lambda: match_budget({"a": 2.0}, 1.0), "budget=1 is below one step of 'a': allowed is 2 or more"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
