"""How far a job is: by its log while it runs, by its files when it counts."""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

#: verl's console logger: ``step:3 - actor/pg_loss:0.1 - ...``, with Ray's ``(TaskRunner pid=1) `` in front.
STEP = re.compile(r"(?:^|\s)step:(?P<step>\d+)(?P<rest>(?: - \S+:.*)?)$")
METRIC = re.compile(r" - (?P<name>[^\s:]+):(?P<value>\S+)")
SHOWN = {"critic/score/mean": "reward", "response_length/mean": "length"}
MARK = "latest_checkpointed_iteration.txt"  # verl writes the last complete checkpoint's step here


def parse_step(line: str) -> tuple[int, dict[str, float]] | None:
    """(step, metrics) of a line of verl's console logger; None of any other line."""
    match = STEP.search(line.rstrip())
    if match is None:
        return None
    metrics = {}
    for item in METRIC.finditer(match["rest"]):
        try:
            metrics[item["name"]] = float(re.sub(r"^np\.float\d+\((.*)\)$", r"\1", item["value"]))
        except ValueError:
            continue
    return int(match["step"]), metrics


@dataclass
class Progress:
    """Turns log lines into ``step 37 of 500 · 168 s a step · about 21 h 36 min left``."""

    steps: int
    reached: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=5))

    def line(self, text: str) -> str | None:
        """What to show for a line of the log; None if it is no step."""
        found = parse_step(text)
        if found is None:
            return None
        step, metrics = found
        self.reached = max(self.reached, step)
        if taken := metrics.get("timing_s/step"):
            self.seconds.append(taken)
        parts = [f"step {step} of {self.steps}"]
        if self.seconds:
            pace = sorted(self.seconds)[len(self.seconds) // 2]
            parts += [f"{pace:.0f} s a step", f"about {duration(pace * max(0, self.steps - step))} left"]
        parts += [f"{label} {metrics[name]:.4g}" for name, label in SHOWN.items() if name in metrics]
        return " · ".join(parts)


def duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours / 24:.1f} days"


def checkpoint_step(folder: str | Path) -> int:
    """Step of the last complete checkpoint in ``folder``; 0 if there is none.

    A mark that names a checkpoint which is not there, or is half written, counts as none.
    """
    folder = Path(folder)
    try:
        step = int((folder / MARK).read_text().strip())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return 0
    return step if (folder / f"global_step_{step}" / "actor").is_dir() else 0


def metrics_step(*files: str | Path) -> int:
    """Last step in verl's metrics files, ``{"step": ..., "data": ...}`` a line; half a line is left out."""
    last = 0
    for file in map(Path, files):
        if not file.is_file():
            continue
        for line in file.read_text(errors="replace").splitlines():
            try:
                last = max(last, int(json.loads(line)["step"]))
            except (ValueError, KeyError, TypeError):
                continue
    return last
