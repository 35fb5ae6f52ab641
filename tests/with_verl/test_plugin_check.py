"""The check before a job: what it fails, what it says, and what it prints for the job."""

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

# not "verl" alone: without the package, that name finds this folder
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")

from job import python

from rlvr import objectives
from rlvr.engines.verl import check, surroundings

pytestmark = pytest.mark.verl


@pytest.fixture
def found(monkeypatch):
    """Without the fresh interpreter, which other tests start."""
    monkeypatch.setattr(check, "check_registration", lambda loss_mode: {"version": check.TESTED})


def test_the_command():
    done = python(["-m", "rlvr.engines.verl.check", "loss_mode=nfpo", "horizon=8"])
    assert done.returncode == 0, done.stderr
    assert "nfpo with horizon=8" in done.stdout and "actor/trace_mean" in done.stdout
    assert "+actor_rollout_ref.actor.policy_loss.horizon=8" in done.stdout


def test_the_command_takes_a_jobs_overrides(found, capsys):
    words = [
        "actor_rollout_ref.actor.policy_loss.loss_mode=nfpo",
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm",
        "actor_rollout_ref.actor.loss_scale_factor=8192",
        "algorithm.rollout_correction.bypass_mode=True",
        "algorithm.adv_estimator=grpo",
        "algorithm.norm_adv_by_std_in_grpo=False",
        "data.train_files=train.parquet",
        "hydra.run.dir=somewhere",
    ]
    assert check.main(words) == 0
    out = capsys.readouterr().out
    assert "aggregated by seq-mean-token-sum-norm\n" in out and "warning" not in out
    assert "computed by the rollout engine" in out and "divided by the std: False" in out


def test_what_to_give_the_job_can_be_pasted_into_a_shell(found, capsys):
    """What the shell makes of it passes the check again, as the same settings."""
    words = ["loss_mode=nfpo", "trace_clip=[0.8,1.2]", "ratio_clip=null", "data.train_files=[a b.parquet]"]
    words.append("actor_rollout_ref.actor.loss_scale_factor=${data.max_response_length}")
    assert check.main(words) == 0
    out = capsys.readouterr().out
    printed = out.partition("give the job:\n")[2]
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {printed}"], capture_output=True, text=True)
    given = done.stdout.split("\0")[:-1]
    assert given == check.expand(words) and "'+" in printed
    assert check.main(given) == 0
    assert "nfpo with trace_clip=(0.8, 1.2), ratio_clip=None" in capsys.readouterr().out


LOSS = "actor_rollout_ref.actor.policy_loss"
BYPASS = "algorithm.rollout_correction.bypass_mode=True"
DISTIL = ("distillation.enabled=True", "distillation.distillation_loss.use_task_rewards=False")


@pytest.mark.fault("another-loss-than-the-one-named")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([BYPASS, "trainer.use_v1=False"], "legacy trainer .* sets actor.policy_loss.loss_mode=bypass_mode"),
        (["--config-name", "one_step_off_ppo_trainer"], "experimental trainer .*loss_mode=bypass_mode"),
        (["--config-name", "fully_async_ppo_megatron_trainer"], "experimental trainer .*bypass_mode=False"),
        ([BYPASS, "actor_rollout_ref.rollout.calculate_log_probs=False"], "calculate_log_probs=True"),
        (list(DISTIL), "drops the policy loss"),
        (
            [f"+{LOSS}.horizon=8"],
            f"{LOSS}.horizon is not a setting of verl's .*_target_=rlvr.engines.verl.Pol",
        ),
        (["actor_rollout_ref.actor.loss_agg_mode=x"], "Invalid"),
        (["data.trn_files=x"], "does not take these overrides"),
        (["--config-name", "nothing"], "does not take these overrides"),
    ],
)
def test_where_verl_would_run_another_loss(found, capsys, arguments, message):
    assert check.main([f"{LOSS}.loss_mode=nfpo", *arguments]) == 1
    said = capsys.readouterr().err
    assert re.search(message, said), said
    assert said.startswith("FAILED: ") and "Error" not in said and "Traceback" not in said


@pytest.mark.parametrize(
    "arguments",
    [
        [BYPASS],
        ["trainer.use_v1=False"],
        ["--config-name", "one_step_off_ppo_trainer", BYPASS.replace("True", "False")],
        ["--config-name", "ppo_megatron_trainer", BYPASS],
        ["model_engine=megatron"],
        [*DISTIL[:1]],
        ["distillation.distillation_loss.use_task_rewards=False"],
    ],
)
def test_where_verl_runs_it(found, capsys, arguments):
    """The mildest neighbours of what fails above."""
    assert check.main(["loss_mode=nfpo", *arguments]) == 0
    assert "warning" not in capsys.readouterr().out


def test_the_legacy_trainer_replaces_the_loss():
    """verl's own function, on the configuration that the legacy trainer hands it."""
    from types import SimpleNamespace

    import verl.trainer.ppo.ray_trainer as legacy
    import verl.trainer.ppo.v1.trainer_base as v1
    from verl.trainer.ppo.rollout_corr_helper import apply_bypass_mode

    config = check.composed([f"{LOSS}.loss_mode=nfpo", BYPASS], "ppo_trainer")
    policy_loss = config.actor_rollout_ref.actor.policy_loss
    batch = SimpleNamespace(batch={"rollout_log_probs": 0})
    apply_bypass_mode(batch, config.algorithm.rollout_correction, policy_loss)
    assert policy_loss.loss_mode == "bypass_mode"
    root = Path(legacy.__file__).parents[2]
    calls = {
        p.relative_to(root).as_posix() for p in root.rglob("*.py") if "apply_bypass_mode(" in p.read_text()
    }
    assert calls == {
        "trainer/ppo/rollout_corr_helper.py",
        "trainer/ppo/ray_trainer.py",
        "experimental/separation/ray_trainer.py",
    }
    assert "apply_bypass_mode" not in Path(v1.__file__).read_text()


CORRECTION, GROUP = "algorithm.rollout_correction", "algorithm.adv_estimator=grpo"
STD = "algorithm.norm_adv_by_std_in_grpo"


@pytest.mark.parametrize(
    ("name", "overrides", "lines"),
    [
        ("nfpo", [GROUP], [f"advantages by grpo .*, divided by the std: True .{STD}.$"]),
        (
            "nfpo",
            [],
            ["advantages by gae .algorithm.adv_estimator.$", "note: .* nfpo are relative to the group: "],
        ),
        ("ppo", [], ["advantages by gae"]),
        ("ppo", [GROUP], ["advantages by grpo", "note: the advantages of ppo are a critic's: "]),
        ("dr_grpo", [GROUP, f"{STD}=False"], ["divided by the std: False"]),
        ("dr_grpo", [GROUP], ["divided by the std: True", f"note: .* not divided by its std: .*{STD}=False"]),
        (
            "dr_grpo",
            ["algorithm.adv_estimator=grpo_vectorized", f"{STD}=False"],
            [f"divided by the std: True .{STD} is not read", "note: .* not divided"],
        ),
        ("dr_grpo", ["algorithm.adv_estimator=rloo"], ["advantages by rloo .algorithm.adv_estimator.$"]),
        (
            "ppo",
            [BYPASS, f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_rs=token_k1"],
            [
                f"warning: {CORRECTION}.rollout_is=token is not read: with bypass_mode=True",
                f"warning: {CORRECTION}.rollout_rs=token_k1 is not read: with bypass_mode=True",
                "advantages",
            ],
        ),
        (
            "ppo",
            [BYPASS, f"{CORRECTION}.loss_type=reinforce"],
            [f"warning: {CORRECTION}.loss_type=reinforce is not read", "advantages"],
        ),
        (
            "ppo",
            [f"{CORRECTION}.rollout_is=token", "actor_rollout_ref.rollout.calculate_log_probs=False"],
            [f"warning: {CORRECTION}.rollout_is=token is not read: it needs", "advantages"],
        ),
        (
            "ppo",
            [f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_rs=token_k1"],
            ["each token's loss times verl's weight", "tokens rejected by verl leave the mask", "advantages"],
        ),
        (
            "ppo",
            [
                "actor_rollout_ref.actor.entropy_coeff=0.1",
                "actor_rollout_ref.actor.use_kl_loss=True",
                "distillation.enabled=True",
            ],
            ["advantages", "adds its entropy term", "adds its KL term", "adds its distillation loss"],
        ),
    ],
)
def test_what_is_said_of_the_surroundings(name, overrides, lines):
    """These lines, in order, after the one on the ratio; and no other."""
    config = check.composed([f"{LOSS}.loss_mode={name}", *overrides], "ppo_trainer")
    first, *said = surroundings.around(config, objectives.get(name))
    assert first.startswith("ratio against log-probs computed by the")
    assert ("by the rollout engine" in first) == (BYPASS in overrides)
    assert len(said) == len(lines), said
    for line, text in zip(lines, said, strict=True):
        assert re.search(line, text), text


def test_which_estimators_read_the_std_setting():
    """By verl's own dispatch: two responses with rewards 0 and 1, with the setting on and off."""
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage

    def advantage(estimator, divided):
        config = check.composed(
            [f"algorithm.adv_estimator={estimator}", f"algorithm.norm_adv_by_std_in_grpo={divided}"],
            "ppo_trainer",
        ).algorithm
        mask = torch.ones(2, 3)
        rewards = torch.zeros(2, 3)
        rewards[1, -1] = 1.0
        tensors = {"token_level_rewards": rewards, "response_mask": mask}
        data = DataProto.from_dict(tensors, non_tensors={"uid": np.array(["a", "a"], dtype=object)})
        out = compute_advantage(data, estimator, num_repeat=2, norm_adv_by_std_in_grpo=divided, config=config)
        return out.batch["advantages"].abs().max().item()

    for estimator, read in surroundings.DIVIDES.items():
        if estimator != "gdpo":  # wants several rewards
            assert (advantage(estimator, True) != advantage(estimator, False)) == read, estimator
    assert advantage("rloo", True) == advantage("rloo", False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["loss_mode=nfpo", "horizn=8"], "did you mean 'horizon'"),
        (["loss_mode=mpo"], "needs mtp_log_prob, old_mtp_log_prob"),
        (["loss_mode=mpo", "mtp_weight=0.1"], "needs mtp_log_prob, old_mtp_log_prob"),
        (["loss_mode=nfpo", "data.trn_files=x"], "does not take these overrides"),
        (
            ["actor_rollout_ref.actor.policy_loss.loss_mode=nfpo", "actor_rollout_ref.actor.loss_agg_mode=x"],
            "Invalid",
        ),
    ],
)
def test_the_command_fails(found, capsys, words, message):
    assert check.main(words) == 1
    assert message in capsys.readouterr().err


def test_the_command_refuses_another_verl(found, capsys, monkeypatch):
    monkeypatch.setattr(check.verl, "__version__", "0.8.0")
    assert check.main(["loss_mode=nfpo"]) == 1
    assert "verl is 0.8.0, tested is 0.9.1" in capsys.readouterr().err
    assert check.main(["loss_mode=nfpo", "--other-version"]) == 0


def test_the_command_names_what_may_surprise(found, capsys):
    assert (
        check.main(["loss_mode=nfpo", "preset=release", "actor_rollout_ref.actor.clip_ratio_high=0.28"]) == 0
    )
    out = capsys.readouterr().out
    assert "warning: actor.clip_ratio_high=0.28 is not read" in out
    assert "warning: actor.loss_scale_factor is not set" in out


def test_the_command_refuses_a_loss_that_is_not_finite(found, capsys, monkeypatch):
    def nan(log_prob, **kwargs):
        return log_prob.sum() * float("nan"), {}

    monkeypatch.setattr(check, "get_policy_loss_fn", lambda name: nan)
    assert check.main(["loss_mode=nfpo"]) == 1
    assert "not finite" in capsys.readouterr().err


def commands_of_the_document():
    """The overrides in each code block of docs/verl.md that starts a job or the check, or lists settings."""
    text = (Path(__file__).parents[2] / "docs" / "verl.md").read_text()
    out = []
    for block in re.findall(r"```\n(.*?)```", text, re.S):
        words = [w for w in shlex.split(block.replace("\\\n", " ")) if re.match(r"\+?[a-z][\w.]+=", w)]
        out += [words] if words else []
    return out


@pytest.mark.parametrize("words", commands_of_the_document())
def test_commands_of_the_document(found, capsys, words):
    assert any("loss_mode=" in word for word in words)
    assert check.main(words) == 0
    assert "warning" not in capsys.readouterr().out
