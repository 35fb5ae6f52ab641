"""An objective behind verl's policy-loss signature."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rlvr import objectives
from rlvr.engines.idle_clip import IdleClip
from rlvr.losses import aggregate
from rlvr.registry import Metrics, Objective

logger = logging.getLogger(__name__)

GIVEN = "old_log_prob, log_prob, advantages, response_mask and rollout_is_weights"  # all that verl hands over
#: A mask of tokens comes where verl's correction weights would be (``rlvr.engines.verl.correcting``).
CARRIED = "token_mask"
MTP = ("mtp_log_prob", "old_mtp_log_prob")  # what the modules beside an actor say
# Settings that verl's own losses read and ours do not, with verl's defaults: of its actor, and of its
# actor.policy_loss.
UNREAD = {
    **{"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0},
    **{"tau_pos": 1.0, "tau_neg": 1.05},
}
UNREAD_OF_POLICY_LOSS = {
    **{"clip_cov_ratio": 0.0002, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0, "kl_cov_ratio": 0.0002},
    **{"ppo_kl_coef": 0.1, "dro_beta": None},
}


# What a worker of ours has beside what verl hands over, by the names of the objectives' tensors.
_MORE: ContextVar[Mapping[str, Tensor | None]] = ContextVar("rlvr_more_tensors")


@contextmanager
def handed(**tensors: Tensor | None) -> Iterator[None]:
    """Calls of a :class:`PolicyLoss` within get these too; None is an argument that the objective can do
    without."""
    token = _MORE.set(dict(_MORE.get({})) | tensors)
    try:
        yield
    finally:
        _MORE.reset(token)


def refusal(objective: Objective, more: Mapping[str, Any] | None = None) -> str | None:
    """Why this objective cannot run as a policy loss of verl, or None. ``more``: as in :func:`handed`."""
    lacking = [name for name in objective.needs if name != CARRIED and name not in (more or {})]
    if not lacking:
        return None
    if set(objective.needs) == set(MTP):
        return (
            f"loss_mode={objective.name!r} needs {', '.join(objective.needs)}, which verl does not hand to a "
            "policy loss: allowed is policy_loss.mtp={blocks:...,lr:...}, modules beside the actor, with a "
            "trainer of rlvr; without them this would be another objective"
        )
    return (
        f"loss_mode={objective.name!r} needs {', '.join(lacking)}, which verl does not hand to a "
        f"policy loss (it hands over {GIVEN}); without it this would be another objective"
    )


class PolicyLoss:
    """The objective ``name`` as verl calls it; registered by :func:`register_objectives`.

    ``config`` is verl's ``ActorConfig``: counts come from its ``global_batch_info``, so that the losses of
    micro-batches and ranks add up; parameters, if any, from ``config.policy_loss`` when that is a
    :class:`rlvr.engines.verl.PolicyLossConfig`. Without one, the objective's own defaults hold, but for
    ``loss_agg_mode``: verl always gives one, so that its default cannot be told from a choice.
    """

    def __init__(self, name: str):
        self.objective = objectives.get(name)
        self.__name__ = name
        self.__doc__ = self.objective.__doc__
        self._idle: tuple[dict[str, Any], IdleClip] | None = None  # the parameters it watches, and the watch

    def __repr__(self) -> str:
        return f"<policy loss {self.__name__} of rlvr>"

    def __call__(
        self,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        """Tensors [micro-batch, response length], ``response_mask`` bool; returns (loss, metrics).

        ``rollout_is_weights`` multiplies each token's loss; of an objective that needs a mask of tokens it is
        that mask. Metrics are floats under ``actor/``.
        Raises ValueError if the objective needs tensors that verl does not hand over.
        """
        more = _MORE.get({})
        if (reason := refusal(self.objective, more)) is not None:
            raise ValueError(reason)
        chosen = getattr(config, "policy_loss", None) or {}
        mode = chosen.get("loss_agg_mode", None) or loss_agg_mode
        counts = global_counts(config)
        warn_unread(config, mode)
        arguments = (log_prob, old_log_prob, advantages, response_mask)
        parameters = dict(chosen.get("parameters", None) or {})
        settings = parameters | {"check": chosen.get("check", True)}
        settings |= {name: more[name] for name in self.objective.tensors if name in more}
        if CARRIED in self.objective.needs:
            if rollout_is_weights is None:
                raise ValueError(
                    f"loss_mode={self.objective.name!r} needs {CARRIED}, a mask in place of "
                    "rollout_is_weights; allowed is trainer.v1.trainer_mode=rlvr_ibpo with the variant "
                    "mask, which makes it"
                )
            settings[CARRIED] = rollout_is_weights.detach()
            rollout_is_weights = None
        if rollout_is_weights is None:
            loss, metrics = self.objective(*arguments, loss_agg_mode=mode, **counts, **settings)
        else:
            token_loss, metrics = self.objective(*arguments, reduction="none", **settings)
            weights = torch.where(response_mask.bool(), rollout_is_weights.detach(), 0.0)
            loss = aggregate(token_loss * weights, response_mask, mode, **counts)
        named = floats(metrics)
        self._watch(named, parameters, counts)
        return loss, verl_metrics(named)

    def _watch(
        self, metrics: Mapping[str, float], parameters: dict[str, Any], counts: Mapping[str, Any]
    ) -> None:
        """Warn, once a process, of a clip that never acts. A call is a micro-batch: a part of an update."""
        if self._idle is None or self._idle[0] != parameters:
            self._idle = parameters, IdleClip(self.objective, parameters)
        of_update = counts["batch_num_tokens"]
        part = metrics["tokens"] * counts["dp_size"] / float(of_update) if of_update else 1.0
        if text := self._idle[1](metrics, part):
            logger.warning(text)


def global_counts(config: Any) -> dict[str, Any]:
    """Counts of the whole mini-batch, on all ranks, as :func:`rlvr.losses.aggregation_scale` takes them."""
    info: Mapping[str, Any] = getattr(config, "global_batch_info", None) or {}
    counts = {
        # a mini-batch with nothing valid counts 0, and its loss is 0 whatever the denominator
        "batch_num_tokens": info.get("batch_num_tokens") or None,
        "global_batch_size": info.get("global_batch_size") or None,
        "loss_scale_factor": info.get("loss_scale_factor") or getattr(config, "loss_scale_factor", None),
        "dp_size": info.get("dp_size") or 1,
    }
    if counts["dp_size"] > 1 and (info.get("batch_num_tokens") is None or not counts["global_batch_size"]):
        raise ValueError(
            f"config.global_batch_info={dict(info)!r}: allowed with dp_size > 1 are batch_num_tokens and "
            "global_batch_size of all ranks; without them every rank would divide by its own"
        )
    return counts


def floats(metrics: Metrics) -> dict[str, float]:
    """The metrics as numbers, in one transfer from the accelerator."""
    values = torch.stack([value.double() for value in metrics.values()]).tolist()
    return dict(zip(metrics, values, strict=True))


def verl_metrics(named: Mapping[str, float]) -> dict[str, float]:
    """``actor/<name>`` for each metric, and verl's usual ``actor/pg_clipfrac`` and ``actor/ppo_kl``."""
    out = {f"actor/{name}": value for name, value in named.items()}
    out["actor/pg_clipfrac"] = named.get("clip_fraction", named.get("masked_fraction", 0.0))
    out["actor/ppo_kl"] = named["kl"]
    return out


def warnings_about(config: Any, mode: str) -> list[str]:
    """What in verl's actor configuration does not do what it seems to."""
    policy_loss = getattr(config, "policy_loss", None) or {}
    values = {f"actor.{name}": (getattr(config, name, default), default) for name, default in UNREAD.items()}
    values |= {
        f"actor.policy_loss.{name}": (policy_loss.get(name, default), default)
        for name, default in UNREAD_OF_POLICY_LOSS.items()
    }
    out = [
        f"{name}={value} is not read by rlvr's objectives: what they take is set in actor.policy_loss"
        for name, (value, default) in values.items()
        if value != default
    ]
    if mode == "seq-mean-token-sum-norm" and not global_counts(config)["loss_scale_factor"]:
        out.append(
            "actor.loss_scale_factor is not set: the divisor is then the longest response of each "
            "micro-batch, so the loss depends on how they are cut; set it to the longest response allowed: "
            "'actor_rollout_ref.actor.loss_scale_factor=${data.max_response_length}'"
        )
    return out


def warn_unread(config: Any, mode: str) -> None:
    for text in warnings_about(config, mode):
        _warn_once(text)


@cache
def _warn_once(text: str) -> None:
    logger.warning(text)
