"""Submit, attach, resume, stop: with a Ray that drops connections, forgets jobs, and ends them early."""

import json

import pytest
from job_fixtures import (
    LIMIT,
    Clock,
    FakeRay,
    experiments,
    make_job,
    save_checkpoint,
    save_metrics,
    step_line,
)

from rlvr.engines.jobs import client as ray_client
from rlvr.engines.jobs.client import ConnectionLost, NoRay, connect, follow
from rlvr.engines.jobs.experiments import GPUHours
from rlvr.engines.jobs.jobs import Job, JobFailed

STEPS = 200


def submit(job, ray, limit=LIMIT, **options):
    clock = Clock()
    job.submit(lambda: ray, limit, sleep=clock.sleep, clock=clock, **options)


def finished(job, steps=STEPS):
    """A log to the last step, whose checkpoint is there."""
    return [step_line(steps - 1) + "\n", lambda: save_checkpoint(job, steps), step_line(steps) + "\n"]


def test_a_job_that_reaches_its_last_step_is_done(tmp_path):
    job, said = make_job(tmp_path)
    ray = FakeRay(finished(job))
    submit(job, ray)
    assert said[-1].startswith(f"done: step {STEPS} of {STEPS};")
    assert f"step {STEPS - 1} of {STEPS} · 100 s a step · about 2 min left · reward 0.25" in said
    (sent,) = ray.submitted
    assert sent["entrypoint"].startswith("python -m rlvr.engines.jobs.start algorithm.adv_estimator=grpo ")
    assert sent["env"]["VERL_FILE_LOGGER_PATH"].endswith("nfpo-0.6b-nfpo-s0/metrics-1.jsonl")
    again, told = make_job(tmp_path)
    submit(again, ray)
    assert told[-1].startswith("done:") and len(ray.submitted) == 1


@pytest.mark.fault("resumed-run-that-does-nothing")
def test_a_success_before_the_last_step_is_not_done(tmp_path):
    job, _ = make_job(tmp_path)
    ray = FakeRay([lambda: save_checkpoint(job, 175), step_line(175) + "\n"])
    with pytest.raises(JobFailed, match=r"not done: step 175 of 200 is saved, job SUCCEEDED\n.*stops early"):
        submit(job, ray)


def test_a_failure_after_the_last_step_is_done(tmp_path):
    job, said = make_job(tmp_path)
    submit(job, FakeRay([*finished(job), "EngineDeadError\n"], statuses=["FAILED"]))
    assert said[-1].startswith(
        "done: step 200 of 200 (the job itself ended as FAILED, after its last checkpoint)"
    )


def test_the_log_alone_does_not_make_it_done(tmp_path):
    job, _ = make_job(tmp_path)
    with pytest.raises(
        JobFailed, match=r"not confirmed: the log says step 200 of 200, but .* cannot be seen"
    ):
        submit(job, FakeRay([step_line(STEPS) + "\n"]))


@pytest.mark.fault("half-a-checkpoint")
def test_a_mark_without_its_checkpoint_counts_for_nothing(tmp_path):
    job, _ = make_job(tmp_path)
    save_checkpoint(job, 50)
    folder = tmp_path / "one_gpu" / "jobs" / "nfpo-0.6b-nfpo-s0" / "checkpoints"
    assert job.state.reached == 50
    for text in ("200", "", "2x"):
        (folder / "latest_checkpointed_iteration.txt").write_text(text)
        assert job.state.reached == 0 and not job.state.done


def test_it_goes_on_from_the_last_checkpoint_with_metrics_of_their_own(tmp_path):
    job, _ = make_job(tmp_path)
    ray = FakeRay(
        [lambda: save_checkpoint(job, 75), "torch.OutOfMemoryError: CUDA out of memory\n"],
        statuses=["FAILED"],
    )
    with pytest.raises(JobFailed, match=r"(?s)step 75 of 200.*GPU out of memory: .*do: .*tokens_per_gpu"):
        submit(job, ray)
    save_metrics(job.state.last, range(1, 81))
    again, said = make_job(tmp_path)
    assert again.state.logged == 80
    ray.logs.append(finished(again))
    ray.statuses = ["SUCCEEDED"]
    submit(again, ray)
    assert "goes on from the checkpoint of step 75" in said
    first, second = (sent["env"]["VERL_FILE_LOGGER_PATH"] for sent in ray.submitted)
    assert first != second and ray.submitted[0]["id"] != ray.submitted[1]["id"]
    assert [attempt["from_step"] for attempt in again.state.attempts] == [0, 75]


def unwatched(tmp_path):
    """The cluster on which a job runs whose submitter was killed after its first step."""
    job, _ = make_job(tmp_path)
    ray = FakeRay([step_line(1) + "\n", KeyboardInterrupt(), *finished(job)])
    with pytest.raises(KeyboardInterrupt):
        submit(job, ray)
    return ray


def test_who_was_killed_attaches_instead_of_submitting_again(tmp_path):
    ray = unwatched(tmp_path)
    again, said = make_job(tmp_path)
    submit(again, ray)
    assert len(ray.submitted) == 1
    assert said[0].startswith("attached to") and said[-1].startswith("done:")


@pytest.fixture
def running_first(tmp_path):
    """(cluster on which attempt 1 runs, unwatched; attempt 2 was sent to another one and ended there)."""
    ray = unwatched(tmp_path)
    second, _ = make_job(tmp_path)
    elsewhere = FakeRay(["rlvr preflight: another job writes into it\n"], statuses=["FAILED"])
    with pytest.raises(JobFailed, match="another job writes into it"):
        submit(second, elsewhere)
    assert len(second.state.attempts) == 2
    return ray


def test_a_stray_submission_hides_no_running_job(running_first, tmp_path):
    again, said = make_job(tmp_path)
    again.status(lambda: running_first)
    name = running_first.submitted[0]["id"]
    assert f"attempt 1 of 2, {name}, from step 0: RUNNING" in said[-2]
    submit(again, running_first)
    assert len(running_first.submitted) == 1 and f"attached to {name}, which was submitted before" in said
    assert said[-1].startswith("done:")
    assert "step:200" in (again.folder / "log-1.txt").read_text()
    assert "preflight" in (again.folder / "log-2.txt").read_text()


def test_a_stray_submission_keeps_no_job_from_being_stopped(running_first, tmp_path):
    again, _ = make_job(tmp_path)
    again.stop(lambda: running_first)
    assert running_first.stopped == [running_first.submitted[0]["id"]]
    submit_again = make_job(tmp_path)[0]
    running_first.logs.append(finished(submit_again))
    submit(submit_again, running_first)  # nothing runs now: a third attempt
    assert len(submit_again.state.attempts) == 3


def test_killed_between_writing_down_and_submitting(tmp_path):
    job, _ = make_job(tmp_path)
    noted = job.state.new_attempt(str(job.folder))
    again, _ = make_job(tmp_path)
    ray = FakeRay(finished(again))
    submit(again, ray)
    assert [sent["id"] for sent in ray.submitted] == [noted["id"]] and len(again.state.attempts) == 1


def test_killed_between_submitting_and_writing_down(tmp_path):
    job, _ = make_job(tmp_path)
    noted = job.state.new_attempt(str(job.folder))
    again, said = make_job(tmp_path)
    ray = FakeRay(finished(again))
    ray.submit_job(entrypoint="", submission_id=noted["id"], runtime_env={"env_vars": {}}, metadata={})
    submit(again, ray)
    assert len(ray.submitted) == 1 and said[0].startswith("attached to")


def test_a_lost_connection_is_opened_again_and_no_line_comes_twice(tmp_path):
    job, said = make_job(tmp_path)
    lost = RuntimeError("WebSocket connection closed unexpectedly with close code 1006")
    ray = FakeRay([step_line(1) + "\n", step_line(2) + "\nhalf a li", lost, "ne\n", *finished(job)])
    submit(job, ray)
    steps = [line.split(" · ")[0] for line in said if line.startswith("step")]
    assert steps == ["step 1 of 200", "step 2 of 200", "step 199 of 200", "step 200 of 200"]
    assert any(line.startswith("connection lost (WebSocket") for line in said) and "connected again" in said


def test_half_a_line_at_a_break_is_handed_on_once():
    ray = FakeRay(["a\nb", OSError("reset"), "c\nd"])
    ray.submit_job(entrypoint="", submission_id="x", runtime_env={"env_vars": {}}, metadata={})
    lines, clock = [], Clock()
    assert follow(ray, "x", lines.append, lambda text: None, sleep=clock.sleep, clock=clock) == "SUCCEEDED"
    assert lines == ["a", "bc", "d"]


def test_inside_of_a_notebook_where_a_loop_runs_already(tmp_path):
    import asyncio

    job, said = make_job(tmp_path)
    ray = FakeRay([step_line(1) + "\n", RuntimeError("closed"), *finished(job)])

    async def cell():
        submit(job, ray)

    asyncio.run(cell())
    assert (
        said[-1].startswith("done:")
        and sum(line.startswith("connection lost (closed)") for line in said) == 1
    )


def test_a_connection_that_stays_away(tmp_path):
    job, _ = make_job(tmp_path)
    ray = FakeRay([step_line(1) + "\n", lambda: setattr(ray, "down", 10**6), OSError("gone")])
    with pytest.raises(ConnectionLost, match=r"for 900 s .*the job may go on: .rlvr job logs"):
        submit(job, ray)
    ray.down = 0
    again, _ = make_job(tmp_path)
    ray.jobs[ray.submitted[0]["id"]]["parts"] = finished(again)
    clock = Clock()
    again.logs(lambda: ray, sleep=clock.sleep, clock=clock)
    assert len(ray.submitted) == 1


def test_a_cluster_that_was_started_anew(tmp_path):
    job, _ = make_job(tmp_path)
    ray = FakeRay([lambda: save_checkpoint(job, 25), lambda: ray.jobs.clear(), OSError("gone")])
    with pytest.raises(
        JobFailed, match=r"step 25 of 200 is saved, job gone\n.*does not know the job any more"
    ):
        submit(job, ray)
    again, said = make_job(tmp_path)
    new = FakeRay(finished(again))
    submit(again, new)
    assert "goes on from the checkpoint of step 25" in said


def test_stopping_keeps_the_checkpoints(tmp_path):
    job, _ = make_job(tmp_path)
    ray = FakeRay([lambda: save_checkpoint(job, 25), KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        submit(job, ray)
    again, said = make_job(tmp_path)
    again.stop(lambda: ray)
    assert ray.stopped == [ray.submitted[0]["id"]] and "goes on from the last checkpoint" in said[-1]
    again.stop(lambda: ray)
    assert len(ray.stopped) == 1 and "does not run (STOPPED)" in said[-1]
    again.status(lambda: ray)
    assert "not done; last checkpoint 25 of 200" in said[-3] and said[-2].endswith("STOPPED")
    with pytest.raises(JobFailed, match="it was stopped"):
        again.logs(lambda: ray)


def test_ray_refuses_the_job(tmp_path):
    job, _ = make_job(tmp_path)
    ray = FakeRay(finished(job))
    ray.refuse = RuntimeError("Request failed with status code 500: no")
    with pytest.raises(JobFailed, match=r"did not take the job: .*500"):
        submit(job, ray)
    ray.refuse = None
    again, _ = make_job(tmp_path)
    submit(again, ray)
    assert len(again.state.attempts) == 1


def test_what_is_refused_before_anything_is_launched(tmp_path):
    job, _ = make_job(tmp_path)
    ray = FakeRay()
    with pytest.raises(ValueError, match=r"nothing was launched: .*max_gpu_hours.experiment is 0: raise it"):
        submit(job, ray, GPUHours(experiment=0.1, total=1e6))
    with pytest.raises(
        ValueError, match=r"model path /nowhere has no config.json: .*hf download Qwen/Qwen3-0.6B-Base"
    ):
        submit(make_job(tmp_path, model_path="/nowhere")[0], ray)
    for file in (tmp_path / "one_gpu" / "data").iterdir():
        file.write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"l345.parquet is no parquet file.*prepare .*--force"):
        submit(job, ray)
    for file in (tmp_path / "one_gpu" / "data").iterdir():
        file.unlink()
    with pytest.raises(
        ValueError, match=r"train-math_train-l345.parquet does not exist: `rlvr job prepare nfpo-0.6b"
    ):
        submit(job, ray)
    save_checkpoint(job, 400)
    with pytest.raises(ValueError, match="step 400, beyond the 200 requested"):
        submit(job, ray)
    name = "nfpo-0.6b-nfpo_recompute_trace"
    with pytest.raises(ValueError, match=rf"{name} cannot be run by verl yet; it needs a worker loss"):
        make_job(tmp_path, name)
    with pytest.raises(ValueError, match=r"was not submitted: `rlvr job submit nfpo-0.6b-dppo`"):
        make_job(tmp_path, "nfpo-0.6b-dppo")[0].logs(lambda: ray)
    assert not ray.submitted


def test_a_state_file_of_somebody_else(tmp_path):
    job, _ = make_job(tmp_path)
    job.state.path.parent.mkdir(parents=True, exist_ok=True)
    job.state.path.write_text("[1")
    with pytest.raises(ValueError, match="not what `rlvr job` wrote"):
        make_job(tmp_path)


@pytest.mark.fault("secret-in-a-log")
def test_secrets_reach_neither_the_state_nor_the_screen(tmp_path, monkeypatch):
    secret = "correct-horse-battery"
    monkeypatch.setenv("WANDB_API_KEY", secret)
    job, said = make_job(tmp_path)
    ray = FakeRay(
        [f"login with {secret}\n", f"rlvr preflight: key {secret} hf_abcdefghijklmnop1234\n"],
        statuses=["FAILED"],
    )
    with pytest.raises(JobFailed) as failed:
        submit(job, ray)
    shown = "\n".join([*said, str(failed.value), job.state.path.read_text(), json.dumps(ray.submitted)])
    assert secret not in shown and "hf_abc" not in shown and "[WANDB_API_KEY]" in shown
    for extra in ([f"+trainer.key={secret}"], ["+trainer.hf_token=hf_abcdefghijklmnop1234"]):
        with pytest.raises(ValueError, match="holds a secret: set it in the environment") as refused:
            make_job(tmp_path, extra=extra)
        assert secret not in str(refused.value) and "hf_abc" not in str(refused.value)
    for environment in ({"HF_TOKEN": "x"}, {"OTHER": "hf_abcdefghijklmnop1234"}):
        with pytest.raises(ValueError, match="is a secret, and Ray shows"):
            Job(experiments().get("nfpo-0.6b-nfpo"), 0, tmp_path, environment=environment)


def test_no_ray_here(monkeypatch):
    import builtins

    for name in ray_client.ADDRESSES:
        monkeypatch.delenv(name, raising=False)
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("ray"):
            raise ImportError("No module named 'ray'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(NoRay, match=r"Ray is not installed here .*pip install 'ray\[default\]'"):
        connect()


def test_a_ray_that_asks_for_a_token(monkeypatch):
    import sys
    import types

    class AuthenticationError(Exception):
        """Ray's own is no RuntimeError and no OSError either."""

    def refuse(address, headers=None):
        raise AuthenticationError("Unauthorized: Missing authentication token")

    module = types.SimpleNamespace(JobSubmissionClient=refuse)
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(job_submission=module))
    monkeypatch.setitem(sys.modules, "ray.job_submission", module)
    with pytest.raises(NoRay, match=r"http://h:8265 asks for a token: RAY_AUTH_MODE=token here too"):
        connect("http://h:8265")


@pytest.mark.parametrize(
    ("given", "environment"), [(None, None), (None, "http://u:pw12345678@h:8265"), ("http://a:1", "x")]
)
def test_no_ray_at_the_address(monkeypatch, given, environment):
    """With a client that connects to nothing, as Ray's does."""
    import sys
    import types

    def refuse(address, headers=None):
        asked.append((address, ray_client.os.environ.get("RAY_ADDRESS")))
        raise ConnectionError(f"Failed to connect to Ray at address: {address}.")

    asked = []
    module = types.SimpleNamespace(JobSubmissionClient=refuse)
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(job_submission=module))
    monkeypatch.setitem(sys.modules, "ray.job_submission", module)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if environment:
        monkeypatch.setenv("RAY_ADDRESS", environment)
    with pytest.raises(NoRay, match=r"ray start --head") as error:
        connect(given)
    assert "pw12345678" not in str(error.value)
    ((address, seen),) = asked
    assert address == (given or environment or ray_client.LOCAL)
    assert seen == (None if given else environment)  # Ray's client would prefer the variable to its argument
    assert ray_client.os.environ.get("RAY_ADDRESS") == environment
    if not given and not environment:
        assert "RAY_ADDRESS is not set" in str(error.value)


def test_the_log_of_a_job_that_ended_unwatched_is_read_once(tmp_path):
    job, _ = make_job(tmp_path)
    ray = FakeRay(finished(job))
    job.keep_log(lambda: pytest.fail("nothing was submitted: there is no log"))
    submit(job, ray)
    kept = job.folder / "log-1.txt"
    whole = kept.read_text()
    kept.unlink()
    again, _ = make_job(tmp_path)
    again.keep_log(lambda: ray)
    assert kept.read_text() == whole and f"step:{STEPS} " in whole
    again.keep_log(lambda: pytest.fail("it is kept already"))
