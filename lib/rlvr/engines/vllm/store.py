"""A run on disk: what it is (run.json), its finished parts, and at the end one samples.parquet.

A part holds the rows of ``chunk_size`` consecutive requests and is complete or absent, so a killed run goes
on at the first missing part. Every row is known by (benchmark, problem, sample, seed).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd

from rlvr.engines.vllm.prompts import Request
from rlvr.storage import atomic_path, read_json, write_json

KEY = ["benchmark", "problem", "sample", "seed"]
_DTYPES = {
    "sample": "int64",
    "seed": "int64",
    "finished": "bool",
    "correct": "boolean",  # three values; missing until it is graded
    "extracted": "string",
    "reason": "string",
    "tokens": "int64",
    "prompt_tokens": "int64",
    "grader": "string",
}


class Store:
    """The folder of one run.

    ``disposable``: a run with other settings in it is removed, not refused; for folders of scratch.

    Raises:
        ValueError: the folder holds a run with another model, configuration, set of prompts or version of
            vLLM (says what differs), or something that is no run.
    """

    def __init__(
        self, folder: str | Path, run: dict[str, Any], chunks: list[list[Request]], disposable: bool = False
    ):
        self.folder, self.chunks = Path(folder), chunks
        record = self.folder / "run.json"
        if record.is_file():
            differ = differences(read_json(record), run)
            if differ and disposable:
                shutil.rmtree(self.folder)
                write_json(record, run)
            elif differ:
                raise ValueError(
                    f"out={str(folder)!r} holds another run and is not continued; what differs:\n  "
                    + "\n  ".join(differ)
                    + "\nallowed are the same settings, or another folder"
                )
        elif self.folder.exists() and not _empty(self.folder):
            raise ValueError(f"out={str(folder)!r} is not empty and holds no run: allowed is a new folder")
        else:
            write_json(record, run)

    @property
    def samples(self) -> Path:
        return self.folder / "samples.parquet"

    def part(self, index: int) -> Path:
        return self.folder / "parts" / f"{index:05d}.parquet"

    @property
    def complete(self) -> bool:
        return self.samples.is_file()

    def done(self, index: int) -> bool:
        return self.part(index).is_file()

    def write(self, index: int, rows: pd.DataFrame) -> None:
        with atomic_path(self.part(index)) as path:
            rows.to_parquet(path, index=False)

    def read(self, index: int) -> pd.DataFrame:
        rows = pd.read_parquet(self.part(index))
        if list(rows[KEY].itertuples(index=False, name=None)) != [r.key for r in self.chunks[index]]:
            raise ValueError(f"{self.part(index)} does not hold the requests it should: delete it to redo it")
        return rows

    def finish(self) -> None:
        """All parts in one file, in the order of the requests."""
        frame = pd.concat([self.read(i) for i in range(len(self.chunks))], ignore_index=True)
        with atomic_path(self.samples) as path:
            frame.to_parquet(path, index=False)
        shutil.rmtree(self.folder / "parts")


def read_samples(folder: str | Path) -> pd.DataFrame:
    """The samples of a finished run; needs no vLLM.

    Raises:
        FileNotFoundError: no run there, or one that is not finished (says how far it is).
    """
    folder = Path(folder)
    if not (folder / "samples.parquet").is_file():
        parts = len(list((folder / "parts").glob("*.parquet"))) if (folder / "parts").is_dir() else 0
        raise FileNotFoundError(f"{folder} holds no finished run ({parts} parts): sample into it again")
    return pd.read_parquet(folder / "samples.parquet")


def read_run(folder: str | Path) -> dict[str, Any]:
    """What the run in ``folder`` is: model, configuration, prompts, versions."""
    return read_json(Path(folder) / "run.json")


def frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows with the column types that every part has."""
    return pd.DataFrame(rows).astype(_DTYPES)


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """``config.top_p: 0.9 there, 0.95 now``, for every leaf in which the two records differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for key in sorted(old.keys() | new.keys()):
            where = f"{name}.{key}" if name else key
            if key not in old or key not in new:
                lines.append(f"{where}: {'only now' if key not in old else 'only there'}")
            else:
                lines += differences(old[key], new[key], where)
        return lines
    return [] if old == new else [f"{name}: {old!r} there, {new!r} now"]


def _empty(folder: Path) -> bool:
    """Nothing in it, but for what a run killed in its first moment leaves behind."""
    return folder.is_dir() and all(p.name.startswith(".partial-") for p in folder.iterdir())
