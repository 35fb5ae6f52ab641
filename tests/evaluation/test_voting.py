"""majority@k: slow loops over all subsets, typed-in numbers, identities, and what an answer is."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rlvr.evaluation import avg_at_k, by_equivalence, majority_at_k, same_string, voting
from rlvr.evaluation.voting import is_exact, label_answers

NAN = float("nan")


def slow_majority(correct, answers, k):
    """Over all subsets of k decided samples; ties and classes judged in two ways count with their mean."""
    decided = [i for i, c in enumerate(correct) if c == c]
    accuracy = {
        a: np.mean([correct[i] for i in decided if answers[i] == a]) for a in {answers[i] for i in decided}
    }
    values = []
    for subset in itertools.combinations(decided, k):
        votes = Counter(answers[i] for i in subset if answers[i] is not None)
        most = max(votes.values(), default=0)
        winners = [a for a, n in votes.items() if n == most] or [None]
        values.append(np.mean([accuracy[a] for a in winners]))
    return np.mean(values)


@st.composite
def problems(draw):
    n = draw(st.integers(1, 8))
    answers = draw(st.lists(st.sampled_from(["7", "8", "9", None]), min_size=n, max_size=n))
    noise = draw(st.lists(st.sampled_from([0, 1, None, "right", "right"]), min_size=n, max_size=n))
    right = [float(a == "7") for a in answers]
    correct = [
        r if x == "right" else NAN if x is None else float(x) for r, x in zip(right, noise, strict=True)
    ]
    decided = sum(c == c for c in correct)
    return correct, answers, draw(st.integers(1, max(decided, 1)))


@settings(max_examples=150, deadline=None)
@given(problems())
def test_exact_against_all_subsets(case):
    correct, answers, k = case
    if all(c != c for c in correct):
        with pytest.raises(ValueError, match="exceeds"):
            majority_at_k([correct], [answers], k)
    else:
        assert is_exact([correct], [answers], k).all()
        found = majority_at_k([correct], [answers], k)[0]
        assert found == pytest.approx(slow_majority(correct, answers, k), abs=1e-12)


def test_typed_in():
    answers = [["7", "7", "8", "9"]] * 2
    correct = [[1, 1, 0, 0], [0, 0, 1, 0]]
    # of 4 triples two hold both sevens; the other two tie three ways
    np.testing.assert_allclose(majority_at_k(correct, answers, 3), [2 / 4 + 2 / 4 / 3, 2 / 4 / 3])
    np.testing.assert_allclose(majority_at_k(correct, answers, 4), [1, 0])
    np.testing.assert_allclose(majority_at_k([[1, 0]], [["7", "8"]], 2), [0.5])  # a tie is split


def test_a_minority_that_is_right_loses_by_voting():
    correct, answers = [[1] * 4 + [0] * 6], [["7"] * 4 + ["8"] * 6]
    assert avg_at_k(correct)[0] == 0.4 and majority_at_k(correct, answers, 10)[0] == 0
    scattered = [["7"] * 4 + list("abcdef")]
    assert majority_at_k(correct, scattered, 10)[0] == 1


@pytest.mark.parametrize("k", [1, 3, 5])
def test_one_vote_is_the_average_and_order_does_not_matter(k):
    rng = np.random.default_rng(0)
    answers = rng.choice(["7", "8", "9", None], (20, 9))
    correct = np.where(rng.random((20, 9)) < 0.2, NAN, rng.integers(0, 2, (20, 9)))
    correct = correct[(~np.isnan(correct)).sum(1) >= k]
    answers = answers[: len(correct)]
    found = majority_at_k(correct, answers, k)
    if k == 1:
        np.testing.assert_allclose(found, avg_at_k(correct), rtol=1e-12)
    rows, columns = rng.permutation(len(correct)), rng.permutation(9)
    again = majority_at_k(correct[rows][:, columns], answers[rows][:, columns], k)
    np.testing.assert_array_equal(again, found[rows])


def test_undecided_has_no_vote_and_no_answer_counts_among_the_k():
    # the undecided sevens neither help nor count
    assert majority_at_k([[1, 0, NAN, NAN]], [["7", "8", "7", "7"]], 2)[0] == 0.5
    with pytest.raises(ValueError, match="k=3 exceeds"):
        majority_at_k([[1, 0, NAN, NAN]], [["7", "8", "7", "7"]], 3)
    # two of three pairs hold the seven, the third pair says nothing and is wrong
    assert majority_at_k([[1, 0, 0]], [["7", None, NAN]], 2)[0] == pytest.approx(2 / 3)


def test_equivalence():
    correct, answers = [[1, 1, 0, 0]], [["0.5", "1/2", "3", "3"]]
    assert majority_at_k(correct, answers, 4)[0] == 0
    halves = by_equivalence(lambda a, b: {a, b} == {"0.5", "1/2"})
    assert majority_at_k(correct, answers, 4, group=halves)[0] == 0.5
    assert same_string([" 7 ", "7"]) == ["7", "7"]
    assert halves(["1/2", "3", "0.5"]) == halves(["0.5", "3", "1/2"]) == ["0.5", "3", "0.5"]
    labels = label_answers([["0.5", None, "1/2", "3"]], halves)
    assert labels.tolist() == [["0", None, "0", "1"]]
    with pytest.raises(ValueError, match="1 labels for 4 answers"):
        majority_at_k(correct, answers, 4, group=lambda answers: ["x"])


def test_equivalence_by_the_verifier_of_mathematics():
    math = pytest.importorskip("rlvr.verifiers.math", reason="the verifier of mathematics is not installed")
    same = by_equivalence(lambda a, b: math.verify_math(rf"\boxed{{{a}}}", b, fallback=False).correct)
    correct, answers = [[1, 1, 0, 0, 0]], [["0.5", r"\frac{1}{2}", "3", "4", "two"]]
    assert majority_at_k(correct, answers, 5)[0] == pytest.approx(0.4)
    assert majority_at_k(correct, answers, 5, group=same)[0] == 1


def test_answers_of_mathematics_in_any_writing():
    same = pytest.importorskip("rlvr.verifiers.equality").same_answers

    def classes(*answers):
        labels = same(list(answers))
        return sorted(
            {tuple(sorted(a for a, x in zip(answers, labels, strict=True) if x == y)) for y in labels}
        )

    halves = (r"$\frac{1}{2}$", "0.50", "1/2", "50%", r"\frac12", "x = 0.5")
    assert classes(*halves, "0.51", "50") == sorted([tuple(sorted(halves)), ("0.51",), ("50",)])
    assert classes("1,000", "1000", "1 000") == [("1 000", "1,000", "1000")]
    assert classes(r"\sqrt{12}", r"2\sqrt3", "3.46") == [(r"2\sqrt3", r"\sqrt{12}"), ("3.46",)]
    assert classes("3, 4", "4,3") == [("3, 4", "4,3")] and len(classes("(3,4)", "(4,3)")) == 2
    assert len(classes("1", "1, 1")) == 2  # the one repeats an element of the other, not the other way round
    assert classes("Yes.", r"\text{yes}", "no") == [("Yes.", r"\text{yes}"), ("no",)]
    assert classes("(C)", "C", "c") == [("(C)", "C"), ("c",)]
    assert classes("x^2 + 2x + 1", "(x+1)^2", "(x+2)^2") == [("(x+1)^2", "x^2 + 2x + 1"), ("(x+2)^2",)]
    # what cannot be read, or not be settled, is equal to itself alone
    odd = [r"\frac{1", "???", "9^9^9^9", "7" * 5000, r"\int_0^1 x dx", "[" * 5000, ""]
    assert len(set(same(odd))) == len(odd)
    rng = np.random.default_rng(0)
    for _ in range(5):
        mixed = [str(x) for x in rng.permutation([*halves, "3", "3.0", "4"])]
        labels = dict(zip(mixed, same(mixed), strict=True))
        assert labels["3"] == labels["3.0"] != labels["4"] and len(set(labels.values())) == 3
        assert labels == dict(zip(sorted(mixed), same(sorted(mixed)), strict=True))


def test_drawn_agrees_with_exact_and_repeats(monkeypatch):
    rng = np.random.default_rng(3)
    answers = rng.choice(["7", "8", "9", "10", None], (12, 40), p=[0.4, 0.3, 0.1, 0.1, 0.1])
    correct = (answers == "7").astype(float)
    exact = majority_at_k(correct, answers, 16)
    monkeypatch.setattr(voting, "MAX_WORK", -1)
    assert not is_exact(correct, answers, 16).any()
    drawn = majority_at_k(correct, answers, 16)
    assert 0 < np.abs(drawn - exact).max() < 4 * 0.5 / np.sqrt(voting.DRAWS)
    order = rng.permutation(12)
    np.testing.assert_array_equal(majority_at_k(correct[order], answers[order], 16), drawn[order])
    assert not np.array_equal(majority_at_k(correct, answers, 16, seed=1), drawn)
    silent = np.full((1, 3), None)
    assert majority_at_k(np.zeros((1, 3)), silent, 2)[0] == 0
    assert majority_at_k(np.ones((1, 3)), silent, 2)[0] == 1  # the grader's word, whatever was extracted


def test_large_counts_neither_overflow_nor_cancel():
    # 5000 samples: C(5000, 1000) is far beyond float64; with two answers the draw is hypergeometric
    correct = np.repeat([1.0, 0.0], [2600, 2400])[None]
    answers = np.where(correct == 1, "7", "8")
    k = 100
    wins = stats.hypergeom(5000, 2600, k)
    assert majority_at_k(correct, answers, k)[0] == pytest.approx(
        wins.sf(k // 2) + 0.5 * wins.pmf(k // 2), rel=1e-9
    )


@pytest.mark.parametrize(
    ("correct", "answers", "k", "name"),
    [
        ([[1, 0]], [["7"]], 1, "answers has shape"),
        ([[1, 0]], [["7", "8"]], 0, "k=0"),
        ([[1, 0]], [["7", "8"]], 1.5, "k=1.5"),
        ([[1, 0]], [["7", "8"]], 3, "k=3 exceeds"),
        ([[0.5]], [["7"]], 1, "correct holds"),
    ],
)
def test_bad_input(correct, answers, k, name):
    with pytest.raises(ValueError, match=name):
        majority_at_k(correct, answers, k)
