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
    claim: Annotated[
        str | None,
        typer.Option(metavar="ID", help="All about this one: its test, and what to run to make it again."),
    ] = None,
) -> int:
    """Every claim of the papers: verdict, effect and interval; of one, all there is.

    Reads the claims.json in its folder of reports, which `make repro SCALE=...` writes.
    """
    from rlvr.problems.benchmarks.catalogue import project_root
    from rlvr.storage import read_json

    found = report_folders(project_root(), scale)
    if claim is not None:
        for line in about(project_root(), scale, found, claim):
            print(line)
        return 0
    for folder in found:
        claims = read_json(folder / "claims.json")
        print_table(
            ("claim", "verdict", "effect", "interval", "n", "statement"),
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
    )


def about(root: Path, scale: str, folders: Sequence[Path], name: str) -> list[str]:
    """A claim, its test and its notes, and the stages that make what it rests on.

    Raises:
        ValueError: no such claim.
    """
    from rlvr.registry import suggest
    from rlvr.storage import read_json

    claims = {
        claim["id"]: (claim, folder) for folder in folders for claim in read_json(folder / "claims.json")
    }
    if name not in claims:
        raise ValueError(f"--claim {suggest(name, claims)}")
    claim, folder = claims[name]
    _, verdict, effect, interval, n, statement = row(claim)
    of = f" ({claim['effect_of']})" if claim.get("effect_of") else ""
    lines = [
        f"{name}: {statement}",
        f"verdict: {verdict}",
        f"effect:  {effect} {interval}, n = {n}{of}",
        f"test:    {claim['test']}",
        f"note:    {claim.get('note') or 'none'}",
    ]
    kept = [folder / file for file in ("artifacts.json", "extras.json")]
    rows = {one["id"]: one for path in kept if path.is_file() for one in read_json(path)}
    shown = (*claim.get("artifacts", ()), *claim.get("extras", ()))
    used = [rows[artifact] for artifact in shown if artifact in rows]
    for one in used:
        files = " ".join(str(folder.relative_to(root) / file) for file in one["files"])
        lines += [f"{one['id']}: {one['title']}", f"  {files}"]
    for stage in filter(None, dict.fromkeys(one["stage"] for one in used)):
        graph = graph_of(scale, name.split("-")[0])
        lines.append(f"again:   dvc repro {graph}:{stage}   ({notebook_of(root / graph, stage)})")
    return lines


def graph_of(scale: str, paper: str) -> str:
    """The dvc.yaml of a paper at a scale."""
    if paper != "nfpo":
        return f"pipelines/scales/{scale}/{paper}/dvc.yaml"
    return "dvc.yaml" if scale == "laptop" else f"pipelines/scales/{scale}/dvc.yaml"


def notebook_of(graph: Path, stage: str) -> str:
    """The notebook that a stage executes."""
    from rlvr.config import load_yaml

    entry = load_yaml(graph)["stages"].get(stage, {}) if graph.is_file() else {}
    words = str(entry.get("cmd", entry.get("do", {}).get("cmd", ""))).split()
    return next((word for word in words if word.endswith(".ipynb")), "its notebook is not known")


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
