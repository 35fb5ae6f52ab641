from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from rlvr.counterfactual.references import choose_references
from rlvr.problems.base import bit_stream

NAN = float("nan")
verdict = st.sampled_from([0.0, 1.0, NAN])


def batch(groups, size):
    row = st.lists(verdict, min_size=size, max_size=size)
    return st.lists(row, min_size=groups, max_size=groups).map(lambda rows: (rows, (groups, size)))


accuracies = st.tuples(st.integers(0, 3), st.integers(0, 6)).flatmap(lambda shape: batch(*shape))


def pool_of(group, i):
    """What response ``i`` of a group may be compared with, straight from the text."""
    if group[i] != 0:
        return set()
    correct = {j for j, r in enumerate(group) if r == 1}
    return correct or {j for j, r in enumerate(group) if r == 0 and j != i}


@settings(max_examples=300, deadline=None)
@given(accuracies, st.integers(0, 8), st.integers(0, 2**64 - 1))
def test_who_may_be_chosen(drawn, count, seed):
    accuracy, shape = drawn
    tensor = torch.tensor(accuracy).reshape(shape)
    found = choose_references(tensor, count, seed)
    assert found.shape == (*tensor.shape, count) and found.dtype == torch.int64
    for group, chosen in zip(accuracy, found.tolist(), strict=True):
        for i, references in enumerate(chosen):
            pool = pool_of(group, i)
            kept = references[: min(count, len(pool))]
            assert references[len(kept) :] == [-1] * (count - len(kept))
            assert len(set(kept)) == len(kept) and set(kept) <= pool
            if count >= len(pool):
                assert set(kept) == pool


@pytest.mark.parametrize(
    ("group", "pool"),
    [([0.0, 1, 1, NAN, 0, 1], [1, 2, 5]), ([0.0, 0, NAN, 0, 0], [1, 3, 4])],
    ids=["right ones", "other wrong ones"],
)
def test_uniform(group, pool):
    found = choose_references(torch.tensor([group] * 3000), 1, 11)[:, 0, 0]
    counts = Counter(found.tolist())
    assert set(counts) == set(pool)
    assert chisquare([counts[j] for j in pool]).pvalue > 1e-3


def test_pairs_are_uniform_too():
    found = choose_references(torch.tensor([[0.0, 1, 1, 1]] * 6000), 2, 4)[:, 0]
    counts = Counter(map(tuple, found.tolist()))
    assert len(counts) == 6 and chisquare(list(counts.values())).pvalue > 1e-3


def test_seeds():
    accuracy = torch.tensor([[0.0, 1, 1, 1, 1, 1, 1, 1]] * 40)
    first = choose_references(accuracy, 3, (7, 1))
    assert torch.equal(first, choose_references(accuracy, 3, (7, 1)))
    assert not torch.equal(first, choose_references(accuracy, 3, (7, 2)))
    # the first references are the same however many are asked for
    assert torch.equal(first[..., :1], choose_references(accuracy, 1, (7, 1)))
    assert torch.equal(choose_references(accuracy, 1, 5), choose_references(accuracy, 1, (5,)))


def test_a_group_depends_on_itself_alone():
    accuracy = torch.tensor([[0.0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1]])
    before = choose_references(accuracy, 2, 3)
    assert torch.equal(choose_references(accuracy[:2], 2, 3), before[:2])
    accuracy[1] = torch.tensor([1, 0, NAN, 1])
    after = choose_references(accuracy, 2, 3)
    assert torch.equal(after[[0, 2]], before[[0, 2]]) and not torch.equal(after[1], before[1])


def test_draws_are_not_those_of_the_problems():
    alike = 0
    for seed in range(50):
        raw = bit_stream("train", seed).random_raw(25).reshape(5, 5)
        chosen = choose_references(torch.tensor([[0.0, 1, 1, 1, 1]]), 1, seed)[0, 0, 0]
        alike += int(chosen) == 1 + int(raw[0, 1:].argmin())
    assert alike < 25  # a quarter of them by chance


def test_typed_in():
    none = torch.full((2,), -1)
    # nobody right, one wrong response: nothing to compare with
    assert torch.equal(choose_references(torch.tensor([[0.0, NAN]]), 2, 0)[0, 0], none)
    # all right: nothing to correct
    assert (choose_references(torch.ones(2, 4), 3, 0) == -1).all()
    # two wrong ones have each other, whatever the seed
    assert choose_references(torch.zeros(1, 2), 1, 9).tolist() == [[[1], [0]]]
    assert choose_references(torch.zeros(1, 2), 0, 9).shape == (1, 2, 0)  # K = 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2), 1, 0), r"accuracy=torch.float32 \[2\]: allowed is a tensor \[groups, G\]"),
        (([[0.0]], 1, 0), "accuracy="),
        ((torch.tensor([[0.5, 0]]), 1, 0), "accuracy holds 0.5"),
        ((torch.zeros(1, 2), -1, 0), "count=-1: allowed are whole numbers >= 0"),
        ((torch.zeros(1, 2), 1.0, 0), "count=1.0"),
        ((torch.zeros(1, 2), 1, -1), "seed="),
        ((torch.zeros(1, 2), 1, 0.5), "seed=0.5"),
        ((torch.zeros(1, 2), 1, ()), "seed="),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        choose_references(*arguments)
