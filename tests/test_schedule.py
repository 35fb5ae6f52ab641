"""The learning rate of a step, and that a run follows it."""

from __future__ import annotations

import itertools
import math

import pytest
from local_fixtures import PROBLEMS, codec, random_policy, train_config

from rlvr.engines.local.job import Job
from rlvr.engines.local.schedule import learning_rate
from rlvr.engines.local.training import _Run


def rates(steps, **changes):
    config = train_config(steps=steps, lr=2.0, **changes)
    return [learning_rate(config, step) for step in range(steps)]


def test_constant_is_the_default():
    assert rates(5) == [2.0] * 5


def test_typed_in_cosine():
    found = rates(6, schedule="cosine", warmup_ratio=0.3, min_lr_ratio=0.1)  # a rise over ceil(1.8) = 2 steps
    expected = [1.0, 2.0, 2.0, 0.2 + 1.8 * (1 + math.cos(math.pi / 4)) / 2, 1.1]
    assert found == pytest.approx([*expected, 0.2 + 1.8 * (1 + math.cos(3 * math.pi / 4)) / 2])


def test_the_paper_s_schedule_rises_over_3_percent_and_falls_to_a_tenth():
    found = rates(1000, schedule="cosine")
    assert found[:30] == pytest.approx([2.0 * (t + 1) / 30 for t in range(30)])
    assert found[30] == 2.0 and all(b < a for a, b in itertools.pairwise(found[30:]))
    assert found[-1] == pytest.approx(0.2, abs=1e-4) and min(found[30:]) > 0.2


def test_no_step_is_lost_at_a_rate_of_zero():
    assert rates(40, schedule="cosine")[0] == pytest.approx(1.0) and rates(1, schedule="cosine") == [2.0]
    assert rates(3, schedule="cosine", warmup_ratio=0.0)[0] == 2.0


def test_a_run_follows_the_schedule_and_a_constant_one_leaves_the_optimiser_alone():
    for schedule in ("constant", "cosine"):
        config = train_config(schedule=schedule, lr=1e-3, warmup_ratio=0.5)
        run = _Run(Job("grpo", "grpo", {}, 0, 0, config, PROBLEMS), random_policy(), codec(), "x")
        seen = []
        for _ in range(4):
            run.step()
            seen.append(run.updater.optimizer.param_groups[0]["lr"])
        assert seen == [learning_rate(config, step) for step in range(4)]
        assert (schedule == "constant") == (set(seen) == {1e-3})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "linear"}, "schedule"),
        ({"warmup_ratio": 1.0}, "warmup_ratio"),
        ({"min_lr_ratio": -1}, "min_lr"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        train_config(**changes)
