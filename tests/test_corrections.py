"""Per-token records summarised: slow loops over tokens, identities, and the rule that picks a segment."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from rlvr.analysis.corrections import (
    SWITCH_RULES,
    horizon_frame,
    longest_segment,
    pool,
    strength_frame,
    switch_frame,
)
from rlvr.analysis.dynamics import switch_frequency, traced_ratio

CLASSES = ("end", "end", "digit", "digit", "operator", "word")  # of token ids 0..5; 1 ends a response
TRACE = {"horizon": 4, "trace_clip": (0.8, 1.4), "ratio_clip": 3.0}
RESAMPLES, CONFIDENCE = 200, 0.9


def make_records(seeds=(0, 1), steps=3, responses=4, spread=0.3, with_words=False):
    """Records as load_records gives them; every response ends with token 1, lengths 1..9."""
    rows, rng = [], np.random.default_rng(0)
    for seed, step, response in itertools.product(seeds, range(steps), range(responses)):
        length = 1 + int(rng.integers(9))
        for position in range(length):
            token = 1 if position == length - 1 else int(rng.integers(2, 6 if with_words else 5))
            log_prob, old = rng.normal(-1, spread), -1.0
            rows.append(
                {
                    "seed": seed, "step": step, "minibatch": response % 2, "position": position,
                    "token": token,
                    "run_response": (seed * steps + step) * responses + response,
                    "log_prob": log_prob, "old_log_prob": old, "rho": np.exp(log_prob - old),
                    "trace": 1 + rng.normal(0, 0.1), "advantage": (-1.0) ** response,
                }
            )  # fmt: skip
    return pd.DataFrame(rows).astype({"log_prob": "float32", "old_log_prob": "float32"})


@pytest.fixture(scope="module")
def records():
    return make_records()


@pytest.fixture(scope="module")
def data(records):
    return pool(records.sample(frac=1, random_state=0))


def slow_weights(records, horizon=4, low=0.8, high=1.4, beta=3.0):
    """response -> [(token, rho, rho * clipped trace), ...] from the formula."""
    found = {}
    for response, rows in records.sort_values("position").groupby("run_response"):
        ratios = np.exp((rows["log_prob"] - rows["old_log_prob"]).to_numpy(np.float64))
        weights = []
        for t, rho in enumerate(ratios):
            trace = 1.0
            for later in ratios[t + 1 : t + horizon]:
                trace *= min(max(later, 1 / beta), beta)
            weights.append((int(rows["token"].iloc[t]), rho, rho * min(max(trace, low), high)))
        found[response] = weights
    return found


def test_pool_puts_every_record_in_its_place(records, data):
    assert data.response.tolist() == sorted(records["run_response"].unique())
    assert int(data.mask.sum()) == len(records)
    assert data.seeds == (0, 1)
    row_of = {response: i for i, response in enumerate(data.response.tolist())}
    for record in records.itertuples():
        row = row_of[record.run_response]
        assert bool(data.mask[row, record.position])
        assert int(data.token[row, record.position]) == record.token
        log_ratio = record.log_prob - record.old_log_prob
        assert float(data.log_ratio[row, record.position]) == pytest.approx(log_ratio, abs=1e-6)
        assert (data.seed[row], data.step[row]) == (record.seed, record.step)
    assert not data.log_ratio[~data.mask].any()


@pytest.mark.parametrize("name", ["all tokens", "digit", "operator", "end"])
def test_strength_by_class_slow_loop(records, data, name):
    frame = strength_frame(data, CLASSES, TRACE, RESAMPLES, CONFIDENCE).set_index("tokens")
    far = [
        (abs(rho - 1), abs(traced - 1))
        for weights in slow_weights(records).values()
        for token, rho, traced in weights
        if name == "all tokens" or CLASSES[token] == name
    ]
    row, (plain, traced) = frame.loc[name], np.mean(far, axis=0)
    assert row["count"] == len(far)
    assert row["rho"].value == pytest.approx(plain, rel=1e-12)
    assert row["traced"].value == pytest.approx(traced, rel=1e-12)
    assert row["difference"].value == pytest.approx(traced - plain, abs=1e-12)
    assert row["rho"].low < plain < row["rho"].high
    assert (row["rho"].n_unit, row["rho"].seeds, row["rho"].n) == ("responses", (0, 1), len(data.response))


def test_the_last_token_has_no_trace_so_its_strength_does_not_change(data):
    frame = strength_frame(data, CLASSES, TRACE, RESAMPLES, CONFIDENCE).set_index("tokens")
    end = frame.loc["end"]
    assert end["difference"].value == 0.0 and end["difference"].low is None
    assert end["rho"] == end["traced"] and end["rho"].value > 0
    assert frame.loc["digit", "difference"].value != 0
    assert frame.loc["end", "count"] == len(data.response)


def test_classes_add_up_to_all_tokens_and_absent_ones_are_left_out(data):
    frame = strength_frame(data, CLASSES, TRACE, RESAMPLES, CONFIDENCE).set_index("tokens")
    assert frame.index.tolist() == ["all tokens", "end", "digit", "operator"]  # no token is a word
    parts = frame.drop("all tokens")
    assert parts["count"].sum() == frame.loc["all tokens", "count"]
    for column in ("rho", "traced", "difference"):
        total = sum(e.value * n for e, n in zip(parts[column], parts["count"], strict=True))
        assert total / parts["count"].sum() == pytest.approx(frame.loc["all tokens", column].value, abs=1e-12)
    with_words = pool(make_records(with_words=True))
    assert "word" in strength_frame(with_words, CLASSES, TRACE, RESAMPLES, CONFIDENCE)["tokens"].tolist()


def test_without_a_horizon_the_trace_changes_nothing(data):
    trace = TRACE | {"horizon": 1}
    strength = strength_frame(data, CLASSES, trace, RESAMPLES, CONFIDENCE)
    assert [e.value for e in strength["difference"]] == [0.0] * len(strength)
    switches = switch_frame(data, trace, RESAMPLES, CONFIDENCE)
    assert all(row["rho"] == row["traced"] and row["ratio"].value == 1 for _, row in switches.iterrows())


def slow_switches(sequences, low=1.0, high=1.0, decided=False):
    switches = pairs = 0
    for weights in sequences:
        for first, second in itertools.pairwise(weights):
            sides = [int(w > high) - int(w < low) for w in (first, second)]
            pairs += not decided or all(sides)
            switches += sides[0] * sides[1] < 0
    return switches / pairs


@pytest.mark.parametrize("rule", list(SWITCH_RULES))
def test_switch_frame_slow_loop(records, data, rule):
    zone = {"strict": 0.0, "0.1": 0.001, "1": 0.01}[rule.removeprefix("dead zone ").split(" %")[0]]
    settings = {"low": 1 - zone, "high": 1 + zone, "decided": "decided" in rule}
    weights = slow_weights(records).values()
    row = switch_frame(data, TRACE, RESAMPLES, CONFIDENCE).set_index("rule").loc[rule]
    expected = [slow_switches([[w[i] for w in ws] for ws in weights], **settings) for i in (1, 2)]
    assert [row["rho"].value, row["traced"].value] == pytest.approx(expected, rel=1e-12)
    if not settings["decided"]:  # the same pairs in both
        assert row["ratio"].value == pytest.approx(expected[1] / expected[0], rel=1e-12)
        assert row["ratio"].low < row["ratio"].value < row["ratio"].high


def test_the_strict_rule_comes_first_and_claims_are_judged_by_it(data):
    frame = switch_frame(data, TRACE, RESAMPLES, CONFIDENCE)
    assert frame["rule"].tolist() == list(SWITCH_RULES) and frame["rule"].iloc[0] == "strict"


def test_a_ratio_of_unlike_pairs_is_not_given():
    """Under 'decided' rho and traced count different pairs: the ratio of their numerators would mislead."""
    data = pool(make_records(spread=0.01))
    frame = switch_frame(data, TRACE, RESAMPLES, CONFIDENCE).set_index("rule")
    assert isinstance(frame.loc["dead zone 1 %, all pairs", "ratio"].value, float)
    assert pd.isna(frame.loc["dead zone 1 %, decided pairs", "ratio"])


def test_independent_ratios_of_independent_records_agree():
    """The records here are independent, so shuffling them changes the frequency by noise alone."""
    data = pool(make_records(steps=40, responses=8))
    row = switch_frame(data, TRACE, RESAMPLES, CONFIDENCE).iloc[0]
    for name in ("rho", "traced"):
        assert row[f"independent {name}"].value == pytest.approx(row[name].value, abs=0.02)
    assert row["traced"].value < row["rho"].value - 0.05


def test_horizon_frame_at_1_has_no_trace_and_rhos_switches(records, data):
    frame = horizon_frame(data, [1, 2, 4], TRACE, RESAMPLES, CONFIDENCE).set_index(["horizon", "quantity"])
    weights = slow_weights(records).values()
    for kind in ("raw", "clipped"):
        assert frame.loc[(1, f"trace_variance_{kind}"), "value"] == 0.0
        assert frame.loc[(2, f"trace_variance_{kind}"), "value"] > 0
    rho = slow_switches([[w[1] for w in ws] for ws in weights])
    assert frame.loc[(1, "switch"), "value"] == pytest.approx(rho, rel=1e-12)
    strict = switch_frame(data, TRACE, RESAMPLES, CONFIDENCE).iloc[0]
    assert frame.loc[(1, "switch"), "estimate"] == strict["rho"]
    assert frame.loc[(4, "switch"), "estimate"] == strict["traced"]
    assert frame.loc[(4, "switch_independent"), "estimate"] == strict["independent traced"]
    strength = strength_frame(data, CLASSES, TRACE, RESAMPLES, CONFIDENCE).iloc[0]
    assert frame.loc[(4, "correction_strength"), "estimate"] == strength["traced"]


@pytest.mark.parametrize("kind", ["raw", "clipped"])
def test_trace_variance_is_the_median_over_steps_slow_loop(records, data, kind):
    clips = {"low": 0.0, "high": np.inf, "beta": np.inf} if kind == "raw" else {}
    weights = slow_weights(records, **clips)
    variances = [
        np.var(
            [
                traced / rho
                for response in rows["run_response"].unique()
                for _, rho, traced in weights[response]
            ]
        )
        for _, rows in records.groupby(["seed", "step"])
    ]
    frame = horizon_frame(data, [4], TRACE, RESAMPLES, CONFIDENCE).set_index("quantity")
    estimate = frame.loc[f"trace_variance_{kind}", "estimate"]
    assert estimate.value == pytest.approx(np.median(variances), rel=1e-9)
    assert (estimate.n, estimate.n_unit, estimate.seeds) == (6, "steps", (0, 1))
    assert min(variances) - 1e-9 <= estimate.low <= estimate.value <= estimate.high <= max(variances) + 1e-9


def test_horizon_frame_is_long_and_carries_its_estimates(data):
    frame = horizon_frame(data, [1, 4], TRACE, RESAMPLES, CONFIDENCE)
    assert len(frame) == 2 * 5 and not frame.duplicated(["horizon", "quantity"]).any()
    assert frame["low"].dtype == frame["high"].dtype == np.dtype("float64")
    for row in frame.itertuples():
        assert row.value == row.estimate.value
        assert (row.low == row.estimate.low) if row.estimate.low is not None else np.isnan(row.low)
    unknown = frame[(frame["horizon"] == 1) & frame["quantity"].str.startswith("trace_variance")]
    assert unknown["low"].isna().all()  # no spread: no interval of width zero


def test_frames_agree_with_the_functions_of_dynamics(data):
    weights = traced_ratio(data.log_ratio, data.mask, **TRACE)
    strict = switch_frame(data, TRACE, RESAMPLES, CONFIDENCE).iloc[0]
    assert strict["traced"].value == pytest.approx(switch_frequency(weights, data.mask).value, rel=1e-12)


def segment_records(rows):
    """rows: (seed, step, minibatch, response, length)."""
    out = []
    for seed, step, minibatch, response, length in rows:
        for position in reversed(range(length)):
            out.append(
                {
                    "seed": seed, "step": step, "minibatch": minibatch, "run_response": response,
                    "position": position, "token": response, "rho": 1 + position / 10, "trace": 2.0,
                    "advantage": -1.0,
                }
            )  # fmt: skip
    return pd.DataFrame(out)


def test_the_segment_is_chosen_by_rule():
    rows = [
        (3, 5, 3, 10, 9),  # another seed
        (1, 4, 3, 11, 9),  # an earlier step
        (1, 5, 2, 12, 9),  # an earlier minibatch
        (1, 5, 3, 15, 6),  # as long as the next, with a higher number
        (1, 5, 3, 14, 6),  # this one
        (1, 5, 3, 13, 5),  # shorter
    ]
    segment = longest_segment(segment_records(rows), 4)
    assert segment["token"].tolist() == [14] * 4
    assert segment["position"].tolist() == [0, 1, 2, 3]
    assert segment["traced"].tolist() == pytest.approx([2.0, 2.2, 2.4, 2.6])
    assert list(segment.columns) == ["position", "token", "rho", "traced", "advantage"]
    assert len(longest_segment(segment_records(rows), 50)) == 6


def test_the_segment_does_not_depend_on_the_order_of_records(records):
    one = longest_segment(records, 5)
    other = longest_segment(records.sample(frac=1, random_state=3), 5)
    assert one.to_dict("list") == other.to_dict("list")


def test_the_interval_over_seeds_is_that_of_one_value_per_seed(records, data):
    """Each seed's difference by a slow loop, then Student's t by hand."""
    strength = strength_frame(data, CLASSES, TRACE, 50, 0.95).set_index("tokens")
    values = []
    for _, rows in records.groupby("seed"):
        weights = [w for response in slow_weights(rows).values() for w in response]
        values.append(np.mean([abs(traced - 1) - abs(rho - 1) for _, rho, traced in weights]))
    found = strength.loc["all tokens", "over seeds"]
    half = 12.706204736 * abs(values[0] - values[1]) / 2  # t(0.975, 1 degree of freedom) * sd / sqrt(2)
    assert found.value == pytest.approx(np.mean(values), rel=1e-9)
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half), rel=1e-6)
    assert found.n_unit == "seeds" and found.n == 2
