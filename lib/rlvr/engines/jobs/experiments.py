"""What ``pipelines/scales/<scale>/experiments.yaml`` holds: every number with its source.

A setting is a model, its data and how it is trained; an arm is what is compared under it. Each arm that a
setting names in ``run`` is one experiment, ``<setting>-<arm>``. A value is written as

    lr: {value: 1.0e-6, source: release}

and a setting that ``extends`` another one names only what differs; ``analysis`` says, by paper, how runs are
compared. Sources: ``text: where``, ``release`` (the authors' script), ``verl default``, ``public: where`` and
``choice: why``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError, model_validator

from rlvr import objectives
from rlvr.checks import check_choice
from rlvr.config import Count, Rate, _Section, fault_lines, load_yaml
from rlvr.config_corrections import Counterfactual, SelfCorrection
from rlvr.counterfactual.prompts import TOKEN_TEMPLATES
from rlvr.engines.jobs.hardware import MODELS
from rlvr.engines.jobs.sections import (
    SECTIONS,
    Analysis,
    Arm,
    Checkpoints,
    Critic,
    Data,
    Evaluation,
    Expected,
    Hardware,
    Modules,
    Records,
    Rollout,
    Update,
    Validation,
)
from rlvr.registry import suggest

MTP = ("mtp_log_prob", "old_mtp_log_prob")  # what the modules beside an actor say
SOURCE = re.compile(r"(?:text|public|choice): \S.*|(?:release|verl default)(?:: \S.*)?", re.DOTALL)
SOURCES = "'text: where', 'public: where', 'choice: why', 'release' and 'verl default'"
#: Keys of a setting that say what is what; all others are values, and have a source.
WITHOUT_SOURCE = frozenset({"paper", "needs", "run", "objective"})
Paper = Literal["nfpo", "ibpo", "mpo"]
TEXT_TEMPLATE = "compare"  # of text there is one correction prompt for each kind of problem
SECOND_PASSES = ("counterfactual", "self_correction")  # blocks of an arm, one of them at most
#: Sections of an analysis that one paper has and no other.
OF_ONE_PAPER = {"dynamics": "nfpo", "reach": "ibpo"}


class Setting(_Section):
    paper: Paper
    model: str
    seeds: tuple[Count, ...]
    needs: str | None = None
    data: Data
    rollout: Rollout
    update: Update
    critic: Critic | None = None  # of the arms that have one
    validation: Validation
    evaluation: Evaluation
    checkpoints: Checkpoints
    records: Records
    hardware: Hardware
    expected: Expected
    arms: dict[str, Arm]
    run: tuple[str, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Setting:
        if self.model not in MODELS:
            raise ValueError(f"model={suggest(self.model, MODELS)}")
        missing = [name for name in self.run if name not in self.arms]
        if missing or len(set(self.run)) != len(self.run) or not self.run:
            raise ValueError(f"run={list(self.run)} must name arms, each once; arms are {sorted(self.arms)}")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds={list(self.seeds)} must name at least one, and each once")
        return self


class Experiment(_Section):
    """One setting under one arm, with the arm's changes made."""

    name: str
    scale: str
    paper: str
    model: str
    seeds: tuple[Count, ...]
    needs: str | None
    objective: str
    parameters: dict[str, Any]
    method: dict[str, Any] = Field(default_factory=dict)
    counterfactual: Counterfactual | None = None
    self_correction: SelfCorrection | None = None
    mtp: Modules | None = None  # modules beside the actor
    critic: Critic | None = None
    data: Data
    rollout: Rollout
    update: Update
    validation: Validation
    evaluation: Evaluation
    checkpoints: Checkpoints
    records: Records
    hardware: Hardware
    expected: Expected

    @property
    def second_pass(self) -> str | None:
        """Name of the block that asks for a second generation pass."""
        given = [name for name in SECOND_PASSES if getattr(self, name) is not None]
        return given[0] if given else None

    @property
    def anchored(self) -> bool:
        """Whether the log-probs of a reference policy, the base model, are computed."""
        own = self.self_correction
        return self.update.kl_coef > 0 or (own is not None and max(own.first_turn_kl, own.kl) > 0)

    @property
    def dynamic_sampling(self) -> bool:
        """Whether groups whose rewards are all the same are discarded, and others written for them."""
        return self.objective == "dapo"

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        rollout, update, gpus = self.rollout, self.update, self.hardware.gpus
        n = rollout.responses_per_prompt
        if n < 2 and not _has_critic(self.objective):
            raise ValueError(f"responses_per_prompt={n} must be at least 2: a group of one has no advantage")
        if update.minibatch_responses % n:
            raise ValueError(
                f"minibatch_responses={update.minibatch_responses} must be a multiple of "
                f"responses_per_prompt={n}: verl cuts a batch by prompts"
            )
        if rollout.prompts_per_step * n % update.minibatch_responses:
            raise ValueError(
                f"prompts_per_step={rollout.prompts_per_step} * responses_per_prompt={n} must be a "
                f"multiple of minibatch_responses={update.minibatch_responses}"
            )
        if gpus % (parallel := update.sequence_parallel) or update.minibatch_responses % (gpus // parallel):
            raise ValueError(
                f"minibatch_responses={update.minibatch_responses} must be a multiple of the {gpus} GPUs / "
                f"sequence_parallel={parallel}"
            )
        if gpus % rollout.tensor_parallel:
            raise ValueError(f"tensor_parallel={rollout.tensor_parallel} must divide the {gpus} GPUs")
        longest = self.data.longest
        if update.tokens_per_gpu * parallel < longest:
            raise ValueError(
                f"tokens_per_gpu={update.tokens_per_gpu} * sequence_parallel={parallel} must hold the "
                f"longest prompt and response, {longest} tokens"
            )
        if self.second_pass and not self.data.max_correction_prompt_length:
            raise ValueError(
                f"data.max_correction_prompt_length=None: allowed beside {self.second_pass} are tokens, more "
                f"than max_prompt_length={self.data.max_prompt_length}"
            )
        if self.second_pass:
            templates = (TEXT_TEMPLATE,) if self.data.in_catalogue else tuple(TOKEN_TEMPLATES)
            check_choice(f"{self.second_pass}.template", getattr(self, self.second_pass).template, templates)
        if self.self_correction is not None and update.kl_coef:
            raise ValueError(
                f"update.kl_coef={update.kl_coef}: allowed beside self_correction is 0, which has weights of "
                "its own for each turn and stage"
            )
        if self.counterfactual is not None and self.expected.wrong_share is None:
            raise ValueError(
                "expected.wrong_share=None: allowed beside counterfactual are two shares, low and high: the "
                "plan counts corrections by them"
            )
        if self.dynamic_sampling and self.expected.discarded_share is None:
            raise ValueError(
                f"expected.discarded_share=None: allowed with objective={self.objective} are two shares, low "
                "and high: the plan counts the groups by them that dynamic sampling writes and discards"
            )
        return self


class GPUHours(_Section):
    experiment: Rate  # one experiment, one seed
    total: Rate  # everything that is planned together


class Experiments(_Section):
    """The whole file."""

    scale: str
    root: str  # path from the file's folder to the repository root
    scale_file: str  # this file, from the repository root
    max_gpu_hours: GPUHours  # more is refused before anything is launched
    settings: dict[str, Setting]
    analysis: dict[Paper, Analysis] = Field(default_factory=dict)
    sources: dict[str, str]  # path of a value, "settings.nfpo-1.7b.update.lr": its source

    @model_validator(mode="after")
    def _analysis_is_of_its_paper(self) -> Experiments:
        for paper, one in self.analysis.items():
            for name, owner in OF_ONE_PAPER.items():
                if (getattr(one, name) is not None) != (paper == owner):
                    raise ValueError(f"analysis.{paper}.{name}: allowed, and needed, is a section of {owner}")
        return self

    @property
    def names(self) -> list[str]:
        return [f"{name}-{arm}" for name, setting in self.settings.items() for arm in setting.run]

    def get(self, name: str) -> Experiment:
        """The experiment ``name``.

        Raises:
            ValueError: no such experiment, or one whose numbers do not go together.
        """
        for title, setting in self.settings.items():
            for arm in setting.run:
                if name == f"{title}-{arm}":
                    return _experiment(self.scale, name, setting, setting.arms[arm])
        raise ValueError(f"experiment={suggest(name, self.names)}")


def load_experiments(path: str | Path) -> Experiments:
    """Read and check a file of experiments: types, sources, objectives, and whether sizes divide.

    Raises:
        FileNotFoundError: no such file.
        ValueError: one line per fault, with the field, its value and what is allowed.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"file of experiments {path} does not exist")
    raw = load_yaml(path)
    if not isinstance(raw, dict) or not isinstance(raw.get("settings"), dict):
        raise ValueError(f"{path}: expected a mapping with `settings`")
    faults: list[str] = []
    sources: dict[str, str] = {}
    settings = {name: _inherited(name, raw["settings"], path) for name in raw["settings"]}
    plain = {name: _split(setting, f"settings.{name}", sources, faults) for name, setting in settings.items()}
    plain = {"settings": plain, "analysis": _split(raw.get("analysis", {}), "analysis", sources, faults)}
    if faults:
        raise ValueError(f"{path} is not a valid file of experiments:\n" + "\n".join(faults))
    try:
        found = Experiments.model_validate(raw | plain | {"sources": sources})
    except ValidationError as error:
        lines = fault_lines(error, "together")
        raise ValueError(f"{path} is not a valid file of experiments:\n{lines}") from None
    wrong: dict[str, list[str]] = {}
    for name in found.names:
        try:
            _check_objective(found.get(name))
        except (ValueError, TypeError) as error:
            text = fault_lines(error, "together") if isinstance(error, ValidationError) else f"  {error}"
            wrong.setdefault(text, []).append(name)
    if wrong:
        faults = [f"  experiment {', '.join(names)}:\n{text}" for text, names in wrong.items()]
        raise ValueError(f"{path} is not a valid file of experiments:\n" + "\n".join(faults))
    return found


def leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of everything in nested mappings that is no mapping itself."""
    for key, item in value.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(item, Mapping):
            yield from leaves(item, path)
        else:
            yield path, item


def _inherited(name: str, settings: Mapping[str, Any], path: Path, seen: tuple[str, ...] = ()) -> dict:
    setting = settings[name]
    if not isinstance(setting, dict):
        raise ValueError(f"{path}: settings.{name}={setting!r} must be a mapping")
    setting = dict(setting)
    parent = setting.pop("extends", None)
    if parent is None:
        return setting
    if parent not in settings or parent in (*seen, name):
        raise ValueError(
            f"{path}: settings.{name}.extends={parent!r}: allowed are other settings, without a loop"
        )
    return _merged(_inherited(parent, settings, path, (*seen, name)), setting)


def _is_value(item: Any) -> bool:
    return isinstance(item, dict) and "value" in item


def _merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict:
    out = dict(low)
    for key, item in high.items():
        nested = isinstance(item, dict) and isinstance(out.get(key), dict) and not _is_value(item)
        out[key] = _merged(out[key], item) if nested else item
    return out


def _split(item: Any, path: str, sources: dict[str, str], faults: list[str]) -> Any:
    """The plain values of a setting; their sources go to ``sources``, what is wrong to ``faults``."""
    if _is_value(item):
        source = item.get("source")
        if set(item) != {"value", "source"} or not isinstance(source, str) or not SOURCE.fullmatch(source):
            faults.append(
                f"  {path} = {item!r}: allowed is {{value: ..., source: ...}}, with a source of {SOURCES}"
            )
        else:
            sources[path] = source
        return item["value"]
    if isinstance(item, dict):
        return {key: _split(value, f"{path}.{key}", sources, faults) for key, value in item.items()}
    if path.rpartition(".")[2] not in WITHOUT_SOURCE:
        faults.append(f"  {path} = {item!r}: has no source; write {{value: {item!r}, source: ...}}")
    return item


def _experiment(scale: str, name: str, setting: Setting, arm: Arm) -> Experiment:
    values = {section: getattr(setting, section).model_dump() for section in SECTIONS}
    for section, changes in arm.change.items():
        if section not in SECTIONS:
            raise ValueError(f"{name}: change.{suggest(section, SECTIONS)}")
        for key in changes:
            if key not in SECTIONS[section].model_fields:
                raise ValueError(f"{name}: change.{section}.{suggest(key, SECTIONS[section].model_fields)}")
        values[section] |= changes
    return Experiment.model_validate(
        values
        | {
            "name": name,
            "scale": scale,
            "paper": setting.paper,
            "model": setting.model,
            "seeds": setting.seeds,
            "needs": arm.needs or setting.needs,
            "objective": arm.objective,
            "parameters": arm.parameters,
            "method": arm.method,
            "counterfactual": arm.counterfactual,
            "self_correction": arm.self_correction,
            "mtp": arm.mtp,
            "critic": setting.critic if _has_critic(arm.objective) else None,
        }
    )


def _has_critic(objective: str) -> bool:
    return objectives.get(objective).advantages == "critic"


def _check_objective(experiment: Experiment) -> None:
    """The objective takes the parameters; one that verl cannot feed says what it ``needs``."""
    objective = objectives.get(experiment.objective)
    known = [name for name in objective.parameters if name not in objective.tensors]
    for name in experiment.parameters:
        if name not in known:
            raise ValueError(f"{objective.name} has no parameter {suggest(name, known)}")
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in experiment.parameters.items()}
    masks = experiment.counterfactual is not None and experiment.counterfactual.variant == "mask"
    modules, of_modules = experiment.mtp, objective.needs == MTP
    if modules is not None:
        if not of_modules:
            raise ValueError(f"{objective.name} takes no modules: allowed is no section `mtp`")
        if second := experiment.second_pass:
            raise ValueError(f"mtp beside {second}: no trainer has both; allowed is one of them")
        if "mtp_gradient" in given:
            raise ValueError("mtp_gradient is no parameter of an arm: allowed is mtp.policy_gradient")
        if experiment.update.sequence_parallel > 1:
            raise ValueError(
                f"sequence_parallel={experiment.update.sequence_parallel}: allowed with modules is 1"
            )
        if modules.blocks > 1:
            given |= dict.fromkeys(MTP, torch.zeros(1, 1, modules.blocks - 1))
    elif objective.needs and not masks:
        if not experiment.needs:
            lacking = ", ".join(objective.needs)
            how = "a section `mtp`, or `needs`, must be there" if of_modules else "`needs` must say so"
            raise ValueError(f"{objective.name} needs {lacking}, which verl does not hand over: {how}")
        return
    one = torch.full((1, 1), -1.0)
    objective(one, one, one, torch.ones(1, 1), loss_agg_mode=experiment.update.loss_agg_mode, **given)
    if _has_critic(objective.name) and experiment.critic is None:
        raise ValueError(f"critic=None: {objective.name} has one; allowed is a section `critic`")
