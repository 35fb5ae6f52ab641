"""What is evaluated: policies with their labels, problems, sampling, engine.

An :class:`Evaluation` comes from arms of the graph (:func:`evaluation_of_arm`) or from an evaluation file
(:func:`evaluation_of_file`); nothing after that asks which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvr.config import Scale
from rlvr.engines.config import SamplingConfig
from rlvr.problems import Problem, get_task
from rlvr.problems.files import read_problems

ENGINES = ("local", "transformers", "vllm")


@dataclass(frozen=True, slots=True)
class EmbeddedProblem:
    """A generated problem with the fields of a benchmark's that sampling and grading read."""

    id: str
    prompt: str
    answer: str
    difficulty: int
    benchmark: str = "embedded"
    kind: str = "integer"  # of grading: a chain of thought in signs alone is not for verify_math
    grading: str = "integer"
    task: str = "word"

    @property
    def golds(self) -> tuple[str, ...]:
        return (self.answer,)


def read_embedded(path: str | Path) -> list[EmbeddedProblem]:
    """Problems that the graph's first stage wrote."""
    return [embedded(problem) for problem in read_problems(path)]


def embedded(problem: Problem) -> EmbeddedProblem:
    """A generated problem as evaluations take it."""
    grader = get_task(problem.kind).grader
    return EmbeddedProblem(
        problem.id,
        problem.prompt,
        problem.answer,
        problem.difficulty,
        kind=grader,
        grading=grader,
        task=problem.kind,
    )


@dataclass(frozen=True)
class Candidate:
    """One policy to evaluate."""

    model: str  # the folder of a saved model, or what else the engine loads
    name: str  # column `model`: shared by the seeds of one arm and lag
    labels: Mapping[str, Any] = field(default_factory=dict)  # arm, lag, and the seed of training


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: every policy answers every problem ``samples`` times per sampling seed.

    Attributes:
        policies: one or several; two with the same ``name`` differ in the seed of their training.
        problems: :class:`EmbeddedProblem` or :class:`rlvr.problems.benchmarks.BenchmarkProblem`, ids unique.
        sampling: the same for all policies, so that they draw the same random numbers.
        engine: one of ``ENGINES``.
        workers: processes, for policies side by side (engine local) and for grading; changes no number.
        threads: of torch (engine transformers).
        training_sets: what the benchmarks are compared with for contamination.
        confidence: of the intervals.
        ks: of pass@k (and maj@k, of mathematics) beside the mean; None: powers of 2 up to half the samples.
    """

    policies: tuple[Candidate, ...]
    problems: tuple[Any, ...]
    sampling: SamplingConfig
    engine: str
    confidence: float
    workers: int = 1
    threads: int = 1
    training_sets: tuple[str, ...] = ()
    ks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"engine={self.engine!r}: allowed are {', '.join(ENGINES)}")
        if self.engine != "transformers" and self.threads != 1:
            raise ValueError(f"threads={self.threads!r}: allowed with engine {self.engine} is 1")
        if len(self.sampling.seeds) > 1 and any("seed" in policy.labels for policy in self.policies):
            raise ValueError(
                f"seeds={list(self.sampling.seeds)}: allowed is one seed of sampling for trained policies, "
                "which are told apart by the seed of their training"
            )
        for what, found in (
            ("policies", [(p.name, p.labels.get("seed")) for p in self.policies]),
            ("problems", [p.id for p in self.problems]),
        ):
            if not found:
                raise ValueError(f"{what} is empty: allowed is at least one")
            if len(set(found)) != len(found):
                twice = next(one for one in found if found.count(one) > 1)
                raise ValueError(f"{what} hold {twice!r} twice: allowed is each once")

    @property
    def responses(self) -> int:
        """How many there will be in all."""
        of_one = len(self.problems) * self.sampling.samples * len(self.sampling.seeds)
        return len(self.policies) * of_one

    @property
    def benchmarks(self) -> tuple[str, ...]:
        """Names, in the order of the problems."""
        return tuple(dict.fromkeys(problem.benchmark for problem in self.problems))


def evaluation_of_arm(scale: Scale, arm: str) -> Evaluation:
    """All policies of one arm, on the held-out problems.

    ``base`` is the policy that training starts from, ``ablations`` all arms of ``scale.ablations`` at once,
    ``every`` these, ``scale.arms`` and the base.

    Column ``seed`` is the seed of training (of the warm-up for ``base``); ``scale.evaluate.seed`` is that of
    sampling, the same for every policy of every arm, which makes comparisons paired.
    """
    wanted = scale.arms_of(arm)
    policies = [
        Candidate(
            str(scale.run_folder(one, seed, lag) / "final"),
            f"{one} lag {lag}",
            {"arm": one, "seed": seed, "lag": lag},
        )
        for one in wanted
        if one != "base"
        for seed in scale.seeds_of(one)
        for lag in scale.lags_of(one)
    ]
    if "base" in wanted:
        labels = {"arm": "base", "seed": scale.warmup.seed, "lag": 0}
        policies.insert(0, Candidate(str(scale.folder / "base/model"), "base", labels))
    sampling = SamplingConfig(
        max_tokens=scale.train.max_new_tokens,
        samples=scale.evaluate.samples,
        seeds=(scale.evaluate.seed,),
        temperature=scale.evaluate.temperature,
        skip_special_tokens=False,
    )
    return Evaluation(
        policies=tuple(policies),
        problems=tuple(read_embedded(scale.folder / "problems/problems/held_out.jsonl")),
        sampling=sampling,
        engine="local",
        confidence=scale.report.confidence,
        workers=scale.workers,
        ks=_above_one(scale.evaluate.pass_k),
    )


def evaluation_of_file(path: str | Path) -> Evaluation:
    """What an evaluation file asks for, if its engine can do it here; see :mod:`rlvr.evaluation.files`.

    Raises:
        FileNotFoundError, ImportError, ValueError: what is wrong in it or not on this machine: problems,
            model, training sets, settings that the engine does not have.
    """
    from rlvr.evaluation.files import evaluation, load_settings

    return evaluation(load_settings(path))


def _above_one(ks: Iterable[int]) -> tuple[int, ...]:
    return tuple(k for k in ks if k > 1)
