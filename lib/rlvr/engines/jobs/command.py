"""An experiment as the settings of a verl job, and as one command that can be pasted into a shell."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from rlvr import objectives
from rlvr.engines.jobs.experiments import Experiment, leaves
from rlvr.storage import fingerprint

ENTRY = ("python", "-m", "verl.trainer.main_ppo")
ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
#: Our reward and its manager: ``rlvr.engines.verl.reward.SETTINGS``, which needs verl to be read.
REWARD: dict[str, Any] = {
    "reward.custom_reward_function.path": "pkg://rlvr.engines.verl.reward",
    "reward.custom_reward_function.name": "compute_score",
    "reward.reward_manager.source": "importlib",
    "reward.reward_manager.name": "RewardManager",
    "reward.reward_manager.module.path": "pkg://rlvr.engines.verl.reward_manager",
}
#: Our trainer, which keeps records (``rlvr.engines.verl.trainer``); verl imports it where this names it.
TRAINER = "rlvr_sync"
CORRECTING = "rlvr_ibpo"  # the same with a second generation pass (``rlvr.engines.verl.correcting``)
SELF_CORRECTING = "rlvr_self_correction"  # and in two stages (``rlvr.engines.verl.self_correcting``)
#: By the block of an experiment that asks for a second pass: (trainer, its module).
TRAINERS = {
    None: (TRAINER, "rlvr.engines.verl.trainer"),
    "counterfactual": (CORRECTING, "rlvr.engines.verl.correcting"),
    "self_correction": (SELF_CORRECTING, "rlvr.engines.verl.self_correcting"),
}
ENVIRONMENT = {"VERL_USE_EXTERNAL_MODULES": TRAINERS[None][1]}
TARGET = "rlvr.engines.verl.PolicyLossConfig"
#: Values of an experiment that are one setting of verl each.
KEYS = {
    "data.max_prompt_length": "data.max_prompt_length",
    "data.max_response_length": "data.max_response_length",
    "rollout.prompts_per_step": "data.train_batch_size",
    "rollout.responses_per_prompt": f"{ROLLOUT}.n",
    "rollout.temperature": f"{ROLLOUT}.temperature",
    "rollout.top_p": f"{ROLLOUT}.top_p",
    "rollout.tensor_parallel": f"{ROLLOUT}.tensor_model_parallel_size",
    "rollout.gpu_memory_utilization": f"{ROLLOUT}.gpu_memory_utilization",
    "rollout.max_num_seqs": f"{ROLLOUT}.max_num_seqs",
    "update.steps": "trainer.total_training_steps",
    "update.epochs": f"{ACTOR}.ppo_epochs",
    "update.lr": f"{ACTOR}.optim.lr",
    "update.schedule": f"{ACTOR}.optim.lr_scheduler_type",
    "update.warmup_ratio": f"{ACTOR}.optim.lr_warmup_steps_ratio",
    "update.min_lr_ratio": f"{ACTOR}.optim.min_lr_ratio",
    "update.betas": f"{ACTOR}.optim.betas",
    "update.weight_decay": f"{ACTOR}.optim.weight_decay",
    "update.grad_clip": f"{ACTOR}.optim.clip_grad",  # the one that the engine reads
    "update.loss_agg_mode": f"{ACTOR}.loss_agg_mode",
    "update.entropy_coef": f"{ACTOR}.entropy_coeff",
    "update.tokens_per_gpu": f"{ACTOR}.ppo_max_token_len_per_gpu",
    "update.sequence_parallel": f"{ACTOR}.ulysses_sequence_parallel_size",
    "validation.every": "trainer.test_freq",
    "validation.samples": f"{ROLLOUT}.val_kwargs.n",
    "validation.temperature": f"{ROLLOUT}.val_kwargs.temperature",
    "validation.before_train": "trainer.val_before_train",
    "checkpoints.every": "trainer.save_freq",
    "checkpoints.keep": "trainer.max_actor_ckpt_to_keep",
    "hardware.gpus_per_node": "trainer.n_gpus_per_node",
    "hardware.nodes": "trainer.nnodes",
}


#: The same of its section ``critic``.
CRITIC = {
    "lr": "critic.optim.lr",
    "betas": "critic.optim.betas",
    "weight_decay": "critic.optim.weight_decay",
    "value_clip": "critic.cliprange_value",
    "gamma": "algorithm.gamma",
    "lam": "algorithm.lam",
}


def job_name(experiment: Experiment, seed: int) -> str:
    return f"{experiment.name}-s{seed}"


def folder(experiment: Experiment, seed: int, root: str = "runs") -> PurePosixPath:
    """Where the job keeps its data, checkpoints and metrics; the cluster sees it under this path."""
    return PurePosixPath(root) / experiment.scale / "jobs" / job_name(experiment, seed)


def data_files(experiment: Experiment, root: str = "runs") -> tuple[str, list[str]]:
    """(training file, one validation file per benchmark), which all seeds of an experiment share."""
    base = PurePosixPath(root) / experiment.scale / "data"
    data = experiment.data
    parts = [data.train]
    parts += ["l" + "".join(map(str, data.levels))] if data.levels else []
    parts += [data.split] if data.split else []
    parts += ["without-" + "-".join(data.exclude)] if data.exclude else []
    parts += [data.prompt_style] if data.prompt_style else []
    style = f"-{data.prompt_style}" if data.prompt_style else ""
    return (
        str(base / f"train-{'-'.join(parts)}.parquet"),
        [str(base / f"validate-{name}{style}.parquet") for name in experiment.validation.benchmarks],
    )


def modules_folder(experiment: Experiment, root: str = "runs") -> PurePosixPath:
    """Of modules that were warmed up before the job: those of one model and kind are shared by its arms, and
    by settings that show the solutions alike (:func:`rlvr.engines.jobs.modules.pairs_of`)."""
    own, data = experiment.mtp, experiment.data
    model = experiment.model.rpartition("/")[2]
    shown = [data.prompt_style, data.max_prompt_length, data.max_response_length]
    identity = fingerprint([own.warmup.model_dump(mode="json"), *shown])
    name = f"{model}-{own.variant}-{own.hidden}-k{own.blocks}-{identity[:8]}"
    return PurePosixPath(root) / experiment.scale / "modules" / name


def overrides(
    experiment: Experiment,
    seed: int,
    root: str = "runs",
    model_path: str | None = None,
    extra: Sequence[str] = (),
) -> list[str]:
    """The words of verl's command line, in Hydra's grammar.

    Args:
        seed: one of any value; the experiment's own are ``experiment.seeds``.
        root: folder for data, checkpoints and metrics, as the cluster sees it. A relative one is relative
            to the folder in which the job starts.
        model_path: a folder in place of the model's name on the hub.
        extra: overrides of the caller. Of several for one name the last wins.

    Raises:
        ValueError: the experiment ``needs`` what verl cannot give, or ``extra`` holds no override.
    """
    if experiment.needs:
        raise ValueError(f"{experiment.name} cannot be run by verl yet; it needs {experiment.needs}")
    update, objective = experiment.update, objectives.get(experiment.objective)
    train, validation = data_files(experiment, root)
    where = folder(experiment, seed, root)
    critic = objective.advantages == "critic"
    values: dict[str, Any] = {
        "algorithm.adv_estimator": "gae" if critic else "grpo",
        "algorithm.norm_adv_by_std_in_grpo": update.divide_by_std,
        "algorithm.rollout_correction.bypass_mode": not update.recompute,
        "algorithm.use_kl_in_reward": False,
        "data.train_files": train,
        "data.val_files": validation,
        "data.filter_overlong_prompts": True,
        "data.truncation": "error",
        "data.seed": seed,
        f"{MODEL}.path": model_path or experiment.model,
        **_loss(experiment),
        f"{ACTOR}.ppo_mini_batch_size": update.minibatch_responses // experiment.rollout.responses_per_prompt,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.use_kl_loss": experiment.anchored,
        # rows come in the order in which their responses ended: unshuffled, the first update of a step would
        # have the short ones and the last the long ones. With a second pass the trainer orders them by prompt
        f"{ACTOR}.shuffle": experiment.second_pass is None,
        f"{ACTOR}.grad_clip": update.grad_clip,  # of verl's older workers
        f"{ACTOR}.data_loader_seed": seed,
        f"{ACTOR}.fsdp_config.seed": seed,
        f"{ACTOR}.fsdp_config.param_offload": update.offload,
        f"{ACTOR}.fsdp_config.optimizer_offload": update.offload,
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.seed": seed,
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ROLLOUT}.val_kwargs.do_sample": experiment.validation.temperature > 0,
        **REWARD,
        "trainer.project_name": f"rlvr-{experiment.scale}",
        "trainer.experiment_name": job_name(experiment, seed),
        "trainer.default_local_dir": str(where / "checkpoints"),
        "trainer.resume_mode": "auto",
        "trainer.v1.trainer_mode": (mode := trainer_of(experiment)),
        f"+trainer.v1.{mode}": trainer_settings(experiment, str(where)),
        "trainer.logger": ["console", "file"],
        "trainer.total_epochs": update.steps,  # an epoch has a step at least: the steps are the limit
    }
    plain = dict(leaves(experiment.model_dump()))
    values |= {name: plain[key] for key, name in KEYS.items()}
    if experiment.second_pass:
        values |= {
            f"{ROLLOUT}.prompt_length": experiment.data.max_correction_prompt_length,
            f"{ROLLOUT}.max_model_len": experiment.data.longest,
        }
    if experiment.anchored:
        values[f"{ACTOR}.kl_loss_coef"] = update.kl_coef  # 0 where our trainer adds the penalty
    if update.loss_agg_mode == "seq-mean-token-sum-norm":
        values[f"{ACTOR}.loss_scale_factor"] = experiment.data.max_response_length
    if experiment.dynamic_sampling:
        values |= {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "acc"}
    if critic:
        values |= {
            "critic.model.path": values[f"{MODEL}.path"],
            "critic.ppo_max_token_len_per_gpu": 2 * update.tokens_per_gpu,  # no logits: verl's proportion
            "critic.optim.clip_grad": update.grad_clip,
            "critic.data_loader_seed": seed,
            "critic.fsdp.seed": seed,
            "critic.fsdp.param_offload": update.offload,
            "critic.fsdp.optimizer_offload": update.offload,
            "trainer.max_critic_ckpt_to_keep": experiment.checkpoints.keep,
        }
    if experiment.mtp is not None:
        modules = experiment.mtp.model_dump(exclude={"warmup"})
        if experiment.mtp.warmup is not None and experiment.mtp.start is None:
            modules["start"] = str(modules_folder(experiment, root))
        values |= {f"+{ACTOR}.policy_loss.mtp": modules, f"{ACTOR}.strategy": "fsdp2"}
        values |= {"critic.strategy": "fsdp2"} if critic else {}
    if experiment.critic is not None:
        values |= {name: getattr(experiment.critic, key) for key, name in CRITIC.items()}
    for word in extra:
        if "=" not in word.lstrip("+~") or word.startswith("-"):
            raise ValueError(f"override={word!r}: allowed are settings of verl, NAME=VALUE")
    return [*(f"{name}={hydra_value(value)}" for name, value in values.items()), *extra]


def trainer_of(experiment: Experiment) -> str:
    """``trainer.v1.trainer_mode``."""
    return TRAINERS[experiment.second_pass][0]


def environment_of(experiment: Experiment) -> dict[str, str]:
    """What the job's environment has to name, in all of its processes."""
    return {"VERL_USE_EXTERNAL_MODULES": TRAINERS[experiment.second_pass][1]}


def trainer_settings(experiment: Experiment, where: str) -> dict[str, Any]:
    """What our trainer reads."""
    out = records_settings(experiment, where)
    if block := experiment.second_pass:
        out[block] = getattr(experiment, block).model_dump(mode="json")
    return out


def records_settings(experiment: Experiment, where: str) -> dict[str, Any]:
    """What our trainer reads; its section has to exist, also where no records are wanted."""
    records, updates = experiment.records, {"records_updates_dir": f"{where}/updates"}
    if not records.responses:
        return {"records_per_step": 0} | updates
    return updates | {
        "records_dir": f"{where}/records",
        "records_per_step": records.responses,
        "records_every": records.every,
        "records_megabytes": records.megabytes,
    }


def _loss(experiment: Experiment) -> dict[str, Any]:
    name = f"{ACTOR}.policy_loss"
    return {
        f"{name}._target_": TARGET,
        f"{name}.loss_mode": f"rlvr.{experiment.objective}",  # verl has losses of its own by some bare names
        **{f"+{name}.{key}": value for key, value in experiment.parameters.items()},
    }


def hydra_value(value: Any) -> str:
    """A value in Hydra's grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{hydra_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(hydra_value, value)) + "]"
    text = str(value)
    plain = text.isascii() and text and not text[0].isdigit()
    plain = plain and all(c.isalnum() or c in "/_-.:@" for c in text)
    return text if plain and ":" not in text.replace("://", "") else json.dumps(text, ensure_ascii=False)


def shell_command(words: Sequence[str], environment: Mapping[str, str] = ENVIRONMENT) -> str:
    """One command for a shell, a setting per line."""
    before = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    return " \\\n    ".join([" ".join([*before, *ENTRY]), *map(shlex.quote, words)])
