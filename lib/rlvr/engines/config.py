"""What is sampled and how, for every engine; wrong values are refused here, before a model is loaded."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

DTYPES = ("auto", "float32", "bfloat16", "float16")
MODEL_TEMPLATE = "model"  # the value of chat_template that means the tokenizer's own


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Settings of one evaluation run; everything here decides whether an unfinished run may be continued.

    Sampling:
        max_tokens: limit of a response in tokens, its end token included. Every response has the whole of it.
        samples: responses per problem and seed.
        seeds: each is a run of its own with ``samples`` responses per problem, in column ``seed``.
        temperature: 0 (greedy) or 0.01..2; below 0.01 vLLM would raise it.
        top_p, top_k: 1 and 0 keep every token.
        stop: strings that end a response; not part of its text.
        stop_token_ids: tokens that end a response besides the end tokens of the model (all ids of its
            generation config, and the tokenizer's).
        log_probs: keep token ids and their log-probs *under the distribution they were sampled from*
            (temperature, top_p and top_k included), as the local engine does [choice: also verl's].
        skip_special_tokens: leave special tokens out of the text. End tokens are left out in any case.

    Prompts:
        chat_template: None: the prompt as it is; "model": the template saved with the tokenizer; else the
            path of a Jinja file.
        chat_template_kwargs: for the template, e.g. ``{"enable_thinking": False}``.
        system_prompt: a system turn in front; needs a template.
        prompt_style: wording around a benchmark's problem (:func:`rlvr.problems.benchmarks.prompt_for`);
            None is the benchmark's own. Other prompts are taken as they are.

    Batches (all but the local engine, which computes every response of a policy at once):
        max_model_len: limit of prompt and response together; None: the longest prompt + ``max_tokens``.
        chunk_size: requests per part. A part is one batch and is written as a whole: what a kill costs is at
            most one part, and the end of each part, when few responses still run, leaves the engine idle.

    vLLM alone:
        dtype: auto (the checkpoint's), float32, bfloat16, float16.
        tensor_parallel_size: accelerators that share one model.
        data_parallel_size: copies of it on this node, as vLLM's own data parallelism.
        gpu_memory_utilization: share of the memory that vLLM may take, in (0, 1].
        kv_cache_gib: size of the key-value cache; None: what is left of that share.
        max_num_seqs: requests computed at once; None: vLLM's own.
        enforce_eager: no compilation, no CUDA graphs.
        batch_invariant: vLLM's kernels whose results do not depend on the batch (not on CPU).

    Raises:
        ValueError: names the field, the value and what is allowed.
    """

    max_tokens: int
    samples: int = 1
    seeds: tuple[int, ...] = (0,)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    log_probs: bool = False
    skip_special_tokens: bool = True

    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    system_prompt: str | None = None
    prompt_style: str | None = None

    dtype: str = "auto"
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    kv_cache_gib: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    enforce_eager: bool = False
    batch_invariant: bool = False
    chunk_size: int = 1024

    def __post_init__(self) -> None:
        for name in ("seeds", "stop", "stop_token_ids"):
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
        for name, (good, allowed) in _RULES.items():
            value = getattr(self, name)
            if not good(value):
                raise ValueError(f"{name}={value!r}: allowed are {allowed}")
        if self.temperature == 0 and self.samples * len(self.seeds) > 1:
            raise ValueError(
                f"samples={self.samples} and seeds={self.seeds} at temperature=0: every sample would be the "
                "same text; allowed are samples=1 and one seed"
            )
        if self.chat_template is None:
            for name in ("system_prompt", "chat_template_kwargs"):
                if getattr(self, name):
                    raise ValueError(
                        f"{name}={getattr(self, name)!r} with chat_template=None: allowed with "
                        f'chat_template="{MODEL_TEMPLATE}" or the path of a template'
                    )
        if self.max_model_len is not None and self.max_model_len <= self.max_tokens:
            raise ValueError(
                f"max_model_len={self.max_model_len}: allowed are numbers above max_tokens={self.max_tokens} "
                "(it holds the prompt as well)"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingConfig:
        """From names and values, as a YAML file gives them; an unknown name is a ValueError."""
        known = {f.name for f in fields(cls)}
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise ValueError(
                    f"SamplingConfig has no field {name!r}: {hint}allowed are {', '.join(sorted(known))}"
                )
        if "max_tokens" not in values:
            raise ValueError("max_tokens is missing: allowed are whole numbers >= 1")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; :meth:`from_dict` reads it."""
        values = asdict(self) | {"chat_template_kwargs": dict(self.chat_template_kwargs)}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}

    def refuse_others(self, used: Collection[str], engine: str) -> None:
        """ValueError if a field that ``engine`` does not use is not at its default."""
        for one in fields(self):
            value = getattr(self, one.name)
            default = {} if one.name == "chat_template_kwargs" else one.default
            if one.name not in used and value != default:
                raise ValueError(
                    f"{one.name}={value!r}: engine {engine} has no such setting; allowed is {default!r}"
                )


_Rule = tuple[Callable[[Any], bool], str]


def _whole(low: int, optional: bool = False) -> _Rule:
    def good(value: Any) -> bool:
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= low
        return whole or (optional and value is None)

    return good, f"whole numbers >= {low}" + (" and None" if optional else "")


def _number(inside: Callable[[float], bool], allowed: str, optional: bool = False) -> _Rule:
    def good(value: Any) -> bool:
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        return (number and inside(value)) or (optional and value is None)

    return good, allowed


def _each(good_item: Callable[[Any], bool], allowed: str, empty: bool = True) -> _Rule:
    def good(value: Any) -> bool:
        return isinstance(value, tuple) and all(map(good_item, value)) and (empty or bool(value))

    return good, allowed


def _some(kinds: type | tuple[type, ...], allowed: str) -> _Rule:
    return (lambda value: isinstance(value, kinds)), allowed


_FLAG = _some(bool, "True and False")
_COUNT, _SEED = _whole(1), _whole(0)[0]
_RULES: dict[str, _Rule] = {
    "max_tokens": _COUNT,
    "samples": _COUNT,
    "seeds": (
        lambda v: (
            isinstance(v, tuple)
            and all(map(_SEED, v))
            and all(s < 2**63 for s in v)
            and 0 < len(v) == len(set(v))
        ),
        "one or more different whole numbers in 0..2**63-1",
    ),
    "temperature": _number(lambda t: t == 0 or 0.01 <= t <= 2, "0 and numbers in 0.01..2"),
    "top_p": _number(lambda p: 0 < p <= 1, "numbers in (0, 1]"),
    "top_k": _whole(0),
    "stop": _each(lambda s: isinstance(s, str) and s != "", "a list of strings that are not empty"),
    "stop_token_ids": _each(_SEED, "a list of token ids"),
    "log_probs": _FLAG,
    "skip_special_tokens": _FLAG,
    "chat_template": (
        lambda v: v is None or (isinstance(v, str) and v != ""),
        f'None (plain prompts), "{MODEL_TEMPLATE}" (the tokenizer\'s own) and the path of a Jinja file',
    ),
    "chat_template_kwargs": _some(Mapping, "a mapping of names to values"),
    "system_prompt": _some((str, type(None)), "a string and None"),
    "prompt_style": _some((str, type(None)), "the name of a style and None (the benchmark's own)"),
    "dtype": ((lambda v: isinstance(v, str) and v in DTYPES), ", ".join(DTYPES)),
    "tensor_parallel_size": _COUNT,
    "data_parallel_size": _COUNT,
    "gpu_memory_utilization": _number(lambda x: 0 < x <= 1, "numbers in (0, 1]"),
    "kv_cache_gib": _number(lambda x: x > 0, "numbers above 0 and None", optional=True),
    "max_model_len": _whole(2, optional=True),
    "max_num_seqs": _whole(1, optional=True),
    "enforce_eager": _FLAG,
    "batch_invariant": _FLAG,
    "chunk_size": _COUNT,
}
