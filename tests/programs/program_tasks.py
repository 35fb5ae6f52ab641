"""Small tasks in the shapes of the benchmarks, each with a right and a wrong solution."""

from rlvr.verifiers.programs import ProgramTask

# HumanEval: a prompt with a helper, a check.
SHIFT_PROMPT = '''from typing import List


def encode(text: str) -> str:
    """Every letter one further on, z becomes a."""
    return "".join(chr((ord(c) - 96) % 26 + 97) for c in text)


def decode(text: str) -> str:
    """Takes a string that encode returned, gives back what was encoded.
    >>> decode("bcd")
    'abc'
    """
'''
SHIFT_TEST = """

METADATA = {"author": "us"}


def check(candidate):
    from random import randint, choice
    import string

    for _ in range(20):
        word = "".join(choice(string.ascii_lowercase) for _ in range(randint(3, 9)))
        coded = encode(word)
        assert candidate(coded) == word
"""
SHIFT = ProgramTask.from_humaneval(
    {"task_id": "own/shift", "prompt": SHIFT_PROMPT, "entry_point": "decode", "test": SHIFT_TEST}
)

RUNNING_PROMPT = '''def running_max(values: list) -> list:
    """Largest element so far, at every place.
    >>> running_max([1, 3, 2])
    [1, 3, 3]
    """
'''
RUNNING_TEST = """
def check(candidate):
    assert candidate([1, 3, 2]) == [1, 3, 3]
    assert candidate([]) == []
    assert candidate([5, 4, 6, 2]) == [5, 5, 6, 6], "Test 3"
    assert True, "This prints if this assert fails 1"
    assert candidate([-2, -3, -1]) == [-2, -2, -1]
"""
RUNNING = ProgramTask.from_humaneval(
    {"task_id": "own/running", "prompt": RUNNING_PROMPT, "entry_point": "running_max", "test": RUNNING_TEST}
)

# HumanEval+: inputs and results, numpy's allclose.
MEAN_PROMPT = '''def mean(values):
    """Arithmetic mean."""
'''
MEAN_TEST = """
import numpy as np

def is_floats(x) -> bool:
    return isinstance(x, float)

def assertion(out, exp, atol):
    exact_match = out == exp
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if not exact_match and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert exact_match

def check(candidate):
    inputs = [[[1.0, 2.0]], [[0.1, 0.2, 0.3]], [[4.0]], [[2.5, -2.5, 9.0]]]
    results = [1.5, 0.2, 4.0, 3.0]
    for i, (inp, exp) in enumerate(zip(inputs, results)):
        assertion(candidate(*inp), exp, 0)
"""
MEAN = ProgramTask.from_humaneval(
    {"task_id": "own/mean", "prompt": MEAN_PROMPT, "entry_point": "mean", "test": MEAN_TEST}, plus=True
)

# MBPP: assertions, with an import.
AREA = ProgramTask.from_mbpp(
    {
        "task_id": 9001,
        "test_list": [
            "assert math.isclose(area(2.0, 3.0), 3.0, rel_tol=0.001)",
            "assert math.isclose(area(1.0, 5.0), 2.5, rel_tol=0.001)",
            "assert math.isclose(area(10, 0.5), 2.5, rel_tol=0.001)",
        ],
        "test_imports": ["import math"],
    }
)
EVEN = ProgramTask.from_mbpp(
    {"task_id": 9002, "test_list": ["assert evens([1, 2, 4]) == [2, 4]", "assert evens([3]) == []"]}
)

# LiveCodeBench: a method, and standard input.
PAIRS = ProgramTask.from_livecodebench(
    {
        "question_id": "own-pairs",
        "public_test_cases": [
            {"input": "[1, 2, 3]\n4", "output": "1", "testtype": "functional"},
            {"input": "[2, 2, 2]\n4", "output": "3", "testtype": "functional"},
            {"input": "[]\n0", "output": "0", "testtype": "functional"},
        ],
        "metadata": '{"func_name": "countPairs"}',
    }
)
SUMS = ProgramTask.from_livecodebench(
    {
        "question_id": "own-sums",
        "public_test_cases": [
            {"input": "2\n1 2\n3 4\n", "output": "3\n7\n", "testtype": "stdin"},
            {"input": "1\n10 -4\n", "output": "6\n", "testtype": "stdin"},
            {"input": "3\n0 0\n1 1\n5 6\n", "output": "0\n2\n11\n", "testtype": "stdin"},
        ],
    }
)

# Checks with weak spots that only a program in their own process can reach.
SORTED = ProgramTask(
    "own/sorted",
    "check",
    (
        "def check(candidate):\n"
        "    for values in ([3, 1, 2], [2, 1], [9, 8, 7]):\n"
        "        assert candidate(values) == sorted(values)\n",
    ),
    "arrange",
)
SQUARES = ProgramTask(
    "own/squares",
    "check",
    (
        "CASES = [(2, 4), (3, 9), (10, 100)]\n"
        "def check(candidate):\n"
        "    assert all(map(lambda case: candidate(case[0]) == case[1], CASES))\n",
    ),
    "square",
)
DIVISORS = ProgramTask(
    "own/divisors",
    "check",
    (
        "def check(candidate):\n"
        "    for n in (12, 9, 7):\n"
        "        for d in candidate(n):\n"
        "            assert n % d == 0 and d > 1\n",
    ),
    "divisors",
)

TASKS = {
    "shift": SHIFT,
    "running": RUNNING,
    "mean": MEAN,
    "area": AREA,
    "even": EVEN,
    "pairs": PAIRS,
    "sums": SUMS,
    "sorted": SORTED,
    "squares": SQUARES,
    "divisors": DIVISORS,
}
RIGHT = {
    "shift": 'def decode(text):\n    return "".join(chr((ord(c) - 98) % 26 + 97) for c in text)\n',
    "running": (
        "def running_max(values):\n    out = []\n    for v in values:\n"
        "        out.append(v if not out else max(v, out[-1]))\n    return out\n"
    ),
    "mean": "def mean(values):\n    return sum(values) / len(values)\n",
    "area": "def area(base, height):\n    return base * height / 2\n",
    "even": "def evens(values):\n    return [v for v in values if v % 2 == 0]\n",
    "pairs": (
        "class Solution:\n    def countPairs(self, nums: List[int], target: int) -> int:\n"
        "        return sum(a + b == target for a, b in itertools.combinations(nums, 2))\n"
    ),
    "sums": "for _ in range(int(input())):\n    a, b = map(int, input().split())\n    print(a + b)\n",
    "sorted": "def arrange(values):\n    return sorted(values)\n",
    "squares": "def square(n):\n    return n * n\n",
    "divisors": "def divisors(n):\n    return [d for d in range(2, n + 1) if n % d == 0]\n",
}
WRONG = {
    "shift": "def decode(text):\n    return text\n",
    "running": "def running_max(values):\n    return list(values)\n",
    "mean": "def mean(values):\n    return 0.0\n",
    "area": "def area(base, height):\n    return base * height\n",
    "even": "def evens(values):\n    return list(values)\n",
    "pairs": (
        "class Solution:\n    def countPairs(self, nums: List[int], target: int) -> int:\n"
        "        return len(nums)\n"
    ),
    "sums": "for _ in range(int(input())):\n    a, b = map(int, input().split())\n    print(a * b)\n",
    "sorted": "def arrange(values):\n    return list(values)\n",
    "squares": "def square(n):\n    return 0\n",
    "divisors": "def divisors(n):\n    return [5]\n",
}
