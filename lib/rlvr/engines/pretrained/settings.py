"""One evaluation is one YAML file; this is its type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from rlvr.config import Count, Positive, _Section, load_yaml
from rlvr.engines.vllm.config import SamplingConfig


class Source(_Section):
    """Problems of one benchmark, or of a file of generated ones."""

    benchmark: str | None = None  # as in data/benchmarks.yaml
    file: str | None = None
    number: Positive | None = None  # None: all

    @model_validator(mode="after")
    def _one(self) -> Source:
        if (self.benchmark is None) == (self.file is None):
            raise ValueError(f"benchmark={self.benchmark!r}, file={self.file!r}: allowed is one of the two")
        return self


class Settings(_Section):
    """The whole of one evaluation file."""

    scale: str
    root: str  # path from the file's folder to the repository root
    scale_file: str  # this file, from the repository root
    model: str  # a package with a GGUF file, or the folder of a saved model
    name: str  # of the model, in tables
    threads: Positive
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
