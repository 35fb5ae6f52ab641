"""The second generation pass in a verl job: the parts that need no job. The job: tests/with_cluster."""

import random

import numpy as np
import pytest
import torch

# not "verl" alone: without the package, that name finds this folder
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")
pytest.importorskip("transfer_queue", reason="TransferQueue is not installed: pip install -e '.[verl]'")

from job import actor, direct, make_batch, run
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

from rlvr.config_corrections import Counterfactual
from rlvr.counterfactual.prompts import TokenPrompts
from rlvr.engines.jobs.policy import PLAIN_TEMPLATE
from rlvr.engines.local.accounting import Compute
from rlvr.engines.verl import PolicyLossConfig, check
from rlvr.engines.verl.accounting import as_metrics, count_rows
from rlvr.engines.verl.correction_layout import layout, updates_of
from rlvr.engines.verl.correction_prompts import CorrectionPrompts
from rlvr.engines.verl.correction_rows import SecondPassBuffer, at_the_end, batch_of, mask_of, rows_of
from rlvr.problems import get_task
from rlvr.problems.tokenizer import Codec, build_tokenizer

pytestmark = pytest.mark.verl

# --- which rows are trained together ---


def test_updates_are_of_whole_prompts_in_order():
    groups = [0, 0, 1, 1, 2, 2, 3, 3, 0, 3]  # the last two are corrections of what prompts 0 and 3 got
    assert updates_of(groups, 4, 2) == [0, 0, 0, 0, 1, 1, 1, 1, 0, 1]
    assert updates_of(groups, 4, 1) == [0] * 10
    for updates in (0, 3):
        with pytest.raises(ValueError, match=f"updates={updates}: allowed are divisors of the 4 prompts"):
            updates_of(groups, 4, updates)


def test_a_layout_typed_in():
    """Three rows of the first update, five of the second; on two ranks, an update in multiples of four."""
    placed = layout([0, 1, 1, 0, 1, 0, 1, 1], 2, 2, 4, [9] * 8)
    assert placed.rows_per_update == 8 and placed.total == 16
    # rank 0: its half of update 0, of update 1; rank 1: the other halves. 8 and on are filler
    assert placed.order == [0, 3, 5, 8, 1, 2, 4, 6, 9, 10, 11, 12, 7, 13, 14, 15]


def split(lengths, ranks):
    return get_seqlen_balanced_partitions(lengths, k_partitions=ranks, equal_size=True)


@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_in_its_update_once_whatever_the_cut(seed):
    """As verl cuts it: a block for each rank, equal pieces of each block."""
    draw = random.Random(seed)
    updates, ranks, multiple = draw.choice([1, 2, 3]), draw.choice([1, 2, 4]), draw.choice([1, 4, 6])
    rows = draw.randint(updates, 60)
    update_of = list(range(updates)) + [draw.randrange(updates) for _ in range(rows - updates)]
    tokens = [draw.randint(2, 500) for _ in range(rows)]
    placed = layout(update_of, updates, ranks, multiple, tokens, split)
    assert sorted(placed.order) == list(range(placed.total))
    assert placed.total == updates * placed.rows_per_update
    assert placed.rows_per_update % multiple == 0 and placed.rows_per_update % ranks == 0
    assert placed.rows_per_update - max(update_of.count(u) for u in range(updates)) < multiple * ranks
    block, piece = placed.total // ranks, placed.rows_per_update // ranks
    for update in range(updates):
        found = [
            row
            for rank in range(ranks)
            for row in placed.order[rank * block + update * piece : rank * block + (update + 1) * piece]
        ]
        assert {row for row in found if row < rows} == {r for r in range(rows) if update_of[r] == update}


def test_ranks_get_equally_long_shares():
    placed = layout([0] * 4, 1, 2, 1, [100, 90, 10, 1], split)
    shares = [sum([100, 90, 10, 1][row] for row in placed.order[part]) for part in (slice(2), slice(2, 4))]
    assert sorted(shares) == [100, 101]


# --- prompts ---


def tokenizer():
    return build_tokenizer(get_task("word").words)


def counted(chat):
    return len(chat[-1]["content"])


def embedded(problem):
    return {
        "raw_prompt": [{"role": "user", "content": problem}],
        "data_source": "embedded",
        "extra_info": {"kind": "integer"},
    }


def test_an_embedded_prompt_comes_out_as_the_local_engine_s_tokens():
    """Through the chat template and the tokenizer, for whatever a policy samples, <pad> included."""
    ours, rng = tokenizer(), np.random.default_rng(0)
    codec = Codec(ours)
    problem = get_task("word").generate("train", 1, 0, (1, 1))[0].prompt
    build = TokenPrompts("compare", codec.encode, codec.eos_id)
    prompts = CorrectionPrompts(Counterfactual(), ours, counted, 10**6)
    for _ in range(200):
        sampled = [
            [int(i) for i in rng.integers(0, len(codec), rng.integers(1, 12)) if i != codec.eos_id]
            for _ in range(3)
        ]
        response, *references = [[*ids, codec.eos_id] for ids in sampled]
        (turn,) = prompts(embedded(problem), response, references)
        text = ours.apply_chat_template([turn], chat_template=PLAIN_TEMPLATE, tokenize=False)
        assert ours(text, add_special_tokens=False)["input_ids"] == build(
            codec.encode(problem), response, references
        )


class Characters:
    """A tokenizer of one token a character."""

    @staticmethod
    def decode(ids, skip_special_tokens):
        return "".join(map(chr, ids))


def text_row():
    turns = [{"role": "system", "content": "Think."}, {"role": "user", "content": "What is 1 + 1?"}]
    return {"raw_prompt": turns, "data_source": "math500", "extra_info": {"kind": "math"}}


def test_a_text_prompt_is_shortened_until_it_fits():
    long = [ord("x")] * 4000
    whole, short = (CorrectionPrompts(Counterfactual(), Characters, counted, n) for n in (10**6, 3000))
    system, asked = whole(text_row(), long, [long])
    assert system == {"role": "system", "content": "Think."} and asked["role"] == "user"
    assert "What is 1 + 1?" in asked["content"] and asked["content"].count("x" * 4000) == 2
    (_, shortened) = short(text_row(), long, [long])
    assert "characters left out" in shortened["content"] and len(shortened["content"]) <= 3000
    assert shortened["content"].count("x" * 375) == 4  # two ends of 750 characters each, of two responses


def test_of_text_there_is_one_template():
    prompts = CorrectionPrompts(Counterfactual(template="problem_last"), Characters, counted, 10**6)
    with pytest.raises(ValueError, match=r"counterfactual.template='problem_last'.*compare"):
        prompts(text_row(), [65], [])


def test_what_fits_in_no_way_is_not_corrected():
    assert CorrectionPrompts(Counterfactual(), Characters, counted, 100)(text_row(), [65], []) is None
    assert CorrectionPrompts(Counterfactual(), tokenizer(), counted, 3)(embedded("1+1?"), [2], []) is None


# --- rows of verl's queue ---


def test_rows_of_a_batch_and_back():
    turns = np.empty(3, dtype=object)
    turns[:] = [[{"role": "user", "content": str(n)}] for n in range(3)]
    batch = tu.get_tensordict(
        {
            "raw_prompt": turns,
            "uid": np.array(["a", "b", "c"], dtype=object),
            "index": np.array([5, 6, 7], dtype=object),
            "dummy": torch.arange(3).unsqueeze(1),
        }
    )
    tu.assign_non_tensor_data(batch, "global_steps", 4)
    rows = rows_of(batch)
    assert [row["uid"] for row in rows] == ["a", "b", "c"]
    assert rows[1]["raw_prompt"] == [{"role": "user", "content": "1"}] and rows[2]["index"] == 7
    assert "global_steps" not in rows[0]  # of the batch, not of a row
    again = batch_of([rows[2] | {"uid": "d"}, rows[0]])
    assert [row["uid"] for row in rows_of(again)] == ["d", "a"]
    assert again["dummy"].tolist() == [[2], [0]] and len(again) == 2


def test_rewards_stand_at_the_last_token_and_masks_at_the_first_ones():
    assert at_the_end(0.3, torch.zeros(3, dtype=torch.long)).tolist() == [0.0, 0.0, pytest.approx(0.3)]
    assert mask_of(torch.tensor([2, 0, 3])).int().tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]


class Queue:
    """A replay buffer of verl's, as far as the wrapper reads it; a prompt ends at each poll."""

    def __init__(self):
        self.polls, self.finished_keys, self.failure_keys = 0, {"train": set()}, {"train": set()}
        self.partitions = {"train": {"a_0_0": {"n": 1}, "b_1_0": {"n": 2}, "c_0_0": {"n": 3}}}

    def sample(self, global_steps, partition_id, batch_size):
        return KVBatchMeta(partition_id=partition_id, keys=["a_0_0"], tags=[{}]), {"seen": 1}

    def _sync_metadata_from_transfer_queue(self):
        self.polls += 1
        self.finished_keys["train"] |= {"a"} if self.polls > 1 else set()
        self.failure_keys["train"] |= {"d"} if self.polls > 2 else set()  # nothing of it could be decided

    def _wait_for_next_poll(self, partition_id, since):
        return since

    def _materialize_batch(self, partition_id, uids, found):
        keys = [key for key in found if key.split("_")[0] in uids]
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=[found[key] for key in keys])


def test_the_buffer_waits_for_its_own_prompts_whatever_came_of_them():
    queue = Queue()
    buffer = SecondPassBuffer(queue, lambda batch, metrics: pytest.fail("not asked for"))
    found = buffer.wait_for(["a", "d"])
    assert queue.polls == 3 and found.keys == ["a_0_0"] and found.tags == [{"n": 1}]


def test_only_batches_of_training_are_corrected():
    seen = []

    def second_pass(batch, metrics):
        seen.append((batch.keys, metrics))
        return "both"

    buffer = SecondPassBuffer(Queue(), second_pass)
    assert buffer.sample(1, "val", 1)[0].keys == ["a_0_0"] and not seen
    assert buffer.sample(1, "train", 1) == ("both", {"seen": 1})
    assert seen == [(["a_0_0"], {"seen": 1})]
    assert buffer.partitions is buffer._buffer.partitions


def test_what_is_counted():
    """Two responses of 3 and 5 tokens to a prompt of 10, one of 4 to a prompt of 7; log-probs recomputed."""
    compute = Compute()
    count_rows(compute, "base", ["a", "a", "b"], [10, 10, 7], [3, 5, 4], trained=2, scored=True)
    values = as_metrics(compute)
    of = {name.removeprefix("rlvr/compute/base_"): v for name, v in values.items() if "tokens" in name}
    assert of == {
        "prefill_tokens": 17, "decode_tokens": 12, "verify_tokens": 12,
        "score_tokens": 39, "train_tokens": 78,
    }  # fmt: skip
    attended = sum(n * (n + 1) // 2 for n in (13, 15, 11))
    assert values["rlvr/compute/base_score_attended"] == attended
    assert values["rlvr/compute/base_train_attended"] == 2 * attended
    # each new token attends to its prompt, to what was written before it, and to itself
    decoded = sum(p + i for p, n in ((10, 3), (10, 5), (7, 4)) for i in range(1, n + 1))
    assert values["rlvr/compute/base_decode_attended"] == decoded


# --- the mask in the loss ---


def test_a_mask_takes_the_place_of_verl_s_weights():
    batch = make_batch()
    marks = (torch.rand(batch[3].shape, generator=torch.Generator().manual_seed(1)) < 0.5).float()
    ours = run(actor("masked_gspo"), batch, marks)
    reference = direct("masked_gspo", batch, token_mask=marks, loss_agg_mode="token-mean")
    np.testing.assert_allclose(ours[0], reference[0])
    np.testing.assert_allclose(ours[1], reference[1])
    assert ours[2]["actor/marked_fraction"] == pytest.approx(float(marks[batch[3]].mean()))
    whole = run(actor("masked_gspo"), batch, torch.ones_like(marks))
    np.testing.assert_allclose(whole[0], run(actor("rlvr.gspo"), batch)[0])
    assert abs(ours[0] - whole[0]) > 1e-3


def test_without_a_mask_and_with_weights_it_refuses():
    with pytest.raises(ValueError, match=r"'masked_gspo' needs token_mask, .*trainer_mode=rlvr_ibpo"):
        run(actor("masked_gspo"), make_batch())
    with pytest.raises(ValueError, match="token_mask"):
        run(actor("masked_gspo"), make_batch(), torch.full(make_batch()[0].shape, 0.5))
    assert PolicyLossConfig("masked_gspo", clip_low=0.1).parameters == {"clip_low": 0.1}


# --- settings ---

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
MODE, OWN = "trainer.v1.trainer_mode", "trainer.v1.rlvr_ibpo"
GOOD = {
    f"{ACTOR}.policy_loss.loss_mode": "rlvr.gspo",
    f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean",
    f"{ACTOR}.ppo_mini_batch_size": 8,
    f"{ROLLOUT}.n": 8,
    f"{ROLLOUT}.prompt_length": 2048,
    "data.train_batch_size": 32,
    "algorithm.adv_estimator": "grpo",
    MODE: "rlvr_ibpo",
    f"+{OWN}": "{counterfactual:{corrections:4}}",
}


def checked(monkeypatch, **changes):
    monkeypatch.setattr(check, "check_registration", lambda loss_mode: {"version": check.TESTED})
    given = {name: value for name, value in (GOOD | changes).items() if value is not None}
    return check.check([f"{name}={value}" for name, value in given.items()])


def test_the_check_says_what_is_corrected(monkeypatch):
    said = "\n".join(checked(monkeypatch))
    assert "all wrong responses of a group, corrected 4 times each beside 1 others" in said
    assert "weighed 0.6; corrections are trained on" in said and "updates a step: 4" in said
    masked = {f"+{OWN}": "{counterfactual:{variant:mask,joint:false}}"}
    masked[f"{ACTOR}.policy_loss.loss_mode"] = "masked_gspo"
    said = "\n".join(checked(monkeypatch, **masked))
    assert "phi by mask" in said and "not trained on" in said and "actor/marked_fraction" in said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"+{OWN}": "{}"}, "rlvr_ibpo.counterfactual is not set: .*allowed are the settings of"),
        ({f"+{OWN}": "{counterfactual:{corections:4}}"}, "corections"),
        ({f"+{OWN}": "{counterfactual:{scale:2}}"}, "scale"),
        ({f"+{OWN}": "{counterfactual:{corrections:1}}"}, "corrections=1: allowed with joint=true are 2"),
        ({f"+{OWN}": "{counterfactual:{operator:nothing}}"}, "operator 'nothing'"),
        ({f"+{OWN}": "{counterfactual:{operator:failing_tests}}"}, "failing_tests.*not a verdict per test"),
        ({f"+{OWN}": "{counterfactual:{variant:mask}}"}, "variant='mask' with loss_mode=rlvr.gspo: allowed"),
        ({f"{ACTOR}.policy_loss.loss_mode": "masked_gspo"}, "variant='indicator' with loss_mode=masked_gspo"),
        ({"algorithm.adv_estimator": "gae"}, "adv_estimator=gae .*allowed is grpo"),
        ({"algorithm.adv_estimator": "rloo"}, "adv_estimator=rloo"),
        ({"+algorithm.filter_groups.enable": True}, "filter_groups.enable=True"),
        ({f"{ACTOR}.shuffle": True}, "actor.shuffle=True with trainer_mode=rlvr_ibpo: allowed is False"),
        ({f"{ACTOR}.ppo_mini_batch_size": 12}, "ppo_mini_batch_size=12.*divisor of data.train_batch_size=32"),
        ({f"{ROLLOUT}.n": 1}, "rollout.n=1"),
        ({f"{ROLLOUT}.prompt_length": None}, "prompt_length=512.*more than data.max_prompt_length=512"),
        ({f"{ROLLOUT}.max_model_len": 2000}, "max_model_len=2000.*more than rollout.prompt_length=2048"),
        (
            {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 1024},
            "ppo_max_token_len_per_gpu=1024.*at least the longest correction prompt and response, 2560",
        ),
        (
            {
                f"+{OWN}": "{counterfactual:{variant:mask}}",
                f"{ACTOR}.policy_loss.loss_mode": "masked_gspo",
                "algorithm.rollout_correction.rollout_is": "token",
            },
            "rollout_is=token.*null with the variant mask",
        ),
        (
            {MODE: "rlvr_sync", f"+{OWN}": None, f"{ACTOR}.policy_loss.loss_mode": "masked_gspo"},
            "loss_mode=masked_gspo needs a mask of tokens, which trainer_mode=rlvr_sync does not make",
        ),
        (
            {MODE: "rlvr_sync", f"+{OWN}": None, "+trainer.v1.rlvr_sync": "{counterfactual:{}}"},
            "rlvr_sync.counterfactual is read by nobody: allowed is trainer.v1.trainer_mode of rlvr_ibpo",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(monkeypatch, changes, message):
    with pytest.raises(check.Failed, match=message):
        checked(monkeypatch, **changes)


def test_the_trainer_itself_refuses_before_it_starts_anything():
    from rlvr.engines.verl.correcting import CorrectingTrainer

    given = GOOD | {f"+{OWN}": "{counterfactual:{},recods_dir:x}"}
    config = check.composed([f"{name}={value}" for name, value in given.items()], "ppo_trainer")
    with pytest.raises(check.Failed, match="no setting 'recods_dir': did you mean 'records_dir'"):
        CorrectingTrainer(config)
