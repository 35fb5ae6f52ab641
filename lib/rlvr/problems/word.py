"""Task ``word``: a story of a few arithmetic steps on one number.

    Anna has 11 pens, buys 6 then loses 4, doubles them. how many pens?     11+6=17,17-4=13,13*2=26

The steps are +k and -k with k in 1..9, *2 and *3; every value stays in 1..99. With at most six steps a
solution then has at most 48 tokens, so the usual length limit of 48 never truncates a right answer.

Splits. A problem's *content* is its start value and its steps (``11+6-4*2``); the wording is not part of it.
The split is a hash of the start value and the first three steps. Hence no rewording of a held-out problem is
ever trained on, and no training solution spells a held-out solution out on the way to a longer one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import numpy as np

from rlvr.problems.base import Operations, Problem, Seed, Task, bit_stream, check_split, digest, split_of
from rlvr.problems.slips import corrupt
from rlvr.verifiers.integer import rewards

MAX_VALUE = 99
START = (2, 30)
SPLIT_STEPS = 3  # steps that decide the split
MULTIPLY_WEIGHT = 4  # chances of *2 and of *3 where +k and -k have one each: about a third multiply

NAMES = tuple("Anna Ben Cara Dan Ella Finn Gina Hugo Iris Jack Kim Leo".split())
OBJECTS = tuple("apples books cards coins cups eggs keys pens shells stamps stars stones".split())
STARTS = tuple("has owns holds keeps".split())
VERBS = {
    "+": tuple("buys finds gets makes picks wins".split()),
    "-": tuple("drops eats gives loses sells spends".split()),
    "*2": ("doubles",),
    "*3": ("triples",),
}
PRONOUNS = ("them", "all")
LINKS = (", ", " then ", " and ")
QUESTIONS = ("how many {}?", "how many {} now?")
WORDS = (
    *NAMES,
    *OBJECTS,
    *STARTS,
    *(verb for verbs in VERBS.values() for verb in verbs),
    *PRONOUNS,
    *"then and how many now".split(),
)

_STEP = re.compile(rf"\b({'|'.join(v for vs in VERBS.values() for v in vs)}) (?:([1-9])|them|all)")
_SIGN = {verb: sign for sign, verbs in VERBS.items() for verb in verbs}
_CHUNK = 256


@cache
def _moves() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Allowed steps from each value: sign [value, choice], operand [value, choice], choices [value]."""
    rows: list[list[tuple[int, int]]] = []
    for value in range(MAX_VALUE + 1):
        moves = [(0, k) for k in range(1, 10) if value + k <= MAX_VALUE]
        moves += [(1, k) for k in range(1, 10) if value - k >= 1]
        moves += [(2, k) for k in (2, 3) if value * k <= MAX_VALUE for _ in range(MULTIPLY_WEIGHT)]
        rows.append(moves)
    table = np.zeros((MAX_VALUE + 1, max(map(len, rows)), 2), dtype=np.int64)
    for value, moves in enumerate(rows):
        table[value, : len(moves)] = moves
    return table[..., 0], table[..., 1], np.array([len(moves) for moves in rows], dtype=np.int64)


def _below(bits: np.ndarray, bound: int | np.ndarray) -> np.ndarray:
    """Whole numbers in 0..bound-1 from 32-bit numbers (bias below 1e-7 for the bounds used here)."""
    return (bits * np.asarray(bound, dtype=np.int64)) >> 32


def _check_operations(operations: Operations) -> Operations:
    low, high = operations
    if not (isinstance(low, int) and isinstance(high, int) and 1 <= low <= high <= 20):
        raise ValueError(f"operations={operations!r} must be (fewest, most) with 1 <= fewest <= most <= 20")
    return low, high


def stream(split: str, seed: Seed, operations: Operations = (3, 6)) -> Iterator[Problem]:
    """Problems of one split without end; the number of steps is uniform over ``operations``.

    Raises:
        ValueError: unknown split, bad seed, bad range (at the call, not at the first problem).
    """
    return _stream(check_split(split), bit_stream(split, seed), _check_operations(operations))


def _stream(split: str, source: np.random.PCG64, operations: Operations) -> Iterator[Problem]:
    low, high = operations
    # With shorter problems in the set, fewer steps decide: no solution may begin another split's.
    split_steps = min(SPLIT_STEPS, low)
    signs, operands, choices = _moves()
    columns = 5 + 4 * high
    while True:
        bits = (source.random_raw((_CHUNK, columns)) >> np.uint64(32)).astype(np.int64)
        steps = low + _below(bits[:, 0], high - low + 1)
        start = START[0] + _below(bits[:, 1], START[1] - START[0] + 1)
        value = start
        sign, operand, after = (np.empty((_CHUNK, high), dtype=np.int64) for _ in range(3))
        for t in range(high):
            pick = _below(bits[:, 5 + 4 * t], choices[value])
            sign[:, t], operand[:, t] = signs[value, pick], operands[value, pick]
            by = operand[:, t]
            value = np.where(sign[:, t] == 0, value + by, np.where(sign[:, t] == 1, value - by, value * by))
            after[:, t] = value
        arrays = (steps, start, sign, operand, after, bits[:, 2:5], bits[:, 5:])
        for n, first, s, k, values, frame, words in zip(*(a.tolist() for a in arrays), strict=True):
            arithmetic = [("+-*"[s[t]], str(k[t])) for t in range(n)]
            content = str(first) + "".join(a + b for a, b in arithmetic)
            group = str(first) + "".join(a + b for a, b in arithmetic[:split_steps])
            if split_of(group) == split:
                yield _tell(content, first, arithmetic, values[:n], split, frame, words)


def _pick(bits: int, options: tuple[str, ...]) -> str:
    return options[bits * len(options) >> 32]


def _tell(
    content: str,
    start: int,
    arithmetic: list[tuple[str, str]],
    values: list[int],
    split: str,
    frame: list[int],
    words: list[int],
) -> Problem:
    """Put a content into words; ``frame`` and ``words`` are 32-bit numbers that choose among them."""
    thing = _pick(frame[1], OBJECTS)
    # one number for both small choices of the frame: 4 ways to begin x 2 questions
    frame_choice = frame[2] * (len(STARTS) * len(QUESTIONS)) >> 32
    begin, question = STARTS[frame_choice // len(QUESTIONS)], QUESTIONS[frame_choice % len(QUESTIONS)]
    story = [f"{_pick(frame[0], NAMES)} {begin} {start} {thing}"]
    chain, before = [], start
    for t, ((sign, by), value) in enumerate(zip(arithmetic, values, strict=True)):
        link = _pick(words[4 * t + 1], LINKS)
        if sign == "*":
            verb, amount = VERBS["*" + by][0], _pick(words[4 * t + 3], PRONOUNS)
        else:
            verb, amount = _pick(words[4 * t + 2], VERBS[sign]), by
        story.append(f"{link}{verb} {amount}")
        chain.append(f"{before}{sign}{by}={value}")
        before = value
    prompt = f"{''.join(story)}. {question.format(thing)}"
    return Problem(
        id=digest("word", prompt),
        prompt=prompt,
        answer=str(before),
        solution=",".join(chain),
        kind="word",
        difficulty=len(arithmetic),
        split=split,
        content=content,
    )


def content_of(prompt: str) -> str:
    """Read the content back out of a prompt, independently of how the prompt was made.

    Raises:
        ValueError: the prompt is not one of this task.
    """
    first = re.search(rf"(?:{'|'.join(STARTS)}) ([1-9][0-9]?) ", prompt)
    steps = _STEP.findall(prompt)
    if first is None or not steps:
        raise ValueError(f"prompt={prompt!r} is not a problem of the task 'word'")
    return first.group(1) + "".join(_SIGN[verb] + amount for verb, amount in steps)


def max_response_tokens(operations: Operations = (3, 6)) -> int:
    """Longest solution, end token included: ``99-9=90,`` has eight tokens, the last comma becomes the end."""
    return 8 * _check_operations(operations)[1]


TASK = Task(
    name="word",
    words=WORDS,
    stream=stream,
    content_of=content_of,
    max_response_tokens=max_response_tokens,
    rewards=rewards,
    corrupt=corrupt,
)
