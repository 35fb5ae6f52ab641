"""Accuracy of arms: slow loops, pairing, missing samples, typed-in numbers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from rlvr.analysis.accuracy import (
    accuracy_frame,
    correct_matrix,
    gain,
    pass1,
    pass1_by_seed,
    pass_k,
    seed_difference,
    seeds_of,
    select,
)

PROBLEMS = ("p3", "p1", "p2", "p4", "p0")


def run(arm, seed, lag, grid, problems=PROBLEMS, benchmark="embedded"):
    """Rows of one run; ``grid[i][j]`` is the verdict on sample j of problem i."""
    rows = [
        {
            "arm": arm,
            "seed": seed,
            "lag": lag,
            "benchmark": benchmark,
            "problem": p,
            "sample": j,
            "correct": verdict,
        }
        for p, verdicts in zip(problems, grid, strict=True)
        for j, verdict in enumerate(verdicts)
    ]
    return pd.DataFrame(rows).astype({"correct": "boolean"})


def random_grid(seed, samples=4, missing=0.0):
    rng = np.random.default_rng(seed)
    values = rng.random((len(PROBLEMS), samples)) < rng.random((len(PROBLEMS), 1))
    lost = rng.random(values.shape) < missing
    return [
        [None if x else bool(v) for v, x in zip(vs, xs, strict=True)]
        for vs, xs in zip(values, lost, strict=True)
    ]


@pytest.fixture
def samples():
    """Two arms, two lags, three seeds, and a base; complete."""
    runs = [
        run(arm, seed, lag, random_grid(100 * i + 10 * lag + seed))
        for i, arm in enumerate(("nfpo", "grpo"))
        for lag in (0, 8)
        for seed in (0, 1, 2)
    ]
    return pd.concat([*runs, run("base", 0, 0, random_grid(999))], ignore_index=True)


def student(values, confidence):
    half = (
        stats.t.ppf((1 + confidence) / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    )
    return np.mean(values), np.mean(values) - half, np.mean(values) + half


def check(estimate, value, low, high):
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((value, low, high), abs=1e-12)


def by_problem(rows):
    """problem -> list of verdicts 0/1 over all seeds and samples, without the missing."""
    found: dict[str, list[int]] = {}
    for problem, verdict in zip(rows["problem"], rows["correct"], strict=True):
        if verdict is not pd.NA:
            found.setdefault(problem, []).append(int(verdict))
    return found


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_pass1_slow_loop(missing):
    rows = pd.concat([run("nfpo", s, 0, random_grid(s, missing=missing)) for s in (4, 7)], ignore_index=True)
    means = [sum(v) / len(v) for v in by_problem(rows).values()]
    estimate = pass1(rows, 0.9)
    check(estimate, *student(means, 0.9))
    assert (estimate.n, estimate.n_unit, estimate.seeds) == (len(means), "problems", (4, 7))


def test_pass1_typed_in():
    rows = run("nfpo", 0, 0, [[1, 1], [1, 0], [0, 0]], ("a", "b", "c"))
    estimate = pass1(rows, 0.95)
    assert estimate.value == 0.5
    # sd of (1, 1/2, 0) is 1/2; t(0.975, 2) = 4.302653; 4.302653 / 2 / sqrt(3) = 1.242069
    assert estimate.high - estimate.value == pytest.approx(1.242069, abs=1e-6)


def test_a_missing_sample_is_not_a_wrong_answer():
    whole = run("nfpo", 0, 0, [[1, 0], [1, None], [None, None]], ("a", "b", "c"))
    estimate = pass1(whole, 0.95)
    assert (estimate.value, estimate.n) == (0.75, 2)
    assert correct_matrix(whole).isna().to_numpy().tolist() == [[False, False], [False, True], [True, True]]
    rows_gone = whole[whole["correct"].notna()]  # never generated or never decided: the same
    assert pass1(rows_gone, 0.95) == estimate
    assert correct_matrix(rows_gone).to_numpy()[1, 0] == 1 and np.isnan(
        correct_matrix(rows_gone).to_numpy()[1, 1]
    )
    with pytest.raises(ValueError, match="k=2 exceeds the fewest samples of a problem, n=1"):
        pass_k(rows_gone, 2, 0.95)


def test_a_problem_counts_once_by_seed_too():
    """Half of a problem's samples missing: that problem weighs as much as another, in every estimate."""
    rows = run("nfpo", 0, 0, [[1, None], [0, 0]], ("a", "b"))
    assert pass1(rows, 0.95).value == 0.5
    assert pass1_by_seed(rows).to_dict() == {0: 0.5}


def test_correct_matrix_sorts_problems_and_refuses_two_runs(samples):
    one = select(samples, "nfpo", 8, 2)
    wide = correct_matrix(one)
    assert wide.index.tolist() == sorted(PROBLEMS) and wide.dtypes.unique().tolist() == [np.dtype("float64")]
    for _, row in one.iterrows():
        assert wide.loc[row["problem"], row["sample"]] == float(row["correct"])
    with pytest.raises(ValueError, match="select one arm, seed and lag first"):
        correct_matrix(select(samples, "nfpo", 8))


def test_select_takes_rows_of_one_arm_and_lag(samples):
    rows = select(samples, "grpo", 8)
    assert set(zip(rows["arm"], rows["lag"], rows["seed"], strict=True)) == {
        ("grpo", 8, s) for s in (0, 1, 2)
    }
    assert len(select(samples, "grpo", 8, 1)) == len(rows) / 3
    assert seeds_of(rows.iloc[::-1]) == (0, 1, 2)


def test_pass1_by_seed_slow_loop(samples):
    found = pass1_by_seed(select(samples, "nfpo", 0).sample(frac=1, random_state=0))
    assert found.index.tolist() == [0, 1, 2]
    for seed in (0, 1, 2):
        verdicts = [int(v) for v in select(samples, "nfpo", 0, seed)["correct"]]
        assert found[seed] == pytest.approx(sum(verdicts) / len(verdicts), abs=1e-15)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_pass_k_counts_all_choices_of_k_samples(samples, k):
    rows = select(samples, "nfpo", 0)
    per_problem = {p: [] for p in PROBLEMS}
    for seed in (0, 1, 2):
        for problem, verdicts in by_problem(select(samples, "nfpo", 0, seed)).items():
            draws = [any(draw) for draw in itertools.combinations(verdicts, k)]
            per_problem[problem].append(sum(draws) / len(draws))
    estimate = pass_k(rows, k, 0.95)
    check(estimate, *student([np.mean(v) for v in per_problem.values()], 0.95))
    assert (estimate.n, estimate.seeds) == (len(PROBLEMS), (0, 1, 2))
    if k == 1:
        assert estimate.value == pytest.approx(pass1(rows, 0.95).value, abs=1e-15)


def test_gain_is_paired_by_problem(samples):
    base, trained = select(samples, "base", 0), select(samples, "nfpo", 8)
    after, before = by_problem(trained), by_problem(base)
    differences = [np.mean(after[p]) - np.mean(before[p]) for p in PROBLEMS]
    estimate = gain(trained, base, 0.8)
    check(estimate, *student(differences, 0.8))
    assert estimate.seeds == (0, 1, 2)
    check(gain(trained.sample(frac=1, random_state=1), base.iloc[::-1], 0.8), *student(differences, 0.8))
    with pytest.raises(ValueError, match="different indexes"):
        gain(trained, base[base["problem"] != "p1"], 0.8)


def test_seed_difference_slow_loop(samples):
    differences = []
    for seed in (0, 1, 2):
        a, b = (by_problem(select(samples, arm, 8, seed)) for arm in ("nfpo", "grpo"))
        differences.append(np.mean([np.mean(a[p]) - np.mean(b[p]) for p in PROBLEMS]))
    estimate = seed_difference(samples, "nfpo", "grpo", 8, 0.95)
    check(estimate, *student(differences, 0.95))
    assert (estimate.n, estimate.n_unit, estimate.seeds) == (3, "seeds", (0, 1, 2))
    back = seed_difference(samples, "grpo", "nfpo", 8, 0.95)
    check(back, -estimate.value, -estimate.high, -estimate.low)


def test_seed_difference_is_paired_by_seed():
    """Seeds lie far apart (0, 1/2, 4/5), the arms close together: pairing keeps the interval small."""
    wrong, half, right = [0, 0], [0, 1], [1, 1]
    worse = {0: [wrong] * 5, 1: [half] * 5, 2: [right] * 4 + [wrong]}
    better = {0: [wrong] * 4 + [right], 1: [half] * 5, 2: [right] * 5}
    runs = [run(arm, s, 0, g) for arm, grids in (("a", better), ("b", worse)) for s, g in grids.items()]
    estimate = seed_difference(pd.concat(runs), "a", "b", 0, 0.95)
    # differences 0.2, 0, 0.2: mean 0.4/3, sd 0.2/sqrt(3); t(0.975, 2) = 4.302653; half 4.302653 * 0.2 / 3
    assert estimate.value == pytest.approx(0.4 / 3, abs=1e-12)
    assert estimate.high - estimate.value == pytest.approx(0.2868435, abs=1e-6)


def test_seed_difference_pairs_by_problem_where_a_sample_is_missing():
    """A problem that one arm never answered is in neither mean."""
    a = run("a", 0, 0, [[1, 1], [None, None], [0, 0]], ("x", "y", "z"))
    b = run("b", 0, 0, [[0, 1], [1, 1], [0, 0]], ("x", "y", "z"))
    estimate = seed_difference(pd.concat([a, b]), "a", "b", 0, 0.95)
    assert estimate.value == 0.25 and estimate.low is None  # one seed tells no interval


def test_other_problems_or_a_missing_seed_are_an_error():
    a = run("a", 0, 0, random_grid(1))
    other = run("b", 0, 0, random_grid(2), ("p0", "p1", "p2", "p3", "p9"))
    with pytest.raises(ValueError, match="a and b with seed 0 were evaluated on different problems"):
        seed_difference(pd.concat([a, other]), "a", "b", 0, 0.95)
    with pytest.raises(ValueError, match="a and b with seed 0 were evaluated on different problems"):
        seed_difference(pd.concat([a, run("b", 3, 0, random_grid(1))]), "a", "b", 0, 0.95)
    with pytest.raises(ValueError):
        seed_difference(a, "nobody", "a", 0, 0.95)


def test_accuracy_frame_has_a_row_per_arm_and_lag_and_compares_with_the_base(samples):
    frame = accuracy_frame(samples, ["grpo", "nfpo"], (0, 8), (1, 2, 4), 0.9)
    assert list(zip(frame["lag"], frame["arm"], strict=True)) == [
        (0, "grpo"), (0, "nfpo"), (8, "grpo"), (8, "nfpo"),
    ]  # fmt: skip
    assert list(frame.columns) == ["arm", "lag", "pass@1", "over seeds", "gain over base", "pass@2", "pass@4"]
    base = select(samples, "base", 0)
    start = pass1(base, 0.9).value
    for row in frame.to_dict("records"):
        rows = select(samples, row["arm"], row["lag"])
        assert row["pass@1"] == pass1(rows, 0.9)
        assert row["pass@4"] == pass_k(rows, 4, 0.9)
        assert row["gain over base"].value == pytest.approx(row["pass@1"].value - start, abs=1e-12)
        check(row["over seeds"], *student([pass1_by_seed(rows)[s] for s in (0, 1, 2)], 0.9))
        assert row["over seeds"].n_unit == "seeds" and row["gain over base"].n_unit == "problems"


def test_accuracy_frame_needs_every_run_and_has_no_gain_without_the_base(samples):
    without = accuracy_frame(samples[samples["arm"] != "base"], ["nfpo"], (0,), (1,), 0.95)
    assert list(without.columns) == ["arm", "lag", "pass@1", "over seeds"]
    with pytest.raises(ValueError, match="nothing to estimate"):
        accuracy_frame(samples, ["dppo_tv"], (0,), (1,), 0.95)


# --- several benchmarks -----------------------------------------------------------------------------------

#: arm -> seed -> verdicts of two problems of a small benchmark and four of a large one, two samples each.
TWO = {
    "a": {0: ([[1, 1], [1, 0]], [[0, 0], [1, 0], [0, 0], [0, 0]]), 1: ([[1, 0], [0, 0]], [[0, 1]] * 4)},
    "b": {0: ([[1, 0], [0, 0]], [[0, 0], [1, 0], [0, 0], [0, 0]]), 1: ([[0, 0], [0, 0]], [[1, 1]] * 4)},
}


def of_two(arms=TWO):
    small, large = ("s0", "s1"), ("l0", "l1", "l2", "l3")
    return pd.concat(
        run(arm, seed, 0, grid, names, benchmark)
        for arm, seeds in arms.items() for seed, grids in seeds.items()
        for grid, names, benchmark in zip(grids, (small, large), ("small", "large"), strict=True)
    )  # fmt: skip


def test_every_benchmark_counts_once():
    a = of_two({"a": TWO["a"]})
    # seed 0: (3/4 + 1/8) / 2, seed 1: (1/4 + 1/2) / 2
    assert pass1_by_seed(a).to_dict() == pytest.approx({0: 0.4375, 1: 0.375})
    estimate = pass1(a, 0.95)
    assert estimate.value == pytest.approx(0.40625) and estimate.low < 0.40625 < estimate.high
    assert (estimate.n, estimate.n_unit, estimate.seeds) == (6, "problems", (0, 1))
    assert "within benchmarks" in estimate.method
    # pass@2: both samples wrong or not; seed 0: (1 + 1/4) / 2, seed 1: (1/2 + 1) / 2
    assert pass_k(a, 2, 0.95).value == pytest.approx((0.625 + 0.75) / 2)
    assert pass_k(a, 1, 0.95).value == pytest.approx(0.40625)


def test_a_difference_counts_every_benchmark_once():
    # seed 0: ((3/4 - 1/4) + 0) / 2, seed 1: (1/4 - 1/2) / 2
    check(seed_difference(of_two(), "a", "b", 0, 0.95), *student([0.25, -0.125], 0.95))


def test_one_benchmark_is_the_same_by_any_name(samples):
    other = samples.assign(benchmark="math500")
    rows = select(other, "nfpo", 8)
    assert pass1(rows, 0.9) == pass1(select(samples, "nfpo", 8), 0.9)
    assert pass_k(rows, 2, 0.9) == pass_k(select(samples, "nfpo", 8), 2, 0.9)
