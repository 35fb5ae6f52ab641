"""The page of what goes wrong in this field, made of ``data/faults.yaml`` and of the tests that hold it off.

A test says so itself, by a decorator: ``@pytest.mark.fault("kind", ...)``. Tests are read, not imported, so
that those which need verl or vLLM are found without them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, ValidationError

from pipelines.docstrings import WRITTEN, Writer, table, unwrapped
from rlvr.config import fault_lines, load_yaml
from rlvr.config_base import Section

SOURCE = Path("data/faults.yaml")
#: Marks of tests that plain `pytest` leaves out, and what runs them.
COMMANDS = {
    "verl": "make test-verl",
    "vllm": "make test-vllm",
    "cluster": "make test-cluster",
    "graph": "make graph",
}
INTRODUCTION = """
Faults that results of this field have had: in graders, losses, samplers, statistics and pipelines. Where a
public report stands for a kind, it is linked. Every kind names the tests that fail if it comes back.
`pytest -m "fault and not (verl or vllm or cluster or graph)"` runs those that need the usual environment; a
command after a test's name says what runs it otherwise.

A test is put here by its decorator, `@pytest.mark.fault("kind")`, with a kind of
[data/faults.yaml](../data/faults.yaml).
"""


class Fault(Section):
    fault: str
    effect: str
    seen: tuple[str, ...] = ()
    out_of_scope: str | None = None


class Area(Section):
    title: str
    kinds: dict[str, Fault] = Field(min_length=1)


class Marked(Section):
    """A marked test: its file from the root of the repository, its name, the kinds, what runs it."""

    path: str
    name: str
    kinds: tuple[str, ...]
    command: str | None


def load_faults(root: Path) -> dict[str, Area]:
    """The areas of ``data/faults.yaml``, in its order.

    Raises:
        ValueError: one line per wrong field; or a kind that is there twice.
    """
    areas = {}
    for name, raw in load_yaml(root / SOURCE).items():
        try:
            areas[name] = Area.model_validate(raw)
        except ValidationError as error:
            raise ValueError(f"{SOURCE}, {name}:\n{fault_lines(error, name)}") from None
    kinds = [kind for area in areas.values() for kind in area.kinds]
    if twice := sorted({kind for kind in kinds if kinds.count(kind) > 1}):
        raise ValueError(f"{SOURCE}: these kinds are there twice: {', '.join(twice)}")
    return areas


def marked_tests(root: Path) -> list[Marked]:
    """Every test that is marked with a kind, by path and then as in the file.

    Raises:
        ValueError: a mark without a kind, or with something else than texts.
    """
    found = []
    for path in sorted((root / "tests").glob("**/test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        of_module = {name for node in tree.body if _is_pytestmark(node) for name, _ in _marks(node.value)}
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef):
                continue
            marks = [mark for decorator in node.decorator_list for mark in _marks(decorator)]
            kinds = tuple(kind for name, given in marks if name == "fault" for kind in given)
            where = f"{path.relative_to(root)}, {node.name}"
            if any(name == "fault" and not given for name, given in marks):
                raise ValueError(f"{where}: pytest.mark.fault needs the kinds as texts")
            if kinds:
                names = of_module | {name for name, _ in marks}
                command = next((COMMANDS[name] for name in COMMANDS if name in names), None)
                found.append(
                    Marked(path=str(path.relative_to(root)), name=node.name, kinds=kinds, command=command)
                )
    return found


def _is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
    )


def _marks(node: ast.expr) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(name, texts it is called with) of every ``pytest.mark.name`` in an expression."""
    calls = {id(call.func): call for call in ast.walk(node) if isinstance(call, ast.Call)}
    for mark in ast.walk(node):
        if isinstance(mark, ast.Attribute) and ast.unparse(mark.value) == "pytest.mark":
            given = [getattr(arg, "value", None) for arg in calls[id(mark)].args] if id(mark) in calls else []
            yield mark.attr, tuple(given) if all(isinstance(arg, str) for arg in given) else ()


def check(areas: dict[str, Area], tests: list[Marked]) -> None:
    """Every kind has a test or a reason to have none, and every mark a kind.

    Raises:
        ValueError: names all kinds and tests at fault.
    """
    kinds = {kind: fault for area in areas.values() for kind, fault in area.kinds.items()}
    held = {kind for test in tests for kind in test.kinds}
    wrong = [
        f"{test.path}, {test.name}: {kind!r} is no kind of {SOURCE}"
        for test in tests
        for kind in test.kinds
        if kind not in kinds
    ]
    for kind, fault in kinds.items():
        if kind not in held and fault.out_of_scope is None:
            wrong.append(f"{kind}: no test is marked with it, and it is not out_of_scope")
        if kind in held and fault.out_of_scope is not None:
            wrong.append(f"{kind}: out_of_scope, and yet a test is marked with it")
    if wrong:
        raise ValueError("\n".join(wrong))


def page(root: Path) -> str:
    """docs/what-goes-wrong.md.

    Raises:
        ValueError: see :func:`load_faults`, :func:`marked_tests`, :func:`check`.
    """
    areas, tests, write = load_faults(root), marked_tests(root), Writer()
    check(areas, tests)
    parts = [
        "# What goes wrong",
        WRITTEN.format("data/faults.yaml and the tests' marks"),
        unwrapped(INTRODUCTION),
    ]
    for area in areas.values():
        rows = [
            [
                write.inline(fault.fault),
                write.inline(fault.effect),
                "<br>".join(map(_report, fault.seen)),
                _held_off(kind, fault, tests),
            ]
            for kind, fault in area.kinds.items()
        ]
        parts += [
            f"## {area.title}",
            table(["fault", "what it does to a result", "seen in", "held off by"], rows),
        ]
    return "\n\n".join(parts) + "\n"


def _report(seen: str) -> str:
    if match := re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", seen):
        return f"[{seen}](https://github.com/{match[1]}/issues/{match[2]})"
    return seen


def _held_off(kind: str, fault: Fault, tests: list[Marked]) -> str:
    if fault.out_of_scope is not None:
        return f"out of scope: {fault.out_of_scope}"
    shown = []
    for test in tests:
        if kind in test.kinds:
            command = f" (`{test.command}`)" if test.command else ""
            shown.append(f"[`{test.name}`](../{test.path}){command}")
    return "<br>".join(shown)
