"""A problem, and what a family of generated problems (a task) has to provide."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

SPLITS = ("train", "validation", "held_out")
HELD_OUT_SHARE = 0.1  # choice: parts of all contents that no training problem may have
VALIDATION_SHARE = 0.1

Seed = int | Sequence[int]
Operations = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem; hashable, so that a set of problems is a set."""

    id: str  # content hash of kind and prompt: the same problem has the same id everywhere
    prompt: str
    answer: str
    solution: str | None  # chain of thought that ends in the answer; None where there is none
    kind: str
    difficulty: int
    split: str
    content: str = ""  # what is asked without the wording; splits are disjoint in it

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Task:
    """A family of problems under a name; adding one means filling in these fields.

    ``stream(split, seed, operations)`` yields problems without end and without regard to repetition.
    ``rewards(predictions, golds, finished)`` grades responses. ``corrupt(problem, draws)`` makes a wrong
    solution that is right up to one step (see :func:`rlvr.problems.slips.corrupt`); None: the task has none.
    ``solve(problem, hand)`` writes a right solution in another way, one for each number, and
    ``corrupt(problem, draws, hand)`` a wrong one in that way; None: solutions are written in one way.
    """

    name: str
    words: tuple[str, ...]  # every word the prompts and solutions use, besides digits and signs
    stream: Callable[[str, Seed, Operations], Iterator[Problem]]
    content_of: Callable[[str], str]  # reads a problem's content back out of its prompt
    max_response_tokens: Callable[[Operations], int]  # of a solution, end token included
    rewards: Callable[..., list[float]]
    corrupt: Callable[..., str] | None = None
    solve: Callable[[Problem, int], str] | None = None
    grader: str = "integer"  # of evaluations, in rlvr.evaluation.grading
    public_rewards: Callable[..., list[float]] | None = None  # what a selection may look at; None: rewards
    #: ``outcomes(predictions, golds)``: verdict by test, of tasks whose responses are run against tests.
    outcomes: Callable[..., list[dict[str, bool]]] | None = None

    def train_stream(self, seed: Seed, operations: Operations = (3, 6)) -> Iterator[Problem]:
        """Fresh training problems without end."""
        return self.stream("train", seed, operations)

    def generate(self, split: str, n: int, seed: Seed, operations: Operations = (3, 6)) -> list[Problem]:
        """``n`` problems of a split; the first k of them are ``generate(split, k, seed, operations)``.

        ``train`` is an independent sample per seed, which a tuple such as ``(run, step)`` may be: the
        prompts of a training step then need no state to be resumed. The other splits hold no content twice.

        Raises:
            ValueError: unknown split, n < 0, a bad seed or range, or more distinct problems than exist.
        """
        if not isinstance(n, int) or n < 0:
            raise ValueError(f"n={n!r} must be a whole number of problems, 0 or more")
        stream = self.stream(split, seed, operations)
        if split == "train":
            return [next(stream) for _ in range(n)]
        chosen: dict[str, Problem] = {}
        repeats = 0
        while len(chosen) < n:
            problem = next(stream)
            repeats = repeats + 1 if problem.content in chosen else 0
            chosen.setdefault(problem.content, problem)
            if repeats > 10_000:
                raise ValueError(
                    f"n={n} distinct problems of split {split!r} with operations={tuple(operations)}: "
                    f"only about {len(chosen)} exist"
                )
        return list(chosen.values())


class Draws:
    """Small random numbers, the same on every platform."""

    def __init__(self, split: str, seed: Seed) -> None:
        self._source = bit_stream(split, seed)

    def below(self, bound: int) -> int:
        """A whole number in 0..bound-1 (bias below 1e-7 for the small bounds used here)."""
        return (int(self._source.random_raw()) >> 32) * bound >> 32

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.below(len(options))]


def check_split(split: str) -> str:
    if split not in SPLITS:
        raise ValueError(f"split={split!r} must be one of {list(SPLITS)}")
    return split


def digest(*parts: str) -> str:
    """16 hexadecimal digits that depend on the parts alone, not on the Python version or the process."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def split_of(group: str) -> str:
    """The split of everything that belongs to ``group``, by a hash: no list of problems has to be kept."""
    share = int(digest("split", group), 16) / 16**16
    if share < HELD_OUT_SHARE:
        return "held_out"
    return "validation" if share < HELD_OUT_SHARE + VALIDATION_SHARE else "train"


def bit_stream(split: str, seed: Seed) -> np.random.PCG64:
    """Raw 64-bit words: numpy keeps these the same over versions and platforms, its distributions not.

    Raises:
        ValueError: unknown split, or a seed that is not a whole number in 0..2**64-1 or a sequence of such.
    """
    parts = (seed,) if isinstance(seed, (int, np.integer)) else tuple(seed)
    if not parts or any(
        isinstance(p, bool) or not isinstance(p, (int, np.integer)) or not 0 <= p < 2**64 for p in parts
    ):
        raise ValueError(f"seed={seed!r} must be a whole number in 0..2**64-1 or a sequence of such")
    # SeedSequence ignores zeros at the end, so that (3, 0) would equal 3: the length goes in front, and
    # each part is two words of 32 bits.
    words = [SPLITS.index(check_split(split)), len(parts)]
    for part in map(int, parts):
        words += [part & 0xFFFFFFFF, part >> 32]
    return np.random.PCG64(np.random.SeedSequence(words))
