"""An arm of a scale file as a verl job: the same problems, sizes and objective as the local engine's run.

What verl cannot do as the local engine does is refused by name: rollouts of an older policy (``lags``),
advantages divided by the biased deviation.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr import objectives
from rlvr.config import Recipe, Scale, Train
from rlvr.engines.jobs.command import ACTOR, data_files
from rlvr.engines.jobs.experiments import Experiment
from rlvr.engines.jobs.local_ray import alone, stop
from rlvr.engines.jobs.policy import cluster_folder
from rlvr.engines.jobs.rows import EMBEDDED as SOURCE
from rlvr.engines.jobs.rows import write_dataset
from rlvr.engines.jobs.sections import (
    Checkpoints,
    Critic,
    Evaluation,
    Expected,
    GeneratedData,
    GeneratedValidation,
    Hardware,
    Modules,
    Records,
    Rollout,
    Update,
)
from rlvr.engines.local.methods import resolve
from rlvr.engines.local.mtp_warmup import warm_up_modules
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.rollout import derive_seed, training_problems, validation_problems
from rlvr.mtp.files import FILE
from rlvr.problems import Problem, get_task
from rlvr.problems.tokenizer import Codec, build_tokenizer
from rlvr.storage import fingerprint, write_text

if TYPE_CHECKING:
    from rlvr.engines.jobs.jobs import Job

PROBLEMS = 3  # purpose of the random stream, as in rlvr.engines.local.training
KEPT = ("model", "optimizer", "extra")


def experiment_of(scale: Scale, arm: str, seed: int) -> Experiment:
    """One arm and seed of ``scale``, as an experiment with one GPU (or the CPU in its place).

    Raises:
        ValueError: an arm that does not exist, an objective that needs what a verl job does not give it, or
            a setting that verl has no equal of.
    """
    if arm not in scale.recipes:
        raise ValueError(f"arm={arm!r} has no recipe; recipes are {sorted(scale.recipes)}")
    recipe = scale.recipes[arm]
    train, parameters = resolve(scale.train, recipe)
    if recipe.sampling:
        raise ValueError(
            f"{arm}: sampling is what the local engine has beside a loss; allowed with engine verl are "
            "recipes without it"
        )
    if get_task(scale.problems.task).grader != "integer":
        raise ValueError(
            f"problems.task={scale.problems.task!r}: verl jobs grade generated problems by whole numbers; "
            "allowed are tasks with such answers"
        )
    if train.budget is not None:
        raise ValueError(
            f"train.budget={train.budget:g}: a verl job ends after train.steps, whatever they compute; "
            "allowed with engine verl is none"
        )
    if train.recompute == "trace":
        raise ValueError(
            "recompute='trace': verl hands a policy loss one kind of old log-probs; allowed is all"
        )
    if train.lags != (0,):
        raise ValueError(
            f"train.lags={list(train.lags)}: engine verl samples from the present policy; allowed is [0]"
        )
    if train.advantage_std == "biased":
        raise ValueError(
            "train.advantage_std='biased': verl divides by the unbiased deviation; allowed are unbiased, none"
        )
    size, longest, corrected, rows = train.group_size, _longest_prompt(scale, seed), None, 1
    if given := recipe.counterfactual:
        # the problem, the response and its references, each with a token after it, and the end of the prompt
        corrected = longest + (1 + given.references) * (train.max_new_tokens + 1) + 1
        rows += given.corrections  # at most, of each response
    elif recipe.self_correction is not None:
        corrected = longest + train.max_new_tokens + 2
        rows += 1
    return Experiment(
        name=arm,
        scale=scale.scale,
        paper="nfpo" if rows == 1 else "ibpo",
        model=SOURCE,
        seeds=(seed,),
        needs=None,
        objective=objectives.get(recipe.objective).name,
        parameters={name: value for name, value in parameters.items() if name != "mtp_gradient"},
        counterfactual=recipe.counterfactual,
        self_correction=recipe.self_correction,
        mtp=_modules(arm, recipe),
        critic=_critic(arm, recipe, train),
        data=GeneratedData(
            train=f"{SOURCE}-s{seed}",
            max_prompt_length=longest,
            max_response_length=train.max_new_tokens,
            max_correction_prompt_length=corrected,
        ),
        rollout=Rollout(
            prompts_per_step=train.prompts_per_step,
            responses_per_prompt=size,
            temperature=train.temperature,
            top_p=1.0,
            tensor_parallel=1,
            gpu_memory_utilization=0.5,
            max_num_seqs=256,
        ),
        update=Update(
            steps=train.steps,
            minibatch_responses=train.prompts_per_step * size // train.minibatches,
            epochs=1,
            lr=train.lr,
            schedule=train.schedule,
            warmup_ratio=train.warmup_ratio if train.schedule == "cosine" else 0.0,
            min_lr_ratio=train.min_lr_ratio if train.schedule == "cosine" else 0.0,
            betas=train.betas,
            weight_decay=train.weight_decay,
            grad_clip=train.grad_clip,
            loss_agg_mode=train.loss_agg_mode,
            divide_by_std=train.advantage_std != "none",
            recompute=train.recompute == "all",
            kl_coef=0.0,
            entropy_coef=0.0,
            # a mini-batch in one piece: metrics that are means over tokens then are those of the mini-batch
            tokens_per_gpu=train.prompts_per_step
            * size
            * rows
            * ((corrected or longest) + train.max_new_tokens),
            sequence_parallel=1,
            offload=False,
        ),
        validation=GeneratedValidation(
            benchmarks=(SOURCE,), every=train.eval_every, samples=1, temperature=1.0, before_train=True
        ),
        evaluation=Evaluation(benchmarks=(), samples=1, temperature=1.0),
        checkpoints=Checkpoints(every=train.checkpoint_every, keep=1),
        records=Records(responses=train.records_per_step, every=1, megabytes=200),
        hardware=Hardware(gpu="L4", gpus_per_node=1, nodes=1),
        expected=Expected(
            mean_response_length=(1, train.max_new_tokens),
            wrong_share=(0.0, 1.0),
            discarded_share=(0.0, 0.9),
        ),
    )


def settings(experiment: Experiment) -> dict[str, Any]:
    """What a job on an embedded policy sets beside the experiment's own settings."""
    longest = experiment.data.longest
    return {
        # problems of step s are rows s * prompts_per_step and on, as in the local engine
        "data.shuffle": False,
        "data.filter_overlong_prompts": False,
        f"{ACTOR}.calculate_entropy": True,
        f"{ACTOR}.shuffle": False,  # as the local engine: records of each mini-batch, and a replay in order
        "actor_rollout_ref.rollout.max_model_len": longest,
        "actor_rollout_ref.rollout.max_num_batched_tokens": max(512, longest),
        # with the policy in HF's format, from which evaluation samples
        f"{ACTOR}.checkpoint.save_contents": [*KEPT, "hf_model"],
        f"{ACTOR}.checkpoint.load_contents": list(KEPT),
    }


def prepare(scale: Scale, experiment: Experiment, seed: int, base: str | Path, root: str | Path) -> Path:
    """Write the parquet files, and the base policy as vLLM takes it; returns its folder."""
    train, (validation,) = data_files(experiment, str(root))
    write_dataset(train, _training_stream(scale, seed), "train")
    write_dataset(validation, validation_problems(scale.problems, scale.train.eval_problems), "validation")
    return cluster_folder(base, Path(train).parent / "model")


def with_modules(scale: Scale, experiment: Experiment, model: str | Path, root: str | Path) -> Experiment:
    """``experiment`` with modules that start as those of the local engine's runs do: warmed up on solutions,
    in a folder beside the data. As it is if it has none.

    Args:
        model: the base policy as vLLM takes it (:func:`prepare`).
    """
    modules, recipe = experiment.mtp, scale.recipes[experiment.name]
    if modules is None or modules.blocks == 1:
        return experiment
    identity = fingerprint({"mtp": recipe.mtp.model_dump(), "problems": scale.problems.model_dump()}, model)
    data, _ = data_files(experiment, str(root))
    folder = Path(data).parent / f"modules-{identity}"
    if not (folder / FILE).is_file():
        policy = Policy.from_pretrained(model)
        found = warm_up_modules(policy, Codec.load(model), scale.problems, recipe.mtp)
        folder.mkdir(parents=True, exist_ok=True)
        found.modules.save(folder)
    return experiment.model_copy(update={"mtp": modules.model_copy(update={"start": str(folder.absolute())})})


def _modules(arm: str, recipe: Recipe) -> Modules | None:
    if recipe.mtp is None:
        return None
    if recipe.mtp.policy_gradient == "full":
        raise ValueError(
            f"{arm}: mtp.policy_gradient='full': the modules' cross entropy would follow the policy's "
            "gradient into the policy; allowed with engine verl are stop, modules"
        )
    if recipe.mtp.ratio != "block":
        raise ValueError(
            f"{arm}: mtp.ratio={recipe.mtp.ratio!r}: the local engine's alone; allowed with engine verl is "
            "'block'"
        )
    return Modules.model_validate(recipe.mtp.model_dump(exclude={"warmup", "ratio"}))


def _critic(arm: str, recipe: Recipe, train: Train) -> Critic | None:
    own = recipe.critic
    if own is None:
        return None
    allowed = {"network": "separate", "blocks": 1, "whiten": True, "warmup_steps": 0}
    for name, value in allowed.items():
        if getattr(own, name) != value:
            raise ValueError(
                f"{arm}: critic.{name}={getattr(own, name)!r}: verl's critic has no equal of it; allowed "
                f"with engine verl is {value!r}"
            )
    if own.value_clip is None:
        raise ValueError(f"{arm}: critic.value_clip=None: verl's critic clips; allowed is a number > 0")
    return Critic(
        lr=own.lr,
        betas=train.betas,
        weight_decay=0.0,
        value_clip=own.value_clip,
        gamma=own.gamma,
        lam=own.lam,
    )


def clear_if_other(job: Job, base: str | Path) -> None:
    """Remove what a job of other settings or another base model left, as the local engine does.

    Such a folder holds minutes of work; that of an experiment holds days, and is never removed.
    """
    identity = fingerprint({"words": job.words}, base, data_files(job.experiment, str(job.root))[0])
    note = job.folder / "identity"
    if note.is_file() and note.read_text() == identity:
        return
    if job.state.attempts or job.folder.exists():
        folder = job.root / job.experiment.scale
        with alone(folder):  # a job that still runs would write into the new folder
            stop(folder)
        shutil.rmtree(job.folder, ignore_errors=True)
        job.state.path.unlink(missing_ok=True)
        job.state.values["attempts"] = []
    write_text(note, identity)


def _training_stream(scale: Scale, seed: int) -> list[Problem]:
    """What the local engine trains on, in its order. A fresh draw may repeat an earlier problem; rows of
    verl's files have ids of their own."""
    count, stream = scale.train.prompts_per_step, derive_seed(PROBLEMS, seed)
    steps = (training_problems(scale.problems, count, stream, step) for step in range(scale.train.steps))
    return [replace(p, id=f"{p.id}@{number}") for number, p in enumerate(chain.from_iterable(steps))]


def _longest_prompt(scale: Scale, seed: int) -> int:
    codec = Codec(build_tokenizer(get_task(scale.problems.task).words))
    problems = _training_stream(scale, seed) + validation_problems(scale.problems, scale.train.eval_problems)
    return max(len(codec.encode(problem.prompt)) for problem in problems)
