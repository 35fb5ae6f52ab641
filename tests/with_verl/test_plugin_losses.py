"""Objectives through verl's policy-loss signature."""

import dataclasses
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch

# not "verl" alone: without the package, that name finds this folder
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")

from job import REFUSED, ROWS, RUNNABLE, WIDTH, actor, direct, make_batch, run
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, agg_loss, get_policy_loss_fn
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import FSDPActorConfig
from verl.workers.config import PolicyLossConfig as StockConfig
from verl.workers.utils.losses import ppo_loss

from rlvr import objectives, registry
from rlvr.engines.verl import PolicyLossConfig, losses
from rlvr.losses import AGGREGATIONS

pytestmark = pytest.mark.verl
SCALE = 16

# Another value of each parameter (of one objective, where it differs), and what it needs to matter.
OTHER = {
    "band": (0.9, 1.1),
    "clip_high": 0.01,
    "clip_low": 0.01,
    "delta": 0.01,
    "dual_clip": 1.1,
    "half_life": 2.0,
    "horizon": 2,
    "influence_clip": (0.99, 1.01),
    "max_dual_clipped": 0,
    "ratio_bound": 0.05,
    "ratio_cap": 1.01,
    "ratio_clip": 1.05,
    "ratio_floor": 0.9,
    "ratio_limit": 1.5,
    "region": "none",
    "rho_clip": 1.1,
    "trace_clip": (0.99, 1.01),
    "trace_gradient": "full",
    "unsafe_influence_clip": None,
    "window": "positions",
    ("exact_pg", "ratio_bound"): 0.5,
    ("gspo", "clip_low"): 0.5,
    ("gspo", "clip_high"): 0.5,
    ("gspo_token", "clip_low"): 0.5,
    ("gspo_token", "clip_high"): 0.5,
}
NEEDS = {
    ("nfpo", "clip_low"): {"region": "clip"},
    ("nfpo", "clip_high"): {"region": "clip"},
    ("nfpo", "band"): {"region": "band"},
    ("nfpo", "trace_gradient"): {"trace_clip": (0.0, 1e6)},
    ("nfpo", "window"): {"trace_clip": (0.0, 1e6)},
    ("fipo", "max_dual_clipped"): {"ratio_limit": 100.0},
}
OURS = [
    loss_mode
    for name in RUNNABLE
    for loss_mode in (name, f"rlvr.{name}")
    if isinstance(get_policy_loss_fn(loss_mode), losses.PolicyLoss)
]
KNOBS = [
    (name, knob)
    for name in RUNNABLE
    for knob in objectives.get(name).parameters
    if knob not in objectives.get(name).tensors
]


def same(ours, reference):
    """Equal in loss and gradient, up to float32."""
    np.testing.assert_allclose(ours[0], reference[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours[1], reference[1], rtol=1e-5, atol=1e-6 * float(reference[1].abs().max()))


@pytest.mark.parametrize("loss_mode", OURS)
def test_defaults(loss_mode):
    batch = make_batch()
    ours = run(actor(loss_mode), batch)
    same(ours, direct(loss_mode.removeprefix("rlvr."), batch, loss_agg_mode="token-mean"))
    assert ours[1].abs().max() > 0


@pytest.mark.fault("knob-that-is-never-read")
@pytest.mark.parametrize(("name", "knob"), KNOBS)
def test_every_knob_changes_the_loss(name, knob):
    value = OTHER[(name, knob)] if (name, knob) in OTHER else OTHER[knob]
    batch, needs = make_batch(), NEEDS.get((name, knob), {})
    before = run(actor(PolicyLossConfig(f"rlvr.{name}", **needs)), batch)
    after = run(actor(PolicyLossConfig(f"rlvr.{name}", **needs, **{knob: value})), batch)
    assert any(not torch.allclose(a, b, rtol=1e-4) for a, b in zip(before[:2], after[:2], strict=True))
    same(after, direct(name, batch, loss_agg_mode="token-mean", **needs, **{knob: value}))


@pytest.mark.parametrize("preset", objectives.NFPO_PRESETS)
def test_presets(preset):
    batch = make_batch()
    settings = dict(objectives.NFPO_PRESETS[preset])
    settings.setdefault("loss_agg_mode", "token-mean")
    ours = run(actor(PolicyLossConfig("nfpo", preset=preset), scale=SCALE), batch)
    same(ours, direct("nfpo", batch, loss_scale_factor=SCALE, **settings))


@pytest.mark.fault("mean-of-means", "gradient-follows-the-micro-batch")
@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("name", RUNNABLE)
def test_micro_batches_add_up(name, mode):
    """Micro-batches of rows, each as wide as its own longest row (verl pads so), on one rank and on two."""
    batch = make_batch()
    counts = {"batch_num_tokens": int(batch[3].sum()), "global_batch_size": ROWS}
    whole = direct(name, batch, loss_agg_mode=mode, loss_scale_factor=SCALE, **counts)
    for ranks in (1, 2):
        loss, grad = torch.zeros(()), torch.zeros_like(whole[1])
        for rows in ([0, 1], [2], [3, 6, 5, 4, 7]):
            width = max(1, int((batch[3][rows] * torch.arange(1, WIDTH + 1)).max()))
            part = tuple(t[rows, :width] for t in batch)
            config = actor(f"rlvr.{name}", mode, SCALE, {**counts, "dp_size": ranks})
            part_loss, part_grad, _ = run(config, part)
            loss += part_loss / ranks  # verl averages over ranks
            grad[rows, :width] += part_grad / ranks
        same((loss, grad), whole)


def test_loss_agg_mode_of_the_policy_loss_wins():
    batch = make_batch()
    config = actor(PolicyLossConfig("nfpo", loss_agg_mode="seq-mean-token-sum"), "token-mean")
    same(run(config, batch), direct("nfpo", batch, loss_agg_mode="seq-mean-token-sum"))


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("name", RUNNABLE)
def test_rollout_weights_multiply_the_token_loss(name, mode):
    batch = make_batch()
    weights = torch.rand(ROWS, WIDTH, generator=torch.Generator().manual_seed(3)) * 2
    weights[0, ::2] = 0.0
    token_loss = direct(name, batch, reduction="none")[0]
    ours = run(actor(f"rlvr.{name}", mode, SCALE), batch, weights)
    expected = agg_loss(token_loss * weights, batch[3], mode, loss_scale_factor=SCALE)
    np.testing.assert_allclose(ours[0], expected, rtol=1e-5, atol=1e-6)
    junk = torch.where(batch[3], weights, torch.nan)
    same(run(actor(f"rlvr.{name}", mode, SCALE), batch, junk), ours)
    ones = run(actor(f"rlvr.{name}", mode, SCALE), batch, torch.ones_like(weights))
    same(ones, run(actor(f"rlvr.{name}", mode, SCALE), batch))
    assert not torch.allclose(ours[1], ones[1])


def test_rollout_weights_are_constants():
    weights = torch.rand(ROWS, WIDTH, generator=torch.Generator().manual_seed(3)).requires_grad_()
    run(actor("nfpo"), make_batch(), weights)
    assert weights.grad is None


@pytest.mark.parametrize("weighted", [False, True])
def test_ppo_is_verls_vanilla(weighted):
    batch = make_batch()
    weights = torch.rand(ROWS, WIDTH, generator=torch.Generator().manual_seed(3)) if weighted else None
    ours, theirs = run(actor("ppo"), batch, weights), run(actor("vanilla"), batch, weights)
    same(ours, theirs)
    assert ours[2]["actor/ppo_kl"] == pytest.approx(theirs[2]["actor/ppo_kl"], rel=1e-5)


def through_ppo_loss(loss_mode, **settings):
    """(loss, gradient by the model's log-probs, metrics) of verl's ``ppo_loss`` on three ragged responses."""
    g = torch.Generator().manual_seed(1)
    prompts, responses = [2, 3, 1], [4, 2, 5]

    def rows(lengths, make):
        return torch.nested.as_nested_tensor([make(n) for n in lengths], layout=torch.jagged)

    def log_probs(lengths):
        return rows(lengths, lambda n: -0.2 - torch.rand(n, generator=g))

    whole = [p + r for p, r in zip(prompts, responses, strict=True)]
    data = {
        "prompts": rows(prompts, lambda n: torch.zeros(n, dtype=torch.int64)),
        "responses": rows(responses, lambda n: torch.zeros(n, dtype=torch.int64)),
        "response_mask": rows(responses, lambda n: torch.ones(n, dtype=torch.int64)),
        "old_log_probs": log_probs(responses),
        "ref_log_prob": log_probs(responses),
        "advantages": rows(responses, lambda n: torch.randn(1, generator=g).expand(n).clone()),
    }
    counts = {"dp_size": 1, "batch_num_tokens": sum(responses), "global_batch_size": 3}
    model_log_probs = log_probs(whole).values().requires_grad_()
    output = {"log_probs": model_log_probs, "entropy": model_log_probs.square()}
    policy_loss = StockConfig(loss_mode=loss_mode)
    config = FSDPActorConfig(rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=policy_loss, **settings)
    loss, metrics = ppo_loss(config, output, tu.get_tensordict(data, non_tensor_dict=counts))
    loss.backward()
    return loss.detach(), model_log_probs.grad, metrics


def test_entropy_and_kl_terms_of_verl_add_to_the_loss():
    """verl adds them in place to what the policy loss returned."""
    terms = {"entropy_coeff": 0.1, "use_kl_loss": True, "kl_loss_coef": 0.2}
    ours = [through_ppo_loss("ppo"), through_ppo_loss("ppo", **terms)]
    theirs = [through_ppo_loss("vanilla"), through_ppo_loss("vanilla", **terms)]
    for mine, verls in zip(ours, theirs, strict=True):
        same(mine, verls)
    assert not torch.allclose(ours[0][1], ours[1][1])
    through_ppo_loss("nfpo", **terms)


@pytest.mark.parametrize("name", RUNNABLE)
def test_metrics(name):
    batch = make_batch()
    metrics = run(actor(f"rlvr.{name}"), batch)[2]
    expected = {f"actor/{k}": float(v) for k, v in direct(name, batch)[2].items()}
    share = expected.get("actor/clip_fraction", expected.get("actor/masked_fraction", 0.0))
    expected |= {"actor/pg_clipfrac": share, "actor/ppo_kl": expected["actor/kl"]}
    assert metrics == pytest.approx(expected)
    assert all(type(value) is float for value in metrics.values())
    Metric.from_dict(metrics, aggregation=AggregationType.MEAN)  # what ppo_loss does with them


@pytest.mark.parametrize("name", REFUSED)
def test_missing_tensors_are_refused(name):
    for loss_mode in (name, f"rlvr.{name}"):
        with pytest.raises(ValueError, match=rf"loss_mode='{name}' needs \w+.*verl does not hand"):
            run(actor(loss_mode), make_batch())
    assert REFUSED == ["mpo", "mpo_grpo"]


def test_a_new_objective_with_a_tensor_is_refused(monkeypatch):
    def newcomer(batch, *, value_estimate: torch.Tensor | None = None, delta: float = 0.1):
        raise AssertionError

    monkeypatch.setitem(
        registry._REGISTRY, "newcomer", registry.Objective(newcomer, "token-mean", ("value_estimate",))
    )
    with pytest.raises(ValueError, match=r"newcomer.*value_estimate"):
        losses.PolicyLoss("newcomer")(*make_batch(), config=actor())


def test_nothing_valid():
    old, new, advantages, mask = make_batch()
    counts = {"batch_num_tokens": 0, "global_batch_size": ROWS, "dp_size": 1}
    loss, grad, _ = run(actor("nfpo", counts=counts), (old, new, advantages * 0, mask & False))
    assert loss == 0 and not grad.any()


def test_ranks_without_counts_are_refused():
    with pytest.raises(ValueError, match="dp_size > 1"):
        run(actor("nfpo", counts={"dp_size": 2}), make_batch())


def test_a_configuration_without_policy_loss():
    """verl's distillation calls a policy loss with a configuration of its own."""
    batch = make_batch()
    old, new, advantages, mask = batch
    counts = {"batch_num_tokens": 7, "global_batch_size": ROWS, "dp_size": 1, "loss_scale_factor": None}
    config = SimpleNamespace(global_batch_info=counts)
    loss, _ = get_policy_loss_fn("nfpo")(old, new, advantages, mask, "token-mean", config, None)
    expected = direct("nfpo", batch, loss_agg_mode="token-mean", batch_num_tokens=7)[0]
    assert loss.item() == pytest.approx(expected.item())


def test_check_can_be_switched_off():
    old, new, advantages, mask = make_batch()
    wrong = (old, new.masked_fill(mask, 0.1), advantages, mask)
    with pytest.raises(ValueError, match="log_prob holds"):
        run(actor(PolicyLossConfig("nfpo")), wrong)
    run(actor(PolicyLossConfig("nfpo", check=False)), wrong)


def test_settings_of_verls_own_losses_are_named(warnings):
    """Of the actor and of its policy loss; each that verl's losses read and ours do not."""
    stock = StockConfig(loss_mode="nfpo", ppo_kl_coef=0.2, clip_cov_ratio=0.1)
    config = actor(stock)
    object.__setattr__(config, "tau_pos", 2.0)
    run(config, make_batch())
    assert [text.partition(" is not read")[0] for text in warnings()] == [
        "actor.tau_pos=2.0",
        "actor.policy_loss.clip_cov_ratio=0.1",
        "actor.policy_loss.ppo_kl_coef=0.2",
    ]


def test_unread_settings_are_all_that_verl_has():
    """A new setting of verl's losses must be looked at: is it read by ours?"""
    fields = {f.name: f.default for f in dataclasses.fields(StockConfig)}
    assert {n: fields[n] for n in losses.UNREAD_OF_POLICY_LOSS} == losses.UNREAD_OF_POLICY_LOSS
    assert fields.keys() - losses.UNREAD_OF_POLICY_LOSS.keys() == {
        "_target_",
        "loss_mode",
        "rollout_correction",
    }
    of_actor = {f.name: f.default for f in dataclasses.fields(FSDPActorConfig)}
    assert {n: of_actor[n] for n in losses.UNREAD} == losses.UNREAD


@pytest.mark.fault("clip-that-never-acts")
def test_a_clip_that_never_acts_is_named_once(warnings):
    """huggingface/trl#3834. A call is a micro-batch; 50 updates of two on each of two ranks are 100 calls."""
    old, new, advantages, mask = make_batch()
    near = old + 1e-4 * (new - old)
    tokens = 4 * int(mask.sum())
    counts = {"batch_num_tokens": tokens, "global_batch_size": 4 * ROWS, "dp_size": 2}
    config = actor(PolicyLossConfig("nfpo", delta=0.3), counts=counts)
    for call in range(1, 151):
        run(config, (old, near, advantages, mask))
        assert len(warnings()) == (call >= 100)
    assert "nfpo: its clip or mask (delta=0.3) touched no token in 50 updates" in warnings()[0]


def test_a_clip_that_acts_is_not_named(warnings):
    config = actor("nfpo")
    for _ in range(60):
        run(config, make_batch())
    assert not warnings()


@pytest.fixture
def warnings(caplog, monkeypatch):
    losses._warn_once.cache_clear()
    for loss in POLICY_LOSS_REGISTRY.values():
        if isinstance(loss, losses.PolicyLoss):
            monkeypatch.setattr(loss, "_idle", None)
    caplog.set_level(logging.WARNING, logger=losses.logger.name)
    yield lambda: [record.getMessage() for record in caplog.records]
    losses._warn_once.cache_clear()


def test_unread_clips_are_named_once(warnings):
    config = actor("nfpo")
    object.__setattr__(config, "clip_ratio_high", 0.28)
    for _ in range(2):
        run(config, make_batch())
    assert len(warnings()) == 1 and "clip_ratio_high=0.28 is not read" in warnings()[0]


def test_without_loss_scale_factor_the_cut_matters_and_is_named(warnings):
    """In verl the divisor is then the longest row of the micro-batch."""
    mode, counts = "seq-mean-token-sum-norm", {"global_batch_size": 2, "dp_size": 1}
    batch = tuple(t[[0, 5]] for t in make_batch())
    joint = run(actor("vanilla", mode, None, counts), batch)[1]
    alone = run(actor("vanilla", mode, None, counts), tuple(t[1:, :4] for t in batch))[1]
    np.testing.assert_allclose(alone, joint[1:, :4] * WIDTH / 4, rtol=1e-5)
    assert not warnings()
    run(actor("nfpo", mode, None, counts), batch)
    assert len(warnings()) == 1 and "loss_scale_factor" in warnings()[0]
