"""A recipe that names an objective trains the method of that name: its aggregation, its L, its advantages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from local_fixtures import codec, random_policy

from rlvr import objectives
from rlvr.advantages import group_relative
from rlvr.config import Recipe, load_scale, load_yaml
from rlvr.engines.local.job import jobs_of
from rlvr.engines.local.methods import OWN, SHARED_AGGREGATION, method_settings, resolve
from rlvr.engines.local.training import _Run
from rlvr.recipes import check_recipes
from rlvr.storage import fingerprint

PROJECT = Path(__file__).resolve().parents[1]
SCALE = load_scale(PROJECT / "params.yaml")
NAMES = objectives.list_objectives()
REFUSED = {"masked_gspo", "mpo", "mpo_grpo", "ppo"}
TRAINED = [name for name in NAMES if name not in REFUSED]
# Written down from the papers, not from the code: what a token's loss is divided by, with B responses, M
# tokens in all, n of its own, L the longest response allowed; and whether the group's std divides A.
DIVISOR = {
    **{name: lambda B, M, n, L: M for name in ("dapo", "cispo", "fipo")},
    **{name: lambda B, M, n, L: B * n for name in ("gspo", "gspo_token", "gmpo")},
    "dr_grpo": lambda B, M, n, L: B * L,
    "exact_pg": lambda B, M, n, L: 1,
}
NOT_DIVIDED_BY_STD = {"dr_grpo", "exact_pg"}


def with_recipe(name, scale=SCALE, **more):
    recipes = {**scale.recipes, "new": Recipe(objective=name, **more)}
    return scale.model_copy(update={"recipes": recipes})


def on_the_page(name):
    """(arm, the scale with what the page of ``name`` says to add to params.yaml)."""
    page = (PROJECT / f"docs/objectives/{name}.md").read_text()
    arm = re.search(r"(?m)^dvc repro train@(.+)$", page)[1]
    if (added := re.search(r"`(\w+): \{(.*)\}` to `recipes`", page)) is None:
        return arm, SCALE
    assert added[1] == arm
    given = dict(pair.split(": ") for pair in added[2].split(", "))
    return arm, SCALE.model_copy(update={"recipes": {**SCALE.recipes, arm: Recipe(**given)}})


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("shared", ["token-mean", "seq-mean-token-sum"])
def test_the_command_on_the_page_trains_the_method(name, shared):
    """What the engine itself minimises, on ragged responses, whatever the arms share."""
    arm, scale = on_the_page(name)
    scale = scale.model_copy(update={"train": scale.train.model_copy(update={"loss_agg_mode": shared})})
    check_recipes(scale)
    job = jobs_of(scale, arm, seed=0)[0]
    loss = _Run(job, random_policy(), codec(), "x").updater.loss

    lengths, width, rows = torch.tensor([5, 1, 3, 4]), 5, 4  # no response as long as allowed
    mask = (torch.arange(width) < lengths[:, None]).float()
    log_prob = -0.5 - torch.rand(rows, width, generator=torch.Generator().manual_seed(0))
    log_prob = log_prob.double()
    parameters = {k: v for k, v in scale.recipes[arm].parameters.items()}
    each = objectives.get(name)(
        log_prob, log_prob, torch.ones(rows).double(), mask, reduction="none", **parameters
    )[0]
    divisor = DIVISOR.get(name, DIVISOR["dapo"] if shared == "token-mean" else lambda B, M, n, L: B)
    B, M, L = rows, int(lengths.sum()), scale.train.max_new_tokens
    expected = sum(
        each[i, t] / divisor(B, M, int(n), L) for i, n in enumerate(lengths) for t in range(int(n))
    )
    found = loss(log_prob, log_prob, torch.ones(rows).double(), mask)[0]
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    assert job.train.advantage_std == ("none" if name in NOT_DIVIDED_BY_STD else "unbiased")


def test_the_engine_reads_the_methods_advantages():
    """Rewards 1, 0, 0, 0 of one group: a std of 1/2."""
    run = _Run(jobs_of(with_recipe("dr_grpo"), "new", 0)[0], random_policy(), codec(), "x")
    rewards, group = torch.tensor([1.0, 0, 0, 0]), torch.zeros(4, dtype=torch.long)
    advantages = group_relative(rewards, group, std=run.job.train.advantage_std)
    torch.testing.assert_close(advantages, torch.tensor([0.75, -0.25, -0.25, -0.25]))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_the_engine_cannot_train_is_refused(name):
    page = (PROJECT / f"docs/objectives/{name}.md").read_text()
    assert "dvc repro" not in page
    missing = "critic" if name == "ppo" else "needs"
    with pytest.raises(ValueError, match=rf"recipes.new: objective='{name}' .*{missing}"):
        check_recipes(with_recipe(name))
    with pytest.raises(ValueError, match=rf"objective='{name}'"):
        jobs_of(with_recipe(name), "new", 0)


def test_the_arms_of_the_laptop_compute_what_they_did():
    for path in (PROJECT / "params.yaml", *(PROJECT / "pipelines/scales").glob("*/params.yaml")):
        if "recipes" not in load_yaml(path):
            continue
        scale = load_scale(path)
        for arm, recipe in scale.recipes.items():
            if set(OWN) & set(recipe.parameters):
                continue
            train, parameters = resolve(scale.train, recipe)
            assert train is scale.train and parameters == recipe.parameters, (path, arm)


def test_a_recipe_may_say_otherwise():
    scale = with_recipe("nfpo", loss_agg_mode="seq-mean-token-sum-norm", advantage_std="none", horizon=8)
    (job, *_) = jobs_of(scale, "new", 0)
    assert (job.train.loss_agg_mode, job.train.advantage_std) == ("seq-mean-token-sum-norm", "none")
    assert job.parameters == {"horizon": 8} and job.trace == {"horizon": 8}
    assert jobs_of(SCALE, "nfpo", 0)[0].train is SCALE.train
    assert fingerprint(job.to_dict()) != fingerprint(
        jobs_of(with_recipe("nfpo", horizon=8), "new", 0)[0].to_dict()
    )
    check_recipes(scale)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"loss_agg_mode": "mean"}, "loss_agg_mode='mean'"),
        ({"advantage_std": "zscore"}, "advantage_std"),
        ({"reduction": "none"}, "gspo has no parameter 'reduction'"),
        ({"loss_scale_factor": 3}, "gspo has no parameter 'loss_scale_factor'"),
        ({"clip_lo": 0.1}, "gspo has no parameter 'clip_lo': did you mean 'clip_low'"),
    ],
)
def test_a_wrong_recipe(more, message):
    with pytest.raises(ValueError, match=f"recipes.new: [\\s\\S]*{message}"):
        check_recipes(with_recipe("gspo", **more))


def test_every_objective_is_of_one_kind():
    assert {name for name in NAMES if objectives.get(name).advantages == "critic"} == {"ppo", "mpo"}
    assert SHARED_AGGREGATION <= set(NAMES)
    assert not SHARED_AGGREGATION & set(DIVISOR)
    assert set(TRAINED) == SHARED_AGGREGATION | set(DIVISOR)
    assert method_settings(objectives.dr_grpo) == {
        "loss_agg_mode": "seq-mean-token-sum-norm",
        "advantage_std": "none",
    }


def test_recomputed_log_probs_are_a_recipe_s_own():
    (job, *_) = jobs_of(with_recipe("nfpo", recompute="trace"), "new", 0)
    assert job.train.recompute == "trace" and "recompute" not in job.parameters
    assert jobs_of(with_recipe("grpo", recompute="all"), "new", 0)[0].train.recompute == "all"
    with pytest.raises(ValueError, match="recompute='trace': grpo has no trace; allowed are none and all"):
        jobs_of(with_recipe("grpo", recompute="trace"), "new", 0)
    with pytest.raises(ValueError, match="recompute"):
        jobs_of(with_recipe("nfpo", recompute="some"), "new", 0)
