"""Whatever a public function of rlvr.evaluation is wrongly given is a ValueError that names it."""

from __future__ import annotations

import inspect
import warnings
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

import rlvr.evaluation as evaluation
from rlvr.evaluation import Estimate, Reached, accuracy_table, clustered_mean, paired_variance, pass_at_k
from rlvr.evaluation.inputs import labels_of, numbers_of, seeds_of, whole

NAN, INF = float("nan"), float("inf")
A = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
B = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
E = Estimate(0.1, 0.05, 0.2, 3, "problems", (), "typed in")
SCORES = {"x": [[0.1, 0.2], [0.3, 0.4]], "y": [[0.5], [0.7]]}
SAMPLES = pd.DataFrame({
    "benchmark": "b", "model": "m", "grader": "g", "seed": 0, "problem": ["p", "p", "q", "q"],
    "sample": [0, 1, 0, 1], "correct": [True, False, True, True], "finished": True,
    "extracted": ["1", "2", "3", "3"],
})  # fmt: skip
TABLE = accuracy_table(SAMPLES, [2])
RUNS = {seed: Reached(2.0 + seed, "reached", 9.0, 0.7, 0.9) for seed in (0, 1)}

#: Right arguments of every public function; the tests below spoil one at a time.
RIGHT = {
    "accuracy_table": {"samples": SAMPLES},
    "aggregate": {"scores": SCORES, "unit": "seeds", "resamples": 20},
    "avg_at_k": {"correct": A},
    "benchmark_mean": {"scores": [[0.1, 0.2]]},
    "benchmark_scores": {"samples": SAMPLES},
    "best_of_n": {"correct": A, "passes": B, "n": 2},
    "bootstrap_mean": {"values": [0, 1, 1], "clusters": [0, 1, 2], "resamples": 20},
    "bootstrap_statistic": {"strata": [[0, 1, 1]], "statistic": lambda x: x.mean(-1), "resamples": 20},
    "bootstrap_test": {"a": A, "b": B, "resamples": 20},
    "by_equivalence": {"equal": lambda a, b: a == b},
    "clustered_mean": {"values": [0, 1, 1], "clusters": [0, 1, 2]},
    "clustered_standard_error": {"values": [0, 1, 1], "clusters": [0, 1, 2]},
    "compute_ratio": {"method": RUNS, "baseline": RUNS},
    "compute_to_threshold": {"curve": ([1, 2], [0.1, 0.9]), "threshold": 0.5},
    "count_correct": {"correct": A},
    "coverage": {"samples": SAMPLES},
    "coverage_note": {"found": TABLE},
    "curve_crossing": {"a": ([4, 4], [1, 2]), "b": ([4, 4], [2, 2]), "ks": [1, 2], "resamples": 20},
    "detectable_difference": {"variance": paired_variance(A), "problems": 3, "samples": 2},
    "equivalent": {"difference": E, "margin": 0.1},
    "half_width": {"estimate": E},
    "holm": {"p_values": [0.1, 0.2]},
    "interquartile_mean": {"scores": [[0.1, 0.2]]},
    "majority_at_k": {"correct": [[1, 0]], "answers": [["1", "2"]], "k": 2},
    "match_budget": {"costs_per_step": {"a": 1.0, "b": [1, 2, 3]}, "budget": 5.0},
    "mcnemar_test": {"a": [1, 0, 1], "b": [0, 0, 1]},
    "multiplicity_note": {"n_tests": 2, "method": "none"},
    "non_inferior": {"difference": E, "margin": 0.1},
    "normal_test": {"a": E, "b": E},
    "notes_under": {"table": TABLE},
    "paired_difference": {"a": A, "b": B},
    "paired_variance": {"a": A, "b": B},
    "pass_at_k": {"n": [4, 4], "c": [1, 2], "k": 2},
    "pass_at_ks": {"n": [4, 4], "c": [1, 2], "ks": [1, 2]},
    "pass_curve": {"n": [4, 4], "c": [1, 2], "ks": [1, 2], "resamples": 20},
    "performance_profile": {"scores": SCORES, "thresholds": [0.2], "unit": "seeds", "resamples": 20},
    "power_note": {"a": A, "b": B},
    "probability_of_improvement": {"a": SCORES, "b": SCORES, "unit": "seeds", "resamples": 20},
    "proportion_mean": {"values": [0, 1, 1], "clusters": [0, 1, 2]},
    "geometric_seed_interval": {"ratios": pd.Series([0.5, 0.7], index=[0, 1])},
    "ratio_of_means": {"numerator": [0, 1], "denominator": [1, 1], "clusters": [0, 1], "resamples": 20},
    "same_string": {"answers": ["a", "b"]},
    "seed_interval": {"values": [0.1, 0.2], "seeds": [0, 1]},
    "seed_tests": {"a": [0.1, 0.2], "b": [0.3, 0.5], "seeds_a": [0, 1], "seeds_b": [0, 1], "resamples": 20},
    "sign_flip_test": {"a": A, "b": B, "draws": 20},
    "unpaired_variance": {"a": A, "b": B},
    "with_ends": {"frame": pd.DataFrame({"estimate": [E]})},
}  # fmt: skip
TYPES = {"Comparison", "ComputeRatio", "Crossing", "Estimate", "Ledger", "ModelShape", "Reached"}

_NUMBERS = [
    ["True", "False", "True"],
    ["a"] * 3,
    [1, INF, 0],
    [[1, 2], [3]],
    [1j, 0, 1],
    object(),
    {"a": 1},
    7,
]
_MATRIX = ["12", [["True", "False"]], [["1", "0"]], [[1, INF]], [[1, 0], [1]], [[0.5, 1]], [1, 0], 7, None]
_COUNT = [0, -1, 1.5, "2", True, None, [2]]
_LABELS = [[0, 1], [0, None, 1], ["a", 1.5, None], 7]
#: Values that no function takes for an argument of this name.
WRONG = {
    "values": _NUMBERS, "numerator": _NUMBERS, "denominator": _NUMBERS, "clusters": _LABELS,
    "strata": [7, "ab", ["ab"]], "correct": _MATRIX, "passes": _MATRIX, "answers": [7, [7]],
    "resamples": _COUNT, "draws": _COUNT, "k": _COUNT, "problems": _COUNT, "n_tests": _COUNT,
    "samples": [0, "2", 1.5, True, [1]], "expected": [0, 1.5, "2", True],
    "seed": [-1, 1.5, "a", None, True], "seeds": [7, "ab", ["a"], [None], [1.5], None],
    "seeds_a": [7, "ab", [0]], "seeds_b": [7, "ab", [0], [1, 1]],
    "confidence": [0, 1, 95, "0.95", None, True, NAN], "power": [0.1, 1, "0.8", None],
    "alpha": [0, 1, "x", None], "margin": [0, -1, INF, NAN, "0.1", None, True],
    "ks": [7, "12", [0], [1.5], [True], ["1"], [[1]], [100]], "unit": ["rows", None, 7, ["seeds"]],
    "scores": [{}, 7, [], "ab", {1: [0.1]}, {"x": "ab"}, {"x": [[INF]]}, {"x": [[0.1], [0.1, 0.2]]}],
    "thresholds": [7, "ab", [None], ["a"], [[0.1]]], "statistic": [7, None], "equal": [7, None, "a"],
    "group": [7, "a"], "short": ["drop", None, 7], "method": ["bonferroni", None, 7],
    "p_values": [["0.1"], [2], [NAN], 7, [], None], "variance": [0.1, None, "a"],
    "difference": [0.1, None], "estimate": [0.1, None], "table": [None, 7, pd.DataFrame({"a": [1]})],
    "found": [None, 7, pd.DataFrame({"a": [1]})], "frame": [None, 7, pd.DataFrame({"estimate": [0.1]})],
    "training_sets": ["dapo", 7, None], "threshold": ["0.5", None, NAN, INF, True, [0.5]],
    "curve": [7, None, "ab", [[1, 2]], ([2, 1], [0, 1]), ([1, 2], [0]), (["a", "b"], [0, 1]), ([1], [INF])],
    "baseline": [None, 7, {}, {0: RUNS[0]}, {0: 1.0, 1: 2.0}, {"a": RUNS[0]}, [RUNS[0]]],
    "costs_per_step": [None, 7, [1.0], {"a": 0}, {"a": "1"}, {"a": [1, NAN]}, {"a": [[1]]}, {"a": []}],
    "budget": [0, -1, NAN, INF, "5", None, True, [5]],
}  # fmt: skip
_COUNTS = [["1", "2"], [1, 2, 3], [1.5, 2], [NAN, 1], [INF, 1], [[1, 2], [3]], None]
_FRAMES = [
    None,
    7,
    [],
    SAMPLES.head(0),
    SAMPLES.drop(columns="correct"),
    SAMPLES.assign(correct=["True", "False"] * 2),
    SAMPLES.assign(correct=[0.5] * 4),
    SAMPLES.assign(finished=["True", "False"] * 2),
    SAMPLES.assign(seed="first"),
    SAMPLES.assign(problem=None),
    pd.concat([SAMPLES, SAMPLES]),
]
_RUNS = [["a", "b", "c"], [["True"]] * 3, [1, INF, 0], [[1, 0], [1]], 7, [], object()]
OWN = {
    **{(name, "samples"): _FRAMES for name in ("accuracy_table", "benchmark_scores", "coverage")},
    **{(name, arg): _COUNTS for name in ("pass_at_k", "pass_at_ks", "pass_curve") for arg in "nc"},
    **{
        (name, arg): _RUNS
        for name in ("bootstrap_test", "mcnemar_test", "paired_difference", "sign_flip_test")
        for arg in "ab"
    },
    **{(name, "a"): _MATRIX for name in ("paired_variance", "power_note", "unpaired_variance")},
    **{(name, "b"): _MATRIX[:-1] for name in ("paired_variance", "power_note", "unpaired_variance")},
    **{("normal_test", arg): [0.1, None, "a"] for arg in "ab"},
    **{("seed_tests", arg): [["a", "b"], [0.1, INF], [0.1], [NAN, 0.1], 7] for arg in "ab"},
    **{("probability_of_improvement", arg): WRONG["scores"] for arg in "ab"},
    **{("curve_crossing", arg): [7, ([4, 4],), ([4, "a"], [1, 2]), ([4], [1, 2]), None] for arg in "ab"},
    **{(name, "scores"): [[0.1], ["ab"], [["0.1"]], [[INF]], 7, None, [[]]]
       for name in ("benchmark_mean", "interquartile_mean")},
    ("accuracy_table", "ks"): WRONG["ks"][:-1],  # problems with fewer samples are left out
    ("ratio_of_means", "clusters"): [[0], [0, None], ["a", 1.5, None], 7],
    ("best_of_n", "n"): [*_COUNT, 3],
    ("majority_at_k", "answers"): [[["1"]], [["1", "2"], ["1"]], ["1", "2"], "12", 7, None],
    ("majority_at_k", "k"): [*_COUNT, 3],
    ("notes_under", "samples"): [7, [], SAMPLES.drop(columns="model")],
    ("notes_under", "problems"): [7, "ab"],
    ("compute_ratio", "method"): [None, 7, {}, {0: RUNS[0]}, {0: 1.0, 1: 2.0}, {"a": RUNS[0]}, [RUNS[0]]],
    ("seed_interval", "seeds"): [[0], [0, 0], *WRONG["seeds"]],
    ("seed_interval", "values"): [[0.1], ["a", "b"], [NAN, 0.1], [INF, 0.1], 7],
    ("geometric_seed_interval", "ratios"): [[0.5, 0.7], None, pd.Series([0.5, -1.0]), pd.Series([0.5, NAN])],
    ("bootstrap_mean", "strata"): [[0], [0, None, 1], 7],
    ("ratio_of_means", "strata"): [[0], [0, None], 7],
}  # fmt: skip
UNCHECKED = {"n_unit", "workers", "data_dir", "column"}  # words of the method; what other modules check


def cases() -> list:
    found = []
    for name, right in RIGHT.items():
        for argument in inspect.signature(getattr(evaluation, name)).parameters:
            if argument not in UNCHECKED:
                values = OWN.get((name, argument)) or WRONG[argument]
                found += [
                    pytest.param(name, right | {argument: value}, argument, id=f"{name}-{argument}-{number}")
                    for number, value in enumerate(values)
                ]
    return found


def test_every_public_function_is_here():
    assert set(RIGHT) == set(evaluation.__all__) - TYPES
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, right in RIGHT.items():
            getattr(evaluation, name)(**right)


@pytest.mark.parametrize(("name", "arguments", "argument"), cases())
def test_a_wrong_argument_is_refused_by_name(name, arguments, argument):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError) as error:
            getattr(evaluation, name)(**arguments)
    # an array that fits no other is named beside it, an item of a list or mapping as itself
    text = str(error.value)
    words = {argument, argument.rstrip("s"), "shape", "rows of", "nothing to estimate", "at least one"}
    words |= {"an Estimate"}
    assert any(word in text for word in words) or argument in ("scores", "a", "b", "samples", "strata"), text
    assert (
        "must be real number" not in text and "could not convert" not in text and "not iterable" not in text
    )


def test_typed_in():
    with pytest.raises(ValueError, match=r"n has shape \(2,\), c \(1,\): allowed is one shape"):
        pass_at_k([2, 3], [1], 1)
    with pytest.raises(ValueError, match="k=True: allowed are integers >= 1"):
        pass_at_k([2], [1], True)
    with pytest.raises(ValueError, match=r"n holds .*'a'.*: allowed are numbers"):
        pass_at_k(["a"], [1], 1)
    with pytest.raises(ValueError, match="values holds inf: allowed are finite numbers and NaN"):
        clustered_mean([1, INF], [0, 1])
    with pytest.raises(ValueError, match="correct holds 'True'"):
        accuracy_table(SAMPLES.assign(correct="True"))


def test_missing_values_of_every_kind_are_nan():
    for values in (
        [1, None, True, 0.5],
        [1, NAN, np.True_, Fraction(1, 2)],
        pd.Series([1, None, 1, 0.5], dtype="Float64"),
        np.array([1, pd.NA, 1, 0.5], dtype=object),
        pd.Series([1, NAN, 1, 0.5], dtype="float32"),
    ):
        np.testing.assert_array_equal(numbers_of("x", values), [1, NAN, 1, 0.5])
    np.testing.assert_array_equal(numbers_of("x", pd.array([True, None], dtype="boolean")), [1, NAN])
    frame = pd.DataFrame({"a": pd.array([True, None], dtype="boolean"), "b": [1.0, 0.0]})
    np.testing.assert_array_equal(numbers_of("x", frame), [[1, 1], [NAN, 0]])
    assert numbers_of("x", []).shape == (0,) and numbers_of("x", 3).shape == ()


def test_whole_numbers_labels_and_seeds():
    assert whole("k", np.int64(3)) == 3 and whole("seed", 0, 0) == 0
    for value in (True, np.True_, 3.0, "3", None, 0):
        with pytest.raises(ValueError, match="k="):
            whole("k", value)
    assert seeds_of([np.int64(2), 3.0, 1]) == (2, 3, 1) and seeds_of(pd.Series([1, 2])) == (1, 2)
    assert labels_of("c", pd.Series(["a", "b"])).tolist() == ["a", "b"]
    with pytest.raises(ValueError, match=r"c holds int, str: allowed are strings alone, or numbers alone"):
        labels_of("c", np.array(["a", 1], dtype=object))
