"""What is looked at on the cluster before verl starts."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
from job_fixtures import experiments, make_job

from rlvr.engines.jobs import start
from rlvr.engines.jobs.faults import diagnose


@pytest.fixture
def ready(tmp_path, monkeypatch):
    """Words of a job that may start here: a model, data, the tested versions."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").touch()
    job, _ = make_job(tmp_path, model_path=str(model))
    monkeypatch.setattr(start, "version", lambda name: start.TESTED[name] + "+cu130")
    monkeypatch.delenv("RLVR_OTHER_VERSIONS", raising=False)
    return job.words


def test_all_is_well(ready):
    assert start.faults(ready) == []


def test_versions(ready, monkeypatch):
    monkeypatch.setattr(start, "version", lambda name: "0.10.0" if name == "vllm" else start.TESTED[name])
    assert start.faults(ready) == [
        "vllm is 0.10.0, tested is 0.24.0: pip install vllm==0.24.0 on every node, or submit with "
        "--other-versions and "
        "look twice at the first steps"
    ]
    monkeypatch.setenv("RLVR_OTHER_VERSIONS", "1")
    assert start.faults(ready) == []
    monkeypatch.delenv("RLVR_OTHER_VERSIONS")

    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(start, "version", absent)
    assert len(start.faults(ready)) == 4 and "verl is not installed here" in start.faults(ready)[0]
    assert start.faults([*ready, "trainer.device=cpu"]) == []


def test_flash_attention_where_it_is_needed(ready, tmp_path, monkeypatch):
    monkeypatch.setattr(start, "find_spec", lambda name: None)
    monkeypatch.setattr(start, "GPU", tmp_path / "no gpu")
    assert start.faults(ready) == []
    monkeypatch.setattr(start, "GPU", tmp_path)  # a GPU
    (fault,) = start.faults(ready)
    assert fault.startswith("flash_attn is not installed here")
    padded = "actor_rollout_ref.model.use_remove_padding=False"
    assert start.faults([*ready, padded]) == [] and padded in fault
    assert start.faults([*ready, "trainer.device=cpu"]) == []
    monkeypatch.setattr(start, "find_spec", lambda name: name)
    assert start.faults(ready) == []


def test_model_data_and_disk(ready, tmp_path, monkeypatch):
    (tmp_path / "model" / "config.json").unlink()
    (fault,) = start.faults(ready)
    assert "has no config.json here: download the model" in fault
    (tmp_path / "model" / "config.json").touch()
    monkeypatch.setenv(start.FREE, "1e9")
    (fault,) = start.faults(ready)
    assert "GB free, the checkpoints need 1000000000 GB" in fault
    monkeypatch.delenv(start.FREE)
    file = tmp_path / "one_gpu" / "data" / "validate-amc23.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    (fault,) = start.faults(ready)
    assert "validate-amc23.parquet is no parquet file, or one that was cut short" in fault
    assert "rlvr job prepare EXPERIMENT --force" in fault
    file.unlink()
    (fault,) = start.faults(ready)
    assert "validate-amc23.parquet is not here" in fault and "rlvr job prepare" in fault


def test_it_says_so_in_a_line_that_is_recognised_and_starts_nothing(tmp_path):
    job, _ = make_job(tmp_path, model_path=str(tmp_path / "no model"))
    done = subprocess.run(
        [sys.executable, "-m", "rlvr.engines.jobs.start", *job.words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 3, done.stderr
    fault, line = diagnose(done.stdout.splitlines())
    assert fault.name == "preflight" and ("not installed" in line or "tested is" in line)


def test_verl_takes_the_place_of_the_process(ready, tmp_path, monkeypatch):
    ran, looked_at = [], []
    monkeypatch.setattr(start, "loss_faults", lambda words: looked_at.append(words) or [])
    monkeypatch.setattr(start.os, "execv", lambda program, words: ran.append(words))
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "deep" / "metrics.jsonl"))
    start.main(ready)
    assert looked_at == [ready]
    assert ran == [[sys.executable, "-m", "verl.trainer.main_ppo", *ready]] and (tmp_path / "deep").is_dir()
    assert experiments().get("nfpo-0.6b-nfpo").name in "".join(ready)


def test_the_command_line(tmp_path, capsys, monkeypatch):
    """rlvr job, with what needs no Ray."""
    from rlvr import cli

    monkeypatch.setenv("RAY_ADDRESS", "")
    assert cli.main(["job", "list"]) == 0
    assert "nfpo-8b-nfpo" in capsys.readouterr().out
    assert (
        cli.main(["job", "show", "nfpo-8b-nfpo", "--seed", "5", "--root", str(tmp_path), "--set", "+a.b=c"])
        == 0
    )
    shown = capsys.readouterr().out
    first = "VERL_USE_EXTERNAL_MODULES=rlvr.engines.verl.trainer python -m verl.trainer.main_ppo \\\n"
    assert shown.startswith(first) and shown.endswith("+a.b=c\n")
    assert "data.seed=5 " in shown and f"{tmp_path}/paper/jobs/nfpo-8b-nfpo-s5/checkpoints" in shown
    assert cli.main(["job", "show", "nfpo-0.6b-nfpo_recompute_trace"]) == 2
    assert "needs a worker loss" in capsys.readouterr().err
    assert cli.main(["job", "show", "nfpo-8b-nfop"]) == 2
    assert "did you mean 'nfpo-8b-nfpo'" in capsys.readouterr().err
    monkeypatch.setenv("WANDB_API_KEY", "correct-horse-battery")
    assert cli.main(["job", "show", "nfpo-8b-nfpo", "--set", "+a=correct-horse-battery"]) == 2
    assert "correct-horse" not in capsys.readouterr().err
    assert cli.main(["job", "status", "nfpo-0.6b-nfpo", "--root", str(tmp_path)]) == 0
    assert "not submitted" in capsys.readouterr().out
    assert (
        cli.main(["job", "submit", "nfpo-0.6b-nfpo", "--root", str(tmp_path), "--env", "NOT_SET_ANYWHERE"])
        == 2
    )
    assert "is not set here" in capsys.readouterr().err


@pytest.mark.fault("another-loss-than-the-one-named")
def test_a_loss_that_verl_would_not_run_starts_nothing(ready, monkeypatch, capsys):
    monkeypatch.setattr(start.os, "execv", lambda *_: pytest.fail("verl was started"))
    monkeypatch.setattr(start, "loss_faults", lambda words: ["policy_loss: nfpo has no parameter 'horizn'"])
    assert start.main(ready) == 3
    assert "rlvr preflight: policy_loss: nfpo has no parameter 'horizn'" in capsys.readouterr().out
