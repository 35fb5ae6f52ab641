"""The trainer of two turns in two stages, driven through a step without Ray: verl's classes, verl's
advantages and padding, on a queue in memory and with responses that are made up."""

import math

import numpy as np
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
    SIZE,
    UPDATES,
    Done,
    OneStep,
    Writer,
    config_of,
    patched,
)

from rlvr.config_corrections import SelfCorrection
from rlvr.counterfactual.prompts import TokenPrompts
from rlvr.engines.verl.self_correcting import (
    KL_COEF,
    TURN,
    SelfCorrectingTrainer,
    describe_turns,
    turn_rewards,
)
from rlvr.engines.verl.self_correction_check import first_stage_of, stage_of
from rlvr.engines.verl.trainer import RecordingTrainer
from rlvr.engines.verl.two_pass import that_differ

pytestmark = pytest.mark.verl
MODE, STEPS = "rlvr_self_correction", 10
ANCHORED = {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": 0}
FREE = {"first_turn_kl": 0.0, "kl": 0.0}


class Step(OneStep, SelfCorrectingTrainer):
    total_training_steps = STEPS

    def _compute_ref_log_prob(self, batch, metrics):
        return batch  # of the workers; what is handed to them is looked at


@pytest.fixture
def run(monkeypatch):
    def run(number=1, ranks=1, undecided=(), lost=(), longest=1024, more=(), **settings):
        queue, own = patched(monkeypatch), SelfCorrection(**settings)
        given = ANCHORED if max(own.first_turn_kl, own.kl) else {}
        given = given | {"actor_rollout_ref.rollout.prompt_length": longest} | dict(more)
        trainer = Step(config_of(MODE, "self_correction", own, **given))
        writer = Writer(queue, undecided, lost)
        return Pairs(trainer, queue, writer, *trainer.run(writer, ranks, number))

    return run


class Pairs(Done):
    """Each response with its second turn, which is known by its prompt."""

    def expected_prompt(self, key):
        build = TokenPrompts("compare", CODEC.encode, CODEC.eos_id)
        number = int(key.removeprefix("prompt-").split("_")[0])
        return build(CODEC.encode(PROBLEMS[number].prompt), self.field(key, "responses").tolist(), [])

    @property
    def second(self):
        """Response -> its second turn; equal responses have equal prompts, and exchange theirs."""
        left, found = list(self.corrections), {}
        for key in self.base:
            mine = [k for k in left if self.field(k, "prompts").tolist() == self.expected_prompt(key)]
            if mine:
                found[key] = mine[0]
                left.remove(mine[0])
        assert not left
        return found

    def advantage(self, key):
        values = self.field(key, "advantages")
        assert len(values) == len(self.field(key, "responses")) and (values == values[0]).all()
        return float(values[0])


# --- rewards -----------------------------------------------------------------------------------------------


def test_rewards_typed_in():
    first, second = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([0.0, 1.0, 0.0, 1.0])
    held, own = turn_rewards(1, first, second, 2.0)
    assert held.tolist() == [0, 0, 0, 0] and own.tolist() == [0, 1, 0, 1]
    kept, own = turn_rewards(2, first, second, 2.0)
    assert kept.tolist() == [0, 0, 1, 1] and own.tolist() == [0, 3, -2, 1]
    assert turn_rewards(2, first, second, 0.0)[1].tolist() == second.tolist()


def test_shares_typed_in():
    nan = math.nan
    first, second = torch.tensor([0.0, 0, 1, 1, nan, 1]), torch.tensor([1.0, 0, 0, 1, 1, nan])
    assert describe_turns(first, second) == {
        "second_turn_right": 0.5, "second_turn_repaired": 0.25, "second_turn_spoilt": 0.25
    }  # fmt: skip
    assert describe_turns(torch.tensor([nan]), torch.tensor([1.0])) == {}


def test_a_group_of_one_reward_has_no_advantage():
    """Of eight rewards of 1.3, rounding leaves verl's GRPO a tenth."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    groups = ["a"] * 8 + ["b"] * 2 + ["c"]
    rewards = [1.3] * 8 + [0.0, 1.3] + [0.7]

    def advantages(values):
        mask, scores = torch.ones(len(values), 1), torch.tensor(values)[:, None]
        return compute_grpo_outcome_advantage(scores, mask, np.array(groups))[0][:, 0].tolist()

    assert abs(advantages(rewards)[0]) > 0.05
    kept = that_differ(rewards, groups)
    assert kept == [0.0] * 8 + [0.0, 1.3] + [0.0]
    assert advantages(kept) == pytest.approx([0.0] * 8 + [-(0.5**0.5), 0.5**0.5] + [0.0], abs=1e-5)
    assert advantages(kept)[:8] == [0.0] * 8


def test_stages_are_the_local_engine_s():
    from types import SimpleNamespace

    from rlvr.engines.local.self_correction import SelfCorrectionRun

    for steps in (1, 2, 3, 7, 10, 207):
        for share in (0.01, 0.5, 0.75, 0.99):
            own = SelfCorrection(stage1_share=share)
            train = SimpleNamespace(budget=None, steps=steps)
            first = first_stage_of(steps, own)
            for done in range(steps):
                run = SimpleNamespace(job=SimpleNamespace(train=train), done=done, first_stage=first)
                assert stage_of(done, steps, own) == SelfCorrectionRun.stage.fget(run)
    assert [stage_of(done, 10, SelfCorrection(stage1_share=0.3)) for done in range(10)] == [1] * 3 + [2] * 7
    assert stage_of(0, 3, SelfCorrection(stage1_share=0.1)) == 1  # one step at least


# --- a step ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, STEPS])
def test_every_response_has_one_second_turn_under_the_prompt_of_the_local_engine(run, number):
    done = run(number)
    assert len(done.base) == PROMPTS * SIZE == len(done.second)
    assert sorted(done.writer.asked[PROMPTS:]) == sorted(done.expected_prompt(key) for key in done.base)
    assert done.metrics["rlvr/stage"] == (1 if number == 1 else 2)
    assert done.metrics["rlvr/second_turns_too_long"] == 0
    right = [done.score(key) == 1 for key in done.base]
    again = [done.score(done.second[key]) == 1 for key in done.base]
    shares = {
        "right": sum(again),
        "repaired": sum(b and not a for a, b in zip(right, again, strict=True)),
        "spoilt": sum(a and not b for a, b in zip(right, again, strict=True)),
    }
    # equal responses may exchange their second turns, and are right alike
    for name, count in shares.items():
        assert done.metrics[f"rlvr/second_turn_{name}"] == pytest.approx(count / len(right)), name
    assert 0 < shares["repaired"] and 0 < shares["spoilt"]


def relative(rewards):
    """A slow loop: verl's deviation is unbiased, and has 1e-6 added."""
    mean = sum(rewards) / len(rewards)
    variance = sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1)
    return [(r - mean) / (math.sqrt(variance) + 1e-6) for r in rewards]


@pytest.mark.parametrize("number", [1, 5, 6, STEPS])
def test_advantages_of_both_turns(run, number):
    """Half of ten steps are stage 1: the fifth is its last."""
    done = run(number, bonus=1.5)
    second = done.second
    signals = 0
    for prompt in range(PROMPTS):
        keys = [f"prompt-{prompt}_{session}_0" for session in range(SIZE)]
        r1, r2 = [done.score(key) for key in keys], [done.score(second[key]) for key in keys]
        own = r2 if number <= 5 else [b + 1.5 * (b - a) for a, b in zip(r1, r2, strict=True)]
        assert [done.advantage(second[key]) for key in keys] == pytest.approx(relative(own), abs=1e-4)
        found = [done.advantage(key) for key in keys]
        if number <= 5:
            assert found == [0.0] * SIZE  # exactly
        else:
            assert found == pytest.approx(relative(r1), abs=1e-4)
        signals += len(set(r1)) > 1
        assert set(r1 + r2) <= {0.0, 1.0}  # what the queue holds stay verdicts
    assert done.metrics["rlvr/stage"] == (1 if number <= 5 else 2)
    assert done.metrics["rlvr/groups_with_signal"] == pytest.approx(signals / PROMPTS)
    assert all(str(done.field(key, "uid")) == key.rsplit("_", 2)[0] for key in done.real)


def test_a_job_that_is_resumed_is_in_the_stage_of_its_step(run):
    """The stage is of ``global_steps``, which verl reads from the checkpoint, and of nothing else."""
    trainer = run(1).trainer
    for step in range(1, STEPS + 1):
        fresh = Step(trainer.config)
        fresh.global_steps = step
        assert fresh.stage == (1 if step <= 5 else 2)


@pytest.mark.parametrize("ranks", [1, 2])
def test_both_turns_of_a_prompt_are_in_one_update(run, ranks):
    done = run(ranks=ranks)
    batch, rows = done.batch, done.trainer._now.rows_per_update
    assert done.trainer.actor_rollout_wg.batch.extra_info["mini_batch_size"] == rows
    assert rows == 2 * PROMPTS * SIZE // UPDATES and len(batch.keys) == UPDATES * rows
    block, piece = len(batch.keys) // ranks, rows // ranks
    second = done.second
    for update in range(UPDATES):
        found = {
            key
            for rank in range(ranks)
            for key in batch.keys[rank * block + update * piece : rank * block + (update + 1) * piece]
        }
        prompts = range(update * PROMPTS // UPDATES, (update + 1) * PROMPTS // UPDATES)
        keys = {f"prompt-{prompt}_{session}_0" for prompt in prompts for session in range(SIZE)}
        assert found & set(done.real) == keys | {second[key] for key in keys}


def test_the_weights_of_the_penalty_by_turn_and_stage(run):
    """A second turn is missing here and there, so that there is filler."""
    for number, held in ((1, 0.3), (STEPS, 0.02)):
        done = run(number, undecided=PROBLEMS[1:2], first_turn_kl=0.3, kl=0.02)
        assert {TURN, KL_COEF} <= set(done.batch.fields)  # workers fetch what the batch lists
        filler = [key for key in done.batch.keys if key not in done.real]
        assert filler
        for keys, turn, weight in ((done.base, 1, held), (done.corrections, 2, 0.02), (filler, 0, 0.0)):
            assert {int(done.field(key, TURN)) for key in keys} == {turn}
            assert {float(done.field(key, KL_COEF)) for key in keys} == {torch.tensor(weight).item()}


def test_without_a_penalty_there_is_no_reference_policy(run):
    done = run(**FREE)
    assert not done.trainer.use_reference_policy and TURN not in done.batch.fields
    assert "rlvr/compute/base_score_tokens" not in done.metrics


def test_what_could_not_be_decided_has_no_second_turn(run):
    done = run(STEPS, undecided=PROBLEMS[1:2])
    assert len(done.base) == (PROMPTS - 1) * SIZE == len(done.corrections)
    assert all(math.isfinite(value) for value in done.metrics.values())


def test_without_any_second_turn_a_step_goes_on(run):
    done = run(STEPS, lost=(0,))
    assert not done.corrections and len(done.base) == PROMPTS * SIZE
    assert "rlvr/second_turn_right" not in done.metrics
    found = [done.advantage(f"prompt-0_{session}_0") for session in range(SIZE)]
    assert found == pytest.approx(relative([done.score(f"prompt-0_{s}_0") for s in range(SIZE)]), abs=1e-4)


def test_a_prompt_that_is_too_long_has_no_second_turn_and_is_counted(run):
    whole = run(STEPS)
    longest = sorted({len(whole.expected_prompt(key)) for key in whole.base})[-2]
    short = {"data.max_prompt_length": longest - 1}
    done = run(STEPS, longest=longest, more=short)
    left = [key for key in done.base if len(done.expected_prompt(key)) <= longest]
    assert 0 < len(left) == len(done.corrections) < len(done.base)
    assert done.metrics["rlvr/second_turns_too_long"] == len(done.base) - len(left)
    # a second turn is relative to those that its problem has; one alone has no advantage
    for prompt in range(PROMPTS):
        keys = [key for key in left if key.startswith(f"prompt-{prompt}_")]
        pairs = [(done.score(key), done.score(done.second[key])) for key in keys]
        own = [b + 2.0 * (b - a) for a, b in pairs]
        expected = relative(own) if len(own) > 1 else [0.0] * len(own)
        found = [done.advantage(done.second[key]) for key in keys]
        assert found == pytest.approx(expected, abs=1e-4)


def test_verl_s_metrics_are_those_of_the_first_turns(run, monkeypatch):
    done, seen = run(), []
    monkeypatch.setattr(
        RecordingTrainer,
        "_compute_metrics",
        lambda self, batch, *a, **k: seen.append(batch.keys),
        raising=False,
    )
    done.trainer._compute_metrics(done.batch, {}, {}, global_steps=1, epoch=0)
    assert sorted(seen[0]) == done.base


@pytest.mark.parametrize("recomputed", [False, True])
def test_what_a_step_computes_is_counted(run, recomputed, monkeypatch):
    monkeypatch.setattr(Step, "_compute_old_log_prob", _sampler_s)
    done = run(more={"algorithm.rollout_correction.bypass_mode": not recomputed}.items())
    for purpose, keys in (("base", done.base), ("correction", done.corrections)):
        written = sum(len(done.field(key, "responses")) for key in keys)
        read = sum(len(done.field(key, "prompts")) for key in keys)
        # the base model's log-probs of every row, and the policy's own where they are computed again
        scored = (1 + recomputed) * (read + written)
        counted = {"decode": written, "verify": written, "train": read + written, "score": scored}
        for activity, tokens in counted.items():
            assert done.metrics[f"rlvr/compute/{purpose}_{activity}_tokens"] == tokens, activity
    assert done.metrics["rlvr/compute/correction_prefill_tokens"] == read
    assert "rlvr/compute/correction_compare_tokens" not in done.metrics


def _sampler_s(self, batch, metrics):
    """In place of a pass of the workers."""
    import transfer_queue as tq

    data = tq.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=["rollout_log_probs"]
    )
    data["old_log_probs"] = data.pop("rollout_log_probs")
    return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=data)
