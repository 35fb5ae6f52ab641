"""Scores of IBPO's arms and of its baselines: one number per method, training seed and held-out problem.

Three kinds of method share this form: trained policies (mean verdict of their samples), revisions at test
time (mean verdict of the revisions), and Best-of-N (its expected verdict). What the tables and tests do
with them is then the same for all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np
import pandas as pd
from scipy import stats

from rlvr.evaluation import Estimate, best_of_n, bootstrap_mean, holm, seed_interval, seed_tests
from rlvr.reporting.claims_ibpo import EASY, HARD

#: Rows of Table 1 in the paper's order, and after them what it does not have.
TABLE_1 = MappingProxyType(
    {
        "ibpo": "GSPO + IBPO",
        "ibpo_ratio": "GSPO + IBPO (ratio)",
        "ibpo_mask": "GSPO + IBPO (mask)",
        "gspo": "GSPO",
        "gspo_prompt": "GSPO with prompt",
        "score_second": "GSPO with SCoRe",
        "gspo_best": "GSPO with best of 8",
    }
)
BESIDE = MappingProxyType(
    {
        "gspo8": "GSPO, 8 responses to a prompt",
        "gspo8_prompt": "that with prompt",
        "gspo8_best": "that with best of 8",
        "score": "SCoRe, first turn",
        "ibpo_prompt": "GSPO + IBPO with prompt",
        "ibpo_best": "GSPO + IBPO with best of 8",
    }
)
BASELINES = ("gspo", "gspo_prompt", "score_second", "gspo_best", "gspo8")
LABELS = MappingProxyType({**TABLE_1, **BESIDE})
BEST_OF = 8


def score_frame(samples: pd.DataFrame, revised: pd.DataFrame | None, selected: pd.DataFrame) -> pd.DataFrame:
    """``method, seed, problem, score, difficulty, base``; ``base``: the base model's share of right samples.
    Of a language model ``benchmark`` in place of ``difficulty``.

    Args:
        samples: graded, of ``base`` and every arm, lag 0, with ``arm``, ``seed``, ``problem``, ``correct``
            and ``difficulty`` or ``benchmark``.
        revised: of :func:`rlvr.evaluation.at_test_time.revise_arms`; None: nothing was revised.
        selected: of :func:`rlvr.evaluation.at_test_time.select_arms`; N is 8, or all samples that there are;
            None: nothing was selected.
    """
    trained = samples.assign(method=samples["arm"])
    parts = [_means(part) for part in (trained, revised) if part is not None]
    for (method, seed), own in () if selected is None else selected.groupby(["method", "seed"], sort=False):
        verdicts = own.assign(correct=own["correct"].astype("Float64").astype("float64"))
        wide = verdicts.pivot(index="problem", columns="sample", values=["correct", "passes"])
        n = min(BEST_OF, wide["correct"].shape[1])
        score = best_of_n(wide["correct"], wide["passes"], n)
        parts.append(pd.DataFrame({"method": method, "seed": seed, "problem": wide.index, "score": score}))
    found = pd.concat(parts, ignore_index=True)
    base = found[found["method"] == "base"].set_index("problem")["score"]
    kind = "difficulty" if "difficulty" in samples else "benchmark"
    kinds = samples.drop_duplicates("problem").set_index("problem")[kind]
    trained = found[found["method"] != "base"]
    return trained.assign(**{kind: trained["problem"].map(kinds), "base": trained["problem"].map(base)})


def _means(samples: pd.DataFrame) -> pd.DataFrame:
    correct = samples.assign(score=samples["correct"].astype("Float64").astype("float64"))
    return correct.groupby(["method", "seed", "problem"], sort=False)["score"].mean().reset_index()


def sets_of(scores: pd.DataFrame) -> dict[str, pd.Series]:
    """Held-out sets, which stand for benchmarks, as conditions on rows: by number of operations, and all; of
    a language model its benchmarks, and their average."""
    every = pd.Series(True, index=scores.index)
    if "benchmark" in scores:
        return {name: scores["benchmark"] == name for name in scores["benchmark"].unique()} | {
            "average": every
        }
    found = {
        f"{n} operation{'s' if n > 1 else ''}": scores["difficulty"] == n
        for n in sorted(scores["difficulty"].unique())
    }
    return found | {"all": every}


def _over_problems(values: pd.Series, benchmarks: pd.Series | None) -> pd.Series:
    """Mean by seed, the first level of the index; every benchmark counts once, where there are several."""
    if benchmarks is None:
        return values.groupby("seed").mean().sort_index()
    return values.groupby(["seed", benchmarks]).mean().groupby("seed").mean().sort_index()


def by_seed(scores: pd.DataFrame, method: str) -> pd.Series:
    """Accuracy of every training seed, a mean over problems (of benchmarks, of their means), by rising seed.

    Raises:
        ValueError: no such method.
    """
    own = scores[scores["method"] == method]
    if own.empty:
        raise ValueError(f"scores hold no method {method!r}; there are {sorted(scores['method'].unique())}")
    by_problem = own.set_index(["seed", "problem"])
    return _over_problems(by_problem["score"], by_problem.get("benchmark"))


def accuracy(scores: pd.DataFrame, method: str, confidence: float) -> Estimate:
    """Mean over seeds, Student's t over seeds."""
    values = by_seed(scores, method)
    return seed_interval(values, confidence=confidence)


def bootstrapped(scores: pd.DataFrame, method: str, confidence: float, resamples: int) -> Estimate:
    """Mean over seeds with a bootstrap over them, as the paper has it: with five of them too narrow."""
    values = by_seed(scores, method)
    seeds = values.index.tolist()
    return bootstrap_mean(
        values.to_numpy(), seeds, confidence=confidence, resamples=resamples, seeds=seeds, n_unit="seeds"
    )


def differences(scores: pd.DataFrame, a: str, b: str) -> pd.Series:
    """``a - b`` of every seed that both have, a mean over problems; without those that no verdict of one of
    both decides.

    Raises:
        ValueError: no common seed, or other problems.
    """
    wide = scores[scores["method"].isin((a, b))].pivot(
        index=["seed", "problem"], columns="method", values="score"
    )
    both = wide.dropna() if {a, b} <= set(wide.columns) else wide.head(0)
    if both.empty:
        raise ValueError(f"{a} and {b} have no seed in common")
    asked = {
        method: own.groupby("seed")["problem"].agg(frozenset)
        for method, own in scores[scores["method"].isin((a, b))].groupby("method")
    }
    seeds = asked[a].index.intersection(asked[b].index)
    if (asked[a][seeds] != asked[b][seeds]).any():
        raise ValueError(f"{a} and {b} were evaluated on different problems")
    benchmarks = None
    if "benchmark" in scores:
        of_problem = scores.drop_duplicates("problem").set_index("problem")["benchmark"]
        benchmarks = pd.Series(both.index.get_level_values("problem").map(of_problem), index=both.index)
    return _over_problems(both[a] - both[b], benchmarks)


def difference(scores: pd.DataFrame, a: str, b: str, confidence: float) -> Estimate:
    """Mean over seeds of ``a - b``, paired by seed and problem, Student's t over seeds."""
    found = differences(scores, a, b)
    return seed_interval(found, confidence=confidence)


def score_table(
    scores: pd.DataFrame, methods: Mapping[str, str], confidence: float, resamples: int
) -> pd.DataFrame:
    """Table 1: a row per method, a column per held-out set; cells by :func:`bootstrapped`."""
    columns = {
        name: {
            label: bootstrapped(scores[rows], method, confidence, resamples)
            for method, label in methods.items()
        }
        for name, rows in sets_of(scores).items()
    }
    return pd.DataFrame(columns).rename_axis("method")


def p_value_table(
    scores: pd.DataFrame, method: str, baselines: Iterable[str], confidence: float, resamples: int
) -> pd.DataFrame:
    """``method`` against baselines on all problems: differences and p-values, as the paper makes them and as
    few seeds allow.

    ``bootstrap`` and ``normal`` take five seeds for many (:func:`rlvr.evaluation.seed_tests`); ``Welch`` does
    not, ``paired t`` also uses that arms with a seed share their problems; ``Holm`` adjusts the last for the
    number of rows.
    """
    baselines = list(baselines)
    rows, paired = [], []
    for other in baselines:
        a, b = by_seed(scores, method), by_seed(scores, other)
        try:
            found = seed_tests(
                a.to_numpy(),
                b.to_numpy(),
                a.index.tolist(),
                b.index.tolist(),
                resamples=resamples,
                confidence=confidence,
            )
        except ValueError:  # an arm whose seeds are all alike has no interval to test with
            found = {}
        each = differences(scores, method, other).to_numpy()
        p = None  # one seed, or seeds that differ by the same: no spread to test with
        if len(each) > 1 and np.ptp(each) > 0:
            p = float(stats.ttest_1samp(each, 0.0).pvalue)
        paired.append(p)
        row = {"baseline": LABELS[other], "difference": difference(scores, method, other, confidence)}
        row |= {
            f"p, {name}": p_text(found[key].p_value) if found else "unknown" for name, key in _TESTS.items()
        }
        rows.append(row | {"p, paired t": p_text(p)})
    known = [p for p in paired if p is not None]
    adjusted = iter(holm(known) if known else ())
    holms = [p_text(None if p is None else next(adjusted)) for p in paired]
    return pd.DataFrame(rows).assign(**{"p, Holm": holms}).set_index("baseline")


_TESTS = {"bootstrap": "bootstrap", "normal": "normal", "Welch": "welch"}


def p_text(value: float | None) -> str:
    """A p-value as a reader sees it."""
    if value is None:
        return "unknown"
    return "below 0.001" if value < 0.001 else f"{value:.3f}"


def gain_frame(scores: pd.DataFrame, a: str, b: str, confidence: float) -> pd.DataFrame:
    """``a - b`` by difficulty: ``by, level, problems, estimate``; by the number of operations (of language
    models, by the benchmark) and by how often the base model is right (hard, middle, easy: :data:`HARD`,
    :data:`EASY`)."""
    kind, title = ("benchmark", "benchmark") if "benchmark" in scores else ("difficulty", "operations")
    rows = []
    for level in sorted(scores[kind].unique()):
        rows.append((title, str(level), scores[scores[kind] == level]))
    for level, kept in by_base(scores).items():
        rows.append(("base model", level, scores[kept]))
    return pd.DataFrame(
        [
            (by, level, own["problem"].nunique(), difference(own, a, b, confidence))
            for by, level, own in rows
            if len(own)
        ],
        columns=["by", "level", "problems", "estimate"],
    )


def by_base(scores: pd.DataFrame) -> dict[str, pd.Series]:
    """Conditions on the rows, by the base model's share of right samples."""
    hard, easy = scores["base"] <= HARD, scores["base"] >= EASY
    return {"hard": hard, "middle": ~hard & ~easy, "easy": easy}


def gain_contrast(scores: pd.DataFrame, a: str, b: str, confidence: float) -> Estimate:
    """Gain of ``a`` over ``b`` on hard problems minus that on easy ones, over seeds; NaN without either."""
    kept = by_base(scores)
    if not kept["hard"].any() or not kept["easy"].any():
        return Estimate(float("nan"), None, None, 0, "seeds", (), "no problem of one kind")
    hard, easy = (differences(scores[kept[level]], a, b) for level in ("hard", "easy"))
    return seed_interval((hard - easy).to_numpy(), hard.index.tolist(), confidence=confidence)


UNKNOWN = Estimate(math.nan, None, None, 0, "seeds", (), "one sample of a problem")


def revision_shares(
    samples: pd.DataFrame, revised: pd.DataFrame, arms: Mapping[str, str], confidence: float
) -> pd.DataFrame:
    """What revisions do to right and to wrong answers; per method ``spoilt`` (share of the right ones whose
    revision is wrong), ``repaired`` (of the wrong ones whose revision is right) and ``again`` (how often
    another sample of the same problem is right in place of a wrong one: what drawing again repairs), over
    seeds. ``again`` is NaN where problems have one sample.

    Args:
        samples: graded, with ``arm``, ``seed``, ``problem``, ``sample``, ``correct``.
        revised: one row for each revised sample, with ``method`` for ``arm``.
        arms: method -> arm whose samples it revises.
    """
    keys = ["seed", "problem", "sample"]
    rows = {}
    for method, arm in arms.items():
        before = samples.loc[samples["arm"] == arm, [*keys, "correct"]]
        after = revised.loc[revised["method"] == method, [*keys, "correct"]]
        both = before.merge(after, on=keys, suffixes=("_before", "_after"), validate="one_to_one")
        if both.empty:
            raise ValueError(f"revised holds no revision of {arm}'s samples by {method!r}")
        first, second = (both[f"correct_{when}"].astype(float) for when in ("before", "after"))
        of_problem = first.groupby([both["seed"], both["problem"]])
        others = (of_problem.transform("sum") - first) / (of_problem.transform("count") - 1)
        found = {
            "spoilt": (1 - second)[first == 1],
            "repaired": second[first == 0],
            "again": others[first == 0],
        }
        rows[method] = {
            name: UNKNOWN
            if v.isna().any()
            else seed_interval(v.groupby(both["seed"]).mean(), confidence=confidence)
            for name, v in found.items()
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def revision_note(shares: pd.DataFrame) -> str:
    """:func:`revision_shares` in a sentence for each method."""
    return " ".join(
        f"{LABELS[method]}: the revision spoils {row['spoilt'].format()} of the right answers and repairs "
        f"{row['repaired'].format()} of the wrong ones{_again(row['again'])}."
        for method, row in shares.iterrows()
    )


def _again(share: Estimate) -> str:
    return "" if math.isnan(share.value) else f"; drawn again, {share.format()} of these are right"
