"""Our verifiers as verl's reward."""

import logging
import threading

import pytest

pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")

import torch
from local_fixtures import codec
from omegaconf import OmegaConf
from verl import DataProto

from rlvr.engines.jobs.rows import row_of
from rlvr.engines.verl import reward
from rlvr.engines.verl.reward import Undecided, compute_score, undecided_counts
from rlvr.engines.verl.reward_manager import RewardManager, response_text
from rlvr.problems import get_task
from rlvr.problems.benchmarks import BenchmarkProblem

pytestmark = pytest.mark.verl
WORD = get_task("word").generate("train", 1, 0, (1, 2))[0]
MATH = BenchmarkProblem("7", "amc23", "?", "1/2", answers=("1/2", "2"))
RECORD = {
    "task_id": "HumanEval/0",
    "prompt": "def f(x):\n",
    "entry_point": "f",
    "test": "def check(candidate):\n    assert candidate(1) == 2\n",
}
PROGRAM = BenchmarkProblem("HumanEval/0", "humaneval", RECORD["prompt"], kind="function", tests=RECORD)


def score(problem, text, split="train", truth=None, **settings):
    row = row_of(problem, 0, split)
    truth = row["reward_model"]["ground_truth"] if truth is None else truth
    return compute_score(row["data_source"], text, truth, row["extra_info"], **settings)


@pytest.mark.parametrize(
    ("problem", "right", "wrong"),
    [
        (WORD, f"1+1={WORD.answer}", f"1+1={WORD.answer}9"),
        (MATH, r"so \boxed{0.5}", r"so \boxed{0.6}"),
        (MATH, r"so \boxed{2}", r"\boxed{1}"),  # any accepted answer
        (PROGRAM, "```python\ndef f(x):\n    return x + 1\n```", "```python\ndef f(x):\n    return x\n```"),
    ],
)
def test_each_kind_by_its_verifier(problem, right, wrong):
    assert score(problem, right) == {
        "score": 1.0,
        "acc": 1.0,
        "undecided": 0.0,
        "truncated": 0.0,
        "reason": "correct",
    }
    assert score(problem, wrong)["score"] == score(problem, wrong)["acc"] == 0.0
    cut = score(problem, right, finished=False)
    assert (cut["score"], cut["truncated"], cut["reason"]) == (0.0, 1.0, "truncated")


@pytest.mark.fault("undecided-counted-as-wrong", "machine-failure-is-a-wrong-answer")
def test_undecided_is_never_a_silent_zero(monkeypatch, caplog):
    monkeypatch.setattr(reward, "_counts", reward.Counter())
    with caplog.at_level(logging.WARNING), pytest.raises(Undecided, match="bad_gold"):
        score(WORD, "5", truth="five")
    assert undecided_counts() == {("embedded", "bad_gold"): 1}
    assert "undecided: 1 of embedded so far (bad_gold)" in caplog.text and WORD.id in caplog.text
    kept = score(WORD, "5", split="test", truth="five")  # validation: verl would count it wrong, unnamed
    assert (kept["score"], kept["acc"], kept["undecided"]) == (0.0, None, 1.0)
    assert score(WORD, "5", truth="five", undecided="zero")["undecided"] == 1.0
    with pytest.raises(Undecided):
        score(WORD, "5", split="test", truth="five", undecided="drop")
    assert undecided_counts() == {("embedded", "bad_gold"): 4}


def test_refused():
    with pytest.raises(ValueError, match="allowed are auto, drop, zero"):
        score(WORD, "5", undecided="nan")
    with pytest.raises(ValueError, match=r"extra_info\.kind=None"):
        compute_score("gsm8k", "5", "5", {"index": 0})


def test_in_a_thread():
    """verl calls it from a pool of threads: a verdict that hangs ends at its time limit there too."""
    found = {}

    def work():
        hard = BenchmarkProblem("8", "amc23", "?", "x^2+2*x+1")
        found["right"] = score(hard, r"\boxed{(x+1)^2}")
        loop = "```python\ndef f(x):\n    while True: pass\n```"
        found["hangs"] = score(PROGRAM, loop)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert found["right"]["score"] == 1.0
    assert (found["hangs"]["score"], found["hangs"]["reason"]) == (0.0, "timeout")


@pytest.fixture
def manager(tmp_path):
    """verl's way to it: the job's configuration, and the tokenizer from the model's folder."""
    from local_fixtures import random_policy
    from verl.trainer.ppo.reward import load_reward_manager

    random_policy().save_pretrained(tmp_path)
    codec().save(tmp_path)
    config = OmegaConf.create({
        "reward": {
            "custom_reward_function": {"path": None, "name": None, "reward_kwargs": {}},
            "reward_manager": {"source": None, "name": None, "module": {"path": None}},
        },
        "actor_rollout_ref": {"model": {"path": str(tmp_path)}},
    })  # fmt: skip
    for name, value in reward.SETTINGS.items():
        OmegaConf.update(config, name, value)
    made = load_reward_manager(config, codec().tokenizer)
    assert type(made) is RewardManager
    return made


def sample(manager, text, ends, width=24):
    words = codec()
    prompt, response = words.encode(WORD.prompt), words.encode(text, end=ends)
    row = row_of(WORD, 0, "test")
    batch = {
        "prompts": torch.tensor([prompt]),
        "responses": torch.tensor([response + [words.pad_id] * (width - len(response))]),
        "attention_mask": torch.tensor([[1] * (len(prompt) + len(response)) + [0] * (width - len(response))]),
    }
    rest = {name: [row[name]] for name in ("data_source", "reward_model", "extra_info")}
    data = DataProto.from_dict(batch, non_tensors=rest)
    return manager.loop.run_until_complete(manager.run_single(data))


def test_the_manager_says_whether_a_response_ended(manager):
    right = f"1+1={WORD.answer}"
    assert sample(manager, right, ends=True)["reward_score"] == 1.0
    cut = sample(manager, right, ends=False)
    assert cut["reward_score"] == 0.0
    assert cut["reward_extra_info"]["truncated"] == 1.0
    assert sample(manager, right + "9", ends=True)["reward_extra_info"]["reason"] == "wrong"


def test_a_sampled_pad_stays_visible():
    words = codec()
    one, two = words.encode("1"), words.encode("2")
    ids = [*one, words.pad_id, *two, words.eos_id]
    text, finished = response_text(words.tokenizer, ids, frozenset({words.eos_id}), "embedded")
    assert finished and "12" not in text.replace(" ", "")
    assert response_text(words.tokenizer, [], frozenset({words.eos_id}), "embedded") == ("", False)
