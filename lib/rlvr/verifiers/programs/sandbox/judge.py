"""One judge per program: forks the box, then reads the tests, runs them and says what came out.

The order matters: the box is a copy of this process from before the tests were read.
"""

from __future__ import annotations

import importlib
import marshal
import os
import random
import resource
import signal
import socket
import sys
import time
import traceback
from typing import Any

from . import box, channel, codec, compare, linux
from .remote import Line, Program, Remote, Stop, signal_reason

_TAIL = 2000  # bytes of output that are reported


class BoxError(Exception):
    """The box failed before the program ran."""


class BadTests(Exception):
    """The tests themselves cannot be used; says nothing about the program."""


def main(parent: socket.socket, uid: int | None, folder: str, isolated: bool, base: dict) -> None:
    """Judge one job read from ``parent`` and answer there."""
    ours, theirs = socket.socketpair()
    (out, out_box), (err, err_box) = os.pipe(), os.pipe()
    if isolated:
        linux.unshare(linux.NEWPID)
    else:
        linux.adopt_orphans()
    pid = os.fork()
    if pid == 0:
        ours.close()
        parent.close()
        box.main(theirs, out_box, err_box, uid, folder, pid_1=isolated)
    theirs.close()
    for fd in (out_box, err_box):
        os.close(fd)
    for fd in (out, err):
        os.set_blocking(fd, False)
    line = Line(pid, ours, out, err, unsafe=not isolated)
    try:
        if isolated or uid is None:
            linux.drop_privileges(uid, readable=False)
        else:  # the program runs as another user, which cannot signal us
            linux.die_with_parent()
        job = marshal.loads(channel.receive(parent))
        answer = judge(job, line, base)
    finally:
        line.kill()
    channel.send(parent, codec.dumps(answer | {"nonce": job["nonce"]}))


def judge(job: dict, line: Line, base: dict) -> dict:
    started = time.monotonic()
    settings = job["settings"] | {"units": job["units"], "kind": job["kind"]}
    settings["address_space"] = base["memory"] + settings.pop("memory_bytes")
    settings["processes"] += base["processes"]
    linux.limit(resource.RLIMIT_AS, settings["address_space"] + 4 * settings["message_bytes"])
    linux.limit(resource.RLIMIT_CORE, 0)
    sys.set_int_max_str_digits(0)
    random.seed(job["seed"])
    verdict = {"correct": None, "reason": "infrastructure", "passed": 0, "total": 0, "first_failure": None}
    run = _Stdin(job, line) if job["kind"] == "stdin" else _Function(job, line)

    def on_alarm(*_: Any) -> None:
        """A test that loops on what the program answered."""
        raise line.fail("timeout", "in the test")

    limits = job["limits"]
    clocks = {
        signal.ITIMER_REAL: limits["patience"] * limits["total_seconds"],
        signal.ITIMER_PROF: limits["total_seconds"],
    }
    signal.signal(signal.SIGALRM, on_alarm)
    signal.signal(signal.SIGPROF, on_alarm)
    line.start(settings, limits)
    try:
        for clock, seconds in clocks.items():
            signal.setitimer(clock, seconds + 0.5)
        try:
            verdict |= run.verdict()
        finally:
            for clock in clocks:
                signal.setitimer(clock, 0)
    except Stop as stop:
        verdict |= run.failed(stop.reason, stop.detail)
    except BadTests as error:
        verdict |= {"reason": "bad_tests", "first_failure": str(error)[:500]}
    except BoxError:
        raise
    except Exception as error:  # answers that our side of the box does not give: the program took it over
        verdict |= run.failed("protocol", f"{type(error).__name__}: {error}")
    out, err = line.take_output()
    tails = {"stdout": run.stdout or out, "stderr": run.stderr or err}
    verdict |= {name: text[-_TAIL:].decode("utf-8", "replace") for name, text in tails.items()}
    return verdict | {"seconds": time.monotonic() - started}


class _Run:
    stdout = b""
    stderr = b""

    def __init__(self, job: dict, line: Line):
        self.job = job
        self.line = line
        self.passed = 0
        self.total = 0
        self.first_failure: tuple[str, str] | None = None

    def miss(self, reason: str, detail: str) -> None:
        self.first_failure = self.first_failure or (reason, detail)

    def failed(self, reason: str, detail: str) -> dict:
        self.miss(reason, detail)
        return self.result()

    def result(self) -> dict:
        correct = self.first_failure is None and 0 < self.total == self.passed
        reason, detail = (
            ("correct", None) if correct else self.first_failure or ("wrong", "a test did not run")
        )
        return {
            "correct": correct,
            "reason": reason,
            "passed": self.passed,
            "total": self.total,
            "first_failure": detail and detail[:1000],
        }


class _Stdin(_Run):
    """Programs that read standard input and print: one process per test, outputs compared here."""

    def verdict(self) -> dict:
        tests = self.job["tests"]
        self.total = len(tests)
        for number, (text, expected) in enumerate(tests):
            reason, detail = self._test(number, text, expected)
            if reason is None:
                self.passed += 1
                continue
            self.miss(reason, f"test {number}: {detail}")
            if self.job["stop_early"]:
                break
        return self.result()

    def _test(self, number: int, text: str, expected: str) -> tuple[str | None, str]:
        seconds = min(self.job["limits"]["test_seconds"], self.line.total_seconds)
        self.line.send({"op": "test", "input": text, "seconds": seconds})
        stop = None
        try:  # the box watches the processor time of the test; here it is the wall clock that counts
            reply = self.line.receive(seconds, keep_alive=True)
        except Stop as caught:
            if self.line.failure is not None:
                raise
            stop = caught
            out, err = self.line.take_output()
            self.line.send({"op": "kill"})
            reply = self.line.receive(10.0)
            self.line.take_output()
        else:
            out, err = self.line.take_output()
        if "error" in reply:
            raise (Stop("crash", f"test {number}: {reply['error']}") if number else BoxError(reply["error"]))
        if self.first_failure is None:
            self.stdout, self.stderr = out, err
        status, used, late = reply["value"]
        self.line.total_seconds = max(0.001, self.line.total_seconds - used)
        if late:
            stop = Stop("timeout")
        if stop is None and len(out) + len(err) > self.line.output_bytes:
            stop = Stop("output")
        if stop is not None:
            return stop.reason, f"stopped at the limit; input {_short(text)}"
        if not isinstance(status, int) or status < 0:
            return signal_reason(-status)
        if status != 0:
            last = err.decode("utf-8", "replace").strip().rpartition("\n")[2]
            reason = "memory" if last.startswith("MemoryError") else "exception"
            reason = "syntax" if last.startswith(("SyntaxError", "IndentationError", "TabError")) else reason
            return reason, f"exit status {status}; {_short(last)}; input {_short(text)}"
        try:
            printed = out.decode("utf-8")
        except UnicodeDecodeError:
            return "wrong", "the output is not UTF-8"
        if compare.same_output(printed, expected, self.job["tolerance"]):
            return None, ""
        return "wrong", f"printed {_short(printed)}, expected {_short(expected)}; input {_short(text)}"


class _Function(_Run):
    """Programs that define a function, which the tests here call."""

    def __init__(self, job: dict, line: Line):
        super().__init__(job, line)
        self.program = Program(line, job["limits"]["test_seconds"], job["in_place"])
        self.missing: list[str] = []  # names that the tests read and nobody defines
        self.outcomes: list[bool] = []

    def verdict(self) -> dict:
        self._load()
        entry = self.program.name(self.job["entry_point"])
        if entry is None:
            raise Stop("no_entry_point", f"the program does not define {self.job['entry_point']}")
        if self.job["kind"] == "functional":
            self._expectations(entry)
        else:
            self._statements(entry)
        return self.result()

    def _load(self) -> None:
        reply = self.line.receive(self.job["limits"]["test_seconds"])
        if "raise" in reply:
            error = self.program._exception(reply["raise"])
            if isinstance(error, Stop):
                raise error
            broken = reply["raise"]["name"] in ("SyntaxError", "IndentationError", "TabError")
            raise Stop("syntax" if broken else "exception", self.program.raised)

    def _expectations(self, entry: Remote) -> None:
        """Arguments and the expected value of each test."""
        self.total = len(self.job["tests"])
        self.program.plan(entry, [args for args, _ in self.job["tests"]])
        for number, (args, expected) in enumerate(self.job["tests"]):
            try:
                value = entry(*args)
            except Exception as error:
                self._count(False, "exception", f"test {number}: {self._explain(error)}")
            else:
                right = self._close(value, expected)
                detail = f"test {number}: returned {_short(value)}, expected {_short(expected)}, "
                self._count(right, "wrong", detail + self._call())
            if self.first_failure and self.job["stop_early"]:
                return

    def _close(self, value: Any, expected: Any) -> bool:
        try:
            return compare.close(value, expected, self.job["tolerance"])
        except Exception:  # arrays without a truth value, nesting beyond the stack
            return False

    def result(self) -> dict:
        return super().result() | {"outcomes": self.outcomes}

    def _count(self, right: bool, reason: str, detail: str) -> None:
        self.outcomes.append(bool(right))
        self.passed += right
        if not right:
            self.miss(reason, detail)

    def _statements(self, entry: Remote) -> None:
        """The benchmark's own test code: ``check(candidate)``, or statements one by one."""
        job = self.job
        held = [0]

        def count() -> None:
            held[0] += 1

        names = self._names(entry, count)
        for code in job["setup"]:
            self._setup(code, names)
        steps = [lambda code=code: exec(code, names) for code in job["tests"]]
        if job["kind"] == "check":
            steps.append(lambda: names["check"](entry))
        by_statement = job["kind"] == "asserts"
        self.total = len(steps) if by_statement else 0
        for number, step in enumerate(steps):
            before = held[0]
            ran = self._step(step, number)
            if by_statement:
                if ran and job["counted"][number] and held[0] == before:
                    ran = False
                    self.miss("wrong", f"test {number}: no assertion was reached, {self._call()}")
                self.passed += ran
            else:
                self.passed, self.total = held[0], held[0] + (not ran)
            if not ran and job["stop_early"]:
                return
        if self.first_failure is None:
            self._require_evidence(held[0])

    def _require_evidence(self, held: int) -> None:
        """Nothing failed: then something must have been asserted, and about the program."""
        if not self.program.calls:
            raise BadTests("the tests never call the program")
        if not any(self.job["counted"]):
            self.passed = self.total = max(1, self.total)
        elif not held:
            raise Stop("wrong", f"no assertion was reached, {self._call()}")

    def _step(self, step: Any, number: int) -> bool:
        self.program.raised = ""
        try:
            step()
        except Exception as error:
            if self.program.raised:
                reason = "exception"
            elif isinstance(error, ImportError) and not self.program.calls:
                raise BadTests(f"{type(error).__name__}: {error}") from None
            else:
                reason = "wrong" if isinstance(error, AssertionError) else "test_error"
            self.miss(reason, f"test {number}: {self._explain(error)}")
            right = False
        else:
            right = True
        if self.line.failure is not None:  # whatever the test made of it
            raise self.line.failure from None
        return right

    def _setup(self, code: Any, names: dict) -> None:
        try:
            exec(code, names)
        except Exception as error:
            if self.line.failure is not None:
                raise self.line.failure from None
            if self.program.calls or self.program.raised or self.missing:
                raise Stop("test_error", f"setup of the tests: {self._explain(error)}") from None
            raise BadTests(f"setup of the tests: {self._explain(error)}") from None

    def _names(self, entry: Remote, count: Any) -> dict:
        """What the tests see: the prompt's helpers, modules they name, and else what the program defines."""
        job = self.job
        names: dict = {"__name__": "tests"}
        for code in job["helpers"]:
            try:
                exec(code, names)
            except Exception as error:
                raise BadTests(f"helpers of the prompt: {error!r}") from None
        names |= {"candidate": entry, job["entry_point"]: entry, job["counter"]: count}
        names[job["planner"]] = lambda inputs: self.program.plan(entry, inputs)
        if "numpy" in sys.modules:
            strict_allclose()
        for name in job["free_names"]:
            if name in names:
                continue
            if name in sys.stdlib_module_names:
                names[name] = importlib.import_module(name)
            elif (value := self.program.name(name)) is not None:
                names[name] = value
            else:
                self.missing.append(name)
        return names

    def _explain(self, error: BaseException) -> str:
        text = self.program.raised or f"{type(error).__name__}: {error}".rstrip(": ")
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == "tests.py"]
        where = f" (line {lines[-1]} of the tests)" if lines else ""
        return f"{_short(text, 300)}{where}, {self._call()}"

    def _call(self) -> str:
        if self.program.last_call is None:
            return "before any call"
        args, kwargs = self.program.last_call
        parts = [_short(arg) for arg in args] + [f"{key}={_short(value)}" for key, value in kwargs.items()]
        value = "" if self.program.last_value is self.program else f" -> {_short(self.program.last_value)}"
        return f"last call ({', '.join(parts)}){value}"


def strict_allclose() -> None:
    """``numpy.allclose`` that wants equal shapes: an empty list is close to any number by broadcasting."""
    import numpy

    original = numpy.allclose

    def allclose(a: Any, b: Any, *args: Any, **kwargs: Any) -> bool:
        return numpy.shape(a) == numpy.shape(b) and original(a, b, *args, **kwargs)

    numpy.allclose = allclose


def _short(value: Any, size: int = 120) -> str:
    try:
        text = value if isinstance(value, str) and size == 300 else repr(value)
    except Exception as error:
        text = f"<{type(error).__name__}>"
    return text if len(text) <= size else f"{text[: size - 3]}..."
