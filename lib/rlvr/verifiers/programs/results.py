"""What a verification answers, and the limits it runs under."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlvr.verifiers.base import Verdict

WRONG = (  # reasons of correct=False
    "wrong", "exception", "test_error", "syntax", "no_code", "no_entry_point", "truncated",
    "timeout", "memory", "output", "exit", "crash", "killed", "protocol",
)  # fmt: skip
UNDECIDED = ("no_tests", "bad_tests", "no_response", "infrastructure")  # reasons of correct=None


@dataclass(frozen=True)
class Limits:
    """Limits of one program; a process or thread is one of ``processes``.

    ``test_seconds`` is for one test on standard input or one call of the function, ``total_seconds`` for the
    whole verification. Both are processor time, so that a busy machine fails no program; the wall clock may
    show ``patience`` times as much. ``memory_bytes`` is address space per process, above
    what the interpreter has; ``disk_bytes`` the size of ``/tmp``; ``output_bytes`` that of standard output
    and error together, per test or per program; ``message_bytes`` that of one returned value.
    """

    test_seconds: float = 6.0
    total_seconds: float = 60.0
    patience: float = 3.0
    memory_bytes: int = 1 << 30
    output_bytes: int = 1 << 20
    message_bytes: int = 16 << 20
    disk_bytes: int = 64 << 20
    file_bytes: int = 16 << 20
    stack_bytes: int = 64 << 20
    processes: int = 64
    open_files: int = 256

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ValueError(f"{name}={value!r}: allowed are numbers > 0")


@dataclass(frozen=True)
class ProgramResult:
    """One verified program. ``correct`` is None where nothing was decided: such a sample is to be masked.

    ``passed`` and ``total`` count tests: assertions that held and that were reached where the benchmark has
    one ``check`` (it stops at the first that fails), else tests. ``reason`` is ``correct``, one of ``WRONG``
    or one of ``UNDECIDED``.
    """

    correct: bool | None
    reason: str
    passed: int = 0
    total: int = 0
    first_failure: str | None = None
    seconds: float = 0.0
    stdout: str = ""  # the last bytes; of the first failing test where tests have their own
    stderr: str = ""
    code: str | None = None  # what was taken from the response
    outcomes: tuple[bool, ...] = ()  # of the separate tests of kind ``functional`` that were run, in order

    def verdict(self) -> Verdict:
        return Verdict(self.correct, self.code, self.reason)

    @classmethod
    def undecided(cls, reason: str, detail: str | None = None, **more: Any) -> ProgramResult:
        return cls(None, reason, first_failure=detail, **more)
