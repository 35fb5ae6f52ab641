"""Gold answers: read once, refused if malformed, tested against themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from rlvr.verifiers.answers.notation import normalize, tokenize
from rlvr.verifiers.answers.reader import read
from rlvr.verifiers.answers.tree import Call, Node, Num, Quantity, Unreadable
from rlvr.verifiers.extraction import MAX_ANSWER, boxes, extract
from rlvr.verifiers.formulas import clean

_ROOT = re.compile(r"\\sqrt\s*\(")
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_UPRIGHT = re.compile(
    r"\\(?:text|mbox|textbf|textit|textrm|textnormal|textup|mathrm|mathbf|operatorname)(?![A-Za-z])"
)
MAX_GOLD = 50_000  # characters of a gold answer, which may be a whole solution with its box
WRAPPINGS = ("{}", r"So the result is \boxed{{{}}}.", "Answer: {}", "**{}**", r"The final answer is ${}$.")


@dataclass(frozen=True, slots=True)
class Gold:
    """``problem``: None, or why nothing can be compared with it. ``node`` is None if it is readable as text
    only."""

    text: str
    node: Node | None
    words: str
    problem: str | None = None


def read_gold(gold: str, kind: str = "auto") -> Gold:
    """A gold answer: the inside of its last box if it has one, else the whole; of a text that states an
    answer (``The final answer is ..``) and cannot be read otherwise, that answer."""
    if not isinstance(gold, str):
        return Gold("", None, "", "not_text")
    gold = gold.strip()
    if len(gold) > MAX_GOLD:
        return Gold(gold[:200], None, "", "too_long")
    return _read_gold(gold, kind)


@lru_cache(maxsize=1 << 16)
def _read_gold(gold: str, kind: str) -> Gold:
    if _malformed(gold) in ("unbalanced", "damaged"):
        return Gold(gold, None, "", _malformed(gold))
    if boxes(gold):
        found = extract(gold)
        text = found.candidates[0] if found is not None and found.rule == "box" and found.candidates else ""
    else:
        text = clean(gold)
    problem = "too_long" if len(text) > MAX_ANSWER else _malformed(text)
    if problem is not None:
        return Gold(text, None, "", problem)
    node = _node(text, kind)
    if node is None:  # a whole solution, perhaps
        found = extract(text, fallback=False)
        for candidate in found.candidates if found is not None else ():
            inner = _node(candidate, kind)
            if inner is not None and _malformed(candidate) is None:
                text, node = candidate, inner
                break
    if kind == "integer" and not _is_integer(node):
        return Gold(text, None, "", "not_an_integer")
    return Gold(text, node, as_words(text))


def check_gold(gold: str, kind: str = "auto") -> str | None:
    """None for a usable gold answer, else one word: ``empty``, ``unbalanced``, ``malformed_root``,
    ``damaged``, ``too_long``, ``not_an_integer``, ``prose`` (readable as text only, so that any other wording
    is undecided)."""
    read_one = read_gold(gold, kind)
    if read_one.problem is None and read_one.node is None:
        return "prose"
    return read_one.problem


def self_test(golds: Iterable[tuple[str, str]], kind: str = "auto") -> list[tuple[str, str, str]]:
    """(id, gold, reason) of every gold answer that is not judged equal to itself in each of
    :data:`WRAPPINGS`.

    ``golds``: (id, gold) pairs. Run it on a data set before training on it.
    """
    from rlvr.verifiers.math import verify_math

    failed = []
    for name, gold in golds:
        problem = check_gold(gold, kind)
        if problem is None:
            for wrapping in WRAPPINGS:
                inner = clean(gold) if "$" in wrapping or "boxed" in wrapping else gold.strip()
                verdict = verify_math(wrapping.format(inner), gold, kind=kind)
                if verdict.correct is not True:
                    problem = f"{verdict.reason} in {wrapping}"
                    break
        if problem is not None:
            failed.append((name, gold, problem))
    return failed


def as_words(text: str) -> str:
    """Words for comparison if the text is nothing but words, else ``""``."""
    bare = _UPRIGHT.sub("", text).replace("\\ ", " ").replace("~", " ")
    if (
        re.fullmatch(
            r"[^\W\d_]+(?:[\s.,!?'’()\-{}$\"]+[^\W\d_]+)*[\s.,!?'’()\-{}$\"]*|[({$\s][^\\\d=+*/^_<>|]*", bare
        )
        is None
    ):
        return ""
    letters = "".join(c if c.isalnum() or c == "'" else " " for c in bare).split()
    if not letters or any(c.isdigit() for word in letters for c in word):
        return ""
    if "!" in bare and ((bare == text and len(letters) == 1) or max(map(len, letters)) < 3):
        return ""  # a factorial: n!, ab!
    if letters[0].lower() in ("a", "an", "the") and len(letters) > 1:
        letters = letters[1:]
    short = len(letters) == 1 and len(letters[0]) < 3 and letters[0].lower() != "no"  # C, AB: case counts
    return letters[0] if short else " ".join(letters).lower()


def _node(text: str, kind: str) -> Node | None:
    try:
        return read(tokenize(normalize(text), grouped=kind != "list"))
    except (Unreadable, RecursionError):
        return None


def _is_integer(node: Node | None) -> bool:
    """A whole number as a literal, with a unit perhaps (``073``, ``27.0``, ``-5``, ``336^\\circ``)."""
    if isinstance(node, Quantity):
        node = node.value
    while isinstance(node, Call) and node.name in ("neg", "degree"):
        node = node.args[0]
    return isinstance(node, Num) and node.value.denominator == 1


def _malformed(text: str) -> str | None:
    if not normalize(text):
        return "empty"
    if "\N{REPLACEMENT CHARACTER}" in text:
        return "damaged"
    if _ROOT.search(text):
        return "malformed_root"
    depth = 0
    for sign in _ESCAPED.sub("", text):
        depth += (sign == "{") - (sign == "}")
        if depth < 0:
            return "unbalanced"
    return "unbalanced" if depth else None
