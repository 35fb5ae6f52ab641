"""From an interval and a threshold to a verdict; nothing else decides a claim."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from rlvr.evaluation.intervals import Estimate
from rlvr.reporting.cells import known

Verdict = Literal["supported", "contradicted", "open"]


def judge(
    estimate: Estimate,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
) -> Verdict:
    """Judge "the quantity is at least / above / at most a threshold" by the quantity's whole interval.

    supported: the whole interval satisfies it (``low >= at_least``, ``low > above``, ``high <= at_most``).
    contradicted: the whole interval lies strictly on the other side.
    open: the interval holds the threshold, is unknown, or rests on fewer than two seeds without being exact.

    Raises:
        ValueError: not exactly one of the three thresholds is given.
    """
    given = [t for t in (at_least, above, at_most) if t is not None]
    if len(given) != 1:
        raise ValueError(
            f"give exactly one of at_least={at_least}, above={above}, at_most={at_most}; got {len(given)}"
        )
    low, high = known(estimate.low), known(estimate.high)
    if known(estimate.value) is None or low is None or high is None:
        return "open"
    if low != high and len(set(estimate.seeds)) < 2:
        return "open"
    if at_most is not None:
        return "supported" if high <= at_most else "contradicted" if low > at_most else "open"
    holds = low >= at_least if at_least is not None else low > above
    return "supported" if holds else "contradicted" if high < given[0] else "open"


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """A claim with several parts: supported if every part is, contradicted if any is, else open.

    Raises:
        ValueError: no part at all, or a word that is no verdict.
    """
    parts = list(verdicts)
    unknown = sorted(set(parts) - {"supported", "contradicted", "open"})
    if not parts or unknown:
        raise ValueError(f"verdicts={parts}: need at least one of supported, contradicted, open")
    if "contradicted" in parts:
        return "contradicted"
    return "supported" if set(parts) == {"supported"} else "open"
