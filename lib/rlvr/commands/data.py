"""``rlvr data list | fetch | check``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rlvr.commands.base import app, completion, guarded

data = app("Public benchmarks: list, download, check (docs/data.md).")


def _benchmarks() -> list[str]:
    from rlvr.problems.benchmarks.catalogue import load_catalogue

    return list(load_catalogue())


Folder = Annotated[str | None, typer.Option("--data-dir", metavar="DIR", help="Look here only.")]


@data.command("list")
@guarded
def list_(data_dir: Folder = None) -> int:
    """What there is, where it lives, what is here."""
    from rlvr.problems.benchmarks.catalogue import load_catalogue
    from rlvr.problems.benchmarks.fetch import state_of
    from rlvr.problems.benchmarks.sources import MissingData, fetched_dir, find_file, search_path

    search_path(data_dir)  # a folder that was named must exist
    rows = [("name", "problems", "role", "here", "published at", "licence")]
    for benchmark in load_catalogue().values():
        try:
            path = find_file(benchmark.name, data_dir)
            fetched = path.parent == fetched_dir()
            here = f"fetched, {state_of(benchmark, path.parent)}" if fetched else str(path)
        except MissingData:
            here = "-"
        licence = benchmark.licence.split(";")[0].split(" (")[0]
        row = (benchmark.name, str(benchmark.count), benchmark.role, here, benchmark.source.where, licence)
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


@data.command()
@guarded
def fetch(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help="Names of `rlvr data list`, or all.",
            autocompletion=completion(lambda: [*_benchmarks(), "all"]),
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="DIR", help="Default: data/benchmarks of this repository."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Download again what is there.")] = False,
) -> int:
    """Download; skips what is complete and verified."""
    from rlvr.problems.benchmarks.fetch import FetchError
    from rlvr.problems.benchmarks.fetch import fetch as download

    try:
        download(names, to, force=force)
    except FetchError as error:
        print(f"rlvr: {error}", file=sys.stderr)
        return 1
    return 0


@data.command()
@guarded
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="Default: all that is here.", autocompletion=completion(_benchmarks)
        ),
    ] = None,
    data_dir: Folder = None,
    no_golds: Annotated[
        bool, typer.Option("--no-golds", help="Do not grade the golds (the slow part).")
    ] = False,
) -> int:
    """Counts, duplicates, golds, overlaps with training sets; exit code 1 if something is at fault."""
    from rlvr.problems.benchmarks.check import check as examine
    from rlvr.problems.benchmarks.check import describe, verifier_gold_test

    names = names or []
    gold_test = None if no_golds else verifier_gold_test()
    reports = examine(names, data_dir, gold_test=gold_test)
    here = [report for report in reports if report.path is not None or names]
    for report in here:
        print("\n".join(describe(report)))
    if not here:
        print("no benchmark is here: `rlvr data fetch NAME`, or set RLVR_DATA", file=sys.stderr)
        return 1
    if gold_test is None and not no_golds:
        print("golds other than integers were not graded: rlvr.verifiers.math cannot be imported")
    missing = any(report.path is None for report in here)
    return 1 if missing or any(report.problems for report in here) else 0
