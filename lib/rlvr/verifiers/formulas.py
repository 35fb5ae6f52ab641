"""Formulas and numbers in prose: where the last one is, and an answer without what is wrapped around it.

Quantifiers are possessive where a text could make them backtrack: all scans are linear.
"""

from __future__ import annotations

import re

from rlvr.verifiers.answers.notation import strip_stop
from rlvr.verifiers.answers.words import MULTIPLIERS, changed, sign_before

_HOPE = re.compile(r"I hope (?:it|this) is correct", re.IGNORECASE)
_MATH = re.compile(
    r"\$\$[^$]++\$\$|(?<!\\)\$(?>(?:[^$\\]|\\.)+)\$|"
    r"\\\[(?>(?:[^\\]|\\[^\[\]])+)\\\]|\\\((?>(?:[^\\]|\\[^()])+)\\\)",
    re.DOTALL,
)
_NUMBER = re.compile(
    r"(?<![A-Za-z\d_.\\^{])(?:\\frac\s{0,3}\{[^{}]{1,200}\}\s{0,3}\{[^{}]{1,200}\}|"
    r"(?>(?:[-+−][ ]?)?[$£€¥]?"
    r"(?:\d{1,3}+(?>(?:,\d{3})+)(?!\d)(?:\.\d++)?|\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?"
    r"(?>(?:\s{0,3}/\s{0,3}\d++(?:\.\d++)?|\s{0,3}\^\s{0,3}\{?-?\d++\}?|"
    r"\s{0,3}[x×]\s{0,3}10\s{0,3}\^\s{0,3}\{?-?\d++\}?)*)"
    rf"(?>(?:\s?(?:\\?%|°)|\s(?:percent|per\scent|(?:{'|'.join(MULTIPLIERS)}))(?![A-Za-z]))*))(?!(?!(?:cm|mm|km|kg)(?![A-Za-z])|m[²³])[A-Za-z_]))"
)
_FACTOR = re.compile(rf"(?>(?:\s?(?:percent|per\scent|{'|'.join(MULTIPLIERS)})(?![A-Za-z]))*)")
_LAYERS = 40  # of emphasis and delimiters around an answer
_OPERATORS = frozenset("=<>+-*/^×·≤≥≈≠(|")
_OPERATORS_BEHIND = _OPERATORS - {"("} | {")", "!", "^", "π", "√"}
_CONNECTED = re.compile(r"\s*(?:,\s*(?:and|or)?|;|and|or)\s*")


def clean(content: str) -> str:
    """Without emphasis, ticks, delimiters around the whole, and a closing full stop."""
    hope = _HOPE.search(content)
    if hope is not None:
        content = content[: hope.start()].rstrip().removesuffix(".")
    content = content.strip()
    for _ in range(_LAYERS):
        before = content
        content = strip_stop(content.strip())
        content = content.strip("*`").strip()
        if content.startswith("__") or content.endswith("__"):
            content = content.removeprefix("__").removesuffix("__").strip()
        for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
            size = len(opening)
            inside = content[size:-size]
            if (
                content.startswith(opening)
                and content.endswith(closing)
                and len(content) > 2 * size
                and opening not in inside.replace(r"\$", "")
            ):
                content = inside.strip()
        if content == before:
            break
    return content


def chosen_formula(whole: str, content: str) -> str | None:
    """Of prose behind an answer mark: the formula or number that it begins with, else the last one. None if
    words around it change its value."""
    if (match := _MATH.match(whole)) is not None:
        return _unless_changed(whole, 0, _FACTOR.match(whole, match.end()).end())
    if (match := _NUMBER.match(whole)) is not None:
        return _unless_changed(whole, *_formula_around(whole, match.start(), match.end(), 0))
    return last_formula(content)


def last_formula(text: str) -> str | None:
    """The last formula in delimiters (with those that ``and`` or a comma join to it), or the last plain
    number with the formula that it is part of: of ``the line is 2x + 3y = 7`` the equation, not the 7. None
    if the words around it change its value (``not 5``, ``half of 10``); a sign in words is read."""
    spans = [(m.start(), m.end()) for m in _MATH.finditer(text)]
    tail = spans[-1][1] if spans else 0
    numbers = list(_NUMBER.finditer(text, tail))
    if numbers:
        start, end = _formula_around(text, numbers[-1].start(), numbers[-1].end(), tail)
        return _unless_changed(text, start, end)
    if not spans:
        return None
    start, end = spans[-1][0], _FACTOR.match(text, spans[-1][1]).end()
    for before, stop in reversed(spans[:-1]):
        if _CONNECTED.fullmatch(text, stop, start) is None:
            break
        start = before
    return _unless_changed(text, start, end)


def _unless_changed(text: str, start: int, end: int) -> str | None:
    if changed(text, start, end):
        return None
    formula = text[start:end].strip()
    if formula[0] in "([" and formula.count(formula[0]) > formula.count({"(": ")", "[": "]"}[formula[0]]):
        formula = formula[1:]
    if not sign_before(text, start):
        return formula
    return f"-{formula}" if _NUMBER.fullmatch(formula) and formula[0] not in "-+−" else None


def _formula_around(text: str, start: int, end: int, low: int) -> tuple[int, int]:
    """Where the formula around a number begins and ends: pieces without spaces as long as operators join
    them to it."""
    start += len(text[start:end]) - len(text[start:end].lstrip())
    end = start + len(text[start:end].rstrip())
    low = max(low, start - 300)
    while True:
        stop = len(text[low:start].rstrip()) + low
        pieces = text[low:stop].split()
        if not pieces or not (stop == start or text[start] in _OPERATORS or pieces[-1][-1] in _OPERATORS):
            break
        if not _is_formula(pieces[-1]):
            break
        start = stop - len(pieces[-1])
    high, whole = end + 300, end
    while True:
        rest = text[end:high]
        piece = (rest.split(None, 1) or [""])[0]
        bare = piece.rstrip(".,;:!?")
        glued = not rest[:1].isspace()
        joined = bare[:1] in (_OPERATORS_BEHIND if glued else _OPERATORS)
        if not bare or not (joined or (not glued and text[end - 1] in _OPERATORS)) or not _is_formula(bare):
            break
        end += len(rest) - len(rest.lstrip()) + len(bare)
        whole = end if bare[-1] not in _OPERATORS else whole  # what ends in an operator is no formula
        if bare != piece:
            break
    return start, _FACTOR.match(text, whole).end()


def is_prose(text: str) -> bool:
    """Whether it holds a word that is no command, or delimiters around a part."""
    return "$" in text or "\\(" in text or re.search(r"(?<![\\\w])[^\W\d_]{2,}", text) is not None


def _is_formula(piece: str) -> bool:
    """No word, no end of a sentence."""
    return piece[-1] not in ".;:?!" and not re.search(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?![A-Za-z])(?!\()", piece)
