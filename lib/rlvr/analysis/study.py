"""What an analysis reads, whatever trained the runs.

    study = study_of("params.yaml")                                             # a scale: embedded policies
    study = study_of("pipelines/scales/paper/experiments.yaml", "nfpo-1.7b")    # experiments: language models

The sections of a :class:`Study` are those of a scale file (:mod:`rlvr.config`). Of a setting of experiments
they say what its arms share (:mod:`rlvr.analysis.setting_study`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.analysis.wording import EMBEDDED, Wording
from rlvr.config import (
    Ablations,
    Dynamics,
    Evaluate,
    Model,
    Problems,
    Recipe,
    Report,
    Scale,
    Train,
    load_scale,
    load_yaml,
)
from rlvr.reporting.claims import DECLARED, DeclaredTest

if TYPE_CHECKING:
    from rlvr.engines.jobs.sections import Data, Reach

#: Columns that every sample of one file has beside those in it.
Labels = Mapping[str, Any]


@dataclass(frozen=True)
class Study:
    """Runs that are compared with each other, and how.

    Attributes:
        scale: what tables and claims call it: the scale, or ``<scale>/<setting>``.
        embedded: whether it is of embedded policies on generated problems; else of language models.
        seeds: of training; ablations may have some of them alone.
        arms: compared with each other; their names are those of :mod:`rlvr.reporting.style`.
        ablations: arms that differ from others in one thing, and the lag at which they are; a scale file of
            another paper than NFPO may have none.
        left_out: ablation -> why it is not among them.
        recipes, train, evaluate, dynamics, report: as in a scale file; ``dynamics`` may be None, as there.
        model, problems: what is trained, and on what: sections of a scale file, or a language model's name
            and the section of its training set.
        penalties: "none", or the weights of the KL and entropy terms.
        base: name of the untrained policy among the samples; empty where it was not evaluated.
        records: whether trainings keep per-token records.
        tokenizers: folders, or a name on the hub, that have the tokenizer; the first that exists is taken.
        words: what notes say of these runs.
        tests: of the claims, by id.
        run_folder: (arm, seed, lag) -> where training left its run.
        sample_files: arm -> its files of graded responses, with labels for those that have none.
        paper: of which it is.
        revised: of experiments, methods at test time whose revisions are among the samples.
        reach: of IBPO's experiments, the reward that has to be reached; a scale file has ``correcting``.
        remedy: ("train", "evaluate" or "records", arm, seed) -> how what is missing is made, in words.
    """

    scale: str
    embedded: bool
    seeds: tuple[int, ...]
    arms: tuple[str, ...]
    ablations: Ablations | None
    left_out: Mapping[str, str]
    recipes: Mapping[str, Recipe]
    train: Train
    evaluate: Evaluate
    dynamics: Dynamics | None
    report: Report
    model: Model | str
    problems: Problems | Data
    penalties: str
    base: tuple[str, ...]
    records: bool
    tokenizers: tuple[str, ...]
    words: Wording
    tests: Mapping[str, DeclaredTest]
    run_folder: Callable[[str, int, int], Path]
    sample_files: Callable[[str], list[tuple[Path, Labels]]]
    remedy: Callable[[str, str, int | None], str]
    paper: str = "nfpo"
    revised: tuple[str, ...] = ()
    reach: Reach | None = None

    @property
    def ablation_arms(self) -> tuple[str, ...]:
        return self.ablations.arms if self.ablations else ()

    def lags_of(self, arm: str) -> tuple[int, ...]:
        """Lags at which an arm was trained."""
        return (self.ablations.lag,) if self.ablations and arm in self.ablations.arms else self.train.lags

    def seeds_of(self, arm: str) -> tuple[int, ...]:
        """Seeds with which an arm was trained."""
        own = self.ablations.seeds if self.ablations and arm in self.ablations.arms else None
        return self.seeds if own is None else own


def study_of(params_file: str | Path, setting: str | None = None) -> Study:
    """The runs of a scale file, or those of one setting of a file of experiments.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a wrong file; a setting of a scale file, or none of a file of experiments.
    """
    raw = load_yaml(params_file) if Path(params_file).is_file() else None
    if isinstance(raw, dict) and "settings" in raw:
        from rlvr.analysis.setting_study import of_setting
        from rlvr.engines.jobs.experiments import load_experiments

        return of_setting(load_experiments(params_file), setting)
    if setting is not None:
        raise ValueError(f"setting={setting!r}: {params_file} is a scale file; allowed is None")
    return of_scale(load_scale(params_file))


def as_study(runs: Study | Scale) -> Study:
    """A scale's runs as a study; a study as it is."""
    return of_scale(runs) if isinstance(runs, Scale) else runs


def of_scale(scale: Scale) -> Study:
    """The arms of a scale of embedded policies; its sections as they are."""

    def sample_files(arm: str) -> list[tuple[Path, Labels]]:
        return [(scale.evaluation_folder(arm) / "samples.parquet", {})]

    def remedy(what: str, arm: str, seed: int | None) -> str:
        return {
            "train": "the training stage makes it",
            "evaluate": f"the evaluation of {arm!r} makes it",
            "records": "train.records_per_step says how many responses are kept",
        }[what]

    return Study(
        scale=scale.scale,
        embedded=True,
        seeds=scale.seeds,
        arms=scale.arms,
        ablations=scale.ablations,
        left_out={},
        recipes=scale.recipes,
        train=scale.train,
        evaluate=scale.evaluate,
        dynamics=scale.dynamics,
        report=scale.report,
        model=scale.model,
        problems=scale.problems,
        penalties="none",
        base=("base",),
        records=True,
        tokenizers=(str(scale.folder / "base/model"),),
        words=EMBEDDED,
        tests=DECLARED,
        run_folder=scale.run_folder,
        sample_files=sample_files,
        remedy=remedy,
        paper=scale.paper,
    )
