"""What a scale cost, from the seconds that the stage runner wrote down."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from rlvr.storage import read_json


def cost_table(timings: str | Path) -> pd.DataFrame | None:
    """Seconds by kind of stage: how many ran, their total and the longest. None where nothing was measured.

    Wall-clock seconds of each stage's last run, on whatever machine that was: the one part of a report that
    differs between two runs on the same inputs.
    """
    rows = [read_json(path) for path in sorted(Path(timings).glob("*.json"))]
    if not rows:
        return None
    frame = pd.DataFrame({"stage": [_kind(r["out"]) for r in rows], "seconds": [r["seconds"] for r in rows]})
    by_kind = (
        frame.groupby("stage")["seconds"].agg(["size", "sum", "max"]).sort_values("sum", ascending=False)
    )
    by_kind.loc["all stages"] = [len(frame), frame["seconds"].sum(), frame["seconds"].max()]
    table = by_kind.rename(columns={"size": "runs", "sum": "seconds", "max": "longest, seconds"})
    return table.round(0).astype(int).rename_axis("stage").reset_index()


def _kind(out: str) -> str:
    """``runs/<scale>/train/nfpo`` -> ``train``, ``runs/<scale>/nfpo/theory`` -> ``nfpo/theory``,
    ``runs/<scale>/mpo/program/train`` -> ``mpo/program/train``."""
    parts = Path(out).parts
    if parts[0] != "runs":
        return parts[0]
    depth = 1 if parts[2] not in ("nfpo", "ibpo", "mpo") else 3 if parts[3] == "program" else 2
    return "/".join(parts[2 : 2 + depth])
