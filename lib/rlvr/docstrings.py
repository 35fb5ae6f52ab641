"""The sections of an objective's docstring.

A docstring is a summary line, optional paragraphs, then sections at its left margin::

    One-line summary.

    Formula:
        plain lines, kept as they are
    Args:
        clip_low: meaning, with its source [text: NFPO App. C] [choice]
    Detached: prose, which may wrap
    ...
"""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any

REQUIRED = ("Formula", "Detached", "Metrics", "Deviations", "Sources")
OPTIONAL = ("In short", "Args", "Raises", "Example")
_HEADING = re.compile(rf"({'|'.join(REQUIRED + OPTIONAL)}):(?:\s+(.*))?")
_UNKNOWN = re.compile(r"[A-Z][\w ]*:")  # alone on its line: meant as a heading
_ENTRY = re.compile(r"(\w+(?:, \w+)*):\s+(.*)")
#: Where a formula or a default comes from: [text], [public: verl], [official: 10], [choice] ...
MARK = re.compile(r"\[(?:text|public|official|choice)\b[^\]]*\]")


@dataclass(frozen=True)
class Docstring:
    summary: str
    description: str = ""
    sections: dict[str, str] = field(default_factory=dict)
    args: dict[str, str] = field(default_factory=dict)  # parameter -> meaning, marks included


def parse(name: str, text: str | None) -> Docstring:
    """The docstring of objective ``name``, in its parts.

    Raises:
        ValueError: no text, or a section that is missing, empty, there twice or unknown; names the
            objective and the section.
    """
    if not text or not text.strip():
        raise ValueError(f"objective {name}: it has no docstring")
    summary, _, rest = inspect.cleandoc(text).partition("\n")
    blocks: dict[str, list[str]] = {"": []}
    current = ""
    for line in rest.split("\n"):
        if heading := _HEADING.fullmatch(line):
            current = heading[1]
            if current in blocks:
                raise ValueError(f"objective {name}: section {current!r} is there twice")
            blocks[current] = [heading[2] or ""]
        elif _UNKNOWN.fullmatch(line):
            raise ValueError(
                f"objective {name}: section {line[:-1]!r} is unknown: allowed are "
                f"{', '.join(REQUIRED + OPTIONAL)}"
            )
        else:
            blocks[current].append(line)
    sections = {title: _body(lines) for title, lines in blocks.items() if title}
    for title in REQUIRED:
        if title not in sections:
            raise ValueError(f"objective {name}: section {title!r} is missing")
    for title, body in sections.items():
        if not body:
            raise ValueError(f"objective {name}: section {title!r} is empty")
    return Docstring(
        summary.strip(), _body(["", *blocks[""]]), sections, _entries(name, sections.get("Args", ""))
    )


def _body(lines: list[str]) -> str:
    """What follows the colon, and the lines below it without their common indent."""
    return (lines[0] + "\n" + dedent("\n".join(lines[1:]))).strip("\n").rstrip()


def _entries(name: str, body: str) -> dict[str, str]:
    entries: dict[str, str] = {}
    names: list[str] = []
    for line in body.split("\n") if body else []:
        if names and (not line.strip() or line.startswith(" ")):
            more = line.strip()
            for entry in names:
                entries[entry] = f"{entries[entry]} {more}".rstrip()
            continue
        match = _ENTRY.fullmatch(line)
        if not match:
            raise ValueError(
                f"objective {name}: section 'Args' holds {line!r}: allowed are lines 'parameter: meaning', "
                "continued with a deeper indent"
            )
        names = match[1].split(", ")
        for entry in names:
            if entry in entries:
                raise ValueError(f"objective {name}: section 'Args' documents {entry!r} twice")
            entries[entry] = match[2].strip()
    return entries


def split_marks(text: str) -> tuple[str, list[str]]:
    """``text`` without the source marks it ends with, and all its marks, in order and once each.

    A mark within a sentence says which of its numbers has that source, so it stays in its place too.
    """
    marks = list(dict.fromkeys(MARK.findall(text)))
    text = re.sub(rf"(?:[\s,;.]*{MARK.pattern})+\.?$", "", text.strip())
    return text.rstrip(",;:"), marks


def paper(doc: Docstring) -> tuple[str, str | None]:
    """What 'Sources' names first, and its arXiv number: a paper, or else the words up to a mark or a stop."""
    text = re.sub(r"\s+", " ", doc.sections["Sources"])
    if found := re.match(r"([^();]+) \(arXiv (\d{4}\.\d{5})\)", text):
        return found[1], found[2]
    if found := re.match(r"\[\w+: ([^\]]+)\]", text):
        return found[1], None
    return re.split(r"[;\[]|\.(?: |$)", text)[0], None


def literal(value: Any) -> str:
    """A value as Python source, fractions and infinity as one writes them."""
    if isinstance(value, tuple):
        return "(" + ", ".join(map(literal, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float) and math.isinf(value):
        return f'float("{value}")'
    if isinstance(value, float) and len(repr(value)) > 10:
        for n in range(2, 100):
            if value == 1 / n:
                return f"1 / {n}"
    return repr(value)
