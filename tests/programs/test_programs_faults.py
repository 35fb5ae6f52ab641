"""Faults that public implementations of code rewards had: a test per kind."""

import os
import signal
import subprocess
import time

import pytest
from program_tasks import RIGHT, RUNNING, RUNNING_PROMPT, RUNNING_TEST, TASKS, WRONG

from rlvr.verifiers.programs import Limits, ProgramPool, ProgramTask, verify_program, verify_programs
from rlvr.verifiers.programs.results import WRONG as WRONG_REASONS
from rlvr.verifiers.programs.worker import Worker, WorkerError

DOUBLE = ProgramTask("own/double", "stdin", (("1\n", "2\n"), ("21\n", "42\n")))


def run(pool, code, task=DOUBLE):
    result = pool.verify(code, task, form="code")
    return result.correct, result.reason


# verl prime_code: a wrong solution made compute_score raise UnboundLocalError with its default arguments
@pytest.mark.fault("error-instead-of-a-score")
def test_a_wrong_solution_gets_a_result(network):
    response = "Here it is:\n```python\nprint(0)\n```"
    result = verify_program(response, DOUBLE, network=network.partition(":")[0])
    assert (result.correct, result.reason) == (False, "wrong")
    assert (result.passed, result.total, result.code) == (0, 2, "print(0)\n")


# verl prime_code; allenai/olmo-eval#354: no tests, and therefore all passed
@pytest.mark.fault("no-tests-passed")
@pytest.mark.parametrize("kind", ["stdin", "functional", "asserts", "check", "script"])
def test_no_tests_is_no_pass(pool, kind):
    task = ProgramTask("own/none", kind, (), None if kind == "stdin" else "f")
    result = pool.verify("print(0)\n", task, form="code")
    assert (result.correct, result.reason) == (None, "no_tests")


@pytest.mark.fault("no-tests-passed")
@pytest.mark.parametrize(
    "test",
    [
        "def check(candidate):\n    pass\n",
        "def check(candidate):\n    candidate(1) == 2\n",
        "x = 1\n",
        "def check(c:\n",
    ],
)
def test_tests_that_cannot_fail_are_no_pass(pool, test):
    result = pool.verify(
        "def f(x):\n    return 0\n", ProgramTask("own/v", "check", (test,), "f"), form="code"
    )
    assert (result.correct, result.reason) == (None, "bad_tests")


@pytest.mark.fault("no-tests-passed")
def test_assertions_that_are_not_reached_are_no_pass(pool):
    statements = ("assert f(2) == [2]", "for x in f(0):\n    assert x == 0")
    task = ProgramTask("own/r", "asserts", statements, "f")
    result = pool.verify("def f(x):\n    return [x] if x else []\n", task, form="code")
    assert (result.correct, result.reason, result.passed, result.total) == (False, "wrong", 1, 2)
    assert "no assertion was reached" in result.first_failure
    assert run(pool, "def f(x):\n    return [x]\n", task) == (True, "correct")


@pytest.mark.fault("no-tests-passed")
def test_tests_that_do_not_ask_the_program_are_no_pass(pool):
    task = ProgramTask("own/v", "check", ("def check(candidate):\n    assert True\n",), "f")
    assert run(pool, "def f(x):\n    return 0\n", task) == (None, "bad_tests")


# rllm-org/rllm#915: one zombie per program that ran out of time
# rllm-org/rllm#915 (comment), openai/codex#4337: a grandchild holds stdout, the reader hangs
@pytest.mark.fault("processes-left-behind", "grandchild-holds-the-output")
@pytest.mark.parametrize("start", ["subprocess.Popen(['sleep', '999'])", "os.fork() or time.sleep(999)"])
def test_grandchildren_neither_hang_nor_stay(pool, hasty, start):
    code = f"import os, subprocess, sys, time\nsys.stdout.flush()\n{start}\n"
    began = time.monotonic()
    assert run(pool, code + "print(2 * int(input()))\n") == (True, "correct")
    assert run(pool, code + RIGHT["running"], RUNNING) == (True, "correct")
    assert run(hasty, code + "time.sleep(99)\n") == (False, "timeout")
    assert time.monotonic() - began < 10
    listing = subprocess.run(["ps", "-eo", "pid,ppid,stat,args"], capture_output=True, text=True).stdout
    zygotes = {worker._process.pid for worker in pool._all + hasty._all}
    below = [line for line in listing.splitlines()[1:] if int(line.split()[1]) in zygotes]
    assert below == [] and "sleep 999" not in listing
    mine = [line for line in listing.splitlines()[1:] if int(line.split()[1]) == os.getpid()]
    assert not any(line.split()[2].startswith("Z") for line in mine)


# NVIDIA-NeMo/Gym PR#2956, verl prime_code: sys.stdout and sys.stdin were StringIO, without a buffer
@pytest.mark.fault("streams-without-bytes")
def test_binary_streams(pool):
    code = "import sys\nn = int(sys.stdin.buffer.readline())\nsys.stdout.buffer.write(b'%d\\n' % (2 * n))\n"
    assert run(pool, code) == (True, "correct")


# NVIDIA-NeMo/Gym PR#2956: the interpreter's limit on digits
@pytest.mark.fault("limit-on-long-integers")
def test_integers_of_many_digits(pool):
    task = ProgramTask("own/big", "stdin", (("5000\n", "1" + "0" * 5000 + "\n"),))
    assert run(pool, "print(10 ** int(input()))\n", task) == (True, "correct")
    assert run(pool, "print(10 ** int(input()) + 1)\n", task) == (False, "wrong")
    task = ProgramTask("own/big", "stdin", (("9" * 6000 + "\n", "9" * 6000 + "\n"),))
    assert run(pool, "print(int(input()))\n", task) == (True, "correct")
    check = (
        "def check(candidate):\n    assert candidate(9000) == 10 ** 9000\n"
        "    assert len(str(candidate(5000))) == 5001\n"
    )
    task = ProgramTask("own/big", "check", (check,), "power")
    assert run(pool, "def power(n):\n    return int('1' + '0' * n)\n", task) == (True, "correct")
    assert run(pool, "def power(n):\n    return 10 ** n + 1\n", task) == (False, "wrong")


# NVIDIA-NeMo/Gym PR#3153: 200 of 200 tasks passed
@pytest.mark.fault("tests-compiled-with-the-answer")
def test_a_decorator_at_the_end_swallows_nothing(pool):
    swallow = WRONG["running"] + "@(lambda f: (lambda c: None))\n"
    joined = f"{swallow}{RUNNING_TEST}\ncheck(running_max)\n"
    exec(compile(joined, "joined", "exec"), {})  # the fault: compiled as one, it passes
    with pytest.raises(AssertionError):
        exec(compile(f"{WRONG['running']}{RUNNING_TEST}\ncheck(running_max)\n", "joined", "exec"), {})
    assert run(pool, swallow, RUNNING) == (False, "syntax")
    response = f"```python\n{RUNNING_PROMPT}    return list(values)\n@(lambda f: (lambda c: None))\n```"
    assert pool.verify(response, RUNNING).correct is False


# openai/human-eval#65, MakazhanAlpamys/Soup#21: a patched socket module does not stop curl or ctypes
# -> test_isolation.py: test_no_way_to_the_network


# NVIDIA-NeMo/Gym PR#2015 (review): a sandbox that failed was trained on as a wrong answer
@pytest.mark.fault("machine-failure-is-a-wrong-answer")
def test_failures_of_the_machine_are_undecided(monkeypatch, pool):
    calls = [0]
    real = Worker.run

    def fails_once_in_ten(self, job):
        calls[0] += 1
        if calls[0] % 10 in (0, 1):  # the second attempt too
            raise WorkerError("the sandbox did not start")
        return real(self, job)

    monkeypatch.setattr(Worker, "run", fails_once_in_ten)
    results = [pool.verify(RIGHT["sums"], TASKS["sums"], form="code") for _ in range(20)]
    lost = [r for r in results if r.correct is None]
    assert 1 <= len(lost) <= 3 and {r.reason for r in lost} == {"infrastructure"}
    assert [r.correct for r in results if r.correct is not None] == [True] * (20 - len(lost))
    assert lost[0].first_failure == "the sandbox did not start" and lost[0].verdict().correct is None


@pytest.mark.fault("machine-failure-is-a-wrong-answer")
def test_a_lost_worker_is_replaced(network, monkeypatch):
    monkeypatch.setattr("rlvr.verifiers.programs.worker._SILENCE", 0.5)
    monkeypatch.setattr("rlvr.verifiers.programs.worker._GRACE", 0.5)
    limits = Limits(test_seconds=0.5, total_seconds=0.5)
    with ProgramPool(1, limits, network.partition(":")[0], packages=()) as pool:
        for number in (signal.SIGKILL, signal.SIGSTOP):
            lost = pool._all[0]._process.pid
            os.kill(lost, number)
            assert run(pool, "print(2 * int(input()))\n") == (True, "correct")
            assert pool._all[0]._process.pid != lost and not os.path.exists(f"/proc/{lost}")
        monkeypatch.setattr("rlvr.verifiers.programs.worker._START", "raise OSError('no interpreter')")
        os.kill(pool._all[0]._process.pid, signal.SIGKILL)
        result = pool.verify("print(0)\n", DOUBLE, form="code")
        assert (result.correct, result.reason) == (None, "infrastructure")
        assert "no interpreter" in result.first_failure


# open-compass/opencompass#1930: deep recursion ended the evaluation
@pytest.mark.fault("deep-recursion")
@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.setrecursionlimit(10 ** 6)\ndef f(n):\n    return f(n + 1)\n",
        "def f(n):\n    return f(n + 1)\n",
        "import sys\nsys.setrecursionlimit(10 ** 7)\nclass A:\n    def __getattr__(self, name):\n"
        "        return getattr(self, name)\ndef f(n):\n    return A().x\n",
        "import ctypes\ndef f(n):\n    ctypes.string_at(8)\n",
        "x = " + "(" * 5000 + ")" * 5000 + "\n",
        "x = " + "-" * 200000 + "1\n",
    ],
)
def test_deep_recursion_is_a_failed_test(hasty, code):
    assert run(hasty, code + "f(0)\n")[0] is False
    assert run(hasty, code + "def running_max(values):\n    return f(0)\n", RUNNING)[0] is False


def test_deep_values_and_allowed_depth(pool):
    nested = "x = []\nfor _ in range(100000):\n    x = [x]\ndef running_max(values):\n    return x\n"
    assert run(pool, nested, RUNNING)[0] is False
    shallow = "def f(n):\n    return 0 if n == 0 else f(n - 1)\nf(900)\n"
    assert run(pool, shallow + "print(2 * int(input()))\n") == (True, "correct")
    deep = "import sys\nsys.setrecursionlimit(10 ** 5)\n" + shallow.replace("900", "90000")
    assert run(pool, deep + "print(2 * int(input()))\n") == (True, "correct")


# verl prime_code: fifteen seconds of output were kept in memory
@pytest.mark.fault("flood-of-output")
def test_a_flood_of_output_is_cut(pool):
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    assert run(pool, "while True:\n    print('x' * 1000)\n") == (False, "output")
    assert time.monotonic() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kilobytes


@pytest.mark.fault("two-scores-for-one-sample")
def test_exactly_one_result_per_item_in_order(network):
    """Rewards must not slide to the neighbour, whatever happens in between."""
    kinds = {
        "print(2 * int(input()))\n": True,
        "print(0)\n": False,
        "import os\nos._exit(3)\n": False,
        "x = (\n": False,
        "": False,
    }
    items = [(code, DOUBLE) for _ in range(8) for code in kinds]
    seen = []
    results = verify_programs(
        items,
        2,
        progress=lambda done, total: seen.append((done, total)),
        form="code",
        network=network.partition(":")[0],
    )
    assert [r.correct for r in results] == [*kinds.values()] * 8
    assert [r.code for r in results] == [code or None for code, _ in items]
    assert seen == [(i + 1, len(items)) for i in range(len(items))]


# --- answers that our side of the box would not give --------------------------------------------------

HOSTILE = """
import json, os, struct
def frame(message):
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack("<I", len(body)) + body
def send(*messages):
    for fd in range(3, 64):
        try:
            os.write(fd, b"".join(map(frame, messages)))
        except OSError:
            pass
"""


@pytest.mark.fault("program-reaches-its-judge")
@pytest.mark.parametrize(
    "answer",
    [
        {"raise": 5},
        {"raise": {}},
        {"raise": {"kind": [], "name": None}},
        {"raise": {"kind": "ValueError", "args": {"?": 1}}},
        {"callback": 1},
        {"callback": [], "args": 1},
        {"value": {"h": None}},
        {"value": {"h": [{}, []]}},
        {"value": {"t": 1}},
        {"value": {"n": ["V8", [10**9], "", False]}},
        {"value": {"a": 1, "b": 2}},
        {"large": []},
        {},
        [],
        None,
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"value": ' + b"9" * 100_000 + b"}",
        b'{"value": NaN}',
    ],
)
def test_made_up_answers_are_wrong_and_not_undecided(hasty, answer):
    """In place of the answer that the program was loaded, or of any later one."""
    instead = f"{HOSTILE}send({answer!r})\n" + WRONG["running"]
    result = hasty.verify(instead, RUNNING, form="code")
    assert result.correct is False and result.reason in WRONG_REASONS, result
    later = f"{HOSTILE}def running_max(values):\n    send({answer!r})\n    os._exit(0)\n"
    result = hasty.verify(later, RUNNING, form="code")
    assert result.correct is False and result.reason in WRONG_REASONS, result


def test_a_test_that_no_signal_interrupts(network, monkeypatch):
    """What the program answered keeps the judge inside one operation: the zygote ends it from outside."""
    monkeypatch.setattr("rlvr.verifiers.programs.worker._GRACE", 0.2)
    limits = Limits(test_seconds=0.2, total_seconds=0.3, patience=2.0)
    task = ProgramTask("own/c", "check", ("def check(candidate):\n    assert 3 ** candidate(1) > 0\n",), "f")
    with ProgramPool(1, limits, network.partition(":")[0], packages=()) as pool:
        assert run(pool, "def f(x):\n    return 10 ** 8\n", task) == (False, "timeout")
        assert run(pool, "def f(x):\n    return 2\n", task) == (True, "correct")
