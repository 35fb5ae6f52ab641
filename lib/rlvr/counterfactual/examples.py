"""Supervised correction examples: what a small model learns the correction format, and correcting, from.

A pretrained model can follow a correction prompt; one of 120 k parameters has to be shown what it means.
An example is a correction prompt with a wrong chain (one slip, see :mod:`rlvr.problems.slips`) and
references, right or differently wrong, and as its target the right solution, which keeps every step before
the slip and every operation after it. With ``forms="own"`` references are written otherwise than response and
target: what is right in them has to be carried over, not copied. With ``response_right`` some responses are
right already: training corrects wrong ones alone, but a revision at test time is asked of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlvr.config_corrections import WarmUpCorrections
from rlvr.counterfactual.prompts import TokenPrompts
from rlvr.problems import get_task
from rlvr.problems.base import Draws, Problem, Seed, Task
from rlvr.problems.tokenizer import Codec

ATTEMPTS = 20  # to find a wrong chain that is not there yet
HANDS = 1 << 20  # ways to write a solution; few of them differ


@dataclass(frozen=True)
class CorrectionExample:
    """One example, as text."""

    problem: Problem
    response: str  # wrong, or with ``response_right`` sometimes the target itself
    references: tuple[str, ...]
    target: str


def correction_examples(
    problems: Sequence[Problem], settings: WarmUpCorrections, split: str, seed: Seed
) -> list[CorrectionExample]:
    """One example per problem; a function of its arguments.

    Args:
        problems: of one task, with solutions.
        split, seed: of the slips and references.

    Raises:
        ValueError: the task has no way to make a wrong solution.
    """
    draws = Draws(split, seed)
    return [_example(problem, settings, draws) for problem in problems]


def _example(problem: Problem, settings: WarmUpCorrections, draws: Draws) -> CorrectionExample:
    task = get_task(problem.kind)
    if task.corrupt is None:
        raise ValueError(
            f"task {problem.kind!r} makes no wrong solutions: allowed in warmup.corrections are tasks with "
            "`corrupt`"
        )
    if settings.forms == "own" and task.solve is None:
        raise ValueError(
            f"warmup.corrections.forms='own': task {problem.kind!r} writes a solution in one way; allowed is "
            "'shared'"
        )
    hand = _hand(settings, draws)
    target, wrong = _right(task, problem, hand), [_wrong(task, problem, draws, hand)]
    chance = settings.response_right  # 0 draws nothing: the examples of a warm-up without it stay the same
    right = chance > 0 and draws.below(1000) < 1000 * chance
    references: list[str] = []
    for _ in range(draws.pick(settings.references)):
        hand = _hand(settings, draws)
        if draws.below(1000) < 1000 * settings.reference_right:
            references.append(_right(task, problem, hand))
            continue
        for _ in range(ATTEMPTS):
            other = _wrong(task, problem, draws, hand)
            if other not in wrong:
                break
        wrong.append(other)  # a short chain may have no other slip: then the reference is the same
        references.append(other)
    return CorrectionExample(problem, target if right else wrong[0], tuple(references), target)


def _hand(settings: WarmUpCorrections, draws: Draws) -> int | None:
    """Who writes the next solution; None: whoever wrote the problem's, which draws nothing."""
    return draws.below(HANDS) if settings.forms == "own" else None


def _right(task: Task, problem: Problem, hand: int | None) -> str:
    return problem.solution if hand is None else task.solve(problem, hand)


def _wrong(task: Task, problem: Problem, draws: Draws, hand: int | None) -> str:
    return task.corrupt(problem, draws) if hand is None else task.corrupt(problem, draws, hand)


def encode_examples(
    examples: Sequence[CorrectionExample], codec: Codec, template: str
) -> tuple[list[list[int]], list[list[int]]]:
    """(correction prompts, targets with their end token) as token ids."""
    build = TokenPrompts(template, codec.encode, codec.eos_id)
    prompts = [
        build(codec.encode(e.problem.prompt), codec.encode(e.response), codec.encode_batch(e.references))
        for e in examples
    ]
    return prompts, codec.encode_batch((e.target for e in examples), end=True)
