"""What is written beside a table or figure, and what a claim's verdict must rest on."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from rlvr.reporting.cells import known
from rlvr.reporting.verdicts import Verdict

EXACT = "exact"  # ArtifactMeta.interval of something computed without sampling


class Record(BaseModel):
    """A frozen record; an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ArtifactMeta(Record):
    """What a reader must know beside the picture or table.

    ``interval`` says how the shown uncertainty was made (e.g. "95 % Student t over seeds"), or is "exact"
    for something computed without sampling; only then may ``n`` and ``seeds`` be empty. ``n_unit`` is what n
    counts.
    """

    id: str
    title: str
    stage: str  # the pipeline stage that made it
    scale: str
    seeds: tuple[int, ...] = ()
    n: int | None = None
    n_unit: str = ""
    interval: str
    notebook: str  # path from the repository root
    notes: str = ""  # what differs from the paper, and why
    alt: str = ""  # what the figure shows, for someone who cannot see it

    @model_validator(mode="after")
    def _has_its_doubt(self) -> ArtifactMeta:
        required = ("id", "title", "stage", "scale", "interval", "notebook")
        empty = [field for field in required if not getattr(self, field).strip()]
        if empty:
            raise ValueError(f"{self.id}: {', '.join(empty)} must not be empty")
        if self.interval != EXACT and (not self.n or not self.n_unit or not self.seeds):
            raise ValueError(
                f"{self.id}: n={self.n}, n_unit={self.n_unit!r}, seeds={self.seeds}: all three are needed "
                "unless interval='exact'"
            )
        return self


class Part(Record):
    """One interval that a claim's test looks at, the threshold it is held against, and what that gives.

    ``kind`` is a keyword of :func:`rlvr.reporting.verdicts.judge`, ``method`` says how the interval was made.
    Unknown numbers are None.
    """

    name: str
    effect: float | None
    ci_low: float | None
    ci_high: float | None
    n: int
    n_unit: str
    seeds: tuple[int, ...]
    method: str
    kind: str
    threshold: float
    verdict: Verdict


class Claim(Record):
    """The outcome of one stated test of one claim.

    ``effect`` with [ci_low, ci_high] is that of the part which the test names, or which decides; ``parts``
    are all.
    A verdict other than open needs the interval and at least two seeds; a result by enumeration has
    ci_low == ci_high and no seeds.
    """

    id: str
    statement: str = ""  # empty: taken from the registry
    test: str
    effect: float | None
    ci_low: float | None
    ci_high: float | None
    n: int | None
    n_unit: str = ""
    seeds: tuple[int, ...]
    verdict: Verdict
    scale: str
    artifacts: tuple[str, ...] = ()
    note: str = ""
    told: str = ""  # how ``note`` begins where there are several parts: all of them, in words
    parts: tuple[Part, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _nan_is_unknown(cls, values: Any) -> Any:
        if isinstance(values, dict):
            fields = ("effect", "ci_low", "ci_high")
            return {k: known(v) if k in fields and isinstance(v, float) else v for k, v in values.items()}
        return values

    @model_validator(mode="after")
    def _verdict_is_earned(self) -> Claim:
        if not self.test.strip():
            raise ValueError(f"{self.id}: test is empty; a verdict needs a stated test")
        if self.ci_low is not None and self.ci_high is not None and self.ci_low > self.ci_high:
            raise ValueError(f"{self.id}: interval [{self.ci_low}, {self.ci_high}] is upside down")
        if self.verdict == "open":
            return self
        if self.effect is None or self.ci_low is None or self.ci_high is None or not self.n:
            raise ValueError(
                f"{self.id}: verdict {self.verdict!r} with effect={self.effect}, "
                f"interval=[{self.ci_low}, {self.ci_high}], n={self.n}; with any of them unknown it is 'open'"
            )
        if len(set(self.seeds)) < 2 and self.ci_low != self.ci_high:
            raise ValueError(
                f"{self.id}: verdict {self.verdict!r} from seeds={self.seeds}; below two it is 'open'"
            )
        return self
