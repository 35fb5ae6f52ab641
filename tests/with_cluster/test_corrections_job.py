"""Whole verl jobs with IBPO's second generation pass, on this machine's CPU: two jobs of two steps each.

What a step trained on is written down; everything that the second pass decided is decided once more from the
token ids, by the functions that the local engine uses, and the updates are made once more by that engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch

# not "verl" alone: without the package, that name could find a folder
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: make env-cluster")
pytest.importorskip("vllm", reason="vLLM for CPU is not installed: make env-cluster")

import pyarrow.parquet as pq
from cluster_job import (
    BETAS,
    CLIP,
    JOB,
    LR,
    MINIBATCHES,
    PROMPTS,
    RESPONSE,
    SIZE,
    WEIGHT_DECAY,
    Job,
    make_ground,
)
from replay import local_updater, replay

from rlvr import objectives
from rlvr.advantages import group_relative
from rlvr.config_corrections import Counterfactual, WarmUpCorrections
from rlvr.counterfactual.operators import Candidate
from rlvr.counterfactual.prompts import TokenPrompts
from rlvr.counterfactual.second_pass import choose_targets, describe, judge, shaping, token_mask
from rlvr.engines.jobs.collect import compute_frame, metrics_frame
from rlvr.engines.jobs.cpu import CORRECTING_MODE
from rlvr.engines.local.corrections import CORRECTIONS, REFERENCES
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.rollout import derive_seed
from rlvr.engines.verl.correction_rows import mask_of
from rlvr.engines.verl.cpu.batches import load_batch
from rlvr.problems.tokenizer import Codec
from rlvr.rewards import shaped_reward
from rlvr.verifiers import verify_integer

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
STEPS, SEED = (1, 2), 5
PROMPT = JOB["data.max_prompt_length"] + 2 * (RESPONSE + 1) + 1
CASES = {
    "mask": ("rlvr.masked_gspo", Counterfactual(variant="mask", corrections=3)),
    "shaping_only": ("rlvr.gspo", Counterfactual(variant="ratio", corrections=3, joint=False, targets=2)),
}


class Done(NamedTuple):
    job: Job
    settings: Counterfactual


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    corrections = WarmUpCorrections(share=0.5)
    return make_ground(tmp_path_factory.mktemp("ground"), max_steps=500, corrections=corrections)


@pytest.fixture(scope="module")
def jobs(ground, tmp_path_factory):
    """``jobs(name)``: the finished job of a case, run when it is first asked for."""
    done: dict[str, Done] = {}

    def get(name: str) -> Done:
        if name not in done:
            loss_mode, settings = CASES[name]
            folder = tmp_path_factory.mktemp(name)
            own = {"batches_dir": folder / "batches", "batches_steps": 100, "batches_rows": 4096}
            given = {
                f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean",
                "data.seed": SEED,
                f"{ROLLOUT}.prompt_length": PROMPT,
                f"{ROLLOUT}.max_model_len": PROMPT + RESPONSE,
                "trainer.v1.trainer_mode": CORRECTING_MODE,
                f"+trainer.v1.{CORRECTING_MODE}": own | {"counterfactual": settings.model_dump()},
            }
            job = Job(ground, folder, loss_mode, len(STEPS), given)
            job.run()
            done[name] = Done(job, settings)
        return done[name]

    return get


@pytest.fixture(scope="module", params=CASES)
def done(request, jobs):
    return jobs(request.param)


class Row(NamedTuple):
    prompt: list[int]
    response: list[int]
    score: float
    advantage: float
    mask: list[float] | None
    update: int


def rows_of(job: Job, step: int) -> list[Row]:
    """Rows that a step trained on, filler left out."""
    batch = load_batch(job.folder / "batches" / f"step_{step}.safetensors")
    count = len(batch["responses"])
    masks = batch.get("rollout_is_weights", [None] * count)
    return [
        Row(
            batch["prompts"][i].tolist(),
            batch["responses"][i].tolist(),
            float(batch["rm_scores"][i].sum()),
            float(batch["advantages"][i][0]),
            None if masks[i] is None else masks[i].tolist(),
            i * MINIBATCHES // count,
        )
        for i in range(count)
        if batch["response_mask"][i].any()
    ]


class Again(NamedTuple):
    """The second pass of a step, decided once more."""

    asked: list[list[int]]  # prompts of the step, in order
    base: list[Row]  # responses, SIZE of each prompt
    corrections: list[Row]  # those of each target together
    wanted: list[list[int]]  # correction prompts
    judged: object
    phi: torch.Tensor
    rewards: torch.Tensor


def again(done: Done, step: int) -> Again:
    job, settings = done
    codec = Codec.load(job.ground.policy)
    rows = rows_of(job, step)
    asked = [
        codec.encode(row["prompt"][0]["content"])
        for row in pq.read_table(job.ground.train).to_pylist()[(step - 1) * PROMPTS : step * PROMPTS]
    ]
    base = [row for prompt in asked for row in rows if row.prompt == prompt]
    assert len(base) == PROMPTS * SIZE
    rewards = torch.tensor([row.score for row in base])
    seed = derive_seed(REFERENCES, derive_seed(CORRECTIONS, SEED, step - 1))
    targets, references = choose_targets(rewards.view(-1, SIZE), settings, seed)
    build = TokenPrompts(settings.template, codec.encode, codec.eos_id)
    wanted = [
        build(base[row].prompt, base[row].response, [base[r].response for r in of])
        for row, of in zip(targets.tolist(), references.tolist(), strict=True)
    ]
    rest = [row for row in rows if row.prompt not in asked]
    found = []
    for prompt in wanted:  # two targets of one text have one prompt: the rows of the first come first
        own = [row for row in rest if row.prompt == prompt][: settings.corrections]
        rest = [row for row in rest if not any(row is other for other in own)]
        found += own
    assert not rest
    candidates = [Candidate(row.response, "") for row in found]
    count = settings.corrections
    lengths = torch.tensor([len(row.response) for row in found]).view(-1, count)
    judged = judge(
        settings,
        rewards,
        mask_of(torch.tensor([len(row.response) for row in base])),
        targets,
        references,
        problems=[None] * len(wanted),
        responses=[Candidate(base[row].response, "") for row in targets.tolist()],
        shown=[[Candidate(base[r].response, "") for r in of] for of in references.tolist()],
        corrected=[candidates[n * count : (n + 1) * count] for n in range(len(wanted))],
        accuracy=torch.tensor([row.score for row in found]).view(-1, count),
        lengths=lengths,
        finished=torch.tensor([row.response[-1] == codec.eos_id for row in found]).view(-1, count),
    )
    return Again(asked, base, found, wanted, judged, shaping(judged, rewards, settings), rewards)


# --- what was corrected ---


def test_wrong_responses_were_corrected_in_the_same_step(done):
    job, settings = done
    for step in STEPS:
        said = job.metrics[step]
        assert said["rlvr/targets"] > 2 and 0 < said["rlvr/corrections_right"] < 1
        assert said["rlvr/targets_too_long"] == 0 and said["rlvr/rewrites"] < 1
        trained = len(rows_of(job, step)) - PROMPTS * SIZE
        assert trained == (settings.corrections * said["rlvr/targets"] if settings.joint else 0)
    assert job.announced == len(STEPS)


def test_targets_references_prompts_and_metrics_are_the_local_engine_s(jobs):
    """Equal prompts, token by token: the same targets with the same references, through verl's chat."""
    done = jobs("mask")
    for step in STEPS:
        found = again(done, step)
        assert len(found.corrections) == len(found.wanted) * done.settings.corrections > 0
        expected = describe(found.judged, found.rewards, found.phi, SIZE)
        said = done.job.metrics[step]
        for name, value in expected.items():
            assert said[f"rlvr/{name}"] == pytest.approx(value, abs=1e-6), name


def test_corrections_are_rewarded_by_our_verifiers(jobs):
    done = jobs("mask")
    codec = Codec.load(done.job.ground.policy)
    rows = pq.read_table(done.job.ground.train).to_pylist()
    golds = {row["prompt"][0]["content"]: row["reward_model"]["ground_truth"] for row in rows}
    seen = set()
    for step in STEPS:
        for row in again(done, step).corrections:
            problem = codec.decode(row.prompt).partition("?")[0] + "?"  # compare: the problem comes first
            (text,), (ended,) = codec.responses([row.response])
            assert row.score == float(verify_integer(text, golds[problem], ended).correct)
            seen.add(row.score)
    assert seen == {0.0, 1.0}


# --- what it earned ---


def test_advantages_are_of_shaped_rewards_and_rewards_stay_raw(jobs):
    done = jobs("mask")
    recoverable = 0
    for step in STEPS:
        found = again(done, step)
        shaped = shaped_reward(found.rewards, found.phi, done.settings.shaping_weight)
        groups = torch.arange(PROMPTS).repeat_interleave(SIZE)
        expected = group_relative(shaped, groups, std="none")
        assert torch.allclose(torch.tensor([row.advantage for row in found.base]), expected, atol=1e-6)
        own = torch.arange(len(found.wanted)).repeat_interleave(done.settings.corrections)
        expected = group_relative(found.judged.reward.flatten(), own, std="none")
        assert torch.allclose(torch.tensor([row.advantage for row in found.corrections]), expected, atol=1e-6)
        recoverable += int((found.phi > 0).sum())
        said = done.job.metrics[step]
        assert said["critic/score/mean"] == pytest.approx(float(found.rewards.mean()))
    assert recoverable > 0  # or nothing was shaped


def test_shaping_without_joint_training_changes_advantages_alone(jobs):
    """The corrections are in no update; that responses were shaped is seen in their advantages."""
    job, settings = jobs("shaping_only")
    shaped = 0
    for step in STEPS:
        rows = rows_of(job, step)
        assert len(rows) == PROMPTS * SIZE
        rewards = torch.tensor([row.score for row in rows])
        groups = torch.arange(PROMPTS).repeat_interleave(SIZE)
        plain = group_relative(rewards, groups, std="none")
        shaped += int((torch.tensor([row.advantage for row in rows]) - plain).abs().gt(1e-6).sum())
        assert job.metrics[step]["rlvr/phi_mean"] == pytest.approx(
            job.metrics[step]["rlvr/phi_of_wrong"] * float((rewards == 0).float().mean()), abs=1e-6
        )
        assert settings.targets * PROMPTS >= job.metrics[step]["rlvr/targets"]
    assert shaped > 0


# --- the updates ---


def test_a_correction_is_in_the_update_of_its_target(jobs):
    done = jobs("mask")
    for step in STEPS:
        found = again(done, step)
        for place, row in enumerate(found.base):
            assert row.update == place // SIZE * MINIBATCHES // PROMPTS
        for number, target in enumerate(found.judged.rows.tolist()):
            first = number * done.settings.corrections
            updates = {row.update for row in found.corrections[first : first + done.settings.corrections]}
            assert updates == {found.base[target].update}


def test_the_mask_reached_the_loss(jobs):
    done = jobs("mask")
    for step in STEPS:
        found = again(done, step)
        lengths = torch.tensor([len(row.response) for row in found.base])
        expected = token_mask(found.judged, mask_of(lengths))
        for row, marks in zip(found.base, expected, strict=True):
            assert row.mask == marks[: len(row.response)].float().tolist()
        assert all(set(row.mask) == {1.0} for row in found.corrections)
        spared = sum(row.mask.count(0.0) for row in found.base)
        said = done.job.metrics[step]
        assert (said["actor/marked_fraction"] < 1) == (spared > 0)
    assert sum(row.mask.count(0.0) for step in STEPS for row in again(done, step).base) > 0


def updates_agree(job: Job, loss: Callable) -> None:
    loss = partial(loss, loss_agg_mode="seq-mean-token-mean")
    updater = local_updater(Policy.from_pretrained(job.ground.policy), loss, LR, BETAS, WEIGHT_DECAY, CLIP)
    start = updater.theta.detach().clone()
    files = [job.folder / "batches" / f"step_{step}.safetensors" for step in STEPS]
    for number, ours in enumerate(replay(updater, files, MINIBATCHES), start=1):
        theirs, within = job.metrics[number], 2e-5 if number == 1 else 1e-3
        largest = max(abs(update["loss"]) for update in ours.updates)
        assert theirs["actor/loss"] == pytest.approx(ours.loss, abs=within * largest + 1e-7)
        assert theirs["actor/grad_norm"] == pytest.approx(ours.grad_norm, rel=within)
        assert ours.gap < (1e-4 if number == 1 else 5e-3)
        assert ours.grad_norm > 0.01
    end = Policy.from_pretrained(job.checkpoints / f"global_step_{STEPS[-1]}" / "actor" / "huggingface")
    moved = (updater.theta.detach() - start).norm()
    assert (end.theta - updater.theta.detach()).norm() < 1e-3 * moved


def test_the_updates_agree_with_the_local_engine(done):
    """Responses and corrections in one mean over the rows that have tokens, whatever verl filled up."""
    updates_agree(done.job, objectives.get(done.job.loss_mode.removeprefix("rlvr.")))


def test_without_the_mask_they_would_not(jobs):
    def whole(*arguments, token_mask, **settings):
        return objectives.get("gspo")(*arguments, **settings)

    with pytest.raises(AssertionError):
        updates_agree(jobs("mask").job, whole)


# --- what it cost, and what the analyses read ---


def test_everything_is_counted(jobs):
    done = jobs("mask")
    total = {}
    for step in STEPS:
        found = again(done, step)
        for purpose, rows in (("base", found.base), ("correction", found.corrections)):
            written = sum(len(row.response) for row in rows)
            prompts = found.asked if purpose == "base" else found.wanted
            counted = {
                "prefill": sum(map(len, prompts)),
                "decode": written,
                "verify": written,
                "train": written + sum(len(row.prompt) for row in rows),
            }
            if purpose == "correction":
                own = [len(found.base[row].response) for row in found.judged.rows.tolist()]
                counted["compare"] = written + done.settings.corrections * sum(own)
            for activity, tokens in counted.items():
                name = f"{purpose}_{activity}_tokens"
                assert done.job.metrics[step][f"rlvr/compute/{name}"] == tokens, name
                total[name] = total.get(name, 0) + tokens
    frame = compute_frame(done.job.metrics, len(STEPS))
    assert frame["step"].tolist() == list(STEPS)
    assert {name: int(frame[name].iloc[-1]) for name in total} == total
    assert "rlvr/compute/base_score_tokens" not in done.job.metrics[1]  # nothing was recomputed
    cut = jobs("shaping_only").job.metrics[1]
    assert cut["rlvr/compute/correction_decode_tokens"] > 0
    assert "rlvr/compute/correction_train_tokens" not in cut


def test_columns_have_the_local_engine_s_names(done):
    frame = metrics_frame(done.job.metrics, len(STEPS))
    for name in ("targets", "phi_mean", "corrections_right", "recoverable", "phi_reward_covariance"):
        assert not frame[name].isna().any(), name
    assert not [name for name in frame if name.startswith("rlvr/")]
    scores = [done.job.metrics[step]["critic/score/mean"] for step in STEPS]
    assert frame["reward"].tolist() == scores and not math.isnan(scores[0])
    lengths = [sum(len(r.response) for r in rows_of(done.job, s)[: PROMPTS * SIZE]) for s in STEPS]
    if not done.settings.joint:
        assert frame["tokens_generated"].tolist() == [lengths[0], sum(lengths)]
