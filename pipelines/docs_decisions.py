"""The page of decisions: ``data/decisions.yaml`` with links to what switches each, or to where it stands."""

from __future__ import annotations

import re
from pathlib import Path

from pipelines.docstrings import WRITTEN, Writer, table, unwrapped
from rlvr import objectives
from rlvr.config import load_yaml

SOURCE = Path("data/decisions.yaml")
INTRODUCTION = """
What the papers leave open, or where two sources differ, and what is done here. Every report lists the same
entries. *Switched by* names the parameter, the key of the scale file, or the place in the code;
`tests/test_decisions.py` holds these names, and the marks `[choice]` of docstrings, to this list.
"""
#: Title -> what an entry's topic and places hold; the first that fits takes it, the last takes the rest.
GROUPS = {
    "The experiments at the papers' scale": r"(?m)in the experiments$|rlvr\.engines\.jobs|VerlTraining",
    "IBPO": r"\(IBPO|IBPO's|rlvr\.counterfactual|rlvr\.rewards",
    "MPO": r"\bMPO|\bMTP\b|rlvr\.mtp|config_mtp",
    "Objectives": r"(?m)^(?:[a-z_]+\(|rlvr\.(?:objectives|ratios|losses|trust_regions)\.)",
    "NFPO's analyses, and what all arms share": "",
}
ORDER = ("Objectives", "NFPO's analyses, and what all arms share", "IBPO", "MPO")  # then the rest


def grouped(entries: list[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    """Title -> entries, each in one group, in their order."""
    groups: dict[str, list[dict[str, str]]] = {title: [] for title in (*ORDER, *GROUPS)}
    for entry in entries:
        text = f"{entry['topic']}\n{entry['where']}"
        groups[next(title for title, found in GROUPS.items() if re.search(found, text))].append(entry)
    return groups


def place(name: str, root: Path) -> str:
    """What switches an entry, linked to the page of the objective, the module or the scale file."""
    path = name.partition("(")[0]
    parts = path.split(".")
    if path in objectives.list_objectives():
        return f"[`{name}`](objectives/{path}.md)"
    for cut in range(len(parts), 1, -1):
        stem = Path("lib", *parts[:cut])
        for file in (stem.with_suffix(".py"), stem / "__init__.py"):
            if parts[0] == "rlvr" and (root / file).is_file():
                return f"[`{name}`](../{file})"
    if parts[0] in load_yaml(root / "params.yaml"):
        return f"[`{name}`](../params.yaml)"
    return f"`{name}`"


def page(root: Path) -> str:
    """docs/decisions.md."""
    write, parts = Writer(), ["# Decisions", WRITTEN.format(SOURCE), unwrapped(INTRODUCTION)]
    for title, entries in grouped(load_yaml(root / SOURCE)).items():
        rows = [
            [
                *(write.inline(entry[part]) for part in ("topic", "paper", "here", "alternatives")),
                "<br>".join(place(name.strip(), root) for name in re.split(r",(?![^(]*\))", entry["where"])),
            ]
            for entry in entries
        ]
        parts += [f"## {title}", table(["topic", "paper", "here", "alternatives", "switched by"], rows)]
    return "\n\n".join(parts) + "\n"
