"""What a stage rests on: found in a small repository, exactly, and told apart from what decides nothing."""

from __future__ import annotations

import json

import pytest
from notebook_factory import PROJECT

from pipelines.imports import Sources
from pipelines.inputs import changes, differences, inputs, instances, main
from rlvr.config import load_yaml
from rlvr.storage import read_json

GRAPH = """\
stages:
  inputs: {cmd: python -m pipelines.inputs params.yaml}
  train:
    matrix: {arm: "${arms}"}
    cmd: python -m pipelines.stage notebooks/train.ipynb --out runs/${scale}/train/${item.arm}
    meta: {params: [scale, "recipes.${item.arm}"], skip: [rlvr.jobs], verl: [rlvr.jobs]}
  report:
    cmd: python -m pipelines.stage notebooks/report.ipynb --out reports/${scale}
    meta: {params: [margin.low]}
"""
SCALE = """\
scale: tiny
engine: local
arms: [a, b]
recipes: {a: {lr: 1}, b: {lr: 2}}
margin: {low: 0.1, high: 0.2}
"""
MODULES = {
    "__init__.py": '"""Nothing."""\n',
    "ratios.py": "def ratio(x):\n    return x\n",
    "engine.py": "from rlvr.ratios import ratio\ndef far():\n    import rlvr.jobs.send\n",
    "jobs/__init__.py": "",
    "jobs/send.py": "import rlvr.jobs.ray\n",
    "jobs/ray.py": "ADDRESS = 1\n",
    "jobs/unused.py": "X = 1\n",
    "show/__init__.py": "from rlvr.show import draw\n",
    "show/draw.py": "import rlvr.storage\n",
    "show/page.j2": "page",
    "storage.py": "X = 1\n",
}


def cells(*sources: str, output: str = "") -> str:
    return json.dumps(
        {
            "cells": [
                {"cell_type": "code", "source": source.splitlines(True), "outputs": [output]}
                for source in sources
            ]
        }
    )


@pytest.fixture
def repository(tmp_path, monkeypatch):
    for name, text in MODULES.items():
        path = tmp_path / "lib/rlvr" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks/train.ipynb").write_text(cells("import numpy", "from rlvr.engine import far"))
    (tmp_path / "notebooks/report.ipynb").write_text(cells("def f():\n    from rlvr import show"))
    (tmp_path / "dvc.yaml").write_text(GRAPH)
    (tmp_path / "params.yaml").write_text(SCALE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_each_stage_and_arm_has_the_modules_it_imports_and_its_own_parameters(repository):
    found = inputs(repository, "params.yaml")
    assert list(found) == ["train-a", "train-b", "report"]
    assert list(found["train-a"]["code"]) == ["lib/rlvr/engine.py", "lib/rlvr/ratios.py"]
    assert found["train-a"]["parameters"] == {"scale": "tiny", "recipes.a": {"lr": 1}}
    report = ["lib/rlvr/show/__init__.py", "lib/rlvr/show/draw.py", "lib/rlvr/show/page.j2"]
    assert list(found["report"]["code"]) == report  # not storage, through which no result passes
    assert found["report"]["parameters"] == {"margin.low": 0.1}


def test_another_papers_graph_lies_beside_its_file_and_its_results_beside_the_scales(repository):
    paper = repository / "pipelines/scales/tiny/ibpo"
    paper.mkdir(parents=True)
    (paper / "params.yaml").write_text(SCALE + "paper: ibpo\n")
    (paper / "dvc.yaml").write_text(GRAPH.replace("report:", "table:"))
    assert main(["pipelines/scales/tiny/ibpo/params.yaml"]) == 0
    written = {path.name for path in (repository / "runs/tiny/ibpo/inputs").iterdir()}
    assert written == {"train-a.json", "train-b.json", "table.json"}
    assert not (repository / "runs/tiny/inputs").exists()


def test_a_stage_of_several_arms_names_the_recipes_of_each(repository):
    edit(repository / "dvc.yaml", "meta: {params: [margin.low]}", 'meta: {params: ["recipes.{arms}"]}')
    found = inputs(repository, "params.yaml")["report"]["parameters"]
    assert found == {"recipes.a": {"lr": 1}, "recipes.b": {"lr": 2}}
    edit(repository / "params.yaml", "arms: [a, b]", "arms: [a, c]")
    with pytest.raises(ValueError, match=r"recipes\.c is missing, a parameter of stage report"):
        edit(repository / "dvc.yaml", ', "recipes.${item.arm}"', "")
        inputs(repository, "params.yaml")


def test_with_engine_verl_its_packages_count_whole(repository):
    edit(repository / "params.yaml", "engine: local", "engine: verl")
    names = {path.split("/", 2)[2] for path in inputs(repository, "params.yaml")["train-a"]["code"]}
    assert names == {
        "engine.py",
        "ratios.py",
        *(f"jobs/{n}.py" for n in ("__init__", "send", "ray", "unused")),
    }


@pytest.mark.parametrize(
    ("file", "old", "new", "touched"),
    [
        ("lib/rlvr/ratios.py", "return x", "return -x", {"train-a", "train-b"}),
        ("lib/rlvr/ratios.py", "return x", "return x  # why\n\n", set()),
        ("lib/rlvr/jobs/send.py", "ray", "unused", set()),
        ("lib/rlvr/show/page.j2", "page", "pages", {"report"}),
        ("notebooks/train.ipynb", "numpy", "scipy", {"train-a", "train-b"}),
        ("notebooks/train.ipynb", '"outputs": [""]', '"outputs": ["another run"]', set()),
        ("params.yaml", "b: {lr: 2}", "b: {lr: 3}", {"train-b"}),
        ("params.yaml", "high: 0.2", "high: 0.3", set()),
        ("params.yaml", "low: 0.1", "low: 0.10", set()),
    ],
)
def test_what_changes_and_what_does_not(repository, file, old, new, touched):
    before = inputs(repository, "params.yaml")
    edit(repository / file, old, new)
    after = inputs(repository, "params.yaml")
    assert {name for name in after if after[name] != before[name]} == touched
    assert {name for name in after if differences(before[name], after[name])} == touched


def test_files_are_written_whole_and_changes_are_told(repository, capsys):
    assert main(["params.yaml"]) == 0 and capsys.readouterr().out == ""
    folder = repository / "runs/tiny/inputs"
    assert sorted(p.name for p in folder.iterdir()) == ["report.json", "train-a.json", "train-b.json"]
    assert read_json(folder / "report.json") == inputs(repository, "params.yaml")["report"]
    first = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert main(["params.yaml"]) == 0 and capsys.readouterr().out == ""
    assert first == {p.name: p.read_bytes() for p in folder.iterdir()}
    edit(repository / "lib/rlvr/ratios.py", "return x", "return 2 * x")
    edit(repository / "params.yaml", "low: 0.1", "low: 0.3")
    assert main(["params.yaml"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "train-a, train-b: lib/rlvr/ratios.py",
        "report: margin.low",
    ]


def test_long_lists_of_changes_are_cut():
    before = {f"s{i}": {} for i in range(6)}
    after = {
        name: {"notebook": {}, "code": dict.fromkeys("abcdefg", "1"), "parameters": {}} for name in before
    }
    assert changes(before, after) == ["s0, s1, s2, s3 and 2 more: a, b, c, d and 3 more"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("b: {lr: 2}", "c: {lr: 2}", "params.yaml: recipes.b is missing, a parameter of stage train-b"),
        (
            "margin: {low: 0.1, high: 0.2}",
            "",
            "params.yaml: margin.low is missing, a parameter of stage report",
        ),
    ],
)
def test_a_missing_parameter_is_named_and_nothing_is_written(repository, capsys, old, new, message):
    edit(repository / "params.yaml", old, new)
    assert main(["params.yaml"]) == 2
    assert message in capsys.readouterr().err
    assert not (repository / "runs").exists()


def test_a_stage_without_parameters_and_a_relative_import_are_refused(repository):
    edit(repository / "dvc.yaml", "    meta: {params: [margin.low]}\n", "")
    with pytest.raises(ValueError, match=r"stage report: meta\.params is missing"):
        inputs(repository, "params.yaml")
    edit(repository / "lib/rlvr/engine.py", "from rlvr.ratios", "from .ratios")
    with pytest.raises(ValueError, match="relative imports are not followed"):
        inputs(repository, "params.yaml")


def test_imports_of_this_repository_are_found():
    sources = Sources(PROJECT)
    train = sources.modules("notebooks/03_train.ipynb")
    wanted = {"rlvr.engines.local.training", "rlvr.objectives", "rlvr.registry", "rlvr.verifiers.integer"}
    assert wanted <= train
    assert not train & {"rlvr", "rlvr.config", "rlvr.notebook", "rlvr.storage", "rlvr.analysis.surrogate"}
    report = inputs(PROJECT, load_yaml(PROJECT / "params.yaml")["scale_file"])["report"]["code"]
    assert {"lib/rlvr/reporting/style.py", "lib/rlvr/reporting/report.html.j2"} <= set(report)


def test_the_lock_file_holds_no_stage_that_is_gone():
    """DVC never removes one, and reads and writes the whole file with every stage."""
    scale, graph = load_yaml(PROJECT / "params.yaml"), load_yaml(PROJECT / "dvc.yaml")["stages"]
    arms = {name: instances(name, stage, scale) for name, stage in graph.items()}
    known = {f"{name}@{arm}" if arm else name for name, found in arms.items() for _, arm in found}
    assert not set(load_yaml(PROJECT / "dvc.lock")["stages"]) - known
