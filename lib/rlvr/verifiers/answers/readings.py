"""What a text may stand for."""

from __future__ import annotations

import re
from functools import lru_cache

from rlvr.verifiers.answers.notation import ambiguous, normalize, tokenize
from rlvr.verifiers.answers.reader import read
from rlvr.verifiers.answers.tree import Beyond, Node, Text, Unreadable

_NUMBER = re.compile(r"[-+]?\d{1,300}")


@lru_cache(maxsize=1 << 14)
def readings(text: str) -> tuple[Node, ...]:
    """The trees a text may stand for: two where a comma may group digits or separate; none if unreadable.

    Raises Beyond for a text that is too large or too deep to read.
    """
    if _NUMBER.fullmatch(text):
        return (read([("num", text.lstrip("+-"))] if text[0] != "-" else [("-", "-"), ("num", text[1:])]),)
    result: list[Node] = []
    bare = normalize(text)
    for grouped in (True, False) if ambiguous(bare) else (True,):
        try:
            result.append(read(tokenize(bare, grouped=grouped)))
        except Beyond:
            raise
        except Unreadable:
            continue
    if re.fullmatch(r"[-+]?\d+,(?!\d{3}\Z)\d+", bare):  # a decimal comma
        result.append(read(tokenize(bare.replace(",", "."))))
    return tuple(result)


def is_expression(text: str) -> bool:
    """Whether the whole of a text can be read as mathematics, as more than words."""
    try:
        found = readings(text)
    except Beyond:
        return True
    return bool(found) and not isinstance(found[0], Text)
