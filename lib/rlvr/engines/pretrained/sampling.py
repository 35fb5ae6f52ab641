"""Sampling with transformers on the CPU: what it will take, then part by part into a run that a kill does
not cost."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from rlvr.engines.config import SamplingConfig
from rlvr.engines.pretrained.generation import Response, generate
from rlvr.engines.pretrained.model import Pretrained
from rlvr.engines.vllm.prompts import Prompt, Request, model_len, read_prompts, requests_of
from rlvr.engines.vllm.store import Store, frame
from rlvr.notebook import report

ENGINE = "transformers"
WARM_UP = 6  # tokens per response of the measurement
#: Settings of SamplingConfig that mean something here; any other must be left at its default.
USED = {
    "max_tokens", "samples", "seeds", "temperature", "top_p", "top_k", "stop_token_ids",
    "skip_special_tokens", "chat_template", "chat_template_kwargs", "system_prompt", "prompt_style",
    "max_model_len", "chunk_size",
}  # fmt: skip


class Expected(NamedTuple):
    """What a run will take on this machine as busy as it is now."""

    seconds: float  # if every response runs to the limit
    responses: int  # that are still to be sampled

    def __str__(self) -> str:
        minutes = self.seconds / 60
        shown = f"{minutes:.0f} min" if minutes >= 2 else f"{self.seconds:.0f} s"
        return f"{self.responses} responses, at most about {shown}"


def sample(
    loaded: Pretrained,
    problems: Iterable[Any],
    config: SamplingConfig,
    out: str | Path | None = None,
    *,
    threads: int = 1,
    announce: bool = True,
    disposable: bool = False,
) -> pd.DataFrame:
    """Sample ``config.samples`` responses per problem and seed.

    Args:
        loaded: from :func:`rlvr.engines.pretrained.load`.
        problems, config, out: as in :func:`rlvr.engines.vllm.sample`; ``config.chunk_size`` responses are
            computed together.
        threads: of torch, part of what makes two runs the same one.
        announce: measure first how long it will take, and say so with the progress.
        disposable: a run with other settings in ``out`` is removed, not refused; for folders of scratch.

    Returns:
        The table of :func:`rlvr.engines.vllm.sample`, with ``engine`` "transformers".

    Raises:
        ValueError: a setting that this engine does not know, a problem, or a folder with another run.
    """
    chunks, store = _plan(loaded, problems, config, out, threads, disposable)
    if store and store.complete:
        return pd.read_parquet(store.samples)
    missing = [i for i in range(len(chunks)) if not (store and store.done(i))]
    total = sum(map(len, chunks))
    done = total - sum(len(chunks[i]) for i in missing)
    ends = _ends(loaded, config)
    parts, label = {}, "responses"
    with _threads(threads):
        if announce and missing:
            label = str(_measure(loaded, [chunks[i] for i in missing], config))
        report(done, total, label)
        for index in missing:
            tick = partial(_tick, done, total, label)
            responses = generate(loaded.model, chunks[index], ends, config, tick)
            pairs = zip(chunks[index], responses, strict=True)
            rows = frame([_row(request, response, loaded, config) for request, response in pairs])
            if store:
                store.write(index, rows)
            else:
                parts[index] = rows
            done += len(rows)
            report(done, total, label)
    if not store:
        return pd.concat([parts[i] for i in range(len(chunks))], ignore_index=True)
    store.finish()
    return pd.read_parquet(store.samples)


def estimate(
    loaded: Pretrained,
    problems: Iterable[Any],
    config: SamplingConfig,
    out: str | Path | None = None,
    *,
    threads: int = 1,
) -> Expected:
    """What :func:`sample` with these arguments will take: one batch is begun and timed.

    ``out`` is not written; what it already holds is not counted.
    """
    folder = out if out is not None and (Path(out) / "run.json").is_file() else None
    chunks, store = _plan(loaded, problems, config, folder, threads)
    if store and store.complete:
        return Expected(0.0, 0)
    missing = [chunk for i, chunk in enumerate(chunks) if not (store and store.done(i))]
    with _threads(threads):
        return _measure(loaded, missing, config)


def _measure(loaded: Pretrained, chunks: list[list[Request]], config: SamplingConfig) -> Expected:
    """Begin the first part: the time to its first token, and from there to its next ones."""
    number = sum(map(len, chunks))
    if not number:
        return Expected(0.0, 0)
    tokens = min(WARM_UP, config.max_tokens)
    times = [time.perf_counter()]
    generate(
        loaded.model,
        chunks[0],
        (),
        replace(config, max_tokens=tokens, max_model_len=None),
        lambda _: times.append(time.perf_counter()),
    )
    step = (times[-1] - times[1]) / max(1, tokens - 1)
    # Every row pays for the longest prompt of its part, in reading and (the cache is copied) in each step.
    longest = [max(len(r.prompt.ids) for r in chunk) for chunk in chunks]
    read = [w * len({id(r.prompt) for r in chunk}) for w, chunk in zip(longest, chunks, strict=True)]
    reading = (times[1] - times[0]) * sum(read) / read[0]
    first = len(chunks[0]) * (longest[0] + tokens / 2)
    middle = config.max_tokens / 2
    weight = sum(len(chunk) * (w + middle) for w, chunk in zip(longest, chunks, strict=True)) / first
    return Expected(reading + step * (config.max_tokens - 1) * weight, number)


def _tick(done: int, total: int, label: str, ended: int) -> None:
    report(done + ended, total, label)


def _plan(
    loaded: Pretrained,
    problems: Iterable[Any],
    config: SamplingConfig,
    out: str | Path | None,
    threads: int,
    disposable: bool = False,
) -> tuple[list[list[Request]], Store | None]:
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise ValueError(f"threads={threads!r}: allowed are whole numbers >= 1")
    config.refuse_others(USED, ENGINE)
    prompts = read_prompts(problems, loaded.tokenizer, config)
    limit = getattr(loaded.model.config, "max_position_embeddings", None)
    length = model_len(prompts, config)
    if limit is not None and length > limit:
        raise ValueError(
            f"max_tokens={config.max_tokens}: with the longest prompt that is {length} tokens, and the model "
            f"was made for {limit}: allowed are at most {limit - length + config.max_tokens}"
        )
    requests = requests_of(prompts, config)
    chunks = [requests[i : i + config.chunk_size] for i in range(0, len(requests), config.chunk_size)]
    if out is None:
        return chunks, None
    return chunks, Store(out, record(loaded, prompts, config, threads), chunks, disposable)


def record(loaded: Pretrained, prompts: list[Prompt], config: SamplingConfig, threads: int) -> dict[str, Any]:
    """What makes two runs the same one: model, prompts, settings, versions, threads."""
    template = getattr(loaded.tokenizer, "chat_template", None)
    return {
        "format": 1,
        "engine": ENGINE,
        "model": loaded.digest,
        "name": loaded.name,
        "end_ids": list(_ends(loaded, config)),
        "prompts": {
            "count": len(prompts),
            "digest": _digest(repr([(p.benchmark, p.problem, p.ids) for p in prompts])),
        },
        "config": config.to_dict(),
        "template": None if config.chat_template is None or template is None else _digest(str(template)),
        "versions": {package: metadata.version(package) for package in ("torch", "transformers")},
        "threads": threads,
    }


def _ends(loaded: Pretrained, config: SamplingConfig) -> tuple[int, ...]:
    return tuple(sorted({*loaded.end_ids, *config.stop_token_ids}))


def _row(request: Request, response: Response, loaded: Pretrained, config: SamplingConfig) -> dict[str, Any]:
    ids, stopped = response.token_ids, response.finish_reason == "stop"
    text = loaded.tokenizer.decode(
        ids[:-1] if stopped else ids,
        skip_special_tokens=config.skip_special_tokens,
        clean_up_tokenization_spaces=False,
    )
    return {
        "problem": request.prompt.problem,
        "sample": request.sample,
        "seed": request.seed,
        "prompt": request.prompt.text,
        "text": text,
        "finished": stopped,
        "finish_reason": response.finish_reason,
        "correct": None,
        "extracted": None,
        "reason": None,
        "tokens": len(ids),
        "prompt_tokens": len(request.prompt.ids),
        "benchmark": request.prompt.benchmark,
        "grader": None,
        "engine": ENGINE,
        "model": loaded.name,
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
