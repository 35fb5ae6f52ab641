"""TRL's ``GRPOTrainer`` with the policy loss of any objective.

    ObjectiveTrainer(model, reward, config, dataset, objective="nfpo", objective_parameters={"horizon": 8})

Generation, rewards, advantages, the forward pass and the step stay TRL's; only the loss is ours. What is
kept, what is refused and why: ``docs/trl.md``. Written against TRL 1.16.0, whose ``_compute_loss``,
``_buffered_inputs`` and ``_step`` are private.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from rlvr import objectives
from rlvr.engines.idle_clip import IdleClip
from rlvr.losses import aggregate
from rlvr.registry import Metrics, Objective, suggest

logger = logging.getLogger(__name__)

# Settings that nothing would read, or that this trainer does not carry out: only their default passes.
_REPLACED = (
    *("loss_type", "epsilon", "epsilon_high", "delta", "importance_sampling_level"),
    *("sapo_temperature_neg", "sapo_temperature_pos"),
    *("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
)
_REFUSED = (
    *("use_liger_kernel", "off_policy_mask_threshold", "top_entropy_quantile"),
    *("entropy_coef", "use_adaptive_entropy"),
)
_SHARED = ("loss_agg_mode", "loss_scale_factor", "check")  # of every objective, next to its own
_TRL_NAMES = {"entropy": "entropy", "reference_kl": "kl"}  # logged under TRL's own names


class ObjectiveTrainer(GRPOTrainer):
    """``GRPOTrainer`` whose policy loss is the objective called ``objective``.

    Args:
        objective: a name of ``rlvr.objectives.list_objectives()``.
        objective_parameters: the objective's own keyword parameters, and ``loss_agg_mode``,
            ``loss_scale_factor`` (default: ``max_completion_length`` [choice, as TRL's dr_grpo]) and
            ``check``. Numbers and strings: no parameter that is a tensor.
        everything else: as in ``GRPOTrainer``.

    The ratio is taken against TRL's ``old_per_token_logps``; where TRL has none (the policy has not moved
    since it sampled) it is 1. Every denominator counts the whole optimizer step, on all processes.

    Metrics: ``objective/<name>``, one value per optimizer step.

    Raises:
        ValueError: an unknown objective or parameter, a value the objective refuses, an objective that
            needs tensors TRL does not have, or a setting of ``args`` that would be ignored.
    """

    def __init__(
        self,
        model,
        reward_funcs=None,
        args: GRPOConfig | None = None,
        *more,
        objective: str,
        objective_parameters: Mapping[str, Any] | None = None,
        **kwargs,
    ) -> None:
        self.objective = objectives.get(objective)
        parameters = dict(objective_parameters or {})
        _check_parameters(self.objective, parameters)
        if args is not None:
            _check_config(args)
        super().__init__(model, reward_funcs, args, *more, **kwargs)
        self.loss_agg_mode = parameters.pop("loss_agg_mode", None) or self.objective.loss_agg_mode
        self.loss_scale_factor = parameters.pop("loss_scale_factor", None) or self.max_completion_length
        self.objective_parameters = parameters
        self._idle_clip = IdleClip(self.objective, parameters)
        self._parts: list[Metrics] = []  # metrics of the micro-batches of this optimizer step

    def _compute_loss(self, model, inputs) -> Tensor:
        mask = _response_mask(inputs).bool()
        log_prob, entropy, router_loss = self._forward(model, inputs)
        old_log_prob = inputs.get("old_per_token_logps")
        if old_log_prob is None:
            old_log_prob = log_prob.detach()
        token_loss, metrics = self.objective(
            log_prob, old_log_prob, inputs["advantages"], mask, reduction="none", **self.objective_parameters
        )
        if (weight := inputs.get("importance_sampling_ratio")) is not None:  # vLLM, [B, T] or [B, 1]
            token_loss = token_loss * weight
        tokens = mask.sum().clamp_min(1)
        metrics["entropy"] = torch.where(mask, entropy.detach(), 0.0).sum() / tokens
        if self.beta:
            kl = self._reference_kl(log_prob, old_log_prob, inputs["ref_per_token_logps"], mask)
            metrics["reference_kl"] = kl.detach().sum() / tokens
            token_loss = token_loss + self.beta * kl
        loss = aggregate(token_loss, mask, self.loss_agg_mode, **self._counts(inputs))
        if router_loss is not None:
            share = self.current_gradient_accumulation_steps if self.model.training else 1
            loss = loss + self.router_aux_loss_coef * router_loss / share
        self._record(metrics)
        return loss

    def _forward(self, model, inputs) -> tuple[Tensor, Tensor, Tensor | None]:
        """TRL's own forward pass: log-probs [B, T], entropy [B, T], the experts' balance loss or None."""
        passed = inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters
        images = {name: value for name, value in inputs.items() if name in passed}
        return self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            inputs["completion_ids"].shape[1],
            compute_entropy=True,
            compute_aux_loss=self.aux_loss_enabled,
            **images,
        )

    def _reference_kl(self, log_prob: Tensor, old: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
        """TRL's KL to the reference model, [B, T]: ``e^d - d - 1``, d = log ref - log pi; times the ratio."""
        gap = torch.where(mask, reference - log_prob, 0.0)
        kl = gap.expm1() - gap
        if self.args.use_bias_correction_kl:
            kl = kl * torch.where(mask, log_prob - old, 0.0).exp()
        return kl

    def _counts(self, inputs) -> dict[str, Any]:
        """What the denominators count: all micro-batches of the optimizer step, on all processes."""
        batches = [inputs]
        if self.model.training:
            # TRL trains on slice `_step` of a generation; a step never spans two generations: _check_config
            first = self._step - self._step % self.args.gradient_accumulation_steps
            steps = range(first, first + self.current_gradient_accumulation_steps)
            batches = [self._buffered_inputs[step % len(self._buffered_inputs)] for step in steps]
        lengths = torch.cat([_response_mask(batch).sum(-1) for batch in batches])
        tokens, rows = self.accelerator.reduce(torch.stack([lengths.sum(), (lengths > 0).sum()]), "sum")
        return {
            "batch_num_tokens": tokens,
            "global_batch_size": rows,
            "loss_scale_factor": self.loss_scale_factor,
            "dp_size": self.accelerator.num_processes,  # gradients are averaged over processes
        }

    def _record(self, metrics: Metrics) -> None:
        """Log the metrics of the whole optimizer step once its last micro-batch is in."""
        self._parts.append(metrics)
        if self.model.training and not self.accelerator.sync_gradients:
            return
        names = list(metrics)
        values = torch.stack([torch.stack([part[name].float() for name in names]) for part in self._parts])
        self._parts.clear()
        rows = self.accelerator.gather(values).tolist()
        merged = objectives.merge_metrics(dict(zip(names, row, strict=True)) for row in rows)
        log = self._metrics["train" if self.model.training else "eval"]
        for name, value in merged.items():
            log[_TRL_NAMES.get(name, f"objective/{name}")].append(value)
        if self.model.training and (text := self._idle_clip(merged)) and self.accelerator.is_main_process:
            logger.warning(text)


def _response_mask(inputs) -> Tensor:
    """[B, T]: the policy's own tokens; 0 also for a tool's and for truncated responses that TRL masks."""
    mask = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if inputs.get("tool_mask") is not None else mask


def _check_parameters(objective: Objective, parameters: Mapping[str, Any]) -> None:
    """Refuse before training what the objective would refuse at the first step."""
    if objective.needs:
        raise ValueError(
            f"objective={objective.name!r}: needs {', '.join(objective.needs)}, which TRL's trainer does not "
            "have; allowed are objectives of the sampled tokens' log-probs alone"
        )
    own = [name for name in objective.parameters if name not in objective.tensors]
    allowed = [*own, *_SHARED]
    for name in parameters:
        if name in objective.tensors:
            raise ValueError(
                f"objective_parameters has {name!r}: {objective.name} takes a tensor there, one per batch, "
                f"and TRL's trainer has none to give; allowed are {', '.join(sorted(allowed))}"
            )
        if name in inspect.signature(objective).parameters and name not in allowed:
            raise ValueError(
                f"objective_parameters has {name!r}, which the trainer fills in: allowed are "
                f"{', '.join(sorted(allowed))}"
            )
        if name not in allowed:
            raise ValueError(
                f"objective_parameters: {objective.name} has no parameter {suggest(name, allowed)}"
            )
    one = torch.full((1, 1), -1.0)
    objective(one, one, one, torch.ones(1, 1), **parameters)


def _check_config(args: GRPOConfig) -> None:
    default = {field.name: field.default for field in fields(GRPOConfig)}
    for names, why in (
        (_REPLACED, "the objective and its parameters decide"),
        (_REFUSED, "ObjectiveTrainer does not carry it out"),
    ):
        for name in names:
            if (value := getattr(args, name)) != default[name]:
                raise ValueError(f"{name}={value!r}: allowed is TRL's default {default[name]!r}; {why}")
    every = args.steps_per_generation * args.num_iterations
    if every % args.gradient_accumulation_steps:
        raise ValueError(
            f"gradient_accumulation_steps={args.gradient_accumulation_steps!r}: allowed are divisors of "
            f"steps_per_generation * num_iterations = {every}; the loss divides by counts of the whole "
            "optimizer step, and those are unknown until all of it is generated"
        )
