"""Callers from several threads share a few workers, and waiting costs no verdict."""

import os
import signal
import threading
import time

import pytest

from rlvr.verifiers import processes
from rlvr.verifiers.processes import Reply, WorkerPool

JOBS = "tests.verifiers.thread_jobs:run"


def from_threads(count: int, call) -> list:
    """What ``call(k)`` returned, or raised, in as many threads at once."""
    barrier, found = threading.Barrier(count), [None] * count

    def work(k: int) -> None:
        barrier.wait()
        try:
            found[k] = call(k)
        except BaseException as error:
            found[k] = error

    threads = [threading.Thread(target=work, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return found


@pytest.mark.parametrize(("cores", "size", "most"), [(1, 1, 1), (3, 1, 3), (1, 2, 2), (64, 1, 4)])
def test_threads_share_as_many_workers_as_there_are_cores(monkeypatch, cores, size, most):
    monkeypatch.setattr(processes, "cores", lambda: cores)
    monkeypatch.setattr(processes, "MOST_SHARED", 4)
    with WorkerPool(JOBS, size) as pool:
        first = pool.run((0, 0), 20).value
        assert pool.run((0, 0), 20).value == first  # started on demand: one is enough for one caller
        asleep = 3 if most > 1 else 0.1  # until all have started
        pids = from_threads(4, lambda k: pool.run((asleep, 0), 20).value)
        assert first in pids and len(set(pids)) == most
        assert len({reply.value for reply in pool.map([(0.05, 0)] * 6, 20)}) <= size


def test_waiting_for_a_worker_is_not_counted(monkeypatch):
    monkeypatch.setattr(processes, "cores", lambda: 1)
    with WorkerPool(JOBS, 1) as pool:
        start = time.monotonic()
        replies = from_threads(6, lambda k: pool.run((0.5, 0), 0.4))
        assert time.monotonic() - start > 6 * 0.5 > processes.PATIENCE * 0.4
        assert {reply.problem for reply in replies} == {None} and len({r.value for r in replies}) == 1


@pytest.mark.fault("busy-machine-is-a-wrong-answer")
def test_the_limit_counts_processor_time():
    with WorkerPool(JOBS, 1) as pool:
        pool.run((0, 0), 20)
        assert (
            pool.run((0.8, 0.05), 0.4).problem is None
        )  # as on a busy machine: the clock shows twice as much
        assert pool.run((0, 10), 0.4) == Reply(problem="timeout")
        start = time.monotonic()
        assert pool.run((30, 0), 0.4) == Reply(problem="timeout")  # but not for ever
        assert time.monotonic() - start < 10


@pytest.mark.parametrize("state", ["plain", "blocked", "ignored"])
def test_the_workers_own_timer_ends_it_whatever_the_parent_does_with_signals(monkeypatch, state):
    monkeypatch.setattr(processes, "PATIENCE", 200.0)
    timers = {signal.SIGPROF, signal.SIGALRM}
    before = {number: signal.getsignal(number) for number in timers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, timers if state == "blocked" else set())
    try:
        if state == "ignored":
            for number in timers:
                signal.signal(number, signal.SIG_IGN)
        with WorkerPool(JOBS, 1) as pool:
            start = time.monotonic()
            assert pool.run((0, 50), 0.3) == Reply(problem="timeout")
            assert time.monotonic() - start < 30
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)


def test_many_short_calls_from_many_threads(monkeypatch):
    monkeypatch.setattr(processes, "cores", lambda: 2)
    with WorkerPool(JOBS, 2) as pool:
        found = from_threads(12, lambda k: [pool.run((0, 0), 20).problem for _ in range(40)])
        assert found == [[None] * 40] * 12


def test_an_interrupted_call_leaves_no_worker_that_is_still_at_work(monkeypatch):
    with WorkerPool(JOBS, 1) as pool:
        pid = pool.run((0, 0), 20).value

        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(processes._Worker, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pool.run((30, 0), 20)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert pool.run((0, 0), 20).value != pid


def test_verify_math_from_threads_decides_what_one_thread_decides():
    pytest.importorskip("math_verify", reason="math-verify is not installed: pip install 'rlvr[evaluation]'")
    from rlvr.verifiers import verify_math

    pair = r"\boxed{\sum_{n=1}^{\infty}\frac{1}{n^2}}", r"\frac{\pi^2}{6}"
    assert verify_math(*pair).correct is True
    verdicts = from_threads(4, lambda k: verify_math(*pair))
    assert [verdict.correct for verdict in verdicts] == [True] * 4
