"""``rlvr report [SCALE]``: what became of each claim, from ``reports/<scale>/claims.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from rlvr.commands.base import completion, guarded, print_table, scales

#: What a scale leaves that has no report, by the file that makes it such a scale.
NO_REPORT = {
    "experiments.yaml": (
        "leaves trained runs below runs/{scale}, and no report: `rlvr plan {scale}` says what they cost, "
        "docs/cluster.md how to run them"
    ),
    "evaluation.yaml": (
        "leaves runs/{scale}/evaluate/accuracy.csv, and no report: `make repro SCALE={scale}` makes it"
    ),
}


def _scales() -> list[str]:
    return ["laptop", *scales("params.yaml")]


@guarded
def report(
    scale: Annotated[
        str, typer.Argument(metavar="SCALE", help="Default: laptop.", autocompletion=completion(_scales))
    ] = "laptop",
    browse: Annotated[bool, typer.Option("--open", help="Open report.html in the browser.")] = False,
) -> int:
    """Every claim of the papers: verdict, effect, interval and test.

    Reads the claims.json in its folder of reports, which `make repro SCALE=...` writes.
    """
    from rlvr.problems.benchmarks.catalogue import project_root
    from rlvr.storage import read_json

    found = report_folders(project_root(), scale)
    for folder in found:
        claims = read_json(folder / "claims.json")
        print_table(
            ("claim", "verdict", "effect", "interval", "n", "statement", "test"),
            [row(claim) for claim in claims if claim["status"] != "not_run"],
            fixed=("claim", "verdict", "effect", "interval"),
        )
        for line in (*remarks(claims), where(folder)):
            print(line)
        if browse:
            open_page(folder / "report.html")
    return 0


def report_folders(root: Path, scale: str) -> list[Path]:
    """The folders with claims of a scale: its own, and those of the papers that have one below it.

    Raises:
        ValueError: no such scale, or one that makes no report.
        FileNotFoundError: its report has not been made.
    """
    own = root / "reports" / scale
    found = [path.parent for path in (own / "claims.json", *sorted(own.glob("*/claims.json")))]
    found = [folder for folder in found if (folder / "claims.json").is_file()]
    if found:
        return found
    files = root / "pipelines" / "scales" / scale
    for name, what in NO_REPORT.items():
        if (files / name).is_file():
            raise ValueError(f"SCALE={scale!r} {what.format(scale=scale)}")
    if scale != "laptop" and not (files / "params.yaml").is_file():
        known = ["laptop", *sorted(path.parent.name for path in files.parent.glob("*/params.yaml"))]
        raise ValueError(f"SCALE={scale!r}: allowed are {', '.join(known)}")
    raise FileNotFoundError(f"{own / 'claims.json'} does not exist: `make repro SCALE={scale}` makes it")


def row(claim: Mapping[str, Any]) -> tuple[str, ...]:
    """A judged claim as cells; a number that has no sampling error says so."""
    effect, low, high = (claim[key] for key in ("effect", "ci_low", "ci_high"))
    if effect is None:
        interval = ""
    elif low is None or high is None:
        interval = "unknown"
    else:
        interval = "exact" if low == high else f"[{low:.3g}, {high:.3g}]"
    return (
        claim["id"],
        claim["verdict"],
        "not measured" if effect is None else f"{effect:.3g}",
        interval,
        "" if claim["n"] is None else str(claim["n"]),
        claim["statement"],
        claim["test"],
    )


def remarks(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many have which verdict, and which are not judged."""
    judged = [claim["verdict"] for claim in claims if claim["status"] != "not_run"]
    counts = ", ".join(f"{judged.count(verdict)} {verdict}" for verdict in dict.fromkeys(sorted(judged)))
    waiting = [claim["id"] for claim in claims if claim["status"] == "not_run"]
    lines = [f"{len(claims)} claims: {counts or 'none judged'}, {len(waiting)} not run"]
    return lines + ([f"not run: {', '.join(waiting)}"] if waiting else [])


def where(folder: Path) -> str:
    page = folder / "report.html"
    if not page.is_file():
        return f"Report: {page} does not exist; the notes of each claim are in {folder / 'claims.json'}"
    return f"Report: {page.resolve().as_uri()} (notes of each claim, tables, figures)"


def open_page(page: Path) -> None:
    """Raises:
    ValueError: there is no page, or no browser here.
    """
    import webbrowser

    if not page.is_file():
        raise ValueError(f"{page} does not exist: `make repro` makes it")
    if not webbrowser.open(page.resolve().as_uri()):
        raise ValueError(f"no browser was found here: open {page.resolve().as_uri()} yourself, or copy it")
