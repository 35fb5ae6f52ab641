"""Formulas and numbers in prose: where the last one is, and an answer without what is wrapped around it.

Quantifiers are possessive where a text could make them backtrack: all scans are linear.
"""

from __future__ import annotations

import re

from rlvr.verifiers.answers.notation import strip_stop

_HOPE = re.compile(r"\.?\s*I hope (?:it|this) is correct.*\Z", re.IGNORECASE | re.DOTALL)
_MATH = re.compile(
    r"\$\$[^$]++\$\$|(?<!\\)\$(?:[^$\\]|\\.)++\$|"
    r"\\\[(?:[^\\]|\\[^\[\]])++\\\]|\\\((?:[^\\]|\\[^()])++\\\)",
    re.DOTALL,
)
_NUMBER = re.compile(
    r"(?<![A-Za-z\d_.\\^{])(?:\\frac\s{0,3}\{[^{}]{1,200}\}\s{0,3}\{[^{}]{1,200}\}|"
    r"(?>(?:[-+−][ ]?)?[$£€¥]?"
    r"(?:\d{1,3}+(?:,\d{3})++(?!\d)(?:\.\d++)?|\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?"
    r"(?:\s{0,3}/\s{0,3}\d++(?:\.\d++)?|\s{0,3}\^\s{0,3}\{?-?\d++\}?|"
    r"\s{0,3}[x×]\s{0,3}10\s{0,3}\^\s{0,3}\{?-?\d++\}?)*+"
    r"(?:\s?(?:\\?%|°))?)(?!(?!(?:cm|mm|km|kg)(?![A-Za-z])|m[²³])[A-Za-z_]))"
)
_OPERATORS = frozenset("=<>+-*/^×·≤≥≈≠(|")
_OPERATORS_BEHIND = _OPERATORS - {"("} | {")", "!", "^"}
_CONNECTED = re.compile(r"\s*(?:,\s*(?:and|or)?|;|and|or)\s*")


def clean(content: str) -> str:
    """Without emphasis, ticks, delimiters around the whole, and a closing full stop."""
    content = _HOPE.sub("", content).strip()
    while content:
        before = content
        content = strip_stop(content.strip())
        for mark in ("**", "__", "*", "`"):
            if content.startswith(mark) or content.endswith(mark):
                content = content.removeprefix(mark).removesuffix(mark).strip()
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


def last_formula(text: str) -> str | None:
    """The last formula in delimiters (with those that ``and`` or a comma join to it), or the last plain
    number with the formula that it is part of: of ``the line is 2x + 3y = 7`` the equation, not the 7."""
    spans = [(m.start(), m.end()) for m in _MATH.finditer(text)]
    tail = spans[-1][1] if spans else 0
    numbers = list(_NUMBER.finditer(text, tail))
    if numbers:
        number = numbers[-1]
        return _formula_around(text, number.start(), number.end(), tail)
    if not spans:
        return None
    start, end = spans[-1]
    for before, stop in reversed(spans[:-1]):
        if _CONNECTED.fullmatch(text, stop, start) is None:
            break
        start = before
    return text[start:end]


def _formula_around(text: str, start: int, end: int, low: int) -> str:
    """Pieces without spaces, left and right of a number, as long as operators join them to it."""
    formula = text[start:end].strip()
    left = text[max(low, start - 300) : start]
    glued = left[len(left.rstrip()) :] == ""
    for piece in reversed(left.split()):
        joined = glued or formula[0] in _OPERATORS or piece[-1] in _OPERATORS
        if not joined or not _is_formula(piece):
            break
        formula = f"{piece}{'' if glued else ' '}{formula}"
        glued = False
    right = text[end : end + 300]
    glued = not right[:1].isspace()
    for piece in right.split():
        bare = piece.rstrip(".,;:!?")
        joined = (
            bare[:1] in _OPERATORS or formula[-1] in _OPERATORS
            if not glued
            else bare[:1] in _OPERATORS_BEHIND
        )
        if not bare or not joined or not _is_formula(bare):
            break
        formula = f"{formula}{'' if glued else ' '}{bare}"
        glued = False
        if bare != piece:
            break
    if formula[0] in "([" and formula.count(formula[0]) > formula.count({"(": ")", "[": "]"}[formula[0]]):
        return formula[1:]
    return formula


def is_prose(text: str) -> bool:
    """Whether it holds a word that is no command, or delimiters around a part."""
    return "$" in text or "\\(" in text or re.search(r"(?<![\\\w])[^\W\d_]{2,}", text) is not None


def _is_formula(piece: str) -> bool:
    """No word, no end of a sentence."""
    return piece[-1] not in ".;:?!" and not re.search(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?![A-Za-z])(?!\()", piece)


def first_formula(text: str) -> str | None:
    """The formula or number that a text begins with."""
    match = _MATH.match(text) or _NUMBER.match(text)
    return None if match is None else match.group()
