"""``rlvr job list | show | prepare | modules | submit | status | logs | stop``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlvr.commands.base import app, completion, guarded

if TYPE_CHECKING:
    from rlvr.engines.jobs.experiments import Experiment, Experiments
    from rlvr.engines.jobs.jobs import Job

job = app("Experiments as verl jobs on a Ray cluster (docs/cluster.md).")


def _names() -> list[str]:
    """Names of all experiments, read without their checks: those import torch, for longer than one waits."""
    from ruamel.yaml import YAML

    from rlvr.problems.benchmarks.catalogue import project_root

    names = []
    for path in project_root().glob("pipelines/scales/*/experiments.yaml"):
        for setting, values in YAML(typ="safe").load(path)["settings"].items():
            names += [f"{setting}-{arm}" for arm in values.get("run") or ()]
    return sorted(names)


Name = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT", help="A name of `rlvr job list`.", autocompletion=completion(_names)
    ),
]
File = Annotated[
    str | None,
    typer.Option("--file", metavar="YAML", help="File of experiments (default: all of pipelines/scales)."),
]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="0 to 4294967295; default: the experiment's first.")
]
Root = Annotated[
    str | None,
    typer.Option(
        "--root", metavar="DIR", help="Of data, checkpoints, metrics; default: runs, of this repository."
    ),
]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="DIR", help="The model's folder, in place of its name on the hub."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting of verl beside the experiment's; repeatable."
    ),
]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="URL", help="Of Ray's dashboard (default: RAY_ADDRESS, this machine)."),
]
DataDir = Annotated[
    str | None,
    typer.Option("--data-dir", metavar="DIR", help="The benchmarks' folder (default: RLVR_DATA, fetched)."),
]


@dataclass(frozen=True)
class Choice:
    """The experiment that was asked for, by name, and what is changed about it: the argument and the options
    of every command of one experiment (:func:`of_experiment`)."""

    name: Name
    file: File = None
    seed: Seed = None
    root: Root = None
    model: Model = None
    settings: Settings = None

    def find(self) -> tuple[Experiments, Experiment]:
        """The experiment, and its file.

        Raises:
            ValueError: no file has it, or two have.
        """
        from rlvr.registry import suggest

        files = _files(self.file)
        found = [(file, file.get(self.name)) for file in files if self.name in file.names]
        if not found:
            names = [name for file in files for name in file.names]
            raise ValueError(f"experiment={suggest(self.name, names)}")
        if len(found) > 1:
            raise ValueError(f"experiment={self.name!r} is in {len(found)} files: name one with --file")
        return found[0]

    def seed_of(self, experiment: Experiment) -> int:
        if self.seed is not None and not 0 <= self.seed < 2**32:
            raise ValueError(
                f"--seed {self.seed}: allowed are 0 to {2**32 - 1}; those of {experiment.name} are "
                f"{list(experiment.seeds)}"
            )
        return experiment.seeds[0] if self.seed is None else self.seed

    def settings_of(self, experiment: Experiment) -> list[str]:
        from rlvr.engines.jobs.asked import check_settings

        check_settings(self.settings or [], experiment)
        return self.settings or []

    @property
    def folder(self) -> Path:
        from rlvr.problems.benchmarks.catalogue import project_root

        return Path(self.root).expanduser().absolute() if self.root else project_root() / "runs"

    @property
    def model_path(self) -> str | None:
        return str(Path(self.model).expanduser().absolute()) if self.model else None

    def job(self, env: Sequence[str] | None = None, other_versions: bool = False) -> tuple[Job, Experiments]:
        from rlvr.engines.jobs.jobs import Job, pass_through, say

        file, experiment = self.find()
        environment = pass_through(env or [])
        if other_versions:
            environment["RLVR_OTHER_VERSIONS"] = "1"
        seed, settings = self.seed_of(experiment), self.settings_of(experiment)
        return Job(experiment, seed, self.folder, self.model_path, settings, environment, say), file


def of_experiment(command: Callable[..., int]) -> Callable[..., int]:
    """A command that takes a :class:`Choice`, and beside it only the options of its own."""
    shared = inspect.signature(Choice, eval_str=True).parameters
    _, *own = inspect.signature(command, eval_str=True).parameters.values()

    @functools.wraps(command)
    def run(**options: object) -> int:
        return command(Choice(**{name: options.pop(name) for name in shared}), **options)

    run.__signature__ = inspect.Signature([*shared.values(), *own])
    run.__annotations__ = {p.name: p.annotation for p in run.__signature__.parameters.values()}
    return run


def _files(file: str | None) -> list[Experiments]:
    from rlvr.engines.jobs.experiments import load_experiments
    from rlvr.problems.benchmarks.catalogue import project_root

    paths = [Path(file)] if file else sorted(project_root().glob("pipelines/scales/*/experiments.yaml"))
    return [load_experiments(path) for path in paths]


@job.command("list")
@guarded
def list_(file: File = None) -> int:
    """The experiments of all scales."""
    for found in _files(file):
        print(f"{found.scale} ({found.scale_file})")
        for name in found.names:
            experiment = found.get(name)
            hardware = experiment.hardware
            what = f"{experiment.update.steps} steps, {hardware.gpus} x {hardware.gpu}"
            needs = f"; needs {experiment.needs}" if experiment.needs else ""
            print(f"  {name:32}  {what}, seeds {list(experiment.seeds)}{needs}")
    return 0


@job.command()
@guarded
@of_experiment
def show(choice: Choice) -> int:
    """Print the verl command, as one to paste into a shell."""
    from rlvr.engines.jobs.command import environment_of, overrides, shell_command
    from rlvr.engines.jobs.redaction import check_no_secret

    _, found = choice.find()
    settings = choice.settings_of(found)
    words = overrides(found, choice.seed_of(found), str(choice.folder), choice.model_path, settings)
    check_no_secret(words)
    print(shell_command(words, environment_of(found)))
    return 0


@job.command()
@guarded
@of_experiment
def prepare(
    choice: Choice,
    data_dir: DataDir = None,
    force: Annotated[bool, typer.Option("--force", help="Write again what is there.")] = False,
) -> int:
    """Write the data files; in the environment of the jobs."""
    from rlvr.engines.jobs.data import prepare as write

    _, found = choice.find()
    for line in write(found, choice.folder, data_dir, force):
        print(line)
    return 0


@job.command()
@guarded
@of_experiment
def modules(choice: Choice, data_dir: DataDir = None) -> int:
    """Warm up the MTP modules that it starts with, on this machine's GPU."""
    from rlvr.engines.jobs.modules import prepare_modules

    _, found = choice.find()
    folder = prepare_modules(found, choice.folder, choice.model_path, data_dir)
    print(folder if folder else f"{found.name} starts with no modules of its own")
    return 0


@job.command()
@guarded
@of_experiment
def submit(
    choice: Choice,
    address: Address = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME[=VALUE]", help="A variable for the job; no secrets; repeatable."),
    ] = None,
    other_versions: Annotated[
        bool, typer.Option("--other-versions", help="Accept other versions than those tested.")
    ] = False,
) -> int:
    """Start on RAY_ADDRESS or the Ray of this machine; attach if it runs, resume if it stopped."""

    def run() -> None:
        asked, found = choice.job(env, other_versions)
        asked.submit(_connect(address), found.max_gpu_hours)

    return _watched(choice.name, run)


@job.command()
@guarded
@of_experiment
def status(choice: Choice, address: Address = None) -> int:
    """What runs, and which step is on the disk."""
    return _watched(choice.name, lambda: choice.job()[0].status(_connect(address)))


@job.command()
@guarded
@of_experiment
def logs(
    choice: Choice,
    address: Address = None,
    raw: Annotated[bool, typer.Option("--raw", help="Every line, not the steps alone.")] = False,
) -> int:
    """Attach to the log."""
    return _watched(choice.name, lambda: choice.job()[0].logs(_connect(address), raw))


@job.command()
@guarded
@of_experiment
def stop(choice: Choice, address: Address = None) -> int:
    """Stop the job; its checkpoints stay."""
    return _watched(choice.name, lambda: choice.job()[0].stop(_connect(address)))


def _connect(address: str | None) -> Callable:
    from rlvr.engines.jobs.client import connect

    return lambda: connect(address)


def _watched(name: str, run: Callable[[], object]) -> int:
    """0 if all is well, 1 if a job or the connection to it is not."""
    from rlvr.engines.jobs import jobs
    from rlvr.engines.jobs.client import LOST, TOKEN, ConnectionLost, NoRay

    try:
        run()
    except (jobs.JobFailed, NoRay, ConnectionLost) as error:
        jobs.error(str(error))
        return 1
    except FileNotFoundError:
        raise  # said by the command line itself
    except LOST as error:  # and a disk on which the job's state cannot be written
        advice = f": {TOKEN}" if "401" in str(error) else ""
        jobs.error(
            f"{str(error)[:300] or type(error).__name__}{advice}; a job that was taken goes on: the same "
            "command attaches to it once that is mended"
        )
        return 1
    except KeyboardInterrupt:
        jobs.error(
            f"no longer watched; the job goes on: `rlvr job logs {name}` attaches, `rlvr job stop {name}` "
            "ends it"
        )
        return 130
    return 0
