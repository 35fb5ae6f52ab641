import inspect
import math
import pickle

import numpy as np
import pytest
import torch

from rlvr import objectives
from rlvr.advantages import group_relative
from rlvr.losses import AGGREGATIONS
from rlvr.objectives import NFPO_PRESETS, merge_metrics

NAMES = objectives.list_objectives()
INF = float("inf")
# every objective, and the settings of NFPO that take another path
VARIANTS = [(name, {}) for name in NAMES] + [
    ("nfpo", {"horizon": 1}),
    ("nfpo", {"region": "kl", "delta": 0.05}),
    ("nfpo", {"region": "clip"}),
    ("nfpo", {"region": "band"}),
    ("nfpo", {"region": "none", "trace_clip": None, "ratio_clip": None}),
    ("nfpo", {"window": "positions", "rho_clip": 2.0}),
    ("nfpo", {"trace_gradient": "full"}),
    ("exact_pg", {"trace_gradient": "full"}),
]
IDS = [name + ("-" + "-".join(str(v) for v in p.values()) if p else "") for name, p in VARIANTS]


def make_batch(rows=6, width=9, scale=0.4, seed=0, per_token=False, dtype=torch.float64):
    """Random log-probs with holes, a fully masked row and a one-token row."""
    g = torch.Generator().manual_seed(seed)
    old = -0.05 - 2 * torch.rand(rows, width, generator=g, dtype=torch.float64)
    new = (old + scale * torch.randn(rows, width, generator=g, dtype=torch.float64)).clamp(max=-1e-3)
    advantages = torch.randn((rows, width) if per_token else (rows,), generator=g, dtype=torch.float64)
    mask = torch.rand(rows, width, generator=g) < 0.75
    mask[1] = False
    mask[2] = False
    mask[2, width // 3] = True
    return new.to(dtype), old.to(dtype), advantages.to(dtype), mask


def run(name, batch, **parameters):
    """(loss, gradient by log_prob, metrics)."""
    log_prob = batch[0].detach().clone().requires_grad_()
    loss, metrics = objectives.get(name)(log_prob, *batch[1:], **parameters)
    loss.sum().backward()
    return loss.detach(), log_prob.grad, metrics


# --- the formulas, token by token ---------------------------------------------------------------------


def slow_keep(region, delta, pi, mu, rho, advantage):
    if region == "none":
        return True
    if region == "tv":
        return pi - mu <= delta if advantage > 0 else pi - mu >= -delta
    if region == "kl":
        kl = mu * math.log(mu / pi) + (1 - mu) * math.log((1 - mu) / (1 - pi))
        return kl <= delta or (pi <= mu if advantage > 0 else pi >= mu)
    if region == "band":
        return 1 / 3 <= rho <= 3
    return rho <= 1.28 if advantage > 0 else rho >= 0.8


def slow_weight(name, p, ratios, t):
    """Weight of token ``t`` of a response with token ratios ``ratios``."""
    if name == "uncorrected":
        return 1.0
    if name in ("dppo_tv", "dppo_kl"):
        return min(ratios[t], 20.0)
    if name == "icepop":
        return ratios[t]
    if name == "exact_pg":
        return math.prod(ratios[t:])
    beta, clip = p.get("ratio_clip", 3.0), p.get("trace_clip", (0.8, 1.4))
    trace = 1.0
    for ratio in ratios[t + 1 : t + p.get("horizon", 4)]:
        trace *= ratio if beta is None else min(max(ratio, 1 / beta), beta)
    if clip is not None:
        trace = min(max(trace, clip[0]), clip[1])
    rho = ratios[t]
    if "rho_clip" in p:
        rho = min(max(rho, 1 / p["rho_clip"]), p["rho_clip"])
    return rho * trace


def slow_objective(name, p, new, old, advantages, mask):
    """Per-token (value, slope) [B, T] of an objective whose weight is a constant, or of the clip."""
    value, slope = torch.zeros_like(new), torch.zeros_like(new)
    region = {"dppo_tv": "tv", "dppo_kl": "kl", "icepop": "band", "nfpo": p.get("region", "tv")}.get(
        name, "none"
    )
    delta = p.get("delta", {"tv": 0.2, "kl": 0.05}.get(region))
    for i in range(len(new)):
        at = [t for t in range(new.shape[1]) if mask[i, t]]
        ratios = [math.exp(new[i, t] - old[i, t]) for t in at]
        for k, t in enumerate(at):
            a = float(advantages[i] if advantages.ndim == 1 else advantages[i, t])
            if name in ("ppo", "grpo"):
                high = 1.2 if name == "ppo" else 1.28
                surrogate = min(ratios[k] * a, min(max(ratios[k], 0.8), high) * a)
                surrogate = max(surrogate, 3.0 * a) if a < 0 else surrogate
                value[i, t] = -surrogate
                slope[i, t] = -ratios[k] * a if surrogate == ratios[k] * a else 0.0
                continue
            pi, mu = math.exp(new[i, t]), math.exp(old[i, t])
            keep = slow_keep(region, delta, pi, mu, ratios[k], a)
            slope[i, t] = -slow_weight(name, p, ratios, k) * a * keep
            value[i, t] = slope[i, t] * new[i, t]
    return value, slope


CONSTANT = [
    (name, p) for name, p in VARIANTS if p.get("window") != "positions" and p.get("trace_gradient") != "full"
]


@pytest.mark.parametrize(("name", "parameters"), CONSTANT + [("nfpo", {"rho_clip": 1.3, "horizon": 2})])
@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_slow_loop(name, parameters, per_token, seed):
    batch = make_batch(scale=1.0, seed=seed, per_token=per_token)
    value, slope = slow_objective(name, parameters, *batch)
    loss, grad, _ = run(name, batch, reduction="none", **parameters)
    np.testing.assert_allclose(loss, value, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(grad, slope, rtol=1e-10, atol=1e-13)
    loss, grad, metrics = run(name, batch, loss_agg_mode="token-mean", **parameters)
    tokens = int(batch[3].sum())
    assert loss.item() == pytest.approx(value.sum().item() / tokens, rel=1e-10)
    np.testing.assert_allclose(grad, slope / tokens, rtol=1e-10, atol=1e-13)
    advantages = batch[2] if per_token else batch[2][:, None]
    stopped = batch[3] & (slope == 0) & (advantages != 0)
    share = metrics["clip_fraction" if name in ("ppo", "grpo") else "masked_fraction"]
    assert share.item() == pytest.approx(stopped.sum().item() / tokens)


def test_typed_in_nfpo():
    # ratios of the typed-in check, A = 1, N = 2, trace clip [0.8, 1.2]: weights rho * (0.8, 1.2, 1, 1.05, 1)
    ratios = torch.tensor([[1.1, 0.5, 4.0, 1.0, 1.05]], dtype=torch.float64)
    old = torch.full((1, 5), math.log(0.02), dtype=torch.float64)
    batch = (old + ratios.log(), old, torch.ones(1, dtype=torch.float64), torch.ones(1, 5))
    settings = {"horizon": 2, "trace_clip": (0.8, 1.2), "loss_agg_mode": "token-sum"}
    loss, grad, metrics = run("nfpo", batch, **settings)
    weights = np.array([[0.88, 0.6, 4.0, 1.05, 1.05]])
    np.testing.assert_allclose(grad, -weights, rtol=1e-12)
    assert loss.item() == pytest.approx(-(weights * batch[0].numpy()).sum())
    assert metrics["trace_mean"].item() == pytest.approx(5.05 / 5)
    assert metrics["trace_clip_fraction"].item() == pytest.approx(2 / 5)
    assert metrics["correction_strength"].item() == pytest.approx((0.12 + 0.4 + 3 + 0.05 + 0.05) / 5)
    assert metrics["ratio_correction_strength"].item() == pytest.approx((0.1 + 0.5 + 3 + 0.05) / 5)
    assert metrics["ratio_max"].item() == pytest.approx(4.0)
    assert metrics["ratio_mean"].item() == pytest.approx(7.65 / 5)
    assert metrics["kl"].item() == pytest.approx(-ratios.log().mean().item())
    _, grad, _ = run("nfpo", batch, **settings | {"rho_clip": 3.0})  # only the ratio 4 changes
    np.testing.assert_allclose(grad, [[-0.88, -0.6, -3.0, -1.05, -1.05]], rtol=1e-12)


def test_typed_in_grpo():
    # A = (1, -1); ratios 2 and 0.5 on both rows
    old = torch.tensor([[-2.0, -2.0], [-2.0, -2.0]], dtype=torch.float64)
    new = old + torch.tensor([[2.0, 0.5], [2.0, 0.5]], dtype=torch.float64).log()
    batch = (new, old, torch.tensor([1.0, -1.0], dtype=torch.float64), torch.ones(2, 2))
    loss, grad, metrics = run("grpo", batch, reduction="none")
    np.testing.assert_allclose(loss, [[-1.28, -0.5], [2.0, 0.8]])
    np.testing.assert_allclose(grad, [[0, -0.5], [2.0, 0]])
    assert metrics["clip_fraction"].item() == 0.5


# --- identities ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("dppo", "region"), [("dppo_tv", "tv"), ("dppo_kl", "kl")])
@pytest.mark.parametrize("delta", [0.05, 0.2])
@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_horizon_1_is_dppo(dppo, region, delta, dtype, mode):
    batch = make_batch(scale=0.8, dtype=dtype)
    loss, grad, _ = run("nfpo", batch, horizon=1, region=region, delta=delta, loss_agg_mode=mode)
    expected, expected_grad, _ = run(dppo, batch, delta=delta, loss_agg_mode=mode)
    assert torch.equal(loss, expected) and torch.equal(grad, expected_grad)


def test_full_horizon_unclipped_is_exact():
    batch = make_batch()
    unclipped = {"horizon": 9, "ratio_clip": None, "trace_clip": None, "region": "none"}
    for trace_gradient in ("stop", "full"):
        mode = {"trace_gradient": trace_gradient, "loss_agg_mode": "token-sum"}
        loss, grad, _ = run("nfpo", batch, **unclipped, **mode)
        exact, exact_grad, _ = run("exact_pg", batch, **mode)
        torch.testing.assert_close(grad, exact_grad, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(loss, exact, rtol=1e-12, atol=1e-14)


def test_infinite_delta_is_no_mask():
    batch = make_batch(scale=2.0)
    for name, region in (("dppo_tv", "tv"), ("dppo_kl", "kl")):
        assert run(name, batch, delta=INF)[2]["masked_fraction"] == 0
        _, grad, _ = run("nfpo", batch, delta=INF, region=region)
        assert torch.equal(grad, run("nfpo", batch, region="none")[1])


def test_on_policy_gradient_is_reinforce():
    # ratio 1 everywhere is right on-policy, for every objective
    new, _, advantages, mask = make_batch()
    for name, parameters in VARIANTS:
        _, grad, metrics = run(name, (new, new, advantages, mask), loss_agg_mode="token-sum", **parameters)
        torch.testing.assert_close(grad, -advantages[:, None] * mask, rtol=1e-12, atol=0)
        assert metrics["ratio_mean"] == 1 and metrics["correction_strength"] == 0


def test_ratio_moves_with_the_weights():
    # logp - logp.detach() as the ratio would be 1 whatever the rollout policy was
    new, old, advantages, mask = make_batch()
    for name in set(NAMES) - {"uncorrected"}:
        _, grad, metrics = run(name, (new, old, advantages, mask), loss_agg_mode="token-sum")
        assert abs(metrics["ratio_mean"] - 1) > 1e-3
        assert not torch.allclose(grad, -advantages[:, None] * mask)
    _, grad, _ = run("uncorrected", (new, old, advantages, mask), loss_agg_mode="token-sum")
    torch.testing.assert_close(grad, -advantages[:, None] * mask)


def test_expectation_over_all_responses_is_the_exact_policy_gradient():
    # Responses of 3 symbols from a 2-symbol softmax policy, enumerated; J = E_pi[R].
    g = torch.Generator().manual_seed(4)
    theta = torch.randn(7, 2, generator=g, dtype=torch.float64, requires_grad=True)  # one state per prefix
    mu = torch.log_softmax(theta.detach() + 0.5 * torch.randn(7, 2, generator=g, dtype=torch.float64), -1)
    rewards = torch.randn(8, generator=g, dtype=torch.float64)
    words = [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)]
    states = torch.tensor([[0, 1 + a, 3 + 2 * a + b] for a, b, _ in words])
    symbols = torch.tensor(words)
    log_pi, log_mu = torch.log_softmax(theta, -1)[states, symbols], mu[states, symbols]
    (exact,) = torch.autograd.grad((log_pi.sum(-1).exp() * rewards).sum(), theta, retain_graph=True)
    weighted = log_mu.sum(-1).exp() * rewards
    for name, parameters in (
        ("exact_pg", {}),
        ("nfpo", {"horizon": 3, "ratio_clip": None, "trace_clip": None, "region": "none"}),
    ):
        loss, _ = objectives.get(name)(
            log_pi,
            log_mu,
            weighted,
            torch.ones(8, 3),
            trace_gradient="full",
            loss_agg_mode="token-sum",
            **parameters,
        )
        (grad,) = torch.autograd.grad(-loss, theta, retain_graph=True)
        torch.testing.assert_close(grad, exact, rtol=1e-10, atol=1e-12)
    stopped, _ = objectives.exact_pg(log_pi, log_mu, weighted, torch.ones(8, 3))
    (grad,) = torch.autograd.grad(-stopped, theta)
    assert not torch.allclose(grad, exact, rtol=1e-3)  # prefixes stay distributed as under mu


def test_rollout_log_prob():
    new, old, advantages, mask = make_batch(scale=0.8)
    rollout = make_batch(scale=0.8, seed=5)[1]
    same = run("nfpo", (new, old, advantages, mask), rollout_log_prob=old)
    plain = run("nfpo", (new, old, advantages, mask))
    assert torch.equal(same[1], plain[1]) and same[2] == plain[2]
    # recomputed on-policy: the trace is 1, ratio and mask are those of DPPO against the rollout policy
    _, grad, metrics = run("nfpo", (new, new, advantages, mask), rollout_log_prob=rollout, ratio_bound=20.0)
    mode = "seq-mean-token-sum-norm"
    _, expected, expected_metrics = run("dppo_tv", (new, rollout, advantages, mask), loss_agg_mode=mode)
    assert torch.equal(grad, expected) and metrics["trace_mean"] == 1
    for key in ("kl", "ratio_mean", "correction_strength", "masked_fraction"):
        assert metrics[key] == expected_metrics[key]


def test_presets():
    batch = make_batch(scale=0.8)
    for preset in NFPO_PRESETS.values():
        run("nfpo", batch, **preset)
    assert torch.equal(run("nfpo", batch, **NFPO_PRESETS["text"])[1], run("nfpo", batch)[1])
    assert not torch.equal(run("nfpo", batch, **NFPO_PRESETS["release"])[1], run("nfpo", batch)[1])


KNOBS = {
    "clip_low": 0.05,
    "clip_high": 0.05,
    "dual_clip": 1.5,
    "delta": 0.01,
    "ratio_cap": 1.1,
    "band": (0.9, 1.1),
    "horizon": 2,
    "trace_clip": (0.9, 1.1),
    "ratio_clip": 1.1,
    "ratio_bound": 0.1,
    "rho_clip": 1.1,
    "window": "positions",
    "trace_gradient": "full",
    "region": "none",
    "rollout_log_prob": make_batch(rows=20, seed=8)[1],
}


@pytest.mark.parametrize(("name", "knob"), [(n, k) for n in NAMES for k in objectives.get(n).parameters])
def test_every_knob_changes_the_loss(name, knob):
    batch = make_batch(rows=20, scale=0.8)
    context = {"clip_low": {"region": "clip"}, "clip_high": {"region": "clip"}, "band": {"region": "band"}}
    context = context.get(knob, {}) if name == "nfpo" else {}
    before = run(name, batch, **context)[1]
    after = run(name, batch, **context | {knob: KNOBS[knob]})[1]
    assert not torch.allclose(before, after)


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


# --- gradients, extremes, precision -------------------------------------------------------------------


def objective_value(name, parameters, log_prob, frozen, old, advantages, mask):
    """The scalar whose gradient an objective promises: weights held at ``frozen``, or not."""
    log_ratios = torch.where(mask, log_prob - old, 0.0)
    if name in ("ppo", "grpo"):
        ratio, a = log_ratios.exp(), advantages[:, None]
        high = 1.2 if name == "ppo" else 1.28
        loss = -torch.minimum(ratio * a, ratio.clamp(0.8, high) * a)
        return torch.where(a < 0, torch.minimum(loss, -3 * a), loss)[mask].sum()
    _, slope = slow_objective(name, {**parameters, "trace_gradient": "stop"}, frozen, old, advantages, mask)
    if parameters.get("trace_gradient") != "full":
        return (slope * log_prob)[mask].sum()
    # (rho - 1) * trace, both live; slope tells which tokens are kept
    keep = (slope != 0) | ~mask
    total = 0.0
    for i in range(len(mask)):
        at = mask[i].nonzero().flatten().tolist()
        ratios = [float(log_ratios[i, t].exp()) for t in at]
        for k, t in enumerate(at):
            trace = slow_weight(name, parameters, ratios, k) / ratios[k]
            total -= float(keep[i, t]) * float(advantages[i]) * (ratios[k] - 1) * trace
    return torch.tensor(total, dtype=torch.float64)


@pytest.mark.parametrize(("name", "parameters"), [v for v in VARIANTS if v[1].get("window") != "positions"])
def test_finite_differences(name, parameters):
    new, old, advantages, mask = make_batch(rows=4, width=5, scale=0.5, seed=11)
    _, grad, _ = run(name, (new, old, advantages, mask), loss_agg_mode="token-sum", **parameters)
    numeric, step = torch.zeros_like(new), 1e-6
    for i, t in mask.nonzero().tolist():
        ends = []
        for sign in (1, -1):
            moved = new.clone()
            moved[i, t] += sign * step
            ends.append(objective_value(name, parameters, moved, new, old, advantages, mask))
        numeric[i, t] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(grad, numeric, rtol=1e-5, atol=1e-7)


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


# --- the registry -------------------------------------------------------------------------------------


def test_names():
    assert NAMES == sorted(["ppo", "grpo", "dppo_tv", "dppo_kl", "icepop", "nfpo", "exact_pg", "uncorrected"])
    assert objectives.get("nfpo") is objectives.nfpo
    with pytest.raises(ValueError, match=r"'nfop': did you mean 'nfpo'"):
        objectives.get("nfop")
    with pytest.raises(ValueError, match="allowed are dppo_kl"):
        objectives.get("zzz")


@pytest.mark.parametrize("name", NAMES)
def test_signature_shows_defaults_and_pickles(name):
    objective = objectives.get(name)
    shown = inspect.signature(objective).parameters
    assert list(shown)[:4] == ["log_prob", "old_log_prob", "advantages", "response_mask"]
    assert {k: shown[k].default for k in objective.parameters} == objective.parameters
    assert shown["loss_agg_mode"].default == objective.loss_agg_mode
    assert objective.__doc__
    assert pickle.loads(pickle.dumps(objective)) is objective


def test_unknown_parameter():
    with pytest.raises(ValueError, match="did you mean 'horizon'"):
        run("nfpo", make_batch(), horizn=4)
    with pytest.raises(ValueError, match="grpo has no parameter 'delta'"):
        run("grpo", make_batch(), delta=0.2)


def replaced(position, value):
    batch = list(make_batch())
    batch[position] = value(batch[position]) if callable(value) else value
    return batch


def with_entry(value):
    def change(tensor):
        tensor = tensor.clone()
        tensor[2, 3] = value  # a valid place
        return tensor

    return change


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, lambda x: x[:, :-1], "log_prob is torch.float64"),
        (0, lambda x: x.long(), "log_prob is torch.int64"),
        (0, [1.0], "log_prob is"),
        (0, with_entry(0.1), "log_prob holds 0.1"),
        (0, with_entry(float("nan")), "log_prob holds nan"),
        (0, with_entry(-INF), "log_prob holds -inf"),
        (1, lambda x: x[:-1], "old_log_prob is"),
        (1, with_entry(2.0), "old_log_prob holds 2.0"),
        (1, with_entry(float("nan")), "old_log_prob holds nan"),
        (2, lambda x: x[:-1], r"advantages is torch.float64 \[5\]"),
        (2, lambda x: x.long(), "advantages is torch.int64"),
        (2, lambda x: x[None].expand(5, 6), "advantages is"),
        (2, lambda x: torch.full_like(x, float("nan")), "advantages holds"),
        (3, lambda x: x[0], "response_mask is"),
        (3, lambda x: x[:0], "response_mask is"),
        (3, lambda x: x * 2, "response_mask holds 2"),
        (3, lambda x: x * 0.5, "response_mask holds 0.5"),
        (3, None, "response_mask is None"),
    ],
)
def test_bad_tensors(position, value, message):
    for name in ("grpo", "nfpo"):
        with pytest.raises(ValueError, match=message):
            objectives.get(name)(*replaced(position, value))


def test_rounding_above_probability_1_is_tolerated():
    run("dppo_kl", replaced(0, with_entry(1e-6)))


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("grpo", {"clip_low": 1.5}, "clip_low=1.5"),
        ("grpo", {"clip_high": -0.1}, "clip_high=-0.1"),
        ("ppo", {"dual_clip": 1.0}, "dual_clip=1.0"),
        ("dppo_tv", {"delta": -0.2}, "delta=-0.2"),
        ("dppo_tv", {"ratio_cap": 0.2}, "ratio_cap=0.2"),
        ("icepop", {"band": (3.0, 1 / 3)}, "band="),
        ("nfpo", {"horizon": 0}, "horizon=0"),
        ("nfpo", {"trace_clip": (1.4, 0.8)}, "trace_clip="),
        ("nfpo", {"region": "tvd"}, "region='tvd'"),
        ("nfpo", {"ratio_bound": 1000.0}, "ratio_bound=1000.0"),
        ("nfpo", {"rho_clip": 0.5}, "rho_clip=0.5"),
        ("nfpo", {"window": "all"}, "window='all'"),
        ("nfpo", {"trace_gradient": True}, "trace_gradient=True"),
        ("nfpo", {"rollout_log_prob": torch.zeros(1, 1)}, "rollout_log_prob is"),
        ("nfpo", {"rollout_log_prob": torch.ones(6, 9)}, "rollout_log_prob holds 1.0"),
        ("exact_pg", {"trace_gradient": "none"}, "trace_gradient='none'"),
        ("grpo", {"loss_agg_mode": "mean"}, "loss_agg_mode='mean'"),
        ("grpo", {"reduction": "mean"}, "reduction='mean'"),
        ("grpo", {"batch_num_tokens": 0}, "batch_num_tokens=0"),
    ],
)
def test_bad_parameters(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        run(name, make_batch(), **parameters)


def test_merge_metrics():
    parts = [
        {"tokens": torch.tensor(1), "kl": torch.tensor(1.0), "ratio_max": torch.tensor(2.0)},
        {"tokens": torch.tensor(9), "kl": torch.tensor(0.0), "ratio_max": torch.tensor(1.5)},
    ]
    assert merge_metrics(parts) == pytest.approx({"tokens": 10, "kl": 0.1, "ratio_max": 2.0})
    with pytest.raises(ValueError, match="parts is empty"):
        merge_metrics([])
