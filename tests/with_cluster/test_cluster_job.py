"""Whole verl jobs on this machine's CPU: Ray, FSDP2 on gloo, vLLM's server, our losses and our reward.

Four objectives one after the other, two steps each; then a job killed while it writes a checkpoint, and its
resume. About ten minutes on two cores; `make test-cluster`.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch

# not "verl" alone: without the package, that name could find a folder
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: make env-cluster")
pytest.importorskip("vllm", reason="vLLM for CPU is not installed: make env-cluster")

import pyarrow.parquet as pq
from cluster_job import (
    BETAS,
    CLIP,
    LR,
    MINIBATCHES,
    PROMPTS,
    RESPONSE,
    SIZE,
    UNDECIDABLE,
    WEIGHT_DECAY,
    Job,
    make_ground,
)
from replay import local_updater, mini_batches, replay

from rlvr import objectives
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.update import response_log_prob
from rlvr.engines.verl.cpu.batches import load_batch
from rlvr.engines.verl.losses import floats, verl_metrics
from rlvr.problems.tokenizer import Codec
from rlvr.verifiers import verify_integer

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
ACTOR = "actor_rollout_ref.actor"


class Case(NamedTuple):
    loss_mode: str
    loss_agg_mode: str
    loss_scale_factor: int | None = None
    undecidable: bool = False
    reference: bool = False

    def settings(self, ground) -> dict[str, Any]:
        return {
            f"{ACTOR}.loss_agg_mode": self.loss_agg_mode,
            f"{ACTOR}.loss_scale_factor": self.loss_scale_factor,
            "data.train_files": ground.train_undecidable if self.undecidable else ground.train,
            "algorithm.use_kl_in_reward": self.reference,
        }

    @property
    def objective(self):
        return objectives.get(self.loss_mode.removeprefix("rlvr."))

    @property
    def loss(self):
        return partial(
            self.objective, loss_agg_mode=self.loss_agg_mode, loss_scale_factor=self.loss_scale_factor
        )


CASES = {
    "grpo": Case("rlvr.grpo", "token-mean", reference=True),
    "dppo": Case("rlvr.dppo_tv", "token-mean", undecidable=True),
    "gspo": Case("rlvr.gspo", "seq-mean-token-mean"),
    "nfpo": Case("nfpo", "seq-mean-token-sum-norm", RESPONSE),
}


class Done(NamedTuple):
    case: Case
    job: Job


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    return make_ground(tmp_path_factory.mktemp("ground"))


@pytest.fixture(scope="module")
def jobs(ground, tmp_path_factory):
    """``jobs(name)``: the finished job of a case, run when it is first asked for."""
    done: dict[str, Done] = {}

    def get(name: str) -> Done:
        if name not in done:
            case = CASES[name]
            folder = tmp_path_factory.mktemp(name)
            job = Job(ground, folder, case.loss_mode, 2, case.settings(ground))
            job.run()
            done[name] = Done(case, job)
        return done[name]

    return get


@pytest.fixture(scope="module", params=CASES)
def done(request, jobs):
    return jobs(request.param)


def updater_of(job: Job, case: Case):
    return local_updater(Policy.from_pretrained(job.ground.policy), case.loss, LR, BETAS, WEIGHT_DECAY, CLIP)


def batch_files(job: Job, last: int):
    return [job.folder / "batches" / f"step_{step}.safetensors" for step in range(1, last + 1)]


def written_policy(job: Job, step: int) -> Policy:
    return Policy.from_pretrained(job.checkpoints / f"global_step_{step}" / "actor" / "huggingface")


def agree(job: Job, case: Case, last: int, lost: int | None = None) -> None:
    """Loss and gradient norm of every step, and the policy at the end, against the local engine.

    ``lost`` is a step of which a kill left the checkpoint and no metrics: verl logs them after it.

    The first step starts from the same weights: within 2e-5, relative (measured: 4e-6). AdamW makes a step
    of rounding where a gradient is nearly 0, so later steps start from weights that differ by that: within
    1e-3 (measured: 5e-6, and 1e-4 for the weights). A loss is a difference of larger numbers, and is
    measured against the largest of its step.
    """
    updater = updater_of(job, case)
    start = updater.theta.detach().clone()
    steps = replay(updater, batch_files(job, last), MINIBATCHES)
    for number, ours in enumerate(steps, start=1):
        if number == lost:
            continue
        theirs = job.metrics[number]
        within = 2e-5 if number == 1 else 1e-3
        largest = max(abs(update["loss"]) for update in ours.updates)
        assert theirs["actor/loss"] == pytest.approx(ours.loss, abs=within * largest + 1e-7)
        assert theirs["actor/grad_norm"] == pytest.approx(ours.grad_norm, rel=within)
        assert ours.gap < (1e-4 if number == 1 else 5e-3)  # of vLLM's log-probs: the weights arrived there
    assert steps[0].grad_norm > 0.01  # there was something to agree on
    assert max(step.moved for step in steps) > 0.05  # and ratios far from 1, where objectives differ
    moved = updater.theta.detach() - start
    assert (written_policy(job, last).theta - updater.theta.detach()).norm() < 1e-3 * moved.norm()


def test_reaches_the_requested_step(done):
    assert sorted(done.job.metrics) == [1, 2]
    assert done.job.metrics[2]["training/global_step"] == 2
    assert done.job.announced == 2


def test_metrics_are_those_of_the_objective(done):
    one = torch.full((1, 2), -1.0)
    _, metrics = done.case.loss(one, one, one, torch.ones(1, 2))
    expected = {*verl_metrics(floats(metrics)), "actor/pg_loss", "actor/grad_norm"}
    for values in done.job.metrics.values():
        assert expected <= set(values)
        assert ("actor/trace_mean" in values) == (done.case.loss_mode == "nfpo")


def test_the_first_updates_agree_with_the_local_engine(done):
    agree(done.job, done.case, 2)


@pytest.mark.parametrize("name", ["gspo", "nfpo"])
def test_another_objective_would_not_agree(jobs, name):
    with pytest.raises(AssertionError):
        agree(jobs(name).job, CASES["grpo"], 2)


def test_vllm_samples_from_the_new_weights(done):
    """The policy that the job started from gives other log-probs to the second step's responses."""
    policy = Policy.from_pretrained(done.job.ground.policy)
    (first, *_) = mini_batches(batch_files(done.job, 2)[1], MINIBATCHES)
    old, _ = response_log_prob(policy.theta, policy.shape, first.packed, 1.0)
    assert (old - first.old_log_prob).abs().max() > 0.05


def test_the_reward_is_our_verifiers(done):
    job, codec = done.job, Codec.load(done.job.ground.policy)
    rows = pq.read_table(job.ground.train).to_pylist()
    golds = {row["prompt"][0]["content"]: row["reward_model"]["ground_truth"] for row in rows}
    scores, lines = [], []
    for step in (1, 2):
        batch = load_batch(job.folder / "batches" / f"step_{step}.safetensors")
        texts, finished = codec.responses(ids.tolist() for ids in batch["responses"])
        asked = codec.decode_batch(ids.tolist() for ids in batch["prompts"])
        for prompt, text, ended, mask, score in zip(
            asked, texts, finished, batch["response_mask"], batch["rm_scores"], strict=True
        ):
            if mask.any():  # verl's own filling is no response
                verdict = verify_integer(text, golds[prompt], ended)
                assert score.sum() == float(verdict.correct)
                scores.append(score.sum().item())
        lines += (job.folder / "rollouts" / f"{step}.jsonl").read_text().splitlines()
    assert 0 < sum(scores) < len(scores)
    assert sum(json.loads(line)["score"] for line in lines) == sum(scores)


def test_the_reference_policy_is_the_start(jobs):
    """A forward-only model beside the actor: no distance at first (4e-4 in bfloat16), then some."""
    metrics = jobs("grpo").job.metrics
    assert abs(metrics[1]["actor/reward_kl_penalty"]) < 1e-5
    assert abs(metrics[2]["actor/reward_kl_penalty"]) > 1e-3


@pytest.mark.fault("machine-failure-is-a-wrong-answer")
def test_an_undecided_response_is_in_no_loss(jobs):
    """A gold answer that is no number: its group leaves the step; nothing of it is trained as wrong."""
    job = jobs("dppo").job
    batch = load_batch(job.folder / "batches" / "step_1.safetensors")
    codec = Codec.load(job.ground.policy)
    rows = pq.read_table(job.ground.train_undecidable).to_pylist()
    bad = rows[UNDECIDABLE]["prompt"][0]["content"]
    trained = [i for i, mask in enumerate(batch["response_mask"]) if mask.any()]
    asked = {codec.decode(batch["prompts"][i].tolist()) for i in trained}
    assert len(trained) == (PROMPTS - 1) * SIZE
    assert bad not in asked
    assert asked == {row["prompt"][0]["content"] for row in rows[:PROMPTS]} - {bad}
    assert "undecided: 1 of embedded so far (bad_gold)" in job.log


@pytest.fixture(scope="module")
def killed(jobs):
    """NFPO's job, asked for four steps, killed with everything it started while it writes its third
    checkpoint. Returns the job and the announced step."""
    case, before = jobs("nfpo")
    job = Job(before.ground, before.folder, case.loss_mode, 4, case.settings(before.ground))
    third = job.checkpoints / "global_step_3"
    job.run_until(lambda: (job.folder / "batches" / "step_3.safetensors").exists(), third.exists)
    return job, job.announced


def test_what_is_announced_is_whole(killed):
    """Whatever the instant of the kill: the checkpoint that a resume takes can be read."""
    job, step = killed
    assert step in (2, 3)
    actor = job.checkpoints / f"global_step_{step}" / "actor"
    for name in ("model", "optim", "extra_state"):
        torch.load(actor / f"{name}_world_size_1_rank_0.pt", weights_only=False)
    torch.load(actor.parent / "data.pt", weights_only=False)
    written_policy(job, step)


@pytest.mark.fault("half-a-checkpoint")
def test_resumes_past_half_a_checkpoint_and_reaches_the_requested_step(killed):
    job, step = killed
    case = CASES["nfpo"]
    half = job.checkpoints / f"global_step_{step + 1}"
    if not half.exists():  # the kill came between two checkpoints: leave what one a little later leaves
        shutil.copytree(job.checkpoints / f"global_step_{step}", half)
    model = half / "actor" / "model_world_size_1_rank_0.pt"
    model.parent.mkdir(exist_ok=True)
    model.write_bytes(model.read_bytes()[:100] if model.exists() else b"PK")

    validated = case.settings(job.ground) | {"trainer.test_freq": 1}
    Job(job.ground, job.folder, case.loss_mode, 4, validated).run()

    assert f"Found checkpoint: %s {job.checkpoints / f'global_step_{step}'}\n" in job.log  # verl's words
    lost = step if step not in job.metrics else None
    assert sorted(job.metrics) == [number for number in (1, 2, 3, 4) if number != lost]
    assert lost != 2 and job.announced == 4
    # the data go on where they stopped
    codec = Codec.load(job.ground.policy)
    rows = pq.read_table(job.ground.train).to_pylist()
    for number in range(step + 1, 5):
        batch = load_batch(batch_files(job, number)[-1])
        asked = {codec.decode(ids.tolist()) for ids in batch["prompts"]}
        expected = rows[(number - 1) * PROMPTS : number * PROMPTS]
        assert asked == {row["prompt"][0]["content"] for row in expected}
    # and the optimiser with its moments
    agree(job, case, 4, lost)
    last = job.metrics[4]
    assert 0 <= last["val-core/embedded/acc/mean@1"] <= 1
    assert last["val-aux/embedded/undecided/mean@1"] == 0
    assert "val-aux/embedded/truncated/mean@1" in last
