"""Whether a job's folder is of the settings that are asked for now.

verl goes on from whatever checkpoint lies in the folder, and a complete one counts as done. Under another
learning rate that would be a mixture of two trainings, or the old one under a new name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from rlvr.storage import read_json

if TYPE_CHECKING:
    from rlvr.engines.jobs.jobs import Job

STEPS = "trainer.total_training_steps"
SCHEDULE = "actor_rollout_ref.actor.optim.lr_scheduler_type"
STAGES = ".self_correction.stage1_share"
#: Files and folders: the name counts, not where it lies.
PATHS = re.compile(r"data\.train_files|(?:.*\.)?model\.path|.*\.policy_loss\.mtp\.start")
#: Where things lie, how they are shared out, what is looked at: another value changes no update.
HARMLESS = re.compile(
    r"trainer\.(?!critic_warmup|use_v1|v1(?:\.|$)).*|trainer\.v1\.\w+\.records_\w+"
    r"|ray_kwargs\..*|hydra\..*|data\.val_files"
    r"|.*\.val_kwargs\..*|(?:.*\.)?num_workers|.*\.(?:enforce_eager|max_num_batched_tokens)"
    r"|.*\.(?:tensor_model_parallel_size|gpu_memory_utilization|max_num_seqs)"
    r"|.*\.(?:ppo_max_token_len_per_gpu|ulysses_sequence_parallel_size|param_offload|optimizer_offload)"
)


def check_unchanged(job: Job) -> None:
    """Refuse a job whose folder was begun with settings that make another training.

    Raises:
        ValueError: names the settings that differ, and says what to do.
    """
    path = job.state.path
    if not path.is_file() or not job.state.attempts:
        return
    found = changed_settings(read_json(path).get("command", ()), job.words)
    if found:
        raise ValueError(
            f"{job.folder} was begun with other settings: {'; '.join(found)}. Undo the change to go on, or "
            f"move {job.folder} and {path.name} beside it away to train anew"
        )


def changed_settings(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """``NAME: OLD, now NEW`` for every override of verl that would make another training.

    More steps are a longer training where the learning rate is constant, and another one where its schedule
    runs over all steps, or a stage over a share of them.
    """
    old, new = _values(before), _values(now)
    out = []
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name) and (not HARMLESS.fullmatch(name) or _counts(name, old, new)):
            out.append(f"{name}: {old.get(name, 'not set')}, now {new.get(name, 'not set')}")
    return out


def _counts(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    staged = any(name.endswith(STAGES) for name in (*old, *new))
    return name == STEPS and (staged or {old.get(SCHEDULE), new.get(SCHEDULE)} != {"constant"})


def _values(words: Sequence[str]) -> dict[str, str]:
    """Of several overrides for one name the last, of a mapping each of its leaves; words without ``=`` are
    the program."""
    found: dict[str, str] = {}
    for word in words:
        name, given, value = word.partition("=")
        if given:
            found |= dict(_leaves(name.lstrip("+~"), value))
    for name in found:
        if PATHS.fullmatch(name):
            found[name] = PurePosixPath(found[name].strip("'\"")).name
    return found


def _leaves(name: str, value: str) -> Iterator[tuple[str, str]]:
    """A mapping in Hydra's grammar, ``{a:1,b:{c:2}}``, as one name for each of its values."""
    if not (value.startswith("{") and value.endswith("}")):
        yield name, value
        return
    for item in _split(value[1:-1]):
        key, _, inner = item.partition(":")
        yield from _leaves(f"{name}.{key.strip()}", inner.strip())


def _split(text: str) -> Iterator[str]:
    """At commas that are in no quotes and no brackets."""
    depth, quote, start = 0, "", 0
    for at, c in enumerate(text):
        if quote:
            quote = "" if c == quote and text[at - 1] != "\\" else quote
        elif c in "'\"":
            quote = c
        elif c in "[{":
            depth += 1
        elif c in "]}":
            depth -= 1
        elif c == "," and not depth:
            yield text[start:at]
            start = at + 1
    if text[start:].strip():
        yield text[start:]
