"""verl loads the plugin by itself, and nothing of verl's is replaced. Own processes where it counts."""

import json
import logging
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

# not "verl" alone: without the package, that name finds this folder
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")

from job import REFUSED
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

from rlvr import objectives
from rlvr.engines.verl import PolicyLoss, check, check_registration, register_objectives, registration

pytestmark = pytest.mark.verl

STOCK = {
    *("bypass_mode", "cispo", "clip_cov", "dppo_kl", "dppo_tv", "dro"),
    *("geo_mean", "gpg", "gspo", "kl_cov", "sapo", "vanilla"),
}
# A module that Python refuses to import, in every process that starts with this folder on its path.
BROKEN = "import sys\nsys.modules['rlvr.losses'] = None\n"


def python(code, **environment):
    return subprocess.run(
        [sys.executable, *code], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_import_verl_registers_every_objective():
    done = python(
        [
            "-c",
            "import verl, json, ray\n"
            "from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY as r\n"
            "print('found:' + json.dumps([{k: v.__module__ for k, v in r.items()}, ray.is_initialized()]))",
        ]
    )
    assert done.returncode == 0, done.stderr
    owners, ray_initialised = json.loads(done.stdout.partition("found:")[2])
    names = objectives.list_objectives()
    ours = {name for name, owner in owners.items() if owner == "rlvr.engines.verl.losses"}
    assert ours == {f"rlvr.{name}" for name in names} | (set(names) - STOCK)
    assert {name for name, owner in owners.items() if owner == "verl.trainer.ppo.core_algos"} == STOCK
    assert "nfpo" in ours and not ray_initialised


def test_a_broken_plugin_is_loud(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    done = python(["-c", "import verl; print('verl goes on')"], PYTHONPATH=str(tmp_path))
    assert done.returncode == 0 and "verl goes on" in done.stdout  # verl swallows it
    for text in ("ERROR", "rlvr's objectives are NOT registered with verl", "Traceback", "rlvr.losses"):
        assert text in done.stderr
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"rlvr's plugin did not[\s\S]*rlvr\.losses"):
        check_registration("nfpo")


def test_without_verl():
    code = (
        "import sys, rlvr.objectives\n"
        "assert 'verl' not in sys.modules\n"
        "sys.modules['verl'] = None\n"
        "try:\n"
        "    import rlvr.engines.verl\n"
        "except ImportError as error:\n"
        "    print(error)"
    )
    done = python(["-c", code])
    assert "pip install 'rlvr[verl]'" in done.stdout, done.stderr


def test_registering_again_changes_nothing():
    before = dict(POLICY_LOSS_REGISTRY)
    names = register_objectives()
    assert register_objectives() == names
    assert set(POLICY_LOSS_REGISTRY) == set(before)
    for name, loss in before.items():
        if isinstance(loss, PolicyLoss):
            assert name in names and POLICY_LOSS_REGISTRY[name].objective is loss.objective
        else:
            assert POLICY_LOSS_REGISTRY[name] is loss


def test_another_plugins_loss_stays(monkeypatch, caplog):
    def foreign():
        raise AssertionError

    monkeypatch.setitem(POLICY_LOSS_REGISTRY, "nfpo", foreign)
    with caplog.at_level(logging.WARNING, logger=registration.logger.name):
        assert "nfpo" not in register_objectives()
    assert POLICY_LOSS_REGISTRY["nfpo"] is foreign
    assert [r.getMessage() for r in caplog.records] == [
        f"loss_mode=nfpo is {__name__}'s; rlvr's is rlvr.nfpo"
    ]


def test_check_registration_says_what_is_wrong(monkeypatch):
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
    with pytest.raises(RuntimeError, match="VERL_USE_EXTERNAL_PLUGINS=none: verl skips"):
        check_registration("nfpo")
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "other, rlvr")
    found = registration.probe()
    monkeypatch.setattr(registration, "probe", lambda: found)
    assert check_registration("nfpo")["version"] == check.TESTED
    for loss_mode, message in (
        ("nfppo", "no loss_mode 'nfppo': did you mean 'nfpo'"),
        ("gspo", "rlvr's is rlvr.gspo"),
    ):
        with pytest.raises(RuntimeError, match=message):
            check_registration(loss_mode)
    monkeypatch.setattr(registration, "entry_points", lambda group: [])
    with pytest.raises(RuntimeError, match="declares no entry point 'rlvr'"):
        check_registration("nfpo")


# --- the command --------------------------------------------------------------------------------------


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
        "algorithm.norm_adv_by_std_in_grpo=False",
        "data.train_files=train.parquet",
        "hydra.run.dir=somewhere",
    ]
    assert check.main(words) == 0
    out = capsys.readouterr().out
    assert "aggregated by seq-mean-token-sum-norm\n" in out and "warning" not in out
    assert "computed by the rollout engine" in out and "divided by the std: False" in out


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
        words = [w for w in shlex.split(block.replace("\\\n", " ")) if re.match(r"\+?[\w.]+=", w)]
        out += [words] if words else []
    return out


@pytest.mark.parametrize("words", commands_of_the_document())
def test_commands_of_the_document(found, capsys, words):
    assert any("loss_mode=nfpo" in word for word in words)
    assert check.main(words) == 0
    assert "warning" not in capsys.readouterr().out


def test_names_of_the_document():
    text = (Path(__file__).parents[2] / "docs" / "verl.md").read_text()
    rows = {
        row.split("|")[1].strip(): set(re.findall(r"`([\w.]+)`", row.split("|")[2]))
        for row in text.splitlines()
        if row.startswith(("| verl's own", "| ours"))
    }
    names = set(objectives.list_objectives())
    assert rows["verl's own, left alone"] == STOCK
    assert rows["ours, refused"] == set(REFUSED)
    assert rows["ours, by prefix only"] == {f"rlvr.{name}" for name in names & STOCK}
    assert rows["ours, with either name"] == names - STOCK - set(REFUSED)
