"""From a task to what the judge reads: test code compiled, its assertions counted, its names known."""

from __future__ import annotations

import ast
import builtins
import hashlib
import symtable
import warnings
from typing import Any

from rlvr.verifiers.programs.tasks import ProgramTask

COUNTER = "__assertion_held__"
PLANNER = "__calls_to_come__"
# What may leave a call out or repeat it.
_CONDITIONAL = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.NamedExpr, ast.comprehension, ast.Await, ast.Yield)
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


class UnusableTests(ValueError):
    """Tests that cannot judge any program; ``reason`` is ``no_tests`` or ``bad_tests``."""

    def __init__(self, reason: str, detail: str):
        super().__init__(detail)
        self.reason = reason


def prepare(task: ProgramTask) -> dict[str, Any]:
    """The part of a job that depends on the task alone; kept with the task, for its next program.

    Raises:
        UnusableTests: there are none, or they do not compile, or they assert nothing.
    """
    if not task._prepared:
        task._prepared.update(_prepare(task))
    return task._prepared


def _prepare(task: ProgramTask) -> dict[str, Any]:
    if not task.tests:
        raise UnusableTests("no_tests", f"task {task.id!r} has no tests")
    job = {
        "kind": task.kind,
        "entry_point": task.entry_point,
        "tolerance": task.tolerance,
        "in_place": task.in_place,
        # fixed, and unknown to the program: it depends on the tests
        "seed": int.from_bytes(hashlib.sha256(repr(task.tests).encode()).digest()[:8], "big"),
    }
    if task.kind in ("functional", "stdin"):
        return job | {"tests": list(task.tests), "imports": ()}
    helpers, setup = _parse([task.helpers]), _parse([task.setup])
    tests = _parse(task.tests)
    if task.kind == "check" and "check" not in _defined(tests[0]):
        raise UnusableTests("bad_tests", f"task {task.id!r}: the tests define no check")
    counted = [_mentions([tree], ast.Assert) for tree in tests]
    if not any(counted) and not _mentions(tests, ast.Raise) and not _calls_assertions(tests):
        raise UnusableTests("bad_tests", f"task {task.id!r}: the tests assert nothing")
    free = _free_names([task.setup, *task.tests])
    for tree in tests:
        _insert(tree, {"candidate", task.entry_point})
    return job | {
        "helpers": _compile(helpers),
        "setup": _compile(setup),
        "tests": _compile(tests),
        "imports": tuple(sorted(_imports([*helpers, *setup, *tests]))),
        "free_names": sorted(free - {task.entry_point, "candidate"}),
        "counter": COUNTER,
        "planner": PLANNER,
        "counted": counted,
    }


def _parse(sources: Any) -> list[ast.Module]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [ast.parse(source) for source in sources]
    except SyntaxError as error:
        raise UnusableTests("bad_tests", f"the tests do not compile: {error}") from None


def _compile(trees: list[ast.Module]) -> list:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            compile(tree, "tests.py", "exec", dont_inherit=True, optimize=0) for tree in trees if tree.body
        ]


def _statements(node: ast.AST) -> Any:
    """All statements below a node. Expressions are not entered: some tests are lists of a megabyte."""
    for name in _BODIES:
        for child in getattr(node, name, ()):
            yield child
            yield from _statements(child)


def _mentions(trees: list[ast.Module], kind: type) -> bool:
    return any(isinstance(node, kind) for tree in trees for node in _statements(tree))


def _calls_assertions(trees: list[ast.Module]) -> bool:
    """Calls as statements whose name says so, as ``np.testing.assert_allclose(...)``."""
    calls = (
        node.value.func
        for tree in trees
        for node in _statements(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    )
    return any("assert" in (getattr(f, "attr", "") or getattr(f, "id", "")) for f in calls)


def _insert(node: ast.AST, names: set[str | None]) -> None:
    """Behind every assertion a call that counts it; before a loop over inputs one that announces them."""
    for name in _BODIES:
        body = getattr(node, name, None)
        if not body:
            continue
        setattr(node, name, [new for child in body for new in _surrounded(child, names)])


def _surrounded(statement: ast.AST, names: set[str | None]) -> list[ast.AST]:
    inputs = _looped_inputs(statement, names) if isinstance(statement, ast.For) else None
    _insert(statement, names)
    before = [_call(PLANNER, [ast.Name(inputs, ast.Load())], statement)] if inputs else []
    after = [_call(COUNTER, [], statement)] if isinstance(statement, ast.Assert) else []
    return [*before, statement, *after]


def _call(name: str, arguments: list[ast.expr], where: ast.AST) -> ast.Expr:
    call = ast.Expr(ast.Call(ast.Name(name, ast.Load()), arguments, []))
    return ast.fix_missing_locations(ast.copy_location(call, where))


def _looped_inputs(loop: ast.For, names: set[str | None]) -> str | None:
    """``inputs`` of ``for i, (x, y) in enumerate(zip(inputs, results)): assertion(candidate(*x), y)``.

    The body is one statement with one call, which every iteration makes: only then the calls are known.
    """
    iterated, target = loop.iter, loop.target
    for function in ("enumerate", "zip"):
        if _is_call(iterated, {function}) and iterated.args and isinstance(target, ast.Tuple):
            iterated = iterated.args[0]
            target = target.elts[1 if function == "enumerate" else 0]
    if not (isinstance(iterated, ast.Name) and isinstance(target, ast.Name) and len(loop.body) == 1):
        return None
    nodes = list(ast.walk(loop.body[0]))
    calls = [node for node in nodes if _is_call(node, names)]
    if not isinstance(loop.body[0], (ast.Expr, ast.Assert)) or len(calls) != 1:
        return None
    if any(isinstance(node, _CONDITIONAL) for node in nodes):
        return None
    match calls[0].args:
        case [ast.Starred(ast.Name(id=target.id))] if not calls[0].keywords:
            return iterated.id
    return None


def _is_call(node: ast.AST, names: set[str | None]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _imports(trees: list[ast.Module]) -> set[str]:
    """Packages that test code imports."""
    found: set[str] = set()
    for node in (node for tree in trees for node in _statements(tree)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def _defined(tree: ast.Module) -> set[str]:
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def _free_names(sources: list[str]) -> set[str]:
    """Global names that test code reads and does not bind."""
    read: set[str] = set()
    bound: set[str] = set()
    for source in sources:
        top = symtable.symtable(source, "tests.py", "exec")
        bound |= {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
        tables = [top]
        while tables:
            table = tables.pop()
            read |= {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()}
            if table is top:
                read |= {s.get_name() for s in table.get_symbols() if s.is_referenced()}
            tables += table.get_children()
    return {name for name in read - bound if not hasattr(builtins, name)}
