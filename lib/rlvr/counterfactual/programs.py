"""How far two programs are apart: by syntax tree, by control flow, by the tests they pass.

The text names these signals for programs and defines none [text: IBPO G.3]; every definition here is ours.
Programs are parsed, in this process, and never run. A distance is in [0, 1], symmetric, and NaN where there
is nothing to compare.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rlvr.checks import describe
from rlvr.counterfactual.alignment import edit_distance

if TYPE_CHECKING:
    from rlvr.verifiers.programs import ProgramResult

LONGEST = 100_000  # characters; a program beyond has no tree, so that no text holds up a training step

_FLOW = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.If, ast.IfExp, ast.For, ast.AsyncFor,
    ast.While, ast.Try, ast.TryStar, ast.ExceptHandler, ast.With, ast.AsyncWith, ast.Match, ast.match_case,
    ast.BoolOp, ast.comprehension, ast.Return, ast.Raise, ast.Assert, ast.Break, ast.Continue, ast.Yield,
    ast.YieldFrom, ast.Await,
)  # fmt: skip
_NO_LABEL = ("ctx", "type_comment", "kind")


def parse(program: str | None) -> ast.Module | None:
    """Syntax tree; None for None, for what is no Python, and for what is too long or too deep to parse."""
    if program is None or len(program) > LONGEST:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "invalid escape sequence" and the like
            return ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def tree_distance(a: str | None, b: str | None) -> float:
    """Edit distance of the two syntax trees, bounded from below, over the larger number of nodes [choice].

    The larger of two edit distances of node lists, in pre-order and in post-order; neither exceeds the tree
    edit distance (an edit of the tree edits one place of each list), which takes time cubic in the number
    of nodes. Nodes are equal that have the same type, names and constants; layout, comments, parentheses
    count nothing.
    """
    trees = parse(a), parse(b)
    if trees[0] is None or trees[1] is None:
        return math.nan
    before = _distance(*([_label(node) for node, _ in _pre_order(tree)] for tree in trees))
    after = _distance(*([_label(node) for node in _post_order(tree)] for tree in trees))
    return max(before, after)


def control_flow_distance(a: str | None, b: str | None) -> float:
    """Edit distance of the control skeletons, over the longer of them [choice]; 0 where both have none.

    A skeleton lists what steers the program, in source order with its depth among the others: functions,
    branches, loops, handlers, short circuits, comprehensions, returns. What is computed, and all names, are
    left out, so renamed or differently calculated is equal.
    """
    trees = parse(a), parse(b)
    if trees[0] is None or trees[1] is None:
        return math.nan
    return _distance(*map(_skeleton, trees))


def outcome_distance(a: Mapping[str, bool | None] | None, b: Mapping[str, bool | None] | None) -> float:
    """Share of tests with different verdicts, of those that both have decided [choice]."""
    changes = outcome_changes(a or {}, b or {})
    compared = sum(map(len, changes))
    return (len(changes.repaired) + len(changes.broken)) / compared if compared else math.nan


class OutcomeChanges(NamedTuple):
    """Names of the tests that both programs have decided, by what became of them."""

    repaired: tuple[str, ...]  # failed before, passes now
    broken: tuple[str, ...]  # passed before, fails now
    failing: tuple[str, ...]  # failed twice
    passing: tuple[str, ...]


def outcome_changes(before: Mapping[str, bool | None], after: Mapping[str, bool | None]) -> OutcomeChanges:
    """Which tests a correction repaired and which it broke, in the order of ``before``.

    ``before``, ``after``: verdict by test; None (undecided), and tests that only one has, are left out.
    """
    for name, verdicts in (("before", before), ("after", after)):
        wrong = [v for v in verdicts.values() if v is not None and not isinstance(v, bool)]
        if wrong:
            raise ValueError(f"{name} holds {describe(wrong[0])}: allowed are True, False, None (undecided)")
    groups: dict[tuple[bool, bool], list[str]] = {
        (False, True): [], (True, False): [], (False, False): [], (True, True): [],
    }  # fmt: skip
    for name, verdict in before.items():
        other = after.get(name)
        if verdict is not None and other is not None:
            groups[verdict, other].append(name)
    return OutcomeChanges(*map(tuple, groups.values()))


def outcomes(results: Mapping[str, ProgramResult]) -> dict[str, bool | None]:
    """Verdict by test, of a program verified against one test at a time (one ``ProgramTask`` each).

    A result of all tests together counts those that passed and does not say which; it stops at the first
    failure. Undecided results are None.
    """
    return {name: result.correct for name, result in results.items()}


def _distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    number: dict[Hashable, int] = {}
    first, second = ([number.setdefault(item, len(number)) for item in items] for items in (a, b))
    return edit_distance(first, second)


def _pre_order(tree: ast.AST) -> Iterator[tuple[ast.AST, int]]:
    """Every node before its children, with the number of :data:`_FLOW` nodes above it."""
    stack = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        if isinstance(node, (ast.expr_context, ast.TypeIgnore)):
            continue
        yield node, depth
        inner = depth + isinstance(node, _FLOW)
        stack += [(child, inner) for child in reversed(list(ast.iter_child_nodes(node)))]


def _post_order(tree: ast.AST) -> list[ast.AST]:
    out, stack = [], [tree]
    while stack:  # pre-order with the children from right to left, backwards
        node = stack.pop()
        if not isinstance(node, (ast.expr_context, ast.TypeIgnore)):
            out.append(node)
            stack += ast.iter_child_nodes(node)
    return out[::-1]


def _label(node: ast.AST) -> Hashable:
    """Type, names and constants; 1, 1.0 and True are different constants."""
    parts = [type(node).__name__]
    for name, value in ast.iter_fields(node):
        if name in _NO_LABEL or isinstance(value, ast.AST):
            continue
        if isinstance(value, list):
            value = [item for item in value if not isinstance(item, ast.AST)]
        parts.append(f"{name}={type(value).__name__}:{value!r}")
    return "\0".join(parts)


def _skeleton(tree: ast.AST) -> list[tuple[str, int]]:
    return [(type(node).__name__, depth) for node, depth in _pre_order(tree) if isinstance(node, _FLOW)]
