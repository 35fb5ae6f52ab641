"""Keep the README's table of results equal to the committed report.

python -m pipelines.readme            # write it
python -m pipelines.readme --check    # exit 1 if it differs
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rlvr.reporting.cells import known, significant
from rlvr.reporting.registry import load_registry
from rlvr.storage import read_json, write_text

BEGIN, END = "<!-- results: written by `python -m pipelines.readme` -->", "<!-- end of results -->"
#: The one number of the paper that each claim can be held against, where its text states one.
STATED = {
    "nfpo-c2": "+16.3 % over GRPO, +10.0 % over DPPO (relative, 1.7B)",
    "nfpo-c4": "20.18 % to 10.08 % of pairs (ratio 0.50)",
}
EFFECTS = {
    "nfpo-c1": "share of target patterns with the trade-off",
    "nfpo-c2": "difference in pass@1 to the closer rival",
    "nfpo-c3": "difference in correction strength, weakest class",
    "nfpo-c4": "ratio of switch frequencies",
    "nfpo-c10": "largest error over its bound",
}


def results(scale: str) -> str:
    """The table, as Markdown: one row per judged claim, then what is not run."""
    claims = read_json(Path("reports") / scale / "claims.json")
    artifacts = read_json(Path("reports") / scale / "artifacts.json")
    notes: list[str] = []
    lines = [
        "| claim | paper | ours | scale | verdict |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in claims:
        if row["status"] == "not_run":
            continue
        notes.append(f"- **{row['id']}**: {row['note']}")
        ours = _interval(row)
        what = EFFECTS.get(row["id"]) or row["effect_of"]
        exact = row["ci_low"] is not None and row["ci_low"] == row["ci_high"]
        seeds = f"{len(row['seeds'])} seeds, " if row["seeds"] and not exact else ""
        ours = f"{what + ': ' if what else ''}{ours} ({seeds}n = {row['n']})"
        stated = STATED.get(row["id"], "not stated")
        lines.append(
            f"| **{row['id']}** {row['statement']} | {stated} | {ours} | {row['scale']} | {row['verdict']} |"
        )
    rendered = [row["id"] for row in artifacts if row["status"] == "rendered"]
    waiting = sum(row["status"] == "not_run" for row in claims)
    papers = ", ".join(paper.paper.upper() for paper in load_registry().papers)
    lines += [
        "",
        "<details><summary>What stands behind each verdict, and what does not</summary>",
        "",
        *notes,
        "",
        "</details>",
        "",
        f"Rendered: {len(rendered)} of {len(artifacts)} tables and figures of {papers}.",
    ]
    if waiting or len(rendered) < len(artifacts):
        lines[-1] += (
            f" The other {len(artifacts) - len(rendered)} and {waiting} claims are listed in the report as "
            "*not run*."
        )
    return "\n".join(lines)


def _interval(row: dict) -> str:
    effect, low, high = (known(row[key]) for key in ("effect", "ci_low", "ci_high"))
    if effect is None:
        return "not measured"
    text = significant(effect, 3)
    if low is None or high is None:
        return f"{text} [unknown]"
    return f"{text} (exact)" if low == high else f"{text} [{significant(low, 3)}, {significant(high, 3)}]"


def rewrite(text: str, table: str) -> str:
    """``text`` with everything between the markers replaced.

    Raises:
        ValueError: the markers are not there, once each and in order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"README.md needs the lines {BEGIN!r} and {END!r}, once each and in this order")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.split(END)[1]}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.readme", description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args(argv)
    path = Path("README.md")
    text = path.read_text(encoding="utf-8")
    new = rewrite(text, results("laptop"))
    if args.check:
        if new != text:
            print("README.md differs from reports/laptop; run `python -m pipelines.readme`", file=sys.stderr)
        return int(new != text)
    write_text(path, new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
