"""Expressions run many at a time: right values and nothing else are right, and none spoils another."""

from __future__ import annotations

import itertools
import time

import pytest

from rlvr.verifiers import expressions
from rlvr.verifiers.expressions import BLOCK, check_each_argument, check_expressions, is_harmless
from rlvr.verifiers.programs import IsolationError

ARGUMENTS = ((0, 0), (1, 2), (-3, 5), (7, -2))


def check(*texts, expected=None, arguments=ARGUMENTS):
    expected = expected or [x + y for x, y in arguments]
    return check_expressions([(text, expected) for text in texts], ("x", "y"), arguments)


@pytest.fixture
def isolated():
    if expressions.isolation():
        pytest.skip(f"isolation is not available here: {expressions.isolation()}")


def test_the_value_counts_and_not_the_text():
    right = ["x+y", "y+x", "max(x,y)+min(x,y)", "(x+ y)", " x+y ", "x--y"]
    wrong = ["x-y", "x", "7", "x*y", "x+y+0*x+1", "min(x,y)"]
    assert check(*right, *wrong) == [True] * len(right) + [False] * len(wrong)


def test_one_verdict_per_item_in_order_whatever_the_repetitions():
    texts = ["x+y", "x-y", "x+y", "y", "x+y"] * 40
    assert check(*texts) == [text == "x+y" for text in texts]
    assert check() == []


def test_expected_values_belong_to_their_item():
    items = [("x+1", [x + n for x, _ in ARGUMENTS]) for n in range(5)]
    assert check_expressions(items, ("x", "y"), ARGUMENTS) == [False, True, False, False, False]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "x+",
        "(x",
        "x y",
        "x=1",
        "x+y\n1",
        "x,y",
        "z",
        "max",
        "max(x)",
        "x%0",
        "x/1+y",
        "x==y",
        "1.0*(x+y)",
    ],
)
def test_what_is_no_whole_number_is_wrong(text, isolated):
    assert check(text, "x+y") == [False, True]


def test_a_bool_equals_a_number_in_python_but_is_none():
    assert check("x<y", "1", expected=[1], arguments=((1, 2),)) == [False, True]


HOSTILE = (
    "9**9**9**9", "[0]*10**12", "__import__('os')._exit(0)",
    "__import__('os').kill(__import__('os').getpid(),9)", "__import__('time').sleep(99)",
    "(lambda f:f(f))(lambda f:f(f))", "print('x'*10**6)", "exit()",
)  # fmt: skip


@pytest.mark.slow
def test_none_disturbs_those_beside_it(isolated):
    """Expressions that hang or end their process, in every place of a block and next to each other."""
    texts = list(itertools.chain.from_iterable((bad, "x+y", "x-y") for bad in HOSTILE))
    texts += ["x+y"] * (2 * BLOCK) + list(HOSTILE[:4]) + ["y+x"]
    assert check(*texts) == [text in ("x+y", "y+x") for text in texts]


def test_one_that_kills_the_box_is_found(isolated):
    kill = "__import__('os').kill(__import__('os').getppid(),9)"
    assert check("x+y", kill, "y+x", "x") == [True, False, True, False]


def test_a_rollout_is_graded_by_one_sandbox():
    texts = [f"max(x,{n % 9})+(y-{n // 9})*{n % 7}" for n in range(256)]
    check("x+y")  # the interpreter of the sandbox starts
    started = time.perf_counter()
    check(*texts)
    assert time.perf_counter() - started < 12, "about 0.15 s; an interpreter for each would take 256 starts"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max(x,7)*2-abs(y)%3", True), ("(x + y)", True), ("", True), ("x.real", False), ("open", False),
        ("x if x else y", False), ("__import__('os')", False), ("x+y;1", False), ("lambda", False),
        ("x[0]", False),
    ],
)  # fmt: skip
def test_what_is_harmless(text, expected):
    assert is_harmless(text, ("x", "y")) is expected


def test_without_isolation_only_harmless_ones_are_run(monkeypatch):
    monkeypatch.setattr(expressions, "isolation", lambda: "no namespaces")
    assert check("x+y", "x", "max(x,y)+min(x,y)") == [True, False, True]
    with pytest.raises(IsolationError, match=r"expression 'x\.real\+y' is not run: no namespaces"):
        check("x+y", "x.real+y")


def test_each_argument_has_a_verdict_of_its_own():
    """As check_expressions on one argument at a time, which decides what a test is."""
    expected = [max(x, y) for x, y in ARGUMENTS]
    texts = ["max(x,y)", "y", "x", "min(x,y)", "x if", "x+y", ""]
    found = check_each_argument([(text, expected) for text in texts], ("x", "y"), ARGUMENTS)
    for text, verdicts in zip(texts, found, strict=True):
        alone = [
            check_expressions([(text, [value])], ("x", "y"), [argument])[0]
            for argument, value in zip(ARGUMENTS, expected, strict=True)
        ]
        assert verdicts == alone, text
    whole = check_expressions([(text, expected) for text in texts], ("x", "y"), ARGUMENTS)
    assert [all(verdicts) for verdicts in found] == whole


def test_no_value_on_one_argument_is_wrong_on_all():
    assert check_each_argument([("7%x", [0, 0, 0, 0])], ("x", "y"), ARGUMENTS) == [[False] * 4]
    assert check_each_argument([], ("x", "y"), ARGUMENTS) == []
