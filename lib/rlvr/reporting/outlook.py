"""What more training seeds would decide about the claims that are open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pandas as pd

from rlvr.evaluation.intervals import Estimate
from rlvr.evaluation.more_seeds import MOST_SEEDS, more_seeds
from rlvr.reporting.cells import pretty_interval, significant
from rlvr.reporting.records import Claim, Part

#: Seeds of scale `overnight` for one of `laptop`, in all its parts; a test holds its files to it.
OVERNIGHT_SEEDS = 3
POWER = 0.8  # choice, the usual one
_THRESHOLDS = {"above": "above {}", "at_least": "at least {}", "at_most": "at most {}"}


def outlook(claims: Iterable[Claim], confidence: float, factor: int = OVERNIGHT_SEEDS) -> pd.DataFrame | None:
    """A row for each open part of an open claim; None if no claim is open.

    The chances are those of :func:`rlvr.evaluation.more_seeds.more_seeds`: that ``factor`` times the seeds
    decide the part either way, if the truth is what was measured, and the seeds for :data:`POWER`. A claim of
    several parts is decided by the last of them, or by the first that contradicts it.
    """
    rows = [row for claim in claims if claim.verdict == "open" for row in _rows(claim, confidence, factor)]
    return pd.DataFrame(rows) if rows else None


def _rows(claim: Claim, confidence: float, factor: int) -> Iterator[dict[str, str]]:
    for part in claim.parts:
        if part.verdict == "open":
            yield {
                "claim": claim.id,
                "part": part.name,
                "supported if": _THRESHOLDS[part.kind].format(significant(part.threshold, 3)),
                "measured": pretty_interval(part.effect, part.ci_low, part.ci_high, part.threshold),
                "seeds": str(len(part.seeds)),
                **_chances(part, confidence, factor),
            }


def _chances(part: Part, confidence: float, factor: int) -> dict[str, str]:
    seeds, decided, needed = "seeds overnight", "chance that they decide", f"seeds for {POWER:.0%}"
    plan = None
    if part.n_unit == "seeds" and part.effect is not None:
        measured = Estimate(
            part.effect, part.ci_low, part.ci_high, part.n, part.n_unit, part.seeds, part.method
        )
        more = max(2, factor * len(part.seeds))
        plan = more_seeds(measured, part.threshold, more, confidence=confidence, power=POWER)
    if plan is None:
        return {seeds: "-", decided: "no spread over seeds to plan by", needed: "-"}
    return {
        seeds: str(plan.seeds),
        decided: f"{plan.decides:.0%}",
        needed: f"over {MOST_SEEDS:,}" if plan.needed is None else str(plan.needed),
    }
