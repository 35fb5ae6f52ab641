import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlvr.counterfactual.alignment import (
    align_batch,
    edit_blocks,
    edit_distance,
    edit_distances,
    reference_distances,
    unchanged_tokens,
)
from rlvr.rewards import changed_token_mask, unchanged_share

NAN = float("nan")
ids = st.lists(st.integers(0, 3), max_size=12)  # few symbols: many alignments of equal cost


def table(a, b):
    """Edit distances of all prefixes, straight from the recursion."""
    cost = np.zeros((len(a) + 1, len(b) + 1), dtype=int)
    cost[:, 0], cost[0] = range(len(a) + 1), range(len(b) + 1)
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            substitution = cost[i - 1, j - 1] + (a[i - 1] != b[j - 1])
            cost[i, j] = min(cost[i - 1, j] + 1, cost[i, j - 1] + 1, substitution)
    return cost


def slow_pairs(a, b):
    """Kept pairs (i, j) by the rule of the module's docstring, one cell after the other."""
    head = 0
    while head < min(len(a), len(b)) and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < min(len(a), len(b)) - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    kept = [(k, k) for k in range(head)] + [(len(a) - 1 - k, len(b) - 1 - k) for k in range(tail)]
    x, y = a[head : len(a) - tail], b[head : len(b) - tail]
    cost, i, j = table(x, y), len(x), len(y)
    while i or j:
        if i and cost[i, j] == cost[i - 1, j] + 1:
            i -= 1
        elif i and j and x[i - 1] != y[j - 1] and cost[i, j] == cost[i - 1, j - 1] + 1:
            i, j = i - 1, j - 1
        elif j and cost[i, j] == cost[i, j - 1] + 1:
            j -= 1
        else:
            i, j = i - 1, j - 1
            kept.append((head + i, head + j))
    return sorted(kept)


def slow_unchanged(a, b, insertions):
    kept = slow_pairs(a, b)
    flags = [any(i == t for i, _ in kept) for t in range(len(a))]
    if insertions == "none":
        return flags
    out, partner = list(flags), dict(kept)
    for gap in range(len(a) + 1):  # between token gap-1 and token gap
        before, after = partner.get(gap - 1), partner.get(gap)
        if (gap > 0 and before is None) or (gap < len(a) and after is None):
            continue  # beside a changed token, to which the insertion belongs
        first = -1 if gap == 0 else before
        last = len(b) if gap == len(a) else after
        if last - first > 1:
            if gap < len(a):
                out[gap] = False
            if gap and (insertions == "both" or gap == len(a)):
                out[gap - 1] = False
    return out


@settings(max_examples=400, deadline=None)
@given(ids, ids, st.sampled_from(["next", "both", "none"]))
@example([], [], "next")
@example([], [1], "both")
@example([1], [], "next")
@example([0, 1], [1, 0], "next")
def test_unchanged_slow_loop(a, b, insertions):
    assert unchanged_tokens(a, b, insertions).tolist() == slow_unchanged(a, b, insertions)


@settings(max_examples=200, deadline=None)
@given(ids, ids)
def test_distance_slow_loop(a, b):
    expected = table(a, b)[-1, -1] / max(len(a), len(b), 1)
    assert edit_distance(a, b) == expected == edit_distance(b, a)
    assert 0 <= expected <= 1 and (expected == 0) == (a == b)


@settings(max_examples=200, deadline=None)
@given(ids, ids)
def test_blocks_cover_both_sides_and_cost_the_distance(a, b):
    blocks = edit_blocks(a, b)
    at, cost, kinds = (0, 0), 0, []
    for kind, start, stop, other_start, other_stop in blocks:
        assert (start, other_start) == at
        at = (stop, other_stop)
        assert (a[start:stop] == b[other_start:other_stop]) == (kind == "equal")
        sides = stop - start, other_stop - other_start
        assert {"insert": sides[0] == 0, "delete": sides[1] == 0}.get(kind, min(sides) > 0)
        cost += 0 if kind == "equal" else max(sides)
        kinds.append(kind == "equal")
    assert at == (len(a), len(b))
    assert all(x or y for x, y in pairwise(kinds))  # no two changed blocks in a row
    # a block of changes may cost more than its longer side, if it deletes in one place and inserts in another
    assert cost <= table(a, b)[-1, -1]
    kept = sum(stop - start for kind, start, stop, *_ in blocks if kind == "equal")
    assert kept == unchanged_tokens(a, b, "none").sum()


@pytest.mark.parametrize(
    ("response", "corrected", "following", "both", "none"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], "1111", "1111", "1111"),
        ([1, 2, 3, 4], [1, 9, 3, 4], "1011", "1011", "1011"),  # replaced
        ([1, 2, 3, 4], [1, 3, 4], "1011", "1011", "1011"),  # deleted
        ([1, 2, 3, 4], [1, 2, 9, 3, 4], "1101", "1001", "1111"),  # inserted in the middle
        ([1, 2, 3, 4], [9, 8, 1, 2, 3, 4], "0111", "0111", "1111"),  # at the start
        ([1, 2, 3, 4], [1, 2, 3, 4, 9], "1110", "1110", "1111"),  # at the end
        ([1, 2, 3, 4], [1, 9, 8, 7, 3, 4], "1011", "1011", "1011"),  # replaced by more: no neighbour
        ([1, 2, 3, 4], [9, 8, 7, 6, 5], "0000", "0000", "0000"),
        ([1, 2, 3, 4], [], "0000", "0000", "0000"),
        ([1], [9, 1, 9], "0", "0", "1"),
        ([], [1], "", "", ""),
    ],
)
def test_unchanged_typed_in(response, corrected, following, both, none):
    for insertions, expected in (("next", following), ("both", both), ("none", none)):
        found = unchanged_tokens(response, corrected, insertions)
        assert "".join(str(int(flag)) for flag in found) == expected, insertions
        assert found.dtype == bool and found.shape == (len(response),)


def test_distance_typed_in():
    assert edit_distance([1, 2, 3, 4], [1, 9, 3, 4]) == 0.25
    assert edit_distance([1, 2, 3, 4], [1, 2, 3, 4, 5]) == 0.2
    assert edit_distance([1, 2], [3, 4, 5]) == 1 and edit_distance([], [1]) == 1
    assert edit_distance([], []) == 0


def test_alignments_of_equal_cost_may_keep_unequally_many():
    # two substitutions keep nothing, a deletion and an insertion keep one token; which one, the rule says
    assert edit_distance([1, 2], [2, 1]) == 1
    assert unchanged_tokens([1, 2], [2, 1], "none").tolist() == [True, False]


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_kinds_of_ids(kind):
    # around the surrogates, at the last character, and beyond all characters
    for offset in (0, 0xD7FE, 0x10F7FC, 0x10FFFD, 2**32 - 10):
        a, b = [offset + k for k in (0, 1, 2, 3)], [offset + k for k in (0, 2, 2, 3, 4)]
        assert unchanged_tokens(kind(a), kind(b)).tolist() == [True, False, True, False]
        assert edit_distance(kind(a), kind(b)) == 0.4


@settings(max_examples=100, deadline=None)
@given(ids, ids, st.permutations([7, 0xD800, 0x10F800, 2**32 - 1]))
def test_names_of_ids_do_not_matter(a, b, names):
    x, y = [names[t] for t in a], [names[t] for t in b]
    assert edit_blocks(x, y) == edit_blocks(a, b)
    assert edit_distance(x, y) == edit_distance(a, b)


def long_pair(seed, symbols, length=6000, edits=40):
    rng = np.random.default_rng(seed)
    a = rng.integers(0, symbols, length).tolist()
    b = list(a)
    for _ in range(edits):
        at = int(rng.integers(len(b)))
        b[at : at + int(rng.integers(5))] = rng.integers(0, symbols, int(rng.integers(5))).tolist()
    return a, b


@pytest.mark.parametrize(("symbols", "edits"), [(3, 400), (3, 10), (50000, 400), (50000, 10), (2, 4000)])
def test_long_pairs_cost_what_the_distance_says(symbols, edits):
    # pairs that rapidfuzz divides: an alignment's cost is checked against its distance, found another way
    a, b = long_pair(1, symbols, edits=edits)
    cost, other = 0, 0
    for kind, start, stop, other_start, other_stop in edit_blocks(a, b):
        other += kind == "equal" and a[start:stop] != b[other_start:other_stop]
        cost += 0 if kind == "equal" else max(stop - start, other_stop - other_start)
    exact = one_row(np.array(a), np.array(b))
    assert other == 0
    assert edit_distance(a, b) == exact / max(len(a), len(b))
    assert align_batch([a], [[b]]).distance.item() == exact / max(len(a), len(b))  # counts edits
    assert cost <= exact


def one_row(a, b):
    """Edit distance by the recursion, one row at a time: row[j] = j + min over j' <= j of (best[j'] - j')."""
    row = np.arange(len(b) + 1)
    for i, token in enumerate(a, 1):
        best = np.minimum(row + 1, np.concatenate([[i], row[:-1] + (b != token)]))
        best[0] = i
        row = np.minimum.accumulate(best - np.arange(len(b) + 1)) + np.arange(len(b) + 1)
    return row[-1]


def test_equal_in_another_process():
    code = (
        "import numpy as np, sys; sys.path.insert(0, 'tests/counterfactual')\n"
        "from rlvr.counterfactual.alignment import unchanged_tokens\n"
        "rng = np.random.default_rng(5); a = rng.integers(0, 4, 5000); b = rng.integers(0, 4, 5000)\n"
        "print(''.join(map(str, np.flatnonzero(unchanged_tokens(a, b)))))"
    )
    out = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(out) == 1 and len(out.pop()) > 1000


# --- batches ------------------------------------------------------------------------------------------

rows = st.lists(st.tuples(ids, st.lists(st.none() | ids, max_size=3)), max_size=4)


@settings(max_examples=100, deadline=None)
@given(rows, st.sampled_from(["next", "both", "none"]))
def test_batch_is_one_by_one(batch, insertions):
    responses, corrected = [row[0] for row in batch], [row[1] for row in batch]
    unchanged, distance = align_batch(responses, corrected, insertions)
    count = max((len(row) for row in corrected), default=0)
    width = max((len(row) for row in responses), default=0)
    assert unchanged.shape == (len(batch), count, width) and distance.shape == (len(batch), count)
    assert unchanged.dtype == torch.bool and distance.dtype == torch.float64
    for row, (response, found) in enumerate(batch):
        for c in range(count):
            correction = found[c] if c < len(found) else None
            if correction is None:
                assert not unchanged[row, c].any() and distance[row, c].isnan()
                continue
            expected = unchanged_tokens(response, correction, insertions).tolist()
            assert unchanged[row, c].tolist() == expected + [False] * (width - len(response))
            assert distance[row, c] == edit_distance(response, correction)
    torch.testing.assert_close(edit_distances(responses, corrected), distance, equal_nan=True)


def test_batch_follows_the_mask():
    mask = torch.tensor([[0, 0, 1, 1, 0, 1], [1, 1, 0, 0, 0, 0]])
    unchanged, distance = align_batch([[1, 2, 3], [4, 5]], [[[1, 9, 3]], [[4, 5]]], response_mask=mask)
    assert unchanged[:, 0].int().tolist() == [[0, 0, 1, 0, 0, 1], [1, 1, 0, 0, 0, 0]]
    assert distance.tolist() == [[1 / 3], [0.0]]
    torch.testing.assert_close(unchanged_share(unchanged, mask), torch.tensor([[2 / 3], [1.0]]))
    kept = changed_token_mask(unchanged[:, 0], torch.tensor([True, False]), mask)
    assert kept.int().tolist() == [[0, 0, 0, 1, 0, 0], [1, 1, 0, 0, 0, 0]]


def test_padding_and_order_change_nothing():
    responses = [[1, 2, 3, 4], [5, 6], [7]]
    corrected = [[[1, 3, 4], [9]], [[5, 9, 6], None], [[7], [7, 8]]]
    unchanged, distance = align_batch(responses, corrected)
    for order in ([2, 0, 1], [1, 2, 0]):
        moved, distances = align_batch([responses[k] for k in order], [corrected[k] for k in order])
        assert torch.equal(moved, unchanged[order])
        torch.testing.assert_close(distances, distance[order], equal_nan=True)
    swapped, _ = align_batch(responses, [row[::-1] for row in corrected])
    assert torch.equal(swapped, unchanged.flip(1))
    wide = torch.nn.functional.pad(torch.ones(3, 4), (2, 5))
    wide[1, 4:6] = wide[2, 3:6] = 0
    padded, _ = align_batch(responses, corrected, response_mask=wide)
    assert torch.equal(padded[..., 2:6], unchanged)
    assert not padded[..., :2].any() and not padded[..., 6:].any()


def test_nearest_reference():
    corrected = [[[1, 2, 3, 4], None, [9, 9]], [[1]], [[1, 2]]]
    references = [[[1, 2, 3, 5], [1, 2, 3, 4, 6]], [], [[3, 4]]]
    found = reference_distances(corrected, references)
    np.testing.assert_allclose(found, [[0.2, NAN, 1], [NAN] * 3, [1, NAN, NAN]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: unchanged_tokens([1, -1], [1]), "response holds -1: allowed are token ids"),
        (lambda: unchanged_tokens([1], [2**32]), r"corrected holds 4294967296: allowed are token ids"),
        (lambda: unchanged_tokens([1.0], [1]), "response holds 1.0"),
        (lambda: unchanged_tokens(["a"], [1]), "response holds 'a'"),
        (lambda: unchanged_tokens("text", [1]), "response='text'"),
        (lambda: unchanged_tokens(np.array([1, -100]), [1]), "response holds -100 to 1"),
        (lambda: unchanged_tokens(torch.tensor([[1]]), [1]), r"response=int64 \[1, 1\]"),
        (lambda: unchanged_tokens(torch.tensor([1.0], dtype=torch.bfloat16), [1]), "response=float32"),
        (lambda: unchanged_tokens([1], [1], "previous"), "insertions='previous': allowed are 'next'"),
        (lambda: edit_distance(None, [1]), "a=None"),
        (lambda: align_batch([[1]], []), "corrected has 0 rows: allowed is one list per row of responses, 1"),
        (lambda: align_batch([[1]], [None]), "corrected holds None"),
        (lambda: align_batch([[1]], [[[-1]]]), r"corrected\[0\]\[0\] holds -1"),
        (lambda: align_batch([[1, 2]], [[[1]]], response_mask=torch.ones(1, 1)), r"response_mask has \[1\]"),
        (lambda: align_batch([[1]], [[[1]]], response_mask=torch.ones(1)), "response_mask is"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
