"""Tokens of single signs and of LaTeX commands."""

from __future__ import annotations

from rlvr.verifiers.answers import vocabulary
from rlvr.verifiers.answers.tree import Unreadable

Token = tuple[str, str]  # kind, value


def operator(sign: str) -> list[Token]:
    if sign in ",;":
        return [("sep", sign)]
    if sign in "+-*/^_!%|()[]{}:'&":
        return [(sign, sign)]
    if sign in "\N{FULLWIDTH DOLLAR SIGN}$":
        return [("cur", "dollar")]
    if sign in "\N{EURO SIGN}\N{POUND SIGN}\N{YEN SIGN}":
        return [("cur", {"\N{EURO SIGN}": "euro", "\N{POUND SIGN}": "gbp"}.get(sign, "yuan"))]
    if sign in '"`':
        return []
    raise Unreadable(f"sign {sign!r}")


def escaped(sign: str) -> list[Token]:
    if sign in "{}":
        return [(sign * 2, sign * 2)]
    if sign in "%|":
        return [(sign, sign)]
    if sign in "_#&":
        raise Unreadable(f"sign {sign!r}")
    return []  # spacing


def command(name: str) -> list[Token]:
    name = vocabulary.ALIASES.get(name, name)
    if name in vocabulary.GREEK:
        return [("sym", vocabulary.SAME_LETTER.get(name, name))]
    if name == "infty":
        return [("sym", "oo")]
    if name in ("pi", "imath"):
        return [("sym", "pi" if name == "pi" else "i")]
    if name in vocabulary.RELATIONS:
        return [("rel", vocabulary.RELATIONS[name])]
    if name in vocabulary.OPERATORS:
        return [(vocabulary.OPERATORS[name], vocabulary.OPERATORS[name])]
    if name in vocabulary.DOTS:
        return [("dots", name)]
    if name in vocabulary.STYLES:
        return [("style", name)] if name == "mathbb" else []
    if name in vocabulary.FUNCTIONS and name not in ("binom", "sqrt"):
        return [("func", vocabulary.FUNCTIONS[name])]
    return [("cmd", name)]
