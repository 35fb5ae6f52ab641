"""Which part of a response is the program.

1. Reasoning does not count: only what follows the last ``</think>``; a ``<think>`` that never ends leaves
   nothing.
2. Fenced blocks are candidates: those marked ``python``, ``python3`` or ``py``, or, if there is none,
   unmarked ones. Blocks of other languages never count. A last block without closing fence reaches to the
   end of the response.
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

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n`]*$")
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
    fence, language, lines = "", "", []
    for line in text.splitlines(keepends=True):
        match = _FENCE.match(line.rstrip("\r\n"))
        if not fence:
            if match:
                fence, language, lines = match[1], match[2].lower(), []
        elif match and match[1].startswith(fence) and not match[2]:
            blocks.append((language, "".join(lines)))
            fence = ""
        else:
            lines.append(line)
    if fence:
        blocks.append((language, "".join(lines)))
    return blocks


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
