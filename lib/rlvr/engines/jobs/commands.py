"""``rlvr job list | show | prepare | modules | submit | status | logs | stop``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlvr.engines.jobs.experiments import Experiment, Experiments
    from rlvr.engines.jobs.jobs import Job


def add_to(commands: argparse._SubParsersAction) -> None:
    """The subcommands, on the parser of ``rlvr``."""
    job = commands.add_parser("job", help="experiments as verl jobs on a Ray cluster (docs/cluster.md)")
    actions = job.add_subparsers(title="actions", required=True, metavar="ACTION")
    for name, run, text in (
        ("list", _list, "the experiments of all scales"),
        ("show", _show, "print the verl command, as one to paste into a shell"),
        ("prepare", _prepare, "write the data files; in the environment of the jobs"),
        ("modules", _modules, "warm up the MTP modules that it starts with, on this machine's GPU"),
        (
            "submit",
            _submit,
            "start on RAY_ADDRESS or the Ray of this machine; attach if it runs, resume if it stopped",
        ),
        ("status", _status, "what runs, and which step is on the disk"),
        ("logs", _logs, "attach to the log"),
        ("stop", _stop, "stop the job; its checkpoints stay"),
    ):
        action = actions.add_parser(name, help=text)
        action.set_defaults(run=run)
        action.add_argument(
            "--file", metavar="YAML", help="file of experiments (default: all of pipelines/scales)"
        )
        if name == "list":
            continue
        action.add_argument("experiment", metavar="EXPERIMENT", help="a name of `rlvr job list`")
        action.add_argument("--seed", type=int, help="default: the experiment's first")
        action.add_argument(
            "--root", metavar="DIR", help="of data, checkpoints, metrics; default: runs, of this repository"
        )
        action.add_argument(
            "--model", metavar="DIR", help="the model's folder, in place of its name on the hub"
        )
        action.add_argument(
            "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of verl; repeatable"
        )
        if name in ("prepare", "modules"):
            action.add_argument(
                "--data-dir", metavar="DIR", help="the benchmarks' folder (default: RLVR_DATA, fetched)"
            )
        if name == "prepare":
            action.add_argument("--force", action="store_true", help="write again what is there")
        if name in ("submit", "status", "logs", "stop"):
            action.add_argument(
                "--address", metavar="URL", help="of Ray's dashboard (default: RAY_ADDRESS, this machine)"
            )
        if name == "submit":
            action.add_argument(
                "--env",
                action="append",
                default=[],
                metavar="NAME[=VALUE]",
                help="a variable for the job; no secrets",
            )
            action.add_argument(
                "--other-versions", action="store_true", help="accept other versions than those tested"
            )
        if name == "logs":
            action.add_argument("--raw", action="store_true", help="every line, not the steps alone")


def find(options: argparse.Namespace) -> tuple[Experiments, Experiment]:
    """The experiment that was named, and its file.

    Raises:
        ValueError: no file has it, or two have.
    """
    from rlvr.registry import suggest

    files = _files(options.file)
    found = [(file, file.get(options.experiment)) for file in files if options.experiment in file.names]
    if not found:
        names = [name for file in files for name in file.names]
        raise ValueError(f"experiment={suggest(options.experiment, names)}")
    if len(found) > 1:
        raise ValueError(f"experiment={options.experiment!r} is in {len(found)} files: name one with --file")
    return found[0]


def _files(file: str | None) -> list[Experiments]:
    from rlvr.engines.jobs.experiments import load_experiments
    from rlvr.problems.benchmarks.catalogue import project_root

    paths = [Path(file)] if file else sorted(project_root().glob("pipelines/scales/*/experiments.yaml"))
    return [load_experiments(path) for path in paths]


def _seed(options: argparse.Namespace, experiment: Experiment) -> int:
    return experiment.seeds[0] if options.seed is None else options.seed


def _root(options: argparse.Namespace) -> Path:
    from rlvr.problems.benchmarks.catalogue import project_root

    return Path(options.root).expanduser().absolute() if options.root else project_root() / "runs"


def _model(options: argparse.Namespace) -> str | None:
    return str(Path(options.model).expanduser().absolute()) if options.model else None


def _job(options: argparse.Namespace) -> tuple[Job, Experiments]:
    from rlvr.engines.jobs.jobs import Job, pass_through, say

    file, experiment = find(options)
    environment = pass_through(getattr(options, "env", []))
    if getattr(options, "other_versions", False):
        environment["RLVR_OTHER_VERSIONS"] = "1"
    job = Job(
        experiment, _seed(options, experiment), _root(options), _model(options), options.set, environment, say
    )
    return job, file


def _list(options: argparse.Namespace) -> int:
    for file in _files(options.file):
        print(f"{file.scale} ({file.scale_file})")
        for name in file.names:
            experiment = file.get(name)
            hardware = experiment.hardware
            what = f"{experiment.update.steps} steps, {hardware.gpus} x {hardware.gpu}"
            needs = f"; needs {experiment.needs}" if experiment.needs else ""
            print(f"  {name:32}  {what}, seeds {list(experiment.seeds)}{needs}")
    return 0


def _show(options: argparse.Namespace) -> int:
    from rlvr.engines.jobs.command import overrides, shell_command
    from rlvr.engines.jobs.redaction import check_no_secret

    _, experiment = find(options)
    words = overrides(
        experiment, _seed(options, experiment), str(_root(options)), _model(options), options.set
    )
    check_no_secret(words)
    print(shell_command(words))
    return 0


def _prepare(options: argparse.Namespace) -> int:
    from rlvr.engines.jobs.data import prepare

    _, experiment = find(options)
    for line in prepare(experiment, _root(options), options.data_dir, options.force):
        print(line)
    return 0


def _modules(options: argparse.Namespace) -> int:
    from rlvr.engines.jobs.modules import prepare_modules

    _, experiment = find(options)
    folder = prepare_modules(experiment, _root(options), _model(options), options.data_dir)
    print(folder if folder else f"{experiment.name} starts with no modules of its own")
    return 0


def _submit(options: argparse.Namespace) -> int:
    def run() -> None:
        job, file = _job(options)
        job.submit(_connect(options), file.max_gpu_hours)

    return _watched(options, run)


def _status(options: argparse.Namespace) -> int:
    return _watched(options, lambda: _job(options)[0].status(_connect(options)))


def _logs(options: argparse.Namespace) -> int:
    return _watched(options, lambda: _job(options)[0].logs(_connect(options), options.raw))


def _stop(options: argparse.Namespace) -> int:
    return _watched(options, lambda: _job(options)[0].stop(_connect(options)))


def _connect(options: argparse.Namespace):
    from rlvr.engines.jobs.client import connect

    return lambda: connect(options.address)


def _watched(options: argparse.Namespace, run) -> int:
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
        name = options.experiment
        jobs.error(
            f"no longer watched; the job goes on: `rlvr job logs {name}` attaches, `rlvr job stop {name}` "
            "ends it"
        )
        return 130
    return 0
