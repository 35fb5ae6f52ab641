"""The last lines of `make repro`: where the report is, what it holds, how long it took.

python -m pipelines.summary --start laptop     # before
python -m pipelines.summary laptop             # after
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from rlvr.config import load_scale
from rlvr.storage import read_json, write_json

START = Path(".work/started.json")
RWLOCK = Path(".dvc/tmp/rwlock")


def mend_lock() -> bool:
    """Remove DVC's list of who reads and writes if a kill cut it short: DVC cannot start from half of it.

    DVC's own lock still keeps two runs apart.
    """
    if not RWLOCK.is_file():
        return False
    try:
        json.loads(RWLOCK.read_text() or "invalid")
    except ValueError:
        RWLOCK.unlink()
        return True
    return False


def check(scale: str) -> None:
    """Everything about a scale that can be found wrong before the first stage. Raises ValueError."""
    from rlvr.recipes import check_recipes

    own = Path("pipelines/scales") / scale / "params.yaml"
    check_recipes(load_scale(own if own.is_file() else "params.yaml"))


def describe(scale: str, seconds: float | None) -> str:
    """What ``reports/<scale>`` holds, as text.

    Raises:
        FileNotFoundError: there is no report.
    """
    folder = Path("reports") / scale
    page = folder / "report.html"
    if not page.is_file():
        raise FileNotFoundError(f"{page} does not exist; `make repro SCALE={scale}` makes it")
    artifacts, claims = read_json(folder / "artifacts.json"), read_json(folder / "claims.json")
    rendered = sum(row["status"] == "rendered" for row in artifacts)
    verdicts = Counter("not run" if row["status"] == "not_run" else row["verdict"] for row in claims)
    lines = [
        f"Report: {page.resolve().as_uri()}",
        f"  {rendered} of {len(artifacts)} tables and figures rendered, the rest listed as not run",
        f"  {len(claims)} claims: " + ", ".join(f"{n} {verdict}" for verdict, n in sorted(verdicts.items())),
        f"  also {folder}/report.md, tables/*.csv, figures/*.svg, artifacts.json, claims.json",
    ]
    if seconds is not None:
        lines.append(
            f"  took {int(seconds // 60)} min {int(seconds % 60)} s, finished stages were not run again"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.summary", description=__doc__.split("\n")[0])
    parser.add_argument("scale")
    parser.add_argument("--start", action="store_true", help="note the time and say what is coming")
    args = parser.parse_args(argv)
    if args.start:
        try:
            check(args.scale)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        if mend_lock():
            print("removed a DVC lock file that a killed run left half-written")
        write_json(START, {"scale": args.scale, "time": time.time()})
        return 0
    started = read_json(START) if START.is_file() else {}
    seconds = time.time() - started["time"] if started.get("scale") == args.scale else None
    try:
        print("\n" + describe(args.scale, seconds))
    except FileNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
