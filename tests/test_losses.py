import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.losses import (
    AGGREGATIONS,
    aggregate,
    aggregation_scale,
    attach,
    clipped_surrogate,
    masked_policy_gradient,
)


def slow_aggregate(loss, mask, mode, scale_factor):
    rows = [[x for x, m in zip(*pair, strict=True) if m] for pair in zip(loss, mask, strict=True)]
    rows = [row for row in rows if row]
    tokens = sum(map(len, rows))
    if not rows:
        return 0.0
    return {
        "token-mean": lambda: sum(map(sum, rows)) / tokens,
        "token-sum": lambda: sum(map(sum, rows)),
        "seq-mean-token-sum": lambda: sum(map(sum, rows)) / len(rows),
        "seq-mean-token-mean": lambda: sum(sum(r) / len(r) for r in rows) / len(rows),
        "seq-mean-token-sum-norm": lambda: sum(map(sum, rows)) / len(rows) / scale_factor,
    }[mode]()


def random_batch(rows=7, width=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    loss = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, width, generator=generator) < 0.6
    mask[2] = False
    return loss, mask


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("scale_factor", [None, 11])
def test_slow_loop(mode, scale_factor):
    loss, mask = random_batch()
    dirty = loss.masked_fill(~mask, float("nan"))
    out = aggregate(dirty, mask, mode, loss_scale_factor=scale_factor)
    assert out.item() == pytest.approx(slow_aggregate(loss.tolist(), mask.tolist(), mode, scale_factor or 6))


@pytest.mark.parametrize("mode", AGGREGATIONS)
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=7, max_size=7))
def test_micro_batches_add_up(mode, assignment):
    loss, mask = random_batch()
    counts = {"batch_num_tokens": mask.sum(), "global_batch_size": int(mask.any(-1).sum())}
    whole = aggregate(loss, mask, mode)
    parts = torch.tensor(assignment)
    split = sum(aggregate(loss[parts == p], mask[parts == p], mode, **counts) for p in range(4))
    assert split.item() == pytest.approx(whole.item(), rel=1e-12)
    ranks = (
        sum(aggregate(loss[parts == p], mask[parts == p], mode, dp_size=4, **counts) for p in range(4)) / 4
    )
    assert ranks.item() == pytest.approx(whole.item(), rel=1e-12)


def test_mean_of_micro_means_is_not_the_mean():
    loss = torch.zeros(2, 9)
    loss[0, 0] = 1.0
    mask = torch.zeros(2, 9)
    mask[0, 0], mask[1] = 1, 1
    assert aggregate(loss, mask, "token-mean").item() == pytest.approx(0.1)
    assert aggregate(loss, mask, "seq-mean-token-mean").item() == pytest.approx(0.5)


def test_lengths_2_and_6_with_opposite_advantages():
    # ratio 1: token-mean weighs by length, sequence-mean does not
    loss = torch.tensor([[-1.0] * 6, [1.0] * 6])
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1] * 6])
    assert aggregate(loss, mask, "token-mean").item() == pytest.approx(0.5)
    assert aggregate(loss, mask, "seq-mean-token-mean").item() == pytest.approx(0, abs=1e-7)


def test_norm_mode_does_not_follow_the_micro_batch_size():
    # a loss sum / horizon without the division by sequences is proportional to the number of rows
    loss, mask = torch.ones(8, 4), torch.ones(8, 4)
    one_by_eight = aggregate(loss, mask, "seq-mean-token-sum-norm", global_batch_size=8)
    two_by_four = sum(
        aggregate(x, mask[:4], "seq-mean-token-sum-norm", global_batch_size=8) for x in loss.chunk(2)
    )
    assert one_by_eight.item() == two_by_four.item() == 1.0
    assert aggregate(loss[:4], mask[:4], "seq-mean-token-sum-norm").item() == 1.0


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("junk", [0.0, float("nan"), float("inf")])
def test_nothing_valid_is_exactly_zero(mode, junk):
    loss = torch.full((3, 4), junk, requires_grad=True)
    out = aggregate(loss, torch.zeros(3, 4), mode)
    out.backward()
    assert out.item() == 0.0 and torch.equal(loss.grad, torch.zeros(3, 4))


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_fully_masked_rows_and_padding_columns_are_not_counted(mode):
    loss, mask = random_batch()
    scale = {"loss_scale_factor": 6}
    kept = mask.any(-1)
    whole = aggregate(loss, mask, mode, **scale)
    torch.testing.assert_close(aggregate(loss[kept], mask[kept], mode, **scale), whole)
    wide, wide_mask = torch.nn.functional.pad(loss, (2, 3)), torch.nn.functional.pad(mask, (2, 3))
    torch.testing.assert_close(aggregate(wide, wide_mask, mode, **scale), whole)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"loss_agg_mode": "mean"}, "loss_agg_mode='mean'"),
        ({"batch_num_tokens": 0}, "batch_num_tokens=0"),
        ({"global_batch_size": -1}, "global_batch_size=-1"),
        ({"loss_scale_factor": 0.0}, "loss_scale_factor=0.0"),
        ({"dp_size": 0}, "dp_size=0"),
    ],
)
def test_bad_counts(change, name):
    with pytest.raises(ValueError, match=name):
        aggregation_scale(torch.ones(2, 2), **{"loss_agg_mode": "token-mean", **change})


def autograd_surrogate(log_prob, old, advantages, low, high, dual_clip):
    """The textbook formula, differentiated by autograd."""
    ratio = (log_prob - old).clamp(-20, 20).exp()
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)
    return loss


@pytest.mark.parametrize("dual_clip", [None, 3.0])
@pytest.mark.parametrize("per_row", [True, False])
@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0])
def test_clipped_surrogate_is_the_textbook_formula(dual_clip, per_row, scale):
    generator = torch.Generator().manual_seed(3)
    new = (scale * torch.randn(40, 25, generator=generator, dtype=torch.float64)).requires_grad_()
    old = scale * torch.randn(40, 25, generator=generator, dtype=torch.float64)
    advantages = torch.randn(40, 1 if per_row else 25, generator=generator, dtype=torch.float64)
    textbook = autograd_surrogate(new, old, advantages, 0.2, 0.28, dual_clip)
    (expected,) = torch.autograd.grad(textbook.sum(), new)
    loss, ratio, active = clipped_surrogate(
        new.detach() - old, advantages, torch.ones(40, 25), 0.2, 0.28, dual_clip
    )
    torch.testing.assert_close(loss.value, textbook.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(loss.slope, expected, rtol=1e-12, atol=0)
    assert torch.equal(active, expected != 0)
    assert 0 < active.double().mean() < 1
    torch.testing.assert_close(ratio, (new.detach() - old).clamp(-20, 20).exp())


def test_dual_clip_bounds_a_huge_ratio():
    # log ratio 10 with A = -1: 22026 without the dual clip, 3 with it and no gradient
    log_ratio, mask = torch.tensor([[10.0]]), torch.ones(1, 1)
    loss, _, _ = clipped_surrogate(log_ratio, torch.tensor([-1.0])[:, None], mask)
    assert loss.value.item() == 3.0 and loss.slope.item() == 0.0
    loss, _, _ = clipped_surrogate(log_ratio, torch.tensor([-1.0])[:, None], mask, dual_clip=None)
    assert loss.value.item() == pytest.approx(math.exp(10), rel=1e-6)


def test_masked_policy_gradient_typed_in():
    log_prob = torch.tensor([[-1.0, -2.0, -3.0]])
    weight, keep = torch.tensor([[2.0, 1.0, 5.0]]), torch.tensor([[True, True, False]])
    loss = masked_policy_gradient(log_prob, weight, torch.tensor([[0.5]]), keep)
    np.testing.assert_array_equal(loss.value, [[1.0, 1.0, 0.0]])
    np.testing.assert_array_equal(loss.slope, [[-1.0, -0.5, 0.0]])


def test_attach():
    log_prob = torch.zeros(1, 2, dtype=torch.bfloat16, requires_grad=True)
    slope = torch.tensor([[2.0, -3.0]])
    out = 2 * attach(log_prob, torch.tensor(7.0), slope)
    assert out.item() == 14.0
    (grad,) = torch.autograd.grad(out, log_prob)
    assert grad.dtype == torch.bfloat16 and grad.tolist() == [[4.0, -6.0]]
    assert not attach(log_prob.detach(), torch.tensor(7.0), slope).requires_grad
