"""Many programs at once."""

import os
import threading

import pytest
from program_tasks import RIGHT, TASKS, WRONG

from rlvr.verifiers.programs import Limits, ProgramPool, verify_program, verify_programs


def test_every_caller_gets_its_own_answer(pool):
    """More threads than workers, verdicts known beforehand."""
    wrongs = []

    def work(number):
        for i in range(6):
            name = list(TASKS)[(number + i) % len(TASKS)]
            right = (number + i) % 2 == 0
            result = pool.verify((RIGHT if right else WRONG)[name], TASKS[name], form="code")
            if result.correct is not right:
                wrongs.append((name, right, result))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrongs == []


def test_order_does_not_follow_time(pool):
    slow = "import time\ntime.sleep(0.15)\n" + RIGHT["sums"]
    items = [(slow, TASKS["sums"]), (WRONG["sums"], TASKS["sums"])] * 3
    assert [r.correct for r in pool.verify_many(items, form="code")] == [True, False] * 3
    assert pool.verify_many([]) == []


def test_an_error_of_the_caller_is_raised_once_and_ends_the_rest(pool):
    seen = []

    def progress(done, total):
        seen.append(done)
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        pool.verify_many([(RIGHT["even"], TASKS["even"])] * 20, progress, form="code")
    assert 1 <= len(seen) <= 2
    assert pool.verify(RIGHT["even"], TASKS["even"], form="code").correct is True


def test_records_are_accepted_where_tasks_are(network):
    record = {"task_id": 1, "test_list": ["assert f(1) == 2"]}
    network = network.partition(":")[0]
    codes = ["def f(x):\n    return 2\n", "def f(x):\n    return 1\n"]
    results = verify_programs([(code, record) for code in codes], 1, network=network)
    assert [r.correct for r in results] == [True, False]
    limits = Limits(test_seconds=2)
    assert verify_program(codes[0], record, network=network, limits=limits).correct is True


def test_benchmark_problems_are_accepted(network):
    from rlvr.problems.benchmarks import BenchmarkProblem

    tests = {
        "id": "mbpp/1",
        "entry_point": "f",
        "test": "assert f(1) == 2",
        "test_list": ["assert f(1) == 2"],
    }
    problem = BenchmarkProblem(id="mbpp/1", benchmark="mbpp", prompt="f", kind="function", tests=tests)
    result = verify_program("def f(x):\n    return 2\n", problem, network=network.partition(":")[0])
    assert result.correct is True and result.verdict().reason == "correct"


def test_a_pool_belongs_to_its_process(pool):
    child = os.fork()
    if child == 0:
        try:
            pool.verify(RIGHT["even"], TASKS["even"], form="code")
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="workers=0: allowed are whole numbers >= 1"):
        ProgramPool(0)


def test_importing_the_package_imports_nothing_heavy():
    import subprocess
    import sys

    heavy = {"torch", "numpy", "sympy", "transformers"}
    code = f"import sys, rlvr.verifiers.programs; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
