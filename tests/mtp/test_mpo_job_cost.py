"""Time and memory of jobs' steps, and what their logs say of critics and warm-ups: small numbers by hand."""

import pandas as pd
import pytest
from notebook_factory import PROJECT
from setting_fixtures import FILE

from rlvr.analysis import mpo_job_cost, mpo_training
from rlvr.analysis.mpo_job_cost import block_table, job_costs, method_table, over
from rlvr.analysis.study import study_of
from rlvr.reporting.cells import NOT_MEASURED

STUDY = study_of(PROJECT / FILE, "mpo-0.6b")


def steps(arm, seed, seconds, memory):
    """The metrics of one run, with the row after the last update."""
    columns = {"timing_s/step": seconds, "perf/max_memory_allocated_gb": memory}
    frame = pd.DataFrame({name: values for name, values in columns.items() if values is not None})
    frame = frame.assign(reward=0.5, value_clip_fraction=0.02)
    return pd.concat([frame, pd.DataFrame([{"val_pass1": 0.1}])]).assign(arm=arm, seed=seed)


@pytest.fixture
def given(monkeypatch):
    def give(*runs):
        for module in (mpo_job_cost, mpo_training):
            monkeypatch.setattr(
                module, "load_metrics", lambda study, arms: pd.concat(runs, ignore_index=True)
            )

    return give


def test_the_median_step_and_the_largest_memory(given):
    given(
        steps("grpo_4", 0, [90.0, 10.0, 12.0], [20.0, 22.0, 21.0]),
        steps("grpo_4", 1, [90.0, 14.0, 16.0], [20.0, 20.0, 20.0]),
        steps("mpo", 0, [90.0, 20.0, 24.0], [33.0, 30.0, 33.0]),
        steps("mpo", 1, [90.0, 28.0, 32.0], [30.0, 30.0, 30.0]),
    )
    costs = job_costs(STUDY, ["grpo_4", "mpo"]).set_index(["arm", "seed"])
    assert costs["step"].tolist() == [12.0, 16.0, 24.0, 32.0]
    assert costs["memory"].tolist() == [22.0, 20.0, 33.0, 30.0]
    found = over(costs.reset_index(), "mpo", "grpo_4", "memory", 0.95)
    assert found.value == pytest.approx(1.5) and found.n == 2
    table = method_table(costs.reset_index(), ["grpo_4", "mpo"], "grpo_4", 0.95)
    assert table.loc["GRPO, groups of 4", "time over GRPO's"] == "1"
    assert table.loc["MPO", "time over GRPO's"].value == pytest.approx(2.0)
    assert table.loc["MPO", "seconds per step"].value == pytest.approx(28.0)
    by_block = block_table(costs.reset_index(), {1: "grpo_4", 5: "mpo"}, 0.95)
    assert by_block.loc["5", "memory over K = 1"].value == pytest.approx(1.5)


def test_what_a_job_did_not_say_is_not_measured(given):
    given(steps("ppo", 0, [10.0, 10.0], None), steps("mpo", 0, [20.0, 20.0], [30.0, 30.0]))
    costs = job_costs(STUDY, ["ppo", "mpo"])
    assert over(costs, "mpo", "ppo", "memory", 0.95) is None
    table = method_table(costs, ["ppo", "mpo"], "ppo", 0.95)
    assert table.loc["PPO", "memory of the first GPU, GB"] is NOT_MEASURED
    assert table.loc["MPO", "memory over GRPO's"] is NOT_MEASURED
    assert table.loc["MPO", "time over GRPO's"].value == pytest.approx(2.0)
    with pytest.raises(ValueError, match=r"costs hold no row of arm 'dapo'; there are \['mpo', 'ppo'\]"):
        over(costs, "mpo", "dapo", "step", 0.95)


def test_a_job_s_critic_speaks_in_steps_and_nobody_counted_a_warm_up(given):
    given(steps("ppo", 0, [1.0, 1.0], None))
    assert mpo_training.value_clip_fraction(STUDY, ["ppo"]) == pytest.approx(0.02)
    assert mpo_training.warm_up_tokens(STUDY, "mpo") is None
    assert mpo_training.warm_up_tokens(STUDY, "ppo") == 0
