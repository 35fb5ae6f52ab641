"""The command `rlvr`; one module of :mod:`rlvr.commands` per command. Also `python -m rlvr.cli`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from rlvr import __version__
from rlvr.commands import base, data, doctor, job, objectives, plan, report

_Usage = typer.BadParameter.__mro__[1]  # typer's releases keep this class in different modules

app = base.app("RLVR papers, reproduced: the objectives, the data, the jobs, the results.", completes=True)
app.command("objectives")(objectives.objectives)
app.add_typer(data.data, name="data")
app.command("plan")(plan.plan)
app.add_typer(job.job, name="job")
app.command("report")(report.report)
app.command("doctor")(doctor.doctor)


def _version(asked: bool) -> None:
    if asked:
        print(f"rlvr {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 if all is well, 1 if something failed or is at fault, 2 for wrong input.

    Raises:
        SystemExit: with 2, for a command line that cannot be read.
    """
    command = typer.main.get_command(app)
    given = None if arguments is None else list(arguments)
    try:
        return command.main(given, prog_name="rlvr", standalone_mode=False) or 0
    except _Usage as error:
        path = error.ctx.command_path if error.ctx else "rlvr"
        usage = error.ctx.get_usage() if error.ctx else ""
        print(usage.replace("Usage:", "usage:", 1), file=sys.stderr)
        print(
            f"{path}: error: {error.format_message().rstrip('.')}; `{path} --help` says more", file=sys.stderr
        )
        raise SystemExit(2) from None


if __name__ == "__main__":
    sys.exit(main())
