"""Runs that end with their compute: nearest step, stages of SCoRe, resuming, bad settings."""

from __future__ import annotations

import pytest
from local_fixtures import PROBLEMS, codec, random_policy, train_config

from rlvr.config_corrections import Counterfactual, SelfCorrection
from rlvr.engines.local.accounting import table_of
from rlvr.engines.local.job import Job
from rlvr.engines.local.spending import is_spent, processor_seconds, share_spent, spent
from rlvr.engines.local.training import _Run, run_of, train
from rlvr.evaluation import Ledger, ModelShape
from rlvr.storage import read_json

WIDE = {"clip_low": 0.5, "clip_high": 0.5}


def job(budget=None, steps=50, counterfactual=None, self_correction=None, **changes):
    config = train_config(
        budget=budget, steps=steps, loss_agg_mode="seq-mean-token-mean", records_per_step=0, **changes
    )
    return Job(
        "x", "gspo", dict(WIDE), 0, 0, config, PROBLEMS, counterfactual=counterfactual,
        self_correction=self_correction,
    )  # fmt: skip


def new_run(one):
    return run_of(one)(one, random_policy(), codec(), "x")


def ends(one):
    """FLOPs after every step of a run that goes on to its end."""
    run = new_run(one)
    while not run.finished:
        run.step()
    return run, [spent(row, run.policy.shape) for row in run.compute_rows]


@pytest.fixture(scope="module")
def costs():
    """Of six steps without a budget."""
    return ends(job(steps=6))[1]


def test_what_is_spent_is_the_ledger_s_estimate():
    run = new_run(job(steps=1))
    run.step()
    row, model = run.compute_rows[-1], ModelShape.of(run.policy.shape)
    assert spent(row, run.policy.shape) == Ledger.from_dict(table_of(row)).flops(model) > 0
    assert share_spent(run.compute_rows, run.policy.shape, 2 * spent(row, run.policy.shape)) == 0.5
    assert share_spent([], run.policy.shape, 1.0) == 0.0


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_a_run_ends_with_the_step_nearest_to_its_budget(costs, share):
    """Between the third and the fourth step: the nearer one, as far as the third step's cost tells."""
    last = costs[2] - costs[1]
    budget = costs[2] + share * last
    run, found = ends(job(budget=budget))
    assert found == costs[: len(found)]
    assert run.done == (3 if share < 0.5 else 4)
    assert "val_pass1_after" in run.metrics[-1] and not any("val_pass1_after" in m for m in run.metrics[:-1])


def test_spent_by_hand():
    run = new_run(job(steps=1))
    run.step()
    (row,) = run.compute_rows
    shape, first = run.policy.shape, spent(run.compute_rows[0], run.policy.shape)
    double = {name: 2 * value for name, value in row.items()}
    assert not is_spent([], shape, 1.0)
    assert is_spent([row], shape, 1.4 * first) and not is_spent([row], shape, 1.6 * first)
    assert is_spent([row, double], shape, 2.4 * first) and not is_spent([row, double], shape, 2.6 * first)


def test_corrections_are_paid_for(costs):
    budget = costs[-1]
    run, _ = ends(job(budget=budget, counterfactual=Counterfactual()))
    assert run.done < 6 and abs(run.share - 1) < 0.5


def test_the_stages_of_score_are_shares_of_the_budget(costs):
    one = job(budget=3 * costs[-1], self_correction=SelfCorrection(stage1_share=0.4))
    run = new_run(one)
    while not run.finished:
        before = run.share
        run.step()
        assert run.metrics[-1]["stage"] == (1.0 if before < 0.4 else 2.0)
    stages = [m["stage"] for m in run.metrics]
    assert stages[0] == 1.0 and stages[-1] == 2.0 and stages == sorted(stages)


def test_a_run_leaves_and_resumes_with_a_budget(tmp_path, costs):
    base = tmp_path / "base"
    random_policy().save_pretrained(base)
    codec().save(base)
    one, seen = job(budget=costs[3]), []
    train(base, one, tmp_path / "whole", tmp_path / "s1", None, lambda *at: seen.append(at))
    summary = read_json(tmp_path / "whole/summary.json")
    assert summary["reached_step"] == summary["requested_steps"] == 4 and seen[-1] == (4, 4)

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(base, one, tmp_path / "cut", tmp_path / "s2", None, stop)
    train(base, one, tmp_path / "cut", tmp_path / "s2")
    for name in ("metrics.parquet", "compute.parquet", "final/model.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert processor_seconds(base, one, steps=1) > 0


def test_processor_time_is_that_of_what_the_flops_count(tmp_path, monkeypatch, costs):
    """Validation, which is not in the FLOPs, is not timed either; the run is otherwise a normal one."""
    random_policy().save_pretrained(tmp_path)
    codec().save(tmp_path)
    clock = iter([10.0, 13.0])
    monkeypatch.setattr("time.process_time", lambda: next(clock))

    def refuse(self):
        raise AssertionError("validated")

    monkeypatch.setattr(_Run, "_validate", refuse)
    assert processor_seconds(tmp_path, job(steps=2), steps=2) == pytest.approx(3.0 / costs[1])


def test_too_few_steps_for_the_budget_are_an_error(costs):
    run = new_run(job(budget=10 * costs[-1], steps=2))
    run.step()
    with pytest.raises(RuntimeError, match=r"spent \d+% of its budget in train.steps=2"):
        run.step()


def test_a_schedule_needs_steps():
    with pytest.raises(ValueError, match="schedule='cosine' with a budget: allowed is 'constant'"):
        job(budget=1e9, schedule="cosine")
    with pytest.raises(ValueError, match="budget"):
        job(budget=0.0)
