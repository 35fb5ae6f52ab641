"""Two sides in turn on the same jobs: rates, and the ratio of each pair of rounds with its range."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

SIDES = ("ours", "theirs")
Times = dict[str, dict[str, list[float]]]  # what (wall, processor): side: seconds of every round


def in_turn(sides: dict[str, Callable[[], object]], rounds: int, warm_up: int = 1) -> Times:
    """Seconds of both sides, which side begins changing every round; the first ``warm_up`` do not count.

    Processor seconds are those of this process and of child processes that have ended.
    """
    times: Times = {what: {side: [] for side in SIDES} for what in ("wall", "processor")}
    for index in range(warm_up + rounds):
        for side in SIDES if index % 2 else SIDES[::-1]:
            start, used = time.perf_counter(), processor()
            sides[side]()
            wall, cpu = time.perf_counter() - start, processor() - used
            if index >= warm_up:
                times["wall"][side].append(wall)
                times["processor"][side].append(cpu)
    return times


def processor() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def new_process(script: str, side: str, arguments: Sequence[str]) -> Callable[[], object]:
    """A call that runs ``script --once SIDE`` from the start of an interpreter to its end."""
    command = [sys.executable, script, "--once", side, *arguments]
    return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ)


def report(label: str, count: int, unit: str, times: dict[str, list[float]]) -> None:
    """One line: ``count`` per second of both sides (medians), the median ratio and its range."""
    ratios = [b / a for a, b in zip(times["ours"], times["theirs"], strict=True)]
    rate = {side: count / statistics.median(seconds) for side, seconds in times.items()}
    print(
        f"{label}: ours {rate['ours']:,.0f} {unit}, theirs {rate['theirs']:,.0f}, ratio "
        f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}], {len(ratios)} pairs",
        flush=True,
    )
