"""What must not change an objective: padding, order, micro-batches, dtype of the mask, extremes."""

import pytest
import torch
from objective_cases import IDS, INF, NAMES, VARIANTS, make_batch, run

from rlvr import objectives
from rlvr.advantages import group_relative
from rlvr.losses import AGGREGATIONS
from rlvr.objectives import merge_metrics

# --- invariances --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("junk", [0.0, float("nan"), INF, -INF, 1e20])
@pytest.mark.parametrize("per_token", [False, True])
def test_padding_content_is_harmless(name, parameters, junk, per_token):
    new, old, advantages, mask = make_batch(per_token=per_token)
    clean = run(name, (new, old, advantages, mask), **parameters)
    dirty_advantages = advantages.masked_fill(~mask if per_token else ~mask.any(-1), junk)
    dirty = run(
        name,
        (new.masked_fill(~mask, junk), old.masked_fill(~mask, -junk), dirty_advantages, mask),
        **parameters,
    )
    assert torch.equal(clean[0], dirty[0]) and torch.equal(clean[1], dirty[1]) and clean[2] == dirty[2]
    assert not dirty[1][~mask].any()


@pytest.mark.fault("nan-behind-a-mask")
def test_old_log_prob_nan_at_a_masked_position():
    loss, grad, _ = run(
        "ppo", (torch.zeros(1, 2), torch.tensor([[0.0, float("nan")]]), torch.ones(1), torch.tensor([[1, 0]]))
    )
    assert loss.item() == -1.0 and grad.tolist() == [[-1.0, 0.0]]


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_padding_and_permutation(name, parameters, mode):
    batch = make_batch()
    settings = {"loss_agg_mode": mode, "loss_scale_factor": 9, **parameters}
    loss, grad, metrics = run(name, batch, **settings)
    padded = [torch.nn.functional.pad(x, (2, 3)) for x in (*batch[:2], batch[3])]
    wide = run(name, (padded[0], padded[1], batch[2], padded[2]), **settings)
    torch.testing.assert_close(wide[0], loss, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(wide[1][:, 2:-3], grad, rtol=1e-12, atol=1e-14)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    mixed = run(name, [x[order] for x in batch], **settings)
    torch.testing.assert_close(mixed[0], loss, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(mixed[1], grad[order], rtol=1e-12, atol=1e-14)
    for key, value in metrics.items():
        assert wide[2][key].item() == pytest.approx(value.item(), rel=1e-12)
        assert mixed[2][key].item() == pytest.approx(value.item(), rel=1e-12)


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 5), (4, 1, 1)])
def test_micro_batch_split(name, parameters, mode, sizes):
    batch = make_batch()
    settings = {"loss_agg_mode": mode, **parameters}
    loss, grad, metrics = run(name, batch, **settings)
    counts = {"batch_num_tokens": batch[3].sum(), "global_batch_size": 5}
    parts = [
        run(name, part, **settings, **counts) for part in zip(*(x.split(sizes) for x in batch), strict=True)
    ]
    assert sum(part[0] for part in parts).item() == pytest.approx(loss.item(), rel=1e-12, abs=1e-14)
    torch.testing.assert_close(torch.cat([part[1] for part in parts]), grad, rtol=1e-12, atol=1e-14)
    merged = merge_metrics(part[2] for part in parts)
    assert merged == pytest.approx({k: v.item() for k, v in metrics.items()}, rel=1e-12)


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
def test_row_advantages_and_their_expansion_agree_when_b_equals_t(name, parameters):
    new, old, advantages, mask = make_batch(rows=9, width=9)
    per_row = run(name, (new, old, advantages, mask), **parameters)
    for same in (advantages[:, None], advantages[:, None].expand(9, 9)):
        other = run(name, (new, old, same, mask), **parameters)
        torch.testing.assert_close(other[1], per_row[1], rtol=1e-12, atol=0)
    wrong = run(name, (new, old, advantages[None].expand(9, 9), mask), **parameters)
    assert not torch.allclose(wrong[1], per_row[1])


# --- extremes, precision -------------------------------------------------------------------


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [80.0, -80.0, INF])
def test_extreme_gaps_stay_finite(name, parameters, dtype, gap):
    low = torch.tensor([[-0.1, -81.0, -0.1, -81.0]] * 2, dtype=dtype)
    new, old = (low + 80, low) if gap > 0 else (low, low + 80)
    new, old = new.clamp(max=0), old.clamp(max=0)
    if gap == INF:
        old = torch.full_like(old, -INF)  # the rollout policy claims it could not sample this
    for advantage in (1.0, -1.0):
        advantages = torch.tensor([advantage, -advantage], dtype=dtype)
        loss, grad, metrics = run(name, (new, old, advantages, torch.ones(2, 4)), **parameters)
        assert loss.isfinite() and grad.isfinite().all()
        assert all(value.isfinite() for value in metrics.values())


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_nothing_valid_is_exactly_zero(name, parameters, mode):
    nan = torch.full((3, 4), float("nan"))
    settings = {"loss_agg_mode": mode, **parameters}
    loss, grad, metrics = run(name, (nan, nan, nan[:, 0], torch.zeros(3, 4)), **settings)
    assert loss.item() == 0.0 and torch.equal(grad, torch.zeros(3, 4))
    assert metrics["tokens"] == 0 and all(value.isfinite() for value in metrics.values())


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
def test_one_token_responses(name, parameters):
    # nothing follows, so every trace is empty
    new, old, advantages, _ = make_batch(rows=5, width=1)
    _, grad, _ = run(name, (new, old, advantages, torch.ones(5, 1)), loss_agg_mode="token-sum", **parameters)
    if name == "nfpo":
        same = {k: v for k, v in parameters.items() if k in ("region", "delta", "rho_clip")}
        single = run(
            "nfpo", (new, old, advantages, torch.ones(5, 1)), loss_agg_mode="token-sum", horizon=1, **same
        )
        torch.testing.assert_close(grad, single[1])
    assert grad.shape == (5, 1) and grad.isfinite().all() and grad.any()


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(name, parameters, half):
    new, old, advantages, mask = make_batch()
    new, old = new.to(half), old.to(half)
    loss, grad, _ = run(name, (new, old, advantages.float(), mask), reduction="none", **parameters)
    single = run(name, (new.float(), old.float(), advantages.float(), mask), reduction="none", **parameters)
    assert loss.dtype == torch.float32 and torch.equal(loss, single[0])
    assert grad.dtype == half
    if parameters.get("trace_gradient") != "full":  # there two rounded parts are added
        assert torch.equal(grad, single[1].to(half))
    assert run(name, (new.double(), old, advantages, mask), **parameters)[0].dtype == torch.float64


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.uint8, torch.float32, torch.bfloat16])
def test_any_mask_dtype(mask_dtype):
    new, old, advantages, mask = make_batch()
    assert torch.equal(
        run("nfpo", (new, old, advantages, mask.to(mask_dtype)))[1],
        run("nfpo", (new, old, advantages, mask))[1],
    )


def test_equal_rewards_do_not_move_the_policy():
    new, old, _, mask = make_batch(rows=11, dtype=torch.float32)
    advantages = group_relative(torch.full((11,), 0.7), [0] * 11)
    for name in NAMES:
        assert not run(name, (new, old, advantages, mask))[1].any()


def test_only_log_prob_gets_a_gradient():
    new, old, advantages, mask = (x.requires_grad_() if x.is_floating_point() else x for x in make_batch())
    for name in NAMES:
        loss, metrics = objectives.get(name)(new, old, advantages, mask)
        grads = torch.autograd.grad(loss, (new, old, advantages), allow_unused=True)
        assert grads[0].any() and grads[1] is None and grads[2] is None
        assert not any(value.requires_grad for value in metrics.values())
        assert all(value.ndim == 0 for value in metrics.values())
