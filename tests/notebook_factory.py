"""Tiny notebooks and repositories for the tests of the runner, the lint and nbval."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PROJECT = Path(__file__).resolve().parents[1]
START = "from rlvr.notebook import done, progress, start\nstart()"
PARAMETERS = 'seed = 0\nlr = 1e-3\nout = ".work/notebooks/tiny"'


def notebook(*cells: str, parameters: str | None = PARAMETERS, first: str = START, last: str = "done()"):
    """A notebook with the usual first, parameters and last cell around ``cells``."""
    made = [new_markdown_cell("# Tiny"), new_code_cell(first)]
    if parameters is not None:
        made.append(new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    made += [new_code_cell(cell) for cell in cells]
    made.append(new_code_cell(last))
    return new_notebook(cells=made)


def write(path: Path, book: nbformat.NotebookNode) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(book, path)
    return path


def repository(folder: Path, dvc: str = "stages: {}\n") -> Path:
    """A folder that counts as a repository root."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dvc.yaml").write_text(dvc)
    return folder


def environment(**extra: str) -> dict[str, str]:
    """For subprocesses: this project importable, no DVC or Jupyter settings of the surroundings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DVC_", "JPY_", "RLVR_"))}
    tools = str(Path(sys.executable).parent)
    return kept | {
        "PYTHONPATH": str(PROJECT),
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "DVC_NO_ANALYTICS": "true",
        **extra,
    }
