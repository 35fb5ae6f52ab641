"""IBPO's experiments on language models: what its tables and figures take from a setting's runs."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from rlvr.analysis.compute_curves import ledger_frame
from rlvr.analysis.ibpo_ablations import success_by_fifths, success_parts
from rlvr.analysis.ibpo_scores import BEST_OF, LABELS, difference, score_frame
from rlvr.analysis.study import Study
from rlvr.engines.jobs.evaluation import REVISED
from rlvr.evaluation import Estimate, seed_interval
from rlvr.reporting.cells import NOT_MEASURED, Exact
from rlvr.reporting.claims import DECLARED
from rlvr.reporting.style import objective_label

#: Method -> arm of whose samples the first that the grader passes is taken.
BEST = {f"{arm}_best": arm for arm in ("gspo", "gspo8", "ibpo")}
#: Part of a claim whose method no run of ours has; it leaves the claim open.
NOT_RUN = Estimate(float("nan"), None, None, 0, "seeds", (), "not run")


def model_scores(samples: pd.DataFrame) -> pd.DataFrame:
    """:func:`rlvr.analysis.ibpo_scores.score_frame`; Best-of-N asks the grader [text: IBPO 4], so that it is
    pass@8; of fewer samples than 8 there is none.

    Args:
        samples: graded, of ``base``, arms and revisions (as arms of their own), with ``benchmark``.
    """
    trained = [samples[samples["arm"] == arm].assign(method=method) for method, arm in BEST.items()]
    selected = pd.concat(trained, ignore_index=True)
    if selected.empty or selected["sample"].nunique() < BEST_OF:
        return score_frame(samples, None, None)
    # The grader is what selects: what it cannot decide is not taken, and where nothing else is there, wrong.
    right = selected["correct"].fillna(False).astype(float)
    return score_frame(samples, None, selected.assign(correct=right, passes=right))


def success_or_not(metrics: pd.DataFrame, arm: str, confidence: float) -> dict[str, Estimate]:
    """Parts of claim c6; :data:`NOT_RUN` where a fifth of a training has no corrections."""
    try:
        return success_parts(success_by_fifths(metrics, arm), confidence)
    except (KeyError, ValueError):
        return dict.fromkeys(DECLARED["ibpo-c6"].parts, NOT_RUN)


def lost_steps(metrics: pd.DataFrame) -> int:
    """Steps of all runs whose metrics a kill took: what they computed is estimated from their neighbours."""
    steps = metrics.groupby(["arm", "seed"])["step"].transform("max")
    return int((metrics["reward"].isna() & (metrics["step"] < steps)).sum())


def revised_arms(study: Study) -> dict[str, str]:
    """Method at test time, of those whose revisions there are: arm whose samples it revises."""
    return {method: REVISED[study.paper][method][0] for method in study.revised}


def methods_of(scores: pd.DataFrame) -> dict[str, str]:
    """Methods that there are, in the order of the paper's table: name -> label."""
    there = set(scores["method"])
    return {method: label for method, label in LABELS.items() if method in there}


def differences_of(
    scores: pd.DataFrame, pairs: Mapping[str, tuple[str, str]], confidence: float
) -> dict[str, Estimate]:
    """Part of a claim -> difference of its two methods; :data:`NOT_RUN` where one was not."""
    there = set(scores["method"])
    return {
        name: difference(scores, *pair, confidence) if set(pair) <= there else NOT_RUN
        for name, pair in pairs.items()
    }


def spending_table(study: Study, metrics: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """What the compared arms computed (rows): tokens by purpose and activity, exact means over seeds; FLOPs
    over those of ``gspo``, what corrections are of them, in percent, and hours of all steps, by the mean of
    those that the job logged.

    Args:
        metrics: of :func:`rlvr.analysis.runs.load_metrics`.
    """
    labels = {arm: objective_label(arm) for arm in study.arms}
    ledger = ledger_frame(study, labels)
    ledger["what"] = ledger["purpose"] + " " + ledger["activity"]
    columns = list(dict.fromkeys(ledger["what"]))
    tokens = ledger.pivot(index="arm", columns="what", values="tokens").reindex(labels.values())
    table = tokens[columns].fillna(0).round().astype("int64").map(Exact)
    flops = ledger.groupby("arm")["flops"].sum()
    of_corrections = ledger[ledger["purpose"] == "correction"].groupby("arm")["flops"].sum()
    relative = flops / flops[labels["gspo"]]
    table["FLOPs over GSPO's"] = [Exact(round(relative[label], 3)) for label in table.index]
    shares = (of_corrections / flops).reindex(table.index).fillna(0)
    table["FLOPs of corrections, %"] = [Exact(round(100 * share, 1), 3) for share in shares]
    table["hours of all steps"] = [_hours(metrics, arm, confidence) for arm in study.arms]
    return table.rename_axis("tokens, mean over seeds")


def _hours(metrics: pd.DataFrame, arm: str, confidence: float):
    own = metrics[metrics["arm"] == arm]
    if "timing_s/step" not in own or own.groupby("seed")["timing_s/step"].count().min() == 0:
        return NOT_MEASURED
    by_seed = own.groupby("seed")
    hours = by_seed["timing_s/step"].mean() * by_seed["step"].max() / 3600
    return seed_interval(hours, confidence=confidence)
