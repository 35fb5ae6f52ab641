"""Wrong chains: one step is wrong, everything before it is kept, everything after it follows from it."""

from __future__ import annotations

import collections
import itertools

import pytest

from rlvr.problems import get_task
from rlvr.problems.base import Draws, Problem
from rlvr.problems.slips import corrupt, parse

WORD = get_task("word")
COMPUTE = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def problem(solution):
    return Problem("id", "p", solution.rpartition("=")[2], solution, "word", 1, "train")


def faults(right: str, wrong: str) -> list[tuple[int, str]]:
    """(step, what is wrong) of every step that is not right in itself or asks for something else."""
    found = []
    for number, (a, b) in enumerate(zip(right.split(","), wrong.split(","), strict=True)):
        (asked, _), (said, value) = a.split("="), b.split("=")
        sign = next(s for s in "+-*" if s in said)
        left, by = map(int, said.split(sign))
        if not (sign in asked and asked.split(sign)[1] == str(by)):
            found.append((number, "operator" if sign not in asked else "operand"))
        elif COMPUTE[sign](left, by) != int(value):
            found.append((number, "value"))
    return found


@pytest.mark.parametrize("operations", [(1, 1), (3, 6), (8, 8)])
def test_every_wrong_chain_has_exactly_one_fault(operations):
    draws, kinds, places = Draws("train", 0), collections.Counter(), collections.Counter()
    problems = WORD.generate("train", 1500, 0, operations)
    for p in problems:
        wrong = corrupt(p, draws)
        ((step, kind),) = faults(p.solution, wrong)
        kinds[kind] += 1
        places[step / max(1, p.difficulty - 1) > 0.5] += 1
        assert wrong.split(",")[:step] == p.solution.split(",")[:step]
        steps = parse(wrong)
        assert all(b.before == a.value for a, b in itertools.pairwise(steps))
        assert all(1 <= s.value <= 99 for s in steps)
    assert kinds["value"] / 1500 == pytest.approx(0.7, abs=0.07)
    assert kinds["operand"] > kinds["operator"] > 20
    if operations != (1, 1):
        assert 0.25 < places[True] / 1500 < 0.7, "early and late steps"


def test_the_last_number_is_always_wrong():
    problems, draws = WORD.generate("held_out", 800, 0), Draws("train", 1)
    assert WORD.rewards([corrupt(p, draws) for p in problems], [p.answer for p in problems]) == [0.0] * 800


def test_wrong_chains_fit_the_length_limit_of_right_ones():
    from rlvr.problems.tokenizer import Codec, build_tokenizer

    words, draws = Codec(build_tokenizer(WORD.words)), Draws("train", 2)
    problems = WORD.generate("train", 500, 3, (6, 6))
    longest = max(len(words.encode(corrupt(p, draws), end=True)) for p in problems)
    assert longest <= WORD.max_response_tokens((6, 6))


def test_a_seed_gives_the_same_chains():
    problems = WORD.generate("train", 50, 0)
    first, again, other = ([corrupt(p, Draws("train", s)) for p in problems] for s in (7, 7, 8))
    assert first == again != other
    draws = Draws("train", 7)
    assert len({corrupt(problems[0], draws) for _ in range(50)}) > 10


def test_a_chain_at_the_edge_of_the_range_still_has_a_slip():
    for solution in ("98+1=99", "2-1=1", "33*3=99", "99-9=90,90-9=81"):
        draws = Draws("train", 0)
        assert all(corrupt(problem(solution), draws) != solution for _ in range(50))


@pytest.mark.parametrize("solution", ["", "1+2", "1+2=3,", "1/2=0", "one+2=3"])
def test_another_form_is_refused(solution):
    with pytest.raises(ValueError, match="allowed is a"):
        corrupt(problem(solution), Draws("train", 0))


def test_a_problem_without_a_solution_is_refused():
    import dataclasses

    with pytest.raises(ValueError, match="has no solution"):
        corrupt(dataclasses.replace(problem("1+1=2"), solution=None), Draws("train", 0))
