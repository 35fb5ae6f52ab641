"""What the commands share: how one ends, how a table looks, how names are completed."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 160  # columns of a table where nobody says how wide the output is


def app(text: str, completes: bool = False) -> typer.Typer:
    """A group of commands; ``completes`` adds the options that set up a shell's completion.

    Tracebacks stay Python's own: notebooks and logs are read without a terminal.
    """
    return typer.Typer(
        help=text,
        pretty_exceptions_enable=False,
        add_completion=completes,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def guarded(run: Callable[..., int]) -> Callable[..., int]:
    """A command whose expected errors are one line and an exit code.

    0 all is well, 1 something failed or is at fault, 2 wrong usage or input, 130 interrupted.
    """

    @functools.wraps(run)
    def command(*arguments: Any, **options: Any) -> int:
        try:
            return run(*arguments, **options)
        except KeyboardInterrupt:
            print("interrupted; what is complete stays, the same command goes on from there", file=sys.stderr)
            return 130
        except (ValueError, FileNotFoundError) as error:
            print(f"rlvr: {error}", file=sys.stderr)
            return 2
        except BrokenPipeError:  # `rlvr data list | head`
            sys.stderr.close()
            return 0

    return command


def console() -> Console:
    """Prints tables: as wide as the terminal or COLUMNS, else as a pipe can be read."""
    from rich.console import Console

    fixed = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if fixed else PIPE_WIDTH, markup=False, highlight=False, emoji=False)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], fixed: Iterable[str] = ()) -> None:
    """Text in columns; those named in ``fixed`` are not wrapped."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    fixed = tuple(fixed)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in header:
        table.add_column(name, no_wrap=name in fixed, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)


def completion(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Completes a word from ``names()``; from nothing where these cannot be had."""

    def complete(incomplete: str) -> list[str]:
        try:
            return [name for name in names() if name.startswith(incomplete)]
        except Exception:  # a shell that waits for a TAB must not get a traceback
            return []

    return complete


def scales(name: str) -> list[str]:
    """Scales with a file of that name in their folder."""
    from rlvr.problems.benchmarks.catalogue import project_root

    return sorted(path.parent.name for path in project_root().glob(f"pipelines/scales/*/{name}"))
