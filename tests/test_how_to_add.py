"""The examples of docs/how-to-add.md run as they stand, reach training, and are as short as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from local_fixtures import PROBLEMS, SIZES, codec, random_policy, train_config
from ruamel.yaml import YAML

from pipelines import docs
from rlvr import problems as tasks
from rlvr import registry
from rlvr.config import Problems, Scale
from rlvr.engines.local.job import Job
from rlvr.engines.local.policy import new_policy
from rlvr.engines.local.training import _Run
from rlvr.evaluation.files import Source
from rlvr.problems.tokenizer import Codec, build_tokenizer
from rlvr.recipes import check_recipes

PROJECT = Path(__file__).resolve().parents[1]
PAGE = (PROJECT / "docs/how-to-add.md").read_text(encoding="utf-8")
SECTIONS = {
    title: body for title, body in zip(*[iter(re.split(r"(?m)^## An? (\w+)\n", PAGE)[1:])] * 2, strict=True)
}


def blocks(title: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", SECTIONS[title], re.DOTALL)


def run(title: str, **space) -> dict:
    """The names that the section's Python blocks leave, one run after the other."""
    for number, block in enumerate(blocks(title)):
        exec(compile(block, f"docs/how-to-add.md, {title}, block {number + 1}", "exec"), space)
    return space


@pytest.fixture
def power(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    return run("objective")["power"]


@pytest.fixture
def task(monkeypatch):
    task = run("task")["TASK"]
    monkeypatch.setitem(tasks.TASKS, task.name, task)
    return task


def test_sections_are_short():
    assert list(SECTIONS) == ["objective", "task", "benchmark"]
    for title, body in SECTIONS.items():
        assert len(blocks(title)) >= 1
        lines = [line for line in body.splitlines() if line.strip()]
        assert len(lines) < 50, f"{title}: {len(lines)} lines"


def test_the_objective_has_a_page(power):
    documented = docs.documented(power)
    assert documented.args == {"exponent": "p, 0 is no correction and 1 all of it [choice]"}
    with pytest.raises(ValueError, match=re.escape("exponent=1.5: allowed are 0 <= exponent <= 1")):
        one = torch.ones(1, 1)
        power(-one, -one, one[0], one, exponent=1.5)


def test_the_objective_trains_by_the_line_of_the_page(power):
    recipe = re.search(r"`power: (\{.*?\})` in the `recipes`", SECTIONS["objective"])[1]
    text = (PROJECT / "params.yaml").read_text(encoding="utf-8")
    text = text.replace("recipes:\n", f"recipes:\n  power: {recipe}\n")
    text = text.replace("arms: [", "arms: [power, ", 1)
    scale = Scale.model_validate(load_yaml_text(text))
    check_recipes(scale)
    parameters = scale.recipes["power"].parameters
    assert "power" in scale.arms and parameters == {"exponent": 0.5}
    losses = {}
    for exponent in (0.5, 1.0):
        job = Job("power", "power", {"exponent": exponent}, 0, 0, train_config(lr=3e-2), PROBLEMS)
        trained = _Run(job, random_policy(), codec(), "x")
        start = trained.policy.theta.clone()
        trained.step()
        losses[exponent] = trained.updater.theta.detach() - start
        assert trained.metrics[0]["grad_norm"] > 0
    assert not torch.equal(*losses.values())  # the second update is off-policy


def load_yaml_text(text: str):
    return YAML(typ="safe", pure=True).load(text)


def test_the_task_is_sampled_and_graded_by_the_engine(task):
    words = Codec(build_tokenizer(task.words))
    policy = new_policy(SIZES, len(words), words.eos_id, words.pad_id, 0)
    asked = Problems(task="sum", seed=0, operations=(1, 3), validation=8, held_out=8)
    trained = _Run(Job("grpo", "grpo", {}, 0, 0, train_config(), asked), policy, words, "x")
    trained.step()
    assert trained.counts["responses_verified"] == 16 and 0 <= trained.metrics[0]["reward"] <= 1


def test_the_task_keeps_what_a_task_promises(task):
    first = task.generate("train", 20, (1, 2), (2, 3))
    assert first == task.generate("train", 30, (1, 2), (2, 3))[:20]
    assert {p.difficulty for p in first} == {2, 3} and {p.kind for p in first} == {"sum"}
    words = Codec(build_tokenizer(task.words))
    for problem in task.generate("validation", 40, 0, (1, 3)):
        assert task.content_of(words.decode(words.encode(problem.prompt))) == problem.content
        assert eval(problem.content) == int(problem.answer)
        assert all(eval(a) == int(b) for a, b in (s.split("=") for s in problem.solution.split(",")))
    assert len({p.id for p in first}) == len({p.prompt for p in first})


def test_the_benchmark(tmp_path, monkeypatch):
    (entry,) = blocks("benchmark", "yaml")
    catalogue = (PROJECT / "data/benchmarks.yaml").read_text(encoding="utf-8")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/benchmarks.yaml").write_text(f"{catalogue}\n{entry}", encoding="utf-8")
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("math_verify", reason="math-verify is not installed: pip install 'rlvr[evaluation]'")
    space = run("benchmark", folder=tmp_path / "mine")
    assert len(space["problems"]) == space["get_benchmark"]("my_set").count == 2
    named = re.search(r"`problems: (\[.*?\])`", SECTIONS["benchmark"])[1]
    (source,) = [Source.model_validate(item) for item in load_yaml_text(named)]
    assert source.benchmark == "my_set"
