"""A Ray of this machine for as long as jobs need one: found again after a kill, and stopped as a whole.

    with local_ray("runs/laptop", cpus=16, gpus=1) as connected:
        job.submit(connected, limit)

``python -m rlvr.engines.jobs.local_ray stop FOLDER`` ends one that a killed process left.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from rlvr.engines.jobs.client import ADDRESSES, Client, NoRay, connect
from rlvr.engines.jobs.redaction import redact
from rlvr.storage import read_json, write_json

NOTE = "ray.json"
#: Ray gives a new node half a minute, whatever the machine is doing: such a start is tried once more.
TOO_SLOW = "timed out during startup"
PORTS = (
    "port",
    "ray-client-server-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "metrics-export-port",
)


@contextmanager
def local_ray(
    folder: str | Path,
    cpus: int | None = None,
    gpus: int | None = None,
    environment: Mapping[str, str] | None = None,
    store: int | None = None,
) -> Iterator[Callable[[], Client]]:
    """Connects to RAY_ADDRESS if it is set; else to a Ray on this machine, ended with the block.

    A Ray that a killed process left is noted in ``folder/ray.json`` and used again, with the job that may
    still run on it. It asks for a token, which only this user can read.

    Args:
        cpus, gpus: what Ray is told there is; None: what it finds. verl's processes each ask for a whole
            one before they do anything.
        environment: of Ray's processes, and so of the jobs.
        store: bytes of the object store; None: Ray's default, 30 % of the memory.

    Raises:
        NoRay: it did not start; says why.
    """
    if any(os.environ.get(name) for name in ADDRESSES):
        yield connect
        return
    note = Path(folder) / NOTE
    with alone(Path(folder)):
        values = _alive(note) or _start(note, cpus, gpus, environment or {}, store)
        try:
            yield lambda: _connect(values)
        finally:
            _end(values)
            note.unlink(missing_ok=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time has the Ray of a folder: the first to leave would end it under the others."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "ray.lock", "w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NoRay(
                f"another process uses the Ray of {folder}: run one after the other, or start a Ray for both "
                "(`ray start --head`) and set RAY_ADDRESS"
            ) from None
        yield


def stop(folder: str | Path) -> bool:
    """End the Ray noted in ``folder``, with everything it started; False if there is none."""
    note = Path(folder) / NOTE
    if not note.is_file():
        return False
    _end(read_json(note))
    note.unlink(missing_ok=True)
    return True


def stop_left(folder: str | Path, before: Callable[[Callable[[], Client]], None] | None = None) -> bool:
    """:func:`stop` a Ray that a killed process left, not one that another process uses now.

    ``before`` is called with what connects to it, if it still answers: the last chance to read its logs.
    """
    note = Path(folder) / NOTE
    if not note.is_file():
        return False
    try:
        with alone(Path(folder)):
            if (values := _alive(note)) and before:
                before(lambda: _connect(values))
            stop(folder)
            return True
    except NoRay:
        return False


def _end(values: Mapping[str, str]) -> None:
    temporary = Path(values["temporary"])
    for kind, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 20.0)):
        end = time.monotonic() + patience
        while (left := _processes(temporary)) and time.monotonic() < end:
            for process in left:
                with suppress(psutil.Error):
                    process.send_signal(kind)
            psutil.wait_procs(left, timeout=3)
    shutil.rmtree(temporary, ignore_errors=True)


def _start(
    note: Path,
    cpus: int | None,
    gpus: int | None,
    environment: Mapping[str, str],
    store: int | None,
    tries: int = 2,
) -> dict[str, str]:
    # Unix sockets have short names: Ray's folder cannot lie deep
    temporary = Path(tempfile.mkdtemp(prefix="rlvr-ray-", dir="/tmp"))
    token = temporary / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    port = _free_port()
    values = {"address": f"http://127.0.0.1:{port}", "temporary": str(temporary), "token": str(token)}
    note.parent.mkdir(parents=True, exist_ok=True)
    write_json(note, values)  # before Ray starts, so that a kill in between leaves nothing unknown
    words = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--disable-usage-stats"),
        *("--node-ip-address=127.0.0.1", f"--temp-dir={temporary}"),
        *("--dashboard-host=127.0.0.1", f"--dashboard-port={port}"),
        # Ray's own choices are the same for every Ray: one that is left over would keep this from its jobs
        *(f"--{name}={_free_port()}" for name in PORTS),
        *([f"--num-cpus={cpus}"] if cpus is not None else []),
        *([f"--num-gpus={gpus}"] if gpus is not None else []),
        *([f"--object-store-memory={store}"] if store is not None else []),
    ]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    # `python` of a job is the one that started Ray
    inherited["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{inherited.get('PATH', '')}"
    done = subprocess.run(
        words,
        env=inherited | dict(environment) | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)},
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    if done.returncode:
        stop(note.parent)
        if TOO_SLOW in done.stderr and tries > 1:
            return _start(note, cpus, gpus, environment, store, tries - 1)
        text = redact((done.stderr or done.stdout).strip()[-1500:])
        raise NoRay(f"`ray start` ended with status {done.returncode}:\n{text}")
    _wait(values, note)
    return values


def _connect(values: Mapping[str, str]) -> Client:
    return connect(values["address"], Path(values["token"]).read_text())


def _wait(values: Mapping[str, str], note: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            _connect(values)
            return
        except NoRay:
            if time.monotonic() > end:
                stop(note.parent)
                raise
            time.sleep(1)


def _alive(note: Path) -> dict[str, str] | None:
    """What is noted, if that Ray still answers; what is left of one that does not is cleared away."""
    if not note.is_file():
        return None
    values = read_json(note)
    if Path(values["token"]).is_file() and _processes(Path(values["temporary"])):
        for _ in range(5):  # a busy dashboard is no dead one
            try:
                _connect(values)
                return values
            except NoRay:
                time.sleep(2)
    stop(note.parent)
    return None


def _processes(temporary: Path) -> list[psutil.Process]:
    """Those that name Ray's folder in their command line or environment, and what they started: workers
    write a title over both."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            named = " ".join([*process.cmdline(), process.environ().get("RAY_AUTH_TOKEN_PATH", "")])
            if process.pid != os.getpid() and str(temporary) in named:
                found |= {p.pid: p for p in (process, *process.children(recursive=True))}
    found.pop(os.getpid(), None)
    return list(found.values())


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "stop":
        sys.exit("usage: python -m rlvr.engines.jobs.local_ray stop FOLDER")
    sys.exit(None if stop(sys.argv[2]) else f"{sys.argv[2]}: no {NOTE} there")
