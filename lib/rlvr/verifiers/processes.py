"""Worker processes for work that may not come back: each can be killed, none outlives its parent.

A worker is a fresh interpreter (nothing is forked, and the caller's ``__main__`` is not run again), so a pool
works from any thread, from a daemonic process and inside a Ray worker. Per job, a worker

- is killed at the time limit, by a timer of the kernel's: it counts processor time from when the worker has
  taken the job, so that neither waiting for a worker nor a busy machine ends one that is at work;
- is killed by the pool when the clock shows ``PATIENCE`` times the limit (a job that sleeps), and by another
  timer shortly after, should the pool be gone;
- has its memory limited; running out of it fails that job only;
- is replaced if it was killed or died: that costs the one job it held.

Workers leave when the parent does: their connection ends, or their parent changes. A forked copy of the
parent starts workers of its own.
"""

from __future__ import annotations

import atexit
import importlib
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

_BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from rlvr.verifiers.processes import serve
serve()
"""
PATIENCE = 3.0  # times the limit on the clock; as for programs [choice]
MOST_SHARED = 8  # workers that callers from several threads share
_GRACE = 2.0  # seconds until the kernel's timer ends what the pool did not
_START = 120.0  # seconds a new interpreter may take to import its target


@dataclass(frozen=True, slots=True)
class Reply:
    """``problem``: None, ``timeout``, ``crashed`` (the worker died), or the name of the exception."""

    value: Any = None
    problem: str | None = None


class WorkerError(RuntimeError):
    """A worker could not be started; the message holds its traceback."""


class _Worker:
    def __init__(self, target: str, memory_bytes: int) -> None:
        ours, theirs = multiprocessing.Pipe()
        settings = {"fd": theirs.fileno(), "target": target, "memory": memory_bytes, "parent": os.getpid()}
        self.connection = ours
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(sys.path), json.dumps(settings)],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        try:
            status, message = (
                self.connection.recv() if self.connection.poll(_START) else ("failed", "no answer")
            )
        except (EOFError, OSError):
            status, message = "failed", f"exit status {self.process.wait()}"
        if status != "ready":
            self.end()
            raise WorkerError(f"a worker for {target} did not start: {message}")

    def run(self, job: Any, timeout: float) -> Reply | None:
        """None: the worker was dead before the job reached it."""
        try:
            self.connection.send((timeout, job))
        except (BrokenPipeError, ConnectionError, OSError):
            return None
        try:
            if not self.connection.poll(PATIENCE * timeout):
                return Reply(problem="timeout")
            return Reply(*self.connection.recv())
        except (EOFError, OSError):
            return Reply(problem="timeout" if self._ran_out() else "crashed")

    def _ran_out(self) -> bool:
        """Whether one of its own timers has ended the process, whose connection is gone."""
        try:
            return self.process.wait(_GRACE) in (-signal.SIGPROF, -signal.SIGALRM)
        except subprocess.TimeoutExpired:
            return False

    def end(self) -> None:
        self.connection.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class _State:
    """What one process holds of a pool."""

    def __init__(self, size: int) -> None:
        self.idle: deque[_Worker] = deque()
        self.slots = threading.BoundedSemaphore(size)

    def take(self) -> _Worker | None:
        """An idle worker; another thread may have taken the last one just now."""
        try:
            return self.idle.pop()
        except IndexError:
            return None


class WorkerPool:
    """Workers that run ``target``, a function of one picklable job named ``module:function``.

    Args:
        target: a function ``prepare`` of its module runs before a worker's first job, outside of its time.
        size: workers that one :meth:`map` keeps busy. Calls from several threads share as many as there are
            cores (at most ``MOST_SHARED``), or ``size`` if that is more; each starts when no other is idle.
        memory_bytes: address space of one.

    Methods may be called from any thread.
    """

    def __init__(self, target: str, size: int, *, memory_bytes: int = 4 << 30) -> None:
        if size < 1:
            raise ValueError(f"size={size}: allowed are integers >= 1")
        self.target, self.size, self.memory_bytes = target, size, memory_bytes
        self._most = max(size, min(cores(), MOST_SHARED))
        self._states: dict[int, _State] = {}
        atexit.register(self.close)

    def run(self, job: Any, timeout: float) -> Reply:
        """One job. ``timeout``: seconds of processor time from when a worker has taken it."""
        if not timeout > 0:
            raise ValueError(f"timeout={timeout}: allowed are seconds > 0")
        state = self._state()
        with state.slots:
            worker = state.take() or self._start()
            try:
                reply = worker.run(job, timeout)
                if reply is None:  # it died while it was idle
                    worker.end()
                    worker = self._start()
                    reply = worker.run(job, timeout) or Reply(problem="crashed")
            except BaseException:  # interrupted: its reply would be taken for the next job's
                worker.end()
                raise
            if reply.problem in ("timeout", "crashed"):
                worker.end()
            else:
                state.idle.append(worker)
            return reply

    def map(self, jobs: Iterable[Any], timeout: float) -> list[Reply]:
        """One reply per job, in order."""
        jobs = list(jobs)
        if not jobs:
            return []
        with ThreadPoolExecutor(min(self.size, len(jobs))) as threads:
            return list(threads.map(lambda job: self.run(job, timeout), jobs))

    def close(self) -> None:
        """End the idle workers of this process. The pool can be used again."""
        state = self._states.get(os.getpid())
        while state is not None and (worker := state.take()):
            worker.end()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        atexit.unregister(self.close)

    def _start(self) -> _Worker:
        return _Worker(self.target, self.memory_bytes)

    def _state(self) -> _State:
        pid = os.getpid()
        if pid not in self._states:
            for other in list(self._states):  # a fork's copies: let go, end nothing
                state = self._states.pop(other, None) if other != pid else None
                for worker in state.idle if state else ():
                    worker.connection.close()
            self._states.setdefault(pid, _State(self._most))
        return self._states[pid]


def cores() -> int:
    """Of the machine that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def serve() -> None:
    """The worker's side: import the target, then answer jobs until the parent is gone."""
    settings = json.loads(sys.argv[2])
    connection = multiprocessing.connection.Connection(settings["fd"])
    try:
        _limit_memory(settings["memory"])
        name, _, function_name = settings["target"].partition(":")
        module = importlib.import_module(name)
        function = getattr(module, function_name)
        getattr(module, "prepare", lambda: None)()
    except BaseException:
        import traceback

        connection.send(("failed", traceback.format_exc()))
        return
    connection.send(("ready", ""))
    for number in (signal.SIGALRM, signal.SIGPROF):  # the parent may block or ignore them: that is inherited
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM, signal.SIGPROF))
    while os.getppid() == settings["parent"]:
        try:
            if not connection.poll(5.0):
                continue
            timeout, job = connection.recv()
            signal.setitimer(signal.ITIMER_REAL, PATIENCE * timeout + _GRACE)
            signal.setitimer(signal.ITIMER_PROF, timeout)
            try:
                reply = (function(job), None)
            except Exception as error:
                reply = (None, type(error).__name__)
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            connection.send(reply)
        except (EOFError, OSError):
            return


def _limit_memory(limit: int) -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (ImportError, ValueError, OSError):  # not on this platform
        pass
