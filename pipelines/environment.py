"""Environment variables of kernels: the caller's, without what would make a run depend on its user."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.request import WORK
from rlvr.notebook import repository_root

DROPPED = ("PYTHONSTARTUP", "JPY_SESSION_NAME", "VSCODE_PID", "MPLBACKEND")


def of_kernels(given: Mapping[str, str]) -> dict[str, str]:
    """What all kernels have in common."""
    kept = {name: value for name, value in given.items() if name not in DROPPED}
    return kept | {
        "PYTHONHASHSEED": "0",  # the order of sets
        "MPLCONFIGDIR": given.get("MPLCONFIGDIR", (repository_root() / WORK / "matplotlib").as_posix()),
        "COLUMNS": "110",
        # Not what the user asks Python to warn of, and not that a tracker was killed, on which nothing
        # depends: either would be in the published notebook.
        "PYTHONWARNINGS": "ignore:resource_tracker",
        # Two spinning threads and one busy core make a stage fifty times slower; and a sum's last bits
        # depend on how many threads share it. What runs side by side here are processes.
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    }
