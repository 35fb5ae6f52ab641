"""Run one notebook so that its output folder is either complete or absent.

The order of events: check everything that can be checked without running; take the output's lock; run the
notebook with ``out`` pointing at a private staging folder; check that every cell ran, that the completion
marker was printed and that the expected files exist; only then move the folder, with the executed notebook in
it, to its place. Killed at any moment, it leaves the output absent and ``scratch`` for the next attempt.

    .work/stage/<slug>/            the attempt that runs now; emptied at the start of the next
    .work/partial/<slug>/<print>/  the notebook's `scratch`: unfinished work, kept until it is done
    .work/failed/<slug>.ipynb      what the last attempt showed, if it failed
    .work/locks/<slug>.lock
    runs/<scale>/timings/          seconds of finished stages (not a DVC output: they differ every time)
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat

from pipelines.diagnosis import diagnose
from pipelines.environment import of_kernels
from pipelines.kernel import run_cells
from pipelines.normalise import mask, normalise, secrets
from pipelines.processes import Watchdog, exclusive
from pipelines.progress import Reporter
from pipelines.request import WORK, Plan, Request, check
from rlvr.notebook import PROGRESS_VARIABLE
from rlvr.storage import read_json, write_json, write_text

LOCK_WAIT = 30.0  # seconds; an orphan of a killed run is gone long before


class StageFailed(RuntimeError):
    """The notebook ran and did not finish properly; its output folder was not touched. Exit code 1."""


def execute(request: Request, stream: Any = None) -> Path:
    """Run the notebook and put its complete output folder in place; returns that folder.

    Args:
        request: what to run; the current folder must lie within the repository.
        stream: where progress goes, stderr by default.

    Raises:
        BadInput: see :class:`BadInput`.
        StageFailed: see :class:`StageFailed`.
        pipelines.processes.Busy: another runner makes the same output.
    """
    stream = sys.stderr if stream is None else stream
    plan = check(request)
    os.chdir(plan.root)
    hidden = secrets(os.environ)
    with exclusive(WORK / "locks" / f"{plan.slug}.lock", str(plan.out), LOCK_WAIT) as lock:
        started, began = time.strftime("%Y-%m-%dT%H:%M:%S%z"), time.monotonic()
        shutil.rmtree(plan.staging, ignore_errors=True)
        plan.staged_out.mkdir(parents=True)
        resumed = _open_partial(plan)
        timing = _previous_timing(plan)
        try:
            cell_seconds = _run(plan, lock, hidden, stream, timing)
            _check_outputs(plan.staged_out, request.expect, plan.title)
        except StageFailed as error:
            raise StageFailed(mask(str(error), hidden)) from None
        _publish(plan)
        seconds = time.monotonic() - began
        write_json(
            plan.timing,
            {
                "stage": os.environ.get("DVC_STAGE", plan.title),
                "notebook": plan.title,
                "out": plan.out.as_posix(),
                "seconds": round(seconds, 3),
                "cell_seconds": cell_seconds,
                "resumed": resumed,
                "started": started,
                "parameters": plan.values,
            },
        )
        shutil.rmtree(plan.partial.parent, ignore_errors=True)
        shutil.rmtree(plan.staging, ignore_errors=True)
        plan.failed.unlink(missing_ok=True)
    print(f"{plan.title} -> {plan.out}: done in {_duration(seconds)}", file=stream)
    return plan.out


def _open_partial(plan: Plan) -> bool:
    """Keep unfinished work of exactly this request, remove any other of the same output."""
    if plan.partial.parent.is_dir():
        for other in plan.partial.parent.iterdir():
            if other.name != plan.partial.name:
                shutil.rmtree(other, ignore_errors=True)
    resumed = plan.uses_scratch and plan.partial.is_dir() and any(plan.partial.iterdir())
    if plan.uses_scratch:
        plan.partial.mkdir(parents=True, exist_ok=True)
    return resumed


def _run(
    plan: Plan, lock: int, hidden: dict[str, str], stream: Any, timing: list[float] | None
) -> list[float]:
    """Run the cells, write the executed notebook into the staging folder; returns seconds per cell."""
    values = {**plan.values, "out": plan.staged_out.as_posix()}
    if plan.uses_scratch:
        values["scratch"] = plan.partial.as_posix()
    environment = _environment(plan)
    count = sum(1 for cell in plan.notebook.cells if cell.cell_type == "code" and cell.source.strip()) + 1
    messages = plan.staging / "progress.jsonl"
    with Watchdog(lock) as watchdog, Reporter(plan.title, count, messages, stream, timing) as reporter:
        result = run_cells(plan.notebook, values, environment, plan.root, watchdog, reporter, plan.staging)
    replacements = {
        plan.staged_out.as_posix(): plan.out.as_posix(),
        plan.partial.as_posix(): plan.partial.parent.as_posix(),
        f"{plan.root.as_posix()}/": "",
    }
    executed = normalise(result.notebook, replacements=replacements, hidden=hidden)
    failure = diagnose(result, plan.title)
    if failure:
        write_text(plan.failed, nbformat.writes(executed) + "\n")
        notes = [failure, f"The notebook up to there: {plan.failed}"]
        if plan.uses_scratch and any(plan.partial.iterdir()):
            notes.append(f"Unfinished work is kept in {plan.partial}; the same command goes on from it")
        raise StageFailed("\n".join(notes))
    write_text(plan.staged_out / "notebook.ipynb", nbformat.writes(executed).rstrip("\n") + "\n")
    return reporter.cell_seconds


def _environment(plan: Plan) -> dict[str, str]:
    return of_kernels(os.environ) | {
        PROGRESS_VARIABLE: (plan.root / plan.staging / "progress.jsonl").as_posix(),
        # no startup files, no history
        "IPYTHONDIR": (plan.root / plan.staging / "ipython").as_posix(),
    }


def _check_outputs(out: Path, expect: Sequence[str], title: str) -> None:
    problems = []
    for name in expect:
        path = out / name
        if not path.exists():
            problems.append(f"{name} is missing")
        elif path.is_dir() and not any(path.iterdir()):
            problems.append(f"{name} is an empty folder")
        elif path.is_file() and path.stat().st_size == 0:
            problems.append(f"{name} is empty")
    if problems:
        has = ", ".join(sorted(p.name for p in out.iterdir() if p.name != "notebook.ipynb")) or "nothing"
        raise StageFailed(
            f"{title} ran to its end, but of the expected outputs {'; '.join(problems)} (it wrote {has}). "
            "Nothing was kept"
        )


def _publish(plan: Plan) -> None:
    """Put the finished folder in place; an earlier one goes in the same breath."""
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    old = plan.staging / "replaced"
    with suppress(FileNotFoundError):
        os.replace(plan.out, old)
    os.replace(plan.staged_out, plan.out)


def _previous_timing(plan: Plan) -> list[float] | None:
    """Seconds per cell of this stage's last run, or of the newest run of the same notebook at this scale."""
    candidates = sorted(plan.timing.parent.glob("*.json"), key=lambda p: p.stat().st_mtime, reverse=True)
    for path in sorted(candidates, key=lambda p: p != plan.timing):
        with suppress(OSError, ValueError, KeyError, TypeError):
            known = read_json(path)
            if known["notebook"] == plan.title and not known["resumed"]:
                return [float(s) for s in known["cell_seconds"]]
    return None


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"
