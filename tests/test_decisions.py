"""What a docstring marks as a [choice] is in the list of decisions, and what an entry names exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pytest

from rlvr import objectives
from rlvr.config import load_scale, load_yaml

PROJECT = Path(__file__).resolve().parents[1]
DECISIONS = load_yaml(PROJECT / "data/decisions.yaml")
FILES = [
    *(PROJECT / "lib/rlvr/objectives").glob("*.py"),
    *(
        PROJECT / f"lib/rlvr/{name}.py"
        for name in ("ratios", "trust_regions", "advantages", "losses", "rewards")
    ),
    PROJECT / "lib/rlvr/engines/trl.py",
    *(PROJECT / "lib/rlvr/counterfactual").glob("*.py"),
    *(PROJECT / f"lib/rlvr/evaluation/{name}.py" for name in ("compute", "budget")),
    PROJECT / "lib/rlvr/analysis/backward_transfer.py",
]
MARK = re.compile(r"\[choice\b[^\]]*\]")
SECTIONS = {"Args", "Deviations", "Sources", "Metrics", "Detached", "Formula", "Returns", "Raises", "Source"}


def marks(path: Path) -> Iterator[tuple[str, str | None]]:
    """(function, class or constant; parameter or None) of every [choice] in a file.

    A mark belongs to the entry of its section "Args" that it stands in, if to any; to the line of code that
    it comments on; else to its function as a whole.
    """
    source = path.read_text(encoding="utf-8")
    spans = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            spans.append((node.lineno, node.end_lineno, node))
    for found in MARK.finditer(source):
        line = source.count("\n", 0, found.start()) + 1
        around = [span for span in spans if span[0] <= line <= span[1]]
        if not around:
            yield re.match(r"(\w+) = .*# ", source.splitlines()[line - 1])[1], None
            continue
        node = max(around, key=lambda span: span[0])[2]  # the innermost
        before = source[: found.start()].splitlines()[node.body[0].lineno - 1 :]  # of its docstring
        yield node.name, entry_of("\n".join(before))


def entry_of(text: str) -> str | None:
    """The entry of "Args" that a docstring is in where ``text`` ends; None outside that section."""
    name = None
    for line in text.splitlines():
        if match := re.match(r" *(\w+)(?:, \w+)*:(?: |$)", line):
            inside = name is not None and match[1] not in SECTIONS
            name = match[1] if inside else ("" if match[1] == "Args" else None)
        elif not line:  # the last one may be cut to its indent
            name = None
    return name or None


FOUND = [(path, name, parameter) for path in FILES for name, parameter in marks(path)]


def decided(name: str, parameter: str | None) -> bool:
    for entry in DECISIONS:
        for called, arguments in re.findall(r"(\w+)(?:\(([^)]*)\))?", entry["where"]):
            if called == name and (parameter is None or not arguments or f"{parameter}=" in arguments):
                return True
    return False


def test_marks_are_found():
    found = {(name, parameter) for _, name, parameter in FOUND}
    assert {
        ("nfpo", "window"), ("icepop", "band"), ("fipo", None), ("gmpo", "ratio_bound"),
        ("mpo_grpo", "clip_low"), ("EXP_LIMIT", None), ("correction_reward", None), ("uncorrected", None),
        ("recoverability", "reduce"), ("recoverability", None), ("discounted_future", None),
        ("forward_trace", "window"), ("ObjectiveTrainer", "objective_parameters"),
    } <= found  # fmt: skip
    written = sum(len(MARK.findall(path.read_text(encoding="utf-8"))) for path in FILES)
    assert len(FOUND) == written > 20


@pytest.mark.parametrize(("path", "name", "parameter"), FOUND, ids=[f"{n}-{p}" for _, n, p in FOUND])
def test_every_choice_is_listed(path, name, parameter):
    where = f"{name}({parameter}=...)" if parameter else name
    assert decided(name, parameter), f"{path.name}: no entry of data/decisions.yaml names {where}"


def test_entries_are_complete():
    topics = [entry["topic"] for entry in DECISIONS]
    assert len(set(topics)) == len(topics)
    for entry in DECISIONS:
        assert list(entry) == ["topic", "paper", "here", "alternatives", "where"], entry["topic"]
        assert all(isinstance(value, str) and value.strip() for value in entry.values()), entry["topic"]


def resolves(place: str) -> bool:
    """Whether ``place`` is a parameter, a name of the library or a key of the scale file."""
    path, _, arguments = place.partition("(")
    parts = path.split(".")
    if parts[0] == "rlvr":
        for cut in range(len(parts), 0, -1):
            try:
                target = reduce(getattr, parts[cut:], importlib.import_module(".".join(parts[:cut])))
                break
            except (ImportError, AttributeError):
                continue
        else:
            return False
    elif path in objectives.list_objectives():
        target = objectives.get(path)
    elif path == "TokenMDP":
        target = importlib.import_module("rlvr.analysis.token_mdp").TokenMDP
    else:
        scale = load_scale(PROJECT / "params.yaml")
        try:
            reduce(getattr, parts, scale)
        except AttributeError:
            return False
        return True
    return all(name in inspect.signature(target).parameters for name in re.findall(r"(\w+)=", arguments))


def places(where: str) -> list[str]:
    return [place.strip() for place in re.split(r",(?![^(]*\))", where)]


@pytest.mark.parametrize("entry", DECISIONS, ids=lambda entry: entry["topic"])
def test_what_an_entry_names_exists(entry):
    if entry["where"].startswith("rlvr.engines.trl"):
        pytest.importorskip("trl", reason="TRL is not installed")
    for place in places(entry["where"]):
        if place.startswith("rlvr.engines.trl"):
            assert "class ObjectiveTrainer" in (PROJECT / "lib/rlvr/engines/trl.py").read_text()
        else:
            assert resolves(place), place


def test_what_does_not_exist_is_noticed():
    for place in (
        "nfpo(windw=...)",
        "rlvr.ratios.forward_trace(windw=...)",
        "rlvr.ratios.nothing",
        "train.nothing",
    ):
        assert not resolves(place), place
