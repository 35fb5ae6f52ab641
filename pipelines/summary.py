"""The first and the last lines of `make repro`: what will be done; where the results are, how long it took.

python -m pipelines.summary --start laptop     # before
python -m pipelines.summary laptop             # after

A scale with an evaluation.yaml in its folder (`pretrained`) has samples and an accuracy table for a result;
one with an experiments.yaml (`paper`, `one_gpu`) has those of each run, and starts nothing that is not
confirmed; every other one has a report.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from rlvr.config import load_scale
from rlvr.storage import read_json, write_json

START = Path(".work/started.json")
RWLOCK = Path(".dvc/tmp/rwlock")


def mend_lock() -> bool:
    """Remove DVC's list of who reads and writes if a kill cut it short: DVC cannot start from half of it.

    DVC's own lock still keeps two runs apart.
    """
    if not RWLOCK.is_file():
        return False
    try:
        json.loads(RWLOCK.read_text() or "invalid")
    except ValueError:
        RWLOCK.unlink()
        return True
    return False


def own_file(scale: str, name: str) -> Path:
    return Path("pipelines/scales") / scale / name


def check(scale: str) -> None:
    """Everything about a scale that can be found wrong before the first stage.

    Raises:
        ValueError, FileNotFoundError, ImportError: what is wrong, not here, or not installed.
    """
    if own_file(scale, "evaluation.yaml").is_file():
        announce(scale)
        return
    if own_file(scale, "experiments.yaml").is_file():
        from pipelines.job_confirmation import check_whole_graph
        from rlvr.engines.jobs.experiments import load_experiments

        print(check_whole_graph(load_experiments(own_file(scale, "experiments.yaml"))), flush=True)
        return
    from rlvr.recipes import check_recipes

    own = own_file(scale, "params.yaml")
    check_recipes(load_scale(own if own.is_file() else "params.yaml"))
    if scale == "overnight":
        from pipelines.expected_time import expected_time

        print(expected_time(scale), flush=True)


def announce(scale: str) -> None:
    """Say how long the evaluation of a scale will take, where it has not been done already."""
    from rlvr.evaluation.engines import expected_time
    from rlvr.evaluation.requests import evaluation_of_file

    if _is_done(scale):
        return
    evaluation = evaluation_of_file(own_file(scale, "evaluation.yaml"))
    (policy,) = evaluation.policies
    print(f"{policy.name} on {', '.join(evaluation.benchmarks)}: loading and timing one batch", flush=True)
    print(f"  {expected_time(evaluation)} (less where a killed run goes on)", flush=True)


def _is_done(scale: str) -> bool:
    """Whether DVC would run nothing."""
    if not (Path("runs") / scale / "evaluate").is_dir():
        return False
    command = ["dvc", "status", "--quiet", str(own_file(scale, "dvc.yaml"))]
    return subprocess.run(command, capture_output=True).returncode == 0


def describe_evaluation(scale: str, seconds: float | None) -> str:
    """Where the samples and the accuracy of a scale are, and the accuracy.

    Raises:
        FileNotFoundError: there is no evaluation.
    """
    import pandas as pd

    folder = Path("runs") / scale / "evaluate"
    if not (folder / "accuracy.csv").is_file():
        raise FileNotFoundError(f"{folder}/accuracy.csv does not exist; `make repro SCALE={scale}` makes it")
    table = pd.read_csv(folder / "accuracy.csv").set_index("benchmark")
    count = len(pd.read_parquet(folder / "samples.parquet", columns=["problem"]))
    lines = [
        f"Samples:  {folder}/samples.parquet ({count} responses, each with its verdict)",
        f"Accuracy: {folder}/accuracy.csv, explained in {folder}/notebook.ipynb",
        table.to_string(),
    ]
    return "\n".join(lines + _took(seconds))


def describe_experiments(scale: str, seconds: float | None) -> str:
    """Where the runs of a scale of experiments are, and the accuracy of those that are evaluated.

    Raises:
        FileNotFoundError: no run is evaluated.
    """
    found = sorted((Path("runs") / scale / "evaluate").glob("*/seed*/accuracy.csv"))
    if not found:
        raise FileNotFoundError(f"runs/{scale}/evaluate holds no evaluated run; `make plan SCALE={scale}`")
    lines = [f"Trainings: runs/{scale}/train; accuracy of {len(found)} evaluated runs:"]
    return "\n".join([*lines, *(f"  {path}" for path in found), *_took(seconds)])


def describe(scale: str, seconds: float | None) -> str:
    """What ``reports/<scale>`` holds, as text.

    Raises:
        FileNotFoundError: there is no report.
    """
    folder = Path("reports") / scale
    page = folder / "report.html"
    if not page.is_file():
        raise FileNotFoundError(f"{page} does not exist; `make repro SCALE={scale}` makes it")
    artifacts, claims = read_json(folder / "artifacts.json"), read_json(folder / "claims.json")
    rendered = sum(row["status"] == "rendered" for row in artifacts)
    verdicts = Counter("not run" if row["status"] == "not_run" else row["verdict"] for row in claims)
    lines = [
        f"Report: {page.resolve().as_uri()}",
        f"  {rendered} of {len(artifacts)} tables and figures rendered, the rest listed as not run",
        f"  {len(claims)} claims: " + ", ".join(f"{n} {verdict}" for verdict, n in sorted(verdicts.items())),
        f"  also {folder}/report.md, tables/*.csv, figures/*.svg, artifacts.json, claims.json",
    ]
    return "\n".join(lines + _took(seconds))


def _took(seconds: float | None) -> list[str]:
    if seconds is None:
        return []
    return [f"  took {int(seconds // 60)} min {int(seconds % 60)} s, finished stages were not run again"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.summary", description=__doc__.split("\n")[0])
    parser.add_argument("scale")
    parser.add_argument("--start", action="store_true", help="note the time and say what is coming")
    args = parser.parse_args(argv)
    if args.start:
        if mend_lock():
            print("removed a DVC lock file that a killed run left half-written")
        try:
            check(args.scale)
        except (ValueError, FileNotFoundError, ImportError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        write_json(START, {"scale": args.scale, "time": time.time()})
        return 0
    started = read_json(START) if START.is_file() else {}
    seconds = time.time() - started["time"] if started.get("scale") == args.scale else None
    kinds = {"evaluation.yaml": describe_evaluation, "experiments.yaml": describe_experiments}
    tell = next((kinds[name] for name in kinds if own_file(args.scale, name).is_file()), describe)
    try:
        print("\n" + tell(args.scale, seconds))
    except FileNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
