"""verl loads the plugin by itself, and nothing of verl's is replaced. Own processes where it counts."""

import json
import logging
import re
from pathlib import Path

import pytest

# not "verl" alone: without the package, that name finds this folder
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")

from job import REFUSED, python, python_path
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

import rlvr
from rlvr import objectives
from rlvr.engines.verl import (
    PolicyLoss,
    check,
    check_registration,
    register_objectives,
    registration,
)

pytestmark = pytest.mark.verl

STOCK = {
    *("bypass_mode", "cispo", "clip_cov", "dppo_kl", "dppo_tv", "dro"),
    *("geo_mean", "gpg", "gspo", "kl_cov", "sapo", "vanilla"),
}
# A module that Python refuses to import, in every process that starts with this folder on its path.
BROKEN = "import sys\nsys.modules['rlvr.losses'] = None\n"


def test_other_processes_run_the_code_under_test(tmp_path):
    """Else a test that starts an interpreter judges whatever copy of rlvr is installed."""
    for folders in ((), (tmp_path,)):
        done = python(["-c", "import rlvr; print(rlvr.__file__)"], *folders)
        assert done.stdout.strip() == rlvr.__file__


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


@pytest.mark.fault("another-loss-than-the-one-named")
def test_a_broken_plugin_is_loud(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    done = python(["-c", "import verl; print('verl goes on')"], tmp_path)
    assert done.returncode == 0 and "verl goes on" in done.stdout  # verl swallows it
    for text in ("rlvr's objectives are NOT registered with verl", "Traceback", "rlvr.losses"):
        assert text in done.stderr
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path))
    with pytest.raises(RuntimeError, match=r"its error in a fresh process:\n[\s\S]*rlvr\.losses"):
        check_registration("nfpo")


def test_a_broken_plugin_that_nobody_logs_is_named_all_the_same(tmp_path, monkeypatch):
    """Logging may be off: then verl says nothing at all, and the check imports the plugin by hand."""
    (tmp_path / "sitecustomize.py").write_text(BROKEN + "import logging\nlogging.disable()\n")
    done = python(["-c", "import verl"], tmp_path)
    assert "rlvr" not in done.stderr
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path))
    with pytest.raises(RuntimeError, match=r"`import rlvr.engines.verl` does:\n[\s\S]*rlvr\.losses"):
        check_registration("nfpo")


def test_losses_that_are_taken_out_again(monkeypatch):
    """Nothing in the registry and no error: say that, not an empty line."""
    nothing = {"version": check.TESTED, "owners": {"vanilla": "verl.trainer.ppo.core_algos"}}
    monkeypatch.setattr(registration, "probe", lambda: (nothing, ""))
    monkeypatch.setattr(registration, "import_by_hand", lambda: "by hand it works")
    with pytest.raises(RuntimeError, match=r"rlvr's plugin did not; by hand it works$"):
        check_registration("nfpo")


def test_importing_by_hand(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", python_path())
    assert "by hand works" in registration.import_by_hand()


@pytest.mark.parametrize(
    "broken", ["rlvr.registry", "rlvr.engines.verl.registration", "rlvr.engines.verl.config"]
)
def test_whatever_breaks_the_plugin_is_logged_with_its_cause(tmp_path, broken):
    (tmp_path / "sitecustomize.py").write_text(BROKEN.replace("rlvr.losses", broken))
    said = python(["-c", "import verl"], tmp_path).stderr
    assert said.count("rlvr's objectives are NOT registered with verl") == 1 and broken in said


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
    assert "pip install -e '.[verl]'" in done.stdout, done.stderr


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
    monkeypatch.setenv("PYTHONPATH", python_path())
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


def test_names_of_the_document():
    text = (Path(__file__).parents[2] / "docs" / "verl.md").read_text()
    rows = {
        row.split("|")[1].strip(): set(re.findall(r"`([\w.]+)`", row.split("|")[2]))
        for row in text.splitlines()
        if row.startswith(("| verl's own", "| ours"))
    }
    names = set(objectives.list_objectives())
    assert rows["verl's own, left alone"] == STOCK
    assert rows["ours, with [modules](#mtp-modules)"] == set(REFUSED)
    assert rows["ours, by prefix only"] == {f"rlvr.{name}" for name in names & STOCK}
    assert rows["ours, with either name"] == names - STOCK - set(REFUSED)
