"""What a step costs: parameters by hand, memory that is counted and grows with K, and parts that add up."""

from __future__ import annotations

import pytest
import torch
from local_fixtures import PROBLEMS, codec, random_policy, train_config
from torch import nn

from rlvr.config_mtp import Critic, Mtp
from rlvr.engines.local import step_cost as module
from rlvr.engines.local.job import Job
from rlvr.engines.local.mtp import new_modules
from rlvr.engines.local.step_cost import cost_by_blocks, step_cost

WARMUP = dict(seed=0, steps=1, lr=1e-3, betas=(0.9, 0.98), batch_size=4, check_every=1)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    random_policy(spread=0.05).save_pretrained(folder)
    codec().save(folder)
    return folder


def job(objective, parameters=None, **blocks):
    return Job(objective, objective, parameters or {}, 0, 0, train_config(), PROBLEMS, **blocks)


def mpo(blocks=3):
    own = {"mtp": Mtp(blocks=blocks, lr=1e-3, warmup=WARMUP), "critic": Critic(lr=1e-3)}
    return job("mpo", {"mtp_gradient": "stop"}, **own)


def test_cost_by_blocks(base):
    frame = cost_by_blocks(base, mpo(), (1, 2, 4), repeats=2)
    assert frame.index.tolist() == [1, 2, 4]
    policy = random_policy()
    critic = policy.theta.numel() + 2 * policy.shape.hidden_size + 1
    for k, row in frame.iterrows():
        own = new_modules(policy, k).phi.numel() if k > 1 else 0
        assert row["parameters"] == policy.theta.numel() + critic + own
        assert row["state_bytes"] == 16 * row["parameters"]
        assert min(row["generate"], row["prepare"], row["update"]) > 0
        assert row["us_per_token"] == pytest.approx(1e6 * row["step"] / row["tokens"])
    assert frame["backward_bytes"].is_monotonic_increasing and frame["backward_bytes"].is_unique
    assert frame["tokens"].nunique() == 1, "the same responses at every K"


def test_memory_is_the_same_every_time_and_a_critic_doubles_it(base):
    bytes_of = {}
    for name, one in {
        "grpo": job("grpo"),
        "again": job("grpo"),
        "ppo": job("ppo", critic=Critic(lr=1e-3)),
        "shared": job("ppo", critic=Critic(lr=1e-3, network="shared")),
    }.items():
        bytes_of[name] = step_cost(base, one, repeats=1)["backward_bytes"]
    assert bytes_of["grpo"] == bytes_of["again"] > 0
    assert 1.5 < bytes_of["ppo"] / bytes_of["grpo"] < 2.5
    assert bytes_of["grpo"] < bytes_of["shared"] < bytes_of["ppo"]


def test_bytes_kept_typed_in():
    """x @ w keeps x and w, and relu its output: w is a weight and not counted, a view of x not twice."""

    class Updater:
        theta = nn.Parameter(torch.ones(4, 2))

        def step(self, x):
            (torch.relu(x @ self.theta).sum() + (x[:1] * self.theta.sum()).sum()).backward()

    run = type("Run", (), {"updater": Updater()})
    x = torch.ones(3, 4, requires_grad=True)
    scalar = 4
    assert module._bytes_kept(run, x) == x.nbytes + 3 * 2 * 4 + scalar


def test_what_has_no_cost_by_blocks(base):
    with pytest.raises(ValueError, match="grpo-lag0-seed0 has no block mtp"):
        cost_by_blocks(base, job("grpo"), (1, 2))
    with pytest.raises(ValueError, match="repeats=0"):
        step_cost(base, job("grpo"), repeats=0)
