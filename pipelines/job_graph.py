"""What the stages of a scale of experiments run beside the notebooks: ``pipelines/scales/paper/dvc.yaml``.

    python -m pipelines.job_graph write                           # jobs.yaml of every scale
    python -m pipelines.job_graph settings paper                  # runs/paper/settings
    python -m pipelines.job_graph data paper nfpo-1.7b-nfpo       # parquet files, and their hashes
    python -m pipelines.job_graph check paper nfpo-1.7b-nfpo 0    # before a training: may it start?
    python -m pipelines.job_graph merge paper nfpo-1.7b-nfpo 0    # the last checkpoint as a model
    python -m pipelines.job_graph base paper ibpo-32b MODEL       # the untrained model's evaluation file

A stage depends on a file of ``settings`` that holds what it is made of and nothing else, so that a number
changed in experiments.yaml makes only those runs stale whose number it is.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pipelines.job_confirmation import check_comparison, check_whole_graph, names_runs, words_of_dvc
from pipelines.processes import die_with_dvc
from rlvr.engines.jobs.changed import check_unchanged
from rlvr.engines.jobs.command import data_files
from rlvr.engines.jobs.evaluation import evaluation_path, evaluation_settings, model_folder
from rlvr.engines.jobs.experiments import Experiment, Experiments, load_experiments
from rlvr.engines.jobs.plan import plan, refusals
from rlvr.storage import atomic_dir, read_json, write_json, write_text

SCALES = Path("pipelines/scales")
FILE, LISTS = "experiments.yaml", "jobs.yaml"
PAPERS = ("nfpo", "ibpo", "mpo")
REVISED = {"ibpo": "gspo"}  # paper: arm whose samples are revised at test time
#: Of an experiment, what changes neither the job nor what it is trained on.
BESIDE_THE_JOB = {"paper", "needs", "seeds", "evaluation", "expected"}
HEADER = f"""\
# Written by `python -m pipelines.job_graph write` from {FILE} beside it: the experiments that verl can run,
# one run for each of their seeds, and by paper the settings whose arms are compared and those with ablations.
# For the dvc.yaml here and below; change {FILE}, then write this file anew.
"""


def load(scale: str) -> Experiments:
    """The experiments of a scale; FileNotFoundError if it has none."""
    return load_experiments(SCALES / scale / FILE)


def runnable(file: Experiments) -> list[Experiment]:
    return [experiment for name in file.names if not (experiment := file.get(name)).needs]


def analysed(file: Experiments, paper: str | None = None) -> list[str]:
    """Settings, of one paper or of all, that verl can run with every arm that is compared."""
    return [
        name
        for name, setting in file.settings.items()
        if setting.paper in (file.analysis if paper is None else {paper} & set(file.analysis))
        and not setting.needs
        and set(file.analysis[setting.paper].arms) <= set(setting.run)
    ]


def revised(file: Experiments) -> list[Experiment]:
    """Experiments whose samples are revised at test time."""
    return [file.get(f"{name}-{arm}") for paper, arm in REVISED.items() for name in analysed(file, paper)]


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


def settings_files(experiment: Experiment) -> dict[str, Any]:
    """Name in the folder of an experiment: what that file holds."""
    values = experiment.model_dump(mode="json")
    lengths = ("max_", "correction_")
    data = {key: value for key, value in values["data"].items() if not key.startswith(lengths)}
    files = {
        "training.json": {key: value for key, value in values.items() if key not in BESIDE_THE_JOB},
        "data.json": data | {"validation": values["validation"]["benchmarks"]},
    }
    for seed in experiment.seeds:
        files[evaluation_path(experiment, seed).name] = evaluation_settings(experiment, seed)
        if experiment.name.endswith(f"-{REVISED.get(experiment.paper)}"):
            files[f"revision-s{seed}.json"] = revision_settings(experiment, seed)
    return files


def compared_settings(file: Experiments, name: str) -> dict[str, Any]:
    """What the tables and figures of a setting are made of, beside its runs."""
    setting = file.settings[name]
    values = setting.model_dump(mode="json", exclude={"expected", "needs"})
    values["arms"] = {arm: values["arms"][arm] for arm in setting.run}  # others may be inherited
    return {"setting": values, "analysis": file.analysis[setting.paper].model_dump(mode="json")}


def write_settings(file: Experiments, out: Path) -> None:
    """``<experiment>/{training.json, data.json, evaluation-s<seed>.yaml}``, and of settings whose arms are
    compared ``<setting>.json``, and ``<setting>-base.json`` where the untrained model is one of them; the
    folder as a whole."""
    with atomic_dir(out) as partial:
        for name in analysed(file):
            write_json(partial / f"{name}.json", compared_settings(file, name))
            if file.analysis[file.settings[name].paper].base:
                write_json(partial / f"{name}-base.json", base_settings(file, name))
        for experiment in runnable(file):
            for name, values in settings_files(experiment).items():
                path = partial / experiment.name / name
                if path.suffix == ".json":
                    write_json(path, values)
                    continue
                _write_yaml(path, values)


def revision_settings(experiment: Experiment, seed: int) -> dict[str, Any]:
    """What :mod:`rlvr.evaluation.revisions` is asked: one reference beside each sample, as in training; a
    prompt and its revision as long as there."""
    data, where = experiment.data, f"runs/{experiment.scale}/evaluate/{experiment.name}/seed{seed}"
    longest = data.max_correction_prompt_length
    room = data.max_response_length if data.correction_context is None else data.correction_context - longest
    return {
        "evaluation_file": str(evaluation_path(experiment, seed)),
        "samples_file": f"{where}/samples.parquet",
        "references": 1,
        "longest": longest,
        "max_tokens": min(data.max_response_length, room),
    }


def _write_yaml(path: Path, values: Any) -> None:
    yaml, text = YAML(typ="safe", pure=True), io.StringIO()
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = None, False
    yaml.dump(values, text)
    write_text(path, text.getvalue())


def base_settings(file: Experiments, name: str) -> dict[str, Any]:
    """What the untrained model of a setting is asked: what every arm is, without the model's folder."""
    experiment = file.get(f"{name}-{file.settings[name].run[0]}")
    values = evaluation_settings(experiment, experiment.seeds[0])
    return {key: value for key, value in values.items() if key not in ("root", "scale_file", "model", "name")}


def write_base(file: Experiments, name: str, model: str, out: Path) -> None:
    """The untrained model's evaluation file.

    Raises:
        ValueError: no folder of a model.
    """
    wanted = file.settings[name].model
    if not (Path(model) / "config.json").is_file():
        short = wanted.rpartition("/")[2]
        raise ValueError(
            f"model={model!r}: allowed is a folder with {wanted}; RLVR_MODELS names the folder that has it "
            f"as {short}: hf download {wanted} --local-dir $RLVR_MODELS/{short}"
        )
    place = {"root": "/".join([".."] * len(out.parent.parts)), "scale_file": str(out)}
    place |= {"model": str(Path(model).absolute()), "name": wanted}
    _write_yaml(out, base_settings(file, name) | place)


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
