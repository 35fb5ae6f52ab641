"""What the stages of a scale of experiments run beside the notebooks: ``pipelines/scales/paper/dvc.yaml``.

    python -m pipelines.job_graph write                           # jobs.yaml of every scale
    python -m pipelines.job_graph settings paper                  # runs/paper/settings
    python -m pipelines.job_graph data paper nfpo-1.7b-nfpo       # parquet files, and their hashes
    python -m pipelines.job_graph check paper nfpo-1.7b-nfpo 0    # before a training: may it start?
    python -m pipelines.job_graph merge paper nfpo-1.7b-nfpo 0    # the last checkpoint as a model
    python -m pipelines.job_graph base paper ibpo-32b MODEL       # the untrained model's evaluation file

What ``settings`` writes: :mod:`pipelines.job_settings`.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.job_confirmation import check_comparison, check_whole_graph, names_runs, words_of_dvc
from pipelines.job_settings import PAPERS, analysed, revised, runnable, write_base, write_settings
from pipelines.processes import die_with_dvc
from rlvr.engines.jobs.changed import check_unchanged
from rlvr.engines.jobs.command import data_files
from rlvr.engines.jobs.evaluation import model_folder
from rlvr.engines.jobs.experiments import Experiment, Experiments, load_experiments
from rlvr.engines.jobs.plan import plan, refusals
from rlvr.storage import atomic_dir, read_json, write_json, write_text

SCALES = Path("pipelines/scales")
FILE, LISTS = "experiments.yaml", "jobs.yaml"
HEADER = f"""\
# Written by `python -m pipelines.job_graph write` from {FILE} beside it: the experiments that verl can run,
# one run for each of their seeds, and by paper the settings whose arms are compared and those with ablations.
# For the dvc.yaml here and below; change {FILE}, then write this file anew.
"""


def load(scale: str) -> Experiments:
    """The experiments of a scale; FileNotFoundError if it has none."""
    return load_experiments(SCALES / scale / FILE)


def lists(file: Experiments) -> dict[str, Any]:
    """The values of ``jobs.yaml``."""
    found = runnable(file)
    compared = {paper: analysed(file, paper) for paper in PAPERS}
    ablated = {
        paper: [name for name in names if set(file.settings[name].run) > set(file.analysis[paper].arms)]
        for paper, names in compared.items()
    }
    return {
        "scale": file.scale,
        "root": file.root,
        "scale_file": file.scale_file,
        "experiments": [experiment.name for experiment in found],
        "runs": {
            f"{experiment.name}-{seed}": {
                "experiment": experiment.name,
                "seed": seed,
                "model": experiment.model.rpartition("/")[2],
            }
            for experiment in found
            for seed in experiment.seeds
        },
        "compared": {
            paper: {
                name: {"setting": name, "model": file.settings[name].model.rpartition("/")[2]}
                for name in names
            }
            for paper, names in compared.items()
        },
        "ablated": ablated,
        "revised": {
            f"{experiment.name}-{seed}": {"experiment": experiment.name, "seed": seed}
            for experiment in revised(file)
            for seed in experiment.seeds
        },
    }


def lists_text(file: Experiments) -> str:
    """``jobs.yaml``, a run a line."""
    values = lists(file)
    lines = [f"{key}: {values[key]}" for key in ("scale", "root", "scale_file")]
    for key in ("experiments", "runs", "compared", "ablated", "revised"):
        lines += [f"{key}:", *_block(values[key])]
    return HEADER + "\n".join(lines) + "\n"


def _block(values: dict[str, Any] | list[str], indent: str = "  ") -> list[str]:
    """Lines of a list of names, or of a mapping: of single items a line each, of others their block."""
    if isinstance(values, list):
        return [f"{indent}- {name}" for name in values]
    lines = []
    for name, item in values.items():
        if not item:
            lines.append(f"{indent}{name}: {'[]' if isinstance(item, list) else '{}'}")
        elif isinstance(item, dict) and not isinstance(next(iter(item.values())), dict):
            lines.append(f"{indent}{name}: {{{', '.join(f'{k}: {v}' for k, v in item.items())}}}")
        else:
            lines += [f"{indent}{name}:", *_block(item, indent + "  ")]
    return lines


def write_lists(folder: Path = SCALES) -> list[Path]:
    written = []
    for path in sorted(folder.glob(f"*/{FILE}")):
        write_text(path.with_name(LISTS), lists_text(load_experiments(path)))
        written.append(path.with_name(LISTS))
    return written


# --- stages ------------------------------------------------------------------------------------------------


def write_data(experiment: Experiment, root: Path) -> None:
    """The parquet files, written anew, and ``<experiment>.json`` beside them with their hashes.

    Experiments share these files, so that no stage owns them; whoever writes one again writes the same bytes.
    """
    from rlvr.engines.jobs.data import prepare

    for line in prepare(experiment, root, force=True):
        print(line)
    train, validation = data_files(experiment, str(root))
    hashes = {
        Path(name).name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in (train, *validation)
    }
    write_json(Path(train).with_name(f"{experiment.name}.json"), hashes)


def check_run(file: Experiments, experiment: Experiment, seed: int, root: Path) -> None:
    """Everything that forbids a training, before Ray is asked for anything.

    Raises:
        ValueError: it needs what verl cannot give, costs more than the scale file allows, was begun with
            other settings, is part of a whole graph that nobody confirmed, or is what a table lacks.
    """
    from rlvr.engines.jobs.jobs import Job

    job = Job(experiment, seed, root)
    check_unchanged(job)
    words = words_of_dvc()
    if words is not None and not names_runs(words) and not check_comparison(words, job):
        print(check_whole_graph(file, root=root))
    if refused := refusals([plan(experiment)], file.max_gpu_hours.model_copy(update={"total": 1e12})):
        raise ValueError("; ".join(refused))


def merge(experiment: Experiment, seed: int, summary: Path, out: Path) -> None:
    """verl's shards of the last checkpoint as one model of Hugging Face's format; complete or absent.

    Raises:
        ValueError: the checkpoint that the training's summary names is not there.
        subprocess.CalledProcessError: verl's merger failed, and has said why.
    """
    checkpoint = Path(read_json(summary)["checkpoint"])
    if not checkpoint.is_dir():
        raise ValueError(
            f"{checkpoint} does not exist: {experiment.name} of seed {seed} was trained elsewhere, or its "
            "checkpoints were removed"
        )
    with atomic_dir(out) as partial:
        command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
        command += ["--local_dir", str(checkpoint), "--target_dir", str(partial)]
        subprocess.run(command, check=True)
        if not (partial / "config.json").is_file():
            raise ValueError(f"verl's merger left no config.json of {checkpoint}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.job_graph", description=__doc__.splitlines()[0]
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("write", help=f"{LISTS} of every scale, from its {FILE}")
    for name, text, words in (
        ("settings", "what each experiment's stages are made of", ()),
        ("data", "the parquet files of an experiment", ("experiment",)),
        ("check", "whether a training may start", ("experiment", "seed")),
        ("merge", "the last checkpoint as a model", ("experiment", "seed")),
        ("base", "the untrained model's evaluation file", ("setting", "model")),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("scale")
        for word in words:
            action.add_argument(word, type=int if word == "seed" else str)
    options = parser.parse_args(arguments)
    die_with_dvc()
    try:
        _run(options)
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(error.cmd)} ended with status {error.returncode}", file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace) -> None:
    if options.action == "write":
        for path in write_lists():
            print(path)
        return
    file, runs = load(options.scale), Path("runs")
    if options.action == "settings":
        write_settings(file, runs / file.scale / "settings")
        return
    if options.action == "base":
        out = runs / file.scale / "base" / f"{options.setting}.yaml"
        write_base(file, options.setting, options.model, out)
        return
    experiment = file.get(options.experiment)
    if options.action == "data":
        write_data(experiment, runs.absolute())
    elif options.action == "check":
        check_run(file, experiment, options.seed, runs.absolute())
    else:
        summary = runs / file.scale / "train" / experiment.name / f"seed{options.seed}/lag0/summary.json"
        merge(experiment, options.seed, summary, Path(model_folder(experiment, options.seed)))


if __name__ == "__main__":
    sys.exit(main())
