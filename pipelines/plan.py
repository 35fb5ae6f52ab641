"""``make plan SCALE=paper``: what the experiments of a scale cost, before anything is launched.

    python -m pipelines.plan paper [--only 'nfpo-*'] [--gpu H100] [--gpus 8]

Exit status 1 if what can be run costs more than ``max_gpu_hours`` of the scale file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import pandas as pd

from rlvr.engines.jobs.experiments import Experiment, load_experiments
from rlvr.engines.jobs.hardware import CARDS
from rlvr.engines.jobs.plan import HIGH, LOW, Plan, plan, refusals
from rlvr.engines.jobs.sections import Hardware

SCALES = Path(__file__).parent / "scales"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.plan", description=__doc__.splitlines()[0])
    known = sorted(path.parent.name for path in SCALES.glob("*/experiments.yaml"))
    parser.add_argument("scale", help=f"one of {', '.join(known)}")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names of experiments, as in a shell")
    parser.add_argument("--gpu", choices=CARDS, help="another card than the scale's")
    parser.add_argument("--gpus", type=int, help="another number of GPUs, on one node up to 8")
    options = parser.parse_args(arguments)
    try:
        if options.scale not in known:
            raise ValueError(
                f"SCALE={options.scale!r} has no experiments.yaml: allowed are {', '.join(known)}"
            )
        file = load_experiments(SCALES / options.scale / "experiments.yaml")
        names = [name for name in file.names if fnmatch(name, options.only)]
        if not names:
            raise ValueError(f"--only {options.only!r} matches none of {', '.join(file.names)}")
        plans = [plan(_on(file.get(name), options.gpu, options.gpus)) for name in names]
    except (ValueError, FileNotFoundError) as error:
        print(f"plan: {error}", file=sys.stderr)
        return 2
    runnable = [p for p in plans if p.needs is None]
    print(table(plans).to_string(index=False))
    print()
    for line in summary(runnable):
        print(line)
    for reason in dict.fromkeys(p.needs for p in plans if p.needs):
        print(f"- not counted, needs {reason}: {', '.join(p.name for p in plans if p.needs == reason)}")
    affordable = [p for p in runnable if p.gpu_hours[1] <= file.max_gpu_hours.experiment]
    for p in runnable:
        if p not in affordable:
            print(f"- refused: {refusals([p], file.max_gpu_hours)[0]}")
    over = refusals(affordable, file.max_gpu_hours)
    for line in over:
        print(f"REFUSED: {line}", file=sys.stderr)
    return 1 if over else 0


def _on(experiment: Experiment, gpu: str | None, gpus: int | None) -> Experiment:
    """The experiment on other hardware; whether its sizes divide is checked anew."""
    hardware = experiment.hardware
    if gpus is not None and (gpus < 1 or (gpus > 8 and gpus % 8)):
        raise ValueError(f"--gpus {gpus}: allowed are 1 to 8, and multiples of 8")
    changed = {"gpu": gpu or hardware.gpu}
    if gpus is not None:
        changed |= {"gpus_per_node": min(gpus, 8), "nodes": max(1, gpus // 8)}
    changed = hardware.model_dump() | changed
    return Experiment.model_validate(experiment.model_dump() | {"hardware": Hardware(**changed).model_dump()})


def table(plans: Sequence[Plan]) -> pd.DataFrame:
    """One row per experiment; two numbers are the ends of a band, per seed."""
    return pd.DataFrame(
        {
            "experiment": p.name,
            "GPUs": f"{p.gpus} x {p.card}",
            "s/step": _band(*p.step_seconds),
            "hours": _band(*p.hours),
            "GPU-hours": _band(*p.gpu_hours),
            "GB/GPU": f"{max(p.memory) / 1e9:.0f} of {p.card_memory / 1e9:.0f}"
            + ("" if p.fits else " TOO MUCH"),
            "disk GB": f"{p.disk / 1e9:,.0f}",
            "tokens": _band(p.tokens[0] / 1e6, p.tokens[1] / 1e6) + " M",
            "seeds": p.seeds,
            "runs": "no" if p.needs else "yes",
        }
        for p in plans
    )


def summary(plans: Sequence[Plan]) -> list[str]:
    total = [sum(p.gpu_hours[end] * p.seeds for p in plans) for end in (0, 1)]
    once = [sum(p.gpu_hours[end] for p in plans) for end in (0, 1)]
    return [
        f"{len(plans)} experiments that verl can run: {_band(*once)} GPU-hours with one seed each, "
        f"{_band(*total)} with all seeds",
        f"low to high: {LOW.flops:.0%} to {HIGH.flops:.0%} of the peak FLOPs in training, "
        f"{LOW.bandwidth:.0%} to {HIGH.bandwidth:.0%} of the bandwidth and {1e3 * LOW.token:.0f} to "
        f"{1e3 * HIGH.token:.0f} ms a token in writing, {LOW.step:.0f} to {HIGH.step:.0f} s around a step, "
        "and the expected response lengths of the scale file; the model is in lib/rlvr/engines/jobs/plan.py",
    ]


def _band(low: float, high: float) -> str:
    return f"{_short(low)} - {_short(high)}"


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
