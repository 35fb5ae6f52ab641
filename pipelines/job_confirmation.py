"""Nothing of GPU-hours is launched by accident.

One run, named, is a wish: ``dvc repro pipelines/scales/paper/dvc.yaml:train@nfpo-1.7b-nfpo-0``. Tables and
figures, named, start no training: what they lack is said. Anything that could mean a whole graph
(``make repro``, ``dvc repro`` on the file, ``-p``, ``-P``, ``--downstream``, globs) needs CONFIRM_GPU_HOURS,
at least as large as the high end of the plan of all runs that are not done. The limits of the scale file hold
in any case.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from rlvr.engines.jobs.command import folder
from rlvr.engines.jobs.experiments import Experiments
from rlvr.engines.jobs.plan import plan, refusals
from rlvr.engines.jobs.progress import checkpoint_step

if TYPE_CHECKING:
    from rlvr.engines.jobs.jobs import Job

VARIABLE = "CONFIRM_GPU_HOURS"
#: Options of `dvc repro` with which a named stage stays a named stage and what it depends on.
KEEP_TO_THE_TARGET = {"-f", "--force", "-s", "--single-item", "-q", "--quiet", "-v", "--verbose"}
KEEP_TO_THE_TARGET |= {"-k", "--keep-going", "-i", "--interactive", "--dry", "--no-run-cache", "--no-commit"}
ONE_RUN = re.compile(r"(?:.*:)?(?:data|train|merge|evaluate|base|revise)@[\w.-]+")
#: Stages that compare the runs of a setting.
COMPARISON = re.compile(r"(?:.*:)?(?:training|accuracy|dynamics|tables|ablations)@[\w.-]+")


def open_runs(file: Experiments, root: str | Path = "runs") -> dict[str, float]:
    """``<experiment>-<seed>``: high end of its plan in GPU-hours; of what verl can run and has not done."""
    found = {}
    for name in file.names:
        experiment = file.get(name)
        if experiment.needs:
            continue
        high = plan(experiment).gpu_hours[1]
        for seed in experiment.seeds:
            checkpoints = Path(folder(experiment, seed, str(root))) / "checkpoints"
            if checkpoint_step(checkpoints) != experiment.update.steps:
                found[f"{name}-{seed}"] = high
    return found


def check_whole_graph(
    file: Experiments, environment: Mapping[str, str] = os.environ, root: str | Path = "runs"
) -> str:
    """What running the graph as a whole will launch, in words.

    Raises:
        ValueError: it is not confirmed, or the limits of the scale file refuse a part of it.
    """
    runs = open_runs(file, root)
    if not runs:
        return f"every training of {file.scale} is done; what is missing are models and evaluations"
    total, limit = math.ceil(sum(runs.values())), file.max_gpu_hours
    graph = f"pipelines/scales/{file.scale}/dvc.yaml"
    what = f"the graph of {file.scale} launches {len(runs)} trainings, up to {total:,} GPU-hours"
    names = dict.fromkeys(name.rpartition("-")[0] for name in runs)
    over = refusals([plan(file.get(name)) for name in names], limit.model_copy(update={"total": math.inf}))
    if total > limit.total:
        over.append(f"together up to {total:,} GPU-hours, max_gpu_hours.total is {limit.total:,.0f}")
    given = environment.get(VARIABLE, "").strip()
    try:
        confirmed = float(given or 0) >= total
    except ValueError:
        raise ValueError(f"{VARIABLE}={given!r}: allowed is a number of GPU-hours") from None
    if over or not confirmed:
        whole = f"make repro SCALE={file.scale} {VARIABLE}={total}"
        lines = [
            f"{what}; nothing was launched" + (f", {VARIABLE} is {given}" if given and not over else ""),
            f"what each costs:        make plan SCALE={file.scale}",
            f"one of them:            dvc repro {graph}:train@{next(iter(runs))}",
            "its model, its table:   the same with merge@, evaluate@",
            *(f"not as a whole:         {reason}" for reason in over),
            *([] if over else [f"all of them:            {whole}"]),
        ]
        raise ValueError("\n  ".join(lines))
    return f"{what}; confirmed by {VARIABLE}={given}"


def names_runs(words: Sequence[str]) -> bool:
    """Whether these words after ``dvc`` name single runs, and nothing that runs more."""
    command, targets, options = _parts(words)
    return (
        command == "repro"
        and bool(targets)
        and options <= KEEP_TO_THE_TARGET
        and all(ONE_RUN.fullmatch(target) for target in targets)
    )


def check_comparison(words: Sequence[str], job: Job) -> bool:
    """Whether DVC was asked by name for tables and figures, beside runs at most.

    Raises:
        ValueError: it was, and this training is not done; says what starts it.
    """
    command, targets, options = _parts(words)
    named = [target for target in targets if COMPARISON.fullmatch(target)]
    others = [
        target for target in targets if not COMPARISON.fullmatch(target) and not ONE_RUN.fullmatch(target)
    ]
    if command != "repro" or not named or others or not options <= KEEP_TO_THE_TARGET:
        return False
    if not job.state.done:
        run = f"{job.experiment.name}-{job.seed}"
        graph = f"pipelines/scales/{job.experiment.scale}/dvc.yaml"
        raise ValueError(
            f"{', '.join(named)}: seed {job.seed} of {job.experiment.name} is not trained, and tables and "
            f"figures start no training: dvc repro {graph}:evaluate@{run}"
        )
    return True


def _parts(words: Sequence[str]) -> tuple[str, list[str], set[str]]:
    """(command, targets, options) of the words after ``dvc``."""
    command, *rest = words or [""]
    return command, [w for w in rest if not w.startswith("-")], {w for w in rest if w.startswith("-")}


def words_of_dvc() -> list[str] | None:
    """What DVC was called with, if this process was started by one; None if by hand."""
    if "DVC_STAGE" not in os.environ:
        return None
    with suppress(psutil.Error):
        for process in psutil.Process().parents():
            words = process.cmdline()
            for at, word in enumerate(words[:4]):
                if Path(word).name in ("dvc", "dvc.exe"):
                    return words[at + 1 :]
    return []
