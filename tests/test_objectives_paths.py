"""Short cuts of the implementation give what the long way gives; inputs stay what they were."""

import math

import pytest
import torch
from objective_cases import IDS, VARIANTS, make_batch, resolve, run

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
    for module in (registry, trace_module):
        monkeypatch.setattr(module, "extent", lambda log_ratio: INF)
    unknown = run(name, batch, **parameters)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-14}
    torch.testing.assert_close(known[0], unknown[0], **tolerance)
    torch.testing.assert_close(known[1], unknown[1], **tolerance)
    for key, value in known[2].items():
        torch.testing.assert_close(value, unknown[2][key], **tolerance)


def test_the_extent_is_that_of_every_number():
    assert registry.extent(torch.tensor([[-3.0, 2.0]])) == 3.0
    assert registry.extent(torch.tensor([[1.0, 2.0]])) == 2.0
    for bad in (float("nan"), INF, -INF):
        assert registry.extent(torch.tensor([[0.0, bad]])) == INF


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
def test_float16_gradients_stay_in_their_range(name, parameters):
    new = torch.full((2, 4), -0.25, dtype=torch.float16)
    batch = (new, new - 40, torch.tensor([1.0, -1.0]), torch.ones(2, 4))
    loss, grad, _ = run(name, batch, **{"loss_agg_mode": "token-sum", **parameters})
    assert loss.isfinite() and grad.dtype == torch.float16 and grad.isfinite().all()


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
def test_advantages_that_would_overflow_are_refused(name, parameters):
    new, old, advantages, mask = make_batch(dtype=torch.float32)
    for factor in (1e10, -1e38, INF, float("nan")):
        with pytest.raises(
            ValueError, match=r"advantages holds .* allowed are numbers from -1e\+09 to 1e\+09"
        ):
            run(name, (new, old, advantages * factor, mask), **parameters)
    huge = advantages.sign() * 1e9
    loss, grad, _ = run(name, (new, old, huge, mask), **parameters)
    assert loss.isfinite() and grad.isfinite().all()


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
