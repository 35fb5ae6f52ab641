"""Whole runs of PPO, MPO and DAPO on the local engine: exact resume, pairing with others, what is left."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch
from local_fixtures import PROBLEMS, codec, contents, saved_base, train_config
from safetensors.torch import load_file

from rlvr.config_mtp import Critic, Mtp, Sampling
from rlvr.engines.local.critic import CriticShape
from rlvr.engines.local.job import Job
from rlvr.engines.local.method_run import MethodRun
from rlvr.engines.local.mtp import MtpModules
from rlvr.engines.local.mtp_warmup import warm_up_modules
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.training import _Run, run_of, train
from rlvr.mtp import load_modules

WARMUP = dict(seed=0, steps=3, lr=1e-2, betas=(0.9, 0.98), batch_size=4, check_every=2)
STOP = {"mtp_gradient": "stop"}
Killed = type("Killed", (Exception,), {})


def mtp(**changes):
    return Mtp(**(dict(blocks=3, lr=1e-3, warmup=WARMUP) | changes))


def critic(**changes):
    return Critic(**(dict(lr=1e-3, warmup_steps=2) | changes))


def job(objective="mpo", lag=0, seed=0, parameters=STOP, blocks=None, **changes):
    if blocks is None:
        blocks = {"mtp": mtp(), "critic": critic()}
    settings = train_config(**changes)
    return Job(objective, objective, dict(parameters), lag, seed, settings, PROBLEMS, **blocks)


ARMS = {
    "ppo": lambda **more: job("ppo", parameters={}, blocks={"critic": critic()}, **more),
    "ppo_shared": lambda **more: job(
        "ppo", parameters={}, blocks={"critic": critic(network="shared")}, **more
    ),
    "value_heads": lambda **more: job("ppo", parameters={}, blocks={"critic": critic(blocks=3)}, **more),
    "mpo": job,
    "mpo_chained": lambda **more: job(blocks={"mtp": mtp(variant="chained"), "critic": critic()}, **more),
    "mpo_full": lambda **more: job(
        parameters={"mtp_gradient": "full"},
        blocks={"mtp": mtp(policy_gradient="full", hidden="trunk"), "critic": critic()},
        **more,
    ),
    "mpo_grpo": lambda **more: job("mpo_grpo", blocks={"mtp": mtp()}, **more),
    "dapo": lambda **more: job(
        "dapo", parameters={}, blocks={"sampling": Sampling(dynamic=True, overlong_buffer=4)}, **more
    ),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return saved_base(tmp_path_factory.mktemp("base"))


def metrics(folder):
    return pd.read_parquet(folder / "metrics.parquet")


@pytest.mark.parametrize("arm", sorted(ARMS))
def test_a_killed_run_ends_with_the_same_bytes(base, tmp_path, arm):
    lag = 0 if arm == "dapo" else 2
    train(base, ARMS[arm](lag=lag), tmp_path / "whole", tmp_path / "s1")

    def kill(done, total):
        if done == 3:
            raise Killed

    half = ARMS[arm](lag=lag, checkpoint_every=2)
    with pytest.raises(Killed):
        train(base, half, tmp_path / "resumed", tmp_path / "s2", on_progress=kill)
    assert not (tmp_path / "resumed").exists()
    train(base, half, tmp_path / "resumed", tmp_path / "s2")
    whole, resumed = contents(tmp_path / "whole"), contents(tmp_path / "resumed")
    assert whole.keys() == resumed.keys() and "updates.parquet" in whole
    for name in whole:
        if name != "config.json":  # differs in checkpoint_every
            assert whole[name] == resumed[name], name


@pytest.mark.parametrize("arm", sorted(ARMS))
def test_weights_move_and_the_seed_decides(base, tmp_path, arm):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(base, ARMS[arm](seed=seed), tmp_path / name, tmp_path / f"s-{name}")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    before = Policy.from_pretrained(base).theta
    finals = [Policy.from_pretrained(tmp_path / name / "final").theta for name in ("a", "c")]
    assert not torch.equal(finals[0], before) and not torch.equal(finals[0], finals[1])
    numbers = metrics(tmp_path / "a").drop(columns=["val_pass1", "val_pass1_after"])
    assert numbers.notna().all().all()


def same_policy(base, tmp_path, one, other):
    """Runs two jobs; asserts equal final policies and equal common metrics and records, bit for bit."""
    for name, given in (("one", one), ("other", other)):
        train(base, given, tmp_path / name, tmp_path / f"s-{name}")
    first, second = (contents(tmp_path / name) for name in ("one", "other"))
    assert first["final/model.safetensors"] == second["final/model.safetensors"]
    assert first["records.parquet"] == second["records.parquet"]
    a, b = metrics(tmp_path / "one"), metrics(tmp_path / "other")
    common = [name for name in a if name in b and not name.startswith("reward")]
    pd.testing.assert_frame_equal(a[common], b[common], check_exact=True)
    assert {"grad_norm", "loss", "ratio_mean", "val_pass1"} <= set(common)


def test_a_block_of_one_token_is_ppo(base, tmp_path):
    blocks = {"mtp": mtp(blocks=1), "critic": critic()}
    same_policy(base, tmp_path, ARMS["ppo"](lag=1), job(lag=1, blocks=blocks))


def test_modules_without_weight_are_ppo(base, tmp_path):
    same_policy(base, tmp_path, ARMS["ppo"](lag=1), job(lag=1, parameters={**STOP, "mtp_weight": 0.0}))


def test_modules_without_weight_are_grpo_on_group_advantages(base, tmp_path):
    other = job("mpo_grpo", parameters={**STOP, "mtp_weight": 0.0}, blocks={"mtp": mtp()})
    same_policy(base, tmp_path, Job("g", "grpo", {}, 0, 0, train_config(), PROBLEMS), other)


def test_the_class_of_methods_without_a_method_is_the_plain_run(base, tmp_path):
    plain = Job("grpo", "grpo", {}, 1, 0, train_config(), PROBLEMS)
    other = job("grpo", lag=1, parameters={}, blocks={"sampling": Sampling()})
    assert run_of(plain) is _Run and run_of(other) is MethodRun
    same_policy(base, tmp_path, plain, other)
    assert {"ratio_variance", "token_ratio_variance"} <= set(metrics(tmp_path / "other"))


def test_the_first_rollout_is_that_of_every_other_arm(base, tmp_path):
    """The warm-ups draw from streams of their own, and leave the policy as it is."""
    given = {
        "mpo": job(),
        "ppo": ARMS["ppo"](),
        "grpo": Job("grpo", "grpo", {}, 0, 0, train_config(), PROBLEMS),
    }
    frames = []
    for name, one in given.items():
        train(base, one, tmp_path / name, tmp_path / f"s-{name}")
        records = pd.read_parquet(tmp_path / name / "records.parquet")
        frames.append(records.query("step == 0 and minibatch == 0")[["token", "old_log_prob", "position"]])
        assert metrics(tmp_path / name)["val_pass1"][0] == metrics(tmp_path / "mpo")["val_pass1"][0]
    pd.testing.assert_frame_equal(frames[0], frames[1])
    pd.testing.assert_frame_equal(frames[0], frames[2])


def test_what_an_mpo_run_leaves(base, tmp_path):
    train(base, job(), tmp_path / "out", tmp_path / "s")
    out = tmp_path / "out"
    updates = pd.read_parquet(out / "updates.parquet")
    assert updates[["step", "minibatch"]].to_numpy().tolist() == [[s, m] for s in range(4) for m in range(2)]
    frame = metrics(out)
    for name in ("ratio_variance", "mtp_rank_2", "mtp_top1_3", "mtp_loss_2", "value_loss", "clip_fraction"):
        weighted = (updates[name] * updates["tokens"]).groupby(updates["step"]).sum()
        mean = weighted / updates.groupby("step")["tokens"].sum()
        assert frame[name].tolist() == pytest.approx(mean.tolist()), name
    for name in ("explained_variance", "mtp_grad_norm", "critic_grad_norm", "token_ratio_variance"):
        assert frame[name].notna().all()
    # before a step's first update the modules are those of the old log-probs; later they have moved
    first = updates["minibatch"] == 0
    assert updates.loc[first, "mtp_log_ratio_2"].max() < 1e-5 < updates.loc[~first, "mtp_log_ratio_2"].min()

    final = out / "final"
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(final, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert load_modules(model, final).blocks == 3
    policy = Policy.from_pretrained(final)
    assert MtpModules.load(final, policy.shape).phi.isfinite().all()
    shape = CriticShape(policy.shape, 1, True)
    saved = load_file(out / "critic.safetensors")
    assert {name: tuple(value.shape) for name, value in saved.items()} == dict(shape.matrices())
    curve = pd.read_parquet(out / "mtp_warmup.parquet")
    assert curve["step"].tolist() == [0, 2, 3]
    curve = pd.read_parquet(out / "critic_warmup.parquet")
    assert curve["step"].tolist() == [0, 1] and curve["value_loss"].gt(0).all()
    summary = json.loads((out / "summary.json").read_text())  # the critic's tokens are among the generated
    assert summary["tokens_generated"] == curve["tokens"].sum() + summary["tokens_trained"]
    written = json.loads((out / "config.json").read_text())
    assert written["mtp"]["blocks"] == 3 and written["critic"]["network"] == "separate"
    assert "sampling" not in written


def test_stale_rollouts_are_held_against_the_modules_of_their_time(base):
    run = MethodRun(job(lag=2), Policy.from_pretrained(base), codec(), "x")
    run.prepare()
    phis = []
    for step in range(4):
        phis.append(run.updater.modules.trainer.snapshot())
        run.step()
        assert len(run.past_phi) == min(step + 1, 2)
        assert torch.equal(run.past_phi[0], phis[max(0, step - 1)])
    moved = [row["mtp_log_ratio_2"] for row in run.update_rows if row["minibatch"] == 0]
    assert moved[0] < 1e-5 < min(moved[1:]), "from the second step on the rollout is of older weights"


def test_modules_may_come_from_a_folder(base, tmp_path):
    policy = Policy.from_pretrained(base)
    warm_up_modules(policy, codec(), PROBLEMS, mtp()).modules.save(tmp_path)
    train(base, job(), tmp_path / "given", tmp_path / "s1", modules=tmp_path)
    train(base, job(), tmp_path / "own", tmp_path / "s2")
    given, own = contents(tmp_path / "given"), contents(tmp_path / "own")
    assert own.keys() - given.keys() == {"mtp_warmup.parquet"}
    assert all(given[name] == own[name] for name in given if name != "config.json")
    other = job(blocks={"mtp": mtp(blocks=4), "critic": critic()})
    with pytest.raises(ValueError, match=r"blocks=3.*allowed are .*blocks=4"):
        train(base, other, tmp_path / "x", tmp_path / "s3", modules=tmp_path)


@pytest.mark.parametrize("variant", ["parallel", "chained"])
def test_a_shorter_block_takes_the_first_modules(base, tmp_path, variant):
    policy = Policy.from_pretrained(base)
    longest = warm_up_modules(policy, codec(), PROBLEMS, mtp(variant=variant)).modules
    longest.save(tmp_path)
    short = job(blocks={"mtp": mtp(variant=variant, blocks=2), "critic": critic()})
    run = MethodRun(short, policy, codec(), "x")
    run.prepare(tmp_path)
    names = longest.state_dict()
    found = MtpModules(run.updater.modules.shape, run.updater.modules.trainer.snapshot()).state_dict()
    assert set(found) == {name for name in names if name.startswith("2.")}
    assert all(torch.equal(found[name], names[name]) for name in found)
    for blocks in (1, 4):
        with pytest.raises(ValueError, match=f"blocks={blocks}: allowed are 2 to 3"):
            longest.first(blocks)


def test_the_critic_s_warm_up_trains_the_critic_alone(base):
    policy = Policy.from_pretrained(base)
    run = MethodRun(ARMS["ppo"](), policy, codec(), "x")
    before = run.updater.critic.trainer.snapshot()
    run.prepare()
    assert torch.equal(run.updater.theta.detach(), policy.theta)
    assert not torch.equal(run.updater.critic.trainer.snapshot(), before)
    assert run.counts["responses_verified"] == 2 * 16 and run.counts["tokens_generated"] > 0
    assert run.counts["tokens_trained"] == 0 and run.done == 0 and not run.metrics
    none = MethodRun(
        job("ppo", parameters={}, blocks={"critic": critic(warmup_steps=0)}), policy, codec(), "x"
    )
    none.prepare()
    assert (
        torch.equal(none.updater.critic.trainer.snapshot(), before) and none.counts["tokens_generated"] == 0
    )


def test_dapo_trains_on_informative_groups_and_counts_all_it_generated(base, tmp_path):
    train(base, ARMS["dapo"](), tmp_path / "out", tmp_path / "s")
    frame, summary = metrics(tmp_path / "out"), json.loads((tmp_path / "out/summary.json").read_text())
    assert (frame["groups_with_signal"] == 1).all()
    assert frame["generated_batches"].ge(1).all()
    assert summary["responses_verified"] == 16 * frame["generated_batches"].sum()
    assert (
        summary["tokens_trained"] == frame["tokens"].sum() < summary["tokens_generated"]
        or (frame["generated_batches"] == 1).all()
    )
    assert summary["tokens_generated"] == frame["tokens_generated"].iloc[-1]
    assert frame["tokens_generated"].is_monotonic_increasing
    assert (frame["reward_shaped"] < frame["reward_trained"]).any()


def test_a_recomputed_anchor_is_that_of_the_modules_too(base):
    """Of stale rollouts: at a step's first update every ratio is 1, the modules' as well."""
    run = MethodRun(job(lag=2, recompute="all"), Policy.from_pretrained(base), codec(), "x")
    run.prepare()
    for _ in range(3):
        run.step()
    first = [row for row in run.update_rows if row["minibatch"] == 0]
    assert max(row["mtp_log_ratio_2"] for row in first) < 1e-5
    assert max(row["ratio_variance"] for row in first) < 1e-9
