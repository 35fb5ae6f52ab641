"""A job from its submission to its last step: attach, resume, and the verdict whether it is done."""

from __future__ import annotations

import os
import shlex
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rlvr.engines.jobs import client as ray_client
from rlvr.engines.jobs.changed import check_unchanged
from rlvr.engines.jobs.client import ENDED, LOST, Client
from rlvr.engines.jobs.command import environment_of, folder, hydra_value, job_name, overrides
from rlvr.engines.jobs.experiments import Experiment, GPUHours
from rlvr.engines.jobs.faults import RESUME, explain
from rlvr.engines.jobs.hardware import MODELS
from rlvr.engines.jobs.plan import Plan, plan, refusals
from rlvr.engines.jobs.progress import Progress
from rlvr.engines.jobs.redaction import SECRET_NAME, check_no_secret, redact
from rlvr.engines.jobs.start import FREE
from rlvr.engines.jobs.state import JobState

START = ("python", "-m", "rlvr.engines.jobs.start")
RUNS = ("PENDING", "RUNNING")
KEPT_LINES = 20_000  # of the log, to find out why a job died


class JobFailed(RuntimeError):
    """The job ended before its last step; the text says why and what to do."""


@dataclass
class Job:
    """One experiment with one seed, here and on the cluster.

    Args:
        root: folder for data, checkpoints and metrics; absolute, the same path here and on the cluster.
        extra: overrides for verl.
        environment: variables for the job; of secrets only their names belong into a command, so they are
            refused, and have to be set where Ray is started.
        say: prints a line.
        on_step: called with (steps done, steps) as the log tells of them.
    """

    experiment: Experiment
    seed: int
    root: Path
    model_path: str | None = None
    extra: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = print
    on_step: Callable[[int, int], None] | None = None

    def __post_init__(self) -> None:
        words = overrides(self.experiment, self.seed, str(self.root), self.model_path, self.extra)
        self.folder = Path(folder(self.experiment, self.seed, str(self.root)))
        self.words = [*words, f"hydra.run.dir={hydra_value(f'{self.folder}/hydra')}"]
        check_no_secret(self.words)
        for name, value in self.environment.items():
            if SECRET_NAME.search(name) or redact(value, {}) != value:
                raise ValueError(
                    f"environment: {name} is a secret, and Ray shows a job's variables to everyone: set it "
                    "where Ray is started on each node; jobs inherit it"
                )
        self.state = JobState.load(
            self.folder.with_name(f"{job_name(self.experiment, self.seed)}.json"),
            job=job_name(self.experiment, self.seed),
            experiment=self.experiment.name,
            scale=self.experiment.scale,
            seed=self.seed,
            steps=self.experiment.update.steps,
            checkpoints=str(self.folder / "checkpoints"),
            command=[*START, *self.words],
        )

    @property
    def plan(self) -> Plan | None:
        """What the job costs; None for a model that the plan does not know, such as an embedded one."""
        return plan(self.experiment) if self.experiment.model in MODELS else None

    # --- commands ------------------------------------------------------------------------------------------

    def submit(self, connect: Callable[[], Client], limit: GPUHours, **follow: object) -> None:
        """Start the job, or attach to it, or go on from its last checkpoint; returns when it is done.

        Raises:
            ValueError: nothing was launched, and why. NoRay, ConnectionLost, JobFailed: as they say.
        """
        check_unchanged(self)
        if self.state.reached > self.state.values["steps"]:
            raise ValueError(
                f"the checkpoint in {self.state.values['checkpoints']} is of step {self.state.reached}, "
                f"beyond the {self.state.values['steps']} requested: it is of other settings; move it "
                "away, or raise update.steps"
            )
        if self.state.reached and not self.state.attempts:
            raise ValueError(
                f"{self.state.values['checkpoints']} holds a checkpoint of step {self.state.reached} that "
                "`rlvr job` knows nothing of: go on with the command that made it, or move it away"
            )
        if self.state.done:
            self.say(f"done: step {self.state.reached} of {self.state.values['steps']}, {self._where()}")
            return
        expected = self.plan
        alone = GPUHours(experiment=limit.experiment, total=1e12)
        if expected and (refused := refusals([expected], alone)):
            raise ValueError("nothing was launched: " + "; ".join(refused))
        self._check_files()
        if expected and not expected.fits:
            gigabytes = max(expected.memory) / 1e9
            self.say(
                f"warning: the plan expects {gigabytes:.0f} GB on each {expected.card}; it may run out of "
                "memory"
            )
        client = connect()
        attempt = self._living(client) or self._launch(client)
        self._watch(client, attempt["id"], **follow)

    def logs(self, connect: Callable[[], Client], raw: bool = False, **follow: object) -> None:
        """Attach to the attempt that runs, else to the last one, from the beginning of its log."""
        client = connect()
        self._watch(client, self._newest(client)[0]["id"], raw=raw, **follow)

    def keep_log(self, connect: Callable[[], Client]) -> None:
        """:meth:`logs`, if the last attempt came to its end while nobody followed it to there.

        A Ray that does not answer any more is no error: a log is not worth failing for.
        """
        if self.state.last is not None and not self._kept_log.is_file():
            with suppress(ray_client.NoRay, ray_client.ConnectionLost):
                self.logs(connect)

    def stop(self, connect: Callable[[], Client]) -> None:
        client = connect()
        attempt, status = self._newest(client)
        name = attempt["id"]
        if status is None or status in ENDED:
            self.say(f"{name} does not run ({status or 'not known to this cluster'}); {self._where()}")
            return
        client.stop_job(name)
        self.say(f"{name} is asked to stop; {RESUME}; {self._where()}")

    def status(self, connect: Callable[[], Client]) -> None:
        state = self.state
        if state.last is None:
            self.say(f"{state.values['job']}: not submitted")
            return
        attempt = state.last
        try:
            attempt, status = self._newest(connect())
            status = status or "not known to this cluster"
        except (ray_client.NoRay, *LOST) as error:
            status = f"unknown: {error}"
        steps, reached, logged = state.values["steps"], state.reached, state.logged
        verdict = "done" if state.done else "not done"
        self.say(
            f"{state.values['job']}: {verdict}; last checkpoint {reached} of {steps}, last metrics {logged}"
        )
        self.say(
            f"  attempt {state.attempts.index(attempt) + 1} of {len(state.attempts)}, {attempt['id']}, from "
            f"step {attempt['from_step']}: {status}"
        )
        self.say(f"  {self._where()}")

    # --- steps ---------------------------------------------------------------------------------------------

    @property
    def _kept_log(self) -> Path:
        """Of the last attempt."""
        return self._log_of(self.state.last)

    def _log_of(self, attempt: dict | None) -> Path:
        number = self.state.attempts.index(attempt) + 1 if attempt else 0
        return self.folder / f"log-{number}.txt"

    def _newest(self, client: Client) -> tuple[dict, str | None]:
        """(the newest attempt that runs on this cluster, its status); else the last one.

        A submission elsewhere, which ends at once because this job runs, is an attempt too.
        """
        last = self._last()
        found = (last, ray_client.status_of(client, last["id"]))
        if found[1] in RUNS:
            return found
        for attempt in reversed(self.state.attempts[:-1]):
            if (status := ray_client.status_of(client, attempt["id"])) in RUNS:
                return attempt, status
        return found

    def _living(self, client: Client) -> dict | None:
        """The attempt that still runs; a last one that was written down but never arrived is sent again."""
        if self.state.last is None:
            return None
        attempt, status = self._newest(client)
        if status in RUNS:
            self.say(f"attached to {attempt['id']}, which was submitted before")
            return attempt
        if status is None and not attempt.get("accepted"):
            return self._send(client, attempt)
        return None

    def _launch(self, client: Client) -> dict:
        attempt = self.state.new_attempt(str(self.folder))
        if attempt["from_step"]:
            self.say(f"goes on from the checkpoint of step {attempt['from_step']}")
        return self._send(client, attempt)

    def _send(self, client: Client, attempt: dict) -> dict:
        variables = {
            "VERL_FILE_LOGGER_PATH": attempt["metrics"],
            "HYDRA_FULL_ERROR": "1",
            "PYTHONUNBUFFERED": "1",
            **environment_of(self.experiment),
            **({FREE: f"{expected.disk / 1e9:.0f}"} if (expected := self.plan) else {}),
            **self.environment,
        }
        try:
            ray_client.submit(
                client,
                entrypoint=shlex.join([*START, *self.words]),
                submission_id=attempt["id"],
                runtime_env={"env_vars": variables},
                metadata={"experiment": self.experiment.name, "seed": str(self.seed)},
            )
        except LOST as error:
            if ray_client.status_of(client, attempt["id"]) is None:
                raise JobFailed(
                    f"Ray did not take the job: {redact(str(error))[:300]}\n  do: submit again once that "
                    f"is mended; {RESUME}"
                ) from error
        attempt["accepted"] = True
        self.state.save()
        self.say(f"submitted {attempt['id']}")
        return attempt

    def _watch(self, client: Client, name: str, raw: bool = False, **options) -> None:
        """Shows the log as it comes, and keeps all of it: Ray forgets a job's log with its cluster."""
        progress = Progress(self.state.values["steps"])
        lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = self._log_of(next(attempt for attempt in self.state.attempts if attempt["id"] == name))
        partial = kept.with_suffix(".part")
        with open(partial, "w", encoding="utf-8") as log:

            def sink(line: str) -> None:
                line = redact(line)
                lines.append(line)
                with suppress(OSError):  # a full disk must not end the watching
                    print(line, file=log, flush=True)
                step_line = progress.line(line)
                if step_line is not None and self.on_step:
                    self.on_step(progress.reached, progress.steps)
                shown = line if raw else step_line
                if shown is not None:
                    self.say(shown)
                elif "rlvr preflight: " in line:
                    self.say(line)

            try:
                status = ray_client.follow(client, name, sink, self.say, **options)
            finally:  # Ray may know less than was heard before
                log.flush()
                if not kept.is_file() or partial.stat().st_size >= kept.stat().st_size:
                    partial.replace(kept)
                else:
                    partial.unlink()
        self._conclude(status, list(lines), progress)

    def _conclude(self, status: str | None, lines: list[str], progress: Progress) -> None:
        """Done is what the disk says: a job may fail after its last step, and end well before it."""
        state, steps = self.state, self.state.values["steps"]
        if state.done:
            ended = (
                ""
                if status == "SUCCEEDED"
                else f" (the job itself ended as {status}, after its last checkpoint)"
            )
            self.say(f"done: step {steps} of {steps}{ended}; {self._where()}")
            return
        folder = Path(state.values["checkpoints"])
        if progress.reached >= steps and not folder.is_dir():
            raise JobFailed(
                f"not confirmed: the log says step {progress.reached} of {steps}, but {folder} cannot be "
                "seen from here\n  do: submit from a machine that shares this folder with the cluster, or "
                "look there yourself"
            )
        what = {
            "STOPPED": f"it was stopped; {RESUME}",
            None: "the cluster does not know the job any more: Ray was started anew, or this is another "
            "cluster; " + RESUME,
        }.get(status)
        if status == "SUCCEEDED":
            what = (
                "it ended by itself without an error: verl stops early where data or epochs run out; "
                + explain(lines)
            )
        raise JobFailed(
            f"not done: step {state.reached} of {steps} is saved, job {status or 'gone'}\n  "
            f"{what or explain(lines)}\n  {self._where()}"
        )

    def _check_files(self) -> None:
        from rlvr.engines.jobs.command import data_files
        from rlvr.engines.jobs.rows import check_dataset

        if self.model_path and not (Path(self.model_path) / "config.json").is_file():
            raise ValueError(
                f"model path {self.model_path} has no config.json: download the model there (hf download "
                f"{self.experiment.model} --local-dir {self.model_path}), on a disk that every node sees"
            )
        train, validation = data_files(self.experiment, str(self.root))
        if missing := [name for name in (train, *validation) if not Path(name).is_file()]:
            raise ValueError(
                f"{missing[0]} does not exist: `rlvr job prepare {self.experiment.name}` writes the data "
                "files, in the environment of the jobs; submit from a machine that shares this folder with "
                "the cluster"
            )
        for name in (train, *validation):
            try:
                check_dataset(name)
            except ValueError as error:
                raise ValueError(
                    f"{error}; `rlvr job prepare {self.experiment.name} --force` writes the data files anew"
                ) from None

    def _last(self) -> dict:
        if self.state.last is None:
            raise ValueError(
                f"{self.state.values['job']} was not submitted: `rlvr job submit {self.experiment.name}`"
            )
        return self.state.last

    def _where(self) -> str:
        return f"in {self.folder}"


def say(line: str) -> None:
    print(redact(line), flush=True)


def pass_through(names: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE words, or names of variables set here, for the job's environment."""
    out = {}
    for word in names:
        name, given, value = word.partition("=")
        if not given and name not in os.environ:
            raise ValueError(
                f"environment={name!r} is not set here: allowed are NAME=VALUE, and names that are set"
            )
        out[name] = value if given else os.environ[name]
    return out


def error(text: str) -> None:
    print(f"rlvr: {redact(text)}", file=sys.stderr)
