import ast
import math
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.counterfactual.programs import (
    LONGEST,
    control_flow_distance,
    outcome_changes,
    outcome_distance,
    outcomes,
    parse,
    tree_distance,
)
from rlvr.verifiers.programs import ProgramResult

LOOP = """def first_odd(values):
    for value in values:
        if value % 2:
            return value
    return None
"""


def tree(program):
    """(label, children) of the program as the distance sees it, written by hand from `ast`'s fields."""

    def node(item):
        own, children = [type(item).__name__], []
        for name, value in ast.iter_fields(item):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.expr_context):
                    continue
                if isinstance(part, ast.AST):
                    children.append(node(part))
                else:
                    own.append((name, type(part).__name__, part))
        return tuple(own), tuple(children)

    return node(ast.parse(program))


def size(forest):
    return sum(1 + size(children) for _, children in forest)


@cache
def forest_distance(a, b):
    """Edit distance of two ordered forests, by the recursion on the rightmost roots."""
    if not a or not b:
        return size(a) + size(b)
    (label_a, below_a), (label_b, below_b) = a[-1], b[-1]
    return min(
        forest_distance(a[:-1] + below_a, b) + 1,
        forest_distance(a, b[:-1] + below_b) + 1,
        forest_distance(a[:-1], b[:-1]) + forest_distance(below_a, below_b) + (label_a != label_b),
    )


names = st.sampled_from(["x", "y"])
expressions = st.recursive(
    names | st.integers(0, 2).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
    | inner.map(lambda e: f"-{e}"),
    max_leaves=4,
)  # fmt: skip
statements = st.one_of(
    st.tuples(names, expressions).map(lambda t: f"{t[0]} = {t[1]}"),
    st.tuples(expressions, names, expressions).map(lambda t: f"if {t[0]}:\n    {t[1]} = {t[2]}"),
    expressions.map(lambda e: f"while {e}:\n    break"),
)
small = st.lists(statements, min_size=1, max_size=2).map("\n".join)


@settings(max_examples=60, deadline=None)
@given(small, small)
def test_never_above_the_tree_edit_distance(a, b):
    one, two = tree(a), tree(b)
    longer = max(size((one,)), size((two,)))
    exact = forest_distance((one,), (two,)) / longer
    found = tree_distance(a, b)
    assert found <= exact + 1e-12
    assert (found == 0) == (one == two)
    assert found == tree_distance(b, a)


def test_tree_typed_in():
    # Module, FunctionDef, arguments, arg, For, Name, Name, If, BinOp, Name, Mod, Constant, Return,
    # Name, Return, Constant
    count = size((tree(LOOP),))
    assert count == 16
    assert tree_distance(LOOP, LOOP.replace("% 2", "% 3")) == 1 / count
    assert tree_distance(LOOP, LOOP.replace("% 2", "% 2.0")) == 1 / count  # 2 and 2.0 are two constants
    assert tree_distance(LOOP, LOOP.replace("value ", "v ").replace("value:", "v:")) < 5 / count
    layout = LOOP.replace("    ", "  ").replace("value % 2", "((value)  %  2)") + "\n\n# end\n"
    assert tree_distance(LOOP, layout) == 0
    # nine nodes each; of the two lists once the one, once the other is farther apart
    assert tree_distance("x + (y * x)", "-(x + y)") == 5 / 9
    assert tree_distance("(-x) + y", "x * (x + y)") == 4 / 9
    assert forest_distance((tree(LOOP),), (tree(LOOP.replace("% 2", "% 3")),)) == 1


def test_a_program_of_another_kind_is_far():
    other = "import sys\nprint(sum(map(int, sys.stdin.read().split())))\n"
    assert tree_distance(LOOP, other) > 0.6 > tree_distance(LOOP, LOOP.replace("return None", "return -1"))


def test_control_flow_typed_in():
    renamed = LOOP.replace("value", "v").replace("% 2", "> 10")
    assert control_flow_distance(LOOP, renamed) == 0
    # FunctionDef, For, If, Return, Return: one of five becomes another, or moves
    assert control_flow_distance(LOOP, LOOP.replace("if value % 2:", "while value % 2:")) == 1 / 5
    assert control_flow_distance(LOOP, LOOP.replace("\n    return None", "\n        return None")) == 1 / 5
    assert control_flow_distance("x = 1", "y = 2 + 3") == 0
    assert control_flow_distance("x = 1", "if x: pass") == 1
    assert control_flow_distance("a and b", "a") == 1 and control_flow_distance("[x for x in y]", "y") == 1


@settings(max_examples=60, deadline=None)
@given(small, small)
def test_control_flow_is_a_bounded_symmetric_distance(a, b):
    found = control_flow_distance(a, b)
    assert 0 <= found <= 1 and found == control_flow_distance(b, a) and control_flow_distance(a, a) == 0


@pytest.mark.parametrize(
    "program",
    [
        None, "def f(:", "x = \0", "(" * 500, "-" * 50_000 + "1", "a" + ".a" * 50_000, "1" + "+1" * 49_000,
        "not " * 20_000 + "1", "x" * (LONGEST + 1), "é\ud800", "lambda:" * 10_000 + "1",
        "x = " + "9" * 5000, "".join(" " * i + "if 1:\n" for i in range(300)),
    ],
    ids=lambda p: f"{str(p)[:8]}-{len(p or '')}",
)  # fmt: skip
def test_no_tree(program):
    assert parse(program) is None
    for distance in (tree_distance, control_flow_distance):
        assert math.isnan(distance(program, LOOP)) and math.isnan(distance(LOOP, program))


def test_odd_programs_have_trees(recwarn):
    for program in (
        "",
        "# nothing",
        '"\\d"',
        "{**a, 1: 2}",
        "def f(*, a): pass",
        "global x, y",
        "f'{x!r:>{n}}'",
    ):
        assert tree_distance(program, program) == 0
    assert tree_distance("", "") == 0 and tree_distance("global x, y", "global x, z") == 1 / 2
    assert tree_distance("f(a=1)", "f(b=1)") > 0
    assert not [w for w in recwarn if issubclass(w.category, SyntaxWarning | DeprecationWarning)]


# --- tests ----------------------------------------------------------------------------------------------

verdicts = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([True, False, None]))


@settings(max_examples=200, deadline=None)
@given(verdicts, verdicts)
def test_outcomes_slow_loop(before, after):
    expected = {"repaired": [], "broken": [], "failing": [], "passing": []}
    for name in before:
        if before[name] is None or after.get(name) is None:
            continue
        kind = {(0, 1): "repaired", (1, 0): "broken", (0, 0): "failing", (1, 1): "passing"}
        expected[kind[int(before[name]), int(after[name])]].append(name)
    changes = outcome_changes(before, after)
    assert {name: list(getattr(changes, name)) for name in expected} == expected
    compared = sum(map(len, expected.values()))
    distance = outcome_distance(before, after)
    if not compared:
        assert math.isnan(distance)
        return
    assert distance == (len(expected["repaired"]) + len(expected["broken"])) / compared
    assert distance == outcome_distance(after, before)


def test_outcomes_typed_in():
    before = outcomes(
        {
            "empty": ProgramResult(True, "correct"),
            "one": ProgramResult(False, "wrong"),
            "large": ProgramResult(False, "timeout"),
            "lost": ProgramResult(None, "infrastructure"),
        }
    )
    assert before == {"empty": True, "one": False, "large": False, "lost": None}
    after = {"one": True, "empty": True, "large": False, "lost": True, "new": True}
    assert outcome_changes(before, after) == (("one",), (), ("large",), ("empty",))
    assert outcome_distance(before, after) == 1 / 3
    assert math.isnan(outcome_distance(None, after)) and math.isnan(outcome_distance({}, {}))
    with pytest.raises(ValueError, match="before holds 1: allowed are True, False, None"):
        outcome_changes({"a": 1}, {})
    with pytest.raises(ValueError, match="after holds 'yes'"):
        outcome_changes({"a": True}, {"a": "yes"})
