"""The judge's end of the line: calls into the box, and stand-ins for what cannot be sent as data."""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import operator
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from . import channel, codec, linux
from .box import EXCEPTIONS, describe, kill_descendants

_GLANCE = 0.05  # seconds of waiting before the program's processor time is looked at
_BATCH = 128  # planned calls sent at once


class Stop(BaseException):
    """The program is finished with, for this reason; no ``except Exception`` of a test holds it up."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class Line:
    """The box, seen from the judge: its socket, its output, its life, and the clocks that run against it."""

    def __init__(self, pid: int, sock: socket.socket, out: int, err: int, unsafe: bool):
        self.pid = pid
        self.sock = sock
        self.unsafe = unsafe
        self.watch = os.pidfd_open(pid)
        self.output = {out: bytearray(), err: bytearray()}
        self.out, self.err = out, err
        self.poll = select.poll()
        for fd in (sock.fileno(), out, err, self.watch):
            self.poll.register(fd, select.POLLIN)
        self.output_bytes = 0
        self.message_bytes = 0
        self.patience, self.total_seconds, self.deadline = 1.0, math.inf, math.inf
        self.failure: Stop | None = None

    def fail(self, reason: str, detail: str = "") -> Stop:
        """The first reason stands, also if a test swallows the exception."""
        self.failure = self.failure or Stop(reason, detail)
        return self.failure

    def start(self, settings: dict, limits: dict) -> None:
        """Hand the box its settings and the program; the clocks run from now."""
        self.output_bytes, self.message_bytes = settings["output_bytes"], settings["message_bytes"]
        self.patience, self.total_seconds = limits["patience"], limits["total_seconds"]
        self.deadline = time.monotonic() + self.patience * self.total_seconds
        self.sock.settimeout(self.patience * self.total_seconds)
        try:
            self.send(settings)
            self.receive(60.0)
        except Stop as stop:
            raise RuntimeError(f"the box did not start: {stop.reason} {stop.detail}") from None

    def send(self, message: dict) -> None:
        try:
            channel.send(self.sock, codec.dumps(message))
        except channel.Closed:
            raise self.ended() from None
        except TimeoutError:
            raise self.fail("timeout") from None

    def receive(self, seconds: float, keep_alive: bool = False) -> dict:
        """The next message of the box. Stops at a limit; ``keep_alive`` leaves the box running then.

        ``seconds`` are of the box's processor time; the wall clock may show ``patience`` times as many.
        """
        now = time.monotonic()
        deadline = min(now + self.patience * seconds, self.deadline)
        before, wait = None, _GLANCE
        while True:
            if now >= deadline:
                raise self._limit("timeout", keep_alive)
            ready = dict(self.poll.poll(1000 * min(wait, deadline - now)))
            for fd in (self.out, self.err):
                if fd in ready:
                    self._read_output(fd)
            if len(self.output[self.out]) + len(self.output[self.err]) > self.output_bytes:
                raise self._limit("output", keep_alive)
            if self.sock.fileno() in ready:
                return self._read_message()
            if self.watch in ready:
                raise self.ended()
            used = linux.processor_seconds(self.pid)
            before = used if before is None else before
            wait = max(0.01, min(seconds - (used - before), self.total_seconds - used))
            if used - before >= seconds or used >= self.total_seconds:
                raise self._limit("timeout", keep_alive)
            now = time.monotonic()

    def _read_message(self) -> dict:
        try:
            message = codec.loads(channel.receive(self.sock, self.message_bytes + 64))
            if isinstance(message, dict):
                return message
            raise ValueError(f"a {type(message).__name__}")
        except channel.Closed:
            raise self.ended() from None
        except TimeoutError:
            raise self.fail("timeout") from None
        except channel.TooLarge as error:
            raise self.fail("output", str(error)) from None
        except (ValueError, RecursionError) as error:
            raise self.fail("exception", f"unreadable answer: {error}") from None

    def _limit(self, reason: str, keep_alive: bool) -> Stop:
        return Stop(reason) if keep_alive else self.fail(reason)

    def _read_output(self, fd: int) -> None:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        if data:
            self.output[fd] += data
        else:
            self.poll.unregister(fd)

    def drain(self) -> None:
        """What is in the pipes now, up to the limit."""
        for fd, text in self.output.items():
            while len(text) <= self.output_bytes:
                try:
                    data = os.read(fd, 65536)
                except BlockingIOError:
                    break
                if not data:
                    break
                text += data

    def take_output(self) -> tuple[bytes, bytes]:
        self.drain()
        taken = bytes(self.output[self.out]), bytes(self.output[self.err])
        for text in self.output.values():
            text.clear()
        return taken

    def ended(self) -> Stop:
        """Why nobody answers any more."""
        if self.failure is None:
            select.select([self.watch], [], [], 0.2)  # the socket closes a moment before the process ends
            status = os.waitid(os.P_PIDFD, self.watch, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if status is None:
                self.fail("exit", "the program closed its line to the judge")
            elif status.si_code == os.CLD_EXITED:
                self.fail("exit", f"the process ended with status {status.si_status}")
            else:
                self.fail(*signal_reason(status.si_status))
        return self.failure

    def kill(self) -> None:
        """The box and all it started; afterwards none of them exists, not as a zombie either."""
        try:
            os.kill(self.pid, signal.SIGKILL)
            if self.unsafe:
                os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self.pid, 0)
        while self.unsafe and kill_descendants(os.getpid()):
            pass


def signal_reason(number: int) -> tuple[str, str]:
    """Reason and detail. SIGKILL is the limit of processor time, or a machine out of memory."""
    reason = "killed" if number in (signal.SIGKILL, signal.SIGXCPU) else "crash"
    return reason, f"killed by signal {number} ({signal.strsignal(number)})"


class Program:
    """Requests about the loaded program."""

    def __init__(self, line: Line, seconds: float, in_place: bool):
        self.line = line
        self.seconds = seconds
        self.in_place = in_place
        self.calls = 0
        self.last_call: tuple[tuple, dict] | None = None
        self.last_value: Any = self  # itself: none came
        self.raised = ""  # by the program, in its last call
        self.callbacks: dict[int, Callable] = {}
        self.numbers = itertools.count(1)
        self.planned: collections.deque = collections.deque()
        self.ahead = 0  # answers under way

    def request(self, message: dict) -> Any:
        """Encoded value of the answer; raises what the program raised."""
        if self.line.failure is not None:
            raise self.line.failure
        self.raised = ""
        while self.ahead:  # to calls that the test did not make after all
            self.ahead -= 1
            with contextlib.suppress(Exception):
                self._answer()
        self.planned.clear()
        self.line.send(message)
        return self._answer()

    def _answer(self) -> Any:
        while "callback" in (reply := self.line.receive(self.seconds)):
            self._call_back(reply)
        if "large" in reply:
            raise self.line.fail("output", f"a value of {reply['large']} bytes")
        if "raise" in reply:
            raise self._exception(reply["raise"])
        return reply.get("value")

    def plan(self, remote: Remote, inputs: Any) -> None:
        """Calls that the test will make of ``remote``, in this order: they are sent ahead, in batches.

        Saves the switch between two processes per call; a test that calls something else gets that.
        """
        if not self.in_place and isinstance(inputs, list) and all(type(x) in (list, tuple) for x in inputs):
            self.planned = collections.deque((remote._number, args) for args in inputs)

    def _planned_call(self, number: int, args: tuple, kwargs: dict) -> bool:
        """Whether this is the next planned call; its answer is under way then."""
        if not self.planned or kwargs or self.line.failure is not None:
            return False
        planned, expected = self.planned[0]
        if planned != number or len(expected) != len(args) or any(map(operator.is_not, args, expected)):
            return False
        if not self.ahead:  # the program has answered all: it reads, neither side waits for the other
            batch = [expected for _, expected in itertools.islice(self.planned, _BATCH)]
            calls = [self.encode(tuple(expected)) for expected in batch]
            self.line.send({"op": "calls", "object": number, "calls": calls})
            self.ahead = len(batch)
        self.planned.popleft()
        self.ahead -= 1
        return True

    def _exception(self, described: dict) -> BaseException:
        kind, name, text = (str(described.get(key) or "") for key in ("kind", "name", "text"))
        self.raised = f"{name}: {text}" if text else name
        if kind == "MemoryError":
            return self.line.fail("memory", self.raised)
        if kind not in EXCEPTIONS:  # SystemExit, KeyboardInterrupt and the like
            return self.line.fail("exit", self.raised)
        if kind in ("StopIteration", "StopAsyncIteration"):  # would end a test's map() as if it were done
            return RuntimeError(self.raised)
        with contextlib.suppress(Exception):
            return EXCEPTIONS[kind](*self.decode(described["args"]))
        try:
            return EXCEPTIONS[kind](text)
        except TypeError:  # UnicodeDecodeError wants five arguments
            return Exception(self.raised)

    def _call_back(self, message: dict) -> None:
        try:
            function = self.callbacks[message["callback"]]
            value = function(*self.decode(message["args"]), **self.decode(message["kwargs"]))
            reply = {"value": self.encode(value)}
        except Exception as error:
            reply = {"raise": describe(error)}
        self.line.send(reply)

    def encode(self, value: Any) -> Any:
        return codec.encode(value, self._handle)

    def _handle(self, value: Any) -> list:
        if isinstance(value, Remote):
            return [object.__getattribute__(value, "_number"), False]
        if callable(value):
            number = next(self.numbers)
            self.callbacks[number] = value
            return [number, True]
        raise codec.Unencodable(f"{type(value).__name__} cannot be passed to a program")

    def decode(self, data: Any) -> Any:
        return codec.decode(data, lambda payload: Remote(self, payload[0], payload[1]))

    def name(self, name: str) -> Remote | None:
        """The program's function, class or object of that name; None if it defines none."""
        try:
            return self.decode(self.request({"op": "name", "name": name}))
        except Exception:
            return None

    def call(self, number: int, args: tuple, kwargs: dict) -> Any:
        self.calls += 1
        self.raised = ""
        self.last_call, self.last_value = (args, kwargs), self
        if self._planned_call(number, args, kwargs):
            self.last_value = self.decode(self._answer())
            return self.last_value
        message = {"op": "call", "object": number, "in_place": self.in_place}
        message["args"], message["kwargs"] = self.encode(args), self.encode(kwargs)
        value = self.decode(self.request(message))
        if self.in_place:
            value, *changed = value
            for before, after in zip(args, changed, strict=True):
                _overwrite(before, after)
        self.last_value = value
        return value


def _overwrite(before: Any, after: Any) -> None:
    if type(before) is not type(after):
        return
    if isinstance(before, (list, bytearray)):
        before[:] = after
    elif isinstance(before, (dict, set)):
        before.clear()
        before.update(after)


class Remote:
    """An object of the program's: it can be called, read, indexed, iterated over; it equals only itself."""

    def __init__(self, program: Program, number: int, kind: str):
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_number", int(number))
        object.__setattr__(self, "_kind", str(kind))

    def _ask(self, op: str, **more: Any) -> Any:
        return self._program.decode(self._program.request({"op": op, "object": self._number, **more}))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._program.call(self._number, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("get", name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", name=name, value=self._program.encode(value))

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", value=self._program.encode(key))

    def __len__(self) -> int:
        return self._ask("length")

    def __bool__(self) -> bool:
        return self._ask("truth") is True

    def __iter__(self) -> Iterator:
        iterator = self._ask("iterate")
        while items := iterator._ask("next"):
            yield from items

    def __next__(self) -> Any:
        for item in self._ask("next"):
            return item
        raise StopIteration

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and other._number == self._number

    def __hash__(self) -> int:
        return hash(self._number)

    def __repr__(self) -> str:
        return f"<{self._kind} of the program>"
