"""What a notebook imports: a first line, a last line, and a way to say how far it is.

    from rlvr.notebook import start, done, progress
    start()                                    # first code cell
    for step in progress(range(40), "train"):  # reported beside the notebook, never into it
        ...
    done()                                     # last code cell: the line the stage runner looks for

An executed notebook is a committed document, so nothing here writes a bar, a widget or a time
into its outputs. Progress goes to the file named by ``RLVR_PROGRESS`` (set by `pipelines.stage`), to a
tqdm bar where a person is watching (JupyterLab, a terminal), and nowhere otherwise (nbval).
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

COMPLETION_MARKER = "notebook complete"
PROGRESS_VARIABLE = "RLVR_PROGRESS"
ROOT_MARKER = "dvc.yaml"
REPORT_EVERY = 0.2  # seconds between two progress lines; the last one of a loop is always written

_QUIET = {
    "TQDM_DISABLE": "1",  # read by tqdm at import, here and in worker processes
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",  # else a warning in the outputs after the first fork
}


def repository_root(start: str | Path = ".") -> Path:
    """The nearest folder at or above ``start`` that holds ``dvc.yaml`` itself (scales hold symlinks to it).

    Raises:
        FileNotFoundError: no such folder.
    """
    here = Path(start).resolve()
    for folder in (here, *here.parents):
        marker = folder / ROOT_MARKER
        if marker.is_file() and not marker.is_symlink():
            return folder
    raise FileNotFoundError(
        f"no {ROOT_MARKER} in {here} or any folder above it; open notebooks from within the repository"
    )


def is_interactive() -> bool:
    """Whether a person watches this process: a Jupyter server's or VS Code's kernel, or a terminal."""
    if PROGRESS_VARIABLE in os.environ or "PYTEST_CURRENT_TEST" in os.environ:
        return False
    in_kernel = "ipykernel" in sys.modules
    if in_kernel:
        return "JPY_SESSION_NAME" in os.environ or "VSCODE_PID" in os.environ
    return sys.stderr is not None and sys.stderr.isatty()


def start() -> None:
    """Put the kernel at the repository root with outputs that are the same every time; prints nothing.

    Whatever starts the notebook (JupyterLab, nbval and the stage runner each use another working folder),
    relative paths in it are from the repository root afterwards. Figures become PNG without a date or
    version, SVG files get fixed ids, tables and arrays a fixed width and precision.

    Raises:
        FileNotFoundError: the working folder is not inside the repository.
    """
    os.chdir(repository_root())
    if not is_interactive():
        os.environ.update(_QUIET)
        if "tqdm" in sys.modules:  # its import read the environment before this call
            bar = sys.modules["tqdm"].tqdm
            bar.__init__ = functools.partialmethod(bar.__init__, disable=True)
    _stable_display()
    _stable_figures()


def done() -> None:
    """Print the completion marker. The stage runner accepts a notebook only if its last cell did this."""
    print(COMPLETION_MARKER)


def progress(iterable: Iterable[T], label: str = "", total: int | None = None) -> Iterator[T]:
    """Iterate while reporting ``done`` of ``total`` beside the notebook.

    Args:
        iterable: what to iterate.
        label: one or two words, e.g. ``"train"``.
        total: number of items; ``len(iterable)`` where that exists, else unknown.
    """
    if total is None:
        total = len(iterable) if hasattr(iterable, "__len__") else None
    if PROGRESS_VARIABLE not in os.environ:
        yield from _bar(iterable, label, total)
        return
    report(0, total, label)
    count = 0
    for count, item in enumerate(iterable, start=1):
        yield item
        report(count, total, label)
    report(count, total, label, last=True)


def report(done: int, total: int | None = None, label: str = "", *, last: bool = False) -> None:
    """Write one progress line, for loops that live inside the library and only offer a callback.

    A line is JSON, ``{"done": 12, "total": 40, "label": "train", "pid": 71}``, appended to the file named by
    ``RLVR_PROGRESS``; without that variable nothing happens. Several processes may report at once: a line is
    one write. Failing to report never fails the work.
    """
    path = os.environ.get(PROGRESS_VARIABLE)
    now = time.monotonic()
    is_last = last or (total is not None and done >= total)
    if not path or (now - _last_report.get(label, -REPORT_EVERY) < REPORT_EVERY and not is_last):
        return
    _last_report[label] = now
    line = json.dumps({"done": done, "total": total, "label": label, "pid": os.getpid()}) + "\n"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)  # never created, never waited for
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)
    except OSError:
        pass


def run(command: str | Sequence[str], **options: Any) -> str:
    """Run a program and return what it printed; a non-zero exit is an error, unlike a ``!`` line.

    Args:
        command: program and arguments; a string is split like a shell would, but no shell runs.
        options: passed to :func:`subprocess.run`, e.g. ``cwd``, ``env``, ``timeout``, ``input``.

    Raises:
        RuntimeError: the program exited with another code than 0; the message ends with its last lines.
        FileNotFoundError: no such program.
    """
    words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    options = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
    if options.pop("check", True) is False:
        raise ValueError("check=False is not allowed: a failing program has to fail the notebook")
    if options.get("shell"):
        raise ValueError("shell=True is not allowed: the exit code of a pipe hides its failures")
    result = subprocess.run(words, check=False, **options)
    if result.returncode:
        tail = "\n".join((result.stdout or "").splitlines()[-10:])
        raise RuntimeError(
            f"`{shlex.join(words)}` exited with code {result.returncode}" + (f":\n{tail}" if tail else "")
        )
    return result.stdout or ""


_last_report: dict[str, float] = {}


def _bar(iterable: Iterable[T], label: str, total: int | None) -> Iterator[T]:
    if not is_interactive():
        yield from iterable
        return
    from tqdm.auto import tqdm  # the widget in JupyterLab, plain text in a terminal

    yield from tqdm(iterable, desc=label or None, total=total, leave=False)


def _stable_display() -> None:
    import numpy as np
    import pandas as pd

    np.set_printoptions(precision=4, suppress=True, linewidth=110, threshold=200)
    pd.set_option("display.precision", 4)
    pd.set_option("display.width", 110)  # else the width of the terminal that started the kernel
    pd.set_option("display.max_columns", 30)
    pd.set_option("display.max_rows", 60)
    pd.set_option("display.max_colwidth", 80)


def _stable_figures() -> None:
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = "rlvr"  # else element ids are random
    mpl.rcParams["figure.dpi"] = 100
    if "ipykernel" not in sys.modules:
        mpl.use("agg")
        return
    from IPython import get_ipython
    from matplotlib_inline.backend_inline import set_matplotlib_formats
    from matplotlib_inline.config import InlineBackend

    shell = get_ipython()
    shell.run_line_magic("matplotlib", "inline")
    InlineBackend.instance(parent=shell).rc = {}
    set_matplotlib_formats("png", bbox_inches="tight", metadata={"Software": None})
