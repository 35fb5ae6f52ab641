"""Collect the bundles of a scale and write ``reports/<scale>/``: page, Markdown, tables, figures, JSON.

The page is one file that loads nothing. The same bundles and arguments give the same bytes: there is no date,
and a commit or a time appears only if ``environment`` brings it.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from rlvr.evaluation.intervals import Estimate
from rlvr.reporting.bundle import Bundle, load_bundles
from rlvr.reporting.cells import NOT_MEASURED_TEXT, NOT_STATED_TEXT
from rlvr.reporting.curves import CURVES, wide
from rlvr.reporting.inline import inline_text
from rlvr.reporting.outlook import outlook
from rlvr.reporting.records import Claim
from rlvr.reporting.registry import load_registry
from rlvr.reporting.view import copies, decisions_view, frame_view, paper_view, rounded, shown_text
from rlvr.storage import atomic_dir, write_json, write_text

VERDICT_MARKS = {"supported": "✓", "contradicted": "✗", "open": "○", "not_run": "–"}


@dataclass(frozen=True)
class Summary:
    """What a report holds, for the last lines of a run."""

    folder: Path
    rendered: int
    artifacts: int
    verdicts: Mapping[str, int]  # supported, contradicted, open, not_run


def build_report(
    bundle_dirs: Iterable[str | Path],
    registry_dir: str | Path | None,
    out_dir: str | Path,
    scale: str,
    environment: Mapping[str, Any],
    decisions: Sequence[Mapping[str, Any] | str],
    cost: pd.DataFrame | None,
    *,
    repository: str = "../..",
    metrics: Mapping[str, Estimate] | None = None,
    confidence: float = 0.95,
    notes: Sequence[str] = (),
    faults: Mapping[str, Any] | None = None,
) -> Summary:
    """Write the whole report folder, replacing it as one.

    Args:
        bundle_dirs: output folders of the stages, each with ``artifacts/`` and ``claims/``.
        registry_dir: folder of the papers' YAML files; None finds ``data/paper``.
        out_dir: ``reports/<scale>``; nothing else may live in it.
        scale: name of the scale; a bundle of another scale is an error.
        environment: shown as a table: versions, threads, commit.
        decisions: what the papers leave open and what is done here: mappings with the same keys, or
            sentences.
        cost: one row per kind of stage, also written as ``cost.json``; None leaves the section saying that it
            was not measured.
        repository: way from the report's folder to the repository root, for links to notebooks.
        metrics: further headline numbers for metrics.json, e.g. final pass@1 per arm.
        confidence: of the claims' intervals, to plan what more seeds would decide.
        notes: sentences on graders and contamination.
        faults: what ``make faults`` wrote; None leaves the section saying that it was not measured.

    Raises:
        FileNotFoundError: a bundle folder is missing.
        ValueError: a bundle that is of another scale, unknown, or damaged.
    """
    registry = load_registry(registry_dir)
    bundles, claims = load_bundles(bundle_dirs, registry)
    _same_scale(scale, bundles, claims)
    papers = [paper_view(p, bundles, claims, scale, repository) for p in registry.papers]
    artifact_rows = [row["json"] for paper in papers for row in paper["artifacts"]]
    claim_rows = [row["json"] for paper in papers for row in paper["claims"]]
    extra_rows = [row["json"] for paper in papers for row in paper["extras"] if row]
    verdicts = Counter(row["verdict"] or "not_run" for row in claim_rows)
    summary = Summary(
        folder=Path(out_dir),
        rendered=sum(row["status"] == "rendered" for row in artifact_rows),
        artifacts=len(artifact_rows),
        verdicts={v: verdicts[v] for v in VERDICT_MARKS},
    )
    view = {
        "scale": scale,
        "papers": papers,
        "summary": summary,
        "marks": VERDICT_MARKS,
        "environment": {str(k): shown_text(v) for k, v in environment.items()},
        "decisions": decisions_view(decisions),
        "cost": frame_view(cost),
        "outlook": frame_view(outlook(claims.values(), confidence)),
        "notes": list(notes),
        "faults": frame_view(_faults(faults)),
        "not_measured": NOT_MEASURED_TEXT,
        "not_stated": NOT_STATED_TEXT,
        "numbers": _metrics(summary, claim_rows, metrics or {}),
    }
    templates = Environment(
        loader=PackageLoader("rlvr.reporting", "."),
        autoescape=lambda name: bool(name) and name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["inline"] = inline_text
    with atomic_dir(out_dir) as folder:
        for bundle in bundles.values():
            for source, target in copies(bundle):
                (folder / target).parent.mkdir(exist_ok=True)
                shutil.copyfile(bundle.folder / source, folder / target)
        for bundle in bundles.values():
            if (curves := CURVES.get(bundle.meta.id)) and "data.csv" in bundle.files:
                table = wide(pd.read_csv(bundle.folder / "data.csv"), curves)
                (folder / "plots").mkdir(exist_ok=True)
                write_text(folder / "plots" / f"{bundle.meta.id}.csv", table.to_csv(index=False))
        write_text(folder / "report.html", templates.get_template("report.html.j2").render(view))
        write_text(folder / "report.md", templates.get_template("report.md.j2").render(view))
        write_json(folder / "artifacts.json", artifact_rows)
        write_json(folder / "extras.json", extra_rows)
        write_json(folder / "claims.json", [_claim_json(row, extra_rows) for row in claim_rows])
        write_json(folder / "metrics.json", view["numbers"])
        if cost is not None:
            write_json(folder / "cost.json", cost.to_dict("records"))
    return summary


def _claim_json(row: dict[str, Any], extras: list[dict[str, Any]]) -> dict[str, Any]:
    """A claim's row: one nobody tested yet is open, and says so; artifacts of ours are listed apart."""
    ours = {extra["id"] for extra in extras}
    return row | {
        "verdict": row["verdict"] or "open",
        "test": row["test"] or "not run",
        "artifacts": [a for a in row["artifacts"] or () if a not in ours],
        "extras": [a for a in row["artifacts"] or () if a in ours],
    }


def _faults(measured: Mapping[str, Any] | None) -> pd.DataFrame | None:
    """What tests/faults/whole_graph.py wrote, as a table: how often each fault, and how it ended."""
    if measured is None:
        return None
    rows = [
        {
            "fault": row["fault"],
            "times": row["n"],
            "ended with the undisturbed bytes": row["finished"],
            "refused with a message": row["refused"],
            "wrong": "; ".join(row["wrong"]) or "nothing",
            "seconds": row["seconds"],
            "note": row["note"],
        }
        for row in measured["faults"]
    ]
    return pd.DataFrame(rows)


def _same_scale(scale: str, bundles: Mapping[str, Bundle], claims: Mapping[str, Claim]) -> None:
    found = {**{i: b.meta.scale for i, b in bundles.items()}, **{i: c.scale for i, c in claims.items()}}
    if other := {i: s for i, s in found.items() if s != scale}:
        raise ValueError(f"scale={scale!r}: bundles of another scale were given: {other}")


def _metrics(
    summary: Summary, claims: list[dict[str, Any]], metrics: Mapping[str, Estimate]
) -> dict[str, Any]:
    """Flat numbers for ``dvc metrics``; what is unknown is left out rather than set to 0."""
    numbers: dict[str, Any] = {"artifacts/rendered": summary.rendered}
    numbers |= {f"claims/{verdict}": count for verdict, count in summary.verdicts.items()}
    for row in claims:
        for key in ("effect", "ci_low", "ci_high"):
            if row[key] is not None:
                numbers[f"{row['id']}/{key}"] = row[key]
    for name, estimate in metrics.items():
        for key, value in (("", estimate.value), ("/low", estimate.low), ("/high", estimate.high)):
            if (short := rounded(value)) is not None:
                numbers[name + key] = short
    return numbers
