"""Re-execute the notebooks in place, in the graph's order, and store normalised outputs.

    python -m pipelines.refresh [NOTEBOOK ...]

For use after a notebook or what it shows was changed. The stage notebooks read results of scale smoke, so
`make repro SCALE=smoke` comes first. Those that need runs of language models are left as they are.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from pipelines.lint import OF_MODELS, lint, notebooks
from pipelines.normalise import normalise
from rlvr.storage import write_text


def refresh(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    notebook.metadata["language_info"] = {"name": "python"}
    write_text(path, nbformat.writes(normalise(notebook, replacements={}, hidden={})) + "\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.refresh", description=__doc__.split("\n")[0])
    parser.add_argument("notebook", nargs="*", type=Path, help="all of them if none is named")
    given = parser.parse_args(argv).notebook
    failed = False
    every = [path for path in notebooks([Path("notebooks")]) if not path.match(OF_MODELS)]
    for path in given or every:
        print(path, flush=True)
        refresh(path)
        for cell, message in lint(path):
            failed = True
            print(f"  cell {cell}: {message}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
