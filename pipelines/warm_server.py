"""The process that warm kernels are forked from, started by :mod:`pipelines.warm`.

Its arguments are the descriptor of a listening UNIX socket, and the process that it ends with. It imports
nothing of this project, which its kernels would not see change.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

#: What most notebooks import, directly or by way of rlvr. Whatever else they need they import themselves.
PRELOADED = (
    "IPython",
    "ipykernel.ipkernel",
    "ipykernel.kernelapp",
    "matplotlib_inline.backend_inline",
    "matplotlib.pyplot",
    "numpy",
    "omegaconf",
    "pandas",
    "pyarrow.parquet",
    "pydantic",
    "safetensors.torch",
    "scipy.stats",
    "seaborn",
    "tokenizers",
    "torch",
    "transformers",
    "transformers.modeling_utils",
)
SEEDED = (("numpy.random", "seed"), ("torch", "seed"))  # anew in each kernel, as by an import
BACKEND = "module://matplotlib_inline.backend_inline"  # as ipykernel says it before matplotlib is imported
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
CHILDREN, NOBODY = 0.05, 1.0  # seconds between two looks at the children, and at the parent
SILENCE = 1.0  # seconds that a request may take to arrive


def die_with(parent: int) -> None:
    """SIGKILL for this process when ``parent`` ends; at once if it has."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def call_this_process(name: str) -> None:
    """What ``ps`` and ``top`` show; forked processes share one command line."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


class Now:
    """``sys.stdout`` or ``sys.stderr`` as it is when it is used; loggers keep what they find when made."""

    def __init__(self, which: str):
        self._which = which

    def __getattr__(self, name: str) -> Any:
        now = getattr(sys, self._which)
        return getattr(getattr(sys, f"__{self._which}__") if now is self else now, name)


def preload() -> None:
    os.environ["MPLBACKEND"] = BACKEND
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # who asks whether there is a GPU must not open it
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"  # a process with one thread can be forked
    sys.stdout, sys.stderr = Now("stdout"), Now("stderr")
    for name in PRELOADED:
        with suppress(ImportError):  # who needs it says that it is missing
            importlib.import_module(name)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    # One for all: at its end, a kernel waits in vain for its own tracker of semaphores to heed signals.
    multiprocessing.resource_tracker.ensure_running()
    gc.collect()
    gc.freeze()  # the children share what never changes


def send(connection: socket.socket, request: dict[str, Any], descriptors: list[int]) -> None:
    """A request as one line of JSON."""
    line = json.dumps(request).encode() + b"\n"
    if rest := line[socket.send_fds(connection, [line], descriptors) :]:
        connection.sendall(rest)  # of nothing, it would fail where the other side has all and is gone


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What :func:`send` sent; ValueError if it is not whole."""
    data, descriptors, _, _ = socket.recv_fds(connection, 65536, 8)
    try:
        while data and not data.endswith(b"\n"):
            more = connection.recv(65536)
            if not more:
                break
            data += more
        return json.loads(data), descriptors
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def move(descriptors: list[int], numbers: list[int]) -> None:
    """Give open descriptors these numbers, whatever had them before."""
    apart = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, max(numbers) + 1) for descriptor in descriptors]
    for descriptor, number in zip(apart, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def same_user(connection: socket.socket) -> bool:
    """An address without a file is open to everybody on the machine."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1] == os.getuid()


def reseed() -> None:
    """Draw anew what nobody seeds, as a process that imports them does."""
    for name, seed in SEEDED:  # Python's own does so by itself
        if name in sys.modules:
            getattr(sys.modules[name], seed)()


def surround(folder: str, environment: dict[str, str]) -> None:
    """Give this process the folder and the variables that another would have started it with."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)


def exit_code_of(program: Callable[[], Any]) -> int:
    """What an interpreter that runs this program and nothing else exits with."""
    try:
        program()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def become(request: dict[str, Any], descriptors: list[int], server: int) -> None:
    """Be, in a forked process, what the command of the request would have started; does not return."""
    os.setsid()
    die_with(server)
    call_this_process("rlvr-kernel")
    for target, source in enumerate((os.open(os.devnull, os.O_RDONLY), *descriptors)):
        os.dup2(source, target)
        os.close(source)
    surround(request["cwd"], request["env"] | {"MPLBACKEND": BACKEND})
    reseed()
    standby = multiprocessing.util.spawnv_passfds = Standby(multiprocessing.util.spawnv_passfds)
    sys.argv = ["ipykernel_launcher", *request["arguments"]]
    code = exit_code_of(lambda: runpy.run_module("ipykernel_launcher", run_name="__main__", alter_sys=True))
    # What an interpreter does at its end and a notebook can notice; not a second of taking torch apart.
    with suppress(BaseException):
        threading._shutdown()  # waits for threads that are no daemons
        atexit._run_exitfuncs()  # among them IPython's, which drops the notebook's variables
        gc.collect()  # and closes the files that these left open
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).fflush(None)
        standby.end()
    os._exit(code)


def end(kernel: int) -> None:
    """SIGKILL for a kernel and all that it started."""
    for pid in [kernel, *map(int, filter(str.isdigit, os.listdir("/proc")))]:
        with suppress(ProcessLookupError, PermissionError):
            if pid == kernel or os.getsid(pid) == kernel:
                os.kill(pid, signal.SIGKILL)


class Standby:
    """``spawnv_passfds`` of multiprocessing, with a process that waits to become a kernel's fork server.

    It is forked while the kernel has one thread, and is its child, as a started one would be, but not of its
    group: ipykernel would end it there and then wait for what only ipykernel itself could bury.
    """

    def __init__(self, spawn: Callable[..., int]):
        self._spawn = spawn
        self._own, other = socket.socketpair()
        kernel = self._kernel = os.getpid()
        self._pid: int | None = os.fork()
        if not self._pid:
            self._own.close()
            os.setpgid(0, 0)
            die_with(kernel)
            call_this_process("rlvr-worker")
            self._wait(other)
        other.close()

    def __call__(self, path: Any, arguments: list[Any], descriptors: list[int]) -> int:
        *_, option, code = map(os.fsdecode, arguments)
        ours = os.getpid() == self._kernel and self._pid is not None
        if not ours or option != "-c" or "multiprocessing.forkserver" not in code:
            return self._spawn(path, arguments, descriptors)
        request = {"code": code, "fds": descriptors, "cwd": os.getcwd(), "env": dict(os.environ)}
        pid, self._pid = self._pid, None
        try:
            send(self._own, request, descriptors)
        except OSError:  # it was killed
            os.waitpid(pid, 0)
            return self._spawn(path, arguments, descriptors)
        finally:
            self._own.close()
        return pid

    def end(self) -> None:
        """Bury it, if nobody needed it."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    @staticmethod
    def _wait(connection: socket.socket) -> None:
        try:
            request, descriptors = receive(connection)
        except (OSError, ValueError):
            os._exit(0)  # the kernel ended without it

        def serve() -> None:
            connection.close()
            move(descriptors, request["fds"])
            surround(request["cwd"], request["env"])
            os.register_at_fork(after_in_child=reseed)
            exec(request["code"], {"__name__": "__main__"})

        os._exit(exit_code_of(serve))


class Server:
    def __init__(self, listener: socket.socket, parent: int):
        self.listener, self.parent = listener, parent
        self.children: dict[int, socket.socket] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)

    def serve(self) -> None:
        while os.getppid() == self.parent:
            for key, _ in self.selector.select(CHILDREN if self.children else NOBODY):
                if key.fileobj is self.listener:
                    self._accept()
                else:
                    self._left(key.fileobj)
            self._reap()

    def _accept(self) -> None:
        own = os.getpid()
        try:
            connection, _ = self.listener.accept()
        except OSError:  # no room for a descriptor
            return
        pid, descriptors = None, []
        try:
            connection.settimeout(SILENCE)
            if same_user(connection):
                request, descriptors = receive(connection)
                connection.settimeout(None)
                pid = os.fork()
        except Exception as error:  # no request, or no room for a process: the runner goes on without
            print(f"rlvr-warm: {type(error).__name__}: {error}", file=sys.stderr)
        if pid == 0:
            self.listener.close()
            for other in (connection, *self.children.values()):
                other.close()
            os._exit(exit_code_of(lambda: become(request, descriptors, own)))
        for descriptor in descriptors:
            os.close(descriptor)
        if pid is None:
            connection.close()
            return
        self.children[pid] = connection
        self.selector.register(connection, selectors.EVENT_READ, pid)
        _tell(connection, {"pid": pid})

    def _left(self, connection: socket.socket) -> None:
        """Nobody says anything on a connection but by closing it: whoever asked for the kernel is gone."""
        pid = self.selector.get_key(connection).data
        self.selector.unregister(connection)
        end(pid)

    def _reap(self) -> None:
        for pid, connection in list(self.children.items()):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                continue
            # Both before it is buried, so that its number is nobody else's.
            end(pid)
            by_itself = ended.si_code == os.CLD_EXITED
            _tell(connection, {"code": ended.si_status if by_itself else -ended.si_status})
            os.waitpid(pid, 0)
            del self.children[pid]
            with suppress(KeyError):
                self.selector.unregister(connection)
            connection.close()


def _tell(connection: socket.socket, what: dict[str, int]) -> None:
    with suppress(OSError):
        connection.sendall(json.dumps(what).encode() + b"\n")


def main(descriptor: int, parent: int) -> None:
    die_with(parent)
    call_this_process("rlvr-warm")
    listener = socket.socket(fileno=descriptor)
    preload()
    Server(listener, parent).serve()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
