"""What the training notebook runs: one arm, by the local engine or as verl jobs.

    training = training_of("params.yaml", "nfpo")                       # engine and seeds of the scale file
    training = training_of("params.yaml", "nfpo", engine="verl")        # the same arm as verl jobs
    training = training_of("pipelines/scales/paper/experiments.yaml", "nfpo-1.7b-nfpo", seed=0)
    training.run(out, scratch)

Either leaves the same files in ``out/seed<seed>/lag<lag>``, with the same names of metrics and records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from rlvr.config import METHODS, Scale, load_scale, load_yaml
from rlvr.storage import write_json

if TYPE_CHECKING:
    from rlvr.engines.jobs.client import Client
    from rlvr.engines.jobs.experiments import Experiment, GPUHours
    from rlvr.engines.jobs.jobs import Job
    from rlvr.engines.local.job import Job as LocalJob

Run = tuple[int, int]  # (seed, lag)
Engine = Literal["local", "verl"]
OnProgress = Callable[[int, int], None]


@dataclass
class LocalTraining:
    """A run per seed and lag, side by side on single-threaded processes.

    ``arm`` may name several (:meth:`rlvr.config.Scale.arms_of`); each then has a folder of its own.
    """

    scale: Scale
    arm: str
    seed: int | None = None  # None: all of the scale
    engine: Engine = "local"

    def __post_init__(self) -> None:
        from rlvr.engines.local.job import jobs_of

        self.arms = self.scale.arms_of(self.arm)
        self.several = self.arms != (self.arm,)
        self.jobs = [
            job
            for arm in self.arms
            for seed in (self.scale.seeds_of(arm) if self.seed is None else (self.seed,))
            for job in jobs_of(self.scale, arm, seed)
        ]
        self.keys = [
            (job.arm, job.seed, job.lag) if self.several else (job.seed, job.lag) for job in self.jobs
        ]
        self.steps = max(job.train.steps for job in self.jobs)

    @property
    def names(self) -> list[str]:
        """What the parts of a run's key are."""
        return ["arm", "seed", "lag"] if self.several else ["seed", "lag"]

    @property
    def settings(self) -> dict[str, Any]:
        if self.several:
            return {"engine": self.engine, "arms": ", ".join(self.arms)}
        job = self.jobs[0]
        blocks = {name: getattr(job, name) for name in METHODS}
        given = {name: block.model_dump() for name, block in blocks.items() if block is not None}
        return {"engine": self.engine, "objective": job.objective} | job.parameters | given

    def runs(self, out: str | Path) -> dict[tuple, Path]:
        """Folder of every (seed, lag); of several arms, of every (arm, seed, lag)."""
        if not self.several:
            return run_folders(out, self.keys, self.seed)

        def of_arm(arm: str, folder: Path) -> dict[Run, Path]:
            own = [(job.seed, job.lag) for job in self.jobs if job.arm == arm]
            return run_folders(folder, own, self.seed)

        return _by_arm(out, self.arms, of_arm)

    def run(self, out: str | Path, scratch: str | Path, on_progress: OnProgress | None = None) -> None:
        """Train; the longest runs first, so that no process is left alone with one at the end."""
        from rlvr.engines.local.training import train
        from rlvr.engines.local.workers import run_side_by_side

        base, modules = str(self.scale.folder / "base/model"), self._modules()
        folders, scratches = self.runs(out), self.runs(scratch)
        order = sorted(range(len(self.jobs)), key=lambda index: -_weight(self.jobs[index]))
        results = run_side_by_side(
            train,
            [
                (base, self.jobs[i], str(folders[self.keys[i]]), str(scratches[self.keys[i]]), modules)
                for i in order
            ],
            self.scale.workers,
            on_progress=on_progress,
        )
        for index, (_, seconds) in zip(order, results, strict=True):
            job = self.jobs[index]
            name = "_".join((*self.scale.folder.parts[2:], job.arm))
            write_time(self.scale.scale, name, job.seed, job.lag, seconds)

    def _modules(self) -> str | None:
        """Folder of the modules that a stage warmed up; where there is none, each run does it itself."""
        folder = self.scale.folder / "warm_up/model"
        return str(folder) if folder.is_dir() else None


def _by_arm(
    out: str | Path, arms: Iterable[str], of_arm: Callable[[str, Path], dict[Run, Path]]
) -> dict[tuple, Path]:
    """Folder of every (arm, seed, lag), from those of each arm in ``out/<arm>``."""
    return {(arm, *run): folder for arm in arms for run, folder in of_arm(arm, Path(out, arm)).items()}


def _weight(job: LocalJob) -> int:
    """Roughly what a run costs: modules are as many networks again, and a critic is one."""
    return job.train.steps * ((job.mtp.blocks if job.mtp else 1) + (job.critic is not None))


@dataclass
class VerlTraining:
    """A job per seed, one after the other, on the Ray of RAY_ADDRESS, or on one that is started on this
    machine for them.

    A notebook that is killed leaves its job running: run again, it attaches to it.
    """

    experiments: dict[int, Experiment]  # by seed
    limit: GPUHours
    scale: Scale | None = None  # of an embedded policy
    seed: int | None = None  # None: all of the experiment
    model_path: str | None = None
    root: Path = field(default_factory=lambda: Path("runs").absolute())
    engine: Engine = "verl"

    def __post_init__(self) -> None:
        self.experiment = next(iter(self.experiments.values()))
        if self.experiment.needs:
            raise ValueError(
                f"{self.experiment.name} cannot be run by verl yet; it needs {self.experiment.needs}"
            )
        self.steps = self.experiment.update.steps

    names = ("seed", "lag")

    @property
    def settings(self) -> dict[str, Any]:
        own = self.experiment
        blocks = {name: getattr(own, name, None) for name in METHODS}
        given = {name: block.model_dump() for name, block in blocks.items() if block is not None}
        return {"engine": self.engine, "objective": own.objective} | own.parameters | given

    def runs(self, out: str | Path) -> dict[Run, Path]:
        return run_folders(out, [(seed, 0) for seed in self.experiments], self.seed)

    def run(self, out: str | Path, scratch: str | Path, on_progress: OnProgress | None = None) -> None:
        from rlvr.engines.jobs.changed import check_unchanged
        from rlvr.engines.jobs.collect import collect
        from rlvr.engines.jobs.local_ray import local_ray, stop_left

        jobs, ray = {}, {}
        for number, seed in enumerate(self.experiments):
            jobs[seed], ray = self.job(seed)
            check_unchanged(jobs[seed])  # also one that is done
            if on_progress:
                before, total = number * self.steps, len(self.experiments) * self.steps
                jobs[seed].on_step = lambda done, _, before=before, total=total: on_progress(
                    before + done, total
                )
        if open_jobs := {seed: job for seed, job in jobs.items() if not job.state.done}:
            with local_ray(self.root / self.experiment.scale, **ray) as connected:
                for seed, job in open_jobs.items():
                    begun = time.monotonic()
                    job.submit(connected, self.limit)
                    job.keep_log(connected)  # it may have ended before it was attached to
                    taken = time.monotonic() - begun
                    write_time(self.experiment.scale, self.experiment.name, seed, 0, taken)
        else:  # the jobs may have ended after whoever sent them was killed

            def keep_logs(connected: Callable[[], Client]) -> None:
                for job in jobs.values():
                    job.keep_log(connected)

            stop_left(self.root / self.experiment.scale, keep_logs)
        if on_progress:  # a job that ended while nobody followed it said no step
            on_progress(len(jobs) * self.steps, len(jobs) * self.steps)
        for (seed, _), folder in self.runs(out).items():
            collect(jobs[seed], folder, own_policy=self.scale is not None)

    def job(self, seed: int) -> tuple[Job, dict[str, Any]]:
        """(the job of a seed, what a Ray for it is started with)."""
        from rlvr.engines.jobs import embedded
        from rlvr.engines.jobs.command import hydra_value
        from rlvr.engines.jobs.jobs import Job

        experiment = self.experiments[seed]
        if self.scale is None:
            model = str(Path(self.model_path).expanduser().absolute()) if self.model_path else None
            return Job(experiment, seed, self.root, model), {}
        base = str(self.scale.folder / "base/model")
        model = str(embedded.prepare(self.scale, experiment, seed, base, self.root).absolute())
        experiment = embedded.with_modules(self.scale, experiment, model, self.root)
        own = embedded.settings(experiment)
        if self.scale.device == "cpu":
            from rlvr.engines.jobs.cpu import job_settings

            words, environment, ray = job_settings(experiment, self.root, own)
        else:
            words = [f"{name}={hydra_value(value)}" for name, value in own.items()]
            environment, ray = {}, {}
        job = Job(experiment, seed, self.root, model, words, environment)
        embedded.clear_if_other(job, base)
        return job, ray


@dataclass
class VerlArms:
    """Several arms of a scale as verl jobs, one arm after the other, each in a folder of its own."""

    trainings: dict[str, VerlTraining]
    engine: Engine = "verl"
    names = ("arm", "seed", "lag")

    @property
    def steps(self) -> int:
        return max(training.steps for training in self.trainings.values())

    @property
    def settings(self) -> dict[str, Any]:
        return {"engine": self.engine, "arms": ", ".join(self.trainings)}

    def runs(self, out: str | Path) -> dict[tuple, Path]:
        return _by_arm(out, self.trainings, lambda arm, folder: self.trainings[arm].runs(folder))

    def run(self, out: str | Path, scratch: str | Path, on_progress: OnProgress | None = None) -> None:
        total = sum(training.steps * len(training.experiments) for training in self.trainings.values())
        before = 0
        for arm, training in self.trainings.items():

            def shifted(done: int, _: int, before: int = before) -> None:
                on_progress(before + done, total)

            training.run(Path(out, arm), Path(scratch, arm), shifted if on_progress else None)
            before += training.steps * len(training.experiments)


def training_of(
    params_file: str | Path,
    arm: str,
    seed: int | None = None,
    engine: Engine | None = None,
    model_path: str | None = None,
) -> LocalTraining | VerlTraining | VerlArms:
    """One arm of a scale file (``params.yaml``) or several, or one experiment of a file of experiments.

    Args:
        arm: a recipe of the scale or the name of several (:meth:`rlvr.config.Scale.arms_of`), or the
            experiment's name.
        seed: None: all of the file, each in a folder ``seed<seed>`` of its own.
        engine: None: the file's own; experiments are verl jobs.
        model_path: of an experiment: a folder in place of the model's name on the hub.

    Raises:
        ValueError: an unknown arm, or an engine that cannot run it; says why.
    """
    if engine is not None and engine not in get_args(Engine):
        raise ValueError(f"engine={engine!r}: allowed are {', '.join(get_args(Engine))} and None")
    raw = load_yaml(params_file)
    if isinstance(raw, dict) and "settings" in raw:
        from rlvr.engines.jobs.experiments import load_experiments

        file = load_experiments(params_file)
        experiment = file.get(arm)
        if engine == "local":
            raise ValueError(
                f"engine='local': it trains embedded policies, {arm} is of {experiment.model}; allowed is "
                "verl"
            )
        seeds = _seeds(experiment.seeds, seed)
        return VerlTraining(
            dict.fromkeys(seeds, experiment), file.max_gpu_hours, seed=seed, model_path=model_path
        )
    if model_path is not None:
        raise ValueError(
            f"model_path={model_path!r}: an arm of a scale starts from its base model; allowed is None"
        )
    scale = load_scale(params_file)
    seeds = _seeds(scale.seeds, seed)
    if (engine or scale.engine) == "local":
        return LocalTraining(scale, arm, seed)
    from rlvr.engines.jobs.embedded import experiment_of
    from rlvr.engines.jobs.experiments import GPUHours

    def of_arm(one: str) -> VerlTraining:
        own = [s for s in seeds if s in scale.seeds_of(one)]
        experiments = {s: experiment_of(scale, one, s) for s in own}
        return VerlTraining(experiments, GPUHours(experiment=1, total=1), scale, seed)

    arms = scale.arms_of(arm)
    return of_arm(arm) if arms == (arm,) else VerlArms({one: of_arm(one) for one in arms})


def _seeds(known: tuple[int, ...], seed: int | None) -> tuple[int, ...]:
    if seed is not None and seed not in known:
        raise ValueError(f"seed={seed}: allowed are the file's, {list(known)}, and None for all of them")
    return known if seed is None else (seed,)


def run_folders(out: str | Path, runs: list[Run], seed: int | None) -> dict[Run, Path]:
    """``out/seed<seed>/lag<lag>``; without the seed's level if only one was asked for."""
    level = (lambda one: "") if seed is not None else (lambda one: f"seed{one}")
    return {(one, lag): Path(out, level(one), f"lag{lag}") for one, lag in runs}


def write_time(scale: str, arm: str, seed: int, lag: int, seconds: float) -> None:
    name = f"train__{arm}__seed{seed}__lag{lag}"
    write_json(f"runs/{scale}/timings/runs/{name}.json", {"run": name, "seconds": round(seconds, 2)})
