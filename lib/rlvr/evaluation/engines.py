"""One function for all engines: an evaluation to ungraded samples. An engine is imported when it is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from rlvr.evaluation.requests import ENGINES, EmbeddedProblem, Evaluation
from rlvr.evaluation.samples import conform
from rlvr.notebook import report


def sample(evaluation: Evaluation, scratch: str | Path) -> pd.DataFrame:
    """Every response that the evaluation asks for.

    Args:
        scratch: folder for parts of a run (engines transformers and vllm): one that was killed goes on. A run
            with other settings in it is removed.

    Returns:
        The table of :mod:`rlvr.evaluation.samples`, ungraded, policy by policy.

    Raises:
        ImportError: the engine's package, or a device for it, is missing; says what to install.
        FileNotFoundError: no such model.
        ValueError: a setting that the engine does not have, or a prompt or model it cannot take.
        All before the first response.
    """
    frames = _SAMPLERS[evaluation.engine](evaluation, Path(scratch))
    labelled = [conform(f, p.labels) for f, p in zip(frames, evaluation.policies, strict=True)]
    joined = pd.concat(labelled, ignore_index=True)
    if all(isinstance(problem, EmbeddedProblem) for problem in evaluation.problems):
        difficulty = {problem.id: problem.difficulty for problem in evaluation.problems}
        joined = joined.assign(difficulty=joined["problem"].map(difficulty).astype("int64"))
    if len(joined) != evaluation.responses:
        raise RuntimeError(f"{len(joined)} responses came back, {evaluation.responses} were asked for")
    return joined


def expected_time(evaluation: Evaluation) -> str:
    """What sampling will take at most, in words; measured on one batch with engine transformers."""
    if evaluation.engine != "transformers":
        return (
            f"{evaluation.responses} responses with engine {evaluation.engine}, whose time is not estimated"
        )
    from rlvr.engines.pretrained import estimate, load

    (policy,) = evaluation.policies
    loaded = load(policy.model, name=policy.name)
    return str(estimate(loaded, evaluation.problems, evaluation.sampling, threads=evaluation.threads))


def _local(evaluation: Evaluation, scratch: Path) -> list[pd.DataFrame]:
    from rlvr.engines.local.workers import run_side_by_side
    from rlvr.evaluation.sampled import sample_policy

    results = run_side_by_side(
        sample_policy,
        [(p.model, evaluation.problems, evaluation.sampling, p.name) for p in evaluation.policies],
        evaluation.workers,
        on_progress=lambda done, total: report(done, total, "problems"),
    )
    return [frame for frame, _ in results]


def _transformers(evaluation: Evaluation, scratch: Path) -> list[pd.DataFrame]:
    from rlvr.engines.pretrained import load, sample

    return [
        sample(
            load(policy.model, name=policy.name),
            evaluation.problems,
            evaluation.sampling,
            scratch / str(index),
            threads=evaluation.threads,
            disposable=True,
        )
        for index, policy in enumerate(evaluation.policies)
    ]


def _vllm(evaluation: Evaluation, scratch: Path) -> list[pd.DataFrame]:
    from rlvr.engines.vllm import fitting_folder, sample
    from rlvr.engines.vllm.engine import import_vllm

    import_vllm()
    return [
        sample(
            fitting_folder(policy.model, scratch / f"{index}-wide"),
            evaluation.problems,
            evaluation.sampling,
            scratch / str(index),
            name=policy.name,
            disposable=True,
        )
        for index, policy in enumerate(evaluation.policies)
    ]


_SAMPLERS: dict[str, Callable[[Evaluation, Path], list[pd.DataFrame]]] = dict(
    zip(ENGINES, (_local, _transformers, _vllm), strict=True)
)
