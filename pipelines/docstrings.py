"""The sections of an objective's docstring, and their text as Markdown.

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
from collections.abc import Iterable
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


#: First line of a generated page, with what to change in place of the page.
WRITTEN = "<!-- written by `python -m pipelines.docs`: change {}, not this page -->"


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


class Writer:
    """Docstring text as Markdown, on the page ``own``.

    Args:
        own: the objective whose page it is.
        objectives: names that have a page in the same folder; a mention becomes a link.
        words: names that are shown as code wherever they stand.
    """

    def __init__(self, own: str = "", objectives: Iterable[str] = (), words: Iterable[str] = ()):
        self.pages = frozenset(objectives) - {own}
        known = sorted((self.pages | set(words) | {own}) - {""}, key=len, reverse=True)
        names = "|".join(map(re.escape, known))
        plain = rf"(?<![\w.'\"-])(?:(?:{names})(?:=\"\w*\")?|\w+_\*)(?![\w'\"-]|\.\w)" if names else r"(?!)"
        self._special = re.compile(
            rf"(?P<code>(?::\w+:)?`[^`]+`|``.+?``)|(?P<doc>docs/[\w-]+\.md)|arXiv (?P<arxiv>\d{{4}}\.\d{{5}})"
            rf"|(?P<peer>(?:verl|TRL)(?:'s)? \w+)|(?P<word>{plain})"
        )

    def prose(self, text: str) -> str:
        """One line per paragraph or list item; lines indented deeper than the rest stay as they are."""
        out = []
        for block in re.split(r"\n\s*\n", text.strip("\n")):
            lines = block.split("\n")
            if all(line.startswith("  ") for line in lines):
                out.append(fenced(block))
            elif lines[0].startswith("- "):
                out.append("\n".join(f"- {self.inline(item[2:])}" for item in re.split(r"\n(?=- )", block)))
            else:
                out.append(self.inline(block))
        return "\n\n".join(out)

    def sentence(self, text: str) -> str:
        """:meth:`prose` that begins with a capital, where it begins with an ordinary word."""
        shown = self.prose(text)
        word = re.match(r"(?!(?:verl|log|pi|mu|sg)\b)[a-z]{2,}(?=[ .,;])", shown)
        return shown[0].upper() + shown[1:] if word else shown

    def inline(self, text: str) -> str:
        """One paragraph on one line; outside code, what Markdown would take for its own is escaped."""
        text = re.sub(r"\s+", " ", text).strip()
        out, end = [], 0
        for match in self._special.finditer(text):
            out += [_escape(text[end : match.start()], start=not end), self._show(match)]
            end = match.end()
        return "".join([*out, _escape(text[end:], start=not end)])

    def _show(self, match: re.Match) -> str:
        if match["arxiv"]:
            return f"[{match[0]}](https://arxiv.org/abs/{match['arxiv']})"
        if match["doc"]:
            return f"[{match[0]}](../{match[0].removeprefix('docs/')})"
        if match["peer"]:  # their loss of that name, not ours
            return _escape(match[0], start=False)
        content = match[0].strip("`")
        if match["code"] and content.startswith(":"):
            content = content[1:].partition(":`")[2].lstrip("~").removeprefix("rlvr.objectives.")
        content = content.strip()
        return f"[`{content}`]({content}.md)" if content in self.pages else f"`{content}`"


def _escape(text: str, start: bool) -> str:
    text = text.replace("\\", "\\\\")
    text = re.sub(r"\*(?! )|(?<! )\*", r"\\*", text)
    text = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)
    text = re.sub(r"<(?=[A-Za-z/!?])|[~$`]", r"\\\g<0>", text)
    text = re.sub(r"\](?=[(\[])", r"\\]", text)
    return re.sub(r"^(?:[-+#>](?= )|\[(?=[^]]*\]:))", r"\\\g<0>", text) if start else text


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


def unwrapped(text: str) -> str:
    """Paragraphs of wrapped lines, each on one line."""
    return "\n\n".join(re.sub(r"\s+", " ", block).strip() for block in re.split(r"\n\s*\n", text.strip()))


def fenced(text: str, language: str = "text") -> str:
    return f"```{language}\n{dedent(text).strip(chr(10))}\n```"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; a bar inside a cell is escaped, also in code, as GitHub wants it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
