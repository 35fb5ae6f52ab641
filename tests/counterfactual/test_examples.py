"""Supervised correction examples: the wrong one is wrong, the references are what was asked for."""

from __future__ import annotations

import pytest

from rlvr.config_corrections import WarmUpCorrections
from rlvr.counterfactual.alignment import edit_distance
from rlvr.counterfactual.examples import correction_examples, encode_examples
from rlvr.problems import get_task
from rlvr.problems.tokenizer import Codec, build_tokenizer


def examples(task="word", n=300, seed=0, operations=(3, 6), **settings):
    settings = WarmUpCorrections(**({"share": 0.5} | settings))
    return correction_examples(get_task(task).generate("train", n, 5, operations), settings, "train", seed)


@pytest.mark.parametrize("chance", [0.0, 0.3, 1.0])
def test_responses_are_wrong_and_references_are_right_as_often_as_said(chance):
    found = examples(references=(1, 2), reference_right=chance)
    rewards = get_task("word").rewards
    golds = [e.problem.answer for e in found]
    assert rewards([e.response for e in found], golds) == [0.0] * len(found)
    assert rewards([e.target for e in found], golds) == [1.0] * len(found)
    pairs = [(r, e.problem.answer) for e in found for r in e.references]
    right = sum(rewards(*map(list, zip(*pairs, strict=True)))) / len(pairs)
    assert right == pytest.approx(chance, abs=0.06)
    # wrong references are wrong in another way, here and wherever a chain has more than one slip
    assert all(e.response not in e.references for e in found)


def test_some_responses_are_right_already():
    found = examples(task="program", operations=(2, 4), response_right=0.4)
    right = [e.response == e.target for e in found]
    assert sum(right) / len(found) == pytest.approx(0.4, abs=0.08)
    rewards = get_task("program").rewards([e.response for e in found], [e.problem.answer for e in found])
    assert rewards == [float(r) for r in right]
    assert [e.response for e in examples()] == [e.response for e in examples(response_right=0.0)]


def test_a_correction_in_its_own_form_keeps_the_response_and_copies_no_reference():
    """With the forms of the problem every right reference is the target; with own ones few are."""
    asked = {"task": "program", "operations": (2, 4), "references": (1,), "reference_right": 1.0}
    task = get_task("program")
    shared, own = examples(**asked), examples(**asked, forms="own")
    assert all(e.references == (e.target,) for e in shared)
    assert 0.1 < sum(e.references == (e.target,) for e in own) / len(own) < 0.6
    golds = [e.problem.answer for e in own]
    for texts, right in (
        ([e.target for e in own], 1.0),
        ([e.references[0] for e in own], 1.0),
        ([e.response for e in own], 0.0),
    ):
        assert task.rewards(texts, golds) == [right] * len(own)
    near, far = (
        sum(edit_distance(list(map(ord, e.response)), list(map(ord, other(e)))) for e in own) / len(own)
        for other in (lambda e: e.target, lambda e: e.references[0])
    )
    assert near < 0.75 * far
    assert examples(**asked, forms="own") == own
    with pytest.raises(ValueError, match="forms='own': task 'word' writes a solution in one way"):
        examples(forms="own")


def test_numbers_of_references_are_equally_frequent():
    found = [len(e.references) for e in examples(references=(0, 1, 3))]
    assert set(found) == {0, 1, 3} and all(abs(found.count(n) - 100) < 30 for n in (0, 1, 3))
    assert {len(e.references) for e in examples(references=(0,))} == {0}


def test_the_same_arguments_give_the_same_examples_and_another_seed_others():
    assert examples(seed=3) == examples(seed=3)
    assert examples(seed=3) != examples(seed=4)
    assert examples(n=20) == examples(n=300)[:20]


def test_the_encoded_prompt_is_the_template_s_and_the_target_the_solution():
    words = Codec(build_tokenizer(get_task("word").words))
    (example,) = examples(n=1)
    (prompt,), (target,) = encode_examples([example], words, "compare")
    parts = (example.problem.prompt, example.response, ".", *(f"{r}." for r in example.references), "?")
    assert words.decode(prompt).replace(" ", "") == "".join(parts).replace(" ", "")
    assert target == words.encode(example.problem.solution, end=True)


def test_a_task_without_wrong_solutions_is_refused():
    import dataclasses

    from rlvr.problems import TASKS

    TASKS["plain"] = dataclasses.replace(get_task("word"), name="plain", corrupt=None)
    try:
        problems = [dataclasses.replace(p, kind="plain") for p in get_task("word").generate("train", 1, 0)]
        with pytest.raises(ValueError, match="task 'plain' makes no wrong solutions"):
            correction_examples(problems, WarmUpCorrections(share=0.5), "train", 0)
    finally:
        del TASKS["plain"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 1.0}, "share"),
        ({"share": 0.1, "references": ()}, r"references=\[\]"),
        ({"share": 0.1, "references": (-1,)}, "references"),
        ({"share": 0.1, "reference_right": 1.5}, "reference_right"),
        ({"share": True}, "share=True must be a number"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        WarmUpCorrections(**settings)
