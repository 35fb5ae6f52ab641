"""MPO as a whole verl job on this machine's CPU: MTP modules in the actor, a critic, a checkpoint, a resume.

About four minutes on two cores.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import pytest
import torch

pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: make env-cluster")
pytest.importorskip("vllm", reason="vLLM for CPU is not installed: make env-cluster")

from cluster_job import BETAS, CLIP, LR, MINIBATCHES, RESPONSE, WEIGHT_DECAY, Job, make_ground
from replay import padded, with_eps
from safetensors import safe_open

from rlvr import objectives
from rlvr.advantages import gae, whiten
from rlvr.config_mtp import Mtp, MtpWarmUp
from rlvr.engines.local.critic import terminal_rewards
from rlvr.engines.local.flat import FlatTrainer
from rlvr.engines.local.method_update import MethodBatch, MethodUpdater, Modules
from rlvr.engines.local.mtp import MtpModules, new_modules, predict
from rlvr.engines.local.network import packed_states
from rlvr.engines.local.packing import pack
from rlvr.engines.local.policy import Policy, unflatten
from rlvr.engines.local.update import response_log_prob
from rlvr.engines.verl.cpu.batches import load_batch
from rlvr.ratios import block_weights

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
ACTOR, POLICY_LOSS = "actor_rollout_ref.actor", "actor_rollout_ref.actor.policy_loss"
BLOCKS, MODULES_LR, LAST = 3, 2e-3, 3
WEIGHT, DECAY = 0.4, 0.8


def settings(ground) -> dict[str, Any]:
    return {
        "algorithm.adv_estimator": "gae",
        "algorithm.rollout_correction.bypass_mode": False,
        f"{ACTOR}.calculate_entropy": True,
        f"{POLICY_LOSS}._target_": "rlvr.engines.verl.PolicyLossConfig",
        f"+{POLICY_LOSS}.mtp": {"blocks": BLOCKS, "variant": "chained", "lr": MODULES_LR},
        f"+{POLICY_LOSS}.mtp_weight": WEIGHT,
        f"+{POLICY_LOSS}.decay": DECAY,
        "critic.model.path": ground.policy,
        "critic.optim.lr": 1e-3,
        "critic.use_dynamic_bsz": True,
        "critic.ppo_max_token_len_per_gpu": 4096,
    }


class Done(NamedTuple):
    job: Job
    first: dict[int, dict[str, float]]  # metrics of the first run
    modules: dict[str, torch.Tensor]  # of its last checkpoint


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Two steps, then a second job that goes on to the third."""
    ground = make_ground(tmp_path_factory.mktemp("ground"))
    folder = tmp_path_factory.mktemp("mpo")
    job = Job(ground, folder, "mpo", LAST - 1, settings(ground))
    job.run()
    first = job.metrics
    modules = written_modules(job, LAST - 1).state_dict()
    resumed = Job(ground, folder, "mpo", LAST, settings(ground))
    resumed.run()
    return Done(resumed, first, modules)


def checkpoint(job: Job, step: int):
    return job.checkpoints / f"global_step_{step}"


def written_policy(job: Job, step: int) -> Policy:
    return Policy.from_pretrained(checkpoint(job, step) / "actor" / "huggingface")


def written_modules(job: Job, step: int) -> MtpModules:
    return MtpModules.load(checkpoint(job, step) / "actor" / "huggingface", written_policy(job, step).shape)


def mini_batches(job: Job, step: int) -> list[MethodBatch]:
    """What a step trained on, as the local engine takes it; every row is a group of its own."""
    batch = load_batch(job.folder / "batches" / f"step_{step}.safetensors")
    size, out = len(batch["responses"]) // MINIBATCHES, []
    for first in range(0, size * MINIBATCHES, size):
        rows = range(first, first + size)
        part = {name: [values[i] for i in rows] for name, values in batch.items()}
        lengths = torch.tensor([len(response) for response in part["responses"]])
        packed = pack([p.tolist() for p in part["prompts"]], padded(part["responses"]), lengths, 1)
        old_mtp = padded([row.view(-1, BLOCKS - 1) for row in part["old_mtp_log_probs"]])
        out.append(
            MethodBatch(
                packed,
                padded(part["old_log_probs"]),
                padded(part["advantages"]),
                first,
                old_mtp_log_prob=old_mtp,
            )
        )
    return out


def updater_of(job: Job) -> MethodUpdater:
    policy = Policy.from_pretrained(job.ground.policy)
    start = new_modules(policy, BLOCKS, "chained")
    warmup = MtpWarmUp(seed=0, steps=1, lr=1.0, betas=BETAS, batch_size=1, check_every=1)
    own = Mtp(blocks=BLOCKS, variant="chained", lr=MODULES_LR, warmup=warmup)
    trainer = FlatTrainer("modules", start.phi, MODULES_LR, BETAS, CLIP)
    modules = Modules(trainer, start.shape, own, block_weights(BLOCKS, WEIGHT, DECAY))
    loss = partial(
        objectives.get("mpo"), loss_agg_mode="token-mean", mtp_gradient="stop", mtp_weight=WEIGHT, decay=DECAY
    )
    updater = MethodUpdater(
        policy.theta, policy.shape, loss, LR, BETAS, WEIGHT_DECAY, CLIP, temperature=1.0, modules=modules
    )
    return with_eps(updater)


@pytest.fixture(scope="module")
def replayed(done):
    """(updater at the end, per step (metrics of each update, largest gaps of old log-probs: the policy's,
    the modules'))."""
    updater, steps = updater_of(done.job), []
    for step in range(1, LAST + 1):
        batches, gaps = mini_batches(done.job, step), [0.0, 0.0]
        with torch.no_grad():
            for batch in batches:
                old, _ = response_log_prob(updater.theta, updater.shape, batch.packed, 1.0)
                weights = unflatten(updater.theta, updater.shape)
                states = packed_states(weights, updater.shape, batch.packed)
                modules = updater.modules
                said = predict(modules.trainer.weights, modules.shape, weights, states, batch.packed).log_prob
                gaps[0] = max(gaps[0], float((old - batch.old_log_prob).abs().max()))
                gaps[1] = max(gaps[1], float((said - batch.old_mtp_log_prob).abs().max()))
        steps.append(([updater.step(batch)[0] for batch in batches], gaps))
    return updater, steps


def test_reaches_the_requested_step_over_a_resume(done):
    assert sorted(done.first) == [1, 2] and sorted(done.job.metrics) == [1, 2, 3]
    assert done.job.announced == LAST
    assert f"Found checkpoint: %s {checkpoint(done.job, 2)}\n" in done.job.log


def test_old_log_probs_are_the_trainers(replayed):
    """Those of the modules too, before the step's first update, also after the resume."""
    for _, (policy, modules) in replayed[1]:
        assert policy < 1e-3 and modules < 1e-3


def test_the_updates_agree_with_the_local_engine(done, replayed):
    updater, steps = replayed
    for number, (updates, _) in enumerate(steps, start=1):
        theirs, within = done.job.metrics[number], 3e-5 if number == 1 else 2e-3
        mean = {name: sum(u[name] for u in updates) / len(updates) for name in updates[0]}
        largest = max(abs(update["loss"]) for update in updates)
        assert theirs["actor/loss"] == pytest.approx(mean["loss"], abs=within * largest + 1e-6)
        for name in (
            "grad_norm",
            "mtp_grad_norm",
            "mtp_loss_2",
            "mtp_loss_3",
            "mtp_rank_2",
            "mtp_log_ratio_3",
        ):
            assert theirs[f"actor/{name}"] == pytest.approx(mean[name], rel=within, abs=1e-6), name
    assert steps[0][0][1]["mtp_log_ratio_2"] > 1e-3  # the second update: ratios of modules that moved
    start = updater_of(done.job)
    moved = updater.theta.detach() - start.theta.detach()
    assert (written_policy(done.job, LAST).theta - updater.theta.detach()).norm() < 1e-3 * moved.norm()
    phi, began = updater.modules.trainer.snapshot(), start.modules.trainer.snapshot()
    assert (written_modules(done.job, LAST).phi - phi).norm() < 1e-3 * (phi - began).norm()


def test_the_modules_are_resumed(done):
    """The second job began with what the first one saved: with copies of the layer the next test of the
    updates would fail, and here the file has moved on by one step alone."""
    start = new_modules(Policy.from_pretrained(done.job.ground.policy), BLOCKS, "chained").state_dict()
    after = written_modules(done.job, LAST).state_dict()
    apart = lambda a, b: sum(float((a[n] - b[n]).pow(2).sum()) for n in a) ** 0.5  # noqa: E731
    assert 0 < apart(done.modules, after) < 0.8 * apart(start, after)


def test_the_rollout_engine_knows_nothing_of_the_modules(done):
    """The model that verl writes for inference, and syncs to vLLM, has the base model's weights alone."""
    names = []
    for folder in (done.job.ground.policy, checkpoint(done.job, LAST) / "actor" / "huggingface"):
        with safe_open(folder / "model.safetensors", "pt") as file:
            names.append(sorted(file.keys()))
    assert names[0] == names[1]
    # and vLLM sampled from the weights of each step
    for step in range(1, LAST + 1):
        batch = load_batch(done.job.folder / "batches" / f"step_{step}.safetensors")
        pairs = zip(batch["rollout_log_probs"], batch["old_log_probs"], strict=True)
        assert max(float((a - b).abs().max()) for a, b in pairs) < 5e-3


def test_advantages_are_the_critics(done):
    for step in range(1, LAST + 1):
        batch = load_batch(done.job.folder / "batches" / f"step_{step}.safetensors")
        mask = padded(batch["response_mask"]).float()
        values = padded(batch["values"])
        rewards = terminal_rewards(torch.tensor([float(r.sum()) for r in batch["rm_scores"]]), mask)
        advantages, returns = gae(rewards, values, mask, 1.0, 1.0)
        assert torch.allclose(padded(batch["returns"]), returns, atol=1e-5)
        assert torch.allclose(padded(batch["advantages"]), whiten(advantages, mask), atol=1e-4)
    first, last = done.job.metrics[1], done.job.metrics[LAST]
    assert first["critic/vf_loss"] > 0 and last["critic/vf_loss"] != first["critic/vf_loss"]
    saved = {path.name for path in (checkpoint(done.job, LAST) / "critic").iterdir()}
    assert {"model_world_size_1_rank_0.pt", "optim_world_size_1_rank_0.pt"} <= saved


def test_responses_are_within_the_limit(done):
    batch = load_batch(done.job.folder / "batches" / "step_1.safetensors")
    assert max(map(len, batch["responses"])) <= RESPONSE
