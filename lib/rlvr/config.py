"""One scale is one YAML file; this is its type.

Everything that reads a parameter reads it through :func:`load_scale`, with the YAML 1.2 parser
that DVC uses, so ``1e-6`` is a float everywhere and a typo is an error rather than a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator
from ruamel.yaml import YAML

from rlvr.config_analyses import Bias, Dynamics, Efficiency, Exactness, Surrogate, Theory
from rlvr.config_base import Count, Positive, Rate
from rlvr.config_base import Section as _Section
from rlvr.config_corrections import Correcting, Counterfactual, SelfCorrection, WarmUpCorrections
from rlvr.config_mtp import Critic, Mtp, Sampling
from rlvr.problems import get_task


class Problems(_Section):
    """Procedurally generated problems; the splits are disjoint by construction."""

    task: str
    seed: int
    operations: tuple[Positive, Positive]  # fewest and most arithmetic steps in a problem
    validation: Positive  # problems for the warm-up's target and the curves during training
    held_out: Positive  # problems for the final evaluation

    @model_validator(mode="after")
    def _range(self) -> Problems:
        low, high = self.operations
        if low > high:
            raise ValueError(f"operations=[{low}, {high}] must be fewest, then most")
        return self

    @field_validator("task")
    @classmethod
    def _task_exists(cls, name: str) -> str:
        return get_task(name).name


class Model(_Section):
    """Shape of the embedded Qwen3 policy."""

    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    num_key_value_heads: Positive

    @model_validator(mode="after")
    def _divides(self) -> Model:
        heads, kv = self.num_attention_heads, self.num_key_value_heads
        if self.hidden_size % (2 * heads) or heads % kv:
            raise ValueError(
                f"hidden_size={self.hidden_size} must be a multiple of 2 * num_attention_heads={2 * heads}, "
                f"and num_attention_heads={heads} of num_key_value_heads={kv}"
            )
        return self


class WarmUp(_Section):
    """Supervised training that turns random weights into a base model worth improving."""

    seed: int
    lr: Rate
    betas: tuple[float, float]
    batch_size: Positive
    max_steps: Positive
    cooldown_steps: Count
    check_every: Positive
    target_pass1: Annotated[float, Field(gt=0, lt=1)]  # stop at this validation pass@1
    corrections: WarmUpCorrections | None = None  # None: solutions alone


class Train(_Section):
    """What all objectives share."""

    steps: Positive
    prompts_per_step: Positive
    group_size: Positive
    minibatches: Positive  # updates per rollout batch; more than one makes the policy off-policy
    lags: tuple[Count, ...]  # rollouts come from the policy of `lag` steps ago; one arm each
    lr: Rate
    betas: tuple[float, float]
    weight_decay: Annotated[float, Field(ge=0)]
    grad_clip: Rate
    temperature: Rate
    max_new_tokens: Positive
    loss_agg_mode: str
    advantage_std: Literal["unbiased", "biased", "none"]
    eval_every: Positive
    eval_problems: Positive
    checkpoint_every: Positive
    records_per_step: Count  # responses per rollout batch whose tokens are kept for the dynamics
    #: Log-probs again by the trainer at the start of a step: in place of the sampler's in every ratio, or in
    #: the trace alone. A recipe says it.
    recompute: Literal["none", "all", "trace"] = "none"
    #: Learning rate over the steps: as it is, or a linear rise over ``warmup_ratio`` of them and then half a
    #: cosine down to ``min_lr_ratio`` of it.
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.03
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    #: FLOPs that a run may spend (rlvr.engines.local.spending): it ends with the step nearest to them, and
    #: ``steps`` is only the most that it may take. None: it ends after ``steps``.
    budget: Rate | None = None

    @model_validator(mode="after")
    def _divides(self) -> Train:
        if self.prompts_per_step % self.minibatches:
            raise ValueError(
                f"prompts_per_step={self.prompts_per_step} must be a multiple of "
                f"minibatches={self.minibatches}"
            )
        if self.records_per_step % self.minibatches:
            raise ValueError(
                f"records_per_step={self.records_per_step} must be 0 or a multiple of "
                f"minibatches={self.minibatches}"
            )
        if self.group_size < 2:
            raise ValueError(
                f"group_size={self.group_size} must be at least 2: a group of one has no advantage"
            )
        if 0 not in self.lags or len(set(self.lags)) != len(self.lags):
            raise ValueError(
                f"lags={list(self.lags)} must hold 0 (the comparison without lag), and each lag once"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={list(self.betas)} must be two numbers in [0, 1)")
        if self.budget is not None and self.schedule != "constant":
            raise ValueError(
                f"schedule={self.schedule!r} with a budget: allowed is 'constant'; how many steps the budget "
                "pays for is not known before"
            )
        return self


class Recipe(_Section):
    """One trained arm: an objective's name, its own parameters, and what the method has beside its loss.

    ``counterfactual`` makes it IBPO, ``self_correction`` a SCoRe-style pipeline; ``mtp``, ``critic`` and
    ``sampling`` are MPO's, PPO's and DAPO's. None of all is the objective alone.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    objective: str
    mtp: Mtp | None = None
    critic: Critic | None = None
    sampling: Sampling | None = None
    counterfactual: Counterfactual | None = None
    self_correction: SelfCorrection | None = None

    @model_validator(mode="after")
    def _one_method(self) -> Recipe:
        beside_the_loss = any(part is not None for part in (self.mtp, self.critic, self.sampling))
        methods = [self.counterfactual is not None, self.self_correction is not None, beside_the_loss]
        if sum(methods) > 1:
            raise ValueError(
                "counterfactual; self_correction; mtp, critic and sampling: allowed is at most one of them"
            )
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


#: Blocks of a recipe: what a method has beside its loss.
METHODS = tuple(name for name in Recipe.model_fields if name != "objective")


class Ablations(_Section):
    """Arms that differ from others in one thing, trained at one lag alone."""

    arms: tuple[str, ...]
    lag: Count
    seeds: tuple[Count, ...] | None = None  # of them alone, some of the scale's; None: all


class Evaluate(_Section):
    samples: Positive  # responses per problem
    temperature: Rate
    pass_k: tuple[Positive, ...]
    seed: int

    @model_validator(mode="after")
    def _k_within_n(self) -> Evaluate:
        if max(self.pass_k) > self.samples:
            raise ValueError(f"pass_k={self.pass_k} holds a k above samples={self.samples}")
        return self


class Report(_Section):
    confidence: Annotated[float, Field(gt=0.5, lt=1)]
    bootstrap: Positive
    margin: Annotated[float, Field(gt=0, lt=1)]  # pass@1 difference that counts as "matches"


class Scale(_Section):
    """The whole of one scale file: what one paper's experiments are at one scale."""

    scale: str
    paper: Literal["nfpo", "ibpo", "mpo"] = "nfpo"
    part: str = ""  # of the paper: experiments on another task, in a graph and a folder of their own
    grouped: bool = False  # one stage trains all arms and one evaluates them: a stage has seconds of its own
    root: str  # path from the scale file's folder to the repository root
    scale_file: str  # this file, from the repository root
    engine: Literal["local", "verl"]  # of training
    device: Literal["cpu", "cuda"]  # of training
    workers: Positive  # single-threaded processes side by side
    seeds: tuple[Count, ...]
    arms: tuple[str, ...]  # which recipes are trained
    problems: Problems
    model: Model
    warmup: WarmUp
    train: Train
    recipes: dict[str, Recipe]
    ablations: Ablations | None = None
    evaluate: Evaluate
    report: Report
    theory: Theory | None = None
    dynamics: Dynamics | None = None
    surrogate: Surrogate | None = None
    exactness: Exactness | None = None
    correcting: Correcting | None = None
    efficiency: Efficiency | None = None
    bias: Bias | None = None

    @model_validator(mode="after")
    def _engine_has_the_device(self) -> Scale:
        if self.engine == "local" and self.device != "cpu":
            raise ValueError(f"device={self.device!r}: engine local trains on the CPU; allowed is 'cpu'")
        return self

    @model_validator(mode="after")
    def _sections_of_the_paper(self) -> Scale:
        needed = {
            "nfpo": ("ablations", "theory", "dynamics", "surrogate", "exactness"),
            "ibpo": ("ablations", "correcting"),
            "mpo": ("ablations", "efficiency", "bias"),
        }
        own = () if self.part else needed.get(self.paper, ())
        if missing := [name for name in own if getattr(self, name) is None]:
            raise ValueError(f"{', '.join(missing)}: missing, paper {self.paper!r} needs them")
        return self

    @model_validator(mode="after")
    def _arms_exist(self) -> Scale:
        every = (*self.arms, *self.ablation_arms)
        if missing := [arm for arm in every if arm not in self.recipes]:
            raise ValueError(f"arms {missing} have no recipe; recipes are {sorted(self.recipes)}")
        if taken := GROUPS & set(self.recipes):
            raise ValueError(f"recipes {sorted(taken)}: these names mean other policies; choose another")
        if twice := set(self.arms) & set(self.ablation_arms):
            raise ValueError(f"ablations.arms={sorted(twice)} are in arms already; an arm is in one of them")
        if self.ablations and self.ablations.lag not in self.train.lags:
            raise ValueError(
                f"ablations.lag={self.ablations.lag} must be one of train.lags={list(self.train.lags)}: "
                "ablations are compared with the arms there"
            )
        if self.ablations and self.ablations.seeds is not None:
            own = self.ablations.seeds
            if not own or not set(own) <= set(self.seeds) or len(set(own)) != len(own):
                raise ValueError(
                    f"ablations.seeds={list(own)} must be some of seeds={list(self.seeds)}, each once: "
                    "ablations are compared with the arms there"
                )
        if self.surrogate and self.surrogate.recipe not in self.arms:
            raise ValueError(
                f"surrogate.recipe={self.surrogate.recipe!r} is not one of arms={list(self.arms)}"
            )
        named = {"seeds": self.seeds, "arms": self.arms}
        if self.ablations:
            named["ablations.arms"] = self.ablations.arms
        for name, values in named.items():
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name}={list(values)} must name at least one, and each once")
        return self

    @model_validator(mode="after")
    def _one_warm_up_of_modules(self) -> Scale:
        """Shorter blocks take the first modules of the longest, which are warmed up once."""
        if self.paper != "mpo":
            return self
        longest = self.modules
        if longest is None or self.recipes.get("mpo", Recipe(objective="")).mtp != longest:
            raise ValueError("recipes.mpo.mtp: paper 'mpo' needs it, with the most blocks of all recipes")
        for name, recipe in self.recipes.items():
            for key in ("variant", "hidden", "warmup"):
                own = getattr(recipe.mtp or longest, key)
                if own != getattr(longest, key):
                    raise ValueError(f"recipes.{name}.mtp.{key}={own}: allowed is that of recipes.mpo.mtp")
        return self

    @property
    def modules(self) -> Mtp | None:
        """The MTP modules that are warmed up: those of the recipe with the most blocks."""
        every = [recipe.mtp for recipe in self.recipes.values() if recipe.mtp is not None]
        return max(every, key=lambda mtp: mtp.blocks, default=None)

    @property
    def folder(self) -> Path:
        """Where the stages of this file leave their results."""
        return results_folder({"scale": self.scale, "paper": self.paper, "part": self.part})

    @property
    def ablation_arms(self) -> tuple[str, ...]:
        return self.ablations.arms if self.ablations else ()

    def lags_of(self, arm: str) -> tuple[int, ...]:
        """Lags at which an arm is trained."""
        return (self.ablations.lag,) if arm in self.ablation_arms else self.train.lags

    def seeds_of(self, arm: str) -> tuple[int, ...]:
        """Seeds with which an arm is trained."""
        own = self.ablations.seeds if arm in self.ablation_arms else None
        return self.seeds if own is None else own

    def run_folder(self, arm: str, seed: int, lag: int) -> Path:
        """Where training leaves a run; ablations apart, so that a stage can depend on them alone."""
        stage = "ablate" if arm in self.ablation_arms else "train"
        return Path(self.folder, stage, arm, f"seed{seed}", f"lag{lag}")

    def evaluation_folder(self, arm: str) -> Path:
        """Where the samples of an arm are; those of all ablations are in one folder."""
        if self.grouped:
            return self.folder / "evaluate"
        name = "evaluate_ablations" if arm in self.ablation_arms else f"evaluate/{arm}"
        return Path(self.folder, name)

    def arms_of(self, name: str) -> tuple[str, ...]:
        """The arms that one stage takes: ``arms`` and ``ablations`` are many, ``every`` the base and both."""
        groups = {"arms": self.arms, "ablations": self.ablation_arms}
        groups["every"] = ("base", *self.arms, *self.ablation_arms)
        return groups.get(name, (name,))


#: Names that a stage may be given in place of an arm's, and so none of a recipe's.
GROUPS = frozenset({"base", "arms", "ablations", "every"})


def results_folder(scale: Mapping[str, Any]) -> Path:
    """``runs/<scale>``, and ``runs/<scale>/<paper>[/<part>]`` for another paper than NFPO."""
    paper, part = scale.get("paper", "nfpo"), scale.get("part", "")
    return Path("runs", scale["scale"], *([] if paper == "nfpo" else [paper]), *([part] if part else []))


def load_yaml(path: str | Path) -> Any:
    """Read YAML 1.2 (the dialect DVC hashes): ``1e-6`` is a float, ``no`` is a string."""
    return YAML(typ="safe", pure=True).load(Path(path))


def fault_lines(error: ValidationError, whole: str) -> str:
    """One line per fault: the field, its value unless the message says it, what is allowed. ``whole`` names
    what is at fault where no single field is."""

    def line(fault: Any) -> str:
        field = ".".join(map(str, fault["loc"])) or whole
        value = "" if fault["type"] in ("missing", "value_error") else f" = {fault['input']!r}"
        return f"  {field}{value}: {fault['msg']}"

    return "\n".join(map(line, error.errors()))


def load_scale(path: str | Path) -> Scale:
    """Read and check a scale file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: one line per wrong field, with the field, its value and what is allowed.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"scale file {path} does not exist")
    raw = load_yaml(path)
    if not isinstance(raw, dict):
        raise ValueError(f"{path}: expected a mapping of sections, got {type(raw).__name__}")
    try:
        return Scale.model_validate(raw)
    except ValidationError as error:
        raise ValueError(f"{path} is not a valid scale file:\n{fault_lines(error, '(file)')}") from None
