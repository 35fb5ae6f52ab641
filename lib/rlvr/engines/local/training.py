"""RL training of one arm with one seed: rollouts, several updates each, checkpoints, and what is kept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rlvr import objectives
from rlvr.config import METHODS
from rlvr.engines.local.accounting import Compute
from rlvr.engines.local.checkpoint import RunState
from rlvr.engines.local.job import Job
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.rollout import (
    Rollout,
    collect,
    derive_seed,
    pass1,
    training_problems,
    validation_problems,
)
from rlvr.engines.local.schedule import learning_rate
from rlvr.engines.local.spending import is_spent, share_spent
from rlvr.engines.local.update import MiniBatch, Updater, minibatches, response_log_prob
from rlvr.problems import Problem
from rlvr.problems.tokenizer import Codec
from rlvr.ratios import forward_trace, token_ratio
from rlvr.storage import atomic_dir, fingerprint, write_json

START_GATE = 1e-3  # nats; sampler and trainer are two code paths over the same weights
_ROLLOUT, _VALIDATION, _PROBLEMS = 1, 2, 3  # purposes of random streams

OnProgress = Callable[[int, int], None]

Update = tuple[MiniBatch, tuple[MiniBatch, ...]]  # one optimiser step: the rollout's, and what else it trains


def train(
    base: str | Path,
    job: Job,
    out: str | Path,
    scratch: str | Path,
    modules: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> None:
    """Train; leaves ``config.json``, ``metrics``, ``records`` and ``compute.parquet``, ``summary.json`` and
    ``final/`` in ``out``.

    Args:
        base: folder of the base model and its tokenizer.
        job: what to run.
        out: written as a whole when the run is complete, not before.
        scratch: folder for the checkpoint; a killed run continues from it, with the same final numbers.
            A checkpoint of another job is removed.
        modules: folder with the warmed-up MTP modules of a method that has them, as many as it needs or
            more; None: the run warms them up.
        on_progress: called with (steps done, steps).

    Raises:
        ValueError: unknown objective or parameter, or a checkpoint that cannot be read.
        RuntimeError: sampler and trainer disagree at the start, or the run ended short of its steps or of its
            budget.
        FloatingPointError: a gradient is not finite.
    """
    base, out, scratch = Path(base), Path(out), Path(scratch)
    policy, codec = Policy.from_pretrained(base), Codec.load(base)
    run = run_of(job)(job, policy, codec, fingerprint(job.to_dict(), *filter(None, (base, modules))))
    checkpoint = scratch / f"checkpoint-{run.identity}.pt"  # of this job and base model, no other
    for other in set(scratch.glob("checkpoint-*.pt")) - {checkpoint}:
        other.unlink()
    state = RunState.load(checkpoint, run.identity)
    run.restore(state)
    if state is None:
        run.prepare(modules)
    while not run.finished:
        run.step()
        if on_progress:
            on_progress(run.done, max(run.done, round(run.done / run.share)))
        if run.done % job.train.checkpoint_every == 0 or run.finished:
            run.state().save(checkpoint)
    run.write(out, base)


def run_of(job: Job) -> type[_Run]:
    """The class that trains the job's method."""
    if job.counterfactual is not None:  # these modules import this one
        from rlvr.engines.local.counterfactual import CounterfactualRun

        return CounterfactualRun
    if job.self_correction is not None:
        from rlvr.engines.local.self_correction import SelfCorrectionRun

        return SelfCorrectionRun
    if any(getattr(job, name) is not None for name in METHODS):
        from rlvr.engines.local.method_run import MethodRun

        return MethodRun
    return _Run


class _Run:
    """The state of a run and its steps. A method that does more overrides :meth:`_collect`, :meth:`_updates`,
    :meth:`_describe` and :meth:`_save`; what these share of a step goes through the rollout."""

    def __init__(self, job: Job, policy: Policy, codec: Codec, identity: str):
        config = job.train
        self.job, self.policy, self.codec, self.identity = job, policy, codec, identity
        loss = functools.partial(
            objectives.get(job.objective),
            loss_agg_mode=config.loss_agg_mode,
            loss_scale_factor=config.max_new_tokens,
            **job.parameters,
        )
        self.updater = self._new_updater(
            theta=policy.theta, shape=policy.shape, loss=loss, lr=config.lr, betas=config.betas,
            weight_decay=config.weight_decay, grad_clip=config.grad_clip, temperature=config.temperature,
        )  # fmt: skip
        self.past: list[Tensor] = []
        self.metrics: list[dict[str, float]] = []
        self.records: list[dict[str, Tensor]] = []
        self.counts = {"tokens_generated": 0, "tokens_trained": 0, "responses_verified": 0}
        self.compute = Compute()
        self.compute_rows: list[dict[str, int]] = []
        self.validation = validation_problems(job.problems, config.eval_problems)
        self.done = 0

    def _new_updater(self, **settings) -> Updater:
        return Updater(**settings)

    def prepare(self, modules: str | Path | None = None) -> None:
        """What comes before the first step of a fresh run; ``modules`` as in :func:`train`."""

    def restore(self, state: RunState | None) -> None:
        if state is None:
            return
        with torch.no_grad():
            self.updater.theta.copy_(state.theta)
        self.updater.optimizer.load_state_dict(state.optimizer)
        self.past, self.metrics, self.records = state.past, state.metrics, state.records
        self.counts, self.done = state.counts, state.step
        self.compute, self.compute_rows = Compute(state.compute), state.compute_rows

    def state(self) -> RunState:
        return RunState(
            self.identity,
            self.done,
            self.updater.theta.detach().clone(),
            self.updater.optimizer.state_dict(),
            self.past,
            self.metrics,
            self.records,
            self.counts,
            compute=self.compute.table,
            compute_rows=self.compute_rows,
        )

    @property
    def share(self) -> float:
        """How much of the training is done: of its steps, or of its budget."""
        budget = self.job.train.budget
        if budget is None:
            return self.done / self.job.train.steps
        return share_spent(self.compute_rows, self.policy.shape, budget)

    @property
    def finished(self) -> bool:
        config = self.job.train
        if config.budget is None:
            return self.done >= config.steps
        if is_spent(self.compute_rows, self.policy.shape, config.budget):
            return True
        if self.done >= config.steps:
            raise RuntimeError(
                f"run {self.job.name} spent {self.share:.0%} of its budget in train.steps={config.steps}: "
                "more are needed"
            )
        return False

    def step(self) -> None:
        job, config, index = self.job, self.job.train, self.done
        if config.schedule != "constant":
            self.updater.set_learning_rate(learning_rate(config, index))
        now = self.updater.theta.detach().clone()
        self.past.append(now)
        behaviour = self.policy.with_theta(
            self.past[0]
        )  # the policy of `lag` steps ago, or the oldest there is
        problems = training_problems(
            job.problems, config.prompts_per_step, derive_seed(_PROBLEMS, job.seed), index
        )
        rollout = self._collect(behaviour, problems)
        row = self._describe(rollout)
        if index == 0 or index % config.eval_every == 0:
            row["val_pass1"] = self._validate()
        updates, kept, more = [], [], []
        for number, (batch, others) in enumerate(self._updates(rollout)):
            values, log_prob, slope = self.updater.step(batch, others)
            if number == 0 and (index == 0 or job.lag == 0):
                self._gate(batch, log_prob)
            more += values.pop("more", [])
            updates.append(values)
            kept += self._record(batch, log_prob, slope, number)
            self._count_update(batch, others)
        norms = [u.pop("grad_norm") for u in updates]
        row |= {"loss": sum(u.pop("loss") for u in updates) / len(updates)}
        row |= {"grad_norm": sum(norms) / len(norms), "grad_norm_max": max(norms)}
        row |= objectives.merge_metrics(updates, partial=True)
        if more:
            row |= {f"correction_{k}": v for k, v in objectives.merge_metrics(more).items()}
        if kept:
            self.records.append({k: torch.cat([part[k] for part in kept]) for k in kept[0]})
        if len(self.past) > job.lag:
            self.past.pop(0)
        self.done += 1
        self.compute_rows.append(self.compute.row(self.done))
        if self.finished:
            row["val_pass1_after"] = self._validate()
        self.metrics.append(row)

    def _collect(self, behaviour: Policy, problems: list[Problem]) -> Rollout:
        seed = derive_seed(_ROLLOUT, self.job.seed, self.done)
        rollout = collect(behaviour, self.codec, problems, self.job.train, seed)
        self.compute.sampled("base", rollout.prompts, rollout.samples)
        return rollout

    def _updates(self, rollout: Rollout) -> list[Update]:
        """The optimiser steps of a rollout, made before the first of them."""
        batches = minibatches(rollout, self.job.train.minibatches)
        return [(self._recomputed(batch), ()) for batch in batches]

    def _count_update(self, batch: MiniBatch, others: tuple[MiniBatch, ...]) -> None:
        self.counts["tokens_trained"] += len(batch.packed.targets)
        self.compute.passed("base", "train", batch.packed)
        for other in others:
            self.compute.passed("correction", "train", other.packed)

    def _recomputed(self, batch: MiniBatch, purpose: str = "base") -> MiniBatch:
        """The trainer's log-probs before the step's first update in place of the sampler's, if wanted."""
        how, old = self.job.train.recompute, batch.old_log_prob
        if how == "none":
            return batch
        new = self._scored(self.updater.theta, batch, purpose)
        return replace(batch, old_log_prob=new, rollout_log_prob=old if how == "trace" else None)

    def _scored(self, theta: Tensor, batch: MiniBatch, purpose: str) -> Tensor:
        """Log-probs [B, T] of a minibatch under ``theta``, without a gradient."""
        self.compute.passed(purpose, "score", batch.packed)
        with torch.no_grad():
            return response_log_prob(theta, self.policy.shape, batch.packed, self.job.train.temperature)[0]

    def _describe(self, rollout: Rollout) -> dict[str, float]:
        samples = rollout.samples
        self.counts["tokens_generated"] += samples.num_tokens
        self.counts["responses_verified"] += len(rollout.rewards)
        return {
            "step": self.done,
            "reward": float(rollout.rewards.double().mean()),
            "groups_with_signal": rollout.groups_with_signal,
            "response_length": float(samples.lengths.double().mean()),
            "truncated": float((~samples.finished).double().mean()),
            "tokens_generated": self.counts["tokens_generated"],
        }

    def _validate(self) -> float:
        policy = self.policy.with_theta(self.updater.theta.detach())
        seed = derive_seed(_VALIDATION, self.job.seed)
        return pass1(policy, self.codec, self.validation, self.job.train.max_new_tokens, seed)

    def _gate(self, batch: MiniBatch, log_prob: Tensor) -> None:
        """Before a step's first update both code paths hold the same weights: their log-probs must agree."""
        gap = float((log_prob - batch.old_log_prob).abs().max())
        if not gap <= START_GATE:  # NaN does not pass
            raise RuntimeError(
                f"sampler and trainer disagree by {gap:.3g} nats on the same weights (allowed {START_GATE:g})"
            )

    def _record(
        self, batch: MiniBatch, log_prob: Tensor, slope: Tensor, number: int
    ) -> list[dict[str, Tensor]]:
        """Per-token records of some responses of this minibatch, spread evenly over it."""
        count = self.job.train.records_per_step // self.job.train.minibatches
        if not count:
            return []
        packed, rows = batch.packed, len(log_prob)
        chosen = torch.arange(count) * rows // count
        mask, old = packed.response_mask, batch.old_log_prob
        mu = old if batch.rollout_log_prob is None else batch.rollout_log_prob  # of the ratio itself
        rho = token_ratio(log_prob, mu, mask)
        trace = forward_trace(log_prob - old, mask, **self.job.trace)
        tokens = packed.pad(packed.targets.to(torch.float64)).to(torch.int16)
        advantages = batch.advantages.reshape(rows, -1).expand_as(rho)
        columns = {
            "token": tokens,
            "log_prob": log_prob,
            "old_log_prob": mu,
            "rho": rho,
            "trace": trace,
            "advantage": advantages,
            # 1 where the objective lets the token's gradient through
            "mask": ((slope != 0) | (advantages == 0)).to(torch.int8),
        }
        row, position = mask[chosen].bool().nonzero(as_tuple=True)
        out = {name: values[chosen][row, position] for name, values in columns.items()}
        response = (self.done * self.job.train.prompts_per_step * self.job.train.group_size
                    + batch.first_row + chosen[row])  # fmt: skip
        out |= {
            "step": torch.full_like(row, self.done, dtype=torch.int16),
            "minibatch": torch.full_like(row, number, dtype=torch.int8),
            "response": response.to(torch.int32),
            "position": position.to(torch.int16),
        }
        return [out]

    def write(self, out: Path, base: Path) -> None:
        if not self.finished:
            raise RuntimeError(f"run {self.job.name} reached step {self.done} of {self.job.train.steps}")
        with atomic_dir(out) as partial:
            write_json(partial / "config.json", self.job.to_dict() | {"identity": self.identity})
            pd.DataFrame(self.metrics).to_parquet(partial / "metrics.parquet", index=False)
            if self.records:
                names = ["step", "minibatch", "response", "position", "token"]
                names += [k for k in self.records[0] if k not in names]
                frame = {k: np.concatenate([part[k].numpy() for part in self.records]) for k in names}
                pd.DataFrame(frame).to_parquet(partial / "records.parquet", index=False)
            pd.DataFrame(self.compute_rows).fillna(0).astype("int64").to_parquet(
                partial / "compute.parquet", index=False
            )
            # with a budget, as many steps as it paid for
            wanted = self.job.train.steps if self.job.train.budget is None else self.done
            summary = {"reached_step": self.done, "requested_steps": wanted, **self.counts}
            write_json(partial / "summary.json", summary)
            self.policy.with_theta(self.updater.theta.detach()).save_pretrained(partial / "final")
            self.codec.save(partial / "final")
            self._save(partial)

    def _save(self, folder: Path) -> None:
        """What else the run leaves in its folder."""
