"""Task ``program``: what is asked is what is checked, by running it, and no split can leak into another."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from rlvr.problems import SPLITS, get_task
from rlvr.problems.base import Draws, split_of
from rlvr.problems.program import (
    KINDS,
    PROBES,
    PUBLIC,
    content_of,
    corrupt,
    expression,
    fingerprint,
    parse,
    public_rewards,
    solve,
    values,
)
from rlvr.problems.report import overlap, summarise
from rlvr.problems.tokenizer import Codec, build_tokenizer

PROGRAM = get_task("program")
OPERATIONS = (2, 4)


@pytest.fixture(scope="module")
def splits():
    return {split: PROGRAM.generate(split, 250, seed=0, operations=OPERATIONS) for split in SPLITS}


@pytest.fixture(scope="module")
def codec():
    return Codec(build_tokenizer(PROGRAM.words))


def run(text: str) -> list[int]:
    """The expression's values by Python itself; only for expressions that this task wrote."""
    return [eval(text, {"max": max, "min": min, "abs": abs, "x": x, "y": y}) for x, y in PROBES]


# --- what a problem says ---------------------------------------------------------------------------------


def test_first_problem_is_the_typed_in_one():
    (problem,) = PROGRAM.generate("train", 1, 0, OPERATIONS)
    assert problem.prompt == "from x, modulo 8 and without sign, minus 8, plus 8. which python?"
    assert problem.content == problem.answer == "modulo 8|size|subtract 8|add 8"
    assert problem.solution == "abs(x%8)-8+8"
    assert (problem.difficulty, problem.split, problem.kind) == (4, "train", "program")


@pytest.mark.parametrize(
    ("content", "x", "y", "expected"),
    [
        ("add 3", -5, 0, -2), ("subtract y", 4, 9, -5), ("times 3|add 1", 4, 0, 13), ("modulo 5", -7, 0, 3),
        ("least 4", 2, 0, 4), ("least y", 2, -3, 2), ("most 4", 9, 0, 4), ("size", -8, 0, 8),
        ("add 3|times 2|most y", 1, 7, 7),
    ],
)  # fmt: skip
def test_values_of_every_operation(content, x, y, expected):
    assert values(content, [(x, y)]) == [expected]


@pytest.mark.slow
def test_a_solution_has_the_values_that_are_asked_for_whatever_its_form():
    """Brackets and forms, over all pairs of operations: Python's own precedence decides."""
    steps = [f"{kind} {of.operands[0]}".strip() for kind, of in KINDS.items()]
    for content in map("|".join, itertools.product(steps, repeat=3)):
        for seed in range(4):
            text = expression(content, Draws("train", seed))
            assert run(text) == values(content, PROBES), (content, text)


def test_solutions_are_right_and_use_both_forms(splits):
    for problem in itertools.chain(*splits.values()):
        assert run(problem.solution) == values(problem.content, PROBES)
    texts = " ".join(p.solution for p in splits["train"])
    assert "max(" in texts and any(f"{n}+" in texts for n in range(1, 10)) and "x+" in texts


def test_prompt_says_what_is_asked(splits):
    for problem in itertools.chain(*splits.values()):
        assert content_of(problem.prompt) == problem.content


def test_same_content_has_several_wordings():
    wordings: dict[str, set[str]] = {}
    for p in PROGRAM.generate("train", 1500, 1, (1, 1)):
        wordings.setdefault(p.content, set()).add(p.prompt)
    assert max(map(len, wordings.values())) > 5


# --- splits ----------------------------------------------------------------------------------------------


def test_no_two_splits_ask_for_the_same_function(splits):
    behaviours = {split: {fingerprint(values(p.content, PROBES)) for p in of} for split, of in splits.items()}
    for a, b in itertools.combinations(SPLITS, 2):
        assert not behaviours[a] & behaviours[b]
    for split, of in behaviours.items():
        assert {split_of(b) for b in of} == {split}


def test_other_writings_of_a_function_are_in_its_split():
    assert fingerprint(values("add 3|add 1", PROBES)) == fingerprint(values("add 4", PROBES))
    assert fingerprint(values("times 2|times 2", PROBES)) == fingerprint(values("times 4", PROBES))


def test_evaluation_splits_hold_no_content_twice(splits):
    for split in ("validation", "held_out"):
        contents = [p.content for p in splits[split]]
        assert len(set(contents)) == len(contents)


def test_prefix_does_not_depend_on_n_and_seeds_differ(splits):
    for split, problems in splits.items():
        assert PROGRAM.generate(split, 40, 0, OPERATIONS) == problems[:40]
    assert PROGRAM.generate("train", 40, 1, OPERATIONS) != splits["train"][:40]


def test_no_problem_is_constant_or_huge(splits):
    for p in itertools.chain(*splits.values()):
        found = values(p.content, PROBES)
        assert len(set(found)) > 2 and max(map(abs, found)) <= 10_000


# --- tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operations", [(1, 1), (2, 4), (5, 8)])
def test_operations_bound_difficulty_and_length(operations, codec):
    problems = PROGRAM.generate("train", 150, 0, operations)
    assert {p.difficulty for p in problems} == set(range(operations[0], operations[1] + 1))
    longest = max(len(codec.encode(p.solution, end=True)) for p in problems)
    assert longest <= PROGRAM.max_response_tokens(operations)


def test_tokens_round_trip_and_stay_python(splits, codec):
    """What a policy is graded on is the decoded text, which has spaces of its own."""
    for p in itertools.chain(*splits.values()):
        ids = codec.encode(p.solution)
        assert codec.encode(codec.decode(ids)) == ids == codec.tokenizer(p.solution)["input_ids"]
        assert run(codec.decode(ids)) == values(p.content, PROBES)
        assert codec.tokenizer.decode(codec.encode(p.prompt)) == codec.decode(codec.encode(p.prompt))


# --- verdicts --------------------------------------------------------------------------------------------


def test_rewards_come_from_running(splits, codec):
    problems = splits["held_out"][:120]
    golds = [p.answer for p in problems]
    assert PROGRAM.rewards([codec.decode(codec.encode(p.solution)) for p in problems], golds) == [1.0] * 120
    shifted = PROGRAM.rewards([p.solution for p in problems], golds[1:] + golds[:1])
    expected = [
        float(run(p.solution) == values(gold, PROBES))
        for p, gold in zip(problems, golds[1:] + golds[:1], strict=True)
    ]
    assert shifted == expected and sum(expected) < 10
    assert PROGRAM.rewards([p.solution for p in problems], golds, [False] * 120) == [0.0] * 120


def test_wrong_solutions_are_wrong_and_close(splits):
    from rlvr.counterfactual.alignment import edit_distance

    problems, draws = splits["train"], Draws("train", 0)
    wrong = [corrupt(p, draws) for p in problems]
    assert PROGRAM.rewards(wrong, [p.answer for p in problems]) == [0.0] * len(problems)
    gaps = [
        edit_distance(list(map(ord, p.solution)), list(map(ord, w)))
        for p, w in zip(problems, wrong, strict=True)
    ]
    assert sum(gaps) / len(gaps) < 0.4
    assert [corrupt(p, Draws("train", 5)) for p in problems[:20]] == [
        corrupt(p, Draws("train", 5)) for p in problems[:20]
    ]


def test_each_hand_writes_right_expressions_in_forms_of_its_own(splits):
    problems = splits["train"][:200]
    written = [[solve(p, hand) for hand in range(4)] for p in problems]
    for texts in zip(*written, strict=True):
        assert PROGRAM.rewards(list(texts), [p.answer for p in problems]) == [1.0] * len(problems)
    assert 0.5 < sum(len(set(texts)) > 1 for texts in written) / len(problems)
    draws = [Draws("train", 3), Draws("train", 3)]
    wrong = [corrupt(p, draws[0], 1) for p in problems]
    assert wrong == [corrupt(p, draws[1], 1) for p in problems]
    assert PROGRAM.rewards(wrong, [p.answer for p in problems]) == [0.0] * len(problems)


def test_outcomes_say_which_tests_fail():
    task = get_task("program")
    found = task.outcomes(["max(x,3)", "x+0", "3"], ["least 3"] * 3)
    for text, verdicts in zip(("max(x,3)", "x+0", "3"), found, strict=True):
        slow = {str(n): eval(text, {}, {"x": x, "y": y}) == max(x, 3) for n, (x, y) in enumerate(PROBES)}
        assert verdicts == slow
    with pytest.raises(ValueError, match="got 1 and 2"):
        task.outcomes(["x"], ["least 3"] * 2)


def test_public_tests_are_fewer_and_let_wrong_programs_pass():
    assert len(PUBLIC) < len(PROBES) and set(PUBLIC) <= set(PROBES)
    gold = "least 2|add 1"
    assert public_rewards(["max(x,2)+1", "x+9", "x +"], [gold] * 3) == [1.0, 0.0, 0.0]
    constant = values(gold, PUBLIC)
    assert len(set(constant)) == 1, "on the public arguments this content is constant"
    assert public_rewards([str(constant[0])], [gold]) == [1.0] and PROGRAM.rewards(
        [str(constant[0])], [gold]
    ) == [0.0]


# --- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("test", 1, 0), "split='test' must be one of"),
        (("train", 1, -1), "seed=-1 must be"),
        (("train", 1, 0, (4, 3)), r"operations=\(4, 3\) must be"),
        (("train", 1, 0, (0, 3)), r"operations=\(0, 3\) must be"),
        (("held_out", 200, 0, (1, 1)), r"n=200 distinct problems.*only about \d+ exist"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        PROGRAM.generate(*arguments)


@pytest.mark.parametrize(
    "prompt", ["", "hello", "take x. which python?", "take x, add 3", "take x, add 33. which python?"]
)
def test_content_of_refuses_other_texts(prompt):
    with pytest.raises(ValueError, match="is not a problem of the task 'program'"):
        content_of(prompt)


@pytest.mark.parametrize("content", ["", "add", "add 10", "square 2", "size 3", "add 3|", "modulo y"])
def test_other_contents_are_refused(content):
    with pytest.raises(ValueError, match="is none of the task 'program'"):
        parse(content)


def test_lengths_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="one entry per response, got 2, 1 and 2"):
        PROGRAM.rewards(["x", "y"], ["add 3"])


# --- what the first notebook shows of it ------------------------------------------------------------------


def test_programs_are_summarised_without_a_smallest_answer(codec):
    problems = PROGRAM.generate("held_out", 20, 0, (2, 3))
    row = summarise({"held_out": [*problems, problems[0]]}, codec).loc["held_out"]
    assert (row["n"], row["distinct"]) == (21, 20)
    assert (row["most_common_answer"], row["most_common_share"]) == (problems[0].answer, 2 / 21)
    assert math.isnan(row["answer_min"]) and math.isnan(row["answer_max"])


def test_an_overlap_of_programs_is_one_of_functions(splits):
    """Other operations of the same function are seen; a program that goes on is another function."""
    assert (overlap(splits) == 0).all(axis=None)
    victim = splits["held_out"][0]
    asked = victim.prompt.partition(".")[0]
    for more, functions in ((", add 9, subtract 9", 1), (", times 9", 0)):
        leak = replace(victim, prompt=f"{asked}{more}. which python?", split="train")
        row = overlap(splits | {"train": [*splits["train"], leak]}).loc["train / held_out"]
        assert row.to_dict() == {"prompts": 0, "contents": 0, "contained": functions}
