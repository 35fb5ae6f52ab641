"""What MPO is in its limits, on log-probs that real modules gave."""

from __future__ import annotations

import pytest
import torch
from mtp_models import batch, sequences, stirred, tiny

from rlvr import objectives
from rlvr.mtp import mtp_outputs
from rlvr.ratios import block_log_ratio, block_mask, sequence_log_ratio

BLOCKS = 4


@pytest.fixture(scope="module")
def numbers():
    """(new, old, advantages, mask) of two policies with modules of their own, in float64."""
    given = batch(sequences())
    outs = []
    for seed in (1, 2):
        model = tiny(dtype=torch.float64)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
                parameter.add_(0.01 * noise)
            outs.append(mtp_outputs(model, stirred(model, BLOCKS, seed=seed), *given))
    advantages = torch.randn(given[2].shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return outs[0], outs[1], advantages, given[2]


def loss_of(name, numbers, mtp=True, drop=None, **parameters):
    """(loss, gradient by log_prob, metrics); ``drop`` modules from this one on."""
    new, old, advantages, mask = numbers
    leaf = new.log_prob.clone().requires_grad_()
    if mtp:
        parameters["mtp_log_prob"] = new.mtp_log_prob[..., :drop]
        parameters["old_mtp_log_prob"] = old.mtp_log_prob[..., :drop]
    loss, metrics = objectives.get(name)(leaf, old.log_prob, advantages, mask, **parameters)
    return loss.detach(), torch.autograd.grad(loss, leaf)[0], metrics


@pytest.mark.parametrize(("name", "limit"), [("mpo", "ppo"), ("mpo_grpo", "grpo")])
def test_a_block_of_one_token_is_the_token_s_objective(name, limit, numbers):
    for given in (dict(mtp=False), dict(drop=0), dict(mtp_weight=0.0)):
        loss, gradient, metrics = loss_of(name, numbers, **given)
        expected, wanted, of_limit = loss_of(limit, numbers, mtp=False)
        assert torch.equal(loss, expected) and torch.equal(gradient, wanted), given
        assert all(torch.equal(metrics[key], value) for key, value in of_limit.items())
    assert not torch.equal(loss_of(name, numbers)[0], expected), "with modules it is another"


def test_uniform_weights_over_the_whole_response_are_gspo_s_ratio_at_the_first_token():
    """K = T modules that see what the backbone sees: l_1^(k) = l_k."""
    generator = torch.Generator().manual_seed(0)
    logs, width = 0.3 * torch.randn(4, 6, generator=generator, dtype=torch.float64), 6
    mask = torch.ones(4, width)
    ahead = torch.zeros(4, width, width - 1, dtype=torch.float64)
    for t in range(width):
        for k in range(2, width - t + 1):
            ahead[:, t, k - 2] = logs[:, t + k - 1]
    block = block_log_ratio(logs, ahead, [1 / width] * width)
    sequence, _ = sequence_log_ratio(logs, mask)
    torch.testing.assert_close(block[:, :1], sequence)
    assert not torch.isclose(block[:, 1], sequence[:, 0]).any()
    # S = (K-1)/K without decay are these weights, here through the objective itself
    old = -1 - torch.rand(4, width, generator=generator, dtype=torch.float64)
    shift = torch.where(ahead == 0, 0.0, -2.0)
    _, metrics = objectives.mpo(
        (old + logs)[:, :1].contiguous(), old[:, :1].contiguous(), torch.ones(4), mask[:, :1],
        mtp_weight=(width - 1) / width, decay=1.0, mtp_log_prob=None, old_mtp_log_prob=None,
    )  # fmt: skip
    assert metrics["ratio_mean"].item() == pytest.approx(float(logs[:, 0].exp().mean()))
    _, metrics = objectives.mpo(
        old + logs, old, torch.ones(4, dtype=torch.float64), mask, mtp_weight=(width - 1) / width, decay=1.0,
        mtp_log_prob=shift + ahead, old_mtp_log_prob=shift,
    )  # fmt: skip
    assert metrics["ratio_mean"].item() == pytest.approx(float(block.exp().mean()))


def test_positions_past_the_end_contribute_nothing(numbers):
    new, old, advantages, mask = numbers
    outside = ~block_mask(mask, BLOCKS)
    assert outside.any() and not new.mtp_log_prob[outside].any()
    dirty = [torch.where(outside, torch.nan, x.mtp_log_prob) for x in (new, old)]
    leaf = new.log_prob.clone().requires_grad_()
    loss, _ = objectives.mpo(
        leaf, old.log_prob, advantages, mask, mtp_log_prob=dirty[0], old_mtp_log_prob=dirty[1]
    )
    assert torch.equal(loss.detach(), loss_of("mpo", numbers)[0])
    # the last token of a response has its own ratio alone, to the power b_1
    loss, _ = objectives.mpo(
        new.log_prob, old.log_prob, torch.ones_like(advantages), mask, clip_low=0.999, clip_high=0.999,
        dual_clip=None, mtp_log_prob=new.mtp_log_prob, old_mtp_log_prob=old.mtp_log_prob, reduction="none",
    )  # fmt: skip
    for i, length in enumerate(mask.sum(-1).long().tolist()):
        log_ratio = (new.log_prob - old.log_prob)[i, length - 1]
        assert abs(log_ratio) < 0.6, "not clipped"
        assert -float(loss[i, length - 1]) == pytest.approx(float((0.8 * log_ratio).exp()))


def test_the_gradient_through_the_modules_by_finite_differences(numbers):
    """mtp_gradient="full": the loss's slope by every entry, clipped ones 0; "stop": none."""
    new, old, advantages, mask = numbers
    live = new.mtp_log_prob.clone().requires_grad_()

    def loss(mtp_log_prob, how="full"):
        return objectives.mpo(
            new.log_prob, old.log_prob, advantages, mask, mtp_log_prob=mtp_log_prob,
            old_mtp_log_prob=old.mtp_log_prob, mtp_gradient=how,
        )[0]  # fmt: skip

    (gradient,) = torch.autograd.grad(loss(live), live)
    slopes = torch.zeros_like(gradient)
    for index in range(slopes.numel()):
        step = torch.zeros(slopes.numel(), dtype=torch.float64)
        step[index] = 1e-6
        step = step.view_as(slopes)
        slopes.view(-1)[index] = (loss(new.mtp_log_prob + step) - loss(new.mtp_log_prob - step)) / 2e-6
    torch.testing.assert_close(gradient, slopes, atol=1e-8, rtol=1e-5)
    assert gradient.any() and not loss(live, "stop").requires_grad
