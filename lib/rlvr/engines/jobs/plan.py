"""What an experiment costs before it is launched: hours, GPU-hours, memory, disk, tokens, as a band.

The model of one step, per GPU:

- *Writing.* Responses are written token by token, all that are still open at once. Token t takes
  ``overhead + (weights + cache of the open responses) / (bandwidth * efficiency)``, and a batch lasts until
  its longest response ends, which at these lengths is always one cut off at the limit. Lengths are
  exponential, cut at the limit, with the expected mean; more than ``max_num_seqs`` go in waves.
- *Training.* ``6 N`` FLOPs a token, ``2 N`` more since activations are computed again, ``2 N`` for each
  pass without gradients (recomputed log-probs, a reference policy's, a critic's values), plus attention's,
  at a share of the card's peak.
- *Dynamic sampling*, where there is any: the groups that it discards are written like those it keeps.
- *A second pass*, where there is one: a second writing, after the first, of so many corrections for each
  response that is expected to be wrong, or of a second turn for every response; and what it adds to training.
- *Around it.* Weights to the rollout engine, rewards, data: a constant, and the weights over the bus.

Validation, checkpoints and the final evaluation use the same parts. ``LOW`` and ``HIGH`` are the two ends
of each assumption [choice]; nothing is fitted to a paper's time. A test holds the bands against those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rlvr import objectives
from rlvr.engines.jobs.experiments import Experiment, GPUHours
from rlvr.engines.jobs.hardware import CARDS, GB, MODELS, Card, Model
from rlvr.problems.benchmarks.catalogue import get_benchmark

PROMPT = 150  # tokens of a problem with its wording, on average
LATENCY = 1.3  # tensor parallelism: overhead of a token for each doubling of the cards


@dataclass(frozen=True)
class Assumptions:
    """One end of the band.

    Attributes:
        flops: share of the card's peak that training reaches.
        bandwidth: share of the memory's bandwidth that writing reaches.
        token: seconds of scheduling and launches for one token of all open responses.
        step: seconds around a step that no other part counts.
        disk: bytes per second to the checkpoint's disk, of one node.
        sample: seconds to start and end the final evaluation.
    """

    flops: float
    bandwidth: float
    token: float
    step: float
    disk: float
    sample: float


LOW = Assumptions(flops=0.40, bandwidth=0.75, token=0.005, step=10, disk=2 * GB, sample=120)
HIGH = Assumptions(flops=0.22, bandwidth=0.50, token=0.009, step=45, disk=0.5 * GB, sample=600)


@dataclass(frozen=True)
class Plan:
    """Both ends of a band where there are two numbers.

    Attributes:
        hours: wall time of one seed, (low, high).
        gpu_hours: the same times the GPUs.
        step_seconds: of one training step, without validation and checkpoints.
        compute_seconds: of it, writing and training alone.
        memory: bytes per GPU at its peak, (rollout, update).
        card_memory: bytes there are.
        disk: bytes of the checkpoints that are kept at once, one more while it is written.
        tokens: written in training and validation.
        needs: why verl cannot run it; None if it can.
    """

    name: str
    gpus: int
    card: str
    seeds: int
    hours: tuple[float, float]
    gpu_hours: tuple[float, float]
    step_seconds: tuple[float, float]
    compute_seconds: tuple[float, float]
    memory: tuple[float, float]
    card_memory: float
    disk: float
    tokens: tuple[float, float]
    needs: str | None

    @property
    def fits(self) -> bool:
        return max(self.memory) <= self.card_memory


def plan(experiment: Experiment) -> Plan:
    """The cost of one seed of ``experiment``."""
    card, model = CARDS[experiment.hardware.gpu], MODELS[experiment.model]
    gpus = experiment.hardware.gpus
    ends = [_end(experiment, model, card, which) for which in (0, 1)]
    hours = (ends[0][0], ends[1][0])
    return Plan(
        name=experiment.name,
        gpus=gpus,
        card=experiment.hardware.gpu,
        seeds=len(experiment.seeds),
        hours=hours,
        gpu_hours=(hours[0] * gpus, hours[1] * gpus),
        step_seconds=(ends[0][1], ends[1][1]),
        compute_seconds=(ends[0][3], ends[1][3]),
        memory=_memory(experiment, model, card),
        card_memory=card.memory,
        disk=_checkpoint_bytes(experiment, model) * (experiment.checkpoints.keep + 1),
        tokens=(ends[0][2], ends[1][2]),
        needs=experiment.needs,
    )


def refusals(plans: Iterable[Plan], limit: GPUHours) -> list[str]:
    """Why these may not be launched together, by the high end of each band, all seeds; empty if they may."""
    plans = list(plans)
    out = []
    for p in plans:
        if p.gpu_hours[1] > limit.experiment:
            out.append(
                f"{p.name}: up to {p.gpu_hours[1]:,.0f} GPU-hours a seed, max_gpu_hours.experiment is "
                f"{limit.experiment:,.0f}: raise it in the scale file, or lower steps or lengths"
            )
    total = sum(p.gpu_hours[1] * p.seeds for p in plans)
    if total > limit.total:
        out.append(
            f"together up to {total:,.0f} GPU-hours, max_gpu_hours.total is {limit.total:,.0f}: raise it "
            "in the scale file, or plan fewer experiments or seeds"
        )
    return out


def survival(mean: float, longest: int, points: int = 512) -> tuple[np.ndarray, np.ndarray]:
    """(positions, share of responses still open there), exponential lengths cut at ``longest``.

    Raises:
        ValueError: a mean that lengths up to ``longest`` cannot have.
    """
    if not 0 < mean < longest:
        raise ValueError(f"mean_response_length={mean:g}: allowed are lengths below the longest, {longest}")
    low, high = mean / 2, 1e3 * longest
    for _ in range(100):  # the scale whose cut lengths have this mean
        scale = math.sqrt(low * high)
        short = scale * -math.expm1(-longest / scale) < mean
        low, high = (scale, high) if short else (low, scale)
    at = (np.arange(points) + 0.5) * longest / points
    return at, np.exp(-at / scale)


def writing_seconds(
    responses: float,
    mean: float,
    longest: int,
    model: Model,
    card: Card,
    experiment: Experiment,
    a: Assumptions,
) -> float:
    """To write ``responses`` on all GPUs."""
    parallel = experiment.rollout.tensor_parallel
    each = responses * parallel / experiment.hardware.gpus  # of one copy of the model
    at, open_share = survival(mean, longest)
    room = experiment.rollout.gpu_memory_utilization * card.memory * parallel - 2 * model.parameters
    held = max(1.0, room / (model.cache_per_token * (PROMPT + mean)))
    at_once = min(each, experiment.rollout.max_num_seqs, held)
    bandwidth = card.bandwidth * parallel * a.bandwidth
    overhead = a.token * LATENCY ** math.log2(parallel)
    # while others wait, a free place is taken: those waves run at full width, the last one empties
    full = max(0.0, each - at_once)
    cache = model.cache_per_token * (PROMPT + mean / 2)
    seconds = full * mean / at_once * (overhead + (_read(model, at_once) + at_once * cache) / bandwidth)
    now = np.maximum(at_once * open_share, 1.0)
    traffic = np.array([_read(model, n) for n in now]) + now * model.cache_per_token * (PROMPT + at)
    return float(seconds + (longest / len(at)) * np.sum(overhead + traffic / bandwidth))


def _read(model: Model, responses: float) -> float:
    """Bytes of weights read for one token of ``responses`` at once; more of a mixture for more of them."""
    share = 1 - (1 - model.active_parameters / model.parameters) ** max(1.0, responses)
    return 2 * model.parameters * share


def training_seconds(
    tokens: float, mean: float, model: Model, card: Card, experiment: Experiment, a: Assumptions
) -> float:
    """To train on ``tokens`` of prompts and responses, and for the passes before it."""
    critic = objectives.get(experiment.objective).advantages == "critic"
    trained = 8 * experiment.update.epochs * (2 if critic else 1)
    passes = 2 * (experiment.update.recompute + critic + experiment.anchored)
    attention = 2 * model.layers * model.heads * model.head_dim * (PROMPT + mean)  # beside 2 N, causal
    flops = tokens * (trained + passes) * (model.active_parameters + attention / 2)
    # the modules: trained, or a pass without gradients, and one more for their old log-probs
    each = 8 if _modules_learn(experiment) else 2
    flops += tokens * (each * experiment.update.epochs + 2) * _module_parameters(experiment, model)
    return flops / (card.flops * a.flops * experiment.hardware.gpus)


def _end(experiment: Experiment, model: Model, card: Card, which: int) -> tuple[float, float, float, float]:
    """(hours, seconds of a step, tokens written, seconds of writing and training) at one end of the band."""
    a = (LOW, HIGH)[which]
    mean, longest = experiment.expected.mean_response_length[which], experiment.data.max_response_length
    rollout, update = experiment.rollout, experiment.update
    responses = rollout.prompts_per_step * rollout.responses_per_prompt
    second = second_answers(experiment, which)
    trained = responses * (PROMPT + mean)
    if second and _trains_on_second(experiment):
        trained += second * (_correction_prompt(experiment, which) + mean)
    discarded = experiment.expected.discarded_share[which] if experiment.dynamic_sampling else 0.0
    written = responses / (1 - discarded)
    sync = 2 * model.parameters / (10 * GB)
    offload = 2 * 16 * model.parameters / experiment.hardware.gpus / (10 * GB) if update.offload else 0
    compute = (
        writing_seconds(written, mean, longest, model, card, experiment, a)
        + (writing_seconds(second, mean, longest, model, card, experiment, a) if second else 0)
        + training_seconds(trained, mean, model, card, experiment, a)
    )
    step = compute + a.step + sync + offload
    validation = _problems(experiment.validation.benchmarks) * experiment.validation.samples
    times = update.steps // experiment.validation.every + experiment.validation.before_train
    validating = writing_seconds(validation, mean, longest, model, card, experiment, a) * times
    saves = math.ceil(update.steps / experiment.checkpoints.every)
    saving = saves * _checkpoint_bytes(experiment, model) / (a.disk * experiment.hardware.nodes)
    evaluated = _problems(experiment.evaluation.benchmarks) * experiment.evaluation.samples
    final = (
        a.sample + writing_seconds(evaluated, mean, longest, model, card, experiment, a) if evaluated else 0
    )
    seconds = update.steps * step + validating + saving + final
    tokens = mean * ((written + second) * update.steps + validation * times)
    return seconds / 3600, step, tokens, compute


def steps_at_equal_compute(experiment: Experiment, other: Experiment) -> int:
    """Steps of ``experiment`` that compute as much as all of ``other``'s, in FLOPs of writing and training at
    the middle of the expected lengths and shares [choice]: what the ledger of a run counts."""
    own, of_other = (sum(step_flops(e, which) for which in (0, 1)) for e in (experiment, other))
    return round(other.update.steps * of_other / own)


def step_flops(experiment: Experiment, which: int) -> float:
    """Of one step at one end of the expected lengths and shares, as :mod:`rlvr.evaluation.compute` counts a
    job (:mod:`rlvr.engines.verl.accounting`): a prompt once for its group in writing, with each of its rows
    in training."""
    from rlvr.evaluation.compute import PASSES

    shape, rollout, update = MODELS[experiment.model].shape, experiment.rollout, experiment.update
    mean = experiment.expected.mean_response_length[which]
    over_rows = PASSES["train"] * update.epochs
    over_rows += PASSES["score"] * (update.recompute + experiment.anchored)

    def sequence(tokens: float, context: float = 0.0) -> float:
        return shape.flops(tokens, tokens * context + tokens * (tokens + 1) / 2)

    prompts, responses = rollout.prompts_per_step, rollout.prompts_per_step * rollout.responses_per_prompt
    discarded = experiment.expected.discarded_share[which] if experiment.dynamic_sampling else 0.0
    written = (prompts * sequence(PROMPT) + responses * sequence(mean, PROMPT)) / (1 - discarded)
    total = written + responses * over_rows * sequence(PROMPT + mean)
    if second := second_answers(experiment, which):
        settings, long = experiment.counterfactual, _correction_prompt(experiment, which)
        of_a_prompt = 1 if settings is None else settings.corrections
        total += second / of_a_prompt * sequence(long) + second * sequence(mean, long)
        total += second * over_rows * sequence(long + mean) * _trains_on_second(experiment)
    return total


def second_answers(experiment: Experiment, which: int) -> float:
    """What the second pass of a step writes, at one end of the band: corrections of wrong responses, or a
    second turn for every response."""
    settings, rollout = experiment.counterfactual, experiment.rollout
    if experiment.self_correction is not None:
        return float(rollout.prompts_per_step * rollout.responses_per_prompt)
    if settings is None:
        return 0.0
    wrong = experiment.expected.wrong_share[which] * rollout.responses_per_prompt
    targets = wrong if settings.targets is None else min(wrong, settings.targets)
    return rollout.prompts_per_step * targets * settings.corrections


def _trains_on_second(experiment: Experiment) -> bool:
    return experiment.counterfactual is None or experiment.counterfactual.joint


def _correction_prompt(experiment: Experiment, which: int) -> float:
    """Tokens: the problem, the response and its references, as much of them as is shown."""
    settings, expected = experiment.counterfactual, experiment.expected
    of_each = (expected.shown_length or expected.mean_response_length)[which]
    shown = PROMPT + (1 + (0 if settings is None else settings.references)) * of_each
    return min(shown, experiment.data.max_correction_prompt_length)


def _problems(names: Iterable[str]) -> int:
    return sum(get_benchmark(name).count for name in names)


def _module_parameters(experiment: Experiment, model: Model) -> float:
    """Of all MTP modules: each is a layer and a head."""
    if experiment.mtp is None:
        return 0.0
    head = model.vocabulary * model.hidden
    layer = (model.parameters - (1 if model.tied else 2) * head) / model.layers
    return (experiment.mtp.blocks - 1) * (layer + head)


def _modules_learn(experiment: Experiment) -> bool:
    return experiment.mtp is not None and experiment.mtp.learns


def _checkpoint_bytes(experiment: Experiment, model: Model) -> float:
    """float32 weights and both moments of Adam; a critic has its own. Of modules that stay, the weights."""
    critic = objectives.get(experiment.objective).advantages == "critic"
    modules = (12 if _modules_learn(experiment) else 4) * _module_parameters(experiment, model)
    return 12 * model.parameters * (2 if critic else 1) + modules


def _memory(experiment: Experiment, model: Model, card: Card) -> tuple[float, float]:
    """(rollout, update) bytes per GPU at the peak.

    State is float32: weights, gradients, two moments, sharded over all GPUs. An update adds one layer in
    bfloat16, the input of every layer, and the logits of a micro-batch: bfloat16, float32 and its gradient.
    MTP modules are gathered as a whole, with their gradients if they learn, and have their logits one after
    the other. A reference policy stays in the host's memory, where verl puts it.
    """
    update = experiment.update
    critic = objectives.get(experiment.objective).advantages == "critic" and not update.offload
    state = (
        16 * model.parameters * (2 if critic else 1) / experiment.hardware.gpus
    )  # offloaded: one at a time
    modules, tokens = _module_parameters(experiment, model), update.tokens_per_gpu
    state += (16 if _modules_learn(experiment) else 4) * modules / experiment.hardware.gpus
    inputs = 2 * model.layers * tokens * model.hidden
    inside = 2 * tokens * (4 * model.hidden + 3 * model.intermediate)  # of the layer that is computed again
    logits = tokens * model.vocabulary * (2 + 4 + 4)
    layer = 2 * (2 * model.parameters / max(1, model.layers))
    if modules:
        layer += 4 * modules + logits
    resident = 0 if update.offload else state
    runtime = 2 * GB  # CUDA contexts and buffers of NCCL
    rollout = experiment.rollout.gpu_memory_utilization * card.memory + resident + runtime
    return rollout, state + inputs + inside + logits + layer + runtime
