"""What the tests of trainers with a second generation pass share: verl's queue in memory, responses that are
made up, and one step without what starts processes."""

import math
import random

import torch
import transfer_queue as tq
from tensordict import NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu

from rlvr.engines.jobs.policy import PLAIN_TEMPLATE
from rlvr.engines.jobs.rows import row_of
from rlvr.engines.verl import check
from rlvr.engines.verl.correction_rows import batch_of, rows_of
from rlvr.problems import get_task
from rlvr.problems.tokenizer import Codec, build_tokenizer
from rlvr.verifiers import verify_integer

PROMPTS, SIZE, UPDATES, SEED = 6, 4, 2, 3
TASK = get_task("word")
PROBLEMS = list({p.prompt: p for p in TASK.generate("train", 40, 1, (1, 1))}.values())[:PROMPTS]
TOKENIZER = build_tokenizer(TASK.words)
TOKENIZER.chat_template = PLAIN_TEMPLATE
CODEC = Codec(TOKENIZER)
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


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


class OneStep:
    """Before a trainer among the bases: through step ``number``, without what starts processes."""

    ends = frozenset({CODEC.eos_id})

    def run(self, writer, ranks=1, number=1):
        self.tokenizer, self.global_steps = TOKENIZER, number
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
        tu.assign_non_tensor_data(batch, "global_steps", number)
        self._submit_batch_to_rollout(batch)
        metrics = {}
        batch, more = self.replay_buffer.sample(global_steps=number, partition_id="train", batch_size=PROMPTS)
        metrics |= more
        self.sampled = list(batch.keys)
        batch = self._balance_batch(batch, metrics)
        batch = self._compute_old_log_prob(batch, metrics)
        if self.use_reference_policy:
            batch = self._compute_ref_log_prob(batch, metrics)
        batch = self._compute_advantage(batch, metrics)
        return self._update_actor(batch, metrics), metrics


def patched(monkeypatch):
    """A queue in place of verl's."""
    queue = Queue()
    for name in ("kv_batch_put", "kv_batch_get", "kv_clear", "kv_list"):
        monkeypatch.setattr(tq, name, getattr(queue, name))
    return queue


def config_of(mode, block, settings, **more):
    """verl's configuration of a job whose trainer ``mode`` reads ``settings`` in ``block``."""
    values = {name: "null" if v is None else v for name, v in settings.model_dump().items()}
    given = {
        f"{ACTOR}.policy_loss.loss_mode": "rlvr.gspo",
        f"{ACTOR}.ppo_mini_batch_size": PROMPTS // UPDATES,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ROLLOUT}.n": SIZE,
        f"{ROLLOUT}.prompt_length": 1024,
        "data.train_batch_size": PROMPTS,
        "data.seed": SEED,
        "algorithm.adv_estimator": "grpo",
        "algorithm.rollout_correction.bypass_mode": True,
        "trainer.v1.trainer_mode": mode,
        f"+trainer.v1.{mode}": f"{{{block}:{{" + ",".join(f"{k}:{v}" for k, v in values.items()) + "}}",
    }
    return check.composed([f"{name}={value}" for name, value in (given | more).items()], "ppo_trainer")


class Done:
    """What a step left: rows by key, those of the first pass sorted."""

    def __init__(self, trainer, queue, writer, batch, metrics):
        self.trainer, self.queue, self.writer = trainer, queue, writer
        self.batch, self.metrics, self.settings = batch, metrics, trainer.method
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
