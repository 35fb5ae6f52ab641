"""Exact bias and variance of the objectives' gradients: slow loops, typed-in numbers, identities."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import test_figures
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from rlvr import objectives
from rlvr.analysis.bounds import max_state_tv
from rlvr.analysis.enumerated import Enumerated, surrogate
from rlvr.analysis.exactness import (
    DEFAULTS,
    FULL,
    SETTINGS,
    Setting,
    expected_group_advantage,
    gradients,
    moments,
    response_weight,
    survey_gradients,
)
from rlvr.analysis.exactness_summary import lay_out, remaining_bias, summarise
from rlvr.analysis.small_policies import (
    KINDS,
    SmallPolicy,
    at_distance,
    list_responses,
    max_tv,
    random_policy,
    state_steps,
    token_mdp_policies,
)
from rlvr.analysis.token_mdp import TokenMDP
from rlvr.config import Exactness
from rlvr.losses import AGGREGATIONS
from rlvr.reporting.cells import pretty
from rlvr.reporting.figures_exactness import exactness_figure
from rlvr.reporting.style import svg_text, use_style

BY_NAME = {(s.objective, s.label): s for s in SETTINGS}
IDS = [f"{s.objective}: {s.label}" for s in SETTINGS]
FREE = {"region": "none", "trace_clip": None, "ratio_clip": None}


def pair(kind="history", distance=0.3, seed=3, vocabulary=3, length=4):
    """A policy and the logits of a rollout policy, [1, S, V]."""
    policy, direction = random_policy(seed, kind, vocabulary, length)
    return policy, at_distance(policy.logits, direction, distance)[None]


def listed(policy: SmallPolicy, mu_logits, pi_logits=None, reward=None) -> Enumerated:
    """The same process as the rest of the theory sees it."""
    pi = policy.log_prob(policy.logits if pi_logits is None else pi_logits)[..., 0]
    mu = policy.log_prob(mu_logits)[..., 0]
    reward = policy.reward if reward is None else reward
    prob = mu.sum(-1).exp().numpy()
    return Enumerated(policy.tokens.numpy(), prob, (pi - mu).numpy(), reward.numpy())


def nfpo(horizon, gradient="stop"):
    return Setting("nfpo", "", {"horizon": horizon, "trace_gradient": gradient, **FREE})


def mean(policy, mu, setting, **options):
    prob, gradient = gradients(policy, mu, setting, **options)
    return torch.einsum("cr,crp->p", prob, gradient)


# --- small policies -----------------------------------------------------------------------------------------


def test_responses_and_states_of_a_history():
    step = state_steps("history", 3, 2)
    tokens, states = list_responses(step, 2)
    assert tokens.tolist() == [[0, -1], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2]]
    assert states.tolist() == [[0, 0], *[[0, 1]] * 3, *[[0, 2]] * 3]
    # every prefix is its own state
    tokens, states = list_responses(state_steps("history", 4, 4), 4)
    prefixes = {tuple(row[:t]): state[t] for row, state in zip(tokens.tolist(), states.tolist(), strict=True)
                for t in range(4) if row[t] >= 0}  # fmt: skip
    assert len(set(prefixes.values())) == len(prefixes) == 1 + 3 + 9 + 27


def test_responses_and_states_of_a_last_symbol():
    tokens, states = list_responses(state_steps("last symbol", 3, 3), 3)
    for row, state in zip(tokens.tolist(), states.tolist(), strict=True):
        assert state == [0] + [max(a, 0) for a in row[:-1]]
        assert all(a <= 0 for a in row[1:]) or row[0] > 0
    assert len(tokens) == 1 + 2 + 4 + 8


@pytest.mark.parametrize("kind", KINDS)
def test_a_random_policy_is_a_process_at_the_distance_asked_for(kind):
    for distance in (0.0, 0.02, 0.3):
        policy, mu = pair(kind, distance)
        assert max_tv(policy.logits, mu[0]) == pytest.approx(distance, abs=1e-12)
        assert max_state_tv(listed(policy, mu[0])) == pytest.approx(distance, abs=1e-12)  # it sums to 1, too
    assert abs(policy.reward.mean() - 0.5) <= 0.5 / len(policy.reward)


def test_the_token_mdp_is_the_one_of_the_theory():
    mdp = TokenMDP((0, 1, 1), alpha_mu=0.4, alpha_pi=0.7, length=5)
    policy, mu = token_mdp_policies(mdp)
    ours, theirs = listed(policy, mu), mdp.enumerate()
    for name in ("tokens", "prob_mu", "log_ratio", "reward"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-12)
    with pytest.raises(ValueError, match="after_completion='uniform'"):
        token_mdp_policies(replace(mdp, after_completion="uniform"))


def test_what_cannot_be_built_is_refused():
    policy, _ = pair()
    with pytest.raises(ValueError, match="kind='mood': allowed are 'history', 'last symbol'"):
        state_steps("mood", 3, 3)
    with pytest.raises(ValueError, match=r"reward has shape \[2\]: allowed is \[31\]"):
        reward = torch.zeros(2, dtype=torch.float64)
        SmallPolicy(policy.step, policy.length, policy.logits, reward, policy.module_error)
    with pytest.raises(ValueError, match=r"distance=0\.1: the direction leads no further"):
        at_distance(policy.logits, torch.ones_like(policy.logits), 0.1)  # the same for every token: no move


def test_the_exact_gradient_is_that_of_the_expected_reward():
    policy, _ = pair("last symbol")

    def value(logits):
        return float(policy.log_prob(logits)[..., 0].sum(-1).exp() @ policy.reward)

    step = 1e-5 * torch.eye(policy.logits.numel(), dtype=torch.float64).view(-1, *policy.logits.shape)
    numeric = [(value(policy.logits + e) - value(policy.logits - e)) / 2e-5 for e in step]
    assert policy.gradient.tolist() == pytest.approx(numeric, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_looks_ahead_through_all_that_may_lie_between(kind):
    policy, _ = pair(kind)
    found = policy.log_prob(policy.logits, 3)
    prob = found[..., 0].sum(-1).exp()
    tokens = policy.tokens
    for row, t, k in itertools.product(range(len(tokens)), range(policy.length), (2, 3)):
        at = t + k - 1
        if at >= policy.length or tokens[row, at] < 0:
            assert found[row, t, k - 1] == 0
            continue
        same_prefix = (tokens[:, :t] == tokens[row, :t]).all(-1) & (tokens[:, t] >= 0)
        hit = same_prefix & (tokens[:, at] == tokens[row, at])
        assert found[row, t, k - 1].exp() == pytest.approx(float(prob[hit].sum() / prob[same_prefix].sum()))


def test_an_imperfect_module_errs_alike_under_both_policies():
    policy, mu = pair()
    exact, noisy = (policy.log_prob(policy.logits, 3, noisy) for noisy in (False, True))
    assert torch.equal(exact[..., 0], noisy[..., 0]) and noisy.max() <= 1e-12
    assert (exact - noisy)[..., 1:].abs().max() > 0.1
    on_policy = moments(policy, policy.logits[None], BY_NAME["mpo", "K = 3, widest clip, imperfect modules"])
    assert on_policy["error"] / on_policy["exact"] == pytest.approx(0.2, abs=1e-12)
    assert torch.equal(policy.log_prob(mu[0], 3, True)[..., 0], policy.log_prob(mu[0])[..., 0])


# --- moments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS, ids=IDS)
def test_gradients_of_single_responses_one_by_one(setting):
    """One response, one row, autograd from the logits through the objective: no table, no batch."""
    policy, mu = pair("last symbol", length=3)
    k = setting.modules
    prob, fast = gradients(policy, mu, setting)
    length = float(prob[0] @ policy.mask.sum(-1).double())
    baseline = float(prob[0] @ policy.reward)
    objective = objectives.get(setting.objective)
    per_token = (setting.loss_agg_mode or objective.loss_agg_mode) == "seq-mean-token-mean"
    for row in range(len(policy.tokens)):
        theta = policy.logits.clone().requires_grad_()
        width = int(policy.mask[row].sum())
        new = policy.log_prob(theta, k, setting.noisy)[row : row + 1, :width]
        old = policy.log_prob(mu[0], k, setting.noisy)[row : row + 1, :width]
        extra = {"mtp_log_prob": new[..., 1:], "old_mtp_log_prob": old[..., 1:]} if k > 1 else {}
        if setting.marked:
            extra["token_mask"] = torch.tensor([[1, 0, 1][:width]])
        loss, _ = objective(
            new[..., 0], old[..., 0], policy.reward[row : row + 1] - baseline, torch.ones(1, width),
            reduction="none", **setting.parameters, **extra,
        )  # fmt: skip
        (slope,) = torch.autograd.grad(loss.sum() * (length / width if per_token else 1), theta)
        torch.testing.assert_close(fast[0, row], -slope.flatten(), rtol=1e-10, atol=1e-12)


def test_moments_of_one_coin_by_hand():
    """One token, heads right: pi = (1/2, 1/2), mu = (3/4, 1/4)."""
    none = torch.zeros(2, 1, 2, dtype=torch.float64)
    reward = torch.tensor([0.0, 1.0], dtype=torch.float64)
    coin = SmallPolicy(np.array([[-1, -1]]), 1, torch.zeros(1, 2, dtype=torch.float64), reward, none)
    mu = torch.tensor([[[0.75, 0.25]]], dtype=torch.float64).log()
    assert coin.gradient.tolist() == pytest.approx([-0.25, 0.25])
    plain = moments(coin, mu, Setting("uncorrected", ""))
    assert plain["error"] / plain["exact"] == pytest.approx(1 / 4)
    corrected = moments(coin, mu, nfpo(1))
    assert corrected["error"] == pytest.approx(0, abs=1e-15)
    assert corrected["spread"] == pytest.approx(1 / 6)
    assert corrected["cosine"] == pytest.approx(1)


def test_several_rollout_policies_in_one_call_are_each_alone():
    policy, direction = random_policy(0, "history", 3, 4)
    mu = torch.stack([at_distance(policy.logits, direction, d) for d in (0.0, 0.1, 0.3)])
    for setting in (BY_NAME["gspo", "default"], BY_NAME["mpo", "K = 3, default"]):
        together = moments(policy, mu, setting)
        for case in range(3):
            alone = moments(policy, mu[case : case + 1], setting)
            for name, value in alone.items():
                assert together[name][case] == pytest.approx(value[0], rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_weights_are_those_of_a_large_batch(mode):
    """A batch that holds each response in proportion to mu, aggregated by the objective itself."""
    policy, _ = pair("last symbol", length=2)
    counts = torch.tensor([3, 1, 4, 1, 5, 9, 2])
    prob = (counts / counts.sum()).double()
    rows = torch.repeat_interleave(torch.arange(len(counts)), counts)
    log_prob = policy.log_prob(policy.logits)[..., 0]
    advantages = torch.linspace(-1, 2, len(counts), dtype=torch.float64)
    leaf = log_prob[rows].requires_grad_()
    loss, _ = objectives.uncorrected(
        leaf, log_prob[rows], advantages[rows], policy.mask[rows], loss_agg_mode=mode
    )
    (batch,) = torch.autograd.grad(loss, leaf)
    length = float(prob @ policy.mask.sum(-1).double())
    unit = {"token-mean": length, "token-sum": 1 / len(rows), "seq-mean-token-sum": 1.0,
            "seq-mean-token-mean": length, "seq-mean-token-sum-norm": policy.length}[mode]  # fmt: skip
    weight = response_weight(prob[None], policy.mask, mode)[0]
    each = torch.where(policy.mask, -(weight * advantages * prob)[:, None], 0.0)
    total = torch.zeros_like(each).index_add_(0, rows, batch)
    torch.testing.assert_close(total * unit, each)


def test_every_objective_is_surveyed_and_once_by_default():
    """A new objective belongs into exactness.SETTINGS, and shows up in the table and the figure."""
    assert {s.objective for s in SETTINGS} == set(objectives.list_objectives())
    assert sorted(s.objective for s in DEFAULTS) == objectives.list_objectives()
    assert len(BY_NAME) == len(SETTINGS)
    for setting in DEFAULTS:
        own = {k: v for k, v in setting.parameters.items()}
        assert own == ({"horizon": 4} if setting.objective == "nfpo" else {}) and not setting.loss_agg_mode
    assert objectives.nfpo.parameters["horizon"] == 4


# --- identities ---------------------------------------------------------------------------------------------

ON_POLICY_BIASED = {
    ("grpo", "seq-mean-token-mean"), ("gspo", "default"), ("gspo", "widest clip"), ("gspo_token", "default"),
    ("gmpo", "default"), ("masked_gspo", "default"), ("masked_gspo", "widest clip, token-mean"),
}  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS, ids=IDS)
@pytest.mark.parametrize("kind", KINDS)
def test_on_policy(setting, kind):
    """Token weights that are summed are unbiased; lengths, token masks and b_1 are not."""
    policy, _ = random_policy(1, kind, 3, 5)
    found = moments(policy, policy.logits[None], setting)
    bias = found["error"][0] / found["exact"][0]
    if setting.modules > 1 and setting.parameters.get("mtp_gradient") == "full":
        assert 0.02 < bias < 0.4
    elif setting.modules > 1:
        assert bias == pytest.approx(0.2, abs=1e-12) and found["cosine"][0] == pytest.approx(1)
    elif (setting.objective, setting.label) in ON_POLICY_BIASED:
        assert bias > 0.05 and found["cosine"][0] < 0.9999
    else:
        assert bias < 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("horizon", [1, 2, 3, 4])
def test_the_differentiated_trace_is_the_gradient_of_the_surrogate(kind, horizon):
    """dL^(N)/dtheta, by finite differences of the surrogate of the theory."""
    policy, mu = pair(kind)
    advantages = policy.reward - policy.reward.mean()
    found = mean(policy, mu, nfpo(horizon, "full"), advantages=advantages[None])
    rng = np.random.default_rng(0)
    for _ in range(5):
        way = torch.from_numpy(rng.standard_normal(policy.logits.shape))
        ends = [
            surrogate(listed(policy, mu[0], policy.logits + e * way, advantages), horizon).value
            for e in (1e-5, -1e-5)
        ]
        assert float(found @ way.flatten()) == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-8)


@pytest.mark.parametrize("distance", [0.02, 0.3, 0.6])
@pytest.mark.parametrize("kind", KINDS)
def test_the_full_trace_differentiated_is_the_exact_gradient(kind, distance):
    policy, mu = pair(kind, distance)
    for setting in (nfpo(FULL, "full"), nfpo(policy.length, "full"), BY_NAME["exact_pg", "full gradient"]):
        assert (mean(policy, mu, setting) - policy.gradient).norm() < 1e-10
    # response by response it is the trajectory's importance weight: A prod rho sum grad log pi
    prob, found = gradients(policy, mu, BY_NAME["exact_pg", "full gradient"])
    ratio = policy.log_prob(policy.logits)[..., 0].sum(-1).exp() / prob
    weight = (policy.reward - prob @ policy.reward) * ratio
    torch.testing.assert_close(found, weight[..., None] * policy.features(1).sum(1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_full_trace_held_constant_keeps_the_prefixes_of_mu(kind):
    """sum_t E[A grad log pi(y_t)], y_<t of mu and the rest of pi; with y_<t of pi it would be exact."""
    policy, mu = pair(kind)
    pi_log, mu_log = (policy.log_prob(x)[..., 0] for x in (policy.logits, mu[0]))
    prob = mu_log.sum(-1).exp()
    advantages = policy.reward - prob @ policy.reward
    expected, of_pi = torch.zeros(2, policy.logits.numel(), dtype=torch.float64)
    for t in range(policy.length):
        mixed = (mu_log[:, :t].sum(-1) + pi_log[:, t:].sum(-1)).exp()
        assert mixed.sum() == pytest.approx(1)
        expected += (mixed * advantages) @ policy.features(1)[:, t]
        of_pi += (pi_log.sum(-1).exp() * advantages) @ policy.features(1)[:, t]
    for setting in (nfpo(FULL), BY_NAME["exact_pg", "default"]):
        torch.testing.assert_close(mean(policy, mu, setting), expected)
    torch.testing.assert_close(of_pi, policy.gradient)
    assert (expected - policy.gradient).norm() > 0.02 * policy.gradient.norm()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (nfpo(1), BY_NAME["dppo_tv", "no mask, no cap"]),
        (nfpo(1), nfpo(1, "full")),
        (nfpo(FULL), BY_NAME["exact_pg", "default"]),
        (BY_NAME["gspo", "default"], BY_NAME["gspo_token", "default"]),
        (BY_NAME["mpo", "K = 1, widest clip"], BY_NAME["ppo", "widest clip"]),
        (BY_NAME["grpo", "default"], replace(BY_NAME["grpo", "default"], loss_agg_mode="token-sum")),
        (BY_NAME["nfpo", "N = 4, default clips"], Setting("nfpo", "")),
    ],
    ids=lambda s: f"{s.objective} {s.label}",
)
def test_the_same_under_two_names(a, b):
    policy, mu = pair()
    torch.testing.assert_close(
        gradients(policy, mu, a)[1], gradients(policy, mu, b)[1], rtol=1e-12, atol=1e-14
    )


def test_a_baseline_is_free_without_clips_and_not_with_them():
    """Given its prefix a token's score has mean 0 under pi and the trace mean 1: adding to A adds nothing."""
    policy, mu = pair()
    raw, shifted = policy.reward[None], policy.reward[None] - 0.7
    for setting in (nfpo(1), nfpo(2), nfpo(FULL), BY_NAME["exact_pg", "full gradient"]):
        ends = [mean(policy, mu, setting, advantages=a) for a in (raw, shifted)]
        torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-13)
    clipped = [mean(policy, mu, BY_NAME["ppo", "default"], advantages=a) for a in (raw, shifted)]
    assert (clipped[0] - clipped[1]).norm() > 0.01 * policy.gradient.norm()


@pytest.mark.parametrize("group_size", [2, 5])
@pytest.mark.parametrize("std", ["none", "biased", "unbiased"])
def test_expected_group_advantage(group_size, std):
    """All 2^(G-1) outcomes of the others, by the definition of the advantage."""
    accuracy = 0.3
    expected = [0.0, 0.0]
    for own in (0, 1):
        for others in itertools.product((0, 1), repeat=group_size - 1):
            rewards = np.array([own, *others], dtype=float)
            chance = math.prod(accuracy if r else 1 - accuracy for r in others)
            ddof = {"unbiased": 1, "biased": 0}.get(std)
            scale = 1.0 if ddof is None else rewards.std(ddof=ddof) + 1e-6
            expected[own] += chance * (own - rewards.mean()) / scale
    assert expected_group_advantage(accuracy, group_size, std) == pytest.approx(expected)
    if std == "none":
        assert expected[1] - expected[0] == pytest.approx(1 - 1 / group_size)


# --- survey, summary, figure --------------------------------------------------------------------------------

SPEC = {"policies": 3, "vocabulary": 3, "length": 5, "distances": (0.0, 0.02, 0.1, 0.3), "seed": 0}


@pytest.fixture(scope="module")
def frame():
    return survey_gradients(**SPEC)


@pytest.fixture(scope="module")
def summary(frame):
    return summarise(frame, 0.95, 200)


def bias(summary, setting, distance, drift="random"):
    rows = summary.set_index(["quantity", "drift", "distance", "objective", "label"])["value"].sort_index()
    return rows["bias", drift, distance, *setting]


def test_the_survey_holds_every_case_once(frame):
    assert len(frame) == 2 * 3 * len(SETTINGS) * (1 + 3 + 3)
    assert not frame.duplicated(["kind", "seed", "drift", "distance", "objective", "label"]).any()
    assert frame.notna().all(axis=None)
    again = survey_gradients(**{**SPEC, "policies": 1}, settings=SETTINGS[:2])
    first = frame[(frame["seed"] == 0) & frame["label"].isin([s.label for s in SETTINGS[:2]])]
    np.testing.assert_array_equal(again["error"], first["error"])


def test_what_the_trace_removes(frame, summary):
    """Differentiated, all of the bias, more with every step; held constant, only a part."""
    for distance in SPEC["distances"][1:]:
        differentiated = [
            bias(summary, ("nfpo", f"N = {n}, no clips, full gradient"), distance) for n in (1, 2, 4, "T")
        ]
        assert all(np.diff(differentiated) < 0) and differentiated[-1] == 0
        constant = [bias(summary, ("nfpo", f"N = {n}, no clips"), distance) for n in (1, 2, 4, "T")]
        assert constant[0] == differentiated[0] and 0.3 * constant[0] < constant[-1] < 0.9 * constant[0]
    left = remaining_bias(frame, 0.95, 200)
    assert left.index.tolist() == [(d, n) for d in SPEC["distances"][1:] for n in (2, 4, 5)]
    assert pretty(left.loc[(0.1, 5), "differentiated"]) == "0 (exact)"
    errors = frame[(frame["drift"] == "random") & (frame["distance"] == 0.1)].groupby(["series", "horizon"])
    total = errors["error"].sum()
    assert left.loc[(0.1, 4), "constant"].value == pytest.approx(total["no clips", 4] / total["no clips", 1])


def test_the_bias_of_the_gradient_is_of_first_order(summary):
    """Though that of the surrogate itself is of second: five times the distance, five times the bias."""
    for label in ("N = 1, no clips", "N = T, no clips", "N = 2, no clips, full gradient"):
        growth = bias(summary, ("nfpo", label), 0.1) / bias(summary, ("nfpo", label), 0.02)
        assert 4 < growth < 6


def test_the_clip_is_the_larger_bias(summary):
    plain = bias(summary, ("nfpo", "N = 1, no clips"), 0.1)
    assert bias(summary, ("dppo_tv", "default"), 0.1) == pytest.approx(plain)  # the mask does not reach there
    assert bias(summary, ("ppo", "default"), 0.1) > 2 * plain
    assert bias(summary, ("ppo", "default"), 0.1, "uphill") > 4 * plain


def test_a_summary_is_a_ratio_of_means_with_an_interval_over_policies(frame, summary):
    case = (frame["objective"] == "grpo") & (frame["label"] == "default") & (frame["distance"] == 0.3)
    rows = frame[case & (frame["drift"] == "random")]
    table = lay_out(summary, {q: (q, "random", 0.3) for q in ("bias", "cosine", "variance")})
    assert table.index.tolist() == list(BY_NAME)
    cells = table.loc["grpo", "default"]
    assert cells["bias"].value == pytest.approx(rows["error"].sum() / rows["exact"].sum())
    assert cells["cosine"].value == pytest.approx(rows["cosine"].mean())
    relative = np.log(rows["spread"] / rows["exact"] ** 2)
    assert cells["variance"].value == pytest.approx(np.exp(relative.mean()))
    for cell in cells:
        assert cell.low < cell.value < cell.high and (cell.n, cell.n_unit, cell.seeds) == (
            6,
            "policies",
            (0, 1, 2),
        )
    start = lay_out(summary, {"bias": ("bias", "random", 0.0)})["bias"]
    assert (
        pretty(start["mpo", "K = 3, default"]) == "0.2 (exact)"
        and pretty(start["ppo", "default"]) == "0 (exact)"
    )


def draw(summary, **changes):
    use_style()
    shown = [(s.objective, s.label) for s in DEFAULTS]
    return exactness_figure(summary, **{"objectives": shown, "far": 0.3, "near": 0.1, **changes})


def test_the_figure_is_readable_and_the_same_twice(summary):
    fig = draw(summary)
    FigureCanvasAgg(fig).draw()
    test_figures.test_words_neither_overlap_nor_leave_the_figure({"exactness": fig}, "exactness")
    assert all(ax.get_title(loc="left") and ax.get_xlabel() for ax in fig.axes)
    assert svg_text(draw(summary)) == svg_text(draw(summary))
    names = [label.get_text() for label in fig.axes[2].get_yticklabels()]
    assert names == [s.objective for s in DEFAULTS]


def test_a_figure_without_its_rows_is_refused(summary):
    with pytest.raises(ValueError, match=r"near=0.2: allowed are \[0.0, 0.02, 0.1, 0.3\]"):
        draw(summary, near=0.2)
    with pytest.raises(ValueError, match=r"no rows for .*ppo, best"):
        draw(summary, objectives=[("ppo", "best")])
    with pytest.raises(ValueError, match=r"columns .*value"):
        draw(summary.drop(columns="value"))


@pytest.mark.parametrize("distances", [(0.02, 0.1, 0.3), (0.0, 0.3), (0.0, 0.3, 0.1), (0.0, 0.1, 0.5)])
def test_distances_start_on_policy_and_rise(distances):
    with pytest.raises(ValueError, match=r"must be 0 and at least two more, rising, below 0\.5"):
        Exactness(**{**SPEC, "distances": distances})
    assert Exactness(**SPEC).distances == SPEC["distances"]
