"""Short cuts of the implementation give what the long way gives; inputs stay what they were."""

import math

import pytest
import torch
from objective_cases import IDS, VARIANTS, make_batch, resolve, run

from rlvr import batch as batch_module
from rlvr import objectives, registry
from rlvr.objectives import trace as trace_module

INF = float("inf")


def full(batch):
    new, old, advantages, mask = batch
    return new, old, advantages, torch.ones_like(mask)


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("shape", ["full", "masked"])
def test_inputs_stay_what_they_were(name, parameters, shape):
    batch = make_batch(scale=1.0, per_token=True)
    batch = full(batch) if shape == "full" else batch
    tensors = {k: v for k, v in resolve(batch, parameters).items() if isinstance(v, torch.Tensor)}
    before = [x.clone() for x in (*batch, *tensors.values())]
    log_prob = batch[0].requires_grad_()
    loss, _ = objectives.get(name)(log_prob, *batch[1:], **{**parameters, **tensors})
    loss.backward()
    for now, then in zip((*batch, *tensors.values()), before, strict=True):
        assert torch.equal(now.detach(), then)


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
def test_a_full_mask_is_no_special_case(name, parameters):
    """Without a masked token nothing is masked at all; one column of padding brings the masks back."""
    batch = full(make_batch(scale=0.7, per_token=True))
    padded = [torch.cat([x, x.new_zeros(len(x), 1)], 1) for x in batch]
    # tensors of the parameters belong to the first columns
    tensors = {
        k: torch.cat([v, v.new_zeros(len(v), 1, *v.shape[2:])], 1)
        for k, v in resolve(batch, parameters).items()
        if isinstance(v, torch.Tensor)
    }
    loss, grad, metrics = run(name, batch, loss_scale_factor=9, **parameters)
    other, other_grad, other_metrics = run(name, padded, loss_scale_factor=9, **{**parameters, **tensors})
    torch.testing.assert_close(other, loss, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(other_grad[:, :-1], grad, rtol=1e-12, atol=1e-14)
    assert {k: v.item() for k, v in other_metrics.items()} == pytest.approx(
        {k: v.item() for k, v in metrics.items()}, rel=1e-12, abs=1e-14
    )


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_knowing_the_extent_of_the_log_ratios_changes_nothing(name, parameters, dtype, monkeypatch):
    """On an accelerator nobody asks for it, and every bound is applied."""
    batch = make_batch(scale=0.7, dtype=dtype)
    known = run(name, batch, **parameters)
    for module in (batch_module, trace_module):
        monkeypatch.setattr(module, "extent", lambda log_ratio: INF)
    unknown = run(name, batch, **parameters)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-14}
    torch.testing.assert_close(known[0], unknown[0], **tolerance)
    torch.testing.assert_close(known[1], unknown[1], **tolerance)
    for key, value in known[2].items():
        torch.testing.assert_close(value, unknown[2][key], **tolerance)


def test_the_extent_is_that_of_every_number():
    assert batch_module.extent(torch.tensor([[-3.0, 2.0]])) == 3.0
    assert batch_module.extent(torch.tensor([[1.0, 2.0]])) == 2.0
    for bad in (float("nan"), INF, -INF):
        assert batch_module.extent(torch.tensor([[0.0, bad]])) == INF


@pytest.mark.parametrize("name", ["dppo_tv", "nfpo"])
@pytest.mark.parametrize("log_mu", [-30.0, -100.0, -INF])
def test_total_variation_beyond_the_ratios_bound(name, log_mu):
    """mu (rho - 1) with a bounded rho says that nothing changed; the mask must not."""
    new = torch.tensor([[-0.1, -0.1]] * 2)
    old = torch.tensor([[log_mu, -0.1]] * 2)
    _, grad, _ = run(name, (new, old, torch.tensor([1.0, -1.0]), torch.ones(2, 2)))
    assert grad[0, 0] == 0 and grad[1, 0] != 0 and grad[:, 1].all()


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_reach_the_maths(name, parameters, dtype):
    batch = make_batch(scale=0.7, dtype=torch.float32)
    expected, expected_grad, _ = run(name, batch, **parameters)
    with torch.autocast("cpu", dtype):
        loss, grad, _ = run(name, batch, **parameters)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected) and torch.equal(grad, expected_grad)


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
def test_float16_gradients_are_those_of_float32_and_overflow_to_infinity(name, parameters):
    """A gradient scaler has to see the infinity."""
    new = torch.full((2, 4), -0.25, dtype=torch.float16)
    for gap, scale in ((0.5, 1.0), (20.0, 1.0), (0.5, 2.0**20)):
        batch = (new, new - gap, torch.tensor([1.0, -1.0]), torch.ones(2, 4))
        settings = {"loss_agg_mode": "token-sum", **parameters}
        grads = []
        for x in (new, new.float()):
            x = x.clone().requires_grad_()
            others = resolve(batch, settings)
            loss, _ = objectives.get(name)(x, batch[1].to(x.dtype), *batch[2:], **others)
            (loss * scale).backward()
            assert loss.isfinite() and x.grad.dtype == x.dtype
            grads.append(x.grad)
        if parameters.get("trace_gradient") != "full":  # there torch's own chain rule rounds on the way
            assert torch.equal(grads[0], grads[1].half())


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
def test_advantages_that_would_overflow_are_refused(name, parameters):
    new, old, advantages, mask = make_batch(dtype=torch.float32)
    for factor in (1e10, -1e38, INF, float("nan")):
        with pytest.raises(
            ValueError, match=r"advantages holds .* allowed are numbers from -1e\+06 to 1e\+06"
        ):
            run(name, (new, old, advantages * factor, mask), **parameters)
    huge = advantages.sign() * 1e6
    loss, grad, _ = run(name, (new, old, huge, mask), **parameters)
    assert loss.isfinite() and grad.isfinite().all()


@pytest.mark.parametrize("name", ["exact_pg", "nfpo"])
def test_the_largest_weights_and_advantages_do_not_overflow_a_long_sum(name):
    new = torch.full((64, 4096), -1.0)
    old = new - 60
    open_trace = {"horizon": 4096, "trace_clip": None, "ratio_clip": None, "region": "none"}
    parameters = open_trace if name == "nfpo" else {}
    batch = (new, old, torch.full((64,), 1e6), torch.ones(64, 4096))
    loss, grad, metrics = run(name, batch, loss_agg_mode="token-sum", **parameters)
    assert loss.isfinite() and grad.isfinite().all() and all(v.isfinite() for v in metrics.values())


def test_masked_sequence_ratio_reads_the_advantages_of_marked_tokens():
    old = torch.full((1, 3), -2.0, dtype=torch.float64)
    log_ratio = torch.tensor([[0.1, 0.3, 0.5]], dtype=torch.float64)
    marks = torch.tensor([[1, 0, 1]])
    advantages = torch.tensor([[1.0, 100.0, 3.0]], dtype=torch.float64)
    wide = {"clip_low": 0.9, "clip_high": 0.9, "token_mask": marks}
    s = math.exp(0.3)  # mean of 0.1 and 0.5
    loss, grad, _ = run("masked_gspo", (old + log_ratio, old, advantages, torch.ones(1, 3)), **wide)
    assert loss.item() == pytest.approx(-s * (1 + 3) / 2)
    torch.testing.assert_close(grad, torch.tensor([[-s, 0, -s]], dtype=torch.float64))


def test_the_default_delta_is_that_of_the_region():
    batch = make_batch(scale=1.0)
    for region, delta in (("tv", 0.2), ("kl", 0.05)):
        default = run("nfpo", batch, region=region)[1]
        assert torch.equal(default, run("nfpo", batch, region=region, delta=delta)[1])
        assert not torch.equal(default, run("nfpo", batch, region=region, delta=4 * delta)[1])


def test_padding_of_the_token_mask_does_not_matter():
    new, old, advantages, mask = make_batch()
    marks = resolve((new, old, advantages, mask), {"m": lambda b: (b[0] < -1).double()})["m"]
    expected = run("masked_gspo", (new, old, advantages, mask), token_mask=marks)
    assert not mask.all()
    for junk in (float("nan"), -100.0, 0.5, INF):
        dirty = torch.where(mask.bool(), marks, junk)
        for check in (True, False):
            other = run("masked_gspo", (new, old, advantages, mask), token_mask=dirty, check=check)
            assert torch.equal(other[0], expected[0]) and torch.equal(other[1], expected[1])
    with pytest.raises(ValueError, match=r"token_mask holds 0\.5"):
        run("masked_gspo", (new, old, advantages, mask), token_mask=torch.full_like(marks, 0.5))
    run("masked_gspo", (new, old, advantages, mask), token_mask=torch.full_like(marks, 0.5), check=False)


def test_a_ratio_brings_an_enormous_trace_back():
    """N = T without clips is exact_pg, also where the trace alone would not fit."""
    new = torch.tensor([[-41.0, -1.0, -1.0]], dtype=torch.float64)
    old = torch.tensor([[-1.0, -36.0, -36.0]], dtype=torch.float64)
    open_trace = {"horizon": 3, "trace_clip": None, "ratio_clip": None, "region": "none", "ratio_bound": 60.0}
    for dtype in (torch.float32, torch.float64):
        batch = (new.to(dtype), old.to(dtype), torch.ones(1, dtype=dtype), torch.ones(1, 3))
        exact = run("exact_pg", batch)[1]
        assert exact[0, 0].item() == pytest.approx(-math.exp(-40 + 35 + 35), rel=1e-6)
        close = run("nfpo", batch, loss_agg_mode="token-sum", **open_trace)[1]
        torch.testing.assert_close(close, exact, rtol=1e-6, atol=0)
        # a clip far away is no cap of another size
        far = {**open_trace, "trace_clip": (0.8, 1e30)}
        grad, metrics = run("nfpo", batch, loss_agg_mode="token-sum", **far)[1:]
        assert grad[0, 0].item() == pytest.approx(-math.exp(-40) * 1e30, rel=1e-5)
        assert metrics["trace_clip_fraction"].item() == pytest.approx(1 / 3)


@pytest.mark.parametrize("gap", [15.0, 30.0, INF])
def test_a_rollout_log_prob_far_away_is_bounded(gap):
    new = torch.full((1, 3), -0.5, dtype=torch.float64)
    rollout = torch.full((1, 3), -0.5 - gap, dtype=torch.float64)
    batch = (new, new.clone(), -torch.ones(1, dtype=torch.float64), torch.ones(1, 3))
    _, grad, metrics = run("nfpo", batch, rollout_log_prob=rollout, loss_agg_mode="token-sum")
    assert metrics["ratio_max"].item() == pytest.approx(math.exp(10))
    torch.testing.assert_close(grad, torch.full_like(grad, math.exp(10)))  # pushed down: never masked


def test_weights_are_capped_whatever_the_clip_allows():
    new = torch.full((1, 3), -0.5, dtype=torch.float64)
    batch = (new, new - 75, torch.ones(1, dtype=torch.float64), torch.ones(1, 3))
    wide = {"trace_clip": (0.8, 1e30), "ratio_clip": None, "region": "none", "ratio_bound": 80.0}
    grad = run("nfpo", batch, loss_agg_mode="token-sum", **wide)[1]
    torch.testing.assert_close(grad, torch.full_like(grad, -math.exp(60)))


def test_an_infinite_factor_clip_is_none():
    new = torch.tensor([[-0.5, -0.7, -0.2]], dtype=torch.float64)
    old = torch.tensor([[-0.6, -INF, -0.3]], dtype=torch.float64)
    batch = (new, old, torch.ones(1, dtype=torch.float64), torch.ones(1, 3))
    ours = run("nfpo", batch, ratio_clip=INF)
    assert torch.equal(ours[1], run("nfpo", batch, ratio_clip=None)[1]) and ours[1].isfinite().all()


def test_block_ratios_bound_each_token():
    """The backbone's log ratio is bounded before it is weighted, and a bounded one gets no gradient."""
    new = torch.tensor([[-0.5, -0.5]], dtype=torch.float64)
    mtp = {"mtp_log_prob": torch.zeros(1, 2, 1) - 1.0, "old_mtp_log_prob": torch.zeros(1, 2, 1) - 1.0}
    settings = {"dual_clip": None, "loss_agg_mode": "token-sum", "mtp_weight": 0.2, **mtp}
    batch = (new, new - 30, -torch.ones(1, dtype=torch.float64), torch.ones(1, 2))
    loss, grad, metrics = run("mpo", batch, **settings)
    assert loss.item() == pytest.approx(2 * math.exp(0.8 * 20)) and not grad.any()
    assert metrics["token_ratio_mean"].item() == pytest.approx(math.exp(20))
    inside = (new, new - 19, *batch[2:])
    loss, grad, _ = run("mpo", inside, **settings)
    assert loss.item() == pytest.approx(2 * math.exp(0.8 * 19))
    torch.testing.assert_close(grad, torch.full_like(grad, 0.8 * math.exp(0.8 * 19)))


@pytest.mark.parametrize("name", ["grpo", "dppo_tv", "nfpo"])
def test_the_largest_ratio_is_that_of_a_valid_token(name):
    new = torch.tensor([[-1.0, -1.2, -3.0]], dtype=torch.float64)
    old = new + torch.tensor([[0.3, 0.1, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    _, _, metrics = run(name, (new, old, torch.ones(1, dtype=torch.float64), mask))
    assert metrics["ratio_max"].item() == pytest.approx(math.exp(-0.1))


def test_a_loss_may_be_changed_in_place():
    new, old, advantages, mask = make_batch()
    for reduction in ("loss", "none"):
        x = new.clone().requires_grad_()
        loss, _ = objectives.grpo(x, old, advantages, mask, reduction=reduction)
        before = loss.detach().clone()
        loss += 1.0  # verl adds its KL and entropy terms so
        loss.sum().backward()
        assert torch.equal(loss.detach(), before + 1) and x.grad.any()


def test_bounds_belong_to_the_inside():
    """|l| = the bound keeps its gradient, |pi - mu| = delta its token."""
    new = torch.tensor([[-1.0]], dtype=torch.float64)
    batch = (new, new - 20.0, -torch.ones(1, dtype=torch.float64), torch.ones(1, 1))
    assert run("ppo", batch, dual_clip=None)[1].item() == pytest.approx(math.exp(20))
    # pi - mu = 1/2 - 1/4 exactly
    half = torch.tensor([[0.5]], dtype=torch.float64).log()
    quarter = torch.tensor([[0.25]], dtype=torch.float64).log()
    change = (half.exp() - quarter.exp()).item()
    batch = (half, quarter, torch.ones(1, dtype=torch.float64), torch.ones(1, 1))
    for name in ("dppo_tv", "nfpo"):
        assert run(name, batch, delta=change)[1].any()
        assert not run(name, batch, delta=change * (1 - 1e-9))[1].any()


def test_metrics_of_an_empty_part_do_not_matter():
    parts = [{"tokens": 0, "kl": INF, "ratio_max": 0.0}, {"tokens": 2, "kl": 1.0, "ratio_max": 3.0}]
    assert registry.merge_metrics(parts) == {"tokens": 2, "kl": 1.0, "ratio_max": 3.0}


@pytest.mark.parametrize(("wrong", "right"), [("PPO", "ppo"), ("DPPO-TV", "dppo_tv"), ("nfop", "nfpo")])
def test_a_name_in_other_letters_is_recognised(wrong, right):
    with pytest.raises(ValueError, match=f"did you mean '{right}'"):
        objectives.get(wrong)
