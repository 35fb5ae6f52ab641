"""The trainer with a second generation pass, driven through a step without Ray: verl's classes, verl's
advantages and padding, on a queue in memory and with responses that are made up."""

import math
import random

import pytest
import torch

# not "verl" alone: without the package, that name finds this folder
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")
pytest.importorskip("transfer_queue", reason="TransferQueue is not installed: pip install -e '.[verl]'")

import transfer_queue as tq
from tensordict import NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu

from rlvr.advantages import group_relative
from rlvr.config_corrections import Counterfactual
from rlvr.counterfactual.prompts import TokenPrompts
from rlvr.counterfactual.second_pass import choose_targets
from rlvr.engines.jobs.policy import PLAIN_TEMPLATE
from rlvr.engines.jobs.rows import row_of
from rlvr.engines.local.corrections import CORRECTIONS, REFERENCES
from rlvr.engines.local.rollout import derive_seed
from rlvr.engines.verl import check
from rlvr.engines.verl.correcting import CorrectingTrainer
from rlvr.engines.verl.correction_rows import batch_of, rows_of
from rlvr.engines.verl.trainer import RecordingTrainer
from rlvr.problems import get_task
from rlvr.problems.tokenizer import Codec, build_tokenizer
from rlvr.verifiers import verify_integer

pytestmark = pytest.mark.verl

PROMPTS, SIZE, UPDATES, SEED = 6, 4, 2, 3
TASK = get_task("word")
PROBLEMS = list({p.prompt: p for p in TASK.generate("train", 40, 1, (1, 1))}.values())[:PROMPTS]
TOKENIZER = build_tokenizer(TASK.words)
TOKENIZER.chat_template = PLAIN_TEMPLATE
CODEC = Codec(TOKENIZER)
OWN = "trainer.v1.rlvr_ibpo"


class Queue:
    """verl's TransferQueue as far as the trainer uses it: rows of fields, and a tag each, by key."""

    def __init__(self):
        self.fields, self.tags = {}, {}

    def kv_batch_put(self, keys, partition_id, fields=None, tags=None):
        for row, key in enumerate(keys):
            if fields is not None:
                for name, values in fields.items():
                    value = values.unbind()[row] if isinstance(values, torch.Tensor) else values[row]
                    self.fields.setdefault(key, {})[name] = getattr(value, "data", value)
            if tags is not None:
                self.tags.setdefault(key, {}).update(tags[row])
        known = sorted(set.intersection(*(set(self.fields.get(key, ())) for key in keys)))
        tags = [self.tags[key] for key in keys]
        return KVBatchMeta(partition_id=partition_id, keys=list(keys), tags=tags, fields=known)

    def kv_batch_get(self, keys, partition_id, select_fields=None):
        out = {}
        for name in select_fields or self.fields[keys[0]]:
            if not all(name in self.fields[key] for key in keys):
                continue
            values = [self.fields[key][name] for key in keys]
            if isinstance(values[0], torch.Tensor):
                out[name] = torch.nested.as_nested_tensor([v.clone() for v in values], layout=torch.jagged)
            else:
                out[name] = NonTensorStack(*values)
        return TensorDict(out, batch_size=len(keys))

    def kv_clear(self, keys, partition_id):
        for key in [keys] if isinstance(keys, str) else keys:
            self.fields.pop(key, None)
            self.tags.pop(key, None)

    def kv_list(self):
        return {"train": {key: dict(tag) for key, tag in self.tags.items()}}


class Writer:
    """An agent loop manager: answers of made-up quality, graded; a problem in ``undecided`` gets none, and
    ``lost`` names sessions of corrections that nothing could be said about."""

    def __init__(self, queue, undecided=(), lost=()):
        self.queue, self.undecided, self.lost = queue, undecided, lost
        self.random, self.asked = random.Random(0), []

    def generate_sequences(self, batch):
        for row in rows_of(batch):
            corrects = "__rollout_n__" in row
            text = TOKENIZER.apply_chat_template(row["raw_prompt"], tokenize=False)
            prompt = TOKENIZER(text, add_special_tokens=False)["input_ids"]
            self.asked.append(prompt)
            problem = next(
                p for p in PROBLEMS if prompt[: len(CODEC.encode(p.prompt))] == CODEC.encode(p.prompt)
            )
            for session in range(row.get("__rollout_n__", SIZE)):
                if problem in self.undecided or (corrects and session in self.lost):
                    continue
                ids = self.answer(problem)
                text, ended = CODEC.responses([ids])
                score = torch.zeros(len(ids))
                score[-1] = float(verify_integer(text[0], problem.answer, ended[0]).correct)
                key = f"{row['uid']}_{session}_0"
                self.queue.fields[key] = {
                    "uid": row["uid"],
                    "prompts": torch.tensor(prompt),
                    "responses": torch.tensor(ids),
                    "input_ids": torch.tensor(prompt + ids),
                    "response_mask": torch.ones(len(ids), dtype=torch.long),
                    "rm_scores": score,
                    "rollout_log_probs": -torch.rand(len(ids)),
                    "num_turns": 2,
                }
                length = {"prompt_len": len(prompt), "response_len": len(ids), "seq_len": len(prompt + ids)}
                self.queue.tags[key] = length | {"min_global_steps": 0, "max_global_steps": 0}
            status = "failure" if problem in self.undecided else "finished"
            self.queue.tags[row["uid"]] |= {"status": status}

    def answer(self, problem):
        ids = CODEC.encode(problem.solution, end=True)
        digits = [place for place, token in enumerate(ids) if CODEC.classes[token] == "digit"]
        for place in self.random.sample(digits, self.random.choice([0, 0, 1, 2])):
            ids[place] = CODEC.encode(str(self.random.randrange(10)))[0]
        return ids[: self.random.choice([len(ids), len(ids), len(ids) - 1])]


class Workers:
    """The actor's worker group: remembers what it was asked to train on."""

    def __init__(self, ranks):
        self._dispatch_info = {"actor": list(range(ranks))}
        self.batch = None

    def update_actor(self, batch):
        self.batch = batch
        return tu.get_tensordict({}, {"metrics": {"loss": [0.0], "mfu": [0.0]}})


class Step(CorrectingTrainer):
    """Through one step, without what starts processes."""

    ends = frozenset({CODEC.eos_id})

    def run(self, queue, writer, ranks=1):
        self.tokenizer, self.global_steps = TOKENIZER, 1
        self.agent_loop_manager, self.actor_rollout_wg = writer, Workers(ranks)
        self.replay_buffer.poll_interval = 0.0
        self.distillation_config = None
        rows = [row_of(problem, n, "train") for n, problem in enumerate(PROBLEMS)]
        self._asked = {}
        batch = batch_of(
            [
                {"raw_prompt": row.pop("prompt"), "index": n, "uid": f"prompt-{n}"} | row
                for n, row in enumerate(rows)
            ]
        )
        tu.assign_non_tensor_data(batch, "global_steps", 1)
        self._submit_batch_to_rollout(batch)
        metrics = {}
        batch, more = self.replay_buffer.sample(global_steps=1, partition_id="train", batch_size=PROMPTS)
        metrics |= more
        self.sampled = list(batch.keys)
        batch = self._balance_batch(batch, metrics)
        batch = self._compute_old_log_prob(batch, metrics)
        batch = self._compute_advantage(batch, metrics)
        return self._update_actor(batch, metrics), metrics


@pytest.fixture
def run(monkeypatch):
    def run(ranks=1, undecided=(), lost=(), **counterfactual):
        queue = Queue()
        for name in ("kv_batch_put", "kv_batch_get", "kv_clear", "kv_list"):
            monkeypatch.setattr(tq, name, getattr(queue, name))
        settings = Counterfactual(**counterfactual)
        block = {name: "null" if v is None else v for name, v in settings.model_dump().items()}
        masked = settings.variant == "mask"
        given = {
            "actor_rollout_ref.actor.policy_loss.loss_mode": "masked_gspo" if masked else "rlvr.gspo",
            "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS // UPDATES,
            "actor_rollout_ref.actor.use_dynamic_bsz": True,
            "actor_rollout_ref.rollout.n": SIZE,
            "actor_rollout_ref.rollout.prompt_length": 1024,
            "data.train_batch_size": PROMPTS,
            "data.seed": SEED,
            "algorithm.adv_estimator": "grpo",
            "algorithm.rollout_correction.bypass_mode": True,
            "trainer.v1.trainer_mode": "rlvr_ibpo",
            f"+{OWN}": "{counterfactual:{" + ",".join(f"{k}:{v}" for k, v in block.items()) + "}}",
        }
        config = check.composed([f"{name}={value}" for name, value in given.items()], "ppo_trainer")
        trainer, writer = Step(config), Writer(queue, undecided, lost)
        batch, metrics = trainer.run(queue, writer, ranks)
        return Done(trainer, queue, writer, batch, metrics, settings)

    return run


class Done:
    def __init__(self, trainer, queue, writer, batch, metrics, settings):
        self.trainer, self.queue, self.writer, self.batch = trainer, queue, writer, batch
        self.metrics, self.settings = metrics, settings
        self.real = [
            key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")
        ]
        self.base = sorted(key for key in self.real if key.startswith("prompt-"))
        self.corrections = [key for key in self.real if not key.startswith("prompt-")]

    def field(self, key, name):
        return self.queue.fields[key][name]

    def score(self, key):
        return float(self.field(key, "rm_scores").sum())

    @property
    def matrix(self):
        scores = torch.full((PROMPTS, SIZE), math.nan)
        for key in self.base:
            number, session = key.removeprefix("prompt-").split("_")[:2]
            scores[int(number), int(session)] = self.score(key)
        return scores

    def key_of(self, row):
        return f"prompt-{row // SIZE}_{row % SIZE}_0"


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
