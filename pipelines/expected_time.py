"""How long a scale will take, from what another one took on the machine that wrote its report.

Both scales are the same graph on the same models and problems; they differ in seeds and in how long they
train. So a stage that trains takes (seeds ratio) x (steps or budget ratio) as long, one that evaluates or
compares runs (seeds ratio), any other one as long as it did.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlvr.config import Scale, load_scale
from rlvr.storage import read_json

#: Last word of a kind of stage -> what its time grows with; any other kind grows with neither.
TRAINS = ("train", "ablate")
READS_RUNS = (
    "evaluate",
    "evaluate_ablations",
    "revise",
    "analysis",
    "training",
    "accuracy",
    "dynamics",
    "ablations",
)


def expected_seconds(
    stages: Mapping[str, float], of: Mapping[str, Scale], then: Mapping[str, Scale]
) -> float:
    """Seconds of the whole graph.

    Args:
        stages: kind of a stage, as in the report's table of costs -> seconds.
        of, then: the scale that took them, and the one to come; by the folder of the graph (``""``, ``ibpo``,
            ``mpo``, ``mpo/program``).
    """
    total = 0.0
    for kind, seconds in stages.items():
        folder, _, last = kind.rpartition("/")
        folder = folder if folder in of else ""
        total += seconds * _factor(last, of[folder], then[folder])
    return total


def _factor(last: str, of: Scale, then: Scale) -> float:
    seeds = len(then.seeds) / len(of.seeds)
    if last in TRAINS:
        longer = (then.train.budget or then.train.steps) / (of.train.budget or of.train.steps)
        return seeds * longer
    return seeds if last in READS_RUNS else 1.0


def scales_of(root: Path, scale: str) -> dict[str, Scale]:
    """Folder of a graph -> its scale; ``""`` is NFPO's."""
    folder = root / "pipelines/scales" / scale
    own = folder / "params.yaml"
    found = {"": load_scale(own if own.is_file() else root / "params.yaml")}
    for path in sorted(folder.glob("*/**/params.yaml")):
        found[path.parent.relative_to(folder).as_posix()] = load_scale(path)
    return found


def expected_time(scale: str, like: str = "laptop", root: Path = Path(".")) -> str:
    """One line for the start of a run.

    Raises:
        FileNotFoundError: the other scale has no report to tell its cost.
    """
    path = root / "reports" / like / "cost.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; `make repro SCALE={like}` writes it")
    stages = {row["stage"]: row["seconds"] for row in read_json(path) if row["stage"] != "all stages"}
    seconds = expected_seconds(stages, scales_of(root, like), scales_of(root, scale))
    return (
        f"scale {scale}: about {seconds / 3600:.1f} hours where {like} takes "
        f"{sum(stages.values()) / 60:.0f} minutes (reports/{like}/cost.json); what is done is not done again"
    )
