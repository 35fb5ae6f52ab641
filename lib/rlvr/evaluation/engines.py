"""One function for all engines: an evaluation to ungraded samples. An engine is imported when it is used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import util
from pathlib import Path

import pandas as pd

from rlvr.engines.config import MODEL_TEMPLATE
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
        All before the first response, and as far as :func:`check` finds them before anything is loaded.
    """
    check(evaluation)
    frames = _SAMPLERS[evaluation.engine](evaluation, Path(scratch))
    labelled = [conform(f, p.labels) for f, p in zip(frames, evaluation.policies, strict=True)]
    joined = pd.concat(labelled, ignore_index=True)
    if all(isinstance(problem, EmbeddedProblem) for problem in evaluation.problems):
        difficulty = {problem.id: problem.difficulty for problem in evaluation.problems}
        joined = joined.assign(difficulty=joined["problem"].map(difficulty).astype("int64"))
    if len(joined) != evaluation.responses:
        raise RuntimeError(f"{len(joined)} responses came back, {evaluation.responses} were asked for")
    return joined


def check(evaluation: Evaluation) -> None:
    """Refuse what the engine cannot do, from names and settings alone: no model is loaded.

    Raises:
        FileNotFoundError: no such model. ImportError: its package, or what reads its file, is not installed.
        ValueError: a setting that the engine does not have, a chat template that is not there, or a style of
            prompts that is not for one of the benchmarks.
    """
    _CHECKS[evaluation.engine](evaluation)


def _check_local(evaluation: Evaluation) -> None:
    from rlvr.evaluation.sampled import check_config

    check_config(evaluation.sampling)
    needed = ("config.json", "model.safetensors", "tokenizer.json")
    for policy in evaluation.policies:
        if not all((Path(policy.model) / name).is_file() for name in needed):
            raise FileNotFoundError(f"model: {policy.model} holds no saved model ({', '.join(needed)})")


def _check_transformers(evaluation: Evaluation) -> None:
    from rlvr.engines.pretrained.model import INSTALL, find_gguf
    from rlvr.engines.pretrained.sampling import USED
    from rlvr.engines.vllm.model import check_model

    evaluation.sampling.refuse_others(USED, "transformers")
    _check_prompts(evaluation)
    for policy in evaluation.policies:  # a file, a folder or a package, as `load` tells them apart
        path = Path(policy.model)
        if path.suffix != ".gguf" and (path.is_dir() or len(path.parts) > 1):
            check_model(path)
            continue
        path = path if path.suffix == ".gguf" else find_gguf(policy.model)
        if not path.is_file():
            raise FileNotFoundError(f"model={policy.model!r}: no such file")
        if util.find_spec("gguf") is None:
            raise ImportError(f"reading {path.name} needs the package 'gguf': {INSTALL}")


def _check_vllm(evaluation: Evaluation) -> None:
    from rlvr.engines.vllm.model import check_model

    _check_prompts(evaluation)
    for policy in evaluation.policies:
        check_model(policy.model)


def _check_prompts(evaluation: Evaluation) -> None:
    sampling = evaluation.sampling
    if sampling.chat_template not in (None, MODEL_TEMPLATE) and not Path(sampling.chat_template).is_file():
        raise ValueError(f"chat_template={sampling.chat_template!r}: no such file")
    if sampling.prompt_style is not None:
        from rlvr.problems.benchmarks import BenchmarkProblem, prompt_for

        one_of_each = {p.benchmark: p for p in evaluation.problems if isinstance(p, BenchmarkProblem)}
        for problem in one_of_each.values():
            try:
                prompt_for(problem, sampling.prompt_style)
            except ValueError as error:
                raise ValueError(f"prompt_{error}") from None


_CHECKS: dict[str, Callable[[Evaluation], None]] = dict(
    zip(ENGINES, (_check_local, _check_transformers, _check_vllm), strict=True)
)


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
