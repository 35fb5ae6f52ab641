"""The plan of several experiments as text: a table, its sum, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from pydantic import ValidationError

from rlvr.config import fault_lines
from rlvr.engines.jobs.experiments import Experiment
from rlvr.engines.jobs.hardware import CARDS
from rlvr.engines.jobs.plan import HIGH, LOW, Plan
from rlvr.engines.jobs.sections import Hardware


def on_hardware(experiment: Experiment, gpu: str | None, gpus: int | None) -> Experiment:
    """The experiment on other cards or another number of them; whether its sizes divide is checked anew.

    Raises:
        ValueError: no such card, or a number that does not fill nodes of 8.
    """
    hardware = experiment.hardware
    if gpu is not None and gpu not in CARDS:
        raise ValueError(f"--gpu {gpu!r}: allowed are {', '.join(CARDS)}")
    if gpus is not None and (gpus < 1 or (gpus > 8 and gpus % 8)):
        raise ValueError(f"--gpus {gpus}: allowed are 1 to 8, and multiples of 8")
    changed = {"gpu": gpu or hardware.gpu}
    if gpus is not None:
        changed |= {"gpus_per_node": min(gpus, 8), "nodes": max(1, gpus // 8)}
    changed = hardware.model_dump() | changed
    try:
        return Experiment.model_validate(
            experiment.model_dump() | {"hardware": Hardware(**changed).model_dump()}
        )
    except ValidationError as error:
        where = f"{experiment.name} on {changed['nodes'] * changed['gpus_per_node']} x {changed['gpu']}"
        raise ValueError(f"{where}:\n{fault_lines(error, 'together')}") from None


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


def summary(plans: Sequence[Plan], refused: Sequence[Plan] = ()) -> list[str]:
    """What the plans add up to, without those that are ``refused``, and by which assumptions."""
    names = {p.name for p in refused}
    allowed = [p for p in plans if p.name not in names]
    lines = [_sum(plans, "experiments that verl can run")]
    if refused:
        lines.append(_sum(allowed, "of them within max_gpu_hours.experiment"))
    return [
        *lines,
        f"low to high: {LOW.flops:.0%} to {HIGH.flops:.0%} of the peak FLOPs in training, "
        f"{LOW.bandwidth:.0%} to {HIGH.bandwidth:.0%} of the bandwidth and {1e3 * LOW.token:.0f} to "
        f"{1e3 * HIGH.token:.0f} ms a token in writing, {LOW.step:.0f} to {HIGH.step:.0f} s around a step, "
        "and the expected response lengths of the scale file; the model is in lib/rlvr/engines/jobs/plan.py",
    ]


def _sum(plans: Sequence[Plan], what: str) -> str:
    total = [sum(p.gpu_hours[end] * p.seeds for p in plans) for end in (0, 1)]
    once = [sum(p.gpu_hours[end] for p in plans) for end in (0, 1)]
    return f"{len(plans)} {what}: {_band(*once)} GPU-hours with one seed each, {_band(*total)} with all seeds"


def _band(low: float, high: float) -> str:
    return f"{_short(low)} - {_short(high)}"


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"
