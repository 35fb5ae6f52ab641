"""What a scale cost, and what it was made with."""

from __future__ import annotations

import platform

import pytest
from notebook_factory import PROJECT

from rlvr.config import load_scale
from rlvr.reporting import environment
from rlvr.reporting.cost import cost_table
from rlvr.reporting.environment import PACKAGES, commit, describe_environment
from rlvr.storage import write_json


def timing(folder, out, seconds):
    name = "__".join(out.split("/")[2:]) or "reports"
    write_json(folder / f"{name}.json", {"out": out, "seconds": seconds, "notebook": "x.ipynb"})


def test_seconds_by_kind_of_stage(tmp_path):
    for arm, seed, seconds in (("grpo", 0, 10.4), ("grpo", 1, 20.4), ("nfpo", 0, 30.4)):
        timing(tmp_path, f"runs/laptop/train/{arm}/seed{seed}", seconds)
    timing(tmp_path, "runs/laptop/base", 25.0)
    timing(tmp_path, "runs/laptop/evaluate/base", 1.5)
    timing(tmp_path, "runs/laptop/nfpo/theory", 2.6)
    timing(tmp_path, "runs/laptop/nfpo/dynamics", 5.6)
    timing(tmp_path, "reports/laptop", 3.1)
    # seconds of single runs inside a stage are no stages
    write_json(tmp_path / "runs/train__nfpo.json", {"run": "train__nfpo", "seconds": 1000.0})
    table = cost_table(tmp_path)
    assert list(table.columns) == ["stage", "runs", "seconds", "longest, seconds"]
    assert table.to_numpy().tolist() == [
        ["train", 3, 61, 30],
        ["base", 1, 25, 25],
        ["nfpo/dynamics", 1, 6, 6],
        ["reports", 1, 3, 3],
        ["nfpo/theory", 1, 3, 3],
        ["evaluate", 1, 2, 2],
        ["all stages", 8, 99, 30],
    ]


def test_nothing_measured_is_no_table_of_zeros(tmp_path):
    assert cost_table(tmp_path) is None
    assert cost_table(tmp_path / "nowhere") is None


def test_one_stage(tmp_path):
    timing(tmp_path, "runs/smoke/problems", 4.4)
    assert cost_table(str(tmp_path)).to_numpy().tolist() == [["problems", 1, 4, 4], ["all stages", 1, 4, 4]]


@pytest.fixture
def fake_git(tmp_path, monkeypatch):
    """A ``git`` that answers ``rev-parse`` and ``status`` as told, alone on the PATH."""

    def _fake_git(head: str | None, changes: str = ""):
        script = tmp_path / "bin" / "git"
        script.parent.mkdir()
        answer = f"echo {head}" if head else "echo 'fatal: not a git repository' >&2; exit 128"
        script.write_text(
            f"#!/bin/sh\ncase $1 in\nrev-parse) {answer};;\nstatus) printf '{changes}';;\n*) exit 2;;\nesac\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(script.parent))

    return _fake_git


def test_without_git_nothing_is_under_version_control(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit() == "not under version control"


def test_outside_a_repository_nothing_is_under_version_control(fake_git):
    fake_git(None)
    assert commit() == "not under version control"


def test_the_commit_says_whether_the_tree_differs(fake_git):
    fake_git("0123456789ab", " M lib/rlvr/ratios.py\\n")
    assert commit() == "0123456789ab + changes"


def test_the_commit_of_a_clean_tree(fake_git):
    fake_git("0123456789ab")
    assert commit() == "0123456789ab"


def test_the_environment_of_a_scale(monkeypatch):
    monkeypatch.setattr(environment, "commit", lambda: "0123456789ab")
    scale = load_scale(PROJECT / "params.yaml").model_copy(update={"workers": 3})
    found = describe_environment(scale)
    assert found["commit"] == "0123456789ab" and found["python"] == platform.python_version()
    assert found["engine"] == "local, 3 processes of one thread side by side"
    assert set(found) - {"commit", "engine", "machine", "processor", "python", "determinism"} <= set(PACKAGES)
    assert {"torch", "transformers", "numpy"} <= set(found)
    assert all(isinstance(text, str) and text for text in found.values())


def test_the_processor_is_named_as_the_system_names_it(tmp_path):
    path = tmp_path / "cpuinfo"
    one = "processor\t: {}\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\nflags\t\t: fpu vme\n\n"
    path.write_text(one.format(0) + one.format(1))
    assert environment.processor(path) == "AMD EPYC, family 26, model 2"
    path.write_text("Processor : ARM\n")
    assert environment.processor(path) and environment.processor(tmp_path / "none")


def test_a_package_that_is_not_installed_is_left_out(monkeypatch):
    monkeypatch.setattr(environment, "PACKAGES", ("numpy", "no-such-package"))
    monkeypatch.setattr(environment, "commit", lambda: "x")
    found = describe_environment(load_scale(PROJECT / "params.yaml"))
    assert "numpy" in found and "no-such-package" not in found and "torch" not in found
