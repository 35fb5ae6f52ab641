"""What is known of a job between two commands: one JSON file, written as a whole, without secrets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rlvr.engines.jobs.progress import checkpoint_step, metrics_step
from rlvr.engines.jobs.redaction import redact_all
from rlvr.storage import read_json, write_json


class JobState:
    """``runs/<scale>/jobs/<experiment>-s<seed>.json``.

    An attempt is written before it is submitted, under an id of our own choosing: whoever is killed in
    between finds the job by that id, and nothing is submitted twice.
    """

    def __init__(self, path: Path, values: dict[str, Any]):
        self.path, self.values = path, values

    @classmethod
    def load(cls, path: str | Path, **new: Any) -> JobState:
        path = Path(path)
        if path.is_file():
            try:
                return cls(path, read_json(path) | new)
            except (ValueError, TypeError):
                raise ValueError(
                    f"{path} is not what `rlvr job` wrote: move it away, then submit again"
                ) from None
        return cls(path, {"attempts": [], **new})

    @property
    def attempts(self) -> list[dict[str, Any]]:
        return self.values["attempts"]

    @property
    def last(self) -> dict[str, Any] | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def reached(self) -> int:
        """Step of the last complete checkpoint."""
        return checkpoint_step(self.values["checkpoints"])

    @property
    def logged(self) -> int:
        """Last step whose metrics are on the disk."""
        return metrics_step(*(attempt["metrics"] for attempt in self.attempts))

    @property
    def done(self) -> bool:
        return self.reached == self.values["steps"]

    def new_attempt(self, folder: str) -> dict[str, Any]:
        number = len(self.attempts) + 1
        attempt = {
            "id": f"{self.values['job']}-{number}-{int(time.time())}".replace(".", "_"),
            "from_step": self.reached,
            # verl empties this file when it opens it: one for each attempt
            "metrics": f"{folder}/metrics-{number}.jsonl",
            "submitted": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self.attempts.append(attempt)
        self.save()
        return attempt

    def save(self) -> None:
        write_json(self.path, redact_all(self.values))
