"""Before a job starts: will verl run the loss that is meant, with the parameters that are meant?

    python -m rlvr.engines.verl.check loss_mode=nfpo horizon=8
    python -m rlvr.engines.verl.check actor_rollout_ref.actor.policy_loss.loss_mode=nfpo data.train_files=...

Words are settings of the policy loss by their short name, or overrides exactly as the job gets them. Run
it in the job's environment, on a machine of each kind that the job uses. Exit status 0 means yes.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
import verl
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils.config import omega_conf_to_dataclass

from rlvr.engines.verl.correction_check import check_corrections
from rlvr.engines.verl.losses import CARRIED, MTP, UNREAD_OF_POLICY_LOSS, PolicyLoss, handed, warnings_about
from rlvr.engines.verl.registration import check_registration
from rlvr.engines.verl.self_correction_check import check_self_correction
from rlvr.engines.verl.surroundings import Failed, around, check_modules, check_trainer

TESTED = "0.9.1"
ACTOR = "actor_rollout_ref.actor"
POLICY_LOSS = f"{ACTOR}.policy_loss"
TARGET = "rlvr.engines.verl.PolicyLossConfig"
# Configurations of verl's experimental trainers, each beside its trainer; all others are in trainer/config.
EXPERIMENTAL = {
    "fully_async_ppo_trainer": "fully_async_policy",
    "fully_async_ppo_megatron_trainer": "fully_async_policy",
    "one_step_off_ppo_trainer": "one_step_off_policy",
    "one_step_off_ppo_megatron_trainer": "one_step_off_policy",
}


def expand(words: list[str]) -> list[str]:
    """Overrides for verl from ``words``: short names become those of the policy loss, others stay."""
    short = [
        w for w in words if not set(w.partition("=")[0]) & set("./@") and not w.startswith("model_engine=")
    ]
    out = [w for w in words if w not in short]
    settings = [w.lstrip("+") for w in short if not w.startswith("loss_mode=")]
    if settings:
        out.append(f"{POLICY_LOSS}._target_={TARGET}")
    out += [f"{POLICY_LOSS}.{w}" for w in short if w.startswith("loss_mode=")]
    return out + [f"+{POLICY_LOSS}.{w}" for w in settings]


def check(words: list[str], config_name: str = "ppo_trainer", other_version: bool = False) -> list[str]:
    """Run every check; returns what was found, line by line. Raises :class:`Failed` at the first failure."""
    if verl.__version__ != TESTED and not other_version:
        raise Failed(
            f"verl is {verl.__version__}, tested is {TESTED}: pip install verl=={TESTED}, or pass "
            "--other-version and look twice at the first steps"
        )
    config = composed(expand(words), config_name)
    loss_mode = config.actor_rollout_ref.actor.policy_loss.loss_mode
    try:
        found = check_registration(loss_mode)
    except RuntimeError as error:
        raise Failed(str(error)) from error
    check_trainer(config, experimental=config_name in EXPERIMENTAL)
    corrections = [*check_corrections(config), *check_self_correction(config)]
    actor = build_actor(config)
    check_modules(config, actor.policy_loss.get("mtp", None))
    loss, grad_norm, metrics = run_once(actor)
    return [
        f"verl {found['version']} loads rlvr's plugin; loss_mode={loss_mode} is rlvr's",
        *describe(config, actor),
        *corrections,
        f"one forward and backward pass: loss {loss:.4g}, gradient norm {grad_norm:.4g}",
        f"metrics: {', '.join(sorted(metrics))}",
    ]


def composed(overrides: list[str], config_name: str) -> DictConfig:
    """verl's configuration of a job with these overrides."""
    root = Path(verl.__file__).parent
    folder, more = root / "trainer" / "config", []
    if config_name in EXPERIMENTAL:
        folder = root / "experimental" / EXPERIMENTAL[config_name] / "config"
        more = ["hydra.searchpath=[pkg://verl.trainer.config]"]  # theirs is relative to a checkout of verl
    try:
        with initialize_config_dir(str(folder), version_base=None):
            return compose(config_name, overrides=more + [o for o in overrides if not o.startswith("hydra.")])
    except (HydraException, OmegaConfBaseException) as error:
        raise Failed(f"verl's configuration does not take these overrides: {error}") from error


def check_target(policy_loss: DictConfig) -> None:
    """Parameters need our configuration class: verl's own would refuse them, in words of its own."""
    known = {*UNREAD_OF_POLICY_LOSS, "_target_", "loss_mode", "rollout_correction"}
    more = [name for name in policy_loss if name not in known]
    if more and policy_loss.get("_target_") != TARGET:
        raise Failed(
            f"{POLICY_LOSS}.{more[0]} is not a setting of verl's own class: parameters of an objective need "
            f"{POLICY_LOSS}._target_={TARGET}"
        )


def build_actor(config: DictConfig) -> Any:
    """verl's actor configuration, built as the driver builds it."""
    actor = config.actor_rollout_ref.actor
    check_target(actor.policy_loss)
    if not actor.use_dynamic_bsz and not (actor.ppo_micro_batch_size or actor.ppo_micro_batch_size_per_gpu):
        OmegaConf.update(
            config, f"{ACTOR}.ppo_micro_batch_size_per_gpu", 1
        )  # asked for, but not our business
    try:
        return omega_conf_to_dataclass(actor)
    except Exception as error:  # Hydra wraps whatever a configuration class raises
        raise Failed(f"the actor's configuration is refused: {error.__cause__ or error}") from error


def run_once(actor: Any, rows: int = 4, width: int = 16) -> tuple[float, float, dict[str, float]]:
    """(loss, gradient norm, metrics) of the registered loss on random numbers."""
    g = torch.Generator().manual_seed(0)
    old = -0.1 - 2 * torch.rand(rows, width, generator=g)
    new = (old + 0.3 * torch.randn(rows, width, generator=g)).clamp(max=-1e-3).requires_grad_()
    mask = torch.arange(width) < torch.randint(1, width + 1, (rows, 1), generator=g)
    advantages = torch.randn(rows, 1, generator=g).expand(rows, width) * mask
    counts = {"dp_size": 1, "batch_num_tokens": int(mask.sum()), "global_batch_size": rows}
    actor.global_batch_info.update(counts, loss_scale_factor=actor.loss_scale_factor)
    function = get_policy_loss_fn(actor.policy_loss.loss_mode)
    masked = isinstance(function, PolicyLoss) and CARRIED in function.objective.needs
    more: dict[str, torch.Tensor | None] = {}
    if modules := actor.policy_loss.get("mtp", None):
        size = (rows, width, modules["blocks"] - 1)
        said = [-0.1 - 2 * torch.rand(size, generator=g) if size[-1] else None for _ in MTP]
        more = dict(zip(MTP, said, strict=True))
    try:
        with handed(**more):
            loss, metrics = function(
                old_log_prob=old,
                log_prob=new,
                advantages=advantages,
                response_mask=mask,
                loss_agg_mode=actor.loss_agg_mode,
                config=actor,
                rollout_is_weights=torch.ones_like(old) if masked else None,
            )
    except ValueError as error:
        raise Failed(str(error)) from error
    loss.backward()
    norm = new.grad.norm()
    if not (torch.isfinite(loss) and torch.isfinite(norm)):
        raise Failed(f"loss {loss.item()}, gradient norm {norm.item()}: not finite; look at the parameters")
    return loss.item(), norm.item(), metrics


def describe(config: DictConfig, actor: Any) -> list[str]:
    """What will run, and what about it may surprise."""
    loss = get_policy_loss_fn(actor.policy_loss.loss_mode)
    assert isinstance(loss, PolicyLoss)
    objective = loss.objective
    given = actor.policy_loss.get("parameters", None) or {}
    settings = [f"{name}={value!r}" for name, value in given.items()]
    mode = actor.policy_loss.get("loss_agg_mode", None) or actor.loss_agg_mode
    own = "" if mode == objective.loss_agg_mode else f"; {objective.name}'s own is {objective.loss_agg_mode}"
    return [
        f"{objective.name} with {', '.join(settings) or 'its defaults'}",
        *_modules(actor.policy_loss.get("mtp", None)),
        f"aggregated by {mode}{own}",
        *around(config, objective),
        *(f"warning: {text}" for text in warnings_about(actor, mode)),
    ]


def _modules(modules: Any) -> list[str]:
    if not modules:
        return []
    settings = ", ".join(f"{name}={value!r}" for name, value in modules.items())
    return [f"modules beside the actor: {settings}; their old log-probs by the trainer"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rlvr.engines.verl.check",
        description="Check, before a job starts, that verl will run the loss that is meant.",
    )
    parser.add_argument(
        "words", nargs="+", metavar="NAME=VALUE", help="loss_mode=nfpo, horizon=8, or overrides of the job"
    )
    parser.add_argument(
        "--config-name", default="ppo_trainer", help="verl's configuration (default: %(default)s)"
    )
    parser.add_argument("--other-version", action="store_true", help=f"accept a verl other than {TESTED}")
    args = parser.parse_intermixed_args(argv)
    try:
        lines = check(args.words, args.config_name, args.other_version)
    except Failed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    print("give the job:\n  " + " \\\n  ".join(map(shlex.quote, expand(args.words))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
