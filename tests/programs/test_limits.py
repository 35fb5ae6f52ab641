"""Programs that run away, and programs that only look like it."""

import time

import pytest
from program_tasks import RIGHT, SUMS

from rlvr.verifiers.programs import Limits, ProgramPool, ProgramTask

ECHO = ProgramTask("own/echo", "stdin", (("21\n", "42\n"),))
INC = ProgramTask("own/inc", "check", ("def check(candidate):\n    assert candidate(1) == 2\n",), "inc")
DOUBLE = "print(2 * int(input()))\n"
INCREMENT = "def inc(x):\n    return x + 1\n"


def run(pool, code, task=ECHO, **options):
    result = pool.verify(code, task, form="code", **options)
    return result.correct, result.reason


# --- time ---------------------------------------------------------------------------------------------


def run_all(pool, *programs):
    """(correct, reason) of (code, task) pairs, two at a time."""
    return [(r.correct, r.reason) for r in pool.verify_many(programs, form="code")]


def test_endless_loop(hasty):
    start = time.monotonic()
    loops = ["while True:\n    pass\n", "import re\nre.match('(a*)*b', 'a' * 40)\n"]
    programs = [(code, ECHO) for code in loops] + [(code + INCREMENT, INC) for code in loops]
    programs += [("def inc(x):\n    while True:\n        pass\n", INC)]
    assert run_all(hasty, *programs) == [(False, "timeout")] * 5
    assert time.monotonic() - start < 15


def test_sleeping_uses_no_processor_and_ends_by_the_clock(hasty, pool):
    start = time.monotonic()
    assert run(hasty, "import time\ntime.sleep(60)\n") == (False, "timeout")
    assert 0.8 < time.monotonic() - start < 10  # patience times test_seconds is 1.2 s
    assert run(pool, "import time\ntime.sleep(0.5)\n" + DOUBLE) == (True, "correct")


def test_total_time_counts_all_tests(hasty):
    """Each test is below its limit, all together are above theirs."""
    slow = "import time\nstart = time.process_time()\nwhile time.process_time() - start < 0.2:\n    pass\n"
    task = ProgramTask("own/many", "stdin", (("1\n", "2\n"),) * 9)
    result = hasty.verify(slow + DOUBLE, task, form="code")
    assert (result.correct, result.reason) == (False, "timeout") and 0 < result.passed < 9
    check = ProgramTask("own/calls", "functional", (((1,), 2),) * 9, "inc")
    code = (
        "import time\ndef inc(x):\n    start = time.process_time()\n"
        "    while time.process_time() - start < 0.2:\n"
    )
    result = hasty.verify(code + "        pass\n    return x + 1\n", check, form="code")
    assert result.correct is False and result.reason in ("timeout", "killed") and result.passed < 9


def test_a_test_that_loops_on_the_answer_is_a_time_out_of_the_program(hasty):
    asking = "def check(candidate):\n    while candidate(1):\n        pass\n    assert 1\n"
    silent = "def check(candidate):\n    n = candidate(1)\n    while n:\n        pass\n    assert 1\n"
    tasks = [ProgramTask("own/w", "check", (test,), "f") for test in (asking, silent)]
    one, zero = "def f(x):\n    return 1\n", "def f(x):\n    return 0\n"
    assert run_all(hasty, *((one, task) for task in tasks)) == [(False, "timeout")] * 2
    assert run_all(hasty, *((zero, task) for task in tasks)) == [(True, "correct")] * 2


@pytest.mark.fault("busy-machine-is-a-wrong-answer")
def test_a_busy_machine_fails_no_program(network):
    """Six programs at once, each near its limit of processor time: the clock shows more than the limit."""
    code = (
        "import time\nstart = time.process_time()\nwhile time.process_time() - start < 0.3:\n    pass\n"
        + DOUBLE
    )
    limits = Limits(test_seconds=0.6, total_seconds=2.0, patience=40.0)
    with ProgramPool(6, limits, network.partition(":")[0], packages=()) as crowd:
        results = crowd.verify_many([(code, ECHO)] * 6, form="code")
    assert [r.correct for r in results] == [True] * 6


# --- memory, output, processes ------------------------------------------------------------------------


def test_memory(pool):
    assert run(pool, "x = bytearray(4 << 30)\n" + DOUBLE) == (False, "memory")
    assert run(pool, "def inc(x):\n    return len(bytearray(4 << 30))\n", INC) == (False, "memory")
    assert run(pool, "x = []\nwhile True:\n    x.append(bytes(1 << 24))\n")[0] is False
    assert run(pool, "x = bytearray(200 << 20)\n" + DOUBLE) == (True, "correct")


def test_flood_of_output(pool):
    flood = "import sys\nwhile True:\n    sys.stdout.write('x' * 1000 + '\\n')\n"
    start = time.monotonic()
    result = pool.verify(flood, ECHO, form="code")
    assert (result.correct, result.reason) == (False, "output") and len(result.stdout) <= 2000
    assert run(pool, "def inc(x):\n    while True:\n        print('x' * 1000)\n", INC) == (False, "output")
    assert run(pool, "import os\nwhile True:\n    os.write(2, b'x' * 1000)\n") == (False, "output")
    assert run(pool, "print('x' * (2 << 20))\n") == (False, "output")
    assert time.monotonic() - start < 10
    assert run(pool, "import sys\nprint('x' * 500000, file=sys.stderr)\n" + DOUBLE) == (True, "correct")


def test_flood_through_the_returned_value(pool):
    assert run(pool, "def inc(x):\n    return 'x' * (64 << 20)\n", INC) == (False, "output")
    assert run(pool, "def inc(x):\n    return list(range(4 * 10 ** 6))\n", INC)[0] is False
    assert run(pool, "import itertools\ndef inc(x):\n    return itertools.count()\n", INC) == (False, "wrong")


def test_files(isolated):
    big = "with open('big', 'wb') as f:\n    while True:\n        f.write(bytes(1 << 20))\n"
    assert run(isolated, big) == (False, "exception")
    large = "open('large', 'wb').write(bytes(17 << 20))\n"  # there is room for it, the limit is per file
    assert run(isolated, large) == (False, "exception")
    many = "i = 0\nwhile True:\n    open(str(i), 'w').write('x')\n    i += 1\n"
    assert run(isolated, many) == (False, "exception")
    fill = (
        "import os\nfor i in range(8):\n    try:\n        open(f'/tmp/{i}', 'wb').write(bytes(15 << 20))\n"
        "    except OSError:\n        pass\n"
    )
    assert run(isolated, fill + "print(0)\n") == (False, "wrong")
    assert run(isolated, DOUBLE) == (True, "correct")  # the next program has an empty disk
    descriptors = "import os\nn = 0\ntry:\n    while True:\n        n = os.dup(0)\nexcept OSError:\n"
    assert run(isolated, descriptors + "    print(42 if n == 255 else n)\n") == (True, "correct")


FORK_BOMB = """
import os
def inc(x):
    while True:
        try:
            os.fork()
        except OSError:
            pass
"""
THREADS = """
import threading, time
while True:
    threading.Thread(target=time.sleep, args=(60,)).start()
"""


COUNT = """
import os, time
n = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
        n += 1
except BlockingIOError:
    print(42 if 10 < n < 64 else n)
"""


def test_number_of_processes(isolated):
    assert run(isolated, COUNT) == (True, "correct")


def test_fork_bomb(isolated, hasty):
    results = run_all(hasty, (FORK_BOMB + "inc(0)\n", ECHO), (FORK_BOMB, INC), (THREADS, ECHO))
    assert results[0] == (False, "timeout") and [correct for correct, _ in results] == [False] * 3
    assert run(isolated, DOUBLE) == (True, "correct")


# --- what looks like trouble and is none -------------------------------------------------------------


def test_threads_left_running(pool, hasty):
    daemon = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    assert run(pool, daemon + DOUBLE) == (True, "correct")
    assert run(pool, daemon + INCREMENT, INC) == (True, "correct")
    assert run(pool, daemon.replace(", daemon=True", "") + INCREMENT, INC) == (True, "correct")
    # as with any script, the end waits for a thread that is no daemon
    assert run(hasty, daemon.replace(", daemon=True", "") + DOUBLE) == (False, "timeout")
    worker = "import threading\nt = threading.Thread(target=lambda: print(2 * int(input())))\nt.start()\n"
    assert run(pool, worker) == (True, "correct")
    big_stack = (
        "import sys, threading\nsys.setrecursionlimit(10 ** 6)\nthreading.stack_size(256 << 20)\n"
        "def depth(n):\n    return 0 if n == 0 else 1 + depth(n - 1)\n"
        "def main():\n    print(2 * int(input()) if depth(50000) == 50000 else 0)\n"
        "t = threading.Thread(target=main)\nt.start()\nt.join()\n"
    )
    assert run(pool, big_stack) == (True, "correct")


def test_end_of_the_script_is_that_of_an_interpreter(pool):
    assert run(pool, "import atexit, os\natexit.register(lambda: print(2 * int(input())))\n") == (
        True,
        "correct",
    )
    assert run(pool, DOUBLE + "import sys\nsys.exit()\n") == (True, "correct")
    assert run(pool, DOUBLE + "exit(0)\n") == (True, "correct")
    assert run(pool, DOUBLE + "import sys\nsys.exit(1)\n") == (False, "exception")
    assert run(pool, DOUBLE + "raise ValueError\n") == (False, "exception")
    assert run(pool, DOUBLE + "import os, sys\nsys.stdout.flush()\nos._exit(0)\n") == (True, "correct")
    assert run(pool, "import os\nos._exit(0)\n") == (False, "wrong")
    assert run(pool, "if __name__ == '__main__':\n    " + DOUBLE) == (True, "correct")


def test_standard_input_in_every_way(pool):
    for read in (
        "n = int(input())",
        "import sys\nn = int(sys.stdin.readline())",
        "import sys\nn = int(sys.stdin.read())",
        "import sys\nn = int(sys.stdin.buffer.read())",
        "import sys\nn = int(next(sys.stdin))",
        "import sys\n[line] = sys.stdin.readlines()\nn = int(line)",
        "n = int(open(0).read())",
        "n = int(open('/dev/stdin').read())",
        "import os\nn = int(os.read(0, 100))",
        "import sys\nn = int(sys.__stdin__.readline())",
        "import fileinput\nn = int(next(fileinput.input()))",
        "import sys, io\nn = int(io.TextIOWrapper(sys.stdin.buffer).readline())",
    ):
        assert run(pool, read + "\nprint(2 * n)\n") == (True, "correct"), read


def test_standard_output_in_every_way(pool):
    for write in (
        "sys.stdout.write('42\\n')",
        "sys.stdout.buffer.write(b'42\\n')",
        "os.write(1, b'42')",
        "print(42, end='')",
        "print('  42  \\n\\n')",
        "print(42, file=open(1, 'w', closefd=False))",
        "os.system('echo 42')",
        "print('4', end='', flush=True)\nos.write(1, b'2')",
    ):
        assert run(pool, f"import os, sys\n{write}\n") == (True, "correct"), write
    assert run(pool, "import os\nos.write(1, b'\\xff\\xfe')\n") == (False, "wrong")


def test_function_tasks_have_an_empty_standard_input(pool):
    code = "import sys\nassert sys.stdin.read() == ''\n"
    assert run(pool, code + INCREMENT, INC) == (True, "correct")
    assert run(pool, "def inc(x):\n    return int(input())\n", INC) == (False, "exception")


LATE = """
import os, time
if os.fork() == 0:
    time.sleep(0.1)
    print("late", flush=True)
    os._exit(0)
"""


def test_every_test_starts_anew(pool):
    once = "import builtins\nassert not hasattr(builtins, 'seen')\nbuiltins.seen = True\n"
    assert run(pool, once + RIGHT["sums"], SUMS) == (True, "correct")
    left = "import os\nassert not os.listdir('.')\nopen('left', 'w').write('x')\n"
    assert run(pool, left + RIGHT["sums"], SUMS) == (True, "correct")
    # the child of one test does not print into the next
    assert run(pool, LATE + RIGHT["sums"] + "time.sleep(0.05)\n", SUMS) == (True, "correct")


def test_all_tests_are_counted_on_demand(pool, hasty):
    half = "a = input()\nprint(3)\nprint(7)\n"
    early = pool.verify(half, SUMS, form="code")
    full = pool.verify(half, SUMS, form="code", stop_early=False)
    assert (early.passed, early.total) == (1, 3) and (full.passed, full.total) == (1, 3)
    task = ProgramTask("own/f", "functional", (((1,), 0), ((2,), 3), ((3,), 4)), "inc")
    assert pool.verify(INCREMENT, task, form="code").passed == 0
    assert pool.verify(INCREMENT, task, form="code", stop_early=False).passed == 2
    asserts = ProgramTask("own/a", "asserts", ("assert inc(1) == 0", "assert inc(1) == 2"), "inc")
    assert pool.verify(INCREMENT, asserts, form="code", stop_early=False).passed == 1
    third = (
        "n = int(input())\nif n == 1:\n    while True:\n        pass\nfor _ in range(n):\n"
        "    print(sum(map(int, input().split())))\n"
    )
    result = hasty.verify(third, SUMS, form="code", stop_early=False)
    assert (result.correct, result.reason, result.passed) == (False, "timeout", 2)


def test_bad_limits_are_refused():
    with pytest.raises(ValueError, match="test_seconds=0: allowed are numbers > 0"):
        Limits(test_seconds=0)
    with pytest.raises(ValueError, match="memory_bytes=nan"):
        Limits(memory_bytes=float("nan"))
    with pytest.raises(ValueError, match="processes='4'"):
        Limits(processes="4")
