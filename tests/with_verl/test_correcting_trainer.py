"""The trainer with a second generation pass, driven through a step without Ray: verl's classes, verl's
advantages and padding, on a queue in memory and with responses that are made up."""

import math

import pytest
import torch

# not "verl" alone: without the package, that name finds this folder
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")
pytest.importorskip("transfer_queue", reason="TransferQueue is not installed: pip install -e '.[verl]'")

from two_pass_fixtures import (
    ACTOR,
    CODEC,
    PROBLEMS,
    PROMPTS,
    SEED,
    SIZE,
    UPDATES,
    Done,
    OneStep,
    Writer,
    config_of,
    patched,
)

from rlvr.advantages import group_relative
from rlvr.config_corrections import Counterfactual
from rlvr.counterfactual.prompts import TokenPrompts
from rlvr.counterfactual.second_pass import choose_targets
from rlvr.engines.local.corrections import CORRECTIONS, REFERENCES
from rlvr.engines.local.rollout import derive_seed
from rlvr.engines.verl.correcting import CorrectingTrainer
from rlvr.engines.verl.trainer import RecordingTrainer

pytestmark = pytest.mark.verl


class Step(OneStep, CorrectingTrainer):
    pass


@pytest.fixture
def run(monkeypatch):
    def run(ranks=1, undecided=(), lost=(), **counterfactual):
        queue, settings = patched(monkeypatch), Counterfactual(**counterfactual)
        masked = settings.variant == "mask"
        loss = {f"{ACTOR}.policy_loss.loss_mode": "masked_gspo" if masked else "rlvr.gspo"}
        trainer = Step(config_of("rlvr_ibpo", "counterfactual", settings, **loss))
        writer = Writer(queue, undecided, lost)
        return Done(trainer, queue, writer, *trainer.run(writer, ranks))

    return run


def test_every_wrong_response_is_corrected_under_the_prompt_of_the_local_engine(run):
    done = run(corrections=3, references=2)
    seed = derive_seed(REFERENCES, derive_seed(CORRECTIONS, SEED, 0))
    rows, references = choose_targets(done.matrix, done.settings, seed)
    build = TokenPrompts("compare", CODEC.encode, CODEC.eos_id)
    ids = {row: done.field(done.key_of(row), "responses").tolist() for row in range(PROMPTS * SIZE)}
    expected = [
        build(CODEC.encode(PROBLEMS[row // SIZE].prompt), ids[row], [ids[r] for r in of if r >= 0])
        for row, of in zip(rows.tolist(), references.tolist(), strict=True)
    ]
    assert done.writer.asked[PROMPTS:] == expected and len(expected) > 5
    assert done.metrics["rlvr/targets"] == len(expected)
    assert len(done.corrections) == 3 * len(expected) and len(done.base) == PROMPTS * SIZE
    right = [done.score(key) for key in done.corrections]
    assert done.metrics["rlvr/corrections_right"] == pytest.approx(sum(right) / len(right))


@pytest.mark.parametrize("ranks", [1, 2])
def test_updates_hold_whole_prompts_with_their_corrections(run, ranks):
    done = run(ranks=ranks, corrections=3)
    now, batch = done.trainer._now, done.batch
    info = done.trainer.actor_rollout_wg.batch.extra_info
    assert info["mini_batch_size"] == now.rows_per_update == done.metrics["rlvr/rows_per_update"]
    assert len(batch.keys) == UPDATES * now.rows_per_update and now.rows_per_update % SIZE == 0
    block, piece = len(batch.keys) // ranks, now.rows_per_update // ranks
    for update in range(UPDATES):
        found = [
            key
            for rank in range(ranks)
            for key in batch.keys[rank * block + update * piece : rank * block + (update + 1) * piece]
        ]
        prompts = range(update * PROMPTS // UPDATES, (update + 1) * PROMPTS // UPDATES)
        wanted = {tuple(CODEC.encode(PROBLEMS[number].prompt)) for number in prompts}
        for key in set(found) & set(done.real):
            prompt = tuple(done.field(key, "prompts").tolist())
            assert any(prompt[: len(start)] == start for start in wanted)
    assert sorted(done.real) == sorted(done.trainer.sampled)
    # verl's own setting is what it was
    assert done.trainer.config.actor_rollout_ref.actor.ppo_mini_batch_size == PROMPTS // UPDATES


def test_advantages_are_of_what_was_earned_and_scores_stay_verdicts(run):
    done = run(corrections=3, shaping_weight=0.8)
    now = done.trainer._now
    shaped = torch.tensor([now.reward[key] for key in done.base])
    raw = torch.tensor([done.score(key) for key in done.base])
    assert set(raw.tolist()) == {0.0, 1.0}
    earned = (shaped - raw)[shaped != raw]
    assert len(earned) and torch.allclose(earned, torch.tensor(0.4)) and not raw[shaped != raw].any()
    groups = torch.arange(PROMPTS).repeat_interleave(SIZE)
    expected = group_relative(shaped, groups, std="unbiased")
    found = torch.tensor([float(done.field(key, "advantages")[0]) for key in done.base])
    assert torch.allclose(found, expected, atol=1e-4)
    by_prompt = {}
    for key in done.corrections:
        by_prompt.setdefault(key.rsplit("_", 2)[0], []).append(key)
    for keys in by_prompt.values():
        rewards = torch.tensor([now.reward[key] for key in keys])
        expected = group_relative(rewards, torch.zeros(len(keys), dtype=torch.long), std="unbiased")
        found = torch.tensor([float(done.field(key, "advantages")[0]) for key in keys])
        assert torch.allclose(found, expected, atol=1e-4)
        assert all(done.score(key) in (0.0, 1.0) for key in keys)
    assert done.metrics["rlvr/groups_with_signal"] == pytest.approx(
        float((done.matrix.amax(1) != done.matrix.amin(1)).float().mean())
    )


def test_without_joint_training_nothing_of_a_correction_stays(run):
    done = run(corrections=1, joint=False)
    assert not done.corrections and len(done.batch.keys) == PROMPTS * SIZE
    assert done.metrics["rlvr/targets"] > 0 and done.metrics["rlvr/phi_mean"] > 0
    assert not [key for key in done.queue.tags if not key.startswith("prompt-")]
    assert done.metrics["rlvr/compute/correction_decode_tokens"] > 0
    assert "rlvr/compute/correction_train_tokens" not in done.metrics


def test_the_mask_spares_what_a_correction_kept(run):
    done = run(variant="mask", corrections=4)
    now = done.trainer._now
    assert "rollout_is_weights" in done.batch.fields  # workers fetch what the batch lists
    masks = {key: done.field(key, "rollout_is_weights") for key in done.batch.keys}
    assert all(len(masks[key]) == len(done.field(key, "responses")) for key in done.batch.keys)
    assert all(masks[key].all() for key in done.corrections)
    spared = [key for key in done.base if not masks[key].all()]
    assert spared and all(done.score(key) == 0 and now.reward[key] > 0 for key in spared)
    marked = torch.cat([masks[key] for key in done.batch.keys]).mean()
    assert done.metrics["rlvr/marked"] == pytest.approx(float(marked))


def test_what_could_not_be_decided_is_in_no_group(run):
    done = run(undecided=PROBLEMS[1:2], lost=(1, 2), corrections=3)
    assert len(done.base) == (PROMPTS - 1) * SIZE and done.matrix[1].isnan().all()
    sessions = {key.rsplit("_", 2)[1] for key in done.corrections}
    assert sessions == {"0"}
    # a group of one member has no advantage
    assert all(not done.field(key, "advantages").any() for key in done.corrections)
    assert all(math.isfinite(value) for value in done.metrics.values())
    right = [done.score(key) for key in done.corrections]
    assert done.metrics["rlvr/corrections_right"] == pytest.approx(sum(right) / len(right))


def test_a_step_in_which_no_correction_could_be_decided_goes_on(run):
    done = run(lost=(0, 1, 2), corrections=3)
    assert not done.corrections and len(done.batch.keys) == PROMPTS * SIZE
    assert done.metrics["rlvr/targets"] > 0 and done.metrics["rlvr/phi_mean"] == 0
    assert "rlvr/corrections_right" not in done.metrics


def test_verl_s_metrics_are_those_of_the_responses(run, monkeypatch):
    done = run(corrections=3)
    seen = []
    base = RecordingTrainer
    monkeypatch.setattr(
        base, "_compute_metrics", lambda self, batch, *a, **k: seen.append(batch.keys), raising=False
    )
    done.trainer._compute_metrics(done.batch, {}, {}, global_steps=1, epoch=0)
    assert sorted(seen[0]) == done.base


def test_what_a_step_computes_is_counted(run):
    done = run(corrections=3)
    for purpose, keys in (("base", done.base), ("correction", done.corrections)):
        written = sum(len(done.field(key, "responses")) for key in keys)
        read = sum(len(done.field(key, "prompts")) for key in keys)
        counted = {"decode": written, "verify": written, "train": read + written}
        for activity, tokens in counted.items():
            assert done.metrics[f"rlvr/compute/{purpose}_{activity}_tokens"] == tokens
    seed = derive_seed(REFERENCES, derive_seed(CORRECTIONS, SEED, 0))
    rows, _ = choose_targets(done.matrix, done.settings, seed)
    of = sum(len(done.field(done.key_of(row), "responses")) for row in rows.tolist())
    assert done.metrics["rlvr/compute/correction_compare_tokens"] == written + 3 * of
    asked = sum(map(len, done.writer.asked))
    found = [done.metrics[f"rlvr/compute/{purpose}_prefill_tokens"] for purpose in ("base", "correction")]
    assert sum(found) == asked
