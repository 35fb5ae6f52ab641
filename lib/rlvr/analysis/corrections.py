"""Per-token records of training runs, summarised with their doubt: strength, switches, trace variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rlvr.analysis.dynamics import (
    Shares,
    correction_strength,
    independent_switch_frequencies,
    independent_switch_frequency,
    pad_records,
    switch_frequency,
    trace_variance,
    traced_ratio,
)
from rlvr.evaluation import Estimate, bootstrap_statistic, ratio_of_means, seed_interval, with_ends

#: How "opposite sides of 1" may be read; the first is the one that claims are judged by [official].
SWITCH_RULES: dict[str, dict[str, Any]] = {
    "strict": {"rule": "strict"},
    "dead zone 0.1 %, all pairs": {"rule": "dead_zone", "dead_zone": 0.001},
    "dead zone 1 %, all pairs": {"rule": "dead_zone", "dead_zone": 0.01},
    "dead zone 0.1 %, decided pairs": {"rule": "dead_zone_decided", "dead_zone": 0.001},
    "dead zone 1 %, decided pairs": {"rule": "dead_zone_decided", "dead_zone": 0.01},
}
PERMUTATIONS = 10
#: A part of a claim that was not measured; it leaves the claim open.
UNKNOWN = Estimate(float("nan"), None, None, 0, "seeds", (), "not measured")


@dataclass(frozen=True)
class Pool:
    """Records of several runs as padded tensors, one row per response.

    Attributes:
        log_ratio: [B, T] float64; mask: [B, T] bool; token: [B, T] token ids.
        response, seed, step: [B] which response, and the run and step it comes from.
    """

    log_ratio: Tensor
    mask: Tensor
    token: Tensor
    response: np.ndarray
    seed: np.ndarray
    step: np.ndarray

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted(int(s) for s in set(self.seed.tolist())))


def pool(records: pd.DataFrame) -> Pool:
    """Pad the records of :func:`rlvr.analysis.runs.load_records`."""
    columns = {"log_ratio": records["log_prob"] - records["old_log_prob"], "token": records["token"]}
    ids, mask, padded = pad_records(records["run_response"], records["position"], columns)
    of_response = records.drop_duplicates("run_response").set_index("run_response").loc[ids]
    return Pool(
        padded["log_ratio"],
        mask,
        padded["token"].long(),
        np.asarray(ids),
        of_response["seed"].to_numpy(),
        of_response["step"].to_numpy(),
    )


def estimate(data: Pool, shares: Shares, resamples: int, confidence: float) -> Estimate:
    """A pooled share with a bootstrap over responses within seeds."""
    return ratio_of_means(
        shares.numerator.numpy(),
        shares.denominator.numpy(),
        data.response,
        data.seed,
        resamples=resamples,
        confidence=confidence,
        seeds=data.seeds,
    )


def over_seeds(data: Pool, shares: Shares, confidence: float) -> Estimate:
    """Mean over seeds of each seed's pooled share, Student's t over seeds: what another training would give.

    The interval of :func:`estimate` is narrower: it takes these trainings as given, and their responses,
    many of which share a policy, as independent.
    """
    return seed_interval(_by_seed(data, shares), data.seeds, confidence=confidence)


def strength_frame(
    data: Pool, classes: Sequence[str], trace: dict[str, Any], resamples: int, confidence: float
) -> pd.DataFrame:
    """Correction strength of rho and of rho * trace, for all tokens and by token class (nfpo, table 2).

    ``classes`` names the class of every token id. Columns: ``tokens`` (how many), ``rho``, ``traced``,
    ``difference`` (Estimates) and ``over seeds``, the difference with an interval over training seeds (None
    where a seed lacks the class); classes that do not occur are left out.
    """
    rho, traced = (traced_ratio(data.log_ratio, data.mask, **kw) for kw in ({"horizon": 1}, trace))
    of_token, numbers = _numbered(data, classes)
    rows = []
    for name in ["all tokens", *numbers]:
        mask = data.mask if name == "all tokens" else data.mask & (of_token == numbers[name])
        if not mask.any():
            continue
        plain, corrected = correction_strength(rho, mask), correction_strength(traced, mask)
        more = Shares(corrected.numerator - plain.numerator, plain.denominator)
        parts = {"rho": plain, "traced": corrected, "difference": more}
        rows.append(
            {"tokens": name, "count": int(mask.sum())}
            | {k: estimate(data, shares, resamples, confidence) for k, shares in parts.items()}
            | {"over seeds": over_seeds(data, more, confidence) if _in_every_seed(data, more) else None}
        )
    return pd.DataFrame(rows)


def _numbered(data: Pool, classes: Sequence[str]) -> tuple[Tensor, dict[str, int]]:
    """(number of every token's class [B, T], class -> number); a name for each of millions of tokens would
    not fit the memory."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(classes))}
    of_id = torch.tensor([numbers[name] for name in classes], dtype=torch.int16)
    return of_id[data.token], numbers


def class_gap(
    data: Pool, classes: Sequence[str], a: str, b: str, trace: dict[str, Any], confidence: float
) -> Estimate:
    """How much more correction strength the trace adds to tokens of class ``a`` than of ``b``: per seed, then
    Student's t over seeds. NaN where a seed lacks one of them."""
    rho, traced = (traced_ratio(data.log_ratio, data.mask, **kw) for kw in ({"horizon": 1}, trace))
    of_token, numbers = _numbered(data, classes)
    added = []
    for name in (a, b):
        mask = data.mask & (of_token == numbers.get(name, -1))
        plain, corrected = correction_strength(rho, mask), correction_strength(traced, mask)
        more = Shares(corrected.numerator - plain.numerator, plain.denominator)
        if not _in_every_seed(data, more):
            return UNKNOWN
        added.append(_by_seed(data, more))
    return seed_interval(np.subtract(*added), data.seeds, confidence=confidence)


def _by_seed(data: Pool, shares: Shares) -> list[float]:
    """Each seed's pooled share."""
    numerator, denominator = shares.numerator.numpy(), shares.denominator.numpy()
    of_seed = [data.seed == seed for seed in data.seeds]
    return [numerator[rows].sum() / denominator[rows].sum() for rows in of_seed]


def _in_every_seed(data: Pool, shares: Shares) -> bool:
    return all(shares.denominator.numpy()[data.seed == seed].sum() > 0 for seed in data.seeds)


def switch_frame(data: Pool, trace: dict[str, Any], resamples: int, confidence: float) -> pd.DataFrame:
    """Switch frequency of rho and rho * trace under every rule, beside what independent ratios would give.

    Columns: ``rule``, ``rho``, ``traced``, ``ratio`` (traced over rho), ``over seeds`` (that ratio with an
    interval over training seeds) and ``independent rho``, ``independent traced``, all Estimates.
    """
    rho, traced = (traced_ratio(data.log_ratio, data.mask, **kw) for kw in ({"horizon": 1}, trace))
    rules = list(SWITCH_RULES.values())
    independent = [
        independent_switch_frequencies(
            data.log_ratio, data.mask, **kw, rules=rules, permutations=PERMUTATIONS
        )
        for kw in ({"horizon": 1}, trace)
    ]
    rows = []
    for name, rule, of_rho, of_traced in zip(SWITCH_RULES, rules, *independent, strict=True):
        plain, corrected = (switch_frequency(w, data.mask, **rule) for w in (rho, traced))
        rates = {
            "rho": plain,
            "traced": corrected,
            "independent rho": of_rho,
            "independent traced": of_traced,
        }
        row: dict[str, Any] = {"rule": name}
        row |= {k: estimate(data, s, resamples, confidence) for k, s in rates.items() if s.denominator.sum()}
        if plain.numerator.sum() and plain.denominator.equal(corrected.denominator):
            ratio = Shares(corrected.numerator, plain.numerator)
            row["ratio"] = estimate(data, ratio, resamples, confidence)
            if _in_every_seed(data, ratio):
                row["over seeds"] = over_seeds(data, ratio, confidence)
        rows.append(row)
    return pd.DataFrame(rows)


def horizon_frame(
    data: Pool, horizons: Sequence[int], trace: dict[str, Any], resamples: int, confidence: float
) -> pd.DataFrame:
    """Trace variance and switch frequency by horizon, long form for :func:`horizon_figure` (nfpo, figure 4).

    Columns: ``horizon``, ``quantity``, ``estimate``, and its ``value``, ``low``, ``high``. The variance is
    the median over training steps of the variance within a step's records: the raw one is heavy-tailed.
    """
    clips = {k: v for k, v in trace.items() if k != "horizon"}
    rows = []
    moments = trace_variance(data.log_ratio, data.mask, horizons, **clips)
    for horizon in horizons:
        found: dict[str, Estimate] = {}
        for kind in ("raw", "clipped"):
            by_step = variance_by_step(data, moments[horizon][kind])
            found[f"trace_variance_{kind}"] = _median(by_step, data.seeds, resamples, confidence)
        weights = traced_ratio(data.log_ratio, data.mask, horizon, **clips)
        found["switch"] = estimate(data, switch_frequency(weights, data.mask), resamples, confidence)
        alone = independent_switch_frequency(
            data.log_ratio, data.mask, horizon, **clips, permutations=PERMUTATIONS
        )
        found["switch_independent"] = estimate(data, alone, resamples, confidence)
        strength = correction_strength(weights, data.mask)
        found["correction_strength"] = estimate(data, strength, resamples, confidence)
        rows += [{"horizon": horizon, "quantity": q, "estimate": e} for q, e in found.items()]
    return with_ends(pd.DataFrame(rows))


def variance_by_step(data: Pool, moments) -> list[np.ndarray]:
    """Per seed, the variance of the trace within each step."""
    frame = pd.DataFrame(
        {"seed": data.seed, "step": data.step, "n": moments.count, "a": moments.first, "b": moments.second}
    )
    sums = frame.groupby(["seed", "step"]).sum()
    variance = sums["b"] / sums["n"] - (sums["a"] / sums["n"]) ** 2
    return [rows.to_numpy() for _, rows in variance.groupby("seed")]


def _median(by_seed: list[np.ndarray], seeds, resamples: int, confidence: float) -> Estimate:
    """Median over steps of all seeds; percentile bootstrap over steps within seeds."""
    found = bootstrap_statistic(
        by_seed,
        partial(np.median, axis=-1),
        resamples=resamples,
        confidence=confidence,
        seeds=seeds,
        n_unit="steps",
    )
    method = f"median over steps, bootstrap over steps within seeds, {resamples} resamples"
    return replace(found, method=method)


def longest_segment(records: pd.DataFrame, length: int) -> pd.DataFrame:
    """The first ``length`` tokens of the longest response in the last recorded minibatch of the first seed.

    A rule rather than a pick: nobody chose the response for its looks.
    """
    last = records[records["seed"] == records["seed"].min()]
    last = last[last["step"] == last["step"].max()]
    last = last[last["minibatch"] == last["minibatch"].max()]
    sizes = last.groupby("run_response").size()
    chosen = sizes[sizes == sizes.max()].index.min()
    rows = last[last["run_response"] == chosen].sort_values("position").head(length)
    return rows.assign(traced=rows["rho"] * rows["trace"])[
        ["position", "token", "rho", "traced", "advantage"]
    ]
