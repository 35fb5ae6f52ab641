import math

import numpy as np
import pytest
import torch
from objective_cases import (
    BLOCK,
    IDS,
    INF,
    NAMES,
    TOKEN_ONLY,
    VARIANTS,
    make_batch,
    mtp,
    resolve,
    run,
    slow_gradient,
    slow_objective,
    token_marks,
)

from rlvr import objectives
from rlvr.losses import AGGREGATIONS
from rlvr.objectives import FIPO_PRESETS, NFPO_PRESETS

# --- the formulas, token by token ---------------------------------------------------------------------

# The slow loops count valid tokens; a row without holes is the same for positions.
SLOW = [(n, p) for n, p in VARIANTS if p.get("window") != "positions"]
SLOW += [("nfpo", {"rho_clip": 1.3, "horizon": 2}), ("nfpo", {"region": "band", "band": (0.7, 1.2)})]


@pytest.mark.parametrize(("name", "parameters"), SLOW)
@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_slow_loop(name, parameters, per_token, seed):
    batch = make_batch(scale=1.0, seed=seed, per_token=per_token)
    value = slow_objective(name, parameters, batch[0], *batch)
    loss, _, _ = run(name, batch, reduction="none", **parameters)
    total, _, _ = run(name, batch, loss_agg_mode="token-mean", **parameters)
    if parameters.get("trace_gradient") != "full":  # there the value is a surrogate, only gradients compare
        np.testing.assert_allclose(loss, value, rtol=1e-10, atol=1e-13)
        assert total.item() == pytest.approx(value.sum().item() / int(batch[3].sum()), rel=1e-10)
    assert total.item() == pytest.approx(loss.sum().item() / int(batch[3].sum()), rel=1e-10)


@pytest.mark.parametrize(("name", "parameters"), SLOW)
@pytest.mark.parametrize("per_token", [False, True])
def test_gradient_is_that_of_the_slow_loop(name, parameters, per_token):
    batch = make_batch(rows=5, width=6, scale=0.7, seed=11, per_token=per_token)
    numeric = slow_gradient(name, parameters, batch)
    for reduction in ("loss", "none"):
        settings = {"loss_agg_mode": "token-sum", "reduction": reduction, **parameters}
        np.testing.assert_allclose(run(name, batch, **settings)[1], numeric, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
def test_the_per_token_matrix_carries_its_own_gradient(name, parameters):
    """Any weighting of the matrix of ``reduction="none"`` differentiates like the matrix itself."""
    batch = make_batch(scale=0.7, per_token=True)
    log_prob = batch[0].clone().requires_grad_()
    matrix, _ = objectives.get(name)(log_prob, *batch[1:], reduction="none", **resolve(batch, parameters))
    if parameters.get("trace_gradient") == "full":
        assert not matrix[~batch[3]].any()
    weights = torch.rand(matrix.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    (whole,) = torch.autograd.grad((matrix * weights).sum(), log_prob, retain_graph=True)
    parts = torch.zeros_like(log_prob)
    for i, t in batch[3].nonzero().tolist():
        (part,) = torch.autograd.grad(matrix[i, t], log_prob, retain_graph=True)
        parts += weights[i, t] * part
    torch.testing.assert_close(whole, parts, rtol=1e-10, atol=1e-13)
    assert not matrix[~batch[3]].any() and not whole[~batch[3]].any()


def test_masked_and_clipped_fractions_are_the_silenced_tokens():
    for name, parameters in SLOW:
        if "trace_gradient" in parameters or name in ("fipo", "gmpo", "masked_gspo"):
            continue  # their gradient can vanish for another reason
        batch = make_batch(scale=1.0)
        _, grad, metrics = run(name, batch, loss_agg_mode="token-sum", **parameters)
        silenced = (batch[3] & (grad == 0)).sum() / batch[3].sum()
        share = metrics.get("clip_fraction", metrics.get("masked_fraction"))
        assert share.item() == pytest.approx(silenced.item()), (name, parameters)


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


def test_typed_in_cispo():
    # ratios 0.5, 1, 2, 8: only 8 is above the cap 5; ratio 1 weighs 1
    old = torch.full((1, 4), math.log(0.1), dtype=torch.float64)
    new = old + torch.tensor([[0.5, 1.0, 2.0, 8.0]], dtype=torch.float64).log()
    batch = (new, old, torch.tensor([2.0], dtype=torch.float64), torch.ones(1, 4))
    _, grad, metrics = run("cispo", batch, loss_agg_mode="token-sum")
    np.testing.assert_allclose(grad, [[-1, -2, -4, -10]])
    assert metrics["ratio_cap_fraction"].item() == 0.25
    _, grad, _ = run("cispo", batch, loss_agg_mode="token-sum", ratio_cap=1.28, ratio_floor=0.8)
    np.testing.assert_allclose(grad, [[-1.6, -2, -2.56, -2.56]])


def test_typed_in_fipo():
    # log ratios (0.1, 0.2, -0.4), half-life 1 token: F = (0.1 + 0.1 - 0.1, 0.2 - 0.2, -0.4)
    old = torch.full((1, 3), -5.0, dtype=torch.float64)
    logs = torch.tensor([[0.1, 0.2, -0.4]], dtype=torch.float64)
    batch = (old + logs, old, torch.ones(1, dtype=torch.float64), torch.ones(1, 3))
    settings = {"half_life": 1.0, "loss_agg_mode": "token-sum"}
    _, grad, metrics = run("fipo", batch, **settings)
    influence = np.array([math.exp(0.1), 1.0, 1.0])
    np.testing.assert_allclose(grad, [-influence * np.exp(logs[0].numpy())], rtol=1e-12)
    assert metrics["influence_mean"].item() == pytest.approx(influence.mean())
    assert metrics["influence_clip_fraction"].item() == pytest.approx(1 / 3)
    # a ratio above the limit leaves the sum, and under A < 0 is never pushed down harder
    jump = torch.tensor([[math.log(11.0), 0.15, 0.0]], dtype=torch.float64)
    far = (old + jump, old, -batch[2], batch[3])
    _, grad, metrics = run("fipo", far, **settings, dual_clip=None)
    np.testing.assert_allclose(grad, [[11.0, math.exp(0.3), 1.0]], rtol=1e-12)
    _, grad, _ = run("fipo", far, **settings, dual_clip=None, unsafe_influence_clip=None)
    np.testing.assert_allclose(grad[0, 0], 11 * math.exp(0.075), rtol=1e-12)
    _, grad, metrics = run("fipo", far, **settings, max_dual_clipped=0)
    assert not grad.any() and metrics["dropped_fraction"] == 1
    assert run("fipo", far, **settings, max_dual_clipped=1)[1].any()  # the release drops from two on


def test_typed_in_gspo():
    # mean log ratios log 1.1 and log 0.8, A = (1, -1), clips 0.05: both rows are clipped; then neither
    logs = torch.tensor([[0.0, 2 * math.log(1.1)], [math.log(0.8), math.log(0.8)]], dtype=torch.float64)
    old = torch.full((2, 2), -2.0, dtype=torch.float64)
    batch = (old + logs, old, torch.tensor([1.0, -1.0], dtype=torch.float64), torch.ones(2, 2))
    tight = {"clip_low": 0.05, "clip_high": 0.05}
    for name in ("gspo", "gspo_token", "masked_gspo"):
        loss, grad, metrics = run(name, batch, **tight)
        assert loss.item() == pytest.approx((-1.05 + 0.95) / 2) and not grad.any()
        assert metrics["clip_fraction"] == 1 and metrics["ratio_mean"].item() == pytest.approx(0.95)
        loss, grad, metrics = run(name, batch, clip_low=0.3, clip_high=0.3)
        assert loss.item() == pytest.approx((-1.1 + 0.8) / 2) and metrics["clip_fraction"] == 0
        np.testing.assert_allclose(grad, np.array([[-1.1, -1.1], [0.8, 0.8]]) / 4)
    # only the second token is marked: its own ratio, and all of the gradient
    marks = torch.tensor([[0, 1], [0, 1]])
    loss, grad, metrics = run("masked_gspo", batch, clip_low=0.3, clip_high=0.3, token_mask=marks)
    assert loss.item() == pytest.approx((-1.21 + 0.8) / 2) and metrics["marked_fraction"] == 0.5
    np.testing.assert_allclose(grad, np.array([[0, -1.21], [0, 0.8]]) / 2)
    loss, grad, _ = run("masked_gspo", batch, token_mask=torch.zeros(2, 2))
    assert loss.item() == 0.0 and not grad.any()  # ratio 1, advantages 1 and -1


def test_typed_in_gmpo():
    # A = 1: log ratio 1 is clipped to 0.4, -1 is not; A = -1: the other way round
    logs = torch.tensor([[1.0, -1.0], [1.0, -1.0]], dtype=torch.float64)
    old = torch.full((2, 2), -2.0, dtype=torch.float64)
    batch = (old + logs, old, torch.tensor([1.0, -1.0], dtype=torch.float64), torch.ones(2, 2))
    loss, grad, metrics = run("gmpo", batch)
    up, down = math.exp(-0.3), math.exp(0.3)
    assert loss.item() == pytest.approx((-up + down) / 2) and metrics["clip_fraction"] == 0.5
    np.testing.assert_allclose(grad, np.array([[0, -up / 2], [down / 2, 0]]) / 2)


def test_typed_in_mpo():
    # K = 3, S = 0.36, decay 0.8: b = (0.64, 0.2, 0.16); log ratios of the modules 0.5 and -0.25
    old = torch.full((1, 3), -2.0, dtype=torch.float64)
    new = old + torch.tensor([[0.1, 0.2, -0.1]], dtype=torch.float64)
    old_mtp = torch.full((1, 3, 2), -3.0, dtype=torch.float64)
    new_mtp = (old_mtp + torch.tensor([0.5, -0.25], dtype=torch.float64)).requires_grad_()
    batch = (new, old, torch.ones(1, dtype=torch.float64), torch.ones(1, 3))
    settings = {"mtp_log_prob": new_mtp, "old_mtp_log_prob": old_mtp, "mtp_weight": 0.36}
    settings |= {"clip_high": 0.5, "loss_agg_mode": "token-sum"}
    ratios = np.exp([0.064 + 0.1 - 0.04, 0.128 + 0.1, -0.064])  # the last token has no successor
    loss, grad, metrics = run("mpo", batch, **settings)
    assert loss.item() == pytest.approx(-ratios.sum()) and new_mtp.grad is None
    np.testing.assert_allclose(grad, [-0.64 * ratios], rtol=1e-12)
    assert metrics["ratio_mean"].item() == pytest.approx(ratios.mean())
    assert metrics["token_ratio_mean"].item() == pytest.approx(np.exp([0.1, 0.2, -0.1]).mean())
    full, full_grad, _ = run("mpo", batch, **settings, mtp_gradient="full")
    assert full == loss and torch.equal(full_grad, grad)
    expected = -np.array([[0.2 * ratios[0], 0.16 * ratios[0]], [0.2 * ratios[1], 0], [0, 0]])
    np.testing.assert_allclose(new_mtp.grad[0], expected, rtol=1e-12)


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
    for name, parameters in TOKEN_ONLY:
        _, grad, metrics = run(name, (new, new, advantages, mask), loss_agg_mode="token-sum", **parameters)
        if "token_mask" in parameters:
            continue  # its gradient is spread over the marked tokens
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


# --- identities of the sequence and block ratios ------------------------------------------------------


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_ones_mask_is_gspo(mode, dtype):
    batch = make_batch(dtype=dtype)
    for marks in (None, torch.ones_like(batch[3]), batch[3], batch[3].to(dtype)):
        loss, grad, metrics = run("masked_gspo", batch, token_mask=marks, loss_agg_mode=mode)
        expected, expected_grad, expected_metrics = run("gspo", batch, loss_agg_mode=mode)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(grad, expected_grad)
        assert metrics["marked_fraction"] == 1
        assert metrics["clip_fraction"] == expected_metrics["clip_fraction"]


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_constant_advantage_gspo_token_is_gspo(mode):
    settings = {"loss_agg_mode": mode, "clip_low": 0.1, "clip_high": 0.1}
    batch = make_batch()
    token, row = run("gspo_token", batch, **settings), run("gspo", batch, **settings)
    assert token[0] == row[0]
    torch.testing.assert_close(token[1], row[1], rtol=1e-12, atol=1e-15)
    batch = make_batch(per_token=True)
    assert not torch.allclose(run("gspo_token", batch, **settings)[1], run("gspo", batch, **settings)[1])


def test_masked_gspo_leaves_unmarked_tokens_alone():
    batch = make_batch()
    marks = token_marks(batch)
    _, grad, metrics = run("masked_gspo", batch, token_mask=marks, clip_low=0.9, clip_high=0.9)
    assert not grad[marks == 0].any() and grad[(marks == 1) & batch[3]].all()
    assert metrics["marked_fraction"].item() == pytest.approx(
        ((marks == 1) & batch[3]).sum().item() / batch[3].sum().item()
    )


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize(("block", "token"), [("mpo", "ppo"), ("mpo_grpo", "grpo")])
def test_block_of_one_is_the_token_objective(block, token, mode):
    batch = make_batch(scale=1.0)
    loss, grad, _ = run(token, batch, loss_agg_mode=mode)
    none = {"mtp_log_prob": mtp(3.7, 2), "old_mtp_log_prob": mtp(5.1, 2), "mtp_weight": 0.0}  # b = (1, 0, 0)
    empty = {"mtp_log_prob": torch.zeros(6, 9, 0), "old_mtp_log_prob": torch.zeros(6, 9, 0)}
    for parameters in ({}, none, empty):
        other = run(block, batch, loss_agg_mode=mode, **parameters)
        torch.testing.assert_close(other[0], loss, rtol=1e-12, atol=0)
        torch.testing.assert_close(other[1], grad, rtol=1e-12, atol=0)


def test_block_ratio_of_equal_log_ratios_is_the_token_ratio():
    # every module as far from its old self as the token: a weighted mean of equal numbers
    old = torch.full((3, 5), -2.0, dtype=torch.float64)
    old_mtp = torch.full((3, 5, 2), -3.0, dtype=torch.float64)
    batch = (old + 0.1, old, torch.ones(3, dtype=torch.float64), torch.ones(3, 5))
    _, _, metrics = run("mpo", batch, mtp_log_prob=old_mtp + 0.1, old_mtp_log_prob=old_mtp, reduction="none")
    # the last two positions miss one or both modules
    short = [math.exp(0.08 + 0.2 / 1.8 * 0.1), math.exp(0.08)]
    assert metrics["ratio_mean"].item() == pytest.approx((3 * math.exp(0.1) + sum(short)) / 5)


def test_gmpo_without_clip_is_gspo_without_clip():
    batch = make_batch()
    loss, grad, _ = run("gmpo", batch, clip_low=INF, clip_high=INF)
    wide, wide_grad, _ = run("gspo", batch, clip_low=0.999, clip_high=0.999)
    torch.testing.assert_close(loss, wide, rtol=1e-12, atol=0)
    torch.testing.assert_close(grad, wide_grad, rtol=1e-12, atol=0)


def test_fipo_without_influence_is_dapo():
    batch = make_batch(scale=1.5)
    one = {"influence_clip": (1.0, 1.0), "unsafe_influence_clip": (1.0, 1.0)}
    loss, grad, _ = run("fipo", batch, **one)
    expected, expected_grad, _ = run("dapo", batch)
    assert loss == expected and torch.equal(grad, expected_grad)


def test_fipo_presets():
    batch = make_batch(rows=20, scale=1.5)
    text, release = (run("fipo", batch, **FIPO_PRESETS[name])[1] for name in ("text", "release"))
    assert not torch.equal(text, release)


def test_same_clip_different_recipe():
    # ppo, grpo, dr_grpo, dapo are one loss: clips, aggregation and the caller's advantages tell them apart
    batch = make_batch(scale=1.0)
    shared = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0, "loss_agg_mode": "token-mean"}
    losses = {run(name, batch, **shared)[0].item() for name in ("ppo", "grpo", "dr_grpo", "dapo")}
    assert len(losses) == 1
    defaults = {name: objectives.get(name) for name in ("ppo", "grpo", "dr_grpo", "dapo")}
    assert defaults["dr_grpo"].loss_agg_mode == "seq-mean-token-sum-norm"
    assert {n: o.loss_agg_mode for n, o in defaults.items() if n != "dr_grpo"} == dict.fromkeys(
        ("ppo", "grpo", "dapo"), "token-mean"
    )
    assert defaults["ppo"].parameters["clip_high"] == 0.2 and defaults["grpo"].parameters["clip_high"] == 0.28


def test_unclipped_weights_are_bounded_at_60_nats():
    # 5 ratios of e^16: the product of all is e^80, of the last three e^48
    old = torch.full((1, 5), -18.0, dtype=torch.float64)
    batch = (old + 16, old, torch.ones(1, dtype=torch.float64), torch.ones(1, 5))
    _, grad, _ = run("exact_pg", batch)
    np.testing.assert_allclose(grad, [-np.exp([60.0, 60.0, 48.0, 32.0, 16.0])], rtol=1e-12)
    open_trace = {"trace_clip": None, "ratio_clip": None, "region": "none", "horizon": 9, "ratio_bound": 16.0}
    _, grad, _ = run("nfpo", batch, loss_agg_mode="token-sum", **open_trace)
    np.testing.assert_allclose(grad, [-np.exp([60.0, 60.0, 48.0, 32.0, 16.0])], rtol=1e-12)


# --- knobs --------------------------------------------------------------------------------------------

KNOBS = {
    "clip_low": 0.05,
    "clip_high": 0.05,
    "dual_clip": 1.5,
    "delta": 0.01,
    "ratio_cap": 1.1,
    "ratio_floor": 0.9,
    "band": (0.9, 1.1),
    "horizon": 2,
    "trace_clip": (0.9, 1.1),
    "ratio_clip": 1.1,
    "ratio_bound": 0.05,
    "rho_clip": 1.1,
    "window": "positions",
    "trace_gradient": "full",
    "region": "none",
    "rollout_log_prob": make_batch(rows=20, seed=8)[1],
    "token_mask": token_marks,
    "half_life": 1.0,
    "influence_clip": (0.5, 2.0),
    "ratio_limit": 1.1,
    "unsafe_influence_clip": None,
    "max_dual_clipped": 0,
    "mtp_log_prob": mtp(2.3),
    "old_mtp_log_prob": mtp(2.3),
    "mtp_weight": 0.4,
    "decay": 0.1,
}
UNSAFE = {"ratio_limit": 1.2, "influence_clip": (0.9, 1.2)}
CONTEXT = {
    ("nfpo", "clip_low"): {"region": "clip"},
    ("nfpo", "clip_high"): {"region": "clip"},
    ("nfpo", "band"): {"region": "band"},
    ("fipo", "unsafe_influence_clip"): UNSAFE,
    ("fipo", "max_dual_clipped"): {"dual_clip": 1.5},
    ("gspo", "ratio_bound"): {"clip_low": 0.5, "clip_high": 0.5},
    ("gspo_token", "ratio_bound"): {"clip_low": 0.5, "clip_high": 0.5},
    ("masked_gspo", "ratio_bound"): {"clip_low": 0.5, "clip_high": 0.5},
    **{("mpo", k): BLOCK for k in objectives.mpo.parameters},
    **{("mpo_grpo", k): BLOCK for k in objectives.mpo.parameters},
}


@pytest.mark.parametrize(("name", "knob"), [(n, k) for n in NAMES for k in objectives.get(n).parameters])
def test_every_knob_changes_the_loss(name, knob):
    batch = make_batch(rows=20, scale=1.2)
    context = CONTEXT.get((name, knob), {})
    if knob == "mtp_gradient":
        for value, reaches in (("stop", False), ("full", True)):
            modules = mtp(3.7)(batch).requires_grad_()
            run(name, batch, **context | {"mtp_log_prob": modules, knob: value})
            assert (modules.grad is not None and bool(modules.grad.any())) == reaches
        return
    before = run(name, batch, **context)[1]
    value = 0.3 if "gspo" in name and knob in ("clip_low", "clip_high") else KNOBS[knob]
    after = run(name, batch, **context | {knob: value})[1]
    assert not torch.allclose(before, after)
