import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.counterfactual.rewrite import adaptive_threshold, flagged_share, full_rewrites
from rlvr.rewards import accepted_corrections

NAN = float("nan")
unit = st.floats(0, 1) | st.just(NAN) | st.sampled_from([0.0, 0.6, 1.0])


def tensor(rows, dtype=torch.float64):
    return torch.tensor(rows, dtype=dtype)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 3).flatmap(
        lambda width: st.lists(
            st.lists(st.tuples(unit, unit), min_size=width, max_size=width), min_size=1, max_size=5
        )
    ),
    st.floats(0, 1) | st.sampled_from([0.6, "adaptive"]),
)
def test_slow_loop(pairs, threshold):
    original = tensor([[a for a, _ in row] for row in pairs])
    reference = tensor([[b for _, b in row] for row in pairs])
    alpha = threshold
    if threshold == "adaptive":
        there = [a for row in pairs for a, _ in row if not math.isnan(a)]
        mean = math.fsum(there) / max(len(there), 1)
        spread = math.sqrt(math.fsum((a - mean) ** 2 for a in there) / max(len(there), 1))
        alpha = mean + 2 * spread if there else NAN
        np.testing.assert_allclose(adaptive_threshold(original), alpha, rtol=1e-12)
        alpha = adaptive_threshold(original)
    expected = [[a > alpha and (math.isnan(b) or a > b) for a, b in row] for row in pairs]
    found = full_rewrites(original, reference, threshold)
    assert found.dtype == torch.bool and found.tolist() == expected
    there = [flag for row, flags in zip(pairs, expected, strict=True)
             for (a, _), flag in zip(row, flags, strict=True) if not math.isnan(a)]  # fmt: skip
    np.testing.assert_allclose(flagged_share(found, original), sum(there) / len(there) if there else NAN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_typed_in(dtype):
    original = tensor([[0.7, 0.7, 0.7, 0.6, 0.5, NAN, 0.7]], dtype)
    reference = tensor([[0.2, 0.7, 0.9, 0.0, 0.0, 0.0, NAN]], dtype)
    # nearer to the reference; as near; nearer to the original; not above alpha, twice; missing; K = 1
    assert full_rewrites(original, reference).tolist() == [[True, False, False, False, False, False, True]]
    assert full_rewrites(original, reference, 1.0).sum() == 0
    assert full_rewrites(original, reference, 0.0).tolist() == [[True, False, False, True, True, False, True]]
    assert flagged_share(full_rewrites(original, reference), original) == pytest.approx(2 / 6)


def test_shares_of_table_5_fall_with_the_threshold():
    g = torch.Generator().manual_seed(0)
    original, reference = torch.rand(2, 100, 4, generator=g, dtype=torch.float64)
    shares = [
        flagged_share(full_rewrites(original, reference, alpha), original)
        for alpha in (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8)
    ]
    assert all(a >= b for a, b in pairwise(shares)) and shares[0] > shares[-1] > 0


def test_a_rewrite_earns_nothing():
    flags = full_rewrites(tensor([[0.9, 0.1]]), tensor([[0.1, 0.9]]))
    assert accepted_corrections(torch.zeros(1), torch.ones(1, 2), flags).tolist() == [[False, True]]


# --- the adaptive threshold ---------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_chebyshev_and_cantelli_hold_in_every_batch(distances):
    alpha = adaptive_threshold(tensor([distances]))
    values = np.array(distances)
    spread = (alpha - values.mean()) / 2
    inside = np.abs(values - values.mean()) <= 2 * spread + 1e-12
    assert inside.mean() >= 0.75  # as the text says
    assert (values > alpha + 1e-12).mean() <= 0.2  # so it can flag no more than a fifth of any batch


def test_many_rewrites_hide_themselves():
    # one correction in four is a new solution altogether, and none is found; alone it is
    original = tensor([[1.0] + [0.1] * 3] * 8)
    none = torch.zeros_like(original)
    assert adaptive_threshold(original) == pytest.approx(0.325 + 2 * 0.9 * math.sqrt(3) / 4)
    assert not full_rewrites(original, none, "adaptive").any() and full_rewrites(original, none).sum() == 8
    assert full_rewrites(tensor([[1.0] + [0.1] * 31]), torch.zeros(1, 32).double(), "adaptive").sum() == 1


def test_harmless_corrections_are_flagged_where_others_are_smaller():
    original = tensor([[0.12] + [0.01] * 31])
    assert full_rewrites(original, torch.zeros_like(original), "adaptive").sum() == 1
    assert full_rewrites(original, torch.zeros_like(original)).sum() == 0


def test_order_and_missing_corrections_change_nothing():
    g = torch.Generator().manual_seed(1)
    original, reference = torch.rand(2, 6, 3, generator=g, dtype=torch.float64)
    for threshold in (0.6, "adaptive"):
        flags = full_rewrites(original, reference, threshold)
        order = torch.randperm(6, generator=g)
        assert torch.equal(full_rewrites(original[order], reference[order], threshold), flags[order])
        wide = torch.full((6, 2), NAN, dtype=torch.float64)
        padded = full_rewrites(torch.cat([original, wide], 1), torch.cat([reference, wide], 1), threshold)
        assert torch.equal(padded[:, :3], flags) and not padded[:, 3:].any()


def test_no_correction():
    none = torch.full((2, 2), NAN)
    assert math.isnan(adaptive_threshold(none)) and not full_rewrites(none, none, "adaptive").any()
    assert math.isnan(flagged_share(full_rewrites(none, none), none))
    assert full_rewrites(torch.zeros(0, 0), torch.zeros(0, 0), "adaptive").shape == (0, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: full_rewrites(torch.ones(2), torch.ones(2)), "distance_to_original is"),
        (lambda: full_rewrites(torch.ones(1, 2), torch.ones(1, 3)), "distance_to_reference is"),
        (lambda: full_rewrites(torch.full((1, 1), 1.5), torch.ones(1, 1)), "distance_to_original holds 1.5"),
        (lambda: full_rewrites(torch.ones(1, 1), -torch.ones(1, 1)), "distance_to_reference holds -1.0"),
        (lambda: full_rewrites(torch.ones(1, 1), torch.ones(1, 1), 60), "threshold=60: allowed are 0 <="),
        (lambda: full_rewrites(torch.ones(1, 1), torch.ones(1, 1), "auto"), "threshold='auto'"),
        (lambda: full_rewrites(torch.ones(1, 1), torch.ones(1, 1), NAN), "threshold=nan"),
        (lambda: adaptive_threshold([[0.5]]), "distance_to_original is"),
        (lambda: flagged_share(torch.ones(1, 2), torch.ones(1, 2)), "rewrite="),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
