"""A run whose method has more than a loss: MTP modules, a critic, DAPO's sampling."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pandas as pd
import torch
from safetensors.torch import save_file
from torch import Tensor

from rlvr.engines.local.checkpoint import RunState
from rlvr.engines.local.critic import critic_advantages, critic_values, explained_variance, new_critic
from rlvr.engines.local.flat import FlatTrainer
from rlvr.engines.local.method_rollout import ShapedRollout, sample_until_full, shape_rewards
from rlvr.engines.local.method_update import MethodBatch, MethodUpdater, Modules, ValueNetwork, ratio_weights
from rlvr.engines.local.mtp import MtpModules, new_modules, predict
from rlvr.engines.local.mtp_warmup import warm_up_modules
from rlvr.engines.local.network import States, packed_states
from rlvr.engines.local.packing import PackedGroups
from rlvr.engines.local.policy import Policy, split_blocks, unflatten
from rlvr.engines.local.rollout import collect, derive_seed, training_problems
from rlvr.engines.local.training import _PROBLEMS, _ROLLOUT, Update, _Run
from rlvr.engines.local.update import MiniBatch
from rlvr.losses import clipped_value_loss
from rlvr.problems import Problem

_CRITIC = 5  # purpose of the random streams of the critic's warm-up
CRITIC_FILE, UPDATES_FILE = "critic.safetensors", "updates.parquet"


class MethodRun(_Run):
    """Before step 0 the modules and the critic are warmed up, which leaves the policy as it is."""

    updater: MethodUpdater

    def __init__(self, job, policy, codec, identity):
        super().__init__(job, policy, codec, identity)
        self.past_phi: list[Tensor] = []  # of the modules, as ``past`` of the policy
        self.update_rows: list[dict[str, float]] = []
        self.warmup_rows: dict[str, list[dict[str, float]]] = {}
        self._row: dict[str, float] = {}  # what a step adds to its metrics

    def _new_updater(self, **settings) -> MethodUpdater:
        job, policy = self.job, self.policy
        config, modules, critic = job.train, None, None
        if job.mtp is not None and job.mtp.blocks > 1:
            start = new_modules(policy, job.mtp.blocks, job.mtp.variant, job.mtp.hidden)
            trainer = FlatTrainer("MTP modules", start.phi, job.mtp.lr, config.betas, config.grad_clip)
            weights = ratio_weights(job.mtp, job.objective, job.parameters)
            modules = Modules(trainer, start.shape, job.mtp, weights)
        if job.critic is not None:
            shape, psi = new_critic(policy, job.critic)
            trainer = FlatTrainer("critic", psi, job.critic.lr, config.betas, config.grad_clip)
            critic = ValueNetwork(trainer, shape, job.critic)
        return MethodUpdater(**settings, modules=modules, critic=critic)

    # --- before the first step ---------------------------------------------------------------------------

    def prepare(self, modules: str | Path | None = None) -> None:
        own, critic = self.updater.modules, self.updater.critic
        if own:
            if modules is not None:
                found = MtpModules.load(modules, self.policy.shape)
                if found.shape.blocks > own.shape.blocks:
                    found = found.first(own.shape.blocks)
                if found.shape != own.shape:
                    raise ValueError(f"modules in {modules} are {found.shape}: allowed are {own.shape}")
            else:
                result = warm_up_modules(self.policy, self.codec, self.job.problems, self.job.mtp)
                found = result.modules
                self.warmup_rows["mtp"] = result.history
            with torch.no_grad():
                own.trainer.weights.copy_(found.phi)
        if critic:
            self.warmup_rows["critic"] = [
                self._warm_up_critic(step) for step in range(self.job.critic.warmup_steps)
            ]

    def _warm_up_critic(self, step: int) -> dict[str, float]:
        """A rollout of the untrained policy, on which the critic alone learns; ``tokens``, the responses'."""
        job, config, critic = self.job, self.job.train, self.updater.critic
        seed = derive_seed(_CRITIC, job.seed, step)
        problems = training_problems(
            job.problems, config.prompts_per_step, derive_seed(_CRITIC, job.seed), step
        )
        rollout = shape_rewards(
            collect(self.policy, self.codec, problems, config, seed), config, job.sampling
        )
        losses = []
        for batch in self._with_values(rollout, super()._updates(rollout)):
            mask = batch.packed.response_mask
            states = None if critic.shape.separate else self._states(self.policy.theta, batch.packed)
            values = critic_values(critic.trainer.weights, critic.shape, job.critic, batch.packed, states)
            loss, _ = clipped_value_loss(values, batch.old_values, batch.returns, mask, job.critic.value_clip)
            (gradient,) = torch.autograd.grad(loss, critic.trainer.weights)
            critic.trainer.apply(gradient, critic.trainer.norm(gradient))
            losses.append(float(loss.detach()))
        self.counts["tokens_generated"] += rollout.samples.num_tokens
        self.counts["responses_verified"] += len(rollout.rewards)
        explained = self._row.pop("explained_variance")
        row = {"step": step, "tokens": rollout.samples.num_tokens}
        return row | {"value_loss": sum(losses) / len(losses), "explained_variance": explained}

    # --- a step -------------------------------------------------------------------------------------------

    def step(self) -> None:
        modules, step = self.updater.modules, self.done
        if modules:
            self.past_phi.append(modules.trainer.snapshot())
        super().step()
        if len(self.past_phi) > self.job.lag:
            self.past_phi.pop(0)
        self.metrics[-1] |= self._row
        log, self.updater.log, self._row = self.updater.log, [], {}
        self.update_rows += [{"step": step, "minibatch": number, **row} for number, row in enumerate(log)]

    def _collect(self, behaviour: Policy, problems: list[Problem]) -> ShapedRollout:
        job, config, index = self.job, self.job.train, self.done

        def generate(number: int) -> ShapedRollout:
            given, extra = problems, (number,) if number else ()  # the first batch is that of every arm
            if number:
                stream = derive_seed(_PROBLEMS, job.seed, number)
                given = training_problems(job.problems, config.prompts_per_step, stream, index)
            seed = derive_seed(_ROLLOUT, job.seed, index, *extra)
            rollout = collect(behaviour, self.codec, given, config, seed)
            self.compute.sampled("base", rollout.prompts, rollout.samples)
            return shape_rewards(rollout, config, job.sampling)

        if job.sampling is None or not job.sampling.dynamic:
            return generate(0)
        return sample_until_full(generate, config.prompts_per_step, job.sampling.max_batches)

    def _describe(self, rollout: ShapedRollout) -> dict[str, float]:
        """Of a step with dropped groups, tokens count whole and ``reward`` is that of all responses."""
        row = super()._describe(rollout)
        every = rollout.generated
        self.counts["tokens_generated"] += sum(r.samples.num_tokens for r in every)
        self.counts["tokens_generated"] -= rollout.samples.num_tokens
        self.counts["responses_verified"] += sum(len(r.rewards) for r in every) - len(rollout.rewards)
        row["tokens_generated"] = self.counts["tokens_generated"]
        if self.job.sampling is not None:
            rewards = torch.cat([r.rewards for r in every])
            row |= {
                "reward": float(rewards.double().mean()),
                "reward_trained": float(rollout.rewards.double().mean()),
                "reward_shaped": float(rollout.shaped.double().mean()),
                "generated_batches": len(every),
            }
        return row

    def _updates(self, rollout: ShapedRollout) -> list[Update]:
        batches = self._with_values(rollout, super()._updates(rollout))
        if self.updater.modules:
            batches = [self._with_old_mtp(batch) for batch in batches]
        return [(batch, ()) for batch in batches]

    def _with_values(self, rollout: ShapedRollout, updates: list[Update]) -> list[MethodBatch]:
        """The critic's values, advantages and returns, before the step's first update."""
        critic, batches = self.updater.critic, [batch for batch, _ in updates]
        given = [{f.name: getattr(batch, f.name) for f in fields(MiniBatch)} for batch in batches]
        if not critic:
            return [MethodBatch(**one) for one in given]
        masks = [batch.packed.response_mask for batch in batches]
        values = [self._values(batch.packed) for batch in batches]
        rewards = [rollout.shaped[b.first_row : b.first_row + len(b.old_log_prob)] for b in batches]
        found = critic_advantages(rewards, values, masks, critic.settings)
        returns = [target for _, target in found]
        self._row |= {"explained_variance": explained_variance(values, returns, masks)}
        return [
            MethodBatch(**one | {"advantages": advantages}, old_values=value, returns=target)
            for one, value, (advantages, target) in zip(given, values, found, strict=True)
        ]

    @torch.no_grad()
    def _values(self, packed: PackedGroups) -> Tensor:
        critic = self.updater.critic
        states = None if critic.shape.separate else self._states(self.updater.theta, packed)
        return critic_values(critic.trainer.weights, critic.shape, critic.settings, packed, states)

    def _with_old_mtp(self, batch: MethodBatch) -> MethodBatch:
        """The modules' log-probs under the policy that the ratios are against, by the trainer."""
        modules = self.updater.modules
        recomputed = self.job.train.recompute == "all"
        theta = self.updater.theta if recomputed else self.past[0]
        phi = modules.trainer.weights if recomputed else self.past_phi[0]
        with torch.no_grad():
            weights = unflatten(theta, self.policy.shape)
            states = packed_states(weights, self.policy.shape, batch.packed)
            said = predict(phi, modules.shape, weights, states, batch.packed, self.job.train.temperature)
        return MethodBatch(**vars(batch) | {"old_mtp_log_prob": said.log_prob})

    @torch.no_grad()
    def _states(self, theta: Tensor, packed: PackedGroups) -> States:
        return packed_states(unflatten(theta, self.policy.shape), self.policy.shape, packed)

    # --- what it leaves -----------------------------------------------------------------------------------

    def state(self) -> RunState:
        state, updater = super().state(), self.updater
        parts = {"modules": updater.modules, "critic": updater.critic}
        state.method = {name: part.trainer.state() for name, part in parts.items() if part}
        state.method |= {
            "past_phi": self.past_phi, "updates": self.update_rows, "warmup": self.warmup_rows,
        }  # fmt: skip
        return state

    def restore(self, state: RunState | None) -> None:
        super().restore(state)
        if state is None:
            return
        for name in ("modules", "critic"):
            if part := getattr(self.updater, name):
                part.trainer.restore(state.method[name])
        self.past_phi, self.update_rows = state.method["past_phi"], state.method["updates"]
        self.warmup_rows = state.method["warmup"]

    def _save(self, folder: Path) -> None:
        """``updates.parquet``, a row per update; curves of the warm-ups; the modules beside the policy, in a
        file that inference does not read; the critic."""
        pd.DataFrame(self.update_rows).to_parquet(folder / UPDATES_FILE, index=False)
        for name, rows in self.warmup_rows.items():
            if rows:
                pd.DataFrame(rows).to_parquet(folder / f"{name}_warmup.parquet", index=False)
        if modules := self.updater.modules:
            MtpModules(modules.shape, modules.trainer.snapshot()).save(folder / "final")
        if critic := self.updater.critic:
            parts = split_blocks(critic.trainer.snapshot(), critic.shape.matrices())
            save_file({name: part.contiguous() for name, part in parts.items()}, folder / CRITIC_FILE)
