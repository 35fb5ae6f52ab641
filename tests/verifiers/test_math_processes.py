"""The pool of killable workers: limits, replacements, nothing left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from rlvr.verifiers.processes import Reply, WorkerError, WorkerPool

JOBS = "tests.verifiers.slow_jobs:run"


@pytest.fixture
def pool():
    with WorkerPool(JOBS, 2) as pool:
        yield pool


def gone(pid: int, seconds: float) -> bool:
    """Whether the process ends in time (a zombie counts as running: somebody must have waited for it)."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_replies_in_order(pool):
    jobs = [("sleep", 0.05 if k % 3 == 0 else 0.0) for k in range(12)]
    jobs = [(what, value if what == "sleep" and value else 0) for what, value in jobs]
    named = [("echo", k) for k in range(40)]
    assert [reply.value for reply in pool.map(named, 10)] == list(range(40))
    assert [reply.problem for reply in pool.map(jobs, 10)] == [None] * 12
    assert pool.map([], 1) == []


@pytest.mark.parametrize("job", [("sleep", 60), ("spin", 0), ("one_operation", 9**9), ("no_kill", 60)])
def test_a_job_that_does_not_end_is_killed(pool, job):
    pid = pool.run(("pid", 0), 10).value
    start = time.monotonic()
    assert pool.run(job, 0.3) == Reply(problem="timeout")
    assert time.monotonic() - start < 5
    assert gone(pid, 1)
    assert pool.run(("echo", 7), 10) == Reply(7)


def test_a_crash_costs_one_job(pool):
    jobs = [("echo", 0), ("die", 0), ("echo", 2), ("raise", 3), ("echo", 4), ("memory", 1 << 40), ("echo", 6)]
    replies = pool.map(jobs, 10)
    assert [reply.problem for reply in replies] == [
        None,
        "crashed",
        None,
        "KeyError",
        None,
        "MemoryError",
        None,
    ]
    assert [reply.value for reply in replies if reply.problem is None] == [0, 2, 4, 6]


def test_an_idle_worker_that_died_is_replaced(pool):
    pid = pool.run(("pid", 0), 10).value
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    assert pool.run(("echo", 1), 10) == Reply(1)


def test_works_from_threads():
    results: dict[int, Reply] = {}
    with WorkerPool(JOBS, 2) as pool:

        def work(k: int) -> None:
            results[k] = pool.run(("sleep", 60) if k == 3 else ("echo", k), 0.5 if k == 3 else 20)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert results.pop(3) == Reply(problem="timeout")
    assert results == {k: Reply(k) for k in (0, 1, 2, 4, 5, 6, 7)}


def test_no_descriptors_or_processes_are_left():
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def children() -> set[str]:
        found = set()
        for task in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{task}/children") as file:
                    found |= set(file.read().split())
            except OSError:
                continue
        return found

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("no /proc here")
    before, earlier = descriptors(), children()
    with WorkerPool(JOBS, 1) as pool:
        for _ in range(4):
            pool.run(("sleep", 60), 0.05)
            pool.run(("die", 0), 5)
        pool.run(("echo", 1), 10)
    assert descriptors() == before
    assert children() <= earlier


PARENT = """
import sys, threading, time
from rlvr.verifiers.processes import WorkerPool
pool = WorkerPool("tests.verifiers.slow_jobs:run", 1)
print(pool.run(("pid", 0), 30).value, flush=True)
if sys.argv[1] == "busy":
    threading.Thread(target=pool.run, args=(("spin", 0), 3.0)).start()
time.sleep(60)
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_no_orphans(state):
    """The parent is killed without a chance to clean up; a busy worker is ended by its own timer."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, state], stdout=subprocess.PIPE, text=True, env=environment
    )
    pid = int(parent.stdout.readline())
    time.sleep(0.5)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(pid, 20)


def _in_daemon(queue) -> None:
    with WorkerPool(JOBS, 1) as pool:
        queue.put(pool.run(("echo", 5), 30).value)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_works_in_a_daemonic_process(method):
    """Such a process may have no children of multiprocessing's; a trainer's data workers are of this kind."""
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=_in_daemon, args=(queue,), daemon=True)
    process.start()
    assert queue.get(timeout=60) == 5
    process.join(30)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_has_workers_of_its_own(pool):
    pid = pool.run(("pid", 0), 10).value
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=lambda: queue.put(pool.run(("pid", 0), 30).value))
    process.start()
    assert queue.get(timeout=60) != pid
    process.join(30)
    assert pool.run(("pid", 0), 10).value == pid  # the parent's is untouched


def test_the_callers_main_is_not_run_again(tmp_path):
    """Workers start without a guard in the script (multiprocessing's spawn would run it again)."""
    script = tmp_path / "script.py"
    script.write_text(
        "print('once')\n"
        "from rlvr.verifiers.processes import WorkerPool\n"
        f"print(WorkerPool({JOBS!r}, 1).run(('echo', 3), 30).value)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.stdout.split() == ["once", "3"]


def test_a_target_that_cannot_be_imported_says_so():
    with pytest.raises(WorkerError, match="no_such_module"):
        WorkerPool("no_such_module:run", 1).run(0, 1)


def test_bad_arguments():
    with pytest.raises(ValueError, match="size=0"):
        WorkerPool(JOBS, 0)
    with pytest.raises(ValueError, match="timeout=0"):
        WorkerPool(JOBS, 1).run(("echo", 1), 0)
