"""A problem of a public benchmark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KINDS = ("math", "function", "stdin")


@dataclass(frozen=True, slots=True)
class BenchmarkProblem:
    """One problem, as its benchmark publishes it; what no field names is in ``metadata``."""

    id: str  # unique within the benchmark
    benchmark: str
    prompt: str  # the problem's text; what a model is shown is :func:`rlvr.problems.benchmarks.prompt_for`
    answer: str = ""  # the gold answer; "" for programs, which have tests
    answers: tuple[str, ...] = ()  # every accepted answer, where a benchmark publishes several
    kind: str = "math"  # math | function (a named function is called) | stdin (a whole program is run)
    answer_type: str = ""  # of the gold: integer, expression, number, float (measured), list, tuple, ..
    level: int | str | None = None  # 1..5 (MATH); easy, medium, hard (LiveCodeBench)
    subject: str | None = None
    tests: dict[str, Any] | None = None  # programs: see `program_record`
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def golds(self) -> tuple[str, ...]:
        """The accepted answers, at least one for a mathematics problem."""
        return self.answers or ((self.answer,) if self.kind == "math" else ())

    @property
    def grading(self) -> str:
        """The ``kind`` of :func:`rlvr.verifiers.math.verify_math` for this problem."""
        return self.answer_type if self.answer_type in ("integer", "float", "list") else "auto"
