"""What turns a recipe into an objective: checks, masks, aggregation, gradient, metrics, names.

A recipe (see :mod:`rlvr.objectives`) is ``name(batch, *, parameters) -> Terms``: a few lines of tensor
maths on clean inputs. Everything that all objectives share happens here, once.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any, Literal

import torch
from torch import Tensor

from rlvr.batch import Batch, prepare
from rlvr.checks import check_choice
from rlvr.losses import TokenLoss, aggregation_scale, attach
from rlvr.ratios import RATIO_BOUND

Metrics = dict[str, Tensor]
MANY = 40  # names that an error still lists
#: What a method weighs its tokens with: the reward relative to its group, that without a division by the
#: group's spread, or a critic's advantages.
Advantages = Literal["group", "centred", "critic"]


@dataclass
class Terms:
    """What a recipe returns; tensors are [B, T], metrics scalars."""

    loss: TokenLoss
    ratio: Tensor  # rho, 1 where masked
    log_ratio: Tensor | None = None  # of rho, 0 where masked; None: that of the batch
    averaged: Tensor | None = None  # [B, 1] tokens that a row's mean is taken over; None: all valid ones
    strength: Tensor | None = None  # mean distance of the weight from 1; None: the weight is the ratio
    metrics: Metrics = field(default_factory=dict)  # the objective's own


Recipe = Callable[..., Terms]
_REGISTRY: dict[str, Objective] = {}


class Objective:
    """A registered recipe; calling it is described in :mod:`rlvr.objectives`.

    ``parameters`` are the recipe's own, with their defaults; ``tensors`` names those that take tensors,
    ``needs`` the tensors without which it is another objective, so that a trainer that has none refuses.
    ``loss_agg_mode`` and ``advantages`` are the method's, for the trainer to follow.
    """

    def __init__(
        self, recipe: Recipe, loss_agg_mode: str, needs: Sequence[str] = (), advantages: Advantages = "group"
    ):
        update_wrapper(self, recipe)
        self.name: str = recipe.__name__
        self.loss_agg_mode = loss_agg_mode
        self.advantages: Advantages = advantages
        own = [p for p in inspect.signature(recipe).parameters.values() if p.kind is p.KEYWORD_ONLY]
        self.parameters: dict[str, Any] = {p.name: p.default for p in own}
        self.tensors = tuple(p.name for p in own if "Tensor" in str(p.annotation))
        self.needs = tuple(p.name for p in own if p.name in needs or p.default is p.empty)
        self._recipe = recipe
        call = inspect.signature(self._call).parameters.values()
        shared = [p for p in call if p.kind is not p.VAR_KEYWORD]
        shared = [p.replace(default=loss_agg_mode) if p.name == "loss_agg_mode" else p for p in shared]
        positional = [p for p in shared if p.kind is not p.KEYWORD_ONLY]
        # what help() and inspect.signature show
        self.__signature__ = inspect.Signature(
            positional + own + [p for p in shared if p.kind is p.KEYWORD_ONLY],
            return_annotation="tuple[Tensor, Metrics]",
        )

    def __repr__(self) -> str:
        return f"<objective {self.name}>"

    def __reduce__(self):  # pickles by name, like a function
        return get, (self.name,)

    def __call__(self, *args, **kwargs) -> tuple[Tensor, Metrics]:
        return self._call(*args, **kwargs)

    def _call(
        self,
        log_prob: Tensor,
        old_log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        *,
        loss_agg_mode: str | None = None,
        reduction: Literal["loss", "none"] = "loss",
        batch_num_tokens: int | Tensor | None = None,
        global_batch_size: int | Tensor | None = None,
        loss_scale_factor: int | float | None = None,
        dp_size: int = 1,
        check: bool = True,
        **parameters: Any,
    ) -> tuple[Tensor, Metrics]:
        for name in parameters:
            if name not in self.parameters:
                raise ValueError(
                    f"{self.name} has no parameter {suggest(name, self.__signature__.parameters)}"
                )
        check_choice("reduction", reduction, ("loss", "none"))
        grad_enabled = torch.is_grad_enabled()
        with torch.no_grad():
            batch = prepare(log_prob, old_log_prob, advantages, response_mask, check, grad_enabled)
            terms = self._recipe(batch, **parameters)
            scale = aggregation_scale(
                batch.valid,
                self.loss_agg_mode if loss_agg_mode is None else loss_agg_mode,
                batch_num_tokens=batch_num_tokens,
                global_batch_size=global_batch_size,
                loss_scale_factor=loss_scale_factor,
                dp_size=dp_size,
                dtype=batch.log_prob.dtype,
                lengths=batch.lengths,
                averaged=terms.averaged,
            )
            metrics = _summarise(terms, batch)
        value, slope, share = terms.loss
        if reduction == "loss":
            value = (value.sum(-1, keepdim=True) * scale).sum()
        else:
            scale = None
        return (value if slope is None else attach(log_prob, value, slope, share, scale)), metrics


def register(
    loss_agg_mode: str, needs: Sequence[str] = (), advantages: Advantages = "group"
) -> Callable[[Recipe], Objective]:
    """Decorator: a recipe ``name(batch, *, parameters) -> Terms`` becomes the objective ``name``."""

    def add(recipe: Recipe) -> Objective:
        objective = _REGISTRY[recipe.__name__] = Objective(recipe, loss_agg_mode, needs, advantages)
        return objective

    return add


def list_objectives() -> list[str]:
    """Names of all objectives, sorted."""
    return sorted(_REGISTRY)


def get(name: str) -> Objective:
    """The objective of that name; ValueError with the nearest names otherwise."""
    if not isinstance(name, str) or name not in _REGISTRY:
        raise ValueError(f"unknown objective {suggest(name, _REGISTRY)}")
    return _REGISTRY[name]


def merge_metrics(
    parts: Iterable[Mapping[str, Tensor | float]], *, partial: bool = False
) -> dict[str, float]:
    """Metrics of several micro-batches as those of one batch: sums, maxima and token-weighted means.

    ``partial``: a metric that some parts lack is that of the parts that have it; otherwise it is an error.
    """
    parts = [{name: float(value) for name, value in part.items()} for part in parts]
    if not parts:
        raise ValueError("parts is empty: allowed is at least one dict of metrics")
    same = partial or all(part.keys() == parts[0].keys() for part in parts)
    if not same or any("tokens" not in part for part in parts):
        raise ValueError(
            "parts hold different metrics: allowed are the metrics of one objective, with 'tokens'"
        )
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        having = [part for part in parts if name in part]
        tokens = sum(part["tokens"] for part in having)
        if name == "tokens":
            merged[name] = tokens
        elif name.endswith("_max"):
            merged[name] = max(part[name] for part in having)
        elif tokens:
            merged[name] = sum(part[name] * part["tokens"] for part in having if part["tokens"]) / tokens
        else:
            merged[name] = having[0][name]
    return merged


def _summarise(terms: Terms, batch: Batch) -> Metrics:
    log_ratio, reach = terms.log_ratio, torch.inf
    if log_ratio is None:
        log_ratio, reach = batch.log_ratio, batch.extent
    if reach > RATIO_BOUND:
        log_ratio = torch.clamp(log_ratio, -RATIO_BOUND, RATIO_BOUND, out=batch._scratch)
    metrics: Metrics = {"tokens": batch.count, "kl": -batch.share(log_ratio)}
    metrics["ratio_mean"] = batch.mean(terms.ratio)
    metrics["ratio_correction_strength"] = batch.share(batch._scratch.abs_())  # what mean left there
    metrics["ratio_max"] = _largest_ratio(terms.ratio, batch)
    own = terms.strength
    metrics["correction_strength"] = metrics["ratio_correction_strength"] if own is None else own
    return metrics | terms.metrics


def _largest_ratio(ratio: Tensor, batch: Batch) -> Tensor:
    largest = ratio.amax()
    if batch.full or (largest.device.type == "cpu" and largest > 1):  # masked places hold 1
        return largest
    return torch.mul(ratio, batch.mask, out=batch._scratch).amax()


def suggest(name: str, known: Iterable[str]) -> str:
    """``'nfop': did you mean 'nfpo'? allowed are ...``, for an error about a name that is not known.

    Of a long list the nearest names stand for all.
    """
    known = list(known)
    lower = {n.lower(): n for n in known}
    near = [lower[n] for n in difflib.get_close_matches(str(name).lower(), lower, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
    if len(known) > MANY:
        some = difflib.get_close_matches(str(name).lower(), lower, n=10, cutoff=0.0)
        listed = f"{len(known)} names, such as {', '.join(sorted(lower[n] for n in some))}"
    else:
        listed = ", ".join(sorted(known))
    return f"{name!r}: {hint}allowed are {listed}"
