"""Did every cell of an executed notebook run to its end? If not: which did not, and why, in a few lines."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat

from pipelines.kernel import Result
from rlvr.notebook import COMPLETION_MARKER

_ADVICE = "Raise an exception, or let the cell end"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def diagnose(result: Result, title: str) -> str | None:
    """Why an executed notebook does not count as finished, or None if it does.

    Args:
        result: what the run left.
        title: the notebook's path, for the message.
    """
    numbers = _source_numbers(result.notebook)
    code = [(i, c) for i, c in enumerate(result.notebook.cells) if c.cell_type == "code" and c.source.strip()]
    for index, cell in code:
        where = f"{title}, cell {numbers[index]}"
        for output in cell.outputs:
            if output.output_type != "error":
                continue
            if output.ename == "SystemExit":
                return (
                    f"{where} ended the notebook early with SystemExit({output.evalue}); the cells after it "
                    f"never ran:\n{_excerpt(cell, output)}\n{_ADVICE}"
                )
            return (
                f"{where} failed: {output.ename}: {_last_lines(output.evalue, 3)}\n{_excerpt(cell, output)}"
            )
        if index in result.asked_exit:
            return f"{where} called exit() or quit():\n{_indent(_head(cell.source))}\n{_ADVICE}"
        if index not in result.finished:
            what = f"the kernel died: {result.death}" if result.death else "did not run to its end"
            return f"{where}: {what}\n{_indent(_head(cell.source))}"
    if result.death:
        return f"{title}: the kernel died: {result.death}"
    index, last = code[-1]
    printed = "".join(o.text for o in last.outputs if o.output_type == "stream" and o.name == "stdout")
    if COMPLETION_MARKER not in printed.splitlines():
        return f"{title}, cell {numbers[index]}: the completion marker is not in the output; end with done()"
    return None


def _source_numbers(notebook: nbformat.NotebookNode) -> dict[int, int]:
    """Index in the executed notebook -> cell number in the source notebook, counted from 1."""
    numbers, count = {}, 0
    for index, cell in enumerate(notebook.cells):
        count += "injected-parameters" not in cell.metadata.get("tags", [])
        numbers[index] = count
    return numbers


def _excerpt(cell: Any, output: Any) -> str:
    """The cell's line that failed, and the end of the traceback."""
    trace = _ANSI.sub("", "\n".join(output.traceback))
    lines = cell.source.splitlines()
    here = [int(n) for n in re.findall(rf"Cell In\[{cell.execution_count}\], line (\d+)", trace)]
    shown = [f"line {n}: {lines[n - 1].strip()}" for n in here[-3:] if 0 < n <= len(lines)]
    shown = shown or [_head(cell.source)]
    frames = re.findall(r"^(?:File )?(\S+\.py):(\d+)(?:,)? in (\S+?)\(", trace, re.MULTILINE)
    shown += [f"in {name}, {_short(file)}:{line}" for file, line, name in frames[-3:]]
    return _indent("\n".join(shown))


def _short(file: str) -> str:
    with suppress(ValueError):
        return Path(file).expanduser().relative_to(Path.cwd()).as_posix()
    return "/".join(Path(file).parts[-3:])


def _head(source: str) -> str:
    return source.strip().splitlines()[0]


def _last_lines(text: str, count: int) -> str:
    return "\n".join(text.strip().splitlines()[-count:])


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
