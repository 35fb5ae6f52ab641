"""Gradients of the two tasks: against the losses themselves; what is refused."""

from __future__ import annotations

import pytest
import torch
from local_fixtures import PROBLEMS, codec, random_policy, train_config

from rlvr.advantages import group_relative
from rlvr.analysis.backward_transfer import transfer
from rlvr.config_corrections import Counterfactual
from rlvr.engines.local.corrections import CORRECTIONS, correct
from rlvr.engines.local.job import Job
from rlvr.engines.local.packing import pack
from rlvr.engines.local.rollout import collect, derive_seed, training_problems
from rlvr.engines.local.task_gradients import _PROBLEMS, measure
from rlvr.engines.local.training import _ROLLOUT
from rlvr.engines.local.update import response_log_prob

SETTINGS = Counterfactual(corrections=3)


def job(**changes):
    config = train_config(loss_agg_mode="seq-mean-token-mean", lags=(0,))
    given = {"counterfactual": SETTINGS} | changes
    return Job("x", "gspo", {"clip_low": 0.5, "clip_high": 0.5}, 0, 4, config, PROBLEMS, **given)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    random_policy().save_pretrained(folder)
    codec().save(folder)
    return folder


def gradient(prompts, tokens, lengths, size, advantages):
    """GSPO's at a ratio of 1: the mean over responses of the advantage times the mean log-prob."""
    policy = random_policy()
    theta = policy.theta.detach().clone().requires_grad_()
    packed = pack(prompts, tokens, lengths, size)
    log_prob, _ = response_log_prob(theta, policy.shape, packed, 1.0)
    own = log_prob.sum(1) / lengths
    return torch.autograd.grad(-(own * advantages).mean(), theta)[0]


def test_products_are_those_of_the_policy_gradients(folder):
    found = measure(folder, job(), batches=2, seed=9)
    gradients, accuracy, asked = [], [], []
    for number in range(2):
        config = job().train
        problems = training_problems(PROBLEMS, 4, derive_seed(_PROBLEMS, 9), number)
        asked += [problem.id for problem in problems]
        rollout = collect(random_policy(), codec(), problems, config, derive_seed(_ROLLOUT, 9, number))
        full = correct(
            random_policy(), codec(), problems, rollout, SETTINGS, max_new_tokens=10, temperature=1.0,
            advantage_std="unbiased", seed=derive_seed(CORRECTIONS, 9, number),
        )  # fmt: skip
        groups = torch.arange(4).repeat_interleave(4)
        raw = group_relative(rollout.rewards, groups, std="unbiased")
        samples, c = rollout.samples, full.corrected
        base = gradient(rollout.prompts, samples.tokens, samples.lengths, 4, raw)
        own = gradient(c.prompts, c.samples.tokens, c.samples.lengths, 3, c.advantages)
        gradients.append((base, own))
        accuracy.append(rollout.rewards.view(4, 4))
    for i in range(2):
        for j in range(2):
            expected = float(gradients[i][0].double() @ gradients[j][1].double())
            assert float(found.products.cross[i, j]) == pytest.approx(expected, rel=1e-3, abs=1e-7)
    assert torch.equal(torch.from_numpy(found.accuracy).float(), torch.cat(accuracy))
    assert found.problems.tolist() == asked
    assert found.phi.shape == found.accuracy.shape and (found.phi[found.accuracy == 1] == 0).all()


def test_a_task_transfers_to_itself(folder):
    found = measure(folder, job(), batches=6, seed=1)
    products = found.products
    same = type(products)(products.base, products.base, products.base)
    assert transfer(same).change.value == pytest.approx(transfer(same).change.value)
    assert products.base.shape == (6, 6) and (products.base.diagonal() > 0).all()


def test_other_recipes_are_refused(folder):
    for given in ({"counterfactual": None}, {"counterfactual": Counterfactual(joint=False)}):
        with pytest.raises(ValueError, match="allowed are recipes with joint corrections"):
            measure(folder, job(**given), 2, 0)
