"""The settings shared by all arms beside those the NFPO paper states (its table C.1)."""

from __future__ import annotations

import pandas as pd

from rlvr.analysis.study import Study
from rlvr.reporting.bundle import Exact, Stated

#: What the text, or the authors' release where the text is silent, says; None where neither does.
_PAPER = {
    "model": ("Qwen3-1.7B-Base / Qwen3-8B-Base", "text"),
    "training problems": ("MATH level 3-5 / DAPO-Math-17k", "text"),
    "prompts per step": (128, "text"),
    "responses per prompt": (8, "text"),
    "responses per minibatch": (256, "text"),
    "updates per step": (4, "text"),
    "longest response, tokens": ("8192 / 16384", "text"),
    "training steps": (500, "release"),
    "learning rate": (1e-6, "release"),
    "sampling temperature, training": (1.0, "release"),
    "sampling temperature, evaluation": (0.7, "text"),
    "samples per problem, evaluation": (32, "text"),
    "KL or entropy term": ("none", "text"),
    "advantage": ("group relative", "text"),
    "aggregation": ("seq-mean-token-sum-norm", "release"),
    "gradient clip": (1.0, "verl's default, which App. C says holds"),
    "AdamW betas": ("0.9, 0.999", "verl's default, which App. C says holds"),
    "age of rollouts, steps": (0, "text"),
}


def hyperparameter_table(study: Study) -> pd.DataFrame:
    """One row per setting: the paper's value with its source, and that of these runs."""
    train, evaluate = study.train, study.evaluate
    std = {"none": "not divided by std"}.get(train.advantage_std, f"divided by {train.advantage_std} std")
    ours = {
        "model": _model(study),
        "training problems": _problems(study),
        "prompts per step": train.prompts_per_step,
        "responses per prompt": train.group_size,
        "responses per minibatch": train.prompts_per_step * train.group_size // train.minibatches,
        "updates per step": train.minibatches,
        "longest response, tokens": train.max_new_tokens,
        "training steps": train.steps,
        "learning rate": train.lr,
        "sampling temperature, training": train.temperature,
        "sampling temperature, evaluation": evaluate.temperature,
        "samples per problem, evaluation": evaluate.samples,
        "KL or entropy term": study.penalties,
        "advantage": f"group relative, {std}",
        "aggregation": train.loss_agg_mode,
        "gradient clip": train.grad_clip,
        "AdamW betas": ", ".join(map(str, train.betas)),
        "age of rollouts, steps": ", ".join(map(str, train.lags)),
    }
    rows = [
        {
            "setting": name,
            "paper": Stated(value) if not isinstance(value, str) else value,
            "source": source or "-",
            "ours": ours[name] if isinstance(ours[name], str) else Exact(ours[name]),
        }
        for name, (value, source) in _PAPER.items()
    ]
    return pd.DataFrame(rows)


def _model(study: Study) -> str:
    if not study.embedded:
        return study.model
    return f"Qwen3 architecture, {study.model.num_hidden_layers} layers of {study.model.hidden_size}"


def _problems(study: Study) -> str:
    problems = study.problems
    if study.embedded:
        low, high = problems.operations
        return f"{problems.task}, {low}-{high} arithmetic steps, fresh at every step"
    levels = f", level {', '.join(map(str, problems.levels))}" if problems.levels else ""
    return f"{problems.train}{levels}"
