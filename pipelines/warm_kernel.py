"""A kernel from the server of warm kernels, for Jupyter's client; where there is none, a kernel as always."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from typing import Any

import ipykernel.kernelspec
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

from pipelines.warm_server import same_user, send

ADDRESS, PREFIX = "RLVR_WARM", "RLVR_WARM_PREFIX"  # variables: the server's name, and its environment
NAME = "rlvr-warm"
PATIENCE = 120.0  # seconds; the first to ask waits until the server has imported everything
POLL = 0.05


class Forked:
    """A process that the server started, as far as Jupyter needs a ``subprocess.Popen``."""

    stdin = stdout = stderr = None

    def __init__(self, connection: socket.socket):
        self._connection, self._said = connection, b""
        self.returncode: int | None = None
        connection.settimeout(PATIENCE)
        self.pid = int(self._line()["pid"])
        connection.setblocking(False)

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                self.returncode = int(self._line()["code"])
            except BlockingIOError:
                return None
            except EOFError:
                self.returncode = -signal.SIGKILL  # with the server, by its parent-death signal
            self._connection.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired("a warm kernel", timeout)
            time.sleep(POLL)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:  # until its end was told, the server keeps the number from being another's
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _line(self) -> dict[str, int]:
        while b"\n" not in self._said:
            more = self._connection.recv(4096)
            if not more:
                raise EOFError
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        return json.loads(line)


def own_prefix() -> str:
    """Where this Python finds its modules."""
    return os.pathsep.join((sys.prefix, os.environ.get("PYTHONPATH", "")))


def fork(arguments: list[str], environment: dict[str, str], folder: str) -> Forked | None:
    """``python -m ipykernel_launcher *arguments``, forked; None without a server of this environment."""
    name = os.environ.get(ADDRESS)
    if not name or os.environ.get(PREFIX) != own_prefix():
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE)
    try:
        connection.connect(f"\0{name}")
        if not same_user(connection):
            raise ConnectionRefusedError("another user has the name of a dead server")
        kept = {key: value for key, value in environment.items() if key and key not in (ADDRESS, PREFIX)}
        request = {"arguments": arguments, "env": kept, "cwd": folder}
        send(connection, request, [1, 2])
        return Forked(connection)
    except (OSError, EOFError, ValueError, KeyError):
        connection.close()
        return None


class WarmProvisioner(LocalProvisioner):
    """Jupyter's own, but that the process comes from the server if it can."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        module = "ipykernel_launcher"
        process = None
        if module in cmd and kwargs.get("env") and kwargs.get("cwd"):
            arguments = cmd[cmd.index(module) + 1 :]
            process = await asyncio.to_thread(fork, arguments, kwargs["env"], kwargs["cwd"])
        if process is None:
            return await super().launch_kernel(cmd, **kwargs)
        self.process, self.pid, self.pgid = process, process.pid, process.pid
        return self.connection_info


def specification() -> dict[str, Any]:
    """ipykernel's own, with the provisioner that asks the server."""
    factory = KernelProvisionerFactory.instance()
    where = f"{__name__}:{WarmProvisioner.__name__}"
    factory.provisioners.setdefault(NAME, EntryPoint(NAME, where, factory.GROUP_NAME))
    own = ipykernel.kernelspec.get_kernel_dict()
    provisioner = {"kernel_provisioner": {"provisioner_name": NAME}}
    return own | {"metadata": own.get("metadata", {}) | provisioner}
