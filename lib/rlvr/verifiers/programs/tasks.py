"""Programming tasks as the benchmarks publish them, brought into one form."""

from __future__ import annotations

import ast
import builtins
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["check", "script", "asserts", "functional", "stdin"]
KINDS = ("check", "script", "asserts", "functional", "stdin")
TOLERANCE = 1e-6

# LiveCodeBench's grader puts these names in front of every program.
_STARRED = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io "
    "sys json builtins typing"
).split()
CONTEST_PRELUDE = "".join(f"from {name} import *\nimport {name}\n" for name in _STARRED) + (
    "sys.setrecursionlimit(50000)\n"
)

# Where a benchmark has inputs and a reference solution: floats as evalplus compares them.
_REFERENCE_CHECK = """
import copy as _copy

def _same(out, expected):
    if isinstance(expected, float) and isinstance(out, (int, float)):
        return out == expected or abs(out - expected) <= _ATOL + 1e-7 * abs(expected)
    if isinstance(expected, (list, tuple)) and type(out) is type(expected) and len(out) == len(expected):
        return all(map(_same, out, expected))
    return out == expected

def check(candidate):
    for x in _INPUTS:
        expected = _REFERENCE(*_copy.deepcopy(x))
        assert _same(candidate(*x), expected)
"""
_ROOT_CHECK = """
def check(candidate):
    for x in _INPUTS:
        assert abs(poly(*x, candidate(*x))) <= 1e-4
"""

# Published test code that judges no program as it should: (where, pattern, replacement, why).
REPAIRS = (
    (
        "humaneval_plus",
        r"assert _poly\(\*candidate\(\*inp\), inp\) <= 0.0001",
        "assert abs(_poly(*inp, candidate(*inp))) <= 0.0001",
        "unpacks the answer, a float, in place of the input: no program can pass (HumanEval/32)",
    ),
    (
        "mbpp_plus",
        r"( +)exact_match = exp == \(out is not None\)\n",
        r"\g<0>    assert exact_match\n",
        "computes whether the answer is right and asserts nothing: no program can fail (737, 787, 794)",
    ),
    (
        "mbpp_plus",
        r", \[\[[^\]]*\], 7[67]\](?=(?:.*\n)+.*combinations_colors\()",
        "",
        "five inputs whose answers have 6 to 128 million elements, up to 1 GB, left out (255)",
    ),
)


@dataclass(frozen=True)
class ProgramTask:
    """One task.

    Attributes:
        kind: what ``tests`` holds.
            ``check``: test code that defines ``check(candidate)``; ``script``: test code that is the test;
            ``asserts``: statements, each one a test;
            ``functional``: pairs (arguments, expected value); ``stdin``: pairs (input, expected output).
        entry_point: name that the tests call, ``Class.method`` for a method of a new instance; None for
            ``stdin``.
        prompt: code that a completion continues; empty where the prompt is text.
        helpers: code of the task's own that stands before the program (imports, functions of the prompt).
            The tests use their own copy of it.
        setup: test code that runs before the tests.
        prelude: code that runs before the program and that the tests do not see.
        tolerance: absolute or relative difference of numbers that counts as none, in ``functional`` and
            ``stdin`` (absolute alone where the expected number is whole); test code compares by itself.
        in_place: changes that the function makes to its arguments reach the tests.
        repair: what was changed in the published tests, and why.
    """

    id: str
    kind: Kind
    tests: tuple[Any, ...]
    entry_point: str | None = None
    prompt: str = ""
    helpers: str = ""
    setup: str = ""
    prelude: str = ""
    tolerance: float = TOLERANCE
    in_place: bool = False
    repair: str = ""
    _prepared: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r}: allowed are {', '.join(map(repr, KINDS))}")
        if (self.entry_point is None) != (self.kind == "stdin"):
            raise ValueError(f"entry_point={self.entry_point!r}: allowed is None for 'stdin', else a name")
        if self.kind in ("functional", "stdin") and any(len(test) != 2 for test in self.tests):
            raise ValueError(f"tests of {self.id!r}: allowed are pairs for kind {self.kind!r}")
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance={self.tolerance!r}: allowed are 0 <= tolerance < 1")

    @classmethod
    def from_humaneval(cls, record: Mapping[str, Any], plus: bool = False) -> ProgramTask:
        """HumanEval and, with ``plus``, HumanEval+: ``prompt``, ``entry_point``, ``test`` with ``check``."""
        entry, prompt = record["entry_point"], record["prompt"]
        start = [match.start() for match in re.finditer(rf"^def {re.escape(entry)}\b", prompt, re.MULTILINE)]
        if not start:
            raise ValueError(f"prompt of {_id(record)!r}: allowed is code that defines {entry}")
        test, repair = _repaired("humaneval_plus" if plus else "humaneval", record["test"])
        helpers = prompt[: start[-1]]
        return cls(_id(record), "check", (test,), entry, prompt, helpers, repair=repair)

    @classmethod
    def from_reference(cls, record: Mapping[str, Any]) -> ProgramTask:
        """HumanEval+ mini: inputs, and a reference solution that the judge runs for the expected values."""
        entry = record["entry_point"]
        check = _ROOT_CHECK if entry == "find_zero" else _REFERENCE_CHECK  # any root is right
        inputs = [*record["base_input"], *record["plus_input"]]
        test = (
            f"{record['prompt']}{record['canonical_solution']}\n_REFERENCE = {entry}\n"
            f"_INPUTS = {inputs!r}\n_ATOL = {record.get('atol') or TOLERANCE!r}\n{check}"
        )
        return cls.from_humaneval({**record, "test": test})

    @classmethod
    def from_mbpp(cls, record: Mapping[str, Any]) -> ProgramTask:
        """MBPP, full or sanitized: ``test_list``, with ``test_setup_code`` or ``test_imports``."""
        tests = tuple(record["test_list"])
        imports = record.get("test_imports") or []
        setup = "\n".join([*imports, record.get("test_setup_code") or ""]).replace("\r\n", "\n")
        entry = record.get("entry_point") or entry_point_of(tests)
        return cls(_id(record), "asserts", tests, entry, setup=setup)

    @classmethod
    def from_mbpp_plus(cls, record: Mapping[str, Any]) -> ProgramTask:
        """MBPP+: ``test``, a script with inputs and results."""
        test, repair = _repaired("mbpp_plus", record["test"])
        entry = record.get("entry_point") or entry_point_of(record["test_list"])
        setup = "\n".join(record.get("test_imports") or [])
        return cls(_id(record), "script", (test,), entry, setup=setup, repair=repair)

    @classmethod
    def from_livecodebench(cls, record: Mapping[str, Any], tolerance: float = TOLERANCE) -> ProgramTask:
        """LiveCodeBench: the public tests and, where they are given decoded, the private ones.

        Its own grader compares printed numbers exactly: that is ``tolerance=0``.
        """
        tests = [*_tests(record, "public"), *_tests(record, "private")]
        kinds = {test["testtype"] for test in tests}
        if kinds == {"functional"}:
            metadata = record.get("metadata") or "{}"
            metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
            pairs = [
                (
                    tuple(map(json.loads, filter(str.strip, test["input"].split("\n")))),
                    json.loads(test["output"]),
                )
                for test in tests
            ]
            entry = f"Solution.{metadata['func_name']}"
            return cls(
                _id(record), "functional", tuple(pairs), entry, prelude=CONTEST_PRELUDE, tolerance=tolerance
            )
        if not kinds <= {"stdin"}:
            raise ValueError(
                f"testtype of {_id(record)!r}: allowed is one of 'functional', 'stdin', got {kinds}"
            )
        pairs = [(test["input"], test["output"]) for test in tests]
        return cls(_id(record), "stdin", tuple(pairs), prelude=CONTEST_PRELUDE, tolerance=tolerance)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> ProgramTask:
        """A record of any of these benchmarks, told apart by its fields."""
        make = _maker(record)
        try:
            return make(record)
        except KeyError as error:
            raise ValueError(f"record with the fields {', '.join(record)}: {error} is missing") from None

    @classmethod
    def from_problem(cls, problem: Any) -> ProgramTask:
        """A ``BenchmarkProblem``; private tests of LiveCodeBench are decoded here."""
        from rlvr.problems.benchmarks import program_record

        return cls.from_record(program_record(problem.tests))


def _maker(record: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], ProgramTask]:
    test = record.get("test") or ""
    if "public_tests" in record or "public_test_cases" in record:
        return ProgramTask.from_livecodebench
    if "base_input" in record and not test:
        return ProgramTask.from_reference
    if "def check(" in test:
        plus = "is_floats" in test or "_poly(" in test
        return functools.partial(ProgramTask.from_humaneval, plus=plus)
    if re.search(r"^inputs = ", test, re.MULTILINE):
        return ProgramTask.from_mbpp_plus
    if "test_list" in record:
        return ProgramTask.from_mbpp
    raise ValueError(
        f"record with the fields {', '.join(record)}: allowed are records of HumanEval(+) (test with check), "
        "MBPP(+) (test_list) and LiveCodeBench (public_tests)"
    )


def entry_point_of(tests: Iterable[str]) -> str:
    """The function that assertions call: the outermost called name, if possible one that is no builtin.

    The original MBPP has no field for it.
    """
    nodes = [node for test in tests for node in ast.walk(ast.parse(test))]
    names = [n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    if not names:
        raise ValueError("test_list: allowed are assertions that call the function")
    return next((name for name in names if not hasattr(builtins, name)), names[0])


def _id(record: Mapping[str, Any]) -> str:
    names = ("id", "task_id", "question_id")
    found = [record[name] for name in names if name in record]
    if not found:
        raise ValueError(
            f"record with the fields {', '.join(record)}: allowed are records with one of {names}"
        )
    return str(found[0])


def _repaired(where: str, test: str) -> tuple[str, str]:
    for benchmark, pattern, replacement, why in REPAIRS:
        if benchmark == where and re.search(pattern, test):
            return re.sub(pattern, replacement, test), why
    return test, ""


def _tests(record: Mapping[str, Any], which: str) -> Sequence[Mapping[str, str]]:
    tests = record.get(f"{which}_tests") or record.get(f"{which}_test_cases") or []
    if not isinstance(tests, str):
        return tests
    try:
        return json.loads(tests)
    except json.JSONDecodeError:
        raise ValueError(
            f"{which}_test_cases of {_id(record)!r}: allowed are lists and JSON; decode compressed ones first"
        ) from None
