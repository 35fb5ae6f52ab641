"""What the second pass makes of typed-in corrections: copies, an operator of one's own, what it is handed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rlvr.config import Recipe, load_scale
from rlvr.config_corrections import Counterfactual
from rlvr.counterfactual import operators
from rlvr.counterfactual.operators import Candidate, Comparison, register_operator
from rlvr.counterfactual.second_pass import describe, judge, shaping
from rlvr.engines.local.accounting import compared
from rlvr.recipes import check_recipes

# One group of four: the first response is right, the others are wrong and corrected beside it.
REWARDS = torch.tensor([1.0, 0.0, 0.0, 0.0])
RESPONSES = [[5, 6, 7], [5, 6, 8], [1, 2, 3], [5, 9]]
CORRECTIONS = [
    [[5, 6, 7], [5, 6, 4]],  # a copy that is right; a repair that is right
    [[5, 6, 7], [1, 2, 4]],  # a copy, and here a full rewrite (distance 1): not accepted; a wrong repair
    [[5, 6, 7], None],  # a copy of distance 2/3 from its response, as near to the reference: rewrite
]
RIGHT = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, float("nan")]])


def judged(responses=RESPONSES, corrections=CORRECTIONS, references=((0,), (0,), (0,)), **settings):
    width = max(map(len, responses))
    mask = torch.tensor([[int(t < len(ids)) for t in range(width)] for ids in responses])
    lengths = torch.tensor([[0 if c is None else len(c) for c in row] for row in corrections])
    return judge(
        Counterfactual(**settings),
        REWARDS,
        mask,
        torch.tensor([1, 2, 3]),
        torch.tensor(references),
        problems=[None] * 3,
        responses=[Candidate(responses[row]) for row in (1, 2, 3)],
        shown=[[Candidate(responses[r]) for r in of] for of in references],
        corrected=[[None if c is None else Candidate(c) for c in row] for row in corrections],
        accuracy=RIGHT,
        lengths=lengths,
        finished=torch.ones(3, 2, dtype=torch.bool),
    )


def described(found):
    phi = shaping(found, REWARDS, Counterfactual())
    return describe(found, REWARDS, phi, 4)


def test_copies_of_all_and_of_accepted_corrections():
    found = judged()
    assert found.copied.tolist() == [[True, False], [True, False], [True, False]]
    assert found.accepted.tolist() == [[True, True], [False, False], [False, False]]
    row = described(found)
    assert row["copies"] == pytest.approx(3 / 5)  # of five corrections
    assert row["copies_of_accepted"] == pytest.approx(1 / 2)  # of two accepted ones


def test_without_the_rewrite_test_every_right_copy_is_accepted():
    row = described(judged(alpha=None))
    assert row["copies_of_accepted"] == pytest.approx(3 / 4)


def test_one_of_several_references_may_be_the_copied_one():
    found = judged(references=((3, 0), (3, 0), (0, 2)))
    assert found.copied.tolist() == [[True, False], [True, False], [True, False]]


class Equal:
    """An operator that only compares: everything was kept, and everything is the reference."""

    def compare(self, problem, response, references, corrected):
        count = len(corrected)
        flags = torch.ones(count, len(response.ids), dtype=torch.bool)
        return Comparison(flags, torch.zeros(count).double(), torch.zeros(count).double())


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setattr(operators, "_OPERATORS", dict(operators._OPERATORS))
    register_operator("equal", Equal)


def test_an_operator_that_takes_no_option_judges(own):
    found = judged(operator="equal")
    assert found.unchanged[0].all() and not found.distance.any() and not found.rewrite.any()
    assert found.accepted.tolist() == [[True, True], [True, False], [True, False]]
    row = described(found)  # copies are of tokens, whatever the operator's distances
    assert row["copies"] == pytest.approx(3 / 6) and row["copies_of_accepted"] == pytest.approx(3 / 4)


def test_a_recipe_may_name_it(own):
    scale = load_scale(Path(__file__).resolve().parents[2] / "params.yaml")
    recipe = Recipe(objective="gspo", counterfactual={"operator": "equal"})
    check_recipes(scale.model_copy(update={"recipes": {**scale.recipes, "new": recipe}}))


def test_the_operator_is_handed_the_response_and_the_correction():
    """Of verl's rows: 3 tokens and 3, 3 and 2, 2 and 1; the fourth correction is missing."""
    corrections = [[5, 6, 7], [5, 6], [5], []]
    assert compared(RESPONSES, [1, 3], corrections, {0, 1, 2}) == [6, 5, 3]
    assert compared(RESPONSES, [1, 3], corrections, {2, 0}) == [6, 3]
    assert compared(RESPONSES, [], [], []) == []
