"""The text of an objective's docstring (:mod:`rlvr.docstrings`) as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from textwrap import dedent

from rlvr.docstrings import MARK, REQUIRED, Docstring, literal, parse, split_marks

__all__ = [
    "MARK",
    "REQUIRED",
    "WRITTEN",
    "Docstring",
    "Writer",
    "fenced",
    "literal",
    "parse",
    "split_marks",
    "table",
    "unwrapped",
]

#: First line of a generated page, with what to change in place of the page.
WRITTEN = "<!-- written by `python -m pipelines.docs`: change {}, not this page -->"


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


def unwrapped(text: str) -> str:
    """Paragraphs of wrapped lines, each on one line."""
    return "\n\n".join(re.sub(r"\s+", " ", block).strip() for block in re.split(r"\n\s*\n", text.strip()))


def fenced(text: str, language: str = "text") -> str:
    return f"```{language}\n{dedent(text).strip(chr(10))}\n```"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; a bar inside a cell is escaped, also in code, as GitHub wants it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
