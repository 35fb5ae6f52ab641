"""``data/benchmarks.yaml``, typed: which benchmarks there are, where they live, under which licence."""

from __future__ import annotations

import difflib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML

Positive = Annotated[int, Field(gt=0)]
FORMS = (
    "aime",
    "amc",
    "amc12",
    "dapo",
    "gsm8k",
    "hmmt",
    "humaneval",
    "livecodebench",
    "math",
    "math500",
    "mbpp",
    "mbpp_plus",
    "minerva",
    "olympiadbench",
)


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(_Entry):
    """Where the published copy is: rows of a dataset on the hub, files in it, or files at an address.

    ``fields`` maps our names to the published ones.
    """

    hub: str | None = None  # owner/name on huggingface.co
    config: str | None = None
    splits: tuple[str, ...] = ()  # in this order
    files: tuple[str, ...] = ()  # JSON lines, read as they are: relative to the dataset, or addresses
    revision: Annotated[str, Field(pattern="^[0-9a-f]{40}$")] | None = None
    revision_from: Literal["public code"] | None = None  # how it is known; nothing was resolved from here
    count: Positive | None = None  # where the published copy has another number of problems than ``count``
    rows: Positive | None = None  # before repetitions are removed
    download_mb: Annotated[float, Field(gt=0)]  # rough
    fields: dict[str, str]

    @model_validator(mode="after")
    def _complete(self) -> Source:
        if self.hub is None and not all(name.startswith("https://") for name in self.files or ("",)):
            raise ValueError("without `hub`, `files` must be https addresses")
        if bool(self.files) == bool(self.splits):
            raise ValueError("either `files` or `splits`")
        if (self.revision is None) != (self.revision_from is None):
            raise ValueError("`revision` and `revision_from` go together")
        return self

    @property
    def where(self) -> str:
        """For people: the dataset, or the host of the files."""
        return self.hub or "/".join(self.files[0].split("/")[2:5])


class Overlapping(_Entry):
    exact: int
    near: int


class Benchmark(_Entry):
    """One problem set."""

    name: str
    title: str
    role: Literal["train", "evaluation"]
    kind: Literal["math", "program"]
    answer_type: Literal["integer", "number", "float", "expression"] | None = None  # float: measured values
    form: Literal[FORMS]  # type: ignore[valid-type]
    count: Positive
    id: str  # template of an id over our fields, and ``index``
    source: Source
    prompt: str  # default style of `prompt_for`
    window: tuple[str, str] | None = None  # default dates, inclusive
    corrections: dict[str, str] = {}  # id: gold answer, where the published one is empty
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None  # of a known copy, uncompressed
    licence: str
    overlaps: dict[str, Overlapping] = {}  # training sets: problems of evaluation sets found in it
    quirks: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Benchmark:
        if (self.kind == "math") != (self.answer_type is not None):
            raise ValueError("`answer_type` is given for mathematics and only there")
        if self.overlaps and self.role != "train":
            raise ValueError("`overlaps` belongs to training sets")
        return self

    @property
    def fetched_count(self) -> int:
        """How many problems the published copy has."""
        return self.source.count or self.count


def project_root() -> Path:
    """The folder with ``data/benchmarks.yaml``: above the working directory, else above this source file."""
    here = Path.cwd()
    for root in (here, *here.parents, *Path(__file__).resolve().parents):
        if (root / "data" / "benchmarks.yaml").is_file():
            return root
    raise FileNotFoundError(f"data/benchmarks.yaml is in no folder above {here} nor above {Path(__file__)}")


def load_catalogue(path: str | Path | None = None) -> dict[str, Benchmark]:
    """All problem sets by name, in the file's order.

    Raises:
        ValueError: the file does not have the form of :class:`Benchmark`; names the entry and the field.
    """
    path = Path(path) if path is not None else project_root() / "data" / "benchmarks.yaml"
    return dict(_load(path, path.stat().st_mtime_ns))


@lru_cache(maxsize=8)
def _load(path: Path, _modified: int) -> dict[str, Benchmark]:
    entries: dict[str, Any] = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    catalogue = {}
    for name, entry in entries.items():
        try:
            catalogue[name] = Benchmark(name=name, **entry)
        except (ValidationError, TypeError) as error:
            raise ValueError(f"{path}: entry {name!r}: {error}") from None
    return catalogue


def get_benchmark(name: str) -> Benchmark:
    """The entry of that name.

    Raises:
        ValueError: no such benchmark; names the nearest ones.
    """
    catalogue = load_catalogue()
    if isinstance(name, str) and name in catalogue:
        return catalogue[name]
    near = difflib.get_close_matches(str(name).lower().replace("-", "_"), catalogue, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
    raise ValueError(f"benchmark={name!r}: {hint}allowed are {', '.join(catalogue)}")
