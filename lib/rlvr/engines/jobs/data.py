"""The parquet files of an experiment, from the public benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlvr.engines.jobs.command import data_files
from rlvr.engines.jobs.experiments import Experiment
from rlvr.engines.jobs.rows import check_dataset, write_dataset
from rlvr.problems.benchmarks import load_benchmark, load_training_set


def prepare(
    experiment: Experiment, root: Path, data_dir: str | None = None, force: bool = False
) -> Iterator[str]:
    """Write what is not there yet; yields a line per file.

    Raises:
        FileNotFoundError: a benchmark is not on this machine; says how to get it.
        ValueError: a file that is there is none of ours.
    """
    train, validation = data_files(experiment, str(root))
    data = experiment.data
    for path in map(Path, (train, *validation)):
        if path.is_file() and not force:
            yield f"{path}: {check_dataset(path)} problems, there already"
            continue
        if str(path) == train:
            problems = load_training_set(
                data.train, data.exclude, data_dir=data_dir, levels=data.levels, split=data.split
            )
            write_dataset(path, problems, "train", data.prompt_style)
        else:
            name = experiment.validation.benchmarks[validation.index(str(path))]
            problems = load_benchmark(name, data_dir)
            write_dataset(path, problems, "validation", data.prompt_style)
        yield f"{path}: {len(problems)} problems"
