"""Faults that public implementations had, a test per kind: our value is right, and it is not the fault's.

Faults of advantages and of filters have theirs in test_advantages.py: variance as a difference of squares
(NVIDIA-NeMo/RL PR#4158), a floor under the variance (verl-project/verl PR#3635), one reward present of
eight (huggingface/trl PR#5773), dynamic sampling on shaped rewards (NVIDIA-NeMo/RL#2431).
"""

import math

import numpy as np
import pytest
import torch
from local_fixtures import PROBLEMS, codec, random_policy, random_prompts, train_config
from objective_cases import NAMES, run

from rlvr import objectives
from rlvr.engines.local.job import Job
from rlvr.engines.local.packing import pack
from rlvr.engines.local.rollout import collect, training_problems
from rlvr.engines.local.training import START_GATE, _Run
from rlvr.engines.local.update import MiniBatch, Updater, minibatches, response_log_prob
from rlvr.objectives import FIPO_PRESETS, NFPO_PRESETS
from rlvr.ratios import forward_trace
from rlvr.rewards import mask_truncated

NAN = float("nan")
RATIOS = [[1.1, 0.5, 4.0, 1.0, 1.05]]
CORRECTED = sorted(set(NAMES) - {"uncorrected"})  # objectives with a ratio


def batch_of(ratios, advantages=(1.0,), mask=None, old=0.02, dtype=torch.float64):
    """Batch with these token ratios [B][T], every token of probability ``old`` in the rollout."""
    ratios = torch.tensor(ratios, dtype=torch.float64)
    old_log_prob = torch.full_like(ratios, math.log(old))
    mask = torch.ones_like(ratios) if mask is None else torch.tensor(mask)
    new = (old_log_prob + ratios.log()).to(dtype)
    return new, old_log_prob.to(dtype), torch.tensor(advantages, dtype=dtype), mask


def push(name, batch, **parameters):
    """Minus the gradient of the summed losses: how hard each token's log-prob is pushed up, [B, T]."""
    return -run(name, batch, loss_agg_mode="token-sum", **parameters)[1].numpy()


# --- aggregation --------------------------------------------------------------------------------------


# oh-lab/NFPO core_algos.py; verl-project/verl#3741, fixed by PR#5417: no division by the sequences
@pytest.mark.fault("gradient-follows-the-micro-batch")
@pytest.mark.parametrize("preset", NFPO_PRESETS)
def test_gradient_does_not_follow_the_micro_batch_size(preset):
    batch = batch_of([[1.0] * 4] * 8, [1.0] * 8, old=math.exp(-1))  # every token's loss is 1
    matrix = run("nfpo", batch, reduction="none", **NFPO_PRESETS[preset])[0]
    assert [float(part.sum() / 4) for part in (matrix, matrix[:4])] == pytest.approx([8, 4])  # the fault
    for size in (1, 4, 8):
        parts = [
            run("nfpo", part, global_batch_size=8, **NFPO_PRESETS[preset])
            for part in zip(*(x.split(size) for x in batch), strict=True)
        ]
        assert sum(part[0].item() for part in parts) == pytest.approx(1)
        np.testing.assert_allclose(torch.cat([part[1] for part in parts]), -np.ones((8, 4)) / 32)


# allenai/open-instruct PR#1137, PR#1161; PrimeIntellect-ai/prime-rl#2358; huggingface/trl#3021
@pytest.mark.fault("mean-of-means")
@pytest.mark.parametrize("name", NAMES)
def test_mean_of_micro_means_is_not_the_mean(name):
    batch = batch_of([[1.0] * 9] * 2, [1.0, 1.0], [[1] + [0] * 8, [1] * 9])  # 1 and 9 tokens

    def micro(i, **counts):
        return run(name, [x[i : i + 1] for x in batch], loss_agg_mode="token-mean", **counts)[1][0]

    for i in range(2):
        np.testing.assert_allclose(micro(i, batch_num_tokens=10), -batch[3][i] / 10)
    assert micro(0)[0] / 2 == pytest.approx(-1 / 2)  # the fault: five times the share of that token
    assert micro(1)[0] / 2 == pytest.approx(-1 / 18)


# huggingface/trl#6369, PR#6439: truncated tokens left the numerator and stayed in the denominator
@pytest.mark.fault("truncated-in-the-denominator")
@pytest.mark.parametrize("name", NAMES)
def test_truncated_responses_leave_numerator_and_denominator(name):
    batch = batch_of([[1.0] * 4] * 4, [1.0] * 4)
    settings = {"loss_agg_mode": "token-mean"}
    filtered = mask_truncated(batch[3], torch.tensor([False, True, False, True]))
    grad = run(name, (*batch[:3], filtered), **settings)[1]
    np.testing.assert_allclose(grad[0], [-1 / 8] * 4)
    wrong = run(name, (*batch[:3], filtered), batch_num_tokens=16, **settings)[1]
    np.testing.assert_allclose(wrong[0], [-1 / 16] * 4)
    loss, grad, _ = run(name, (*batch[:3], torch.zeros(4, 4)), **settings)
    assert loss == 0 and not grad.any()


# huggingface/trl#2995 (a first loss of 0.5 is right), huggingface/trl#3823, alibaba/ROLL#165
@pytest.mark.fault("sequence-loss-averaged-over-tokens", "right-first-loss-taken-for-a-fault")
def test_first_loss_of_lengths_2_and_6():
    batch = batch_of([[1.0] * 6] * 2, [1.0, -1.0], [[1, 1, 0, 0, 0, 0], [1] * 6])
    assert run("gspo", batch)[0].item() == pytest.approx(0)  # one ratio per response: mean over responses
    for name in ("gspo", "grpo"):
        for mode, loss in (("seq-mean-token-mean", 0), ("token-mean", 0.5), ("token-sum", 4)):
            assert run(name, batch, loss_agg_mode=mode)[0].item() == pytest.approx(loss, abs=1e-15)
    # what to look at instead does not depend on advantages
    metrics = run("grpo", batch)[2]
    assert metrics["ratio_mean"] == 1 and metrics["kl"] == 0 and metrics["tokens"] == 8


# hiyouga/EasyR1#595, PR#596: a value per response met [B, T], silently where B == T
@pytest.mark.fault("broadcast-the-wrong-way")
@pytest.mark.parametrize("name", NAMES)
def test_a_value_per_response_stays_with_its_row(name):
    advantages = [1.0, 2.0, -1.0, 0.5]
    push_of = push(name, batch_of([[1.0] * 4] * 4, advantages))
    expected = np.array(advantages)[:, None] * np.ones((4, 4))
    np.testing.assert_allclose(push_of, expected)
    assert not np.allclose(push_of, np.array(advantages) * np.ones((4, 4)))  # (B,) times (B, T)


@pytest.mark.fault("broadcast-the-wrong-way")
def test_a_sequence_ratio_stays_with_its_row():
    ratios = [[r] * 4 for r in (1.0, 1.1, 1.2, 1.3)]
    for name in ("gspo", "gspo_token", "masked_gspo", "gmpo"):
        loss, _, _ = run(name, batch_of(ratios, [1.0] * 4), clip_high=0.9, reduction="none")
        np.testing.assert_allclose(loss, -np.array(ratios))
        assert not np.allclose(loss, -np.array(ratios).T)


# OpenRLHF/OpenRLHF PR#1240: NaN * 0 is NaN
@pytest.mark.fault("nan-behind-a-mask")
@pytest.mark.parametrize("name", NAMES)
def test_nan_in_old_log_prob_at_a_masked_position(name):
    new, old, mask = torch.zeros(1, 2), torch.tensor([[0.0, NAN]]), torch.tensor([[1, 0]])
    loss, grad, metrics = run(name, (new, old, torch.ones(1), mask))
    clean, clean_grad, clean_metrics = run(name, (new, new, torch.ones(1), mask))
    assert torch.equal(loss, clean) and torch.equal(grad, clean_grad) and metrics == clean_metrics
    assert grad[0, 0] < 0 and grad[0, 1] == 0
    assert (-(new - old).exp() * mask).sum().isnan()  # the fault
    if name == "grpo":
        assert loss == -1


# --- ratios, clips, caps ------------------------------------------------------------------------------


# oh-lab/NFPO, docstring and code: N counts the current token, so there are N - 1 factors
@pytest.mark.fault("horizon-off-by-one")
def test_horizon_counts_the_current_token():
    for horizon, raw, clipped in (
        (2, [0.5, 3, 1, 1.05, 1], [0.8, 1.2, 1, 1.05, 1]),
        (8, [1.575, 3.15, 1.05, 1.05, 1], [1.2, 1.2, 1.05, 1.05, 1]),
    ):
        log_ratio = torch.tensor(RATIOS, dtype=torch.float64).log()
        np.testing.assert_allclose(
            forward_trace(log_ratio, torch.ones(1, 5), horizon, 3.0, None), [raw], rtol=1e-12
        )
        pushed = push("nfpo", batch_of(RATIOS), horizon=horizon, trace_clip=(0.8, 1.2))
        np.testing.assert_allclose(pushed, np.array(RATIOS) * clipped, rtol=1e-12)
    unclipped = {"horizon": 2, "trace_clip": None}
    n_factors = [0.5 * 3, 3 * 1, 1 * 1.05, 1.05, 1]  # t+1 .. t+N
    assert not np.allclose(push("nfpo", batch_of(RATIOS), **unclipped), np.array(RATIOS) * n_factors)


# oh-lab/NFPO core_algos.py: a masked (tool) token took a place in the window
@pytest.mark.fault("masked-token-takes-a-place")
def test_masked_token_inside_the_window():
    batch = batch_of(RATIOS, mask=[[1, 1, 0, 1, 1]])
    settings = {"horizon": 3, "trace_clip": None}
    released = np.array([[1.1 * 0.5, 0.5 * 1, 0, 1.05, 1.05]])
    np.testing.assert_allclose(push("nfpo", batch, window="positions", **settings), released, rtol=1e-12)
    ours = np.array([[1.1 * 0.5, 0.5 * 1.05, 0, 1.05, 1.05]])  # 1 and 1.05 are the next two tokens
    np.testing.assert_allclose(push("nfpo", batch, **settings), ours, rtol=1e-12)


# oh-lab/NFPO core_algos.py: clip_ratio_c = 10000 in the script and the docstring, read nowhere
@pytest.mark.fault("knob-that-is-never-read")
def test_no_bound_is_for_show():
    batch = batch_of([[math.exp(12)]], old=1e-7)
    for bounds, weight in (
        ({}, math.exp(10)),  # the default of ratio_bound
        ({"ratio_bound": 11.0}, math.exp(11)),
        ({"ratio_bound": 20.0, "rho_clip": 10000.0}, 10000),
    ):
        np.testing.assert_allclose(push("nfpo", batch, **bounds), [[weight]], rtol=1e-9)
    with pytest.raises(ValueError, match="no parameter 'clip_ratio_c'"):
        objectives.nfpo(*batch, clip_ratio_c=10000.0)


# openrlhf/models/loss.py, seq-mask-tis: "clamped" in the comment, the raw exponent in the code
@pytest.mark.fault("cap-that-does-not-cap")
def test_a_cap_caps_an_outlier_inside_a_kept_sequence():
    batch = batch_of([[1.0, 50.0, 1.0]], old=1e-3)  # 0.001 -> 0.05 is inside every region
    for name, cap in (("dppo_tv", 20), ("dppo_kl", 20), ("cispo", 5), ("grpo", 0), ("dapo", 0)):
        regions = {"delta": 1.0} if "dppo" in name else {}
        np.testing.assert_allclose(push(name, batch, **regions), [[1, cap, 1]], rtol=1e-12)
    np.testing.assert_allclose(push("nfpo", batch, horizon=1, rho_clip=3.0), [[1, 3, 1]])
    assert push("dppo_tv", batch, ratio_cap=100.0)[0, 1] == pytest.approx(50)  # the fault's weight


# meta-pytorch/torchforge PR#571: log_prob - log_prob.detach() as the ratio is 1 off-policy too
@pytest.mark.fault("ratio-against-itself")
@pytest.mark.parametrize("name", CORRECTED)
def test_ratio_is_taken_against_the_rollout_policy(name):
    batch = batch_of([[1.25]])
    wide = {"clip_high": 0.5} if "clip_high" in objectives.get(name).parameters else {}
    weight = 1.25 * 1.2 if name == "fipo" else 1.25  # the token's own ratio raises fipo's advantage
    assert push(name, batch, **wide).item() == pytest.approx(weight)  # the fault: 1
    assert run(name, batch, **wide)[2]["ratio_mean"].item() == pytest.approx(1.25)
    assert push("uncorrected", batch).item() == pytest.approx(1)


# NovaSky-AI/SkyRL PR#1928 and PR#553, huggingface/trl grpo_trainer.py, verl examples/cispo_trainer:
# "epsilon_high = 0.2" is a cap of 0.2, 1.2 or 1 + x
@pytest.mark.fault("one-name-three-caps")
def test_cispo_cap_is_absolute_and_leaves_ratio_1_alone():
    batch = batch_of([[1.0, 1.5, 7.0]])
    np.testing.assert_allclose(push("cispo", batch), [[1, 1.5, 5]])
    np.testing.assert_allclose(push("cispo", batch, ratio_cap=1.2), [[1, 1.2, 1.2]])
    for cap in (0.2, 0.999):
        with pytest.raises(ValueError, match=f"ratio_cap={cap}: allowed are numbers >= 1"):
            objectives.cispo(*batch, ratio_cap=cap)
    wrong = batch[0].exp() / batch[1].exp()
    assert wrong.clamp(max=0.2)[0, 0] == 0.2  # every on-policy gradient divided by five


# huggingface/trl#3834: a token clip of 0.2 never acts on a sequence ratio
@pytest.mark.fault("clip-that-never-acts")
def test_sequence_clip_is_of_the_size_of_sequence_ratios():
    batch = batch_of([[1.0005] * 4, [0.9995] * 4], [1.0, -1.0])
    for name in ("gspo", "gspo_token", "masked_gspo"):
        assert run(name, batch)[2]["clip_fraction"] == 1
        assert run(name, batch, clip_low=0.2, clip_high=0.28)[2]["clip_fraction"] == 0
        own = objectives.get(name).parameters
        assert (own["clip_low"], own["clip_high"]) == (3e-4, 4e-4)


# bfloat16 arithmetic (a FIPO fork casts to float32): -5.01 is stored as -5.0, the spacing is 1/32
@pytest.mark.fault("log-probs-in-half-precision")
def test_log_probs_5_00_and_5_01_differ():
    new, old = torch.tensor([[-5.01]]), torch.tensor([[-5.0]])
    wrong = (new.bfloat16() - old.bfloat16()).exp()
    assert wrong.item() == 1
    for name in CORRECTED:
        for old_ in (old, old.bfloat16()):  # -5 itself is exact: only the other one must not be lowered to it
            metrics = run(name, (new, old_, torch.ones(1), torch.ones(1, 1)))[2]
            assert metrics["ratio_mean"].item() == pytest.approx(0.99005, abs=1e-5)


# vukrosic/FIPO core_algos.py: what the script and hidden rules do is not the README's formula
@pytest.mark.fault("rules-behind-the-formula")
def test_fipo_presets_are_the_formula_and_the_release():
    text, release = FIPO_PRESETS["text"], FIPO_PRESETS["release"]
    # what follows has ratio 0.5, then 1.25: the release clips the low side away
    falling = batch_of([[1.0, 0.5]])
    assert push("fipo", falling, half_life=math.inf, **text)[0, 0] == pytest.approx(0.8)
    assert push("fipo", falling, half_life=math.inf, **release)[0, 0] == pytest.approx(1.0)
    rising = batch_of([[1.0, 1.25]])
    for preset in (text, release):
        assert push("fipo", rising, half_life=math.inf, **preset)[0, 0] == pytest.approx(1.2)
    # A < 0 and ratio 11: the release never weighs it above 1, the formula by what follows
    unsafe = batch_of([[11.0, 1.15]], [-1.0])
    for preset, weight in ((text, 1.15), (release, 1.0)):
        pushed = push("fipo", unsafe, half_life=math.inf, dual_clip=None, **preset)
        np.testing.assert_allclose(pushed, [[-11 * weight, -1.15 * 1.15]], rtol=1e-12)
    # two tokens beyond the dual clip silence the response in the release
    for hits, silent in ((1, False), (2, True)):
        batch = batch_of([[11.0] * hits + [1.0] * (3 - hits)], [-1.0])
        assert push("fipo", batch, **text).any()
        assert push("fipo", batch, **release).any() != silent


# --- the engine ---------------------------------------------------------------------------------------


def first_minibatch(**changes):
    config = train_config(**changes)
    problems = training_problems(PROBLEMS, config.prompts_per_step, 0, 0)
    rollout = collect(random_policy(), codec(), problems, config, seed=0)
    return minibatches(rollout, config.minibatches)[0], config


# verl-project/verl#2088, #2996: other kernels, padding, dropout or engines on the same weights
@pytest.mark.fault("same-weights-other-log-probs")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_same_weights_give_the_rollouts_log_probs(temperature):
    batch, _ = first_minibatch(temperature=temperature, max_new_tokens=20)
    policy = random_policy()
    log_prob, _ = response_log_prob(policy.theta, policy.shape, batch.packed, temperature)
    gap = (log_prob - batch.old_log_prob).abs().max().item()
    assert gap < 2e-5 < START_GATE
    if temperature != 1:  # a trainer that forgets the temperature
        other, _ = response_log_prob(policy.theta, policy.shape, batch.packed, 1.0)
        assert (other - batch.old_log_prob).abs().max() > START_GATE
    run_ = _Run(Job("grpo", "grpo", {}, 0, 0, train_config(), PROBLEMS), policy, codec(), "x")
    with pytest.raises(RuntimeError, match="sampler and trainer disagree"):
        run_._gate(batch, log_prob + 2 * START_GATE)
    run_._gate(batch, log_prob)


@pytest.mark.fault("same-weights-other-log-probs")
def test_two_forwards_with_different_padding_agree():
    policy, prompts = random_policy(), random_prompts(3, low=3, high=12)
    responses = torch.randint(2, 60, (3, 15), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([15, 1, 6])
    together, _ = response_log_prob(policy.theta, policy.shape, pack(prompts, responses, lengths, 1), 1.0)
    for i, n in enumerate(lengths.tolist()):
        packed = pack(prompts[i : i + 1], responses[i : i + 1], lengths[i : i + 1], 1)
        alone, _ = response_log_prob(policy.theta, policy.shape, packed, 1.0)
        torch.testing.assert_close(together[i : i + 1, :n], alone, atol=1e-5, rtol=0)


# jingyaogong/minimind#775: "the ratio is always 1" is right with one update per rollout
@pytest.mark.fault("ratio-1-taken-for-a-fault")
def test_one_update_per_rollout_has_ratio_1():
    rows = {}
    for count in (1, 2):
        config = train_config(minibatches=count, lr=3e-2, loss_agg_mode="token-mean")
        run_ = _Run(Job("grpo", "grpo", {}, 0, 0, config, PROBLEMS), random_policy(), codec(), "x")
        run_.step()
        rows[count] = run_.metrics[0]
    assert rows[1]["ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert rows[1]["correction_strength"] < 1e-4 and rows[1]["clip_fraction"] == 0
    assert rows[1]["grad_norm"] > 1e-3  # and yet it learns
    assert rows[2]["correction_strength"] > 1e-3
    # the gradient is REINFORCE's
    batch, _ = first_minibatch(minibatches=1)
    policy, grads = random_policy(), []
    for objective in (objectives.grpo, None):
        theta = policy.theta.clone().requires_grad_()
        log_prob, _ = response_log_prob(theta, policy.shape, batch.packed, 1.0)
        mask = batch.packed.response_mask
        reinforce = -(log_prob * batch.advantages[:, None] * mask).sum() / mask.sum()
        loss = objective(log_prob, batch.old_log_prob, batch.advantages, mask)[0] if objective else reinforce
        grads.append(torch.autograd.grad(loss, theta)[0])
    assert grads[1].norm() > 1e-3
    torch.testing.assert_close(grads[0], grads[1], atol=1e-5, rtol=1e-3)


# nano-aha-moment nano_r1_script.py: "entropy" divided by the token count twice
@pytest.mark.fault("entropy-divided-twice")
def test_entropy_of_a_uniform_policy_is_log_v():
    policy, prompts = random_policy(), random_prompts(2)
    responses = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    packed = pack(prompts, responses, torch.tensor([4, 2]), 1)  # 6 tokens
    zero = torch.zeros_like(policy.theta)  # all logits are 0
    updater = Updater(zero, policy.shape, objectives.grpo, 0.0, (0.9, 0.95), 0.0, 1.0, 1.0)
    old = -packed.response_mask * math.log(policy.shape.vocab_size)
    values, _, _ = updater.step(MiniBatch(packed, old, torch.ones(2), 0))
    assert values["entropy"] == pytest.approx(math.log(policy.shape.vocab_size), rel=1e-6)  # not / 6
    # the mean of -log_prob over given tokens is not entropy
    log_prob, entropy = response_log_prob(policy.theta, policy.shape, packed, 1.0)
    assert abs(entropy + log_prob.sum() / 6) > 1e-3
