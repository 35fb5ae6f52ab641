"""The parts of an experiment, typed: its data, how responses are sampled, how the policy is updated."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from rlvr import objectives
from rlvr.config import Count, Dynamics, Positive, Rate, Report, _Section
from rlvr.config_corrections import Counterfactual, SelfCorrection
from rlvr.engines.jobs.hardware import CARDS
from rlvr.losses import AGGREGATIONS
from rlvr.mtp.settings import ModuleSettings
from rlvr.problems.benchmarks.catalogue import get_benchmark
from rlvr.registry import suggest

Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]


class Data(_Section):
    in_catalogue: ClassVar[bool] = True

    train: str  # a benchmark to train on
    levels: tuple[Positive, ...] | None = None
    split: str | None = None  # of a benchmark that is published in parts
    exclude: tuple[str, ...] = ()  # evaluation sets whose problems are left out
    prompt_style: str | None = None  # None: the benchmark's own wording
    max_prompt_length: Positive  # tokens
    max_response_length: Positive  # tokens
    # Of a second generation pass: tokens of a correction prompt, and of it and the correction together (None:
    # the longest of both).
    max_correction_prompt_length: Positive | None = None
    correction_context: Positive | None = None

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its response, corrections included."""
        corrected = (self.max_correction_prompt_length or 0) + self.max_response_length
        plain = self.max_prompt_length + self.max_response_length
        return max(plain, min(corrected, self.correction_context or corrected))

    @model_validator(mode="after")
    def _known(self) -> Data:
        if self.in_catalogue:
            for name in (self.train, *self.exclude):
                get_benchmark(name)
        return self


class GeneratedData(Data):
    """Of generated problems, which no catalogue lists; ``train`` names their file (:mod:`.embedded`)."""

    in_catalogue: ClassVar[bool] = False


class Rollout(_Section):
    prompts_per_step: Positive
    responses_per_prompt: Annotated[int, Field(ge=1)]
    temperature: Rate
    top_p: Annotated[float, Field(gt=0, le=1)]
    tensor_parallel: Positive  # GPUs that share one copy of the model
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)]
    max_num_seqs: Positive  # responses that one copy of the model writes at once


class Update(_Section):
    steps: Positive  # rollout batches
    minibatch_responses: Positive  # responses per optimiser step
    epochs: Positive  # passes over a rollout batch
    lr: Rate
    schedule: Literal["constant", "cosine"]
    warmup_ratio: Share  # of all steps
    min_lr_ratio: Share
    betas: tuple[float, float]
    weight_decay: NotNegative
    grad_clip: Rate
    loss_agg_mode: str
    divide_by_std: bool  # the group's advantages
    recompute: bool  # rollout log-probs again by the trainer, and the ratio against those
    kl_coef: NotNegative
    entropy_coef: NotNegative
    tokens_per_gpu: Positive  # of one micro-batch; which numbers come out does not depend on it
    sequence_parallel: Positive
    offload: bool  # parameters and optimiser state in the host's memory while they are not needed

    @field_validator("loss_agg_mode")
    @classmethod
    def _mode(cls, mode: str) -> str:
        if mode not in AGGREGATIONS:
            raise ValueError(f"loss_agg_mode={mode!r}: allowed are {', '.join(AGGREGATIONS)}")
        return mode


class Validation(_Section):
    """During training."""

    in_catalogue: ClassVar[bool] = True

    benchmarks: tuple[str, ...]
    every: Positive  # steps
    samples: Positive
    temperature: NotNegative
    before_train: bool

    @model_validator(mode="after")
    def _known(self) -> Validation:
        if not self.benchmarks:
            raise ValueError("benchmarks=[]: at least one; verl does not start without validation data")
        if self.in_catalogue:
            for name in self.benchmarks:
                get_benchmark(name)
        return self


class GeneratedValidation(Validation):
    """On generated problems."""

    in_catalogue: ClassVar[bool] = False


class Evaluation(_Section):
    """Of the last checkpoint, by ``rlvr.engines.vllm``: what a paper's table shows."""

    benchmarks: tuple[str, ...]
    samples: Positive
    temperature: NotNegative

    @model_validator(mode="after")
    def _known(self) -> Evaluation:
        for name in self.benchmarks:
            get_benchmark(name)
        return self


class Checkpoints(_Section):
    every: Positive  # steps; the last step is always kept
    keep: Positive


class Records(_Section):
    """Per-token records of some responses, from inside the job (``rlvr.engines.verl.recording``)."""

    responses: Count  # of a recorded step, spread over its mini-batches; 0: no records
    every: Positive  # steps
    megabytes: Rate  # that each GPU's worker writes at most


class Hardware(_Section):
    gpu: str
    gpus_per_node: Positive
    nodes: Positive

    @field_validator("gpu")
    @classmethod
    def _card(cls, name: str) -> str:
        if name not in CARDS:
            raise ValueError(f"gpu={suggest(name, CARDS)}")
        return name

    @property
    def gpus(self) -> int:
        return self.gpus_per_node * self.nodes


class Expected(_Section):
    """What no file can know before the job: for the plan alone."""

    mean_response_length: tuple[Positive, Positive]  # tokens over the training, low and high
    stated_hours: Rate | None = None  # wall time that the paper states for this hardware
    wrong_share: tuple[Share, Share] | None = None  # of the responses, low and high: what is corrected
    #: Tokens shown of a response in a correction prompt, low and high; None: all, as of a model that answers
    #: without reasoning before it (:func:`rlvr.counterfactual.prompts.visible`).
    shown_length: tuple[Positive, Positive] | None = None
    discarded_share: tuple[Share, Share] | None = None  # of the groups, low and high: by dynamic sampling

    @model_validator(mode="after")
    def _ordered(self) -> Expected:
        for name in ("mean_response_length", "wrong_share", "shown_length", "discarded_share"):
            band = getattr(self, name)
            if band is not None and band[0] > band[1]:
                raise ValueError(f"{name}={list(band)} must be the low one, then the high one")
        shown = self.shown_length or self.mean_response_length
        if any(part > whole for part, whole in zip(shown, self.mean_response_length, strict=True)):
            raise ValueError(
                f"shown_length={list(shown)}: allowed are parts of a response, up to "
                f"mean_response_length={list(self.mean_response_length)}"
            )
        if self.discarded_share is not None and self.discarded_share[1] == 1:
            raise ValueError("discarded_share: allowed are shares below 1; of nothing no batch is made")
        return self


class Critic(_Section):
    """Of methods whose advantages are a critic's; without this section it is verl's default."""

    lr: Rate
    betas: tuple[float, float]
    weight_decay: NotNegative
    value_clip: Rate  # how far a value may move from the step's start
    gamma: Share
    lam: Share


class ModuleWarmUp(_Section):
    """Cross entropy of the modules alone on published solutions, before the job (:mod:`.modules`)."""

    train: tuple[str, ...]  # training sets with solutions, shuffled together
    steps: Positive
    batch_size: Positive  # solutions a step
    lr: Rate
    seed: Count

    @field_validator("train")
    @classmethod
    def _known(cls, train: tuple[str, ...]) -> tuple[str, ...]:
        if not train:
            raise ValueError("train=[]: at least one training set")
        for name in train:
            get_benchmark(name)
        return train


class Modules(ModuleSettings):
    """MTP modules beside the actor. With ``warmup`` and without ``start``, they start from the folder that
    ``rlvr job modules`` writes."""

    warmup: ModuleWarmUp | None = None


class Arm(_Section):
    """What is compared: an objective with its parameters, and what it changes in the setting."""

    objective: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    change: dict[str, dict[str, Any]] = Field(default_factory=dict)  # section: {key: value}
    mtp: dict[str, Any] | None = None  # :class:`Modules`
    #: What the method takes beside its objective; for the trainer that ``needs`` names.
    method: dict[str, Any] = Field(default_factory=dict)
    needs: str | None = None  # what is missing before verl can run it
    #: A second generation pass: IBPO's, or the SCoRe-style baseline's.
    counterfactual: Counterfactual | None = None
    self_correction: SelfCorrection | None = None

    @model_validator(mode="after")
    def _mask_has_a_reader(self) -> Arm:
        masks = self.counterfactual is not None and self.counterfactual.variant == "mask"
        needs = objectives.get(self.objective).needs
        if self.counterfactual is not None and masks != ("token_mask" in needs):
            raise ValueError(
                f"counterfactual.variant={self.counterfactual.variant!r} with objective={self.objective!r}: "
                "allowed is the variant 'mask' with an objective that needs a token mask, and no other "
                "with it"
            )
        return self

    @model_validator(mode="after")
    def _one_second_pass(self) -> Arm:
        if self.counterfactual is not None and self.self_correction is not None:
            raise ValueError(
                "counterfactual beside self_correction: no trainer has both; allowed is one of them"
            )
        return self

    @model_validator(mode="after")
    def _method_has_a_reader(self) -> Arm:
        if self.method and not self.needs:
            raise ValueError(f"method={self.method}: nothing reads it; allowed beside `needs` alone")
        return self

    @field_validator("objective")
    @classmethod
    def _objective(cls, name: str) -> str:
        return objectives.get(name).name


class Reach(_Section):
    """Of IBPO: which training reward has to be reached, and over how much of the compute it is smoothed."""

    reward: Annotated[float, Field(gt=0, lt=1)]
    smoothing: Annotated[float, Field(ge=0, lt=1)]  # of the compute that every run of a setting has spent


class Analysis(_Section):
    """What the notebooks of a paper make of its settings' runs (:mod:`rlvr.analysis.study`)."""

    arms: tuple[str, ...]  # compared with each other; what else a setting runs are ablations
    base: bool = False  # whether the untrained model is evaluated beside them
    report: Report
    dynamics: Dynamics | None = None  # of NFPO
    reach: Reach | None = None

    @field_validator("arms")
    @classmethod
    def _each_once(cls, arms: tuple[str, ...]) -> tuple[str, ...]:
        if not arms or len(set(arms)) != len(arms):
            raise ValueError(f"arms={list(arms)} must name at least one, and each once")
        return arms


SECTIONS = {
    "data": Data,
    "rollout": Rollout,
    "update": Update,
    "validation": Validation,
    "evaluation": Evaluation,
    "checkpoints": Checkpoints,
    "records": Records,
    "hardware": Hardware,
    "expected": Expected,
}
