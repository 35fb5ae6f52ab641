"""The page of the command line, from the commands' own help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from pipelines.docstrings import table
from rlvr.cli import app
from rlvr.commands.base import guarded

PAGE = Path("docs/command-line.md")
WRITTEN = "<!-- written by `python -m pipelines.docs`: change the command's help, not this page -->"
INTRODUCTION = (
    "`pip install -e .` (or `make env`) puts `rlvr` on the path of its environment; `python -m rlvr.cli` is "
    "the same. `rlvr COMMAND --help` shows what stands here. `rlvr --install-completion` completes commands, "
    "options and names in your shell. Scales, experiments, data and reports are files of the checkout: run "
    "it inside of it."
)
#: What a section is followed by, where its command's help is not all there is to read.
MORE = {
    "objectives": "[One page each](objectives/README.md).",
    "data": "[Public benchmarks](data.md).",
    "job": "[Experiments on a cluster](cluster.md).",
    "doctor": "[When something goes wrong](troubleshooting.md).",
}


def page() -> str:
    """The page as Markdown: each command with its arguments and options."""
    parts = ["# Command line", WRITTEN, INTRODUCTION, f"Exit codes: {exit_codes()}"]
    for path, command in commands(typer.main.get_command(app)):
        parts += section(path, command)
    return "\n\n".join(parts) + "\n"


def exit_codes() -> str:
    """The paragraph of :func:`rlvr.commands.base.guarded` that says them."""
    return inspect.cleandoc(guarded.__doc__).split("\n\n")[1].replace("\n", " ")


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(words after ``rlvr``, command) of every command and group, depth first."""
    if path:
        yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


def section(path: tuple[str, ...], command: Any) -> list[str]:
    """Heading, help and the table of arguments and options.

    Raises:
        ValueError: a command, an argument or an option without help.
    """
    words = " ".join(("rlvr", *path))
    shown = [parameter for parameter in command.params if parameter.name != "help"]
    arguments = [parameter for parameter in shown if parameter.param_type_name == "argument"]
    for what, text in [(words, command.help), *((f"{words} {p.name}", p.help) for p in shown)]:
        if not text:
            raise ValueError(f"{what} has no help")
    title = " ".join([words, *map(_argument, arguments)])
    parts = [f"{'#' * (len(path) + 1)} `{title}`", *map(_flow, command.help.strip().split("\n\n"))]
    if len(path) == 1 and path[0] in MORE:
        parts.append(MORE[path[0]])
    rows = [[f"`{_name(parameter)}`", _flow(parameter.help)] for parameter in shown]
    return parts + ([table(["", "meaning"], rows)] if rows else [])


def _argument(parameter: Any) -> str:
    name = parameter.metavar + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return parameter.metavar
    value = "" if parameter.is_flag else f" {parameter.metavar}"
    return ", ".join(parameter.opts) + value


def _flow(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
