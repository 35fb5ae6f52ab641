"""Where the files of a benchmark are on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from rlvr.problems.benchmarks.catalogue import get_benchmark, project_root

VARIABLE = "RLVR_DATA"


class MissingData(FileNotFoundError):
    """The benchmark is not on this machine; the message says how to get it."""


def fetched_dir() -> Path:
    """Where ``rlvr data fetch`` puts files unless told otherwise: ``data/benchmarks``, ignored by git."""
    return project_root() / "data" / "benchmarks"


def find_file(name: str, data_dir: str | Path | None = None) -> Path:
    """The file of a benchmark: in ``data_dir`` if given, else in ``$RLVR_DATA``, else fetched.

    Raises:
        ValueError: no such benchmark.
        MissingData: its file is in none of these folders.
    """
    get_benchmark(name)
    folders = search_path(data_dir)
    for folder in folders:
        for suffix in (".jsonl", ".jsonl.gz"):
            if (folder / f"{name}{suffix}").is_file():
                return folder / f"{name}{suffix}"
    looked = ", ".join(map(str, folders))
    raise MissingData(
        f"benchmark {name!r} is not here: no {name}.jsonl[.gz] in {looked}. Download it with `rlvr data "
        f"fetch {name}`, or set {VARIABLE}=DIR to a folder that holds it."
    )


def search_path(data_dir: str | Path | None = None) -> list[Path]:
    """Folders in the order they are looked into.

    Raises:
        MissingData: a folder that was named does not exist. ValueError: ``data_dir`` names none.
    """
    if data_dir is not None:
        if not isinstance(data_dir, str | os.PathLike):
            raise ValueError(f"data_dir={data_dir!r}: allowed is the path of a folder")
        named = [("data_dir", data_dir)]
    else:
        named = [(VARIABLE, os.environ[VARIABLE])] if os.environ.get(VARIABLE) else []
    for what, folder in named:
        if not Path(folder).is_dir():
            raise MissingData(f"{what}={str(folder)!r}: no such folder")
    folders = [Path(folder) for _, folder in named]
    return folders if data_dir is not None else [*folders, fetched_dir()]


def ignore_in_git(folder: Path) -> None:
    """Make a folder that git leaves alone, with all that is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / ".gitignore").exists():
        (folder / ".gitignore").write_text("*\n")
