"""Tasks from the benchmarks' records, comparisons, and values on their way between two processes."""

import collections
import datetime
import decimal
import fractions
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from program_tasks import EVEN, MEAN_TEST, RIGHT, TASKS

from rlvr.verifiers.programs import ProgramTask
from rlvr.verifiers.programs.prepare import prepare
from rlvr.verifiers.programs.sandbox import codec
from rlvr.verifiers.programs.sandbox.compare import close, same_output

# --- records ------------------------------------------------------------------------------------------


def test_what_is_a_records_benchmark():
    check = "def check(candidate):\n    assert candidate(1) == 2\n"
    humaneval = {"task_id": "H/0", "prompt": "def f(x):\n", "entry_point": "f", "test": check}
    assert ProgramTask.from_record(humaneval) == ProgramTask("H/0", "check", (check,), "f", "def f(x):\n")
    mbpp = {
        "task_id": 2,
        "text": "...",
        "test_list": ["assert len(f(1)) == 1"],
        "test_setup_code": "a = 1\r\n",
    }
    task = ProgramTask.from_record(mbpp)
    assert (task.id, task.kind, task.entry_point, task.setup) == ("2", "asserts", "f", "a = 1\n")
    plus = {
        "id": "2",
        "test_list": ["assert set(f(1)) == set()"],
        "test": "inputs = [[1]]\nfor x in inputs:\n    assert f(*x)\n",
    }
    assert ProgramTask.from_record(plus).kind == "script"
    assert ProgramTask.from_record(plus).entry_point == "f"
    with pytest.raises(ValueError, match="record with the fields question: allowed are"):
        ProgramTask.from_record({"question": "?"})


def test_livecodebench_records():
    tests = '[{"input": "1\\n", "output": "2", "testtype": "stdin"}]'
    task = ProgramTask.from_record(
        {"question_id": "q", "public_test_cases": tests, "private_test_cases": tests}
    )
    assert task.kind == "stdin" and task.tests == (("1\n", "2"),) * 2
    with pytest.raises(ValueError, match="private_test_cases of 'q': allowed are lists and JSON"):
        ProgramTask.from_record(
            {"question_id": "q", "public_test_cases": tests, "private_test_cases": "eJx="}
        )
    mixed = [{"input": "", "output": "", "testtype": kind} for kind in ("stdin", "functional")]
    with pytest.raises(ValueError, match="testtype of 'q'"):
        ProgramTask.from_record({"question_id": "q", "public_tests": mixed})
    assert TASKS["pairs"].tests[0] == (([1, 2, 3], 4), 1)


def test_tasks_of_a_wrong_form_are_refused():
    for arguments, message in (
        (("t", "io", ()), "kind='io': allowed are 'check'"),
        (("t", "check", ("x",)), "entry_point=None"),
        (("t", "stdin", (("1", "2"),), "f"), "entry_point='f'"),
        (("t", "stdin", (("1", "2", "3"),)), "tests of 't': allowed are pairs"),
    ):
        with pytest.raises(ValueError, match=message):
            ProgramTask(*arguments)
    with pytest.raises(ValueError, match="tolerance=nan"):
        ProgramTask("t", "stdin", (), tolerance=math.nan)
    with pytest.raises(ValueError, match="allowed is code that defines f"):
        ProgramTask.from_humaneval({"task_id": "H", "prompt": "def g():\n", "entry_point": "f", "test": ""})


def test_the_reference_solution_gives_the_expected_values(pool):
    record = {
        "id": "own/ref",
        "prompt": "def f(x, y):\n",
        "canonical_solution": "    x.append(y)\n    return [sum(x), y / 3]\n",
        "entry_point": "f",
        "base_input": [[[1, 2], 3]],
        "plus_input": [[[], 1], [[5], 2]],
    }
    for code, right in (
        ("def f(x, y):\n    return [sum(x) + y, y / 3 + 1e-9]\n", True),
        ("def f(x, y):\n    return [sum(x) + y, y / 3 + 1e-3]\n", False),
        ("def f(x, y):\n    return (sum(x) + y, y / 3)\n", False),
        ("def f(x, y):\n    return []\n", False),
    ):
        assert pool.verify(code, record, form="code").correct is right, code


def test_published_tests_that_cannot_judge_are_repaired(pool):
    vacuous = (
        "def assertion(out, exp, atol):\n    if isinstance(out, bool):\n        exact_match = out == exp\n"
        "    else:\n        exact_match = exp == (out is not None)\n\n"
        "inputs = [['a'], ['b']]\nresults = [True, False]\n"
        "for i, (inp, exp) in enumerate(zip(inputs, results)):\n    assertion(f(*inp), exp, 0)\n"
    )
    task = ProgramTask.from_record({"id": "7", "test": vacuous, "test_list": [], "entry_point": "f"})
    assert "asserts nothing" in task.repair
    assert pool.verify("def f(x):\n    return x == 'a'\n", task, form="code").correct is True
    assert (
        pool.verify("import re\ndef f(x):\n    return re.match('a', x)\n", task, form="code").correct is True
    )
    assert pool.verify("def f(x):\n    return None\n", task, form="code").correct is False
    assert (
        ProgramTask.from_record(
            {"id": "7", "test": MEAN_TEST, "prompt": "def mean(values):\n", "entry_point": "mean"}
        ).repair
        == ""
    )


# --- test code in another process than the program ----------------------------------------------------


def check(pool, program, body, helpers="", **options):
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    task = ProgramTask("own/c", "check", (f"{helpers}\ndef check(candidate):\n{lines}",), "f", **options)
    result = pool.verify(program, task, form="code")
    return result.correct, result.reason


SAME = """
import collections, datetime, decimal, fractions
import numpy as np
values = [
    1, True, None, 1.5, 2j, 10**5000, "é\\ud800", b"x", bytearray(b"y"), [1], (1,), {1}, frozenset({1}),
    {"a": (1, [2])}, range(3), int, ValueError, collections.Counter("aab"), collections.deque([1], 3),
    collections.OrderedDict(b=1, a=2), datetime.date(2024, 2, 29), datetime.timedelta(1),
    decimal.Decimal("0.1"), fractions.Fraction(1, 3), np.float32(0.5), np.int64(1),
]
for x in values:
    y = candidate(x)
    assert y == x and type(y) is type(x)
assert candidate(np.arange(6).reshape(2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
"""
SUBCLASSES = """
from collections import defaultdict, namedtuple
P = namedtuple("P", "x y")
def f(x):
    return P(1, 2) if x else defaultdict(int, a=1)
"""


def test_values_keep_their_types(pool):
    assert check(pool, "def f(x):\n    return x\n", SAME) == (True, "correct")
    body = "assert candidate(1) == (1, 2)\nassert candidate(0) == {'a': 1}"
    assert check(pool, SUBCLASSES, body) == (True, "correct")


def test_exceptions_reach_the_test(pool):
    body = (
        "try:\n    candidate(-1)\nexcept ValueError as e:\n    assert 'negative' in str(e)\n"
        "else:\n    assert False\n"
    )
    assert check(pool, "def f(x):\n    raise ValueError('negative')\n", body) == (True, "correct")
    own = "class Own(ValueError):\n    pass\ndef f(x):\n    raise Own('negative')\n"
    assert check(pool, own, body) == (True, "correct")
    assert check(pool, "def f(x):\n    raise KeyError('negative')\n", body) == (False, "exception")
    assert check(pool, "def f(x):\n    return 1\n", body) == (False, "wrong")
    swallow = "try:\n    candidate(1)\nexcept BaseException:\n    pass\nassert True"
    assert check(pool, "import os\ndef f(x):\n    os._exit(0)\n", swallow) == (False, "exit")
    assert check(pool, "import sys\ndef f(x):\n    sys.exit()\n", swallow) == (False, "exit")


NODES = """
class Node:
    def __init__(self, v):
        self.v = v
        self.next = None

    def get(self, k=0):
        return self.v + k

def f(n):
    total = 0
    while n:
        total, n = total + n.v, n.next
    return total
"""
NODES_CHECK = """
a, b = Node(1), Node(2)
a.next = b
assert candidate(a) == 3
assert a.next.get(k=5) == 7
assert a.next == b and a != b and a.v != 2
"""


@pytest.mark.parametrize(
    ("program", "body"),
    [
        (NODES, NODES_CHECK),
        (
            "def f(n):\n    yield from range(n)\n",
            "assert list(candidate(3)) == [0, 1, 2]\nassert sum(candidate(4)) == 6",
        ),
        ("def f(n):\n    yield from range(n)\n", "assert next(candidate(5)) == 0"),
        (
            "import itertools\nf = itertools.count\n",
            "it = candidate(3)\nassert [next(it), next(it)] == [3, 4]",
        ),
        ("def f(n):\n    return lambda x: x * n\n", "assert candidate(3)(4) == 12"),
        (
            "import re\ndef f(s):\n    return re.match('a', s)\n",
            "assert candidate('a')\nassert not candidate('b')",
        ),
    ],
)
def test_what_is_no_data_can_be_used_through_a_handle(pool, program, body):
    assert check(pool, program, body) == (True, "correct")


def test_names_of_the_program_that_it_does_not_define(pool):
    assert check(pool, "def f(n):\n    return 3\n", NODES_CHECK) == (False, "test_error")
    task = ProgramTask("own/s", "asserts", ("assert f(root) == 1",), "f", setup="root = Node(1)")
    assert pool.verify("def f(n):\n    return 1\n", task, form="code").correct is False
    assert pool.verify(NODES, task, form="code").correct is True


def test_functions_of_the_test_can_be_passed(pool):
    program = "def f(g, xs):\n    return [g(x) for x in xs]\n"
    assert check(pool, program, "assert candidate(lambda x: x + 1, [1, 2]) == [2, 3]") == (True, "correct")
    body = (
        "def bad(x):\n    raise KeyError('no')\ntry:\n    candidate(bad, [1])\nexcept KeyError:\n"
        "    pass\nassert True"
    )
    assert check(pool, program, body) == (True, "correct")


def test_arguments_are_copies_unless_the_task_is_in_place(pool):
    program = "def f(x):\n    x.sort()\n"
    body = "x = [3, 1, 2]\ny = x\nassert candidate(x) is None\nassert x == [1, 2, 3] and y is x"
    assert check(pool, program, body) == (False, "wrong")
    assert check(pool, program, body, in_place=True) == (True, "correct")
    assert check(pool, "def f(x):\n    return None\n", body, in_place=True) == (False, "wrong")


COUNTING = """
calls = []
def f(*x):
    calls.append(x)
    if x == (7,):
        raise ValueError("seven")
    return [sum(x), len(calls)]
"""


@pytest.mark.parametrize(
    ("loop", "announced", "right"),
    [
        ("for i, (x, y) in enumerate(zip(inputs, results)):\n    assert candidate(*x) == y", True, True),
        ("for x, y in zip(inputs, results):\n    assert candidate(*x) == y", True, True),
        ("for i, x in enumerate(inputs):\n    assert candidate(*x) == results[i]", True, True),
        ("for x in inputs:\n    assert candidate(*x)", True, True),
        ("for x in inputs + [[7]]:\n    assert candidate(*x)", False, False),
        ("for x in inputs:\n    assert candidate(*x) == candidate(*x)", False, False),
        ("for x in inputs:\n    if x != [3]:\n        assert candidate(*x)[0] == x[0]", False, True),
        ("for x in inputs:\n    assert x == [3] or candidate(*x)[0] == x[0]", False, True),
        ("for x in inputs:\n    x.append(1)\n    assert candidate(*x)[0] == x[0] + 1", False, True),
        ("for x in inputs:\n    assert candidate(*x, 1)[0] == x[0] + 1", False, True),
        ("for x in inputs:\n    assert candidate(x[0])[0] == x[0]", False, True),
    ],
)
def test_announced_calls_are_the_calls_that_are_made(pool, loop, announced, right):
    """300 calls of a function that counts them: sent ahead where all are known, one by one otherwise."""
    body = (
        f"inputs = [[i + 10] for i in range(300)]\nresults = [[i + 10, i + 1] for i in range(300)]\n{loop}\n"
    )
    assert check(pool, COUNTING, body)[0] is right
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    task = ProgramTask("own/l", "check", (f"def check(candidate):\n{lines}",), "f")
    assert (prepare(task)["planner"] in prepare(task)["tests"][0].co_consts[0].co_names) is announced


def test_a_test_that_stops_in_the_middle_of_announced_calls(pool):
    body = """
inputs = [[1], [7], [2], [3]]
try:
    for x in inputs:
        assert candidate(*x)[0] == x[0]
except ValueError:
    pass
assert candidate(5)[0] == 5
for x in [[8], [9]]:
    assert candidate(*x)[0] == x[0]
"""
    assert check(pool, COUNTING, body) == (True, "correct")
    assert check(pool, COUNTING, body.replace("ValueError", "KeyError")) == (False, "exception")


def test_a_failure_says_which_call_it_was(pool):
    result = pool.verify("def evens(values):\n    return values[:2]\n", EVEN, form="code")
    call = "last call ([1, 2, 4]) -> [1, 2]"
    assert result.first_failure == f"test 0: AssertionError (line 1 of the tests), {call}"
    result = pool.verify("print('7')", TASKS["sums"], form="code")
    assert result.first_failure == r"test 0: printed '7\n', expected '3\n7\n'; input '2\n1 2\n3 4\n'"
    result = pool.verify(RIGHT["pairs"].replace("sum", "1 + sum"), TASKS["pairs"], form="code")
    assert result.first_failure == "test 0: returned 2, expected 1, last call ([1, 2, 3], 4) -> 2"


# --- comparisons --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        (1, 1, True),
        (1, 2, False),
        (1.0, 1, True),
        (0.1 + 0.2, 0.3, True),
        (1e9 + 1, 1e9, True),  # relative
        (10**9 + 1, 1e9, True),
        (1e9 + 900.0, 10**9, False),  # a whole number has an absolute tolerance at most
        (1e9, 10**9, True),
        (1e9 + 4e-7, 10**9, True),
        (1000000.5, 1000000, False),
        (3.0000005, 3, True),
        (2.99999, 3, False),
        (-1e-7, 0, True),
        (float(2**53), 2**53 + 1, False),  # what a float rounds to is not what was asked for
        (float(2**53), 2**53, True),
        (1e16 + 1, 10**16 + 1, False),
        (1e16, 10**16, True),
        (np.float64(1e16), 10**16 + 1, False),
        (np.float32(2**24), 2**24 + 1, False),
        (np.float64(0.1) + 0.2, 0.3, True),
        (np.int64(3), 3, True),
        (math.inf, 10**400, False),
        (math.nan, 1, False),
        ([1, [1e9 + 900.0]], [1, [10**9]], False),
        ({"a": (1e6 + 0.5,)}, {"a": [10**6]}, False),
        ({"a": (1e6,)}, {"a": [10**6]}, True),
        (1e-7, 0.0, True),
        (1.00001, 1.0, False),
        (10**20 + 1, 10**20, False),  # whole numbers have no tolerance
        ([1, (2.0, [3])], [1, [2, (3.0000001,)]], True),
        ([1, 2], [1, 2, 3], False),
        ([1], 1, False),
        ({"a": 0.1 + 0.2}, {"a": 0.3}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        (math.nan, 1.0, False),
        (math.inf, math.inf, True),
        (math.inf, 1e300, False),
        ("1.0", "1", False),
        (None, [], False),
        (True, True, True),
        ("a", ["a"], False),
    ],
)
def test_returned_values(value, expected, same):
    assert close(value, expected, 1e-6) is same


@pytest.mark.parametrize(
    ("text", "expected", "same"),
    [
        ("1 2\n3\n", "1 2\n3", True),
        ("\n  1 2 \r\n3\n\n\n", "1 2\n3\n", True),
        ("1  2", "1 2", True),  # words
        ("1 2 3", "1 2\n3", False),  # lines
        ("1\n\n2", "1\n2", False),
        ("YES", "Yes", False),
        ("0.3333333", "0.333333333333", True),
        ("0.33333", "0.333333333333", False),
        ("1e-7", "0.0", True),
        ("1000000.4", "1000000", False),  # a whole number has an absolute tolerance at most
        ("1000000.4", "1000000.0", True),
        ("1000000.0000004", "1000000", True),
        ("1e6", "1000000", True),
        ("1e+16", "10000000000000001", False),
        ("1e+16", "10000000000000000", True),
        ("10000000000000000.0000004", "10000000000000000", False),
        ("total 1000000.5 items", "total 1000000 items", False),
        ("3.0", "3", True),
        ("03", "3", True),
        ("123456789012345678901", "123456789012345678902", False),
        ("123456789012345678901.0", "123456789012345678901", True),
        ("nan", "0.0", False),
        ("inf", "1e9", False),
        ("1_0.0", "10.0", False),
        ("0x1", "1", False),
        ("x 0.30000000001", "x 0.3", True),
        ("", "", True),
        ("", "0", False),
        ("9" * 5000, "9" * 5000, True),
        ("9" * 5000, "9" * 4999 + "8", False),
        ("1e9999", "1e9998", False),
    ],
)
def test_printed_output(text, expected, same):
    assert same_output(text, expected, 1e-6) is same


def test_tolerance_zero_is_the_exact_comparison():
    assert same_output("3.140", "3.14", 0) and not same_output("3.1400001", "3.14", 0)
    assert not close(0.1 + 0.2, 0.3, 0) and close(0.3, 0.3, 0)


# --- codec --------------------------------------------------------------------------------------------

atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
hashable = st.recursive(atoms, lambda x: st.tuples(x, x) | st.frozensets(x, max_size=3), max_leaves=4)
plain = st.recursive(
    atoms | st.complex_numbers(allow_nan=False) | st.fractions() | st.dates() | st.timedeltas(),
    lambda x: (
        st.lists(x)
        | st.tuples(x, x)
        | st.dictionaries(hashable, x, max_size=3)
        | st.sets(hashable, max_size=3)
    ),
    max_leaves=12,
)


def same_types(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return all(map(same_types, a, b))
    if isinstance(a, dict):
        return all(same_types(a[key], b[key]) for key in a)
    return True


@given(plain)
def test_plain_data_arrives_as_it_was(value):
    back = codec.decode(codec.loads(codec.dumps({"v": codec.encode(value)}))["v"])
    assert back == value and same_types(back, value)


def test_special_values_arrive():
    for value in (
        float("inf"),
        -0.0,
        10**4000,
        -(10**4001),
        [1, 10**4001],
        "\ud800",
        datetime.datetime(2024, 1, 2, 3, 4, 5, 6),
    ):
        back = codec.decode(codec.loads(codec.dumps({"v": codec.encode(value)}))["v"])
        assert (
            back == value
            and type(back) is type(value)
            and math.copysign(1, back if value == 0 else 1) == (-1 if value == 0 else 1)
        )
    assert math.isnan(codec.decode(codec.encode(math.nan)))
    array = np.array([[1.5, np.nan]], dtype=">f4")
    back = codec.decode(codec.encode(array))
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype


def test_only_the_payload_of_a_subclass_is_sent():
    class Lying(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

        def __int__(self):
            return 99

        def __index__(self):
            return 99

    class Text(str):
        def __str__(self):
            return "other"

    class Items(list):
        def __iter__(self):
            return iter([7])

    class Map(dict):
        def keys(self):
            return ["k"]

        def items(self):
            return [("k", 1)]

    for value, payload in (
        (Lying(3), 3),
        (Text("x"), "x"),
        (Items([1]), [1]),
        (Map(a=2), {"a": 2}),
        ([Lying(3)], [3]),
    ):
        back = codec.decode(codec.encode(value))
        assert back == payload and same_types(back, payload)
    counter = collections.Counter("aab")
    assert type(codec.decode(codec.encode(counter))) is collections.Counter


def test_what_is_no_data_is_refused_or_becomes_a_handle():
    with pytest.raises(codec.Unencodable, match="object is no plain data"):
        codec.encode([object()])
    assert codec.encode([len], lambda value: [5, "f"]) == [{"h": [5, "f"]}]
    with pytest.raises(codec.Unencodable):
        codec.decode({"h": [5, "f"]})
    assert codec.encode(np.array([object()]), lambda value: 1) == {"h": 1}


@pytest.mark.parametrize(
    "payload",
    [
        {"?": 1},
        {"n": ["O", [1], "", False]},
        {"n": ["<f8", [9], "", False]},
        {"i": "x"},
        {"D": "x"},
        {"d": [[[1]], [2]]},
        {"y": "os"},
        {"t": 1, "s": 2},
        {"s": [[1]]},
        {"h": 1},
    ],
)
def test_hostile_payloads_raise(payload):
    with pytest.raises((ValueError, TypeError, KeyError, decimal.InvalidOperation, codec.Unencodable)):
        codec.decode(payload)
    with pytest.raises(ValueError):
        codec.loads(b'{"v": ' + b"9" * 5000 + b"}")
    assert codec.decode({"F": [1, 3]}) == fractions.Fraction(1, 3)
