"""Which part of a response is the program.

1. Reasoning does not count: only what follows the last ``</think>``; a ``<think>`` that never ends leaves
   nothing.
2. Fenced blocks are candidates: those marked ``python``, ``python3`` or ``py``, or, if there is none,
   unmarked ones. Blocks of other languages never count. A last block without closing fence reaches to the
   end of the response. The opening fence may be indented and may follow a list marker; its lines lose that
   indentation, or what the first of them has of it; a tab reaches to the next multiple of 4 [CommonMark].
3. Of the candidates the last one counts that defines the entry point at its top level; if none does, the
   last one. Blocks are never joined.
4. Without any fence the text itself counts, from after ``[BEGIN]`` to before ``[DONE]`` if it has these.
5. Where the prompt is code, a text whose first line is indented continues it, and so does unfenced text
   that does not define the entry point: it is put behind the prompt. Nothing is cut off its end: what
   follows the function runs too.

Code is looked at line by line and not parsed here: parsing hostile text can crash the interpreter.
"""

from __future__ import annotations

import re

# Indentation with a list marker, fence, language. Nothing is tried twice: a line may be very long.
_FENCE = re.compile(r"([ \t]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]++)?)(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^\n`]*+$")
_TAB = 4  # columns
_INDENTED = re.compile(r"(?:[ \t]*\r?\n)*[ \t]+\S")
_PYTHON = ("python", "python3", "py")


def extract_program(response: str, entry_point: str | None = None, prompt: str = "") -> str | None:
    """The program in a response, complete; None if there is none.

    Args:
        response: the whole text.
        entry_point: name of the function (``Class.method``: of the class) that the tests call; None for
            programs on standard input.
        prompt: code that a completion continues, else empty.
    """
    text = _answer(response)
    blocks = _blocks(text)
    if blocks:
        marked = [code for language, code in blocks if language in _PYTHON]
        candidates = marked or [code for language, code in blocks if not language]
        return _choose(candidates, entry_point, prompt)
    start = text.rfind("[BEGIN]")
    start = 0 if start < 0 else start + len("[BEGIN]")
    end = text.find("[DONE]", start)
    text = text[start : end if end >= 0 else len(text)]
    if prompt and entry_point and text.strip() and not _defines(text, entry_point):
        return prompt + text
    return _choose([text], entry_point, prompt)


def _answer(response: str) -> str:
    _, closed, rest = response.rpartition("</think>")
    return rest if closed else response.partition("<think>")[0]


def _blocks(text: str) -> list[tuple[str, str]]:
    """(language, code) of the fenced blocks, in order."""
    blocks: list[tuple[str, str]] = []
    fence, language, indent, lines = "", "", 0, []
    for line in text.splitlines(keepends=True):
        match = _FENCE.match(line.rstrip("\r\n"))
        if not fence:
            if match:
                fence, language, lines = match[2], match[3].lower(), []
                indent = len(match[1].expandtabs(_TAB))
        elif match and match[2].startswith(fence) and not match[3] and not match[1].strip():
            blocks.append((language, _without_indent(lines, indent)))
            fence = ""
        else:
            lines.append(line)
    if fence:
        blocks.append((language, _without_indent(lines, indent)))
    return blocks


def _without_indent(lines: list[str], indent: int) -> str:
    """The lines without ``indent`` columns, or without those that the first one has."""
    first = next((line for line in lines if line.strip()), "")
    columns = _cut(first, indent)[0]  # more than ``indent`` where a tab reaches beyond it
    if not columns:
        return "".join(lines)
    cut = (_cut(line, columns) for line in lines)
    return "".join(" " * (removed - columns) + rest for removed, rest in cut)


def _cut(line: str, columns: int) -> tuple[int, str]:
    """How many columns of white space were cut off, about ``columns`` at most, and the rest of the line."""
    removed = index = 0
    while removed < columns and line[index : index + 1] in (" ", "\t"):
        removed += 1 if line[index] == " " else _TAB - removed % _TAB
        index += 1
    return removed, line[index:]


def _choose(candidates: list[str], entry_point: str | None, prompt: str) -> str | None:
    candidates = [code for code in candidates if code.strip()]
    if not candidates:
        return None
    chosen = candidates[-1]
    if entry_point is not None:
        chosen = next((code for code in reversed(candidates) if _defines(code, entry_point)), chosen)
    return prompt + chosen if prompt and _INDENTED.match(chosen) else chosen


def _defines(code: str, entry_point: str) -> bool:
    """Whether a line without indentation defines or assigns the name (of ``Class.method``, the class)."""
    name = re.escape(entry_point.partition(".")[0])
    pattern = rf"^(?:(?:async\s+def|def|class)\s+{name}\b|{name}\s*(?::[^=\n]*)?=(?!=))"
    return re.search(pattern, code, re.MULTILINE) is not None
