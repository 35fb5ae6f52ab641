"""From registry entries and bundles to what the templates print and the JSON files hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from rlvr.evaluation.intervals import Estimate
from rlvr.reporting.bundle import Bundle
from rlvr.reporting.cells import (
    NOT_MEASURED_TEXT,
    NOT_STATED_TEXT,
    known,
    number,
    pretty,
    pretty_interval,
    seeds_text,
    significant,
    stated_text,
)
from rlvr.reporting.inline import inline_svg
from rlvr.reporting.records import EXACT, ArtifactMeta, Claim, Part
from rlvr.reporting.registry import ArtifactEntry, ClaimEntry, Paper, Reported
from rlvr.reporting.table import Table, md_row

#: File of a bundle -> its place in the report; the typed table.json stays with the stage.
PLACES = {
    "figure.svg": "figures/{id}.svg",
    "figure.png": "figures/{id}.png",
    "data.csv": "tables/{id}-data.csv",
    "table.csv": "tables/{id}.csv",
    "table.md": "tables/{id}.md",
}


def paper_view(
    paper: Paper,
    bundles: Mapping[str, Bundle],
    claims: Mapping[str, Claim],
    scale: str,
    repository: str,
) -> dict[str, Any]:
    """One paper: its claims, its artifacts in its order, and our extras. Each row holds its ``json`` form."""

    def rows(entries: Iterable[ArtifactEntry]) -> list[dict[str, Any]]:
        return [_artifact(paper.paper, e, bundles.get(e.id), scale, repository) for e in entries]

    return {
        "key": paper.paper,
        "name": paper.paper.upper(),
        "title": paper.title,
        "arxiv": paper.arxiv,
        "claims": [_claim(e, claims.get(e.id), scale, bundles) for e in paper.claims],
        "artifacts": rows(paper.artifacts),
        "extras": rows(paper.extras),
    }


def copies(bundle: Bundle) -> list[tuple[str, str]]:
    """(file in the bundle, place in the report), sorted by place."""
    pairs = ((f, PLACES[f].format(id=bundle.meta.id)) for f in bundle.files if f in PLACES)
    return sorted(pairs, key=lambda pair: pair[1])


def decisions_view(decisions: Sequence[Mapping[str, Any] | str]) -> dict[str, Any] | None:
    """Decisions as a plain table; a sentence is a decision with one column."""
    if not decisions:
        return None
    rows = [d if isinstance(d, Mapping) else {"decision": d} for d in decisions]
    names = list(dict.fromkeys(key for row in rows for key in row))
    return {"columns": names, "rows": [[shown_text(row.get(name, "")) for name in names] for row in rows]}


def frame_view(frame: pd.DataFrame | None) -> dict[str, Any] | None:
    """A frame of costs as a plain table; None or no rows is None."""
    if frame is None or frame.empty:
        return None
    shown = frame if frame.index.names == [None] else frame.reset_index()
    rows = [[shown_text(v) for v in row] for row in shown.itertuples(index=False, name=None)]
    return {"columns": [str(c) for c in shown.columns], "rows": rows}


def shown_text(value: Any) -> str:
    """A setting or a cost as text: four significant digits, integers in full; missing is 'not measured'."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(shown_text, value))
    if value is None or pd.isna(value):
        return NOT_MEASURED_TEXT
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else significant(value, 4)


def rounded(value: float | None) -> float | None:
    """Six significant digits, so that the last bits of a machine do not show in a diff; None if unknown."""
    return None if known(value) is None else float(number(value))


def _claim(
    entry: ClaimEntry, claim: Claim | None, scale: str, bundles: Mapping[str, Bundle]
) -> dict[str, Any]:
    row = {
        "id": entry.id,
        "statement": (claim.statement if claim else "") or entry.statement,
        "status": "judged" if claim else "not_run",
        "test": claim.test if claim else None,
        "effect": rounded(claim.effect) if claim else None,
        "ci_low": rounded(claim.ci_low) if claim else None,
        "ci_high": rounded(claim.ci_high) if claim else None,
        "n": claim.n if claim else None,
        "seeds": list(claim.seeds) if claim else [],
        "verdict": claim.verdict if claim else None,
        "scale": scale,
        "artifacts": list(claim.artifacts) if claim else [],
        "note": claim.note if claim else "",
        "effect_of": _effect_of(claim),
    }
    shown = {"json": row, "verdict": row["verdict"] or "not_run", "effect": NOT_MEASURED_TEXT, "basis": ""}
    if claim is None:
        return shown
    return shown | {
        "parts": [_part(part, claim) for part in claim.parts] if len(claim.parts) > 1 else [],
        "note": claim.note.removeprefix(claim.told).strip(),
        "effect": pretty_interval(claim.effect, claim.ci_low, claim.ci_high),
        "basis": _counted(claim),
        "shown_in": [i for i in claim.artifacts if i in bundles],
    }


def _effect_of(claim: Claim | None) -> str:
    """The part whose interval the effect is; empty if the test has one part."""
    if claim is None or len(claim.parts) < 2:
        return ""
    effect = (claim.effect, claim.ci_low, claim.ci_high)
    return next((p.name for p in claim.parts if (p.effect, p.ci_low, p.ci_high) == effect), "")


_NEEDED = {"at_least": "≥", "above": ">", "at_most": "≤"}


def _part(part: Part, claim: Claim) -> dict[str, Any]:
    """A row of a claim's parts: what, its interval, what the test wants of all of it, and what that gives."""
    return {
        "name": part.name,
        "is_effect": part.name == _effect_of(claim),
        "value": pretty_interval(part.effect, part.ci_low, part.ci_high, part.threshold),
        "needed": f"{_NEEDED[part.kind]} {significant(part.threshold, 4)}",
        "verdict": part.verdict,
    }


def _artifact(
    paper: str, entry: ArtifactEntry, bundle: Bundle | None, scale: str, repository: str
) -> dict[str, Any]:
    meta = bundle.meta if bundle else None
    row = {
        "id": entry.id,
        "paper": paper,
        "kind": entry.kind,
        "title": entry.title,
        "status": "rendered" if bundle else "not_run",
        "files": [target for _, target in copies(bundle)] if bundle else [],
        "stage": meta.stage if meta else None,
        "scale": scale,
        "seeds": list(meta.seeds) if meta else [],
        "n": meta.n if meta else None,
    }
    shown = {
        "json": row,
        "id": entry.id,
        "title": entry.title,
        "rendered": bundle is not None,
        "stated": _reported(entry.reported),
    }
    if bundle is None or meta is None:
        return shown
    svg = ""
    if "figure.svg" in bundle.files:
        svg = inline_svg((bundle.folder / "figure.svg").read_text("utf-8"), entry.id, meta.alt)
    return shown | {
        "caption": meta.title,
        "alt": meta.alt,
        "notes": meta.notes,
        "stage": meta.stage,
        "notebook": meta.notebook,
        "notebook_link": f"{repository}/{meta.notebook}",
        "basis": _basis(meta),
        "files": row["files"],
        "svg": Markup(svg),
        "table": _table(bundle.table) if bundle.table else None,
        "table_md": bundle.table.markdown() if bundle.table else "",
    }


def _basis(meta: ArtifactMeta) -> str:
    how = "exact, no sampling" if meta.interval == EXACT else f"interval: {meta.interval}"
    text = "; ".join(filter(None, (_counted(meta), how)))
    return text if text.startswith("n = ") else text[:1].upper() + text[1:]


def _table(table: Table) -> dict[str, Any]:
    rows = [[_cell(cell, i < table.labels) for i, cell in enumerate(row)] for row in table.rows]
    return {"columns": _columns(table.columns, rows), "rows": rows}


def _cell(cell: Any, is_label: bool) -> dict[str, Any]:
    text, ends, hint = pretty(cell), "", ""
    if isinstance(cell, Estimate):
        text, _, ends = text.partition(" [")
        hint = f"{_counted(cell)}; {cell.method}"
    missing = text in (NOT_MEASURED_TEXT, NOT_STATED_TEXT)
    kind = "label" if is_label else "missing" if missing else "words" if _is_words(text) else "number"
    return {"text": text, "ends": f"[{ends}" if ends else "", "hint": hint, "kind": kind}


def _is_words(text: str) -> bool:
    return not text[:1].isdigit() and text[:1] not in ("-", "+", ".")


def _columns(names: Iterable[str], rows: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Headings, each with whether its column holds numbers only and is therefore aligned right."""
    kinds = [{row[i]["kind"] for row in rows} for i in range(len(rows[0]))]
    return [{"text": n, "number": k <= {"number", "missing"}} for n, k in zip(names, kinds, strict=True)]


def _reported(reported: Reported | None) -> dict[str, Any] | None:
    """What the paper states, as a table of ours and as Markdown."""
    if reported is None:
        return None
    rows = []
    for label, cells in reported.rows.items():
        texts = [stated_text(c) for c in cells]
        rows.append([_cell(label, True), *(_cell(t, False) for t in texts)])
    names = ["", *reported.columns]
    lines = [md_row(names), md_row(["---"] * len(names)), *(md_row([c["text"] for c in r]) for r in rows)]
    return {
        "columns": _columns(names, rows),
        "rows": rows,
        "note": reported.note,
        "md": "\n".join(lines),
    }


def _counted(what: Claim | ArtifactMeta | Estimate) -> str:
    """How many of what, and which seeds; seeds are counted once."""
    seeds = _seeds(what.seeds)
    only_seeds = what.n_unit == "seeds" and what.n == len(what.seeds)
    count = "" if only_seeds or not what.n else f"n = {what.n:,} {what.n_unit}".rstrip()
    return "; ".join(filter(None, (count, seeds)))


def _seeds(seeds: Sequence[int]) -> str:
    if not seeds:
        return ""
    return f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''} ({seeds_text(seeds)})"
