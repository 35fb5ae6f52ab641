"""The MTP modules that an experiment starts with: warmed up on published solutions, before the job.

One process, on the GPU if there is one, in float32. Arms of one model that name the same modules and warm-up
share the folder.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr.engines.jobs.command import modules_folder
from rlvr.engines.jobs.experiments import Experiment
from rlvr.engines.jobs.sections import ModuleWarmUp
from rlvr.mtp import FILE, MtpModules, save_modules, warm_up
from rlvr.problems.benchmarks import BenchmarkProblem, load_training_set, prompt_for
from rlvr.problems.benchmarks.catalogue import get_benchmark
from rlvr.storage import atomic_dir, write_json

SOLUTIONS = ("solution", "code")  # where the sets have them
Pair = tuple[list[int], list[int]]  # token ids of a prompt and of a response


def prepare_modules(
    experiment: Experiment,
    root: str | Path,
    model_path: str | None = None,
    data_dir: str | None = None,
    say: Callable[[str], None] = print,
) -> Path | None:
    """Write the modules of ``experiment`` if they are not there; returns their folder, None if it has none.

    Raises:
        FileNotFoundError: a training set is not on this machine; says how to get it.
        ValueError: the sets have no solution that fits the lengths of the experiment.
    """
    own = experiment.mtp
    if own is None or own.warmup is None or own.start is not None or own.blocks == 1:
        return None
    folder = Path(modules_folder(experiment, str(root)))
    if (folder / FILE).is_file():
        say(f"{folder}: there already")
        return folder
    from transformers import AutoModelForCausalLM, AutoTokenizer

    name = model_path or experiment.model
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(name)
    data = experiment.data
    pairs = pairs_of(
        solved(own.warmup, data_dir),
        tokenizer,
        data.prompt_style,
        data.max_prompt_length,
        data.max_response_length,
    )
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).to(device).eval()
    modules = MtpModules(model, own.blocks, own.variant, own.hidden)
    say(f"{own.warmup.steps} steps of {own.warmup.batch_size} of {len(pairs)} solutions, on {device}")
    steps = (
        (x.to(device) for x in batch) for batch in batches(pairs, own.warmup, tokenizer.pad_token_id or 0)
    )
    every = max(1, own.warmup.steps // 20)
    report = lambda done, loss: say(f"step {done}: {loss:.3f} nats") if done % every == 0 else None  # noqa: E731
    history = warm_up(model, modules, steps, own.warmup.lr, on_step=report)
    with atomic_dir(folder) as partial:
        save_modules(modules, partial)
        write_json(partial / "warmup.json", {"settings": own.model_dump(mode="json"), "history": history})
    return folder


def solved(config: ModuleWarmUp, data_dir: str | None = None) -> list[tuple[BenchmarkProblem, str]]:
    """Problems of the training sets with their solutions."""
    found = []
    for name in config.train:
        split = None if get_benchmark(name).role == "train" else "train"
        for problem in load_training_set(name, data_dir=data_dir, split=split):
            texts = [problem.metadata[key] for key in SOLUTIONS if problem.metadata.get(key)]
            found += [(problem, texts[0])] if texts else []
    if not found:
        raise ValueError(f"warmup.train={list(config.train)}: allowed are sets with solutions")
    return found


def pairs_of(
    problems: Sequence[tuple[BenchmarkProblem, str]],
    tokenizer: Any,
    style: str | None,
    longest_prompt: int,
    longest_response: int,
) -> list[Pair]:
    """Token ids, the prompt as the job shows it; what is longer than the limits is left out."""
    pairs = []
    for problem, solution in problems:
        turns = [{"role": "user", "content": prompt_for(problem, style)}]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        response = tokenizer(solution, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        if len(prompt) <= longest_prompt and len(response) <= longest_response:
            pairs.append((prompt, response))
    if not pairs:
        raise ValueError(
            f"max_prompt_length={longest_prompt}, max_response_length={longest_response}: no solution of the "
            "warm-up is short enough"
        )
    return pairs


def batches(pairs: Sequence[Pair], config: ModuleWarmUp, pad: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(input_ids, attention_mask, response_mask) of each step; every pass over the pairs in a new order."""
    draw, waiting = random.Random(config.seed), []
    for _ in range(config.steps):
        chosen = []
        while len(chosen) < config.batch_size:
            if not waiting:
                waiting = draw.sample(range(len(pairs)), len(pairs))
            chosen.append(pairs[waiting.pop()])
        yield padded(chosen, pad)


def padded(pairs: Sequence[Pair], pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Prompts padded on the left, responses on the right."""
    left, right = (max(len(pair[side]) for pair in pairs) for side in (0, 1))
    ids = torch.full((len(pairs), left + right), pad)
    mask = torch.zeros_like(ids)
    for row, (prompt, response) in enumerate(pairs):
        at = slice(left - len(prompt), left + len(response))
        ids[row, at] = torch.tensor(prompt + response)
        mask[row, at] = 1
    return ids, mask, mask[:, left:].float()
