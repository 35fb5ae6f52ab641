"""What a stage leaves for the report: one folder per table or figure, one file per claim.

    <out>/artifacts/<id>/artifact.json   with table.json, table.csv, table.md
                                         and/or figure.svg, figure.png, data.csv
    <out>/claims/<id>.json

Every bundle is written as a whole or not at all. Nothing gets in without its doubt: a table cell is an
Estimate (with n, seeds and interval), an Exact or Stated value, or words; a figure says what its band is; a
claim with a verdict has an interval. ``paper`` and ``kind`` come from the registry, by id.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from matplotlib.figure import Figure
from pydantic import ValidationError

from rlvr.reporting.cells import (
    NOT_MEASURED,
    NOT_MEASURED_TEXT,
    NOT_STATED_TEXT,
    Exact,
    Stated,
    known,
    number,
)
from rlvr.reporting.records import EXACT, ArtifactMeta, Claim, Record
from rlvr.reporting.registry import Registry, load_registry
from rlvr.reporting.style import png_bytes, svg_text
from rlvr.reporting.table import Table
from rlvr.reporting.verdicts import Verdict, combine, judge
from rlvr.storage import atomic_dir, read_json, write_json

__all__ = [
    "NOT_MEASURED",
    "NOT_MEASURED_TEXT",
    "NOT_STATED_TEXT",
    "ArtifactMeta",
    "Bundle",
    "Claim",
    "Exact",
    "Stated",
    "Table",
    "Verdict",
    "combine",
    "judge",
    "load_bundles",
    "save_claim",
    "save_figure",
    "save_table",
]


@dataclass(frozen=True)
class Bundle:
    """An artifact as the report finds it: its folder, its record, and its table if it has one."""

    folder: Path
    paper: str
    kind: Literal["table", "figure"]
    meta: ArtifactMeta
    files: tuple[str, ...]
    table: Table | None


def save_table(out: str | Path, frame: pd.DataFrame, meta: ArtifactMeta) -> Path:
    """Write a table's bundle below ``out`` and return its folder.

    Args:
        out: the stage's output folder.
        frame: cells are Estimate, Exact, Stated, NOT_MEASURED or str; row labels may be a named index.
        meta: see :class:`ArtifactMeta`.

    Raises:
        ValueError: an id the registry does not have or has as a figure; a cell without its doubt.
    """
    paper = _registered(load_registry(), meta, "table")
    table = Table.from_frame(frame)
    return _write(Path(out), paper, "table", meta, _table_files(table))


def save_figure(
    out: str | Path,
    fig: Figure,
    meta: ArtifactMeta,
    data: pd.DataFrame | None,
    table: pd.DataFrame | None = None,
) -> Path:
    """Write a figure's bundle (SVG, PNG, plotted data) below ``out`` and return its folder.

    Args:
        out: the stage's output folder.
        fig: drawn under :func:`rlvr.reporting.style.use_style`.
        meta: ``alt`` is required.
        data: what is plotted, one row per point; None only for a schematic (interval 'exact').
        table: the figure's key numbers, under the rules of :func:`save_table`; shown under the figure.

    Raises:
        ValueError: an id the registry does not have or has as a table; no alt text; no data.
    """
    paper = _registered(load_registry(), meta, "figure")
    if not meta.alt.strip():
        raise ValueError(f"{meta.id}: alt is empty; say in words what the figure shows")
    if data is None and meta.interval != EXACT:
        raise ValueError(f"{meta.id}: data is None; a figure of measurements is saved with what it plots")
    if data is not None and data.empty:
        raise ValueError(f"{meta.id}: data has no rows; leave a figure without results not run")
    files: dict[str, str | bytes] = {"figure.svg": svg_text(fig), "figure.png": png_bytes(fig)}
    if data is not None:
        files["data.csv"] = frame_csv(data)
    if table is not None:
        files |= _table_files(Table.from_frame(table))
    return _write(Path(out), paper, "figure", meta, files)


def save_claim(out: str | Path, claim: Claim) -> Path:
    """Write ``<out>/claims/<id>.json``; the statement is the registry's unless the claim gives its own.

    Raises:
        ValueError: the registry has no such claim, or no such artifact among ``claim.artifacts``.
    """
    registry = load_registry()
    entry = registry.claim(claim.id)
    for artifact in claim.artifacts:
        registry.artifact(artifact)
    path = Path(out) / "claims" / f"{claim.id}.json"
    write_json(path, claim.model_dump(mode="json") | {"statement": claim.statement or entry.statement})
    return path


def load_bundles(
    directories: Iterable[str | Path], registry: Registry | None = None
) -> tuple[dict[str, Bundle], dict[str, Claim]]:
    """All artifacts and claims below the given output folders, by id.

    Raises:
        FileNotFoundError: a folder does not exist (a stage that did not run is not an empty stage).
        ValueError: an id in two folders, an unknown or missing field, a listed file that is not there.
    """
    registry = registry or load_registry()
    bundles: dict[str, Bundle] = {}
    claims: dict[str, Claim] = {}
    for directory in map(Path, directories):
        if not directory.is_dir():
            raise FileNotFoundError(f"bundle folder {directory} does not exist")
        for path in sorted((directory / "artifacts").glob("*/artifact.json")):
            if path.parent.name.startswith("."):  # a killed write
                continue
            bundle = _read_bundle(path, registry)
            _new(bundles, bundle.meta.id, bundle, path)
        for path in sorted((directory / "claims").glob("[!.]*.json")):
            claim = _parse(Claim, read_json(path), path)
            registry.claim(claim.id)
            _new(claims, claim.id, claim, path)
    return bundles, claims


def frame_csv(frame: pd.DataFrame) -> str:
    """A frame of plotted points as CSV: six significant digits; a point that is missing stays empty."""
    shown = frame if frame.index.names == [None] else frame.reset_index()
    buffer = io.StringIO()
    text = shown.map(lambda v: number(v) if isinstance(v, float) and known(v) is not None else v)
    text.to_csv(buffer, index=False, lineterminator="\n", na_rep="")
    return buffer.getvalue()


def _registered(registry: Registry, meta: ArtifactMeta, kind: str) -> str:
    entry = registry.artifact(meta.id)
    if entry.kind != kind:
        raise ValueError(f"{meta.id} is a {entry.kind} in the registry; save it with save_{entry.kind}")
    return registry.paper_of(meta.id)


def _table_files(table: Table) -> dict[str, Any]:
    return {"table.json": table.to_json(), "table.csv": table.csv(), "table.md": table.markdown()}


def _write(out: Path, paper: str, kind: str, meta: ArtifactMeta, files: dict[str, Any]) -> Path:
    folder = out / "artifacts" / meta.id
    record = {"paper": paper, "kind": kind, "status": "rendered", "files": sorted(files)}
    with atomic_dir(folder) as partial:
        for name, content in files.items():
            if isinstance(content, bytes):
                (partial / name).write_bytes(content)
            elif isinstance(content, str):
                (partial / name).write_text(content, encoding="utf-8")
            else:
                write_json(partial / name, content)
        write_json(partial / "artifact.json", record | meta.model_dump(mode="json"))
    return folder


def _read_bundle(path: Path, registry: Registry) -> Bundle:
    raw = read_json(path)
    own = {k: raw.pop(k) for k in ("paper", "kind", "status", "files") if k in raw}
    if len(own) != 4 or own["status"] != "rendered":
        raise ValueError(f"{path}: needs paper, kind, files and status 'rendered', got {own}")
    meta = _parse(ArtifactMeta, raw, path)
    if own["paper"] != _registered(registry, meta, own["kind"]):
        raise ValueError(f"{path}: paper={own['paper']!r} is not the registry's")
    missing = [f for f in own["files"] if not (path.parent / f).is_file()]
    if missing:
        raise ValueError(f"{path}: lists {missing}, which are not beside it")
    table_path = path.parent / "table.json"
    table = Table.read(read_json(table_path), str(table_path)) if "table.json" in own["files"] else None
    return Bundle(path.parent, own["paper"], own["kind"], meta, tuple(own["files"]), table)


def _parse(model: type[Record], raw: dict[str, Any], path: Path):
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc'])) or '(record)'}: {e['msg']}" for e in error.errors()]
        raise ValueError(f"{path} is not a valid {model.__name__}:\n" + "\n".join(lines)) from None


def _new(found: dict[str, Any], id: str, value: Any, path: Path) -> None:
    if id in found:
        raise ValueError(f"{path}: {id} was already found in another bundle folder")
    found[id] = value
