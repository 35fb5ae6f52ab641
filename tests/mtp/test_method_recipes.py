"""Recipes with blocks beside the objective: which go together, and what a job then holds."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from rlvr.config import Recipe, load_scale, load_yaml
from rlvr.engines.jobs.embedded import experiment_of
from rlvr.engines.local.job import jobs_of
from rlvr.engines.local.training import _Run, run_of
from rlvr.recipes import check_recipes
from rlvr.storage import fingerprint

PROJECT = Path(__file__).resolve().parents[2]
SCALE = load_scale(PROJECT / "params.yaml")
WARMUP = {"seed": 0, "steps": 9, "lr": 1e-3, "betas": [0.9, 0.98], "batch_size": 4, "check_every": 3}
MTP = {"blocks": 5, "lr": 1e-3, "warmup": WARMUP}
CRITIC = {"lr": 1e-3}
GIVEN = {
    "ppo": {"critic": CRITIC},
    "mpo": {"mtp": MTP, "critic": CRITIC},
    "mpo_grpo": {"mtp": MTP},
    "dapo": {"sampling": {"dynamic": True, "overlong_buffer": 8}},
}


def with_recipe(name, **more):
    return SCALE.model_copy(update={"recipes": {**SCALE.recipes, "new": Recipe(objective=name, **more)}})


@pytest.mark.parametrize("name", sorted(GIVEN))
def test_what_a_method_needs_makes_it_trainable(name):
    scale = with_recipe(name, **GIVEN[name])
    check_recipes(scale)
    job = jobs_of(scale, "new", 3)[0]
    assert run_of(job) is not _Run
    written = job.to_dict()
    for block in ("mtp", "critic", "sampling"):
        assert (block in written) == (block in GIVEN[name])
    if "mtp" in GIVEN[name]:
        assert job.parameters == {"mtp_gradient": "stop"} and written["mtp"]["blocks"] == 5


def test_jobs_without_a_block_are_what_they_were():
    job = jobs_of(SCALE, "nfpo", 0)[0]
    assert run_of(job) is _Run
    names = {"arm", "objective", "parameters", "lag", "seed", "trace", "train", "problems"}
    assert set(job.to_dict()) == names


@pytest.mark.parametrize(
    ("name", "blocks", "message"),
    [
        ("ppo", {}, r"objective='ppo' needs a critic's advantages, .* with a block `critic`"),
        (
            "mpo",
            {"critic": CRITIC},
            r"objective='mpo' needs mtp_log_prob, old_mtp_log_prob, .* a block `mtp`",
        ),
        ("mpo", {"mtp": MTP}, "objective='mpo' needs a critic's advantages"),
        ("mpo_grpo", {"mtp": MTP, "critic": CRITIC}, "'mpo_grpo' takes no block 'critic'; allowed is none"),
        ("grpo", {"mtp": MTP}, "'grpo' takes no block 'mtp'"),
        ("nfpo", {"critic": CRITIC}, "'nfpo' takes no block 'critic'"),
        ("masked_gspo", {"mtp": MTP}, "objective='masked_gspo' needs token_mask, which .* does not make"),
        ("mpo_grpo", {"mtp": MTP, "mtp_gradient": "full"}, "mtp_gradient .* allowed is mtp.policy_gradient"),
        ("mpo_grpo", {"mtp": MTP, "mtp_log_prob": 1}, "mtp_log_prob is not a parameter of a recipe"),
        ("mpo_grpo", {"mtp": MTP, "mtp_weigth": 0.1}, "did you mean 'mtp_weight'"),
        ("mpo_grpo", {"mtp": MTP, "mtp_weight": 1.0}, "mtp_weight=1.0: allowed are 0 <= mtp_weight < 1"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(name, blocks, message):
    with pytest.raises(ValueError, match=f"recipes.new: .*{message}"):
        check_recipes(with_recipe(name, **blocks))


def test_where_the_policy_gradient_goes_is_one_setting():
    for reach, told in (("stop", "stop"), ("modules", "full"), ("full", "full")):
        scale = with_recipe("mpo_grpo", mtp={**MTP, "policy_gradient": reach})
        assert jobs_of(scale, "new", 0)[0].parameters == {"mtp_gradient": told}


def test_a_recipe_may_set_the_sizes_of_its_batches_and_its_learning_rate():
    scale = with_recipe("grpo", group_size=4, prompts_per_step=64, lr=1e-4, steps=7, minibatches=2)
    check_recipes(scale)
    job = jobs_of(scale, "new", 0)[0]
    train = job.train
    sizes = (train.group_size, train.prompts_per_step, train.lr, train.steps, train.minibatches)
    assert sizes == (4, 64, 1e-4, 7, 2) and job.parameters == {} and run_of(job) is _Run
    with pytest.raises(ValueError, match=r"recipes.new: [\s\S]*prompts_per_step=30 must be a multiple"):
        check_recipes(with_recipe("grpo", prompts_per_step=30))


def test_verl_refuses_what_only_the_local_engine_has():
    scale = with_recipe("dapo", **GIVEN["dapo"])
    scale = scale.model_copy(update={"train": scale.train.model_copy(update={"lags": (0,)})})
    with pytest.raises(ValueError, match="new: sampling is what the local engine has beside a loss"):
        experiment_of(scale, "new", 0)


def test_settings_change_the_identity_of_a_run():
    prints = set()
    for more in ({}, {"hidden": "trunk"}, {"blocks": 4}, {"train": "none"}, {"lr": 2e-3}):
        job = jobs_of(with_recipe("mpo_grpo", mtp={**MTP, **more}), "new", 0)[0]
        prints.add(fingerprint(job.to_dict()))
    assert len(prints) == 5


@pytest.mark.parametrize(
    ("block", "field", "value"),
    [
        ("mtp", "blocks", 0),
        ("mtp", "variant", "serial"),
        ("mtp", "layers", 2),
        ("critic", "gamma", 1.5),
        ("critic", "network", "own"),
        ("critic", "head_weight", 1.0),
        ("critic", "lr", "fast"),
        ("sampling", "max_batches", 0),
    ],
)
def test_a_wrong_field_of_a_scale_file_is_named(tmp_path, block, field, value):
    raw = copy.deepcopy(load_yaml(PROJECT / "params.yaml"))
    given = {"mtp": MTP, "critic": CRITIC, "sampling": {}}[block]
    raw["recipes"]["new"] = {"objective": "mpo", block: {**given, field: value}}
    file = tmp_path / "params.yaml"
    YAML(typ="safe", pure=True).dump(raw, file)
    with pytest.raises(ValueError, match=rf"recipes\.new\.{block}\.{field}"):
        load_scale(file)
