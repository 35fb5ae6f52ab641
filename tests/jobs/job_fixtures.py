"""A Ray that is not there: jobs that do what a script says."""

from __future__ import annotations

import json
from pathlib import Path

from rlvr.engines.jobs.command import data_files
from rlvr.engines.jobs.experiments import GPUHours, load_experiments
from rlvr.engines.jobs.jobs import Job
from rlvr.engines.jobs.rows import write_dataset
from rlvr.problems import get_task
from rlvr.problems.benchmarks.catalogue import project_root

PROBLEMS = get_task("word").generate("train", 2, (0, 0), (3, 4))
LIMIT = GPUHours(experiment=1e6, total=1e6)
ROOT = project_root()


def experiments(scale="one_gpu"):
    return load_experiments(ROOT / "pipelines" / "scales" / scale / "experiments.yaml")


def make_job(tmp_path, name="nfpo-0.6b-nfpo", **options):
    """(a job whose data files exist, the lines it says)."""
    experiment, said = experiments().get(name), []
    train, validation = data_files(experiment, str(tmp_path))
    for file in map(Path, (train, *validation)):
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file():
            write_dataset(file, PROBLEMS, "train")
    return Job(experiment, 0, tmp_path, say=said.append, **options), said


def save_checkpoint(job, step):
    """As verl does: the folder first, then the mark."""
    folder = Path(job.state.values["checkpoints"])
    (folder / f"global_step_{step}" / "actor").mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


def save_metrics(attempt, steps):
    Path(attempt["metrics"]).parent.mkdir(parents=True, exist_ok=True)
    Path(attempt["metrics"]).write_text("".join(json.dumps({"step": s, "data": {}}) + "\n" for s in steps))


def step_line(step, seconds=100.0):
    return (
        f"(TaskRunner pid=7) step:{step} - actor/lr:1e-06 - critic/score/mean:0.25 - timing_s/step:{seconds}"
    )


class FakeRay:
    """Each job's log is a list of parts: text, an exception (the connection breaks), a function to call."""

    def __init__(self, *logs, statuses=("SUCCEEDED",)):
        self.logs, self.statuses = list(logs), list(statuses)
        self.jobs: dict[str, dict] = {}
        self.submitted, self.stopped = [], []
        self.refuse: Exception | None = None
        self.down = 0  # status requests that fail

    def submit_job(self, *, entrypoint, submission_id, runtime_env, metadata):
        if self.refuse:
            raise self.refuse
        assert submission_id not in self.jobs
        self.submitted.append({"entrypoint": entrypoint, "id": submission_id, "env": runtime_env["env_vars"]})
        number = len(self.submitted) - 1
        self.jobs[submission_id] = {
            "parts": list(self.logs[number]) if number < len(self.logs) else [],
            "end": self.statuses[min(number, len(self.statuses) - 1)],
            "status": "RUNNING",
            "written": "",
        }
        return submission_id

    def get_job_status(self, job_id):
        if self.down:
            self.down -= 1
            raise ConnectionError("connection refused")
        if job_id not in self.jobs:
            raise RuntimeError(f"Request failed with status code 404: No job with ID {job_id}")
        return self.jobs[job_id]["status"]

    async def tail_job_logs(self, job_id):
        job = self.jobs[job_id]
        if job["written"]:
            yield job["written"]  # always from the beginning
        while job["parts"]:
            part = job["parts"].pop(0)
            if isinstance(part, BaseException):
                raise part
            if callable(part):
                part()
                continue
            job["written"] += part
            yield part
        if job["status"] == "RUNNING":
            job["status"] = job["end"]

    def stop_job(self, job_id):
        self.stopped.append(job_id)
        self.jobs[job_id]["status"] = "STOPPED"
        return True


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
