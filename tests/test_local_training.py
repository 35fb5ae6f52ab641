"""RL runs: exact resume, honest ends, lag, pairing, records."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from local_fixtures import PROBLEMS, codec, contents, random_policy, saved_base, train_config

from rlvr import objectives
from rlvr.engines.local import training
from rlvr.engines.local.checkpoint import RunState
from rlvr.engines.local.job import Job
from rlvr.engines.local.packing import pack
from rlvr.engines.local.rollout import collect, derive_seed, training_problems
from rlvr.engines.local.training import _Run, train
from rlvr.engines.local.update import MiniBatch, Updater, minibatches, response_log_prob
from rlvr.engines.local.workers import run_side_by_side
from rlvr.ratios import forward_trace


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return saved_base(tmp_path_factory.mktemp("base"))


def job(objective="nfpo", lag=0, seed=0, parameters=None, **changes):
    return Job(objective, objective, parameters or {}, lag, seed, train_config(**changes), PROBLEMS)


class Killed(Exception):
    pass


@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize("killed_after", [1, 3, 4])
def test_a_killed_run_ends_with_the_same_bytes(base, tmp_path, lag, killed_after):
    train(base, job(lag=lag), tmp_path / "whole", tmp_path / "s1")

    def kill(done, total):
        if done == killed_after:
            raise Killed

    with pytest.raises(Killed):
        train(base, job(lag=lag, checkpoint_every=2), tmp_path / "resumed", tmp_path / "s2", on_progress=kill)
    assert not (tmp_path / "resumed").exists(), "nothing half-written"
    train(base, job(lag=lag, checkpoint_every=2), tmp_path / "resumed", tmp_path / "s2")
    whole, resumed = contents(tmp_path / "whole"), contents(tmp_path / "resumed")
    assert whole.keys() == resumed.keys()
    for name in whole:
        if name != "config.json":  # differs in checkpoint_every
            assert whole[name] == resumed[name], name


def test_a_checkpoint_at_the_very_end_still_yields_the_outputs(base, tmp_path):
    """The last checkpoint is saved at the last step: resuming there must not 'succeed' with nothing."""
    train(base, job(), tmp_path / "a", tmp_path / "scratch")
    train(base, job(), tmp_path / "b", tmp_path / "scratch")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert json.loads((tmp_path / "b/summary.json").read_text())["reached_step"] == 4


def test_a_run_short_of_its_steps_writes_nothing(base, tmp_path):
    run = _Run(job(), random_policy(), codec(), "x")
    run.step()
    with pytest.raises(RuntimeError, match="reached step 1 of 4"):
        run.write(tmp_path / "out", base)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_another_job_or_a_broken_one_is_refused(base, tmp_path):
    train(base, job(), tmp_path / "a", tmp_path / "s")
    (path,) = (tmp_path / "s").iterdir()
    with pytest.raises(ValueError, match="another run"):
        RunState.load(path, "another")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="cannot be read"):
        train(base, job(), tmp_path / "b", tmp_path / "s")


def test_another_job_in_the_same_scratch_starts_over_as_if_it_were_empty(base, tmp_path):
    train(base, job(), tmp_path / "a", tmp_path / "s")
    train(base, job(seed=1), tmp_path / "b", tmp_path / "s")
    train(base, job(seed=1), tmp_path / "c", tmp_path / "empty")
    assert contents(tmp_path / "b") == contents(tmp_path / "c")
    assert len(list((tmp_path / "s").iterdir())) == 1, "the other job's checkpoint is of no use any more"
    assert RunState.load(tmp_path / "none.pt", "x") is None


@pytest.mark.slow
def test_kill_9_in_the_middle_then_again(base, tmp_path):
    """A real SIGKILL of a real process, at an arbitrary moment after its first checkpoint."""
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import torch;"
        "torch.set_num_threads(1); from test_local_training import job, train;"
        "train(sys.argv[2], job(steps=30), sys.argv[3], sys.argv[4])"
    )
    here = str(Path(__file__).parent)
    arguments = [sys.executable, "-c", script, here, str(base), str(tmp_path / "killed"), str(tmp_path / "s")]
    process = subprocess.Popen(arguments, cwd=here)
    deadline = time.time() + 60
    while not list((tmp_path / "s").glob("checkpoint-*.pt")) and time.time() < deadline:
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert not (tmp_path / "killed").exists()
    subprocess.run(arguments, cwd=here, check=True)
    train(base, job(steps=30), tmp_path / "whole", tmp_path / "s2")
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_same_job_same_bytes_other_seed_other_numbers(base, tmp_path):
    train(base, job(), tmp_path / "a", tmp_path / "s1")
    train(base, job(), tmp_path / "b", tmp_path / "s2")
    train(base, job(seed=1), tmp_path / "c", tmp_path / "s3")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a")["metrics.parquet"] != contents(tmp_path / "c")["metrics.parquet"]


def test_arms_with_the_same_seed_start_from_the_same_rollout(base, tmp_path):
    frames = {}
    for name in ("grpo", "uncorrected"):
        train(base, job(name), tmp_path / name, tmp_path / f"s-{name}")
        frames[name] = pd.read_parquet(tmp_path / name / "records.parquet").query(
            "step == 0 and minibatch == 0"
        )
    columns = ["token", "old_log_prob", "advantage", "position", "response"]
    pd.testing.assert_frame_equal(frames["grpo"][columns], frames["uncorrected"][columns])


def test_lag_takes_the_policy_of_that_many_steps_ago():
    run = _Run(job(lag=2), random_policy(), codec(), "x")
    seen = []
    for _ in range(4):
        before = run.updater.theta.detach().clone()
        seen.append(before)
        run.step()
        oldest = run.past[0] if len(run.past) < 3 else None
        assert len(run.past) == min(len(seen), 2)
        assert oldest is None or torch.equal(oldest, seen[max(0, len(seen) - 2)])
    # step 3 sampled from the weights before step 1
    problems = training_problems(PROBLEMS, 4, derive_seed(training._PROBLEMS, 0), 3)
    behaviour = random_policy().with_theta(seen[1])
    rollout = collect(behaviour, run.codec, problems, run.job.train, derive_seed(training._ROLLOUT, 0, 3))
    assert float(rollout.rewards.mean()) == run.metrics[3]["reward"]
    assert float(rollout.samples.lengths.double().mean()) == run.metrics[3]["response_length"]


def test_records_reproduce_ratio_and_trace_from_their_own_log_probs(base, tmp_path):
    parameters = dict(horizon=3, trace_clip=(0.8, 1.4), ratio_clip=3.0)
    one = Job("nfpo", "nfpo", parameters, 2, 0, train_config(lr=3e-2), PROBLEMS, trace=parameters)
    train(base, one, tmp_path / "a", tmp_path / "s")
    records = pd.read_parquet(tmp_path / "a/records.parquet")
    assert records.groupby("step").response.nunique().eq(4).all()
    ratio = np.exp(records.log_prob - records.old_log_prob)
    np.testing.assert_allclose(records.rho, ratio, rtol=2e-4)
    assert (records.trace != 1).any() and records["mask"].isin([0, 1]).all()
    for _, rows in records.groupby(["step", "response"]):
        log_ratio = torch.tensor((rows.log_prob - rows.old_log_prob).to_numpy())[None]
        trace = forward_trace(log_ratio, torch.ones_like(log_ratio), **parameters)
        np.testing.assert_allclose(rows.trace, trace[0], rtol=1e-4)
        assert rows.position.tolist() == list(range(len(rows)))


def test_first_update_is_the_policy_gradient_on_policy():
    """One minibatch, no lag: every ratio is 1, so all objectives give REINFORCE's gradient."""
    policy, words = random_policy(), codec()
    problems = training_problems(PROBLEMS, 6, 0, 0)
    config = train_config(prompts_per_step=6, minibatches=1)
    rollout = collect(policy, words, problems, config, seed=0)
    (batch,) = minibatches(rollout, 1)
    advantages = torch.linspace(-1, 1, len(rollout.rewards))
    theta = policy.theta.clone().requires_grad_()
    log_prob, _ = response_log_prob(theta, policy.shape, batch.packed, 1.0)
    mask = batch.packed.response_mask
    expected = torch.autograd.grad(-(log_prob * advantages[:, None] * mask).sum() / mask.sum(), theta)[0]
    for name in ("grpo", "dppo_tv", "nfpo", "uncorrected"):
        theta = policy.theta.clone().requires_grad_()
        log_prob, _ = response_log_prob(theta, policy.shape, batch.packed, 1.0)
        loss, _ = objectives.get(name)(
            log_prob, batch.old_log_prob, advantages, mask, loss_agg_mode="token-mean"
        )
        torch.testing.assert_close(torch.autograd.grad(loss, theta)[0], expected, atol=1e-5, rtol=1e-3)


def test_the_gate_notices_when_sampler_and_trainer_disagree():
    run = _Run(job(), random_policy(), codec(), "x")
    real = run.updater.step

    def shifted(batch, others):
        values, log_prob, slope = real(batch, others)
        return values, log_prob - 0.01, slope

    run.updater.step = shifted
    with pytest.raises(RuntimeError, match=r"disagree by 0\.01"):
        run.step()


def test_a_gradient_that_is_not_finite_stops_the_run_before_the_weights_move():
    policy = random_policy()

    def poisoned(log_prob, old_log_prob, advantages, response_mask):
        return (log_prob * float("nan")).sum(), {}

    updater = Updater(policy.theta, policy.shape, poisoned, 1e-3, (0.9, 0.95), 0.0, 1.0, 1.0)
    packed = pack([[3, 4]], torch.tensor([[5, 6]]), torch.tensor([2]), 1)
    with pytest.raises(FloatingPointError, match="gradient norm"):
        updater.step(MiniBatch(packed, torch.zeros(1, 2), torch.ones(1), 0))
    assert torch.equal(updater.theta.detach(), policy.theta)


def test_unknown_objective_parameter_is_an_error_before_any_work(base, tmp_path):
    with pytest.raises((TypeError, ValueError), match="horizn"):
        train(base, job(parameters={"horizn": 4}), tmp_path / "a", tmp_path / "s")
    with pytest.raises(ValueError, match="nfpo"):
        train(base, job("nfp"), tmp_path / "a", tmp_path / "s")


def double(value, on_progress):
    on_progress(value, 10)
    if value < 0:
        raise ValueError(f"value={value} is negative")
    return 2 * value


@pytest.mark.slow
def test_runs_side_by_side_keep_their_order_and_pass_errors_on():
    seen = []
    results = run_side_by_side(double, [(3,), (1,), (2,)], 2, lambda *p: seen.append(p))
    assert [value for value, _ in results] == [6, 2, 4]
    with pytest.raises(ValueError, match="value=-1"):
        run_side_by_side(double, [(1,), (-1,)], 2)
    with pytest.raises(ValueError, match="workers=0"):
        run_side_by_side(double, [(1,)], 0)


def test_derived_seeds_do_not_coincide():
    parts = [(3,), (3, 0), (3, 0, 0), (0, 3), (1, 0), (0,), (0, 0)]
    seeds = {derive_seed(*p) for p in parts}
    assert len(seeds) == len(parts) and all(0 <= s < 2**63 for s in seeds)


def records_of(base, tmp_path, name, **changes):
    train(base, job(lag=1, records_per_step=8, **changes), tmp_path / name, tmp_path / f"scratch-{name}")
    frame = pd.read_parquet(tmp_path / name / "records.parquet")
    return frame[(frame["step"] > 0) & (frame["minibatch"] == 0)]  # stale rollouts, before any update


def test_recomputed_log_probs_are_those_of_the_step_s_start(base, tmp_path):
    """Of stale rollouts, before a step's first update: every ratio is 1 against them, none is without."""
    stale = records_of(base, tmp_path, "stale")
    assert (stale["rho"] - 1).abs().max() > 1e-3
    everything = records_of(base, tmp_path, "all", recompute="all")
    assert (everything["rho"] - 1).abs().max() < 1e-5 and (everything["trace"] - 1).abs().max() < 1e-5


def test_recomputed_for_the_trace_alone(base, tmp_path):
    """The ratio stays the sampler's; the trace is of the recomputed ones."""
    only_trace = records_of(base, tmp_path, "trace", recompute="trace")
    assert (only_trace["rho"] - 1).abs().max() > 1e-3
    assert (only_trace["trace"] - 1).abs().max() < 1e-5


def test_the_loss_gets_both_kinds_of_log_probs():
    given = {}

    def loss(log_prob, old_log_prob, advantages, mask, **more):
        given.update(more, old=old_log_prob)
        return (log_prob * mask).sum(), {"kl": torch.zeros(())}

    policy = random_policy()
    tokens, lengths = torch.randint(2, 20, (4, 5)), torch.tensor([5, 3, 4, 5])
    packed = pack([[5, 6, 7]], tokens, lengths, 4)
    updater = Updater(policy.theta, policy.shape, loss, 1e-3, (0.9, 0.95), 0.0, 1.0, 1.0)
    old, rollout = torch.full((4, 5), -1.0), torch.full((4, 5), -2.0)
    updater.step(MiniBatch(packed, old, torch.ones(4), 0))
    assert "rollout_log_prob" not in given
    updater.step(MiniBatch(packed, old, torch.ones(4), 0, rollout))
    assert given["rollout_log_prob"] is rollout and given["old"] is old
