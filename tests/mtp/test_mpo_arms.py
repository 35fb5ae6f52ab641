"""MPO's scale files: which arms differ in what, groups of arms, one warm-up of modules for all."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr.analysis.mpo import (
    Setting,
    arm_label,
    arms_over,
    block_arms,
    every_arm,
    head_arms,
    load_part,
    setting_of,
    weight_arms,
)
from rlvr.config import Scale, load_scale
from rlvr.engines.local.job import jobs_of
from rlvr.engines.training import LocalTraining
from rlvr.recipes import check_recipes

ROOT = Path(__file__).parents[2]
FILES = [
    f"pipelines/scales/{scale}/mpo{part}/params.yaml"
    for scale in ("smoke", "laptop")
    for part in ("", "/program")
]


@pytest.fixture(params=FILES)
def scale(request):
    return load_scale(ROOT / request.param)


@pytest.fixture
def laptop():
    return load_scale(ROOT / FILES[2])


def changed(scale, **recipes):
    """The scale with recipes added or replaced; new ones are trained as ablations."""
    raw = scale.model_dump()
    raw["ablations"]["arms"] = [*raw["ablations"]["arms"], *(r for r in recipes if r not in raw["recipes"])]
    raw["recipes"] |= recipes
    return Scale.model_validate(raw)


def recipe(scale, arm, **changes):
    return scale.recipes[arm].model_dump() | changes


def test_every_recipe_can_be_trained(scale):
    check_recipes(scale)
    for arm in every_arm(scale):
        (job,) = jobs_of(scale, arm, scale.seeds[0])
        train = job.train
        assert train.steps == scale.train.steps and train.minibatches == scale.train.minibatches
        assert (
            train.prompts_per_step * train.group_size == scale.train.prompts_per_step * scale.train.group_size
        )


def test_mpo_on_grpo_is_grpo_but_for_its_objective_and_modules(laptop):
    for arms in (laptop, load_scale(ROOT / FILES[0])):
        (one,), (other,) = (jobs_of(arms, arm, arms.seeds[0]) for arm in ("mpo_grpo", "grpo_4"))
        assert one.train == other.train and one.train.group_size == 4 and one.critic is None
        assert set(other.to_dict()) == set(one.to_dict()) - {"mtp"}
    assert (one.train.prompts_per_step, laptop.recipes["mpo_grpo"].prompts_per_step) == (8, 32)


def test_the_still_arm_is_mpo_but_for_its_modules_training(laptop):
    still, full = (laptop.recipes[arm].model_dump() for arm in ("mpo_still", "mpo"))
    assert (still["mtp"].pop("train"), full["mtp"].pop("train")) == ("none", "cross_entropy")
    assert still == full
    assert arms_over(laptop, "train") == {("cross_entropy",): "mpo", ("none",): "mpo_still"}


def test_the_length_penalty_touches_no_right_answer(scale):
    from rlvr.problems import get_task

    longest = get_task(scale.problems.task).max_response_tokens(scale.problems.operations)
    assert longest <= scale.train.max_new_tokens - scale.recipes["dapo"].sampling.overlong_buffer


def test_arms_by_what_they_differ_in(laptop):
    assert weight_arms(laptop) == {0.0: "ppo", 0.1: "mpo_s10", 0.2: "mpo", 0.3: "mpo_s30", 0.4: "mpo_s40"}
    assert block_arms(laptop) == {1: "ppo", 2: "mpo_k2", 3: "mpo_k3", 5: "mpo"}
    assert head_arms(laptop) == {
        2: ("mpo_k2", "mpo_k2_heads"), 3: ("mpo_k3", "mpo_k3_heads"), 5: ("mpo", "mpo_k5_heads"),
    }  # fmt: skip
    grid = arms_over(laptop, "decay", "weight")
    assert grid[1.0, 0.1] == "mpo_d10_s10" and grid[0.8, 0.2] == "mpo" and len(grid) == 7
    assert setting_of(laptop, "mpo") == Setting(5, 0.2, 0.8, 1, "block", "cross_entropy")
    assert setting_of(laptop, "ppo") is None and setting_of(laptop, "mpo_grpo") is None
    assert arm_label(laptop, "mpo_k3_heads") == "MPO, K=3, S=20 %, decay 0.8, 3 value heads"
    assert arm_label(laptop, "mpo_still") == "MPO, K=5, S=20 %, decay 0.8, modules not trained"
    assert arm_label(laptop, "mpo_scaled") == "MPO, K=2, S=20 %, decay 0.8, scaled token ratio"


def test_an_arm_that_differs_in_more_is_in_no_series(laptop):
    more = changed(laptop, both=recipe(laptop, "mpo", mtp_weight=0.15, decay=0.5))
    assert weight_arms(more) == weight_arms(laptop)
    assert arms_over(more, "weight", "decay")[0.15, 0.5] == "both"


def test_what_cannot_be_told_apart_is_refused(laptop):
    with pytest.raises(ValueError, match="'mpo' and 'again' have one setting"):
        weight_arms(changed(laptop, again=recipe(laptop, "mpo")))
    with pytest.raises(ValueError, match=r"fields \['lr'\]: allowed are blocks, weight"):
        arms_over(laptop, "lr")
    with pytest.raises(ValueError, match="arm='ppo' is no arm of MPO"):
        arm_label(laptop, "ppo")


def test_the_program_part_lies_beside_and_trains_the_papers_arms(laptop):
    program = load_part(laptop, "program")
    assert program.folder == laptop.folder / "program" and program.problems.task == "program"
    assert program.seeds == laptop.seeds and set(program.arms) < set(laptop.arms)


def test_one_stage_takes_many_arms(laptop):
    training = LocalTraining(laptop, "arms")
    assert training.several and training.names == ["arm", "seed", "lag"]
    runs = training.runs("out")
    assert list(runs) == [(arm, seed, 0) for arm in laptop.arms for seed in laptop.seeds]
    for (arm, seed, lag), folder in runs.items():
        assert folder == Path(f"out/{arm}/seed{seed}/lag{lag}")
        assert laptop.run_folder(arm, seed, lag) == laptop.folder / "train" / folder.relative_to("out")
    one = LocalTraining(laptop, "mpo")
    assert not one.several and list(one.runs("out")) == [(seed, 0) for seed in laptop.seeds]
    assert one.settings["mtp"]["blocks"] == 5
    assert laptop.arms_of("every") == ("base", *laptop.arms, *laptop.ablations.arms)
    assert laptop.evaluation_folder("mpo") == laptop.evaluation_folder("base") == laptop.folder / "evaluate"


def test_modules_are_warmed_up_once(laptop):
    assert laptop.modules == laptop.recipes["mpo"].mtp
    longer = laptop.recipes["mpo"].mtp.model_copy(update={"blocks": 7}).model_dump()
    with pytest.raises(ValueError, match=r"recipes\.mpo\.mtp: paper 'mpo' needs it, with the most blocks"):
        changed(laptop, long=recipe(laptop, "mpo", mtp=longer))
    other = laptop.recipes["mpo"].mtp.model_copy(update={"variant": "chained", "blocks": 3}).model_dump()
    with pytest.raises(ValueError, match=r"recipes\.new\.mtp\.variant=chained: allowed is that of"):
        changed(laptop, new=recipe(laptop, "mpo", mtp=other))
    with pytest.raises(ValueError, match=r"recipes \['every'\]"):
        changed(laptop, every=recipe(laptop, "ppo"))
