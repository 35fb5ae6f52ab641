"""Table 1 of NFPO from the evaluations of a scale's experiments.

    python -m pipelines.benchmark_table paper nfpo-1.7b --arms grpo dppo nfpo

Reads ``runs/<scale>/evaluate/<setting>-<arm>/seed<seed>/samples.parquet``, which the stages ``evaluate``
leave, and writes the bundle ``runs/<scale>/tables/<setting>``: the table as CSV, Markdown and JSON, every
cell with its interval.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from rlvr.analysis.benchmark_table import benchmark_table
from rlvr.engines.jobs.experiments import load_experiments
from rlvr.reporting.bundle import ArtifactMeta, save_table

COLUMNS = ["problem", "benchmark", "sample", "correct"]


def load(scale: str, setting: str, arms: Sequence[str], runs: Path) -> pd.DataFrame:
    """Graded responses of all arms and the seeds that were evaluated, columns ``arm`` and ``seed`` (of
    training) added.

    Raises:
        FileNotFoundError: an arm without evaluations; says which command makes one.
    """
    frames = []
    for arm in arms:
        folder = runs / scale / "evaluate" / f"{setting}-{arm}"
        files = sorted(folder.glob("seed*/samples.parquet"))
        if not files:
            raise FileNotFoundError(
                f"{folder} holds no evaluation: dvc repro pipelines/scales/{scale}/dvc.yaml:evaluate@"
                f"{setting}-{arm}-0"
            )
        for file in files:
            seed = int(file.parent.name.removeprefix("seed"))
            frames.append(pd.read_parquet(file, columns=COLUMNS).assign(arm=arm, seed=seed))
    return pd.concat(frames, ignore_index=True)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.benchmark_table", description=__doc__)
    parser.add_argument("scale")
    parser.add_argument("setting", help="such as nfpo-1.7b")
    parser.add_argument("--arms", nargs="+", default=["grpo", "dppo", "nfpo"], metavar="ARM")
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    options = parser.parse_args(words)
    try:
        file = load_experiments(f"pipelines/scales/{options.scale}/experiments.yaml")
        for arm in options.arms:
            file.get(f"{options.setting}-{arm}")
        samples = load(options.scale, options.setting, options.arms, options.runs)
        table = benchmark_table(samples, options.arms, options.confidence)
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    seeds = tuple(sorted(int(seed) for seed in samples["seed"].unique()))
    out = options.runs / options.scale / "tables" / options.setting
    save_table(
        out,
        table,
        ArtifactMeta(
            id="nfpo-tab1",
            title=f"Pass@1 of {options.setting} on {samples['benchmark'].nunique()} benchmarks",
            interval=f"{options.confidence:.0%} Student t over problems; average and gain: over seeds",
            notes="Mean over all samples of a problem, then over problems; every benchmark counts once in "
            "the average. With one training seed the intervals of average and gain are unknown.",
            stage="benchmark_table",
            scale=options.scale,
            notebook="notebooks/04_evaluate.ipynb",
            seeds=seeds,
            n=int(samples["problem"].nunique()),
            n_unit="problems",
        ),
    )
    print(table.map(lambda cell: cell.format() if hasattr(cell, "seeds") else str(cell)).to_string())
    print(f"in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
