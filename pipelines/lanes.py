"""Run a graph with the parts that do not need each other side by side, each by a `dvc repro` of its own.

    python -m pipelines.lanes dvc.yaml

DVC runs one stage after the other, and most stages keep one core busy: a notebook starts, imports, reads,
draws. The graphs of the papers meet only in the last stage, the report; until there each is a lane. In the
end a plain `dvc repro` goes over the whole graph, so that what is finished here is what DVC calls finished.

Several `dvc repro` in one repository are DVC's own feature: a lock on the repository while one of them looks
or writes, and a lock on each path while a stage runs.

A lane that fails ends the others: finished stages are kept, and an unfinished one goes on where it was.
Exit code: of the lane that failed, or of the last `dvc repro`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from pipelines.processes import PR_SET_PDEATHSIG

DVC = [sys.executable, "-m", "dvc", "--wait-for-lock"]
POLL = 0.2  # seconds


def lanes_of(graph_file: str) -> dict[str, list[str]]:
    """Targets of `dvc repro` for each part of the graph that shares no stage with another, by its name.

    The last stages, which nothing needs, hold the parts together and belong to none. A graph that does not
    fall apart without them is one lane.
    """
    import networkx as nx
    from dvc.repo import Repo

    repo = Repo()
    with repo.lock:
        graph = repo.index.graph  # edges go from a stage to those it needs
        asked = repo.stage.collect(graph_file)
    needed = set(asked).union(*(nx.descendants(graph, stage) for stage in asked))
    whole = graph.subgraph(needed)
    rest = whole.subgraph([stage for stage in whole if whole.in_degree(stage)])
    lanes = {}
    for part in nx.weakly_connected_components(rest):
        addresses = sorted(stage.addressing for stage in part)
        ends = sorted(stage.addressing for stage in part if not rest.in_degree(stage))
        name = _name(addresses)
        lanes[name if name not in lanes else f"{name} {len(lanes) + 1}"] = ends
    return dict(sorted(lanes.items()))


def _name(addresses: Iterable[str]) -> str:
    """The folder in the scale's folder that the lane's files have in common; its own file is NFPO's."""
    files = [PurePosixPath(address.rpartition(":")[0]) for address in addresses]
    folder = PurePosixPath(os.path.commonpath([file.parent for file in files]))
    return "/".join(folder.parts[3:]) or "nfpo"


class Lane:
    """One `dvc repro`; what it says is printed line by line behind its name."""

    def __init__(self, name: str, targets: list[str], width: int):
        self.name, self._label = name, f"{name:<{width}} | "
        self._process = subprocess.Popen(
            [*DVC, "repro", *targets],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
        self._reader = threading.Thread(target=self._print, daemon=True)
        self._reader.start()

    def _print(self) -> None:
        for line in self._process.stdout:
            if line.strip():
                sys.stdout.write(self._label + line.rstrip("\n") + "\n")
                sys.stdout.flush()

    def poll(self) -> int | None:
        return self._process.poll()

    def end(self) -> None:
        """Now, with the stage that it runs: a runner ends with its DVC."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join(timeout=5)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run_lanes(lanes: dict[str, list[str]]) -> int:
    """All lanes at once; 0, or the exit code of the first one that failed."""
    width = max(map(len, lanes))
    running = [Lane(name, targets, width) for name, targets in lanes.items()]
    try:
        while open_lanes := [lane for lane in running if lane.poll() is None]:
            if failed := _failed(running):
                names = ", ".join(lane.name for lane in open_lanes)
                print(f"{failed.name} failed; {names} is stopped, what is finished is kept", flush=True)
                break
            time.sleep(POLL)
        failed = _failed(running)
        return failed.poll() if failed else 0
    finally:
        for lane in running:
            lane.end()


def _failed(lanes: list[Lane]) -> Lane | None:
    return next((lane for lane in lanes if lane.poll()), None)


def main(argv: list[str] | None = None) -> int:
    (graph_file,) = sys.argv[1:] if argv is None else argv
    if not Path(graph_file).is_file():
        print(f"error: {graph_file} does not exist", file=sys.stderr)
        return 2
    try:
        lanes = lanes_of(graph_file)
        if len(lanes) > 1:
            print(f"side by side: {', '.join(lanes)}", flush=True)
            if code := run_lanes(lanes):
                return code
        return subprocess.run([*DVC, "repro", graph_file]).returncode
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the unfinished work", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
