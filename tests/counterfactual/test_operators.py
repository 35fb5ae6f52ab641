import math

import numpy as np
import pytest
import torch

from rlvr.counterfactual import operators
from rlvr.counterfactual.alignment import align_batch, reference_distances
from rlvr.counterfactual.operators import (
    Candidate,
    Comparison,
    compare_batch,
    fitting_operator,
    get_operator,
    list_operators,
    register_operator,
)
from rlvr.counterfactual.programs import control_flow_distance, outcome_distance, tree_distance
from rlvr.counterfactual.rewrite import full_rewrites
from rlvr.rewards import recoverability, unchanged_share

WRONG = "def f(x):\n    if x > 1:\n        return 1\n    return 0\n"
REPAIRED = WRONG.replace("> 1", ">= 1")
REPLACED = "f = lambda x: int(x >= 1)\n"
REFERENCE = "def f(x):\n    return int(x >= 1)\n"
FAILED, PASSED = {"a": True, "b": True, "c": False}, {"a": True, "b": True, "c": True}
ids = {code: [ord(c) for c in code] for code in (WRONG, REPAIRED, REPLACED, REFERENCE)}


def candidate(program, tests=PASSED):
    return Candidate(ids[program], program, tests)


RESPONSE = candidate(WRONG, FAILED)
PROGRAMS = {
    "syntax_trees": lambda a, b: tree_distance(a.program, b.program),
    "control_flow": lambda a, b: control_flow_distance(a.program, b.program),
    "failing_tests": lambda a, b: outcome_distance(a.tests, b.tests),
}


def test_default_is_token_alignment():
    corrected = [candidate(REPAIRED), None, candidate(REPLACED)]
    for insertions in ("next", "both", "none"):
        found = get_operator("compare_and_correct", insertions=insertions).compare(
            "any problem", RESPONSE, [candidate(REFERENCE), candidate(WRONG)], corrected
        )
        lists = [[ids[REPAIRED], None, ids[REPLACED]]]
        unchanged, distance = align_batch([ids[WRONG]], lists, insertions)
        assert torch.equal(found.unchanged, unchanged[0])
        torch.testing.assert_close(found.distance, distance[0], equal_nan=True)
        nearest = reference_distances(lists, [[ids[REFERENCE], ids[WRONG]]])
        torch.testing.assert_close(found.reference_distance, nearest[0], equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_operators_for_programs(name):
    corrected = [candidate(REPAIRED), None, candidate(REPLACED)]
    references = [candidate(REFERENCE), candidate(WRONG, {"a": False, "b": False, "c": False})]
    found = get_operator(name).compare(None, RESPONSE, references, corrected)
    tokens = get_operator("compare_and_correct").compare(None, RESPONSE, references, corrected)
    assert torch.equal(found.unchanged, tokens.unchanged)
    distance = PROGRAMS[name]
    for c, correction in enumerate(corrected):
        if correction is None:
            assert found.distance[c].isnan() and found.reference_distance[c].isnan()
            continue
        assert found.distance[c] == distance(RESPONSE, correction)
        assert found.reference_distance[c] == min(distance(correction, r) for r in references)
    without = get_operator(name).compare(None, RESPONSE, [], corrected)
    assert without.reference_distance.isnan().all()
    torch.testing.assert_close(without.distance, found.distance, equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("who", ["response", "reference", "correction"])
def test_one_scale_where_something_has_nothing_to_compare(name, who):
    bare = Candidate([1, 2, 3], "def f(:", {"a": None})
    response = bare if who == "response" else RESPONSE
    references = [candidate(REFERENCE), bare] if who == "reference" else [candidate(REFERENCE)]
    corrected = [candidate(REPAIRED), bare] if who == "correction" else [candidate(REPAIRED)]
    found = get_operator(name).compare(None, response, references, corrected)
    tokens = get_operator("compare_and_correct").compare(None, response, references, corrected)
    row = 1 if who == "correction" else 0
    assert found.distance[row] == tokens.distance[row]
    assert found.reference_distance[row] == tokens.reference_distance[row]
    if who == "correction":  # the other correction keeps its own scale
        assert found.distance[0] == PROGRAMS[name](RESPONSE, candidate(REPAIRED))


def test_a_reindented_program_is_a_rewrite_by_tokens_only():
    # one `if` around everything, and a comment: most tokens move or are new, the tree hardly changes
    loop = "for i in range(9):\n  print(i)\n"
    noisy = "# " + "all of it again, at length " * 6 + "\n" + loop.replace("  ", "      ")
    response, correction = Candidate(list(loop.encode()), loop), Candidate(list(noisy.encode()), noisy)
    reference = Candidate(list(noisy[:-3].encode()), noisy[:-3] + "i)\n")
    flags = {}
    for name in ("compare_and_correct", "syntax_trees"):
        found = compare_batch(name, [None], [response], [[reference]], [[correction]])
        flags[name] = bool(full_rewrites(found.distance, found.reference_distance))
    assert flags == {"compare_and_correct": True, "syntax_trees": False}


def test_batch_is_one_by_one_and_feeds_the_rewards():
    responses = [RESPONSE, Candidate([5, 6])]
    references = [[candidate(REFERENCE)], []]
    corrected = [[candidate(REPAIRED), candidate(REPLACED)], [Candidate([5, 7, 6])]]
    for name in list_operators():
        found = compare_batch(name, ["p", "q"], responses, references, corrected)
        assert found.unchanged.shape == (2, 2, len(ids[WRONG])) and found.distance.shape == (2, 2)
        for row in range(2):
            single = get_operator(name).compare("p", responses[row], references[row], corrected[row])
            count, width = single.unchanged.shape
            assert torch.equal(found.unchanged[row, :count, :width], single.unchanged)
            assert not found.unchanged[row, count:].any() and not found.unchanged[row, :, width:].any()
            torch.testing.assert_close(found.distance[row, :count], single.distance, equal_nan=True)
            assert found.distance[row, count:].isnan().all()
        mask = torch.tensor([[1] * len(ids[WRONG]), [1, 1] + [0] * (len(ids[WRONG]) - 2)])
        rewrite = full_rewrites(found.distance, found.reference_distance)
        accuracy, right = torch.zeros(2), torch.tensor([[1.0, 1.0], [1.0, math.nan]])
        phi = recoverability(accuracy, right, rewrite, unchanged_share(found.unchanged, mask), "ratio")
        assert phi[1] == 0.5 and phi[0] > 0.9
    order = compare_batch("compare_and_correct", "pq", responses[::-1], references[::-1], corrected[::-1])
    plain = compare_batch("compare_and_correct", "pq", responses, references, corrected)
    assert torch.equal(order.unchanged, plain.unchanged.flip(0))


def test_batch_follows_the_mask():
    mask = torch.tensor([[0, 1, 0, 1, 1]])
    found = compare_batch(
        "compare_and_correct", [0], [Candidate([1, 2, 3])], [[]], [[Candidate([1, 9, 3])]], mask
    )
    assert found.unchanged.int().tolist() == [[[0, 1, 0, 0, 1]]]
    np.testing.assert_allclose(found.distance, [[1 / 3]])


def test_no_responses():
    found = compare_batch("syntax_trees", [], [], [], [])
    assert found.unchanged.shape == (0, 0, 0) and found.distance.shape == (0, 0)


def test_an_operator_of_your_own(monkeypatch):
    class Nothing:
        def compare(self, problem, response, references, corrected):
            count = len(corrected)
            flags = torch.ones(count, len(response.ids), dtype=torch.bool)
            return Comparison(flags, torch.zeros(count).double(), torch.ones(count).double())

    monkeypatch.setattr(operators, "_OPERATORS", dict(operators._OPERATORS))
    register_operator("nothing", Nothing)
    found = compare_batch("nothing", [0], [Candidate([1, 2])], [[]], [[Candidate([3])]])
    assert found.unchanged.all() and found.distance.item() == 0
    assert compare_batch(Nothing(), [0], [Candidate([1])], [[]], [[]]).unchanged.shape == (1, 0, 1)
    with pytest.raises(ValueError, match="name='nothing': allowed are new names"):
        register_operator("nothing", Nothing)
    with pytest.raises(ValueError, match="factory="):
        register_operator("other", 3)

    class Short(Nothing):
        def compare(self, *arguments):
            return super().compare(*arguments)._replace(unchanged=torch.ones(1, 1, dtype=torch.bool))

    with pytest.raises(
        ValueError, match=r"unchanged=torch.bool \[1, 1\] of response 0: allowed is bool \[1, 2\]"
    ):
        compare_batch(Short(), [0], [Candidate([1, 2])], [[]], [[Candidate([3])]])


def test_options_go_to_those_that_take_them(monkeypatch):
    """What takes ``insertions``, by name or in ``**``, is given it; what does not is made without."""
    monkeypatch.setattr(operators, "_OPERATORS", dict(operators._OPERATORS))
    register_operator("every", lambda **options: options)
    register_operator("none", lambda: "made")
    assert fitting_operator("every", insertions="both") == {"insertions": "both"}
    assert fitting_operator("none", insertions="next") == "made"
    with pytest.raises(ValueError, match="insertions='both': operator 'none' does not take it; allowed is"):
        fitting_operator("none", insertions="both")
    for name in ("compare_and_correct", "syntax_trees", "control_flow", "failing_tests"):
        assert fitting_operator(name, insertions="both").insertions == "both"
    with pytest.raises(ValueError, match="insertions='first': allowed are"):
        fitting_operator("syntax_trees", insertions="first")
    with pytest.raises(ValueError, match="did you mean 'syntax_trees'"):
        fitting_operator("syntax_tree", insertions="next")


def test_bad_input():
    with pytest.raises(ValueError, match="'syntax_tree': did you mean 'syntax_trees'") as error:
        get_operator("syntax_tree")
    assert all(name in str(error.value) for name in list_operators())
    with pytest.raises(ValueError, match="insertions='first': allowed are"):
        get_operator("syntax_trees", insertions="first")
    with pytest.raises(ValueError, match="'insertion'"):
        get_operator("syntax_trees", insertion="next")
    with pytest.raises(ValueError, match="'references': 0"):
        compare_batch("syntax_trees", [0], [RESPONSE], [], [[]])
    with pytest.raises(ValueError, match="response_mask is"):
        compare_batch("syntax_trees", [0], [RESPONSE], [[]], [[]], torch.ones(3))
