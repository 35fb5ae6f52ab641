"""What the tests of verl's plugin share: a batch as verl hands it to a policy loss, the call, a process."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import FSDPActorConfig
from verl.workers.config import PolicyLossConfig as StockConfig

import rlvr
from rlvr import objectives
from rlvr.engines.verl.losses import refusal

REFUSED = [name for name in objectives.list_objectives() if refusal(objectives.get(name)) is not None]
RUNNABLE = [name for name in objectives.list_objectives() if not objectives.get(name).needs]
#: Neither: ``masked_gspo``, whose mask a trainer makes (test_corrections.py).
ROWS, WIDTH = 8, 12


def make_batch(seed=0):
    """(old_log_prob, log_prob, advantages, response_mask): ragged rows with holes, one fully masked, single
    ratios up to 30, whole responses far above and below 1; junk where masked."""
    g = torch.Generator().manual_seed(seed)
    old = -0.3 - 2 * torch.rand(ROWS, WIDTH, generator=g)
    new = old + 0.6 * torch.randn(ROWS, WIDTH, generator=g)
    advantages = torch.randn(ROWS, 1, generator=g).expand(ROWS, WIDTH).clone()
    lengths = torch.tensor([12, 7, 0, 1, 9, 4, 8, 8])
    mask = (torch.arange(WIDTH) < lengths[:, None]) & (torch.rand(ROWS, WIDTH, generator=g) < 0.85)
    mask[[0, 3, 4], [2, 0, 2]] = True
    for row, sign in ((0, -1.0), (4, 1.0)):  # a token far above its old probability, pushed down and up
        old[row, 2], new[row, 2] = -4.0, -0.6
        advantages[row] = sign
    for row, sign in ((6, -1.0), (7, 1.0)):
        new[row] = old[row] + 0.2 * sign
        advantages[row] = sign
    new.clamp_(max=-1e-3)
    junk = torch.full_like(old, -3.7)
    return torch.where(mask, old, junk), torch.where(mask, new, junk), advantages * mask, mask


def actor(policy_loss="nfpo", mode="token-mean", scale=None, counts=None):
    """verl's actor configuration; ``counts`` is its global_batch_info, as ``ppo_loss`` writes it."""
    config = FSDPActorConfig(
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=StockConfig(loss_mode=policy_loss) if isinstance(policy_loss, str) else policy_loss,
        loss_agg_mode=mode,
        loss_scale_factor=scale,
    )
    config.global_batch_info.update(counts or {}, loss_scale_factor=scale)
    return config


def run(config, batch, weights=None):
    """(loss, gradient by log_prob, metrics) of the loss that ``config`` names, as ``ppo_loss`` calls it."""
    old, new, advantages, mask = batch
    log_prob = new.clone().requires_grad_()
    loss, metrics = get_policy_loss_fn(config.policy_loss.get("loss_mode", "vanilla"))(
        old_log_prob=old,
        log_prob=log_prob,
        advantages=advantages,
        response_mask=mask,
        loss_agg_mode=config.loss_agg_mode,
        config=config,
        rollout_is_weights=weights,
    )
    loss.backward()
    return loss.detach(), log_prob.grad, metrics


def direct(name, batch, **settings):
    """The same by the objective itself."""
    old, new, advantages, mask = batch
    log_prob = new.clone().requires_grad_()
    loss, metrics = objectives.get(name)(log_prob, old, advantages, mask, **settings)
    loss.sum().backward()
    return loss.detach(), log_prob.grad, metrics


HERE = str(Path(rlvr.__file__).parents[1])  # the code under test, also where another copy is installed


def python_path(*folders):
    """A path for other processes: these folders, the code under test, then what this process was given."""
    return os.pathsep.join([*map(str, folders), HERE, *filter(None, [os.environ.get("PYTHONPATH")])])


def python(code, *folders, **environment):
    """Run ``code`` in a fresh interpreter, ``folders`` first on its path."""
    env = {**os.environ, "PYTHONPATH": python_path(*folders), **environment}
    return subprocess.run([sys.executable, *code], capture_output=True, text=True, env=env)
