"""The command `rlvr`: `rlvr data` for benchmarks, `rlvr job` for verl jobs. Also `python -m rlvr.cli`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rlvr.engines.jobs.commands import add_to as add_jobs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 if all is well, 1 if something failed or is at fault, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except KeyboardInterrupt:
        print("interrupted; what is complete stays, the same command goes on from there", file=sys.stderr)
        return 130
    except (ValueError, FileNotFoundError) as error:
        print(f"rlvr: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `rlvr data list | head`
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rlvr", description="RLVR papers, reproduced.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    data = commands.add_parser("data", help="public benchmarks: list, download, check (docs/data.md)")
    actions = data.add_subparsers(title="actions", required=True, metavar="ACTION")

    action = actions.add_parser("list", help="what there is, where it lives, what is here")
    action.add_argument("--data-dir", metavar="DIR", help="look here only")
    action.set_defaults(run=_list)

    action = actions.add_parser("fetch", help="download; skips what is complete and verified")
    action.add_argument("names", nargs="+", metavar="NAME", help="names of `rlvr data list`, or all")
    action.add_argument("--to", metavar="DIR", help="default: data/benchmarks of this repository")
    action.add_argument("--force", action="store_true", help="download again what is there")
    action.set_defaults(run=_fetch)

    action = actions.add_parser("check", help="counts, duplicates, golds, overlaps with training sets")
    action.add_argument("names", nargs="*", metavar="NAME", help="default: all that is here")
    action.add_argument("--data-dir", metavar="DIR", help="look here only")
    action.add_argument("--no-golds", action="store_true", help="do not grade the golds (the slow part)")
    action.set_defaults(run=_check)

    add_jobs(commands)
    return parser


def _list(options: argparse.Namespace) -> int:
    from rlvr.problems.benchmarks.catalogue import load_catalogue
    from rlvr.problems.benchmarks.fetch import state_of
    from rlvr.problems.benchmarks.sources import MissingData, fetched_dir, find_file, search_path

    search_path(options.data_dir)  # a folder that was named must exist
    rows = [("name", "problems", "role", "here", "published at", "licence")]
    for benchmark in load_catalogue().values():
        try:
            path = find_file(benchmark.name, options.data_dir)
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


def _fetch(options: argparse.Namespace) -> int:
    from rlvr.problems.benchmarks.fetch import FetchError, fetch

    try:
        fetch(options.names, options.to, force=options.force)
    except FetchError as error:
        print(f"rlvr: {error}", file=sys.stderr)
        return 1
    return 0


def _check(options: argparse.Namespace) -> int:
    from rlvr.problems.benchmarks.check import check, describe, verifier_gold_test

    gold_test = None if options.no_golds else verifier_gold_test()
    reports = check(options.names, options.data_dir, gold_test=gold_test)
    here = [report for report in reports if report.path is not None or options.names]
    for report in here:
        print("\n".join(describe(report)))
    if not here:
        print("no benchmark is here: `rlvr data fetch NAME`, or set RLVR_DATA", file=sys.stderr)
        return 1
    if gold_test is None and not options.no_golds:
        print("golds other than integers were not graded: rlvr.verifiers.math cannot be imported")
    missing = any(report.path is None for report in here)
    return 1 if missing or any(report.problems for report in here) else 0


if __name__ == "__main__":
    sys.exit(main())
