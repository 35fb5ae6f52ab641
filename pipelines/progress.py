"""How far a stage is, on stderr: a line that rewrites itself on a terminal, a line now and then in a log.

Inside a cell the notebook says how far it is (`rlvr.notebook.progress` appends to a file); between cells the
runner knows. The time left comes from the seconds that each cell took the last time this notebook ran, and
from the pace of the loop that is running now.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

REFRESH = 0.25  # seconds, on a terminal
LOG_EVERY = 10.0  # seconds, in a log


@dataclass(frozen=True)
class Loop:
    """The newest progress message of the running cell."""

    label: str
    first: int  # items done when it first reported; above 0 when it was resumed
    done: int
    total: int | None
    seconds: float  # since the first message

    def left(self) -> float | None:
        if not self.total or self.done <= self.first or self.done > self.total:
            return None
        return self.seconds * (self.total - self.done) / (self.done - self.first)

    def __str__(self) -> str:
        count = f"{self.done}/{self.total}" if self.total else f"{self.done}"
        return f"{self.label} {count}".strip()


def seconds_left(
    cell: int, in_cell: float, total: int, previous: Sequence[float] | None, loop: Loop | None
) -> tuple[float | None, bool]:
    """Estimate of the seconds left, and whether it covers the whole notebook.

    Args:
        cell: code cells finished so far.
        in_cell: seconds spent in the current one.
        total: code cells of the notebook.
        previous: seconds per code cell of an earlier run, or None.
        loop: what the current cell last reported, or None.
    """
    known = previous is not None and len(previous) == total
    here = loop.left() if loop else None
    if here is None and known and cell < total:
        here = max(0.0, previous[cell] - in_cell)
    after = sum(previous[cell + 1 :]) if known else None
    if here is None:
        return None, False
    return here + (after or 0.0), known or cell + 1 >= total


class Reporter:
    """Prints progress from a thread while the notebook runs; use as a context manager.

    Args:
        title: short name of the stage.
        cells: number of code cells.
        messages: the file that `rlvr.notebook.progress` appends to; created here.
        stream: usually ``sys.stderr``.
        previous: seconds per code cell of an earlier run, for the estimate.
    """

    def __init__(
        self, title: str, cells: int, messages: Path, stream: TextIO, previous: Sequence[float] | None = None
    ) -> None:
        self.title, self.cells, self.messages, self.stream, self.previous = (
            title,
            cells,
            messages,
            stream,
            previous,
        )
        self.cell_seconds: list[float] = []
        self._begin = self._cell_begin = time.monotonic()
        self._running = False
        self._began: dict[str, tuple[int, float]] = {}  # label -> first count, and when
        self._newest: tuple[str, int, int | None] | None = None  # label, done, total
        self._offset = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="progress", daemon=True)
        self._tty = stream.isatty()
        self._show = tqdm.status_printer(stream) if self._tty else self._log

    def __enter__(self) -> Reporter:
        self.messages.write_bytes(b"")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._tty:
            self._show("")
            self.stream.write("\r")
            self.stream.flush()

    def cell_starts(self) -> None:
        """Called when a code cell begins; the one before it has ended."""
        self.cell_ends()
        self._running, self._cell_begin = True, time.monotonic()
        self._began, self._newest = {}, None

    def cell_ends(self) -> None:
        if self._running:
            self.cell_seconds.append(round(time.monotonic() - self._cell_begin, 3))
            self._running = False

    def line(self) -> str:
        """The current state in one line."""
        now = time.monotonic()
        loop = None
        if self._newest is not None:
            label, done, total = self._newest
            first, since = self._began[label]
            loop = Loop(label, first, done, total, now - since)
        finished = len(self.cell_seconds)
        left, whole = seconds_left(finished, now - self._cell_begin, self.cells, self.previous, loop)
        parts = [f"{self.title}: cell {min(finished + 1, self.cells)} of {self.cells}"]
        if loop:
            parts.append(str(loop))
        parts.append(f"{tqdm.format_interval(now - self._begin)} elapsed")
        if left is not None:
            parts.append(f"about {tqdm.format_interval(left)} left" + ("" if whole else " in this cell"))
        return ", ".join(parts)

    def _loop(self) -> None:
        printed = self._begin
        while not self._stop.wait(REFRESH):
            self._read()
            if self._tty or time.monotonic() - printed >= LOG_EVERY:
                printed = time.monotonic()
                self._show(self.line())

    def _log(self, text: str) -> None:
        self.stream.write(text + "\n")
        self.stream.flush()

    def _read(self) -> None:
        try:
            with self.messages.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.splitlines():
            try:
                message = json.loads(line)
                label, done, total = str(message["label"]), int(message["done"]), message["total"]
            except (ValueError, KeyError, TypeError):
                continue  # a worker was killed in the middle of a line
            if label not in self._began or done < self._began[label][0] or done == 0:
                self._began[label] = (done, time.monotonic())
            self._newest = (label, done, total)
