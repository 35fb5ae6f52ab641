"""Evaluation files: the type of one, and the problems it names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from rlvr.config import Count, Positive, _Section, load_yaml
from rlvr.engines.config import SamplingConfig
from rlvr.evaluation.engines import check
from rlvr.evaluation.requests import Candidate, EmbeddedProblem, Evaluation, read_embedded
from rlvr.problems.base import digest
from rlvr.problems.benchmarks import BenchmarkProblem, MissingData, get_benchmark, load_benchmark
from rlvr.problems.benchmarks.sources import find_file


class Source(_Section):
    """Problems of one benchmark (mathematics or programs), or of a file of generated ones."""

    benchmark: str | None = None  # as in data/benchmarks.yaml
    file: str | None = None
    number: Positive | None = None  # None: all
    split: str | None = None  # the last three: as in `load_benchmark`
    levels: tuple[int | str, ...] | None = None
    window: tuple[str, str] | Literal["all"] | None = None

    @model_validator(mode="after")
    def _one(self) -> Source:
        if (self.benchmark is None) == (self.file is None):
            raise ValueError(f"benchmark={self.benchmark!r}, file={self.file!r}: allowed is one of the two")
        if self.file is not None and self.parts:
            raise ValueError(f"{', '.join(self.parts)} with a file: allowed with a benchmark")
        return self

    @property
    def parts(self) -> dict[str, Any]:
        """What else `load_benchmark` is told."""
        named = {name: getattr(self, name) for name in ("split", "levels", "window")}
        return {name: value for name, value in named.items() if value is not None}


class Settings(_Section):
    """The whole of one evaluation file."""

    scale: str
    root: str  # path from the file's folder to the repository root
    scale_file: str  # this file, from the repository root
    engine: Literal["local", "transformers", "vllm"]
    model: str  # the folder of a saved model; engine transformers: or a package with a GGUF file
    name: str  # of the model, in tables
    threads: Positive = 1  # of torch, engine transformers alone
    workers: Positive = 2  # processes that grade; changes no number
    problems: tuple[Source, ...] = Field(min_length=1)
    subset_seed: Count
    sampling: dict[str, Any]  # SamplingConfig
    training_sets: tuple[str, ...]  # what the evaluation sets are compared with
    confidence: float = Field(gt=0.5, lt=1)

    @field_validator("sampling")
    @classmethod
    def _sampling_is_valid(cls, values: dict[str, Any]) -> dict[str, Any]:
        SamplingConfig.from_dict(values)
        return values

    @field_validator("training_sets")
    @classmethod
    def _training_sets_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            get_benchmark(name)
        return names

    @property
    def sampling_config(self) -> SamplingConfig:
        return SamplingConfig.from_dict(self.sampling)


def load_settings(path: str | Path) -> Settings:
    """Read and check an evaluation file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: one line per wrong field.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"evaluation file {path} does not exist")
    raw = load_yaml(path)
    if not isinstance(raw, dict):
        raise ValueError(f"{path}: expected a mapping of settings, got {type(raw).__name__}")
    try:
        return Settings.model_validate(raw)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc'])) or '(file)'}: {e['msg']}" for e in error.errors()]
        raise ValueError(f"{path} is not a valid evaluation file:\n" + "\n".join(lines)) from None


def evaluation(settings: Settings) -> Evaluation:
    """What the file asks for, with its problems read.

    Raises:
        FileNotFoundError, ImportError, ValueError: as :func:`load_problems`; settings that do not go
            together, and what :func:`rlvr.evaluation.engines.check` refuses: all that can be known before
            anything is loaded or sampled.
    """
    found = Evaluation(
        policies=(Candidate(settings.model, settings.name),),
        problems=tuple(load_problems(settings)),
        sampling=settings.sampling_config,
        engine=settings.engine,
        confidence=settings.confidence,
        workers=settings.workers,
        threads=settings.threads,
        training_sets=settings.training_sets,
    )
    check(found)
    return found


def load_problems(settings: Settings) -> list[BenchmarkProblem | EmbeddedProblem]:
    """The subsets, source by source, each in its published order.

    A subset is drawn by a hash of ``subset_seed`` and the problem's id, so that a smaller one is part of a
    larger one; the first problems would not do, since benchmarks are sorted by exam or subject [choice].

    Raises:
        FileNotFoundError: benchmarks or a file are not here; says how to get them.
        ValueError: fewer problems than asked for, or an id twice.
    """
    require_benchmarks(settings)
    chosen: list[BenchmarkProblem | EmbeddedProblem] = []
    for source in settings.problems:
        name = source.benchmark or source.file
        every: Sequence[Any]
        if source.benchmark is not None:
            every = load_benchmark(source.benchmark, **source.parts)
        else:
            if not Path(name).is_file():
                raise FileNotFoundError(
                    f"problems: {name} does not exist (runs/<scale>: `make repro` makes it)"
                )
            every = read_embedded(name)
        number = len(every) if source.number is None else source.number
        if number > len(every):
            raise ValueError(f"number={number} of {name}: it has {len(every)}")
        rank = {p.id: digest("subset", str(settings.subset_seed), p.id) for p in every}
        kept = set(sorted(rank, key=rank.__getitem__)[:number])
        chosen += [p for p in every if p.id in kept]
    ids = [p.id for p in chosen]
    if len(set(ids)) != len(ids):
        raise ValueError("problems hold an id twice: name each source once")
    return chosen


def require_benchmarks(settings: Settings) -> None:
    """Whether all benchmarks of the file are here.

    Raises:
        MissingData: which are not, and one command that fetches them, with the training sets that the file
            compares them with where these are missing too.
    """
    evaluated = [source.benchmark for source in settings.problems if source.benchmark is not None]
    missing = [name for name in dict.fromkeys(evaluated) if not _is_here(name)]
    if missing:
        compared = [name for name in settings.training_sets if not _is_here(name)]
        raise MissingData(
            f"{', '.join(missing)}: not on this machine. `rlvr data fetch {' '.join(missing + compared)}` "
            "downloads what this evaluation reads; or set RLVR_DATA=DIR to a folder that holds it"
        )


def _is_here(name: str) -> bool:
    try:
        return find_file(name).is_file()
    except MissingData as error:
        if "no such folder" in str(error):  # RLVR_DATA itself is wrong
            raise
        return False
