"""What a stage is asked to do, and everything about it that can be found wrong before anything runs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

import rlvr
from pipelines.lint import structure
from pipelines.parameters import declared, resolve
from rlvr.config import load_scale, load_yaml
from rlvr.notebook import repository_root
from rlvr.storage import fingerprint

WORK = Path(".work")
VERSIONED = ("torch", "transformers", "numpy", "pandas")  # a checkpoint of another version is not resumed
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class BadInput(ValueError):
    """The request itself is wrong; nothing was run. Exit code 2."""


@dataclass(frozen=True)
class Request:
    """What to run.

    Args:
        notebook: path of the notebook.
        out: output folder, relative to the repository root; replaced as a whole.
        given: ``(name, value)`` pairs as text.
        deps: files and folders whose content unfinished work depends on, besides the notebook, the parameters
            (and every file or folder a parameter names), lib/rlvr and the library versions.
        expect: files or folders, relative to ``out``, that must exist and not be empty in the end.
    """

    notebook: Path
    out: Path
    given: Sequence[tuple[str, str]] = ()
    deps: Sequence[Path] = ()
    expect: Sequence[str] = ()


@dataclass(frozen=True)
class Plan:
    """A checked request, and the folders it uses; all paths relative to the repository root."""

    root: Path
    notebook: nbformat.NotebookNode
    title: str
    out: Path
    slug: str
    values: dict[str, Any]
    uses_scratch: bool
    staging: Path
    partial: Path
    timing: Path

    @property
    def staged_out(self) -> Path:
        return self.staging / "out"

    @property
    def failed(self) -> Path:
        return WORK / "failed" / f"{self.slug}.ipynb"


def slug(out: Path) -> str:
    """One file name for an output path."""
    return "__".join(out.parts)


def check(request: Request) -> Plan:
    """Everything that can be found wrong without running the notebook."""
    try:
        root = repository_root()
    except FileNotFoundError as error:
        raise BadInput(str(error)) from None
    path = request.notebook.resolve()
    if not path.is_file():
        raise BadInput(f"notebook {request.notebook} does not exist")
    title = _relative(path, root, "notebook").as_posix()
    out = _relative(Path(os.path.normpath(root / request.out)), root, "--out")
    if len(out.parts) < 2 or not all(_PART.fullmatch(part) for part in out.parts):
        raise BadInput(
            f"--out {request.out}: expected at least two folders below the repository root, named with "
            "letters, digits, `.`, `_` and `-`, e.g. runs/laptop/theory"
        )
    if (root / out).exists() and not (root / out).is_dir():
        raise BadInput(f"--out {out} exists and is not a folder")
    if _device(root / out) != _device(root / WORK):
        raise BadInput(
            f"--out {out} is on another disk than {WORK}, so it cannot be put in place in one step"
        )
    for name in request.expect:
        if Path(name).is_absolute() or ".." in Path(name).parts or not name:
            raise BadInput(f"--expect {name!r} must be a path inside the output folder")
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat raises many kinds
        raise BadInput(f"{title} is not a readable notebook: {error}") from None
    problems = structure(notebook)
    if problems:
        raise BadInput("\n".join(f"{title}:{cell}: {message}" for cell, message in problems))
    parameters = declared(notebook)
    if "out" not in parameters:
        raise BadInput(f'{title}: a stage must declare its output folder, `out = ".work/notebooks/..."`')
    try:
        values = resolve(parameters, request.given, notebook=title)
        if "params_file" in values:
            load_parameters(root / values["params_file"])
    except (ValueError, FileNotFoundError) as error:
        raise BadInput(str(error)) from None

    name = slug(out)
    partial = WORK / "partial" / name
    if "scratch" in parameters:
        partial /= _fingerprint(root, path, values, request.deps)
    else:
        partial /= "unused"
        _existing(root, request.deps)
    return Plan(
        root=root,
        notebook=notebook,
        title=title,
        out=out,
        slug=name,
        values=values,
        uses_scratch="scratch" in parameters,
        staging=WORK / "stage" / name,
        partial=partial,
        timing=Path("runs") / out.parts[1] / "timings" / f"{'__'.join(out.parts[2:]) or out.parts[0]}.json",
    )


def _relative(path: Path, root: Path, what: str) -> Path:
    if not path.is_relative_to(root) or path == root:
        raise BadInput(f"{what} {path} lies outside the repository {root}")
    return path.relative_to(root)


def _device(path: Path) -> int:
    while not path.exists():
        path = path.parent
    return path.stat().st_dev


def _existing(root: Path, deps: Sequence[Path]) -> list[Path]:
    missing = [str(dep) for dep in deps if not (root / dep).exists()]
    if missing:
        raise BadInput(f"--dep {', '.join(missing)} does not exist")
    return [root / dep for dep in deps]


def _fingerprint(root: Path, notebook: Path, values: dict[str, Any], deps: Sequence[Path]) -> str:
    """Of everything unfinished work depends on: it is resumed only if all of this is the same."""
    texts = [Path(v) for v in values.values() if isinstance(v, str) and v]
    named = [root / p for p in texts if (root / p).is_file() or (len(p.parts) > 1 and (root / p).is_dir())]
    versions = {"python": platform.python_version()}
    for package in VERSIONED:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    source = nbformat.read(notebook, as_version=4)
    cells = [[cell.cell_type, cell.source] for cell in source.cells if cell.cell_type == "code"]
    files = [Path(rlvr.__file__).parent, *named, *_existing(root, deps)]
    return fingerprint({"cells": cells, "values": values, "versions": versions}, *files)


def load_parameters(path: Path) -> None:
    """Read and check a scale file, or a file of experiments, which has settings in place of sections."""
    raw = load_yaml(path) if path.is_file() else None
    if isinstance(raw, dict) and "settings" in raw:
        from rlvr.engines.jobs.experiments import load_experiments

        load_experiments(path)
    else:
        load_scale(path)
