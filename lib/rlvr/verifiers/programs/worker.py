"""A zygote and the conversation with it: one program at a time."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import marshal
import os
import secrets
import site
import socket
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any

from rlvr.verifiers.programs.results import Limits
from rlvr.verifiers.programs.sandbox import channel, codec

_GRACE = 5.0  # seconds beyond the total limit after which the zygote kills the judge
_SILENCE = 30.0  # seconds after that in which the zygote must say so
_START = (
    "import sys; sys.path.insert(0, {folder!r}); from sandbox import zygote; del sys.path[0]; zygote.main()"
)


class IsolationError(RuntimeError):
    """This machine does not allow the isolation that was asked for."""


class WorkerError(RuntimeError):
    """The worker or the judge failed: says nothing about the program."""


class Worker:
    """A child interpreter that verifies programs.

    Args:
        limits: of every program.
        network: ``none`` runs programs in namespaces without network, other processes and files (see
            docs/verifiers-programs.md) and refuses where the kernel does not allow it; ``unsafe`` runs them
            with limits only.
        packages: packages that programs may import beside the standard library.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        network: str = "none",
        packages: tuple[str, ...] = ("numpy",),
    ):
        if network not in ("none", "unsafe"):
            raise ValueError(f"network={network!r}: allowed are 'none' and 'unsafe'")
        self.limits = limits or Limits()
        self.network = network
        self.config = _config(self.limits, network == "none", packages)
        self.settings = {
            name: int(getattr(self.limits, name))
            for name in ("memory_bytes", "output_bytes", "message_bytes", "file_bytes")
            + ("stack_bytes", "processes", "open_files")
        } | {"cpu_seconds": int(self.limits.total_seconds) + 2}
        self._process: subprocess.Popen | None = None
        self._socket: socket.socket | None = None
        self._log: Any = None
        self._greeted = self._final = False
        self._pid = os.getpid()
        self._start()

    def _start(self) -> None:
        if self._final:
            raise WorkerError("the worker is closed")
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()
        folder = os.path.dirname(os.path.abspath(__file__))
        command = [sys.executable, "-S", "-s", "-P", "-B", "-X", "utf8", "-c", _START.format(folder=folder)]
        with theirs:
            self._process = subprocess.Popen(
                [*command, json.dumps(self.config)],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                env=_environment(),
                cwd="/",
                start_new_session=True,
            )
        self._socket, self._greeted = ours, False

    def greet(self) -> None:
        """Wait until the interpreter is ready.

        Raises:
            IsolationError: ``network="none"`` cannot be had here.
        """
        if self._process is None:
            self._start()
        if self._greeted:
            return
        ours = self._socket
        ours.settimeout(60.0)
        try:
            answer = codec.loads(channel.receive(ours))
        except (channel.Closed, TimeoutError):
            raise self._failed("the interpreter of the worker did not start") from None
        if "error" in answer:
            self.close()
            raise IsolationError(
                f"programs cannot be isolated on this machine ({answer['error']}). It takes Linux 5.12 or "
                "newer and user, network, process and mount namespaces (in a container: root with "
                "CAP_SYS_ADMIN, or unprivileged user namespaces). network='unsafe' runs programs with limits "
                "only: they then reach the network and all your files."
            )
        self._greeted = True

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Answer of the judge, or ``{"late": True}`` where it had to be killed.

        Raises:
            WorkerError: no answer; the next call starts a new interpreter.
        """
        self.greet()
        nonce = secrets.token_hex(8)
        limits = {name: getattr(self.limits, name) for name in ("test_seconds", "total_seconds", "patience")}
        seconds = self.limits.patience * self.limits.total_seconds + _GRACE
        data = marshal.dumps(job | {"nonce": nonce, "settings": self.settings, "limits": limits})
        answer = None
        try:
            self._socket.settimeout(seconds + _SILENCE)
            self._socket.sendall(channel.START.pack(seconds, self._mentioned(job)))
            channel.send(self._socket, data)
            while "late" not in (message := codec.loads(channel.receive(self._socket))):
                answer = message
        except (channel.Closed, OSError, ValueError) as error:
            raise self._failed(f"{type(error).__name__} {error}") from None
        except BaseException:  # interrupted: what comes next on the line belongs to this job
            self.close()
            raise
        if message["late"]:
            self.close()
            return {"late": True}
        if message["status"] != 0 or answer is None or answer.pop("nonce") != nonce:
            raise self._failed(f"the judge ended with status {message['status']}")
        return answer

    def _mentioned(self, job: dict[str, Any]) -> int:
        """Packages that the tests import or the program names, as bits."""
        program = job["units"][-1][1]
        names = enumerate(self.config["preload"])
        return sum(1 << bit for bit, name in names if name in job["imports"] or name in program)

    def _failed(self, what: str) -> WorkerError:
        error = WorkerError(f"{what}; {self._tail()}")
        if self._process is not None:
            self._process.kill()  # it may not listen any more; its programs end with it
        self.close()
        return error

    def _tail(self) -> str:
        with contextlib.suppress(ValueError, OSError):
            self._log.seek(0, os.SEEK_END)
            self._log.seek(max(0, self._log.tell() - 1000))
            return self._log.read().decode("utf-8", "replace").strip()
        return "closed"

    def close(self, final: bool = False) -> None:
        """End the interpreter and wait for it; a later call starts it again, unless this was ``final``."""
        self._final = self._final or final
        process, self._process = self._process, None
        if process is None or os.getpid() != self._pid:
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for an answer
        self._socket.close()
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close(final=True)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


def _environment() -> dict[str, str]:
    """All that a program sees of the environment; nothing is inherited."""
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    return threads | {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "HOME": "/tmp",
        "PYTHONHASHSEED": "0",
    }


def _config(limits: Limits, isolated: bool, packages: tuple[str, ...]) -> dict[str, Any]:
    paths = []
    for name in packages:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if spec is None:
            raise ValueError(f"packages={packages!r}: allowed are installed packages, {name!r} is not")
        path = spec.submodule_search_locations[0] if spec.submodule_search_locations else spec.origin
        libraries = os.path.join(os.path.dirname(path), f"{name}.libs")
        paths += [path, *([libraries] if os.path.isdir(libraries) else [])]
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix, "installed_base": sys.base_prefix}
    standard = {sysconfig.get_path(name, vars=base) for name in ("stdlib", "platstdlib")}
    folders = {*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    folders |= {f"{path}/{name}" for path in standard for name in ("site-packages", "dist-packages")}
    folders |= {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    return {
        "isolated": isolated,
        "disk_bytes": int(limits.disk_bytes),
        "sources": sorted(standard | {os.path.join(sys.base_prefix, "lib")}),
        "masks": sorted(folders),
        "packages": paths,
        "package_folders": sorted({os.path.dirname(path) for path in paths}),
        "preload": list(packages),
    }
