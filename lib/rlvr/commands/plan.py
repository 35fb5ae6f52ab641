"""``rlvr plan SCALE``, which is ``make plan``."""

from __future__ import annotations

import sys
from fnmatch import fnmatch
from typing import Annotated

import typer

from rlvr.commands.base import completion, guarded, scales


def _scales() -> list[str]:
    return scales("experiments.yaml")


def _cards() -> list[str]:
    from rlvr.engines.jobs.hardware import CARDS

    return list(CARDS)


@guarded
def plan(
    scale: Annotated[
        str,
        typer.Argument(
            metavar="SCALE",
            help="A scale with experiments: paper, one_gpu.",
            autocompletion=completion(_scales),
        ),
    ],
    only: Annotated[
        str, typer.Option("--only", metavar="PATTERN", help="Names of experiments, as in a shell: 'nfpo-*'.")
    ] = "*",
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="CARD",
            help="Another card than the scale's, such as H100.",
            autocompletion=completion(_cards),
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", metavar="N", help="Another number of GPUs, on one node up to 8.")
    ] = None,
) -> int:
    """What the experiments of a scale cost, before anything is launched.

    A line per experiment: seconds a step, hours, GPU-hours, memory, disk and tokens, as bands, per seed.
    Exit code 1 if one that can be run costs more than max_gpu_hours of the scale file, or those within it do
    together.
    """
    from rlvr.engines.jobs.costs import on_hardware, summary, table
    from rlvr.engines.jobs.experiments import load_experiments
    from rlvr.engines.jobs.plan import plan as cost
    from rlvr.engines.jobs.plan import refusals
    from rlvr.problems.benchmarks.catalogue import project_root

    if scale not in _scales():
        raise ValueError(f"SCALE={scale!r} has no experiments.yaml: allowed are {', '.join(_scales())}")
    file = load_experiments(project_root() / "pipelines" / "scales" / scale / "experiments.yaml")
    names = [name for name in file.names if fnmatch(name, only)]
    if not names:
        raise ValueError(f"--only {only!r} matches none of {', '.join(file.names)}")
    plans = [cost(on_hardware(file.get(name), gpu, gpus)) for name in names]
    runnable = [p for p in plans if p.needs is None]
    print(table(plans).to_string(index=False))
    print()
    refused = [p for p in runnable if p.gpu_hours[1] > file.max_gpu_hours.experiment]
    affordable = [p for p in runnable if p not in refused]
    for line in summary(runnable, refused):
        print(line)
    for reason in dict.fromkeys(p.needs for p in plans if p.needs):
        print(f"- not counted, needs {reason}: {', '.join(p.name for p in plans if p.needs == reason)}")
    for p in refused:
        print(f"- refused: {refusals([p], file.max_gpu_hours)[0]}")
    over = refusals(affordable, file.max_gpu_hours)
    for line in over:
        print(f"REFUSED: {line}", file=sys.stderr)
    return 1 if refused or over else 0
