"""The table of shared settings: the paper's numbers as typed from its text, ours from the scale."""

from __future__ import annotations

import pytest
from notebook_factory import PROJECT

from rlvr.analysis.hyperparameters import hyperparameter_table
from rlvr.analysis.study import Study, of_scale
from rlvr.config import Scale, load_scale, load_yaml
from rlvr.reporting.cells import Exact, Stated, pretty
from rlvr.reporting.table import Table

SCALES = sorted([PROJECT / "params.yaml", *PROJECT.glob("pipelines/scales/*/params.yaml")])


def study(**changes) -> Study:
    """The default scale's with sections changed: ``train={"lr": 1}``."""
    raw = load_yaml(PROJECT / "params.yaml")
    for section, values in changes.items():
        raw[section] |= values
    return of_scale(Scale.model_validate(raw))


VERL = "verl's default, which App. C says holds"


def ours(setting, **changes) -> str:
    return pretty(hyperparameter_table(study(**changes)).set_index("setting").loc[setting, "ours"])


@pytest.mark.parametrize(
    ("setting", "paper", "source"),
    [
        ("prompts per step", "128", "text"),
        ("responses per prompt", "8", "text"),
        ("responses per minibatch", "256", "text"),
        ("updates per step", "4", "text"),
        ("longest response, tokens", "8192 / 16384", "text"),
        ("training steps", "500", "release"),
        ("learning rate", "1e-06", "release"),
        ("sampling temperature, evaluation", "0.7", "text"),
        ("samples per problem, evaluation", "32", "text"),
        ("aggregation", "seq-mean-token-sum-norm", "release"),
        ("gradient clip", "1.0", VERL),
        ("AdamW betas", "0.9, 0.999", VERL),
    ],
)
def test_what_the_paper_states(setting, paper, source):
    row = hyperparameter_table(study()).set_index("setting").loc[setting]
    assert (pretty(row["paper"]), row["source"]) == (paper, source)
    assert isinstance(row["paper"], (Stated, str))


def test_the_papers_numbers_agree_with_each_other():
    paper = hyperparameter_table(study()).set_index("setting")["paper"]
    number = {name: cell.value for name, cell in paper.items() if isinstance(cell, Stated)}
    responses = number["prompts per step"] * number["responses per prompt"]
    assert responses == number["updates per step"] * number["responses per minibatch"]


@pytest.mark.parametrize(
    ("setting", "changes", "text"),
    [
        ("prompts per step", {"train": {"prompts_per_step": 48}}, "48"),
        ("responses per prompt", {"train": {"group_size": 5}}, "5"),
        ("updates per step", {"train": {"minibatches": 8}}, "8"),
        ("longest response, tokens", {"train": {"max_new_tokens": 77}}, "77"),
        ("training steps", {"train": {"steps": 13}}, "13"),
        ("learning rate", {"train": {"lr": 3e-5}}, "3e-05"),
        ("sampling temperature, training", {"train": {"temperature": 0.9}}, "0.9"),
        ("sampling temperature, evaluation", {"evaluate": {"temperature": 0.6}}, "0.6"),
        ("samples per problem, evaluation", {"evaluate": {"samples": 16}}, "16"),
        ("aggregation", {"train": {"loss_agg_mode": "seq-mean-token-sum"}}, "seq-mean-token-sum"),
        ("gradient clip", {"train": {"grad_clip": 0.5}}, "0.5"),
        ("AdamW betas", {"train": {"betas": [0.8, 0.9]}}, "0.8, 0.9"),
        ("age of rollouts, steps", {"train": {"lags": [0, 3]}, "ablations": {"lag": 3}}, "0, 3"),
        (
            "training problems",
            {"problems": {"operations": [2, 5]}},
            "word, 2-5 arithmetic steps, fresh at every step",
        ),
        (
            "model",
            {"model": {"num_hidden_layers": 3, "hidden_size": 32}},
            "Qwen3 architecture, 3 layers of 32",
        ),
        ("advantage", {"train": {"advantage_std": "unbiased"}}, "group relative, divided by unbiased std"),
        ("advantage", {"train": {"advantage_std": "none"}}, "group relative, not divided by std"),
    ],
)
def test_our_column_follows_the_scale(setting, changes, text):
    assert ours(setting, **changes) == text


def test_responses_per_minibatch_follow_from_three_settings():
    train = {"prompts_per_step": 24, "group_size": 4, "minibatches": 3, "records_per_step": 3}
    assert ours("responses per minibatch", train=train) == "32"


@pytest.mark.parametrize("path", SCALES, ids=lambda p: p.parent.name)
def test_the_table_may_be_shown_for_every_scale(path):
    """No bare number, nothing empty: what `save_table` refuses would fail the stage."""
    frame = hyperparameter_table(of_scale(load_scale(path)))
    table = Table.from_frame(frame)
    assert list(frame.columns) == ["setting", "paper", "source", "ours"]
    assert frame["setting"].is_unique and len(table.rows) == len(frame) == 18
    assert all(isinstance(cell, (Exact, str)) for cell in frame["ours"])
    assert set(frame["source"]) == {"text", "release", VERL}
