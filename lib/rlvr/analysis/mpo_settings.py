"""MPO's settings and data sets, the paper's beside this scale's (MPO, Tables 4 and 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from rlvr import objectives
from rlvr.analysis.bootstrapping import bias_by_horizon, decay_table, examples
from rlvr.analysis.dataset_statistics import MPO_SETS, AnyProblem, describe_problems
from rlvr.analysis.mpo import asked_of, samples_text
from rlvr.config import Scale
from rlvr.problems import get_task
from rlvr.reporting.cells import NOT_MEASURED, Exact, Stated

if TYPE_CHECKING:
    from rlvr.analysis.study import Study

#: Column of :func:`describe_problems` -> name in the table.
SIZES = {
    "problems": "problems",
    "prompt_mean": "prompt, mean",
    "prompt_max": "prompt, longest",
    "with_solution": "with solution",
    "solution_mean": "solution, mean",
    "solution_max": "solution, longest",
}

#: What the text, or what is public where the text is silent, says; None where neither does.
_PAPER = {
    "model": ("Llama3.2-1B-Instruct, DeepSeek-R1-Distill-Qwen-1.5B and -7B", "text: 5.1"),
    "training problems": ("GSM8K train, MATH train, MBPP", "text: 5.1"),
    "base objective": ("PPO", "text: 5.1"),
    "block length K": (5, "text: 5.5"),
    "decay lambda": (0.8, "text: 5.4"),
    "total MTP weight": ("10 to 20 %, always below 30 %", "text: 5.4, 5.5"),
    "input of a module": ("hidden states of the backbone", "text: 3.2"),
    "gradient through the modules": (None, ""),
    "modules learn by": ("cross entropy, the backbone frozen", "text: A.1"),
    "warm-up of the modules": ("about 12 minutes, on GSM8K and MATH train", "text: 5.7, A.2"),
    "advantage": ("GAE", "public: PPO"),
    "clip": (None, ""),
    "training length": ("20 epochs, about 7 hours", "text: 5.7"),
    "prompts per step": (None, ""),
    "responses per prompt": (None, ""),
    "updates per step": (None, ""),
    "longest response, tokens": ("3072 on HumanEval", "text: A.3"),
    "learning rate": (None, ""),
    "answer": ("in \\boxed{}", "text: 5.1"),
    "metric": ("pass@1", "text: 5.1"),
    "hardware": ("8 A100 80 GB", "text: 5.7"),
}


def settings_table(scale: Study | Scale) -> pd.DataFrame:
    """One row per setting: the paper's value with its source, and that of these runs' arm ``mpo``."""
    train, recipe = scale.train, scale.recipes["mpo"]
    mtp, critic = recipe.mtp, recipe.critic
    own = objectives.get(recipe.objective).parameters | recipe.parameters
    ours = {
        "base objective": "PPO",
        "block length K": mtp.blocks,
        "decay lambda": own["decay"],
        "total MTP weight": own["mtp_weight"],
        "input of a module": {
            "last": "output of the backbone's last layer",
            "trunk": "input of the backbone's last layer",
        }[mtp.hidden],
        "gradient through the modules": {"stop": "none, their log ratios are values"}.get(
            mtp.policy_gradient, mtp.policy_gradient
        ),
        "modules learn by": {
            "cross_entropy": "cross entropy on the policy's responses",
            "none": "cross entropy, in their warm-up alone",
        }[mtp.train],
        "warm-up of the modules": f"{mtp.warmup.steps} steps of {mtp.warmup.batch_size} solutions"
        if mtp.warmup
        else "none, they start from a given folder",
        "advantage": f"GAE, gamma {critic.gamma:g}, lambda {critic.lam:g}",
        "clip": f"{own['clip_low']:g} below, {own['clip_high']:g} above, dual clip {own['dual_clip']:g}",
        "training length": f"{train.steps} steps",
        "prompts per step": train.prompts_per_step,
        "responses per prompt": train.group_size,
        "updates per step": train.minibatches,
        "longest response, tokens": train.max_new_tokens,
        "learning rate": train.lr,
        "metric": f"pass@1, {samples_text(scale)}",
    } | (_of_embedded(scale) if isinstance(scale, Scale) else _of_models(scale))
    rows = [
        {
            "setting": name,
            "paper": value if isinstance(value, str) else Stated(value),
            "source": source or "-",
            "ours": ours[name] if isinstance(ours[name], str) else Exact(ours[name]),
        }
        for name, (value, source) in _PAPER.items()
    ]
    return pd.DataFrame(rows)


def _of_embedded(scale: Scale) -> dict[str, str]:
    model, (low, high) = scale.model, scale.problems.operations
    return {
        "model": f"Qwen3 architecture, {model.num_hidden_layers} layers of {model.hidden_size}",
        "training problems": f"{scale.problems.task}, {low}-{high} steps, fresh at every step",
        "answer": "the last number" if scale.problems.task == "word" else "the expression",
        "hardware": f"{scale.workers} processor cores",
    }


def _of_models(study: Study) -> dict[str, str]:
    """Of a language model; its hardware is that of the run of ``mpo``, which says so itself."""
    hardware, data = asked_of(study, "mpo")["hardware"], study.problems
    return {
        "model": study.model,
        "training problems": data.train
        + (f", level {', '.join(map(str, data.levels))}" if data.levels else "")
        + (f", part {data.split}" if data.split else ""),
        "answer": f"as the prompt `{data.prompt_style}` asks"
        if data.prompt_style
        else "as its benchmark's prompt asks",
        "hardware": f"{hardware['nodes'] * hardware['gpus_per_node']} {hardware['gpu']}",
    }


def data_table(
    embedded: Mapping[str, tuple[str, list[AnyProblem]]],
    published: Mapping[str, list[AnyProblem] | None],
) -> pd.DataFrame:
    """One row per set (the index): its use, and its sizes in words and signs.

    Args: ``embedded``: name -> (use, problems); ``published``: the paper's sets by the names of
    :data:`rlvr.analysis.dataset_statistics.MPO_SETS`, None where not on this machine.
    """
    rows = {name: {"use": use} | _sizes(problems) for name, (use, problems) in embedded.items()}
    for name, problems in published.items():
        found = dict.fromkeys(SIZES.values(), NOT_MEASURED) if problems is None else _sizes(problems)
        rows[name] = {"use": MPO_SETS[name][0]} | found
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("set")


def _sizes(problems: list[AnyProblem]) -> dict[str, object]:
    found = describe_problems(problems)
    cells = {SIZES[key]: Exact(found[key]) if found[key] == found[key] else "-" for key in SIZES}
    return cells


def embedded_sets(scale: Scale) -> dict[str, tuple[str, list[AnyProblem]]]:
    """Name -> (use, problems) of this scale's sets; of the training problems as many as one run sees."""
    given, task = scale.problems, get_task(scale.problems.task)
    count = scale.train.steps * scale.train.prompts_per_step
    return {
        f"{given.task}: {split.replace('_', '-')}": (
            use, task.generate(split, number, given.seed, given.operations),
        )
        for split, use, number in (
            ("train", "training", count),
            ("validation", "curves and warm-up", given.validation),
            ("held_out", "evaluation", given.held_out),
        )
    }  # fmt: skip


def bias_frame(horizons: Sequence[int], gamma: float) -> pd.DataFrame:
    """:func:`rlvr.analysis.bootstrapping.bias_by_horizon` of every example, a row per example and horizon."""
    frames = [
        bias_by_horizon(process, error, horizons).reset_index().assign(example=name)
        for name, (process, error) in examples(gamma).items()
    ]
    return pd.concat(frames, ignore_index=True)


def bias_table(horizons: Sequence[int], gamma: float) -> pd.DataFrame:
    """:func:`rlvr.analysis.bootstrapping.decay_table` as cells."""
    names = {
        "gamma": "gamma",
        "return": "return: factor per step",
        "gradient": "policy gradient: factor per step",
        "advantage_first": f"advantage's bias at n = {horizons[0]}",
        "advantage_last": f"advantage's bias at n = {horizons[-1]}",
    }
    found = decay_table(horizons, gamma).rename(columns=names)
    return found.map(lambda value: Exact(round(value, 6)) if value == value else "no bias")
