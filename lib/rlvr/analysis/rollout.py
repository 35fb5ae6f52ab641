"""A stored rollout to look at: responses of mu under a pi that has moved, from records or made on the spot.

:func:`available` lists what there is: the records that training runs left, and always the built-in example,
so that a fresh clone has something to look at. Everything is float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rlvr.advantages import group_relative
from rlvr.analysis.dynamics import pad_records
from rlvr.analysis.runs import load_records
from rlvr.analysis.small_policies import at_distance
from rlvr.analysis.study import of_scale
from rlvr.config import Scale, load_scale
from rlvr.tensor_checks import check_floating, check_mask

EXAMPLE = "built-in example"
RESPONSES = 96  # of a rollout taken from records
_SYMBOLS = "abcdefgh."  # of the example; the last one ends a response
_LONGEST = 48


@dataclass(frozen=True)
class Rollout:
    """What an update sees.

    Args:
        log_prob: [B, T] ``log pi(y_t|s_t)``, nats; what masked places hold does not matter.
        old_log_prob: [B, T] ``log mu(y_t|s_t)``.
        mask: [B, T] bool, True on tokens of the response.
        advantages: [B], one per response.
        tokens: text of each response's tokens, in order.
        source: where it comes from, for the reader.

    Raises:
        ValueError: shapes disagree, or there is no token.
    """

    log_prob: Tensor
    old_log_prob: Tensor
    mask: Tensor
    advantages: Tensor
    tokens: tuple[tuple[str, ...], ...]
    source: str

    def __post_init__(self) -> None:
        check_floating("log_prob", self.log_prob)
        check_floating("old_log_prob", self.old_log_prob, like=self.log_prob)
        check_mask("mask", self.mask, like=self.log_prob)
        if self.advantages.shape != self.log_prob.shape[:1]:
            raise ValueError(
                f"advantages has shape {list(self.advantages.shape)}: allowed is [B], one per row"
            )
        counts = self.mask.sum(-1).tolist()
        if [len(row) for row in self.tokens] != counts or not sum(counts):
            raise ValueError(
                "tokens: allowed is the text of every valid token, row by row, at least one in all"
            )

    @property
    def log_ratio(self) -> Tensor:
        """``l`` [B, T], exactly 0 where masked."""
        return torch.where(self.mask.bool(), self.log_prob - self.old_log_prob, 0.0)

    def __len__(self) -> int:
        return len(self.mask)


def example_rollout(seed: int = 0, prompts: int = 12, group_size: int = 8, distance: float = 0.4) -> Rollout:
    """A rollout of a policy over eight letters, and a pi that took one large step on it.

    mu writes the next symbol from a random table that knows the last one (logits standard normal); ``.`` ends
    a response, 48 tokens are the most. Every prompt is a first letter of its own. A response is right if it
    has an even number of ``a``. pi is mu moved along the policy gradient of this very rollout (group-relative
    advantages) until the largest total variation over the states is ``distance``; after ``a``, ``d``, ``g``
    about seven times as far as elsewhere, since in training few tokens move far. All of it a [choice].

    Args:
        seed: the only source of randomness.
        prompts, group_size: ``prompts * group_size`` responses.
        distance: in (0, 1).
    """
    rng = np.random.default_rng(seed)
    width = len(_SYMBOLS)
    logits = rng.standard_normal((width, width))
    logits[:, -1] -= 1.8  # else most responses end after a few tokens
    cumulative = torch.from_numpy(logits).softmax(-1).numpy().cumsum(axis=1)

    rows = prompts * group_size
    group = np.repeat(np.arange(prompts), group_size)
    state, alive = group % (width - 1), np.ones(rows, dtype=bool)
    states, written = np.zeros((rows, _LONGEST), dtype=np.int64), np.full((rows, _LONGEST), -1)
    for t in range(_LONGEST):
        drawn = (rng.random(rows)[:, None] > cumulative[state]).sum(axis=1).clip(max=width - 1)
        states[alive, t], written[alive, t] = state[alive], drawn[alive]
        state, alive = drawn, alive & (drawn != width - 1)

    mask = torch.from_numpy(written >= 0)
    right = torch.from_numpy(((written == 0).sum(axis=1) % 2 == 0).astype(float))
    advantages = group_relative(right, torch.from_numpy(group))
    states, tokens = torch.from_numpy(states), torch.from_numpy(written).clamp_min(0)
    mu = torch.from_numpy(logits)
    score = torch.nn.functional.one_hot(tokens, width).double() - mu.softmax(-1)[states]
    pushed = (score * (advantages[:, None] * mask)[..., None]).flatten(0, 1)
    step = torch.zeros_like(mu).index_add_(0, states.flatten(), pushed)
    step[torch.arange(width) % 3 > 0] *= 0.15
    pi = at_distance(mu, step / step.abs().max(), distance)
    log_prob, old = (torch.where(mask, p.log_softmax(-1)[states, tokens], 0.0) for p in (pi, mu))
    texts = tuple(tuple(_SYMBOLS[v] for v in row if v >= 0) for row in written)
    source = f"{EXAMPLE}: {rows} responses, total variation up to {distance:g}"
    return Rollout(log_prob, old, mask, advantages, texts, source)


def rollout_of_records(
    records: pd.DataFrame, source: str, names: Callable[[int], str] = str, responses: int = RESPONSES
) -> Rollout:
    """The last recorded off-policy responses of the first seed.

    A rule rather than a pick: the last ones, because there training has had its effect.

    Args:
        records: from :func:`rlvr.analysis.runs.load_records`.
        source: for the reader.
        names: text of a token id.
        responses: how many, at most.

    Raises:
        ValueError: no off-policy record, or ``responses`` < 1.
    """
    if responses < 1:
        raise ValueError(f"responses={responses}: allowed are integers >= 1")
    rows = records[records["off_policy"]]
    if rows.empty:
        raise ValueError("records: no off-policy token; there pi and mu are the same weights")
    rows = rows[rows["seed"] == rows["seed"].min()]
    order = rows.drop_duplicates("run_response").sort_values(["step", "minibatch", "run_response"])
    rows = rows[rows["run_response"].isin(order["run_response"].tail(responses))]
    columns = {
        name: rows[name].to_numpy(copy=True) for name in ("log_prob", "old_log_prob", "token", "advantage")
    }
    ids, mask, padded = pad_records(rows["run_response"], rows["position"], columns)
    advantages = rows.groupby("run_response")["advantage"].first().loc[ids].to_numpy(np.float64, copy=True)
    texts = tuple(
        tuple(names(int(v)) for v in row[keep]) for row, keep in zip(padded["token"], mask, strict=True)
    )
    return Rollout(
        padded["log_prob"], padded["old_log_prob"], mask, torch.from_numpy(advantages), texts, source
    )


def available(params_files: Iterable[str | Path]) -> dict[str, Callable[[], Rollout]]:
    """What there is to look at, by name, best first: records of the NFPO arm of each scale, then the example.

    Args:
        params_files: scale files, from the repository root; one that does not exist is left out.

    Returns:
        Name -> function that loads or makes the rollout. A scale appears if its runs are finished.
    """
    found: dict[str, Callable[[], Rollout]] = {}
    for path in filter(Path.is_file, map(Path, params_files)):
        scale = load_scale(path)
        for lag in scale.train.lags:
            try:
                records = load_records(of_scale(scale), "nfpo", lag)
            except (FileNotFoundError, ValueError):  # not run, or not to its end
                continue
            if records["off_policy"].any():
                name = f"NFPO records, {scale.scale}, lag {lag}"
                found[name] = partial(_from_scale, scale, records, name)
    return {**found, EXAMPLE: example_rollout}


def _from_scale(scale: Scale, records: pd.DataFrame, name: str) -> Rollout:
    from rlvr.problems.tokenizer import Codec  # transformers, which the example can do without

    try:
        tokens = Codec.load(scale.folder / "base/model").tokens
    except (OSError, ValueError):  # no tokenizer here: the ids themselves
        return rollout_of_records(records, name)
    return rollout_of_records(records, name, tokens.__getitem__)
