"""`rlvr job modules`: what the modules of an experiment are warmed up on, and where they lie."""

import json

import pytest
import torch
from local_fixtures import codec, random_policy

from rlvr.engines.jobs import modules
from rlvr.engines.jobs.command import modules_folder, overrides
from rlvr.engines.jobs.experiments import load_experiments
from rlvr.engines.jobs.sections import ModuleWarmUp
from rlvr.mtp import load_modules
from rlvr.problems.benchmarks import BenchmarkProblem
from rlvr.problems.benchmarks.catalogue import project_root

FILE = load_experiments(project_root() / "pipelines/scales/one_gpu/experiments.yaml")
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def problem(number, text, solution):
    metadata = {"solution": solution} if solution else {}
    return BenchmarkProblem(f"p{number}", "gsm8k_train", text, answer="3", metadata=metadata)


PROBLEMS = [
    problem(0, "3+4-2+5=", "7,5,10"),
    problem(1, "3+4=", "7"),
    problem(2, "3+5=", None),
    problem(3, "1+1=", "2," * 40),  # too long
]


@pytest.fixture
def experiment(monkeypatch):
    monkeypatch.setattr(modules, "load_training_set", lambda *_, **__: PROBLEMS)
    monkeypatch.setattr(modules, "prompt_for", lambda problem, style: problem.prompt)
    found = FILE.get("mpo-0.6b-mpo")
    warmup = ModuleWarmUp(train=("gsm8k_train",), steps=30, batch_size=4, lr=3e-3, seed=0)
    data = found.data.model_copy(update={"max_prompt_length": 20, "max_response_length": 20})
    return found.model_copy(
        update={"mtp": found.mtp.model_copy(update={"warmup": warmup, "blocks": 3}), "data": data}
    )


@pytest.fixture
def model(tmp_path):
    words = codec()
    words.tokenizer.chat_template = TEMPLATE
    random_policy().save_pretrained(tmp_path / "model")
    words.tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def test_the_modules_are_there_where_the_job_looks(experiment, model, tmp_path):
    said = []
    folder = modules.prepare_modules(experiment, tmp_path, model, say=said.append)
    assert str(folder) == str(modules_folder(experiment, str(tmp_path)))
    (word,) = [w for w in overrides(experiment, 0, str(tmp_path)) if "policy_loss.mtp=" in w]
    assert f"start:{folder}" in word
    from transformers import AutoModelForCausalLM

    found = load_modules(AutoModelForCausalLM.from_pretrained(model), folder)
    assert (found.blocks, found.variant) == (3, "parallel")
    history = json.loads((folder / "warmup.json").read_text())["history"]
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert "of 2 solutions" in said[0]
    before = (folder / "mtp.safetensors").stat().st_mtime_ns
    assert modules.prepare_modules(experiment, tmp_path, "/nowhere", say=said.append) == folder
    assert (folder / "mtp.safetensors").stat().st_mtime_ns == before and "there already" in said[-1]


def test_arms_share_what_is_alike(experiment):
    own = experiment.mtp
    change = lambda **values: experiment.model_copy(update={"mtp": own.model_copy(update=values)})  # noqa: E731
    assert modules_folder(change(lr=1e-3)) == modules_folder(experiment)
    others = [change(blocks=2), change(variant="chained"), change(hidden="trunk")]
    others.append(change(warmup=own.warmup.model_copy(update={"steps": 31})))
    assert len({modules_folder(one) for one in [experiment, *others]}) == 5
    for changed in ({"max_prompt_length": 99}, {"max_response_length": 99}, {"prompt_style": "boxed"}):
        data = experiment.data.model_copy(update=changed)  # other solutions fit, or are shown otherwise
        others.append(experiment.model_copy(update={"data": data}))
    assert len({modules_folder(one) for one in [experiment, *others]}) == 8


def test_nothing_to_do(experiment, tmp_path):
    for name in ("mpo-0.6b-ppo", "mpo-0.6b-grpo"):
        assert modules.prepare_modules(FILE.get(name), tmp_path) is None
    given = experiment.model_copy(update={"mtp": experiment.mtp.model_copy(update={"start": "/x"})})
    assert modules.prepare_modules(given, tmp_path) is None


def test_sets_without_a_solution_that_fits_are_refused(experiment, model, tmp_path, monkeypatch):
    short = experiment.data.model_copy(update={"max_response_length": 1})
    with pytest.raises(ValueError, match="max_response_length=1: no solution of the warm-up is short"):
        modules.prepare_modules(experiment.model_copy(update={"data": short}), tmp_path, model)
    monkeypatch.setattr(modules, "load_training_set", lambda *_, **__: PROBLEMS[2:3])
    with pytest.raises(ValueError, match=r"warmup.train=\['gsm8k_train'\]: allowed are sets with solutions"):
        modules.prepare_modules(experiment, tmp_path, model)


def test_every_solution_comes_once_a_pass():
    pairs = [([1, 2], [n]) for n in range(3, 9)]
    config = ModuleWarmUp(train=("gsm8k_train",), steps=4, batch_size=3, lr=1.0, seed=0)
    steps = list(modules.batches(pairs, config, 0))
    targets = [int(ids[-1]) for batch in steps for ids in batch[0]]
    assert sorted(targets[:6]) == sorted(targets[6:]) == list(range(3, 9)) and targets[:6] != targets[6:]


def test_prompts_lie_left_of_a_border_and_responses_right():
    ids, mask, response = modules.padded([([5], [6, 7]), ([1, 2, 3], [4])], pad=9)
    assert ids.tolist() == [[9, 9, 5, 6, 7], [1, 2, 3, 4, 9]]
    assert mask.tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert torch.equal(response, torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
