"""One runner per output, and nobody left behind when any process of the tree is killed.

    dvc ── runner ── kernel ── workers        killed:   what ends the others
             └────── watchdog                 dvc       runner, by :func:`die_with_dvc`
                                              runner    watchdog, which kills the kernel's process group
                                              kernel    runner, which kills the kernel's process group

The watchdog also holds the output's lock, so the next runner starts only after the last orphan is gone.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

SHELLS = {"sh", "bash", "dash", "zsh", "fish", "ksh"}
PR_SET_PDEATHSIG = 1
POLL = 0.2  # seconds

_WATCHDOG = """
import os, signal, sys, time

def end(groups):
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass
    # Each is a session, too, in which workers may have groups of their own.
    found = bool(groups) and sys.platform == "linux"
    while found:
        found = False
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as file:
                    state, _, _, session = file.read().rpartition(")")[2].split()[:4]
                if int(session) in groups and state != "Z":
                    os.kill(int(pid), signal.SIGKILL)
                    found = True
            except (OSError, ValueError):
                pass
        if found:
            time.sleep(0.02)

groups = set()
for line in sys.stdin:
    group = int(line[1:])
    if line[0] == "+":
        groups.add(group)
    else:
        groups.discard(group)
        end({group})
end(groups)
"""


class Busy(RuntimeError):
    """Another runner holds the lock."""


@contextmanager
def exclusive(path: Path, what: str, wait: float) -> Iterator[int]:
    """Hold an exclusive lock on the file ``path``; yields its descriptor.

    The kernel drops the lock when every process that has the descriptor is gone, so no stale lock survives.

    Raises:
        Busy: still held by someone else after ``wait`` seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Busy(_busy_message(path, what, wait)) from None
                time.sleep(POLL)
        os.ftruncate(fd, 0)
        os.write(fd, json.dumps({"pid": os.getpid(), "started": time.strftime("%Y-%m-%d %H:%M:%S")}).encode())
        yield fd
    finally:
        os.close(fd)


def _busy_message(path: Path, what: str, wait: float) -> str:
    try:
        holder = json.loads(path.read_text())
        who = f"process {holder['pid']}, which started at {holder['started']}"
    except (OSError, ValueError, KeyError):
        who = "another process"
    return f"{what} is being made by {who}; waited {wait:.0f} s. Let it finish, or stop it, and run again"


class Watchdog:
    """A small process that outlives a killed runner just long enough to kill the kernel's process group."""

    def __init__(self, lock: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCHDOG],
            stdin=subprocess.PIPE,
            text=True,
            bufsize=1,
            pass_fds=(lock,),
            start_new_session=True,
        )
        self._groups: set[int] = set()

    def guard(self, group: int) -> None:
        """Kill this process group when the runner is gone."""
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def close(self) -> None:
        """End the guarded groups, then the watchdog. Leftover workers of a finished kernel go too."""
        for group in self._groups:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)  # also where somebody killed the watchdog
            self._tell(f"-{group}\n")
        self._groups.clear()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        with suppress(BrokenPipeError):  # someone killed the watchdog; the kernel still polls its parent
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def die_with_dvc() -> None:
    """If DVC started this process, have it killed as soon as DVC is gone, however DVC ends.

    Linux kills it at once when DVC is its parent. A shell between the two, or another system, is covered by
    a thread that looks every 0.2 s. A runner started by hand is left alone (``nohup`` keeps working).
    """
    if "DVC_STAGE" not in os.environ:
        return
    parent = os.getppid()
    try:
        dvc = psutil.Process(parent)
        if dvc.name() in SHELLS and dvc.parent() is not None:
            dvc = dvc.parent()
    except psutil.NoSuchProcess:
        _die()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it went before we asked
        _die()
    threading.Thread(target=_watch, args=(parent, dvc), name="die-with-dvc", daemon=True).start()


def _watch(parent: int, dvc: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        while os.getppid() == parent and dvc.is_running() and dvc.status() != psutil.STATUS_ZOMBIE:
            time.sleep(POLL)
    _die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
