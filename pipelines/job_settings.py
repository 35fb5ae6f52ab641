"""What the stages of a scale of experiments are made of: one file for each of their reasons to run again.

A stage depends on a file of ``runs/<scale>/settings`` that holds what it is made of and nothing else, so that
a number changed in experiments.yaml makes only those runs stale whose number it is.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from rlvr.engines.jobs.evaluation import REVISED, evaluation_path, evaluation_settings, references_of
from rlvr.engines.jobs.experiments import Experiment, Experiments
from rlvr.storage import atomic_dir, write_json, write_text

PAPERS = ("nfpo", "ibpo", "mpo")
#: Of an experiment, what changes neither the job nor what it is trained on.
BESIDE_THE_JOB = {"paper", "needs", "seeds", "evaluation", "expected"}


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
    return [
        file.get(f"{name}-{arm}")
        for paper, methods in REVISED.items()
        for name in analysed(file, paper)
        for arm, _ in methods.values()
        if arm in file.settings[name].run
    ]


def settings_files(experiment: Experiment) -> dict[str, Any]:
    """Name in the folder of an experiment: what that file holds."""
    values = experiment.model_dump(mode="json")
    lengths = ("max_", "correction_")
    data = {key: value for key, value in values["data"].items() if not key.startswith(lengths)}
    files = {
        "training.json": {
            key: value
            for key, value in values.items()
            # a block that an arm does not have is no setting of it, whenever such blocks came to be
            if key not in BESIDE_THE_JOB and not (key == "self_correction" and value is None)
        },
        "data.json": data | {"validation": values["validation"]["benchmarks"]},
    }
    for seed in experiment.seeds:
        files[evaluation_path(experiment, seed).name] = evaluation_settings(experiment, seed)
        if references_of(experiment) is not None:
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
                (write_json if path.suffix == ".json" else _write_yaml)(path, values)


def revision_settings(experiment: Experiment, seed: int) -> dict[str, Any]:
    """What :mod:`rlvr.evaluation.revisions` is asked: as many references beside each sample as in training; a
    prompt and its revision as long as there."""
    data, where = experiment.data, f"runs/{experiment.scale}/evaluate/{experiment.name}/seed{seed}"
    return {
        "evaluation_file": str(evaluation_path(experiment, seed)),
        "samples_file": f"{where}/samples.parquet",
        "references": references_of(experiment),
        "longest": data.max_correction_prompt_length,
        "max_tokens": data.max_response_length,
        "context": data.correction_context,
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
        raise ValueError(
            f"model={model!r}: allowed is a folder with {wanted}: hf download {wanted} --local-dir {model}; "
            "RLVR_MODELS names the folder around it, models where it is unset"
        )
    place = {"root": "/".join([".."] * len(out.parent.parts)), "scale_file": str(out)}
    place |= {"model": str(Path(model).absolute()), "name": wanted}
    _write_yaml(out, base_settings(file, name) | place)
