"""When two problems are the same, and what to do about a set that holds one twice."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from rlvr.problems.benchmarks.problem import BenchmarkProblem

VERSION = 1  # of the two functions below: part of the key of cached results
_LOOKS = re.compile(
    r"\\(?:left|right|displaystyle|limits|quad|qquad|thinspace|operatorname|"
    r"(?:math|text)(?:rm|bf|it|sf|tt|normal)|text|mbox|hbox|rm|bf|it)(?![a-z])"
    r"|\\[,;:! ()\[\]]|\*\*|[$~{}\s]"
)
_WORD = re.compile(r"[a-z0-9]+")
_FRACTION = re.compile(r"\\[dtc]frac(?![a-z])")


def normalise(text: str) -> str:
    """Text without case, spacing, LaTeX delimiters, braces, fonts and closing punctuation.

    Operators and digits stay: ``x = 1`` and ``x = -1`` are different problems.
    """
    text = _plain(text).replace("\\\\", "\N{PILCROW SIGN}")  # a new row is no spacing
    return _LOOKS.sub("", _FRACTION.sub(r"\\frac", text)).rstrip(".?!,;:_")


def words(text: str) -> list[str]:
    """Runs of latin letters and digits, in lower case; everything else separates them."""
    return _WORD.findall(_plain(text))


def _plain(text: str) -> str:
    # DAPO-Math-17k holds \frac whose \f became a form feed
    return unicodedata.normalize("NFKC", text.replace("\x0crac", r"\frac")).lower()


def duplicate_groups(problems: Iterable[BenchmarkProblem]) -> list[list[BenchmarkProblem]]:
    """Groups of two or more problems with the same normalised text, in the order of their first members."""
    groups: dict[str, list[BenchmarkProblem]] = {}
    for problem in problems:
        groups.setdefault(normalise(problem.prompt), []).append(problem)
    return [group for group in groups.values() if len(group) > 1]


def conflict(group: Iterable[BenchmarkProblem]) -> bool:
    """Whether equal problems have different gold answers."""
    return len({normalise(problem.answer) for problem in group}) > 1


def drop_duplicates(problems: list[BenchmarkProblem]) -> list[BenchmarkProblem]:
    """The first of equal problems, and none of them where their gold answers differ."""
    dropped: set[int] = set()
    for group in duplicate_groups(problems):
        dropped.update(id(problem) for problem in group[0 if conflict(group) else 1 :])
    return [problem for problem in problems if id(problem) not in dropped]
