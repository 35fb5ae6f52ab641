"""The process that runs the program. It never holds a test's expected value, nor a way to say "passed".

It answers the judge: with the value of a call, or with the exit status of a run on one input. A program
that takes this code over can send the judge other answers to the calls, and nothing else.
"""

from __future__ import annotations

import atexit
import builtins
import io
import itertools
import os
import random
import resource
import select
import shutil
import signal
import socket
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from . import channel, codec, linux

# Builtin exceptions a test may expect; the rest reaches it as plain Exception.
EXCEPTIONS = {k: v for k, v in vars(builtins).items() if isinstance(v, type) and issubclass(v, Exception)}
_SEED = 0


def main(sock: socket.socket, out: int, err: int, uid: int | None, folder: str, pid_1: bool) -> None:
    """Serve the judge until it hangs up; does not return."""
    try:
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (out, 1), (err, 2)):
            os.dup2(source, target)
        linux.close_all_but({sock.fileno()})
        if not pid_1:
            linux.adopt_orphans()
        os.chdir(folder)
        linux.drop_privileges(uid, readable=False)
        settings = codec.loads(channel.receive(sock))
        if settings["kind"] == "stdin":
            server = _Runs(sock, settings, pid_1, folder)
        else:
            _apply(settings)
            server = _Calls(sock, settings)
        channel.send(sock, codec.dumps({"ready": True}))
        server.serve()
    except channel.Closed:
        pass
    finally:
        os._exit(0)


def _apply(settings: dict) -> None:
    linux.limit(resource.RLIMIT_CORE, 0)
    linux.limit(resource.RLIMIT_NOFILE, settings["open_files"])
    linux.limit(resource.RLIMIT_FSIZE, settings["file_bytes"])
    linux.limit(resource.RLIMIT_NPROC, settings["processes"])
    linux.limit(resource.RLIMIT_CPU, settings["cpu_seconds"])
    linux.limit(resource.RLIMIT_AS, settings["address_space"])
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    stack = settings["stack_bytes"]
    resource.setrlimit(resource.RLIMIT_STACK, (stack if hard < 0 else min(stack, hard), hard))
    sys.set_int_max_str_digits(0)
    sys.dont_write_bytecode = True


def _new_main(units: list) -> dict:
    """Run the units, each compiled by itself, in a fresh ``__main__``; returns its namespace."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    random.seed(_SEED)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(_SEED)
    module.__dict__["__builtins__"] = builtins
    for name, source in units:
        exec(compile(source, name, "exec", dont_inherit=True, optimize=0), module.__dict__)
    return module.__dict__


def describe(error: BaseException) -> dict:
    """What the other side is told of an exception: its nearest builtin kind, arguments, text and name."""
    kind = next((k.__name__ for k in type(error).__mro__ if EXCEPTIONS.get(k.__name__) is k), None)
    try:
        text = str(error)[:500]
    except BaseException:
        text = ""
    try:
        args = codec.encode(error.args)
        args = args if len(codec.dumps({"args": args})) < 2000 else None
    except BaseException:
        args = None
    return {"kind": kind, "name": type(error).__name__, "text": text, "args": args}


class _Calls:
    """Function tasks: the program stays loaded, the judge calls what it defined."""

    def __init__(self, sock: socket.socket, settings: dict):
        self.sock = sock
        self.settings = settings
        self.names: dict = {}
        self.objects: dict[int, Any] = {}
        self.known: dict[int, int] = {}

    def serve(self) -> None:
        _open_streams(line_buffering=True)
        self._answer(self._load)
        while True:
            self._serve(codec.loads(channel.receive(self.sock)))

    def _serve(self, request: dict) -> None:
        if request["op"] == "calls":
            function = self.objects[request["object"]]
            for args in request["calls"]:
                self._answer(lambda args=args: self._encode(function(*self._decode(args))))
            return
        self._answer(lambda: getattr(self, "do_" + request["op"])(request))

    def _answer(self, action: Callable[[], Any]) -> None:
        """``action`` returns encoded data; what it raises is the answer too."""
        try:
            reply = codec.dumps({"value": action()})
        except channel.Closed:
            raise
        except BaseException as error:
            reply = codec.dumps({"raise": describe(error)})
        if len(reply) > self.settings["message_bytes"]:
            reply = codec.dumps({"large": len(reply)})
        channel.send(self.sock, reply)

    def _load(self) -> None:
        self.names = _new_main(self.settings["units"])

    def _encode(self, value: Any) -> Any:
        return codec.encode(value, self._handle)

    def _handle(self, value: Any) -> list:
        number = self.known.setdefault(id(value), len(self.objects) + 1)
        self.objects[number] = value  # which keeps it alive, and its id its own
        return [number, type(value).__name__]

    def _decode(self, data: Any) -> Any:
        return codec.decode(data, self._object)

    def _object(self, payload: list) -> Any:
        number, is_callback = payload
        return self._callback(number) if is_callback else self.objects[number]

    def _callback(self, number: int) -> Callable[..., Any]:
        """A function of the test's, run where the test runs."""

        def callback(*args: Any, **kwargs: Any) -> Any:
            call = {"callback": number, "args": self._encode(args), "kwargs": self._encode(kwargs)}
            channel.send(self.sock, codec.dumps(call))
            while "op" in (message := codec.loads(channel.receive(self.sock))):
                self._serve(message)
            if "raise" in message:
                raise EXCEPTIONS.get(message["raise"]["kind"], Exception)(message["raise"]["text"])
            return self._decode(message["value"])

        return callback

    def do_name(self, request: dict) -> Any:
        """A handle of what the program calls so: ``name``, or ``Class.method`` of a new instance per call."""
        name, _, method = request["name"].partition(".")
        value = self.names[name]
        if not method:
            return {"h": self._handle(value)}
        getattr(value, method)
        return {"h": self._handle(lambda *args, **kwargs: getattr(value(), method)(*args, **kwargs))}

    def do_call(self, request: dict) -> Any:
        args, kwargs = self._decode(request["args"]), self._decode(request["kwargs"])
        value = self.objects[request["object"]](*args, **kwargs)
        return self._encode((value, *args) if request["in_place"] else value)

    def do_get(self, request: dict) -> Any:
        return self._encode(getattr(self.objects[request["object"]], request["name"]))

    def do_set(self, request: dict) -> None:
        setattr(self.objects[request["object"]], request["name"], self._decode(request["value"]))

    def do_item(self, request: dict) -> Any:
        return self._encode(self.objects[request["object"]][self._decode(request["value"])])

    def do_length(self, request: dict) -> Any:
        return self._encode(len(self.objects[request["object"]]))

    def do_truth(self, request: dict) -> bool:
        return bool(self.objects[request["object"]])

    def do_iterate(self, request: dict) -> Any:
        return {"h": self._handle(iter(self.objects[request["object"]]))}

    def do_next(self, request: dict) -> list:
        """At most one item: an iterator may have no end."""
        return self._encode(list(itertools.islice(self.objects[request["object"]], 1)))


class _Runs:
    """Standard-input tasks: a new process per test, and whatever it left is killed before the answer."""

    def __init__(self, sock: socket.socket, settings: dict, pid_1: bool, folder: str):
        self.sock = sock
        self.settings = settings
        self.pid_1 = pid_1
        self.folder = folder
        self.number = 0

    def serve(self) -> None:
        while True:
            request = codec.loads(channel.receive(self.sock))
            if request["op"] == "kill":
                continue  # it ended by itself meanwhile
            try:
                reply = {"value": self._test(request["input"], request["seconds"])}
            except OSError as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            channel.send(self.sock, codec.dumps(reply))

    def _test(self, text: str, seconds: float) -> tuple[int, float, bool]:
        """Run the program on this input: exit status or minus the signal, processor seconds, out of time."""
        shutil.rmtree(f"{self.folder}/run", ignore_errors=True)
        self.number += 1
        folder = f"{self.folder}/run/{self.number}"
        os.makedirs(folder)
        stdin = f"{self.folder}/stdin"  # a file: open("/dev/stdin") and seeking work too
        if os.path.lexists(stdin):
            os.unlink(stdin)
        with open(stdin, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
        child = os.fork()
        if child == 0:
            self._run(stdin, folder)
        try:
            late = self._wait(child, seconds)
            _, status, usage = os.wait4(child, 0)
        finally:
            self._sweep()
        return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, late

    def _wait(self, child: int, seconds: float) -> bool:
        """Until the process ends, by itself or by us. Whether it ran out of processor time."""
        watch = os.pidfd_open(child)
        wait = seconds
        try:
            while True:
                ready, _, _ = select.select([watch, self.sock], [], [], wait)
                if watch in ready:
                    return False
                if ready:  # the judge has seen enough, or is gone
                    os.kill(child, signal.SIGKILL)
                    channel.receive(self.sock)
                    return False
                wait = max(0.01, seconds - linux.processor_seconds(child))
                if wait == 0.01:
                    os.kill(child, signal.SIGKILL)
                    return True
        finally:
            os.close(watch)

    def _sweep(self) -> None:
        while _kill_all() if self.pid_1 else kill_descendants(os.getpid()):
            pass

    def _run(self, stdin: str, folder: str) -> None:
        """In the child: be a fresh interpreter that runs the program on this input. Does not return."""
        status = 1
        try:
            linux.drop_privileges(None, readable=True)  # die with the box
            self.sock.close()
            os.chdir(folder)
            fd = os.open(stdin, os.O_RDONLY)
            os.dup2(fd, 0)
            os.close(fd)
            _apply(self.settings)
            status = _run_as_script(self.settings["units"])
        finally:
            os._exit(status)


def _kill_all() -> bool:
    """As process 1 of a namespace: kill and collect everything else in it. False when nothing was left."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return _collect()


def _collect() -> bool:
    found = False
    try:
        while True:
            os.waitpid(-1, 0)
            found = True
    except ChildProcessError:
        return found


def kill_descendants(pid: int) -> bool:
    """Kill and collect the children of this process, which adopts the orphans of those it kills."""
    children = linux.children_of(pid)
    for child in children:
        try:
            os.kill(child, signal.SIGKILL)
        except OSError:
            pass
    for child in children:
        try:
            os.waitpid(child, 0)
        except ChildProcessError:
            pass
    return bool(children)


def _open_streams(line_buffering: bool = False) -> None:
    """Text streams with a ``buffer`` each, on the descriptors themselves."""
    text = {"encoding": "utf-8", "errors": "surrogateescape"}
    reader = io.BufferedReader(io.FileIO(0, closefd=False))
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(reader, **text)
    for name, fd in (("stdout", 1), ("stderr", 2)):
        writer = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
        stream = io.TextIOWrapper(writer, line_buffering=line_buffering or fd == 2, **text)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run_as_script(units: list) -> int:
    """Exit status after what the interpreter does at the end of a script: threads, exit handlers, flush."""
    _open_streams()
    status = 0
    try:
        _new_main(units)
    except SystemExit as stop:
        status = _exit_status(stop)
    except BaseException as error:
        status = 1
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        status = status or 120  # as the interpreter does when it cannot write
    return status


def _exit_status(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return int(stop.code) & 0xFF
    print(stop.code, file=sys.stderr)
    return 1
