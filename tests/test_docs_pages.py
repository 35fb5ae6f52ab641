"""The committed pages are current, their commands run what they say, and what documents name exists."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipelines import docs, docs_commands, docs_example
from rlvr import objectives

PROJECT = Path(__file__).resolve().parents[1]
NAMES = objectives.list_objectives()


def test_committed_pages_are_current():
    assert docs.differences(PROJECT) == []


def test_pages_do_not_depend_on_the_process(tmp_path):
    """Another process, with another hash seed and another working directory, renders the same bytes."""
    code = (
        "import sys; from pathlib import Path; from pipelines import docs; "
        f"sys.stdout.buffer.write(''.join(docs.documents(Path({str(PROJECT)!r})).values()).encode())"
    )
    path = f"{PROJECT}{os.pathsep}{PROJECT / 'lib'}"
    env = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": path, "TZ": "Asia/Tokyo"}
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, check=True
    )
    assert shown.stdout.decode() == "".join(docs.documents(PROJECT).values())


@pytest.mark.parametrize("name", NAMES)
def test_the_call_on_the_page_is_the_call_without_parameters(name):
    page = (PROJECT / docs.FOLDER / f"{name}.md").read_text()
    source = re.search(r"```python\n(from rlvr import objectives\n.*?)```", page, re.DOTALL)[1]
    objective = objectives.get(name)
    values = docs_example.extra(objective)
    given = {key: torch.tensor([values[key]]).double() for key in objective.needs}
    shared = {
        "log_prob": torch.tensor([docs_example.LOG_PROB]).double(),
        "old_log_prob": torch.tensor([docs_example.OLD_LOG_PROB]).double(),
        "advantages": torch.tensor([1.0]).double(),
        "response_mask": torch.ones(1, 5),
    }
    space = given | shared
    exec(source, space)
    loss, metrics = objective(**shared, **given)
    assert torch.equal(space["loss"], loss) and space["metrics"] == metrics
    assert f"objectives.{name}(" in source
    spelled = re.findall(r"(?m)^    (\w+)[,=]", source)
    assert spelled == list(inspect.signature(objective).parameters)


def test_stages_on_the_pages_exist():
    pytest.importorskip("dvc", reason="needs dvc to list the stages")
    listed = subprocess.run(
        [sys.executable, "-m", "dvc", "stage", "list", "--name-only"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for name in NAMES:
        page = (PROJECT / docs.FOLDER / f"{name}.md").read_text()
        named = re.findall(r"(?m)^dvc repro (\S+)$", page)
        if "not an arm" not in page:
            assert set(named) <= set(listed), name
    assert "train@nfpo" in listed


def overrides_on_the_page(name):
    """The words of the block for verl; [] where verl cannot run the objective."""
    page = (PROJECT / docs.FOLDER / f"{name}.md").read_text()
    block = re.search(r"```sh\n(algorithm\.adv_estimator.*?)```", page, re.DOTALL)
    return shlex.split(block[1]) if block else []


@pytest.mark.verl
def test_verl_takes_the_overrides_on_the_pages():
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed")
    from rlvr.engines.verl import PolicyLoss, check, surroundings
    from rlvr.engines.verl.losses import global_counts, refusal, warnings_about

    losses = core_algos.POLICY_LOSS_REGISTRY
    own = {name for name, loss in losses.items() if not isinstance(loss, PolicyLoss)}
    assert own == docs_commands.VERL_LOSSES
    for name in NAMES:
        objective, overrides = objectives.get(name), overrides_on_the_page(name)
        modules = any("policy_loss.mtp=" in word for word in overrides)  # they say what the objective needs
        more = dict.fromkeys(objective.needs) if modules else {}
        assert bool(overrides) == (refusal(objective, more) is None), name
        if not overrides:
            continue
        config = check.composed([*overrides, "data.max_response_length=77"], "ppo_trainer")
        surroundings.check_trainer(config)
        actor = check.build_actor(config)
        assert losses[actor.policy_loss.loss_mode].objective is objective
        assert actor.loss_agg_mode == objective.loss_agg_mode
        if objective.loss_agg_mode == "seq-mean-token-sum-norm":
            assert global_counts(actor)["loss_scale_factor"] == 77
        # nothing about it surprises: the advantages are the method's, and every setting is read
        said = surroundings.around(config, objective) + warnings_about(actor, actor.loss_agg_mode)
        assert not [line for line in said if line.startswith(("note", "warning")) or "not read" in line], name
        if objective.parameters:
            shown = actor.policy_loss.parameters
            assert shown and shown.items() <= objective.parameters.items(), name


@pytest.mark.parametrize("name", NAMES)
def test_verl_and_trl_commands_name_the_methods_advantages(name):
    """From the papers: PPO has a critic, Dr. GRPO and the exact gradient do not divide by the std."""
    page = (PROJECT / docs.FOLDER / f"{name}.md").read_text()
    overrides = overrides_on_the_page(name)
    if not overrides:
        assert "ObjectiveTrainer" not in page
        return
    settings = dict(word.lstrip("+").split("=", 1) for word in overrides)
    assert settings["algorithm.adv_estimator"] == ("gae" if name in {"ppo", "mpo"} else "grpo")
    divided = settings.get("algorithm.norm_adv_by_std_in_grpo", "True")
    assert divided == ("False" if name in {"dr_grpo", "exact_pg", "nfpo"} else "True")
    assert ('scale_rewards="none"' in page) == (name in {"dr_grpo", "exact_pg"})
    assert ("ObjectiveTrainer" in page) == (name != "ppo" and not objectives.get(name).needs)
    norm = settings["actor_rollout_ref.actor.loss_agg_mode"] == "seq-mean-token-sum-norm"
    assert norm == ("actor_rollout_ref.actor.loss_scale_factor" in settings)
    assert norm == ("depends on how the batch is cut" in page)


# --- what documents and docstrings name ----------------------------------------------------------------

#: A path as documents write it, from the root of the repository.
NAMED = re.compile(
    r"(?<![\w./-])((?:tests|lib|notebooks|pipelines|bench|data|docs|reports)/[\w./-]+\.(?:py|ipynb|md|yaml|jsonl?))\b"
)


def texts():
    """(where, text): every document, and every docstring of the code."""
    for path in [*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md"), *PROJECT.glob("bench/*.md")]:
        yield path, path.read_text(encoding="utf-8")
    for folder in ("lib", "pipelines", "bench", "tests"):
        for path in PROJECT.glob(f"{folder}/**/*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    yield path, ast.get_docstring(node) or ""


def test_files_that_are_named_exist():
    named = [(path, found) for path, text in texts() for found in NAMED.findall(text)]
    assert len(named) > 10
    missing = {
        f"{path.relative_to(PROJECT)}: {found}" for path, found in named if not (PROJECT / found).exists()
    }
    assert not missing


def test_tests_that_are_named_exist():
    """By file name alone, as docstrings of helpers name their test."""
    known = {path.name for path in PROJECT.glob("tests/**/*.py")}
    named = [(path, found) for path, text in texts() for found in re.findall(r"\btest_\w+\.py\b", text)]
    assert named and not {
        f"{path.relative_to(PROJECT)}: {found}" for path, found in named if found not in known
    }


def test_the_list_of_documents_is_complete():
    text = (PROJECT / "docs/README.md").read_text()
    linked = set(re.findall(r"\]\(([^)#]+)\)", text))
    for path in (PROJECT / "docs").glob("*.md"):
        assert path.name == "README.md" or path.name in linked, path.name
    for target in linked:
        assert (PROJECT / "docs" / target).exists(), target
    for page in (PROJECT / docs.FOLDER).glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"
