"""Measuring calls: in turn, as ratios of medians with an interval, and what memory they take."""

from __future__ import annotations

import random
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

Call = Callable[[], object]
Interval = tuple[float, float, float]  # value, low, high


def seconds(function: Call, clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    function()
    return clock() - start


class Busy(RuntimeError):
    """Other processes leave too few rounds with all threads running."""


def interleaved(calls: dict[str, Call], rounds: int, warm_up: int = 2) -> dict[str, list[float]]:
    """Seconds of each call, one after the other, in a new order every round.

    With one thread the clock is the thread's CPU time, which leaves out what other processes take from the
    core. Two threads wait for each other, so there the clock is the wall's and a round in which the kernel
    took a core away counts only as an attempt; :class:`Busy` if more than four of five did.
    """
    alone = torch.get_num_threads() == 1
    clock = time.thread_time if alone else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = random.Random(0)
    done = 0
    for attempt in range(warm_up + (rounds if alone else 5 * rounds)):
        before = _preemptions()
        taken = {name: seconds(calls[name], clock) for name in order.sample(list(calls), len(calls))}
        if attempt < warm_up or not (alone or _preemptions() == before):
            continue
        for name, value in taken.items():
            times[name].append(value)
        done += 1
        if done == rounds:
            return times
    raise Busy(f"only {done} of {rounds} rounds were undisturbed")


def _preemptions() -> int:
    """How often the kernel took a core from a thread of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def ratio_of_medians(a: list[float], b: list[float], draws: int = 2000, seed: int = 0) -> Interval:
    """median(a) / median(b) with a 95 % bootstrap interval: rounds of both sides resampled together."""
    pairs = np.array([a, b])
    at = np.random.default_rng(seed).integers(0, len(a), (draws, len(a)))
    medians = np.median(pairs[:, at], axis=-1)
    low, high = np.quantile(medians[0] / medians[1], [0.025, 0.975])
    return float(np.median(a) / np.median(b)), float(low), float(high)


def verdict(interval: Interval, target: float | None) -> str:
    """Whether the whole interval, none or part of it keeps to the target."""
    if target is None:
        return "-"
    _, low, high = interval
    return f"<= {target}: " + ("met" if high <= target else "missed" if low > target else "open")


def shown(interval: Interval) -> str:
    return "{:.2f} [{:.2f}, {:.2f}]".format(*interval)


def peak_memory(call: Call, unit: int) -> float:
    """Most bytes allocated at once inside a call, inside operations too, in multiples of ``unit`` bytes."""
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])
    return float(held.max()) / unit


def warm_allocator() -> None:
    """As in a trainer, where larger tensors came and went: glibc then keeps what is freed.

    In a fresh process it returns memory to the system after every call, and page faults take more time than
    the maths.
    """
    torch.empty(30 * 2**20, dtype=torch.uint8).fill_(1)


def copy_bandwidth(source: Tensor, rounds: int) -> float:
    """Bytes per second, read and written, of copying ``source`` into a tensor that exists."""
    target = torch.empty_like(source)
    times = interleaved({"copy": lambda: target.copy_(source)}, 10 * rounds)["copy"]
    return 2 * source.nbytes / statistics.median(times)
