"""Checks of the machine: disk, memory, cores, thread variables, GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlvr.doctor.finding import Finding

GB = 1e9
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # as in the Makefile


@dataclass(frozen=True)
class Needs:
    """What a scale takes, in bytes: below runs, in DVC's cache, of memory; and whether it needs GPUs."""

    scale: str
    runs: float
    cache: float
    memory: float
    gpus: int = 0
    workers: int = 1  # processes side by side


#: Finished folders as measured, with room for what is written on the way; ``overnight`` three times laptop's,
#: whose seeds it has three times. Memory: a process with torch and transformers loaded holds 0.6 GB; a job of
#: scale ``cluster`` 7.3 GB (docs/cluster-cpu.md).
MEASURED = {
    "smoke": Needs("smoke", 0.1 * GB, 0.2 * GB, 2.5 * GB, workers=2),
    "laptop": Needs("laptop", 0.3 * GB, 0.5 * GB, 2.5 * GB, workers=2),
    "overnight": Needs("overnight", 0.9 * GB, 1.5 * GB, 2.5 * GB, workers=2),
    "pretrained": Needs("pretrained", 0.2 * GB, 0.2 * GB, 3 * GB, workers=2),
    "cluster": Needs("cluster", 3 * GB, 0.5 * GB, 8 * GB, workers=2),
}


def disk(what: str, path: str, free: float, needed: float, scale: str) -> Finding:
    """Free bytes where a folder lies against what a scale puts there; ``what`` is runs or DVC's cache."""
    text = f"{free / GB:,.1f} GB free at {path}; scale {scale} takes about {needed / GB:,.1f} GB"
    if free >= needed:
        return Finding(what, "ok", text)
    # neither touches checkpoints of experiments, which are worth GPU-hours; dvc asks before it removes
    return Finding(what, "fault", text, "make clean" if what == "runs" else "dvc gc --workspace")


def memory(available: float, total: float, needs: Needs) -> Finding:
    text = f"{available / GB:,.1f} of {total / GB:,.1f} GB available"
    if not needs.memory:
        return Finding("memory", "ok", text)
    text += f"; scale {needs.scale} takes about {needs.memory / GB:,.1f} GB"
    if total < needs.memory:
        return Finding(
            "memory",
            "fault",
            f"{text}, more than there is; in a container raise its limit, else add swap",
            "sudo fallocate -l 8G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile && "
            "sudo swapon /swapfile",
        )
    if available < needs.memory:
        return Finding(
            "memory", "note", f"{text}: end what else runs here", "ps -eo pid,rss,args --sort=-rss | head"
        )
    return Finding("memory", "ok", text)


def cores(count: int, needs: Needs) -> Finding:
    if count < needs.workers:
        text = f"{count} for this process; scale {needs.scale} runs {needs.workers} processes side by side"
        return Finding("cores", "note", f"{text}, so it takes longer, with the same numbers")
    return Finding("cores", "ok", f"{count} for this process")


def threads(environment: Mapping[str, str]) -> Finding:
    """The variables that decide how sums are split, and with it the last digits of every number."""
    values = {name: environment.get(name) for name in THREADS}
    other = [name for name, value in values.items() if value != "1"]
    if not other:
        return Finding("threads", "ok", f"{', '.join(THREADS)} are 1, as `make` sets them")
    listed = ", ".join(f"{name} is {values[name] or 'not set'}" for name in other)
    return Finding(
        "threads",
        "note",
        f"{listed}: outside `make` last digits may differ, and processes side by side share too few cores",
        "export " + " ".join(f"{name}=1" for name in THREADS),
    )


@dataclass(frozen=True)
class Torch:
    """What torch says of GPUs: its build (CUDA version, None for a CPU build) and the cards it sees."""

    version: str
    cuda: str | None
    cards: Sequence[tuple[str, float]] = ()  # name, bytes


def gpu(torch: Torch | None, driver: str | None, needs: Needs, environment: str) -> Finding:
    """What the GPUs of this machine are good for here.

    Args:
        torch: None if it cannot be imported.
        driver: version of NVIDIA's driver, None if there is none.
        needs: of the scale; those with GPUs want as many as an experiment's node has.
        environment: name of the environment; in ``gpu`` a machine without one is a fault.
    """
    wanted = needs.gpus > 0 or environment == "gpu"
    if torch is None:
        return Finding("gpu", "fault", "torch cannot be imported", "python -c 'import torch'")
    if torch.cards:
        listed = ", ".join(f"{name} ({size / GB:.0f} GB)" for name, size in torch.cards)
        text = (
            f"{len(torch.cards)} seen by torch {torch.version} (CUDA {torch.cuda}, driver {driver}): {listed}"
        )
        if len(torch.cards) < needs.gpus:
            return Finding(
                "gpu",
                "note",
                f"{text}; experiments of scale {needs.scale} ask for {needs.gpus} a node",
                f"rlvr plan {needs.scale} --gpus {len(torch.cards)}",
            )
        if environment == "gpu":
            return Finding("gpu", "ok", text)
        return Finding("gpu", "ok", f"{text}; the local engine does not use them, verl and vLLM do")
    if driver is None:
        if wanted:
            return Finding(
                "gpu",
                "fault",
                "no NVIDIA driver: what trains on GPUs starts on a machine that has one (docs/cluster.md)",
                "rlvr job submit EXPERIMENT --address http://HEAD:8265",
            )
        return Finding("gpu", "ok", "none, and none is needed: scales smoke, laptop, cluster use the CPU")
    if torch.cuda is None:
        text = f"driver {driver}, but torch {torch.version} is a build for CPU and sees no GPU"
        if wanted:
            return Finding(
                "gpu", "fault", text, f"pip install --force-reinstall torch=={torch.version.split('+')[0]}"
            )
        return Finding("gpu", "ok", f"{text}; environment {environment} needs none")
    text = f"driver {driver} is there, torch {torch.version} (CUDA {torch.cuda}) sees no GPU: the driver is "
    text += "too old for it, or CUDA_VISIBLE_DEVICES hides all"
    return Finding(
        "gpu",
        "fault" if wanted else "note",
        text,
        "nvidia-smi && echo CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES",
    )
