"""Canonical solutions against the tests of their benchmark. Needs the data: RLVR_DATA=/folder."""

import gzip
import json
import os
from pathlib import Path

import pytest

from rlvr.verifiers.programs import Limits, ProgramTask, verify_program, verify_programs
from rlvr.verifiers.programs.prepare import prepare

DATA = os.environ.get("RLVR_DATA", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA, reason="RLVR_DATA is not set: the folder with the benchmarks' files"),
]
REPAIRED = {"humaneval_plus": {"HumanEval/32"}, "mbpp_plus": {"255", "737", "787", "794"}}
LONG = Limits(test_seconds=60, total_seconds=120, patience=5)


def records(name):
    for path in (Path(DATA, f"{name}.jsonl"), Path(DATA, f"{name}.jsonl.gz")):
        if path.exists():
            with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
                return [json.loads(line) for line in lines]
    pytest.skip(f"{name} is not in {DATA}")


@pytest.fixture(scope="module")
def mode(network):
    return network.partition(":")[0]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("humaneval", 164),
        ("humaneval_plus", 164),
        ("humaneval_plus_mini", 164),
        ("mbpp", 974),
        ("mbpp_sanitized", 427),
        ("mbpp_plus", 378),
    ],
)
def test_every_canonical_solution_passes(name, count, mode):
    problems = records(name)
    assert len(problems) == count
    tasks = [ProgramTask.from_record(problem) for problem in problems]
    completes = name.startswith("humaneval")
    codes = [(p["prompt"] if completes else "") + p["canonical_solution"] for p in problems]
    results = verify_programs(list(zip(codes, tasks, strict=True)), form="code", limits=LONG, network=mode)
    failures = {
        t.id: (r.reason, r.first_failure) for t, r in zip(tasks, results, strict=True) if not r.correct
    }
    assert failures == {}
    assert {task.id for task in tasks if task.repair} == REPAIRED.get(name, set())
    assert all(0 < r.passed == r.total for r in results)


@pytest.mark.parametrize("name", ["humaneval", "mbpp", "mbpp_sanitized"])
def test_a_function_that_returns_nothing_fails(name, mode):
    """The other half: tests that such a program passes test nothing."""
    tasks = [ProgramTask.from_record(problem) for problem in records(name)]
    items = [(f"def {task.entry_point}(*args, **kwargs):\n    return None\n", task) for task in tasks]
    results = verify_programs(items, form="code", network=mode)
    assert [t.id for t, r in zip(tasks, results, strict=True) if r.correct is not False] == []


@pytest.mark.parametrize("name", ["humaneval_plus", "mbpp_plus"])
def test_an_empty_list_is_close_to_no_float(name, mode):
    """In the published test code it is, by broadcasting in numpy.allclose."""
    problems = [p for p in records(name) if "allclose" in p["test"]]
    tasks = [ProgramTask.from_record(problem) for problem in problems]
    items = [(f"def {task.entry_point}(*args, **kwargs):\n    return []\n", task) for task in tasks]
    results = verify_programs(items, form="code", network=mode)
    assert len(tasks) > 100
    assert [t.id for t, r in zip(tasks, results, strict=True) if r.correct is not False] == []


def test_all_of_livecodebench_loads():
    tasks = [ProgramTask.from_record(problem) for problem in records("livecodebench_v1_public")]
    assert len(tasks) == 400 and all(task.tests for task in tasks)
    assert sum(task.kind == "stdin" for task in tasks) == 219
    assert all(prepare(task)["tests"] for task in tasks)


# Solutions of our own, and what makes each of them wrong.
SOLUTIONS = {
    "2727": (
        """
class Solution:
    def countSeniors(self, details: List[str]) -> int:
        return sum(int(d[11:13]) > 60 for d in details)
""",
        ("> 60", "> 40"),
    ),
    "2755": (
        """
class Solution:
    def minExtraChar(self, s: str, dictionary: List[str]) -> int:
        @cache
        def best(i):
            if i == len(s):
                return 0
            words = [w for w in dictionary if s.startswith(w, i)]
            return min([1 + best(i + 1)] + [best(i + len(w)) for w in words])

        return best(0)
""",
        ("1 + best", "2 + best"),
    ),
    "1873_A": (
        """
for _ in range(int(input())):
    s = input()
    print("YES" if sum(a != b for a, b in zip(s, "abc")) in (0, 2) else "NO")
""",
        ("(0, 2)", "(0, 2, 3)"),
    ),
    "1883_B": (
        """
import sys
input = sys.stdin.readline
for _ in range(int(input())):
    n, k = map(int, input().split())
    odd = sum(v % 2 for v in Counter(input().strip()).values())
    print("YES" if odd <= k + 1 else "NO")
""",
        ("k + 1", "k"),
    ),
}


def test_solutions_of_our_own_to_livecodebench(mode):
    problems = {problem["id"]: problem for problem in records("livecodebench_v1_public")}
    for name, (code, (right, wrong)) in SOLUTIONS.items():
        result = verify_program(f"So:\n```python{code}```", problems[name], network=mode)
        assert result.correct is True, (name, result)
        assert right in code
        result = verify_program(code.replace(right, wrong), problems[name], form="code", network=mode)
        assert result.correct is False, (name, result)
