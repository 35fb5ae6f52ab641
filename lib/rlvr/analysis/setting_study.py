"""One setting of a file of experiments as a :class:`~rlvr.analysis.study.Study`.

What the arms of a setting share stands in the study's sections; what an arm changes (``change``) in its
recipe. verl's rollouts are of the same step, so that there is no lag. Benchmarks stand in for held-out sets.
An ablation that was not run to its end is left out and says why; an arm of the comparison is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from rlvr.analysis.study import Labels, Study
from rlvr.analysis.wording import LANGUAGE_MODELS, Wording
from rlvr.config import Ablations, Evaluate, Recipe, Train
from rlvr.config_mtp import Critic, Mtp, Sampling
from rlvr.engines.jobs import sections
from rlvr.engines.jobs.command import folder
from rlvr.engines.jobs.evaluation import REVISED, evaluation_settings, model_folder
from rlvr.engines.jobs.experiments import Experiment, Experiments, Setting
from rlvr.engines.jobs.progress import checkpoint_step
from rlvr.engines.jobs.sections import Modules, Update
from rlvr.problems.benchmarks.catalogue import get_benchmark
from rlvr.registry import suggest
from rlvr.reporting.claims_of_models import DECLARED_OF_MODELS
from rlvr.storage import read_json

#: Of a paper, arm of the experiments: what analyses call it.
NAMES: Mapping[str, Mapping[str, str]] = {
    "nfpo": {"dppo": "dppo_tv"},
    "ibpo": {},
    "mpo": {"grpo": "grpo_4"},
}
BASE = "base"  # the untrained model, among the samples
NOT_BEGUN = "it was not run"


def of_setting(file: Experiments, setting: str | None, root: str | Path = "runs") -> Study:
    """The arms of ``setting`` that verl can run; of its ablations those that are trained and evaluated.

    Args:
        root: folder of the runs.

    Raises:
        ValueError: no such setting, one whose paper's analysis the file does not describe, an arm of the
            comparison that is not run, two arms of one name.
    """
    analysed = [name for name, one in file.settings.items() if one.paper in file.analysis]
    if setting is None:
        raise ValueError(f"setting=None: allowed with experiments are {', '.join(analysed)}")
    if setting not in file.settings:
        raise ValueError(f"setting={suggest(setting, analysed)}")
    whole = file.settings[setting]
    if setting not in analysed:
        raise ValueError(
            f"setting={setting!r} is of paper {whole.paper}, of which `analysis` in {file.scale_file} says "
            f"nothing; allowed are {', '.join(analysed)}"
        )
    analysis, names = file.analysis[whole.paper], NAMES[whole.paper]
    runs = _Runs(file, setting, Path(root))
    arms = tuple(names.get(arm, arm) for arm in analysis.arms)
    for arm in analysis.arms:
        if arm not in whole.run:
            raise ValueError(
                f"settings.{setting}.run lacks {arm!r}, which analysis.{whole.paper}.arms compares with the "
                "others"
            )
        if needs := runs.experiments[names.get(arm, arm)].needs:
            raise ValueError(f"{setting}-{arm} cannot be run by verl yet; it needs {needs}")
    rest = [arm for arm in runs.experiments if arm not in arms]
    left_out = {arm: why for arm in rest if (why := runs.fault(arm))}
    left_out |= {method: why for method in runs.revised if (why := runs.not_revised(method))}
    first = runs.experiments[arms[-1]]
    return Study(
        scale=f"{file.scale}/{setting}",
        embedded=False,
        seeds=whole.seeds,
        arms=arms,
        ablations=Ablations(arms=tuple(arm for arm in rest if arm not in left_out), lag=0),
        left_out=left_out,
        recipes={arm: _recipe(experiment) for arm, experiment in runs.experiments.items()},
        train=_train(whole),
        evaluate=_evaluate(first),
        dynamics=analysis.dynamics,
        report=analysis.report,
        model=whole.model,
        problems=whole.data,
        penalties=_penalties(whole.update),
        base=(BASE,) if analysis.base else (),
        records=whole.records.responses > 0,
        tokenizers=(str(model_folder(first, whole.seeds[0], str(root))), whole.model),
        words=_words(whole, {arm: runs.experiments[arm] for arm in arms}),
        tests=DECLARED_OF_MODELS,
        run_folder=runs.folder,
        sample_files=runs.sample_files,
        remedy=runs.remedy,
        paper=whole.paper,
        revised=tuple(method for method in runs.revised if method not in left_out),
        reach=analysis.reach,
    )


class _Runs:
    """Where the runs of a setting are, and what is missing of them."""

    def __init__(self, file: Experiments, setting: str, root: Path) -> None:
        self.scale, self.setting, self.root = file.scale, setting, root
        self.seeds = file.settings[setting].seeds
        self.graph = PurePosixPath(file.scale_file).with_name("dvc.yaml")
        self.paper = file.settings[setting].paper
        self.experiments: dict[str, Experiment] = {}
        names = NAMES[self.paper]
        for arm in file.settings[setting].run:
            name = names.get(arm, arm)
            if name in self.experiments:
                raise ValueError(f"settings.{setting}.run: two arms are called {name!r}; allowed is one")
            self.experiments[name] = file.get(f"{setting}-{arm}")
        methods = REVISED.get(self.paper, {}).items()
        self.revised = {method: arm for method, (arm, _) in methods if arm in self.experiments}

    def experiment(self, arm: str) -> Experiment:
        if arm not in self.experiments:
            raise ValueError(f"arm={suggest(arm, self.experiments)} of settings.{self.setting}.run")
        return self.experiments[arm]

    def folder(self, arm: str, seed: int, lag: int) -> Path:
        return self.root / self.scale / "train" / self.experiment(arm).name / f"seed{seed}" / f"lag{lag}"

    def sample_files(self, arm: str) -> list[tuple[Path, Labels]]:
        if arm == BASE:
            where = self.root / self.scale / "evaluate" / f"{self.setting}-{BASE}"
            return [(where / "samples.parquet", {"arm": arm, "seed": 0, "lag": 0})]
        kind, of = ("revise", self.revised[arm]) if arm in self.revised else ("evaluate", arm)
        where = self.root / self.scale / kind / self.experiment(of).name
        return [
            (where / f"seed{seed}" / "samples.parquet", {"arm": arm, "seed": seed, "lag": 0})
            for seed in self.seeds
        ]

    def remedy(self, what: str, arm: str, seed: int | None) -> str:
        tables = self.graph.parent / self.paper / self.graph.name
        if arm == BASE:
            return f"dvc repro {tables}:{BASE}@{self.setting}"
        if arm in self.revised:
            return f"dvc repro {tables}:revise@{self.experiment(self.revised[arm]).name}-{seed}"
        experiment = self.experiment(arm)
        if what == "records" and not experiment.records.responses:
            return f"settings.{self.setting}.records.responses is 0: none are kept"
        stage = "evaluate" if what == "evaluate" else "train"
        text = f"dvc repro {self.graph}:{stage}@{experiment.name}-{seed}"
        if what == "train" and seed is not None:
            checkpoints = Path(folder(experiment, seed, str(self.root))) / "checkpoints"
            if reached := checkpoint_step(checkpoints):
                text += f" (its job has saved step {reached} of {experiment.update.steps})"
        return text

    def not_revised(self, method: str) -> str | None:
        """What a method at test time lacks; None if nothing."""
        for path, labels in self.sample_files(method):
            if not path.is_file():
                seed = labels["seed"]
                return f"samples of seed {seed} are not revised: {self.remedy('evaluate', method, seed)}"
        return None

    def fault(self, arm: str) -> str | None:
        """What an arm lacks to be compared, in words; None if nothing."""
        if needs := self.experiment(arm).needs:
            return f"verl cannot run it yet; it needs {needs}"
        files = {labels["seed"]: path for path, labels in self.sample_files(arm)}
        if not any(self.folder(arm, seed, 0).exists() or files[seed].exists() for seed in self.seeds):
            return f"{NOT_BEGUN}: {self.remedy('evaluate', arm, self.seeds[0])}"
        for seed in self.seeds:
            summary = self.folder(arm, seed, 0) / "summary.json"
            if not summary.is_file():
                return f"seed {seed} is not trained: {self.remedy('train', arm, seed)}"
            done = read_json(summary)
            if done["reached_step"] != done["requested_steps"]:
                return (
                    f"seed {seed} reached step {done['reached_step']} of {done['requested_steps']}: "
                    f"{self.remedy('train', arm, seed)}"
                )
            if not files[seed].is_file():
                return f"seed {seed} is not evaluated: {self.remedy('evaluate', arm, seed)}"
        return None


def _train(setting: Setting) -> Train:
    """What the arms share, in the words of a scale file."""
    rollout, update = setting.rollout, setting.update
    n = rollout.responses_per_prompt
    minibatches = rollout.prompts_per_step * n // update.minibatch_responses
    return Train(
        steps=update.steps,
        prompts_per_step=rollout.prompts_per_step,
        group_size=n,
        minibatches=minibatches,
        lags=(0,),
        lr=update.lr,
        schedule=update.schedule,
        warmup_ratio=update.warmup_ratio,
        min_lr_ratio=update.min_lr_ratio,
        betas=update.betas,
        weight_decay=update.weight_decay,
        grad_clip=update.grad_clip,
        temperature=rollout.temperature,
        max_new_tokens=setting.data.max_response_length,
        eval_every=setting.validation.every,
        eval_problems=sum(get_benchmark(name).count for name in setting.validation.benchmarks),
        checkpoint_every=setting.checkpoints.every,
        records_per_step=setting.records.responses // minibatches * minibatches,
        **_own(update),
    )


def _own(update: Update) -> dict[str, str]:
    """What a recipe may say itself (``rlvr.engines.local.methods.OWN``): verl divides by the unbiased
    deviation, and recomputes all log-probs or none."""
    return {
        "loss_agg_mode": update.loss_agg_mode,
        "advantage_std": "unbiased" if update.divide_by_std else "none",
        "recompute": "all" if update.recompute else "none",
    }


def _recipe(experiment: Experiment) -> Recipe:
    blocks = {
        "counterfactual": experiment.counterfactual,
        "self_correction": experiment.self_correction,
        "mtp": experiment.mtp and _mtp(experiment.mtp),
        "critic": experiment.critic and _critic(experiment.critic),
        "sampling": Sampling(dynamic=True, max_batches=None) if experiment.dynamic_sampling else None,
    }
    return Recipe(
        objective=experiment.objective,
        **experiment.parameters,
        **_own(experiment.update),
        **{name: block for name, block in blocks.items() if block is not None},
    )


def _mtp(modules: Modules) -> Mtp:
    """Not validated: modules that start from a given folder have no warm-up, which a recipe's have."""
    values = {name: getattr(modules, name) for name in Mtp.model_fields if hasattr(modules, name)}
    return Mtp.model_construct(**values)


def _critic(critic: sections.Critic) -> Critic:
    """verl's: a network of its own, one value head."""
    return Critic(lr=critic.lr, value_clip=critic.value_clip, gamma=critic.gamma, lam=critic.lam)


def _evaluate(experiment: Experiment) -> Evaluate:
    """pass@k for 1, 2, 4, ... up to half the samples of a problem, as in the tables of an evaluation.

    Not validated: a language model may be evaluated greedily, at temperature 0, an embedded policy may not.
    """
    evaluation = experiment.evaluation
    sampling = evaluation_settings(experiment, experiment.seeds[0])["sampling"]
    ks = [2**i for i in range(evaluation.samples.bit_length()) if 2**i <= max(1, evaluation.samples // 2)]
    return Evaluate.model_construct(
        samples=evaluation.samples,
        temperature=evaluation.temperature,
        pass_k=tuple(ks),
        seed=sampling["seeds"][0],
    )


def _penalties(update: Update) -> str:
    weights = {"KL": update.kl_coef, "entropy": update.entropy_coef}
    return ", ".join(f"{name} {weight:g}" for name, weight in weights.items() if weight) or "none"


def _words(setting: Setting, arms: Mapping[str, Experiment]) -> Wording:
    """With what an arm of the comparison changes in the shared settings."""
    shared, notes = _own(setting.update), [LANGUAGE_MODELS.settings]
    if setting.update.epochs > 1:
        notes.append(f"Every rollout batch is gone through {setting.update.epochs} times.")
    changed = {
        arm: ", ".join(f"{k}={v}" for k, v in _own(one.update).items() if v != shared[k])
        for arm, one in arms.items()
    }
    if told := "; ".join(f"{arm} has {what}" for arm, what in changed.items() if what):
        notes.append(f"Against what is shared: {told}.")
    return replace(LANGUAGE_MODELS, settings=" ".join(notes))
