"""The case studies of NFPO's appendix D.3, chosen by a rule: nobody picks a span for its looks.

The paper shows five spans: four where the trace amplifies the update of a rewarded response at the start of
a reasoning step, one where it dampens the penalty of a failed one [text]. How they were found is not stated;
the rule of :func:`find_cases` is ours [choice].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rlvr.reporting.cells import Exact

Kind = Literal["amplified", "dampened"]
COLUMNS = ("run_response", "seed", "step", "position", "token", "rho", "trace", "advantage", "off_policy")

#: The rule in one sentence, for the notes beside a table or figure.
RULE = (
    "Of every response the span that starts at a token of interest and has the largest mean of trace - 1 "
    "(advantage above 0) or the smallest one (advantage below 0); of every step of a run the best "
    "response; of these the best, ties by seed, step and response."
)


@dataclass(frozen=True)
class Case:
    """One span of one response.

    Attributes:
        kind: whether the trace amplifies a reward or dampens a penalty.
        seed, step, response: the run, its training step, and the response's ``run_response``.
        score: mean of trace - 1 over the span, by which the case was chosen.
        tokens: one row per token: position, token (id), rho, trace, weight (rho * trace), advantage, and
            of_interest.
    """

    kind: Kind
    seed: int
    step: int
    response: int
    score: float
    tokens: pd.DataFrame


def find_cases(
    records: pd.DataFrame,
    of_interest: ArrayLike | Callable[[int], bool],
    span: int = 12,
    amplified: int = 4,
    dampened: int = 1,
) -> list[Case]:
    """Spans where the trace changes the update most: first the amplified, then the dampened, best first.

    A candidate is a recorded token of interest and what follows it in its response, at most ``span`` tokens
    in all; the window of a trace points forward too. Tokens without a record (masked ones) are passed over.

        score = sum of (trace - 1) over the span's tokens / span

    so that a span cut off by the end of its response gains nothing by being short. *Amplified*: every
    advantage of the span is above 0 and so is the score; the largest scores. *Dampened*: every advantage is
    below 0, which with rewards of 0 and 1 relative to the group means a failed response, and so is the score;
    the smallest ones. Per kind a response has one case at most and so has a step of a run (seed and step);
    equal scores go by seed, step, response and position. Where fewer spans qualify, fewer come back
    (:func:`shortfall` says so). Minibatches on policy are left out: ratios differ from 1 by rounding there.

    Args:
        records: of :func:`rlvr.analysis.runs.load_records`, one row per token: :data:`COLUMNS`.
        of_interest: a boolean for every token id of the vocabulary, or a function of an id.
        span: tokens in a case, 1 or more.
        amplified, dampened: how many cases of each kind, 0 or more.

    Raises:
        ValueError: missing columns, a token that is recorded twice, a value that is not finite, a token id
            that ``of_interest`` does not cover, or a bad number.
    """
    for name, value, least in (("span", span, 1), ("amplified", amplified, 0), ("dampened", dampened, 0)):
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r}: allowed are integers >= {least}")
    rows = _clean(records)
    rows["of_interest"] = _marks(rows["token"].to_numpy(), of_interest)
    if rows.empty:
        return []
    scored = _scores(rows, span)
    found: list[Case] = []
    for kind, sign, count in (("amplified", 1, amplified), ("dampened", -1, dampened)):
        eligible = scored[(scored["sign"] == sign) & (sign * scored["score"] > 0)]
        order = eligible.assign(rank=-sign * eligible["score"]).sort_values(
            ["rank", "seed", "step", "run_response", "position"], kind="stable"
        )
        best = order.drop_duplicates(["seed", "step"]).head(count)  # of one response at most, too
        found += [_case(kind, rows, row) for row in best.itertuples()]
    return found


def shortfall(cases: Sequence[Case], amplified: int = 4, dampened: int = 1) -> str:
    """What is missing of the cases asked for, in words; empty if nothing is."""
    said = []
    for kind, asked in (("amplified", amplified), ("dampened", dampened)):
        there = sum(case.kind == kind for case in cases)
        if there < asked:
            said.append(f"{there or 'no'} {kind} span{'s' * (there != 1)} of {asked} asked for")
    return f"Too few spans fulfil the rule: {', '.join(said)}." if said else ""


def case_table(cases: Sequence[Case], tokens: Sequence[str]) -> pd.DataFrame:
    """All cases in long form, one row per token; ``tokens`` is the vocabulary's token of every id.

    Columns: case (1, 2, ..), kind, seed, step, response, score, position, token (the vocabulary's string),
    of_interest, rho, trace, weight, advantage.
    """
    columns = ["position", "token", "of_interest", "rho", "trace", "weight", "advantage"]
    frames = [
        case.tokens.assign(
            token=[tokens[i] for i in case.tokens["token"]],
            **{"case": number, "kind": case.kind, "seed": case.seed, "step": case.step},
            response=case.response,
            score=case.score,
        )
        for number, case in enumerate(cases, start=1)
    ]
    of_case = ["case", "kind", "seed", "step", "response", "score"]
    return (
        pd.concat(frames, ignore_index=True)[of_case + columns]
        if frames
        else pd.DataFrame(columns=of_case + columns)
    )


def case_summary(cases: Sequence[Case], tokens: Sequence[str]) -> pd.DataFrame:
    """One row per case for a report: its kind, where it is, its tokens, and what the trace does there."""
    rows = []
    for number, case in enumerate(cases, start=1):
        trace = case.tokens["trace"]
        rows.append(
            {
                "case": str(number),
                "kind": case.kind,
                "seed": Exact(case.seed),
                "step": Exact(case.step),
                "tokens": " ".join(tokens[i] for i in case.tokens["token"]),
                "advantage": Exact(float(case.tokens["advantage"].iloc[0])),
                "mean of trace - 1": Exact(case.score),
                "trace, least": Exact(float(trace.min())),
                "trace, largest": Exact(float(trace.max())),
            }
        )
    return pd.DataFrame(rows)


def _clean(records: pd.DataFrame) -> pd.DataFrame:
    """Off-policy rows in the order of seed, step, response and position, numbered from 0."""
    if missing := [c for c in COLUMNS if c not in records]:
        raise ValueError(f"records: columns {missing} are missing; there are {list(records.columns)}")
    rows = records.loc[records["off_policy"].astype(bool), list(COLUMNS)]
    if rows.duplicated(["run_response", "position"]).any():
        raise ValueError("run_response and position repeat: allowed is one record per token")
    for column in ("rho", "trace", "advantage"):
        if not np.isfinite(rows[column].astype(float)).all():
            raise ValueError(f"records: column {column!r} holds values that are not finite")
    order = ["seed", "step", "run_response", "position"]
    return rows.sort_values(order, kind="stable", ignore_index=True)


def _marks(token: np.ndarray, of_interest: ArrayLike | Callable[[int], bool]) -> np.ndarray:
    if callable(of_interest):
        ids, where = np.unique(token, return_inverse=True)
        return np.array([bool(of_interest(int(i))) for i in ids], dtype=bool)[where]
    marks = np.asarray(of_interest)
    if marks.ndim != 1 or marks.dtype != bool:
        raise ValueError(
            f"of_interest: {marks.dtype} of shape {marks.shape}: allowed are one bool per id, or a function"
        )
    if len(token) and not 0 <= token.min() <= token.max() < len(marks):
        raise ValueError(
            f"of_interest covers ids 0..{len(marks) - 1}, the records hold {token.min()}..{token.max()}"
        )
    return marks[token]


def _scores(rows: pd.DataFrame, span: int) -> pd.DataFrame:
    """Candidates: rows of interest with their span's score and sign (of all its advantages, else 0)."""
    first = np.arange(len(rows))
    response = rows["run_response"].to_numpy()
    last_of = np.append(np.flatnonzero(response[1:] != response[:-1]), len(rows) - 1)
    ends = np.minimum(first + span, last_of[np.searchsorted(last_of, first)] + 1)
    trace, advantage = rows["trace"].to_numpy(float), rows["advantage"].to_numpy(float)

    def over_span(values: np.ndarray) -> np.ndarray:
        total = np.concatenate([[0], np.cumsum(values)])
        return total[ends] - total[first]

    score = np.zeros(len(rows))
    for ahead in range(span):  # not by a running sum: equal spans must have equal scores, to the bit
        at = np.minimum(first + ahead, len(rows) - 1)
        score += np.where(first + ahead < ends, trace[at] - 1, 0.0)
    above, below = over_span(advantage > 0), over_span(advantage < 0)
    sign = np.where(above == ends - first, 1, np.where(below == ends - first, -1, 0))
    return rows.assign(score=score / span, sign=sign, end=ends)[rows["of_interest"]]


def _case(kind: Kind, rows: pd.DataFrame, chosen) -> Case:
    tokens = rows.iloc[chosen.Index : chosen.end]
    tokens = tokens.assign(weight=tokens["rho"] * tokens["trace"]).reset_index(drop=True)
    columns = ["position", "token", "rho", "trace", "weight", "advantage", "of_interest"]
    return Case(
        kind,
        int(chosen.seed),
        int(chosen.step),
        int(chosen.run_response),
        float(chosen.score),
        tokens[columns],
    )
