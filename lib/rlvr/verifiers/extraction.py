"""Which part of a response is its answer.

One rule decides between several: **the last commitment counts; a statement counts only if there is no
commitment; a remainder only if there is no statement.**

1. What counts as the response: the text before the first chat marker (``<|im_end|>`` and the like) and behind
   the last ``</think>``. A ``<think>`` that is never closed leaves nothing.
2. *Commitments*: ``\\boxed{..}``, ``\\fbox{..}``, ``\\framebox{..}``, ``\\boxed 5`` (the outermost of nested
   ones; one without its closing brace ends with its line); an answer line, ``Answer: ..`` or
   ``Final Answer: ..`` at the start of a line or sentence, or such a heading above its line;
   ``final answer is ..``; ``<answer>..</answer>``. Boxes joined by nothing but a comma, ``and`` or ``or`` are
   one list; the same box twice is one.
3. *Statements*: ``#### ..`` on a line of its own; ``the answer is ..``; ``answer: ..`` in the middle of a
   line.
4. *Remainder*: a short response that is nothing but an expression (``0.5``, ``$x = 5$``, ``10 cm``) is its
   own answer. Of anything else the whole if it is short, else the last formula or number in it, be it in
   ``$..$``, ``\\(..\\)``, ``\\[..\\]`` or plain. That a formula in prose counts unmarked is a choice;
   ``fallback=False`` turns it off.

Within what was found, the whole is read first (``\\text{ellipse}``, ``x = 5``, ``10 cm``); if that is not a
commitment in a box but prose, the formula or number that it begins with, or else its last one. Nothing else
takes its place if that is wrong or cannot be read, or if the words around it deny or change its value
(``not 5``, ``half of 10``). Markdown emphasis, code ticks, math delimiters, a full stop and
``I hope it is correct`` go; so does the ``!`` of ``the answer is 5!`` (in a box or a formula it is a
factorial).

All scans are linear in the length of the response.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlvr.verifiers.answers.readings import is_expression
from rlvr.verifiers.answers.words import NUMERALS
from rlvr.verifiers.formulas import chosen_formula, clean, is_prose, last_formula

MAX_ANSWER = 4_000  # characters of an answer that are read at all
_LAST_BOXES = 64
_SHORT = 400  # a response that is an answer as a whole

_CHAT = re.compile(r"<\|(?:im_start|im_end|endoftext|eot_id|end_of_text|end|eom_id)\|>|</s>")
_OPENER = re.compile(r"\A(?:\s*<\|(?:im_start|begin_of_text|start_header_id)\|>(?:assistant)?\s*)+")
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"[ \t]*(\\?[^\s{}$.,;\\]+)")
_JOINED = re.compile(
    r"[\s$\\,;()\[\]]*(?:,|;|\\?\band\b|\\?\bor\b|\\text\s*\{\s*,?\s*(?:and|or)\s*\})[\s$\\,;()\[\]]*"
)
_SPACING = re.compile(r"\\(?:quad|qquad|,|;|!|:| )|\\text\s*\{\s*,?\s*(and|or)\s*,?\s*\}|[{}]")
_WORD = re.compile(r"answer|答案", re.IGNORECASE)
_EXCLAIMED = re.compile(r"[-+]?[$£€]?\d[\d,.]*!+")
_DELIMITED = re.compile(r"[\s*_`]*(?:\$.*\$|\\\(.*\\\)|\\\[.*\\\])[\s*_`.]*", re.DOTALL)
_LEAD = re.compile(
    r"(?:^|[.!?;:。]\s*|\\n)[\s>*_#\-`~]*(?:\d+[.)]\s*)?[*_]*"
    r"(?:(?:so|thus|hence|therefore)[,\s]+)?(?:the\s+|my\s+|our\s+)?(?:final\s+|correct\s+)?[*_]*\Z",
    re.IGNORECASE,
)
_COLON = re.compile(r"[*_`\s]{0,8}(?:is\s{0,4})?[:：][*_`]{0,4}[ \t]*")
_HEADING = re.compile(r"[*_`:# \t]*(?:\r?\n)+")
_IS = re.compile(r"(?:\s+to\s+[^.\n:$\\]{0,60})?(?:\s+(?:is|are|=)|\s*[是为])[\s:*_`]{0,8}")
_FINAL = re.compile(r"final\s*[*_]*\s*\Z", re.IGNORECASE)
_MATHEMATICAL = re.compile(
    r"(?:negative|minus)\s|"
    rf"(?:{'|'.join(NUMERALS)})[.!]?\s*\Z|"
    r"[-+−]?\s*[\d$\\(\[{.√π]|[*_`]*[-+]?\d|[A-Za-z](?:\([a-z]\))?\s*[=<>≤≥]|[-+]?[A-Za-z]\b(?!\s+[a-z]{2})"
)
_HASHES = re.compile(r"^[ \t]*####[ \t]*(.{1,200})$", re.MULTILINE)
_HASH_VALUE = re.compile(r"[*_$\\£€(\s]*[-+−]?[*_$\\£€(\s]*[\d.\\√π].{0,199}\Z", re.DOTALL)
_NUMBERED = re.compile(r"\d+[.)]\s+[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Found:
    """``candidates``: the whole of what was found, then the last formula or number in it. ``rule``: what
    found it."""

    candidates: tuple[str, ...]
    rule: str


def extract(response: str, *, fallback: bool = True) -> Found | None:
    """The answer of a response, by the rules above; None if it has none."""
    text = _visible(response)
    if text is None:
        return None
    commitments = [*_boxes(text), *_lines(text, commit=True), *_tags(text)]
    if commitments:
        _, content, rule = max(commitments, key=lambda x: x[0])
        return _found(content, rule)
    statements = [*_hashes(text), *_lines(text, commit=False)]
    if statements:
        _, content, rule = max(statements, key=lambda x: x[0])
        return _found(content, rule)
    whole = text.strip()
    candidates = [clean(whole)] if 0 < len(whole) <= _SHORT else []
    if candidates and is_expression(candidates[0]):
        return Found(tuple(candidates), "bare")
    if not fallback or not whole:
        return None
    last = last_formula(whole) if not candidates or is_prose(whole) else None
    if last is not None:
        candidates.append(clean(last))
    return Found(tuple(dict.fromkeys(candidates)), "remainder") if candidates else None


def _found(content: str, rule: str) -> Found:
    whole = clean(content)
    if rule != "box" and _EXCLAIMED.fullmatch(whole) and not _DELIMITED.fullmatch(content):
        whole = whole.rstrip("!")
    candidates = [whole]
    if rule != "box" and is_prose(whole):
        part = chosen_formula(whole, content)
        if part is not None:
            candidates.append(clean(part))
    return Found(tuple(x for x in dict.fromkeys(candidates) if x), rule)


def _visible(response: str) -> str | None:
    text = _OPENER.sub("", response)
    marker = _CHAT.search(text)
    if marker is not None:
        text = text[: marker.start()]
    end = text.rfind("</think>")
    if end >= 0:
        return text[end + len("</think>") :]
    return None if "<think>" in text else text


def boxes(text: str) -> list[tuple[int, int, str]]:
    """(start, end, content) of the last outermost boxes, in order."""
    starts = [m for m in _BOX.finditer(text)][-_LAST_BOXES:]
    if not starts:
        return []
    closing: dict[int, int] = {}
    stack: list[int] = []
    for m in _BRACE.finditer(text, starts[0].start()):
        sign = m.group()
        if sign == "{":
            stack.append(m.start())
        elif sign == "}" and stack:
            closing[stack.pop()] = m.start()
    result: list[tuple[int, int, str]] = []
    covered = -1
    for m in starts:
        if m.start() < covered:
            continue
        opening = m.end()
        while opening < len(text) and text[opening] in " \t\n":
            opening += 1
        if opening < len(text) and text[opening] == "{":
            end = closing.get(opening)
            if end is None:  # never closed: to the end of its line
                stop = text.find("\n", opening)
                stop = len(text) if stop < 0 else stop
                result.append((m.start(), stop, text[opening + 1 : stop][: MAX_ANSWER + 1].rstrip("$ .")))
            else:
                result.append((m.start(), end + 1, text[opening + 1 : end]))
                covered = end
        else:
            bare = _BARE.match(text, m.end())
            if bare is not None:
                result.append((m.start(), bare.end(), bare.group(1)))
    return result


def _boxes(text: str) -> list[tuple[int, str, str]]:
    """The last group of boxes that a connective joins."""
    found = [box for box in boxes(text) if box[2].strip()]
    if not found:
        return []
    start, end, content = found[-1]
    contents = [content]
    for before, stop, other in reversed(found[:-1]):
        between = text[stop:start]
        if len(between) > 40 or _JOINED.fullmatch(_SPACING.sub(r" \1 ", between)) is None:
            break
        if other.strip() != contents[0].strip():
            contents.insert(0, other)
        start = before
    return [(end, ", ".join(contents), "box")]


def _lines(text: str, commit: bool) -> list[tuple[int, str, str]]:
    """The last sentence or line about the answer that is a commitment, or that is a weaker statement."""
    for word in reversed(list(_WORD.finditer(text))):
        earliest = max(0, word.start() - 300)
        line_start = text.rfind("\n", earliest, word.start()) + 1
        lead = (
            text[line_start : word.start()]
            if line_start
            else "\0" * (earliest > 0) + text[earliest : word.start()]
        )
        begins = _LEAD.search(lead) is not None
        colon = _COLON.match(text, word.end())
        verb = _IS.match(text, word.end())
        content = None
        if colon is not None:
            if begins == commit:
                content = _rest(text, colon.end())
        elif verb is not None:
            rest = _rest(text, verb.end())
            if _MATHEMATICAL.match(rest) and (_FINAL.search(lead) is not None) == commit:
                content = rest
        elif commit and begins:
            heading = _HEADING.match(text, word.end())
            if heading is not None:
                content = _rest(text, heading.end())
        if content and content.strip("*_` \t$."):
            return [(word.end(), content, "line")]
    return []


def _rest(text: str, start: int) -> str:
    """To the end of the line, or the next line if that is empty; a display formula as a whole."""
    rest = text[start : start + MAX_ANSWER + 1].lstrip(" \t*_`\r\n")
    for opening, closing in ((r"\[", r"\]"), ("$$", "$$")):
        if rest.startswith(opening):
            end = rest.find(closing, 2)
            if end >= 0:
                return rest[: end + 2]
    return rest.partition("\n")[0]


def _tags(text: str) -> list[tuple[int, str, str]]:
    start = text.lower().rfind("<answer>")
    if start < 0:
        return []
    end = text.lower().find("</answer>", start)
    if end < 0:
        return []
    inside = text[start + 8 : end]
    inner = _boxes(inside)
    return [(end, inner[-1][1] if inner else inside, "box" if inner else "tag")]


def _hashes(text: str) -> list[tuple[int, str, str]]:
    result = []
    for m in _HASHES.finditer(text):
        content = m.group(1).strip()
        if _HASH_VALUE.match(content) and not _NUMBERED.match(content):
            result.append((m.end(), content, "hashes"))
    return result
