"""Independent runs side by side: single-threaded processes, one per core.

On few cores this beats one process with several threads, and one thread per run is what makes a run's
numbers independent of what else the machine is doing.

Workers are forked from a server process that has imported the engine once. :func:`prepare` starts it in the
background, so that its seconds of importing overlap with the caller's own.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import forkserver
from typing import Any

PRELOADED = ["rlvr.engines.local.training", "rlvr.evaluation.sampled"]
_context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
_queue: Any = None


def prepare() -> None:
    """Start importing for the workers to come; returns at once. Optional, and harmless if none come."""
    if sys.platform == "linux":
        _context.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()


def _start(queue: Any) -> None:
    """Make a worker single-threaded, mute, and mortal: it must not outlive the process that asked."""
    global _queue
    _queue = queue
    import torch  # here, so that `prepare` can be called before anything heavy is imported

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _call(function: Callable, index: int, args: tuple) -> Any:
    return function(*args, on_progress=lambda done, total: _queue.put((index, done, total)))


def run_side_by_side(
    function: Callable,
    arguments: Sequence[tuple],
    workers: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[tuple[Any, float]]:
    """Call ``function(*args, on_progress=...)`` for each ``args`` in single-threaded processes.

    Args:
        function: importable by name; reports with ``on_progress(done, total)``.
        arguments: one tuple per call, picklable.
        workers: processes at a time.
        on_progress: called in this process with (done, total) summed over the calls.

    Returns:
        (result, seconds) per call, in the order of ``arguments``.

    Raises:
        Whatever the first failing call raised; the other calls are stopped.
    """
    if workers < 1:
        raise ValueError(f"workers={workers} must be at least 1")
    prepare()
    queue = _context.SimpleQueue()
    progress: dict[int, tuple[int, int]] = {}
    started = time.monotonic()
    seconds = [0.0] * len(arguments)
    pool = ProcessPoolExecutor(min(workers, len(arguments)), _context, _start, (queue,))
    try:
        futures = [pool.submit(_call, function, i, args) for i, args in enumerate(arguments)]
        pending = set(futures)
        while pending:
            finished, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
            while not queue.empty():
                index, done, total = queue.get()
                progress[index] = (done, total)
            if on_progress and progress:
                known = [total for _, total in progress.values()]
                total = sum(known) + (len(arguments) - len(known)) * max(known)
                on_progress(sum(done for done, _ in progress.values()), total)
            for future in finished:
                seconds[futures.index(future)] = time.monotonic() - started
                future.result()
        return [(future.result(), s) for future, s in zip(futures, seconds, strict=True)]
    except BaseException:
        for process in list(pool._processes.values()):
            process.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
