"""Verify one program, or many over a pool of workers."""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rlvr.verifiers.programs.extraction import extract_program
from rlvr.verifiers.programs.prepare import UnusableTests, prepare
from rlvr.verifiers.programs.results import Limits, ProgramResult
from rlvr.verifiers.programs.tasks import ProgramTask
from rlvr.verifiers.programs.worker import IsolationError, Worker, WorkerError

FORMS = ("response", "code")


def as_task(problem: Any) -> ProgramTask:
    """A task as it is, a record of a benchmark or a ``BenchmarkProblem`` brought into form."""
    if isinstance(problem, ProgramTask):
        return problem
    if isinstance(problem, Mapping):
        return ProgramTask.from_record(problem)
    if isinstance(getattr(problem, "tests", None), Mapping):
        return ProgramTask.from_problem(problem)
    raise ValueError(
        f"problem={problem!r:.80}: allowed are a ProgramTask, a record of a benchmark and a BenchmarkProblem"
    )


class ProgramPool:
    """Workers that stay, for as long as programs come.

    Args:
        workers: child interpreters, each with one program at a time; None: one per core.
        limits, network, packages: see :class:`~rlvr.verifiers.programs.worker.Worker`.

    Raises:
        IsolationError: at once, where ``network="none"`` cannot be had.
    """

    def __init__(
        self,
        workers: int | None = None,
        limits: Limits | None = None,
        network: str = "none",
        packages: tuple[str, ...] = ("numpy",),
    ):
        workers = len(os.sched_getaffinity(0)) if workers is None else workers
        if workers < 1:
            raise ValueError(f"workers={workers!r}: allowed are whole numbers >= 1")
        self._pid = os.getpid()
        self._all: list[Worker] = []
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        try:
            for _ in range(workers):
                self._all.append(Worker(limits, network, packages))
            for worker in self._all:
                worker.greet()
                self._idle.put(worker)
        except BaseException:
            self.close()
            raise

    def verify(
        self,
        code_or_response: str,
        task: Any,
        form: str = "response",
        finished: bool = True,
        stop_early: bool = True,
    ) -> ProgramResult:
        """Verify one program; may be called from several threads. Arguments: :func:`verify_program`."""
        if form not in FORMS:
            raise ValueError(f"form={form!r}: allowed are 'response' and 'code'")
        if os.getpid() != self._pid:
            raise RuntimeError("this pool belongs to the process that made it; make one after the fork")
        task = as_task(task)
        if not isinstance(code_or_response, str):
            return ProgramResult.undecided("no_response")
        try:
            job = prepare(task) | {"stop_early": bool(stop_early)}
        except UnusableTests as error:
            return ProgramResult.undecided(error.reason, str(error))
        code = code_or_response
        if form == "response":
            code = extract_program(code, task.entry_point, task.prompt)
        if not finished:
            return ProgramResult(False, "truncated", code=code)
        if code is None or not code.strip():
            return ProgramResult(False, "no_code")
        prelude = [("prelude.py", text) for text in (task.prelude, task.helpers) if text]
        return self._run(job | {"units": [*prelude, ("program.py", code)]}, code)

    def _run(self, job: dict[str, Any], code: str) -> ProgramResult:
        worker = self._idle.get()
        try:
            try:
                answer = worker.run(job)
            except WorkerError:
                answer = worker.run(job)  # a new interpreter: the failure may have been the old one's
        except (WorkerError, IsolationError, OSError) as error:
            return ProgramResult.undecided("infrastructure", str(error)[:2000], code=code)
        finally:
            self._idle.put(worker)
        if answer.pop("late", False):
            detail = "the test itself did not end"
            seconds = worker.limits.total_seconds
            return ProgramResult(False, "timeout", first_failure=detail, seconds=seconds, code=code)
        outcomes = tuple(answer.pop("outcomes", ()))
        return ProgramResult(code=code, outcomes=outcomes, **answer)

    def verify_many(
        self,
        items: Iterable[tuple[str, Any]],
        progress: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> list[ProgramResult]:
        """One result per item, in order. Arguments: :func:`verify_programs`."""
        items = list(items)
        made = {id(task): task for _, task in items}  # a task is prepared once, also if it came as a record
        made = {key: as_task(task) for key, task in made.items()}
        items = [(text, made[id(task)]) for text, task in items]
        results: list[ProgramResult | None] = [None] * len(items)
        errors: list[BaseException] = []
        numbers, lock, done = iter(range(len(items))), threading.Lock(), [0]

        def work() -> None:
            while not errors:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                try:
                    results[number] = self.verify(*items[number], **options)
                    with lock:
                        done[0] += 1
                        if progress is not None:
                            progress(done[0], len(items))
                except BaseException as error:
                    errors.append(error)

        count = min(len(self._all), len(items))
        threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:  # interrupted: no further program is started
            errors.append(error)
            raise
        if errors:
            raise errors[0]
        return results

    def close(self) -> None:
        for worker in self._all:
            worker.close(final=True)

    def __enter__(self) -> ProgramPool:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


_pools: dict[tuple, ProgramPool] = {}
_pools_lock = threading.Lock()


def shared_pool(limits: Limits | None, network: str, packages: tuple[str, ...]) -> ProgramPool:
    """One worker per setting that stays until the process ends."""
    key = (os.getpid(), limits or Limits(), network, tuple(packages))
    with _pools_lock:
        if key not in _pools:
            _pools[key] = ProgramPool(1, limits, network, tuple(packages))
        return _pools[key]


@atexit.register
def close_shared() -> None:
    """End the interpreters that :func:`verify_program` keeps."""
    with _pools_lock:
        for (pid, *_), pool in list(_pools.items()):
            if pid == os.getpid():
                pool.close()
        _pools.clear()


def verify_program(
    code_or_response: str,
    problem: Any,
    *,
    form: str = "response",
    finished: bool = True,
    stop_early: bool = True,
    limits: Limits | None = None,
    network: str = "none",
    packages: tuple[str, ...] = ("numpy",),
) -> ProgramResult:
    """Run a program against the tests of its task, in a child process.

    Args:
        code_or_response: what a model wrote.
        problem: the task; or a benchmark's record, or its ``BenchmarkProblem``. For many programs of one task
            make the :class:`ProgramTask` once: its tests are compiled once then.
        form: ``response``: the program is found in the text, see ``extraction``; ``code``: it is all of it.
        finished: whether the response ended by itself; one that did not is wrong, and is not run.
        stop_early: stop at the first test that fails; else ``passed`` counts all that hold, where tests are
            separate and the program still answers.
        limits: time, memory, output; :class:`Limits`.
        network: ``none`` or ``unsafe``, see :class:`~rlvr.verifiers.programs.worker.Worker`.
        packages: what programs may import beside the standard library.

    Returns:
        ProgramResult; ``correct`` is None where the tests or the machine, and not the program, are at fault.

    Raises:
        IsolationError: ``network="none"`` cannot be had on this machine.
        ValueError: an argument or a record of a form that is not known.
    """
    pool = shared_pool(limits, network, packages)
    return pool.verify(code_or_response, problem, form, finished, stop_early)


def verify_programs(
    items: Sequence[tuple[str, Any]],
    workers: int | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    form: str = "response",
    stop_early: bool = True,
    limits: Limits | None = None,
    network: str = "none",
    packages: tuple[str, ...] = ("numpy",),
) -> list[ProgramResult]:
    """:func:`verify_program` of many (text, task) pairs: exactly one result per item, in their order.

    ``progress(done, total)`` is called after each, one call at a time. A training loop keeps a
    :class:`ProgramPool` instead: workers take about 0.2 s to start.
    """
    with ProgramPool(workers, limits, network, packages) as pool:
        return pool.verify_many(items, progress, form=form, stop_early=stop_early)
