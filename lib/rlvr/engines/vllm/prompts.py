"""Problems to prompts, and prompts to requests with a seed of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rlvr.engines.config import MODEL_TEMPLATE, SamplingConfig
from rlvr.problems.base import digest


@dataclass(frozen=True, slots=True)
class Prompt:
    """One problem as the model sees it."""

    benchmark: str  # "" for problems that are of none
    problem: str  # unique within the benchmark
    text: str
    ids: list[int]


class Request(NamedTuple):
    """One response that is asked for."""

    prompt: Prompt
    sample: int
    seed: int

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.prompt.benchmark, self.prompt.problem, self.sample, self.seed

    @property
    def engine_seed(self) -> int:
        return request_seed(*self.key)


def request_seed(benchmark: str, problem: str, sample: int, seed: int) -> int:
    """The 63-bit seed that vLLM gets for one response: a hash, so that no two requests share a stream
    and neither the order of problems nor the batch matters."""
    return int(digest("vllm", benchmark, problem, str(sample), str(seed)), 16) >> 1


def requests_of(prompts: list[Prompt], config: SamplingConfig) -> list[Request]:
    """Every request of a run: seed by seed, a problem's samples in a row so that they share its cache."""
    return [Request(p, s, seed) for seed in config.seeds for p in prompts for s in range(config.samples)]


def read_prompts(problems: Iterable[Any], tokenizer: Any, config: SamplingConfig) -> list[Prompt]:
    """Prompts of ``problems``: strings, mappings or objects with ``id``, ``prompt`` and, optionally,
    ``benchmark``. A string's id is the hash of its text. A ``BenchmarkProblem`` is worded by
    ``config.prompt_style``.

    Raises:
        ValueError: no problem, one without id or prompt, an id twice, a prompt that is empty or that the
            tokenizer refuses, or a template that is missing or fails.
    """
    if isinstance(problems, str):
        raise ValueError(f"problems={problems!r}: allowed is a list of problems or of prompts")
    template = chat_template_text(tokenizer, config)
    prompts: dict[tuple[str, str], Prompt] = {}
    for index, problem in enumerate(problems):
        benchmark, name, text = _fields(problem, index, config)
        if (benchmark, name) in prompts:
            of = f" of benchmark {benchmark!r}" if benchmark else ""
            raise ValueError(f"problems[{index}]: id {name!r}{of} occurs twice; an id must be unique")
        if template is not None:
            text = _render(text, tokenizer, template, config)
        try:
            # A template has written the begin token itself, if there is one.
            ids = tokenizer(text, add_special_tokens=template is None)["input_ids"]
        except Exception as error:  # tokenizers raises no narrower kind
            raise ValueError(f"problems[{index}] (id {name!r}) cannot be tokenised: {error}") from error
        if not ids:
            raise ValueError(f"problems[{index}] (id {name!r}): its prompt has no token")
        prompts[benchmark, name] = Prompt(benchmark, name, text, ids)
    if not prompts:
        raise ValueError("problems is empty: allowed is at least one problem")
    return list(prompts.values())


def model_len(prompts: list[Prompt], config: SamplingConfig) -> int:
    """``max_model_len`` of the engine; refuses prompts that would shorten a response.

    vLLM ends a response where the context is full and calls that "length" as well: responses to long
    prompts would then have less room than others, and nothing would say so.
    """
    longest = max(len(p.ids) for p in prompts)
    if config.max_model_len is None:
        return longest + config.max_tokens
    room = config.max_model_len - config.max_tokens
    long = [p for p in prompts if len(p.ids) > room]
    if long:
        worst = max(long, key=lambda p: len(p.ids))
        raise ValueError(
            f"max_model_len={config.max_model_len} leaves {room} tokens for a prompt beside "
            f"max_tokens={config.max_tokens}; {len(long)} of {len(prompts)} prompts are longer, the longest "
            f"(id {worst.problem!r}) has {len(worst.ids)}: allowed are max_model_len >= "
            f"{longest + config.max_tokens}, a smaller max_tokens, or fewer problems"
        )
    return config.max_model_len


def chat_template_text(tokenizer: Any, config: SamplingConfig) -> str | None:
    """The template's source, or None for plain prompts.

    Raises:
        ValueError: the tokenizer has none, or no such file.
    """
    if config.chat_template is None:
        return None
    if config.chat_template == MODEL_TEMPLATE:
        template = getattr(tokenizer, "chat_template", None)
        if not isinstance(template, str):
            raise ValueError(
                f'chat_template="{MODEL_TEMPLATE}": the tokenizer has no single chat template; allowed are '
                "None (plain prompts) and the path of a Jinja file"
            )
        return template
    path = Path(config.chat_template)
    if not path.is_file():
        raise ValueError(f"chat_template={config.chat_template!r}: no such file")
    return path.read_text(encoding="utf-8")


def _fields(problem: Any, index: int, config: SamplingConfig) -> tuple[str, str, str]:
    """(benchmark, id, text) of one problem."""
    if isinstance(problem, str):
        return "", digest("prompt", problem), problem
    if isinstance(problem, Mapping):
        benchmark, name, text = problem.get("benchmark"), problem.get("id"), problem.get("prompt")
    else:
        benchmark, name, text = (getattr(problem, f, None) for f in ("benchmark", "id", "prompt"))
    if not (isinstance(name, str) and isinstance(text, str) and isinstance(benchmark, (str, type(None)))):
        raise ValueError(
            f"problems[{index}] is a {type(problem).__name__} with id={name!r}, benchmark={benchmark!r} and "
            f"a prompt of type {type(text).__name__}: allowed are strings, and problems with a string as id "
            "and prompt"
        )
    if benchmark and not isinstance(problem, Mapping):
        from rlvr.problems.benchmarks import BenchmarkProblem, prompt_for

        if isinstance(problem, BenchmarkProblem):
            text = prompt_for(problem, config.prompt_style)
    return benchmark or "", name, text


def _render(text: str, tokenizer: Any, template: str, config: SamplingConfig) -> str:
    """The chat as text, up to where the model's turn begins."""
    system = [{"role": "system", "content": config.system_prompt}] if config.system_prompt else []
    try:
        return tokenizer.apply_chat_template(
            [*system, {"role": "user", "content": text}],
            chat_template=template,
            tokenize=False,
            add_generation_prompt=True,
            **config.chat_template_kwargs,
        )
    except Exception as error:  # whatever a template raises, e.g. that it knows no system turn
        raise ValueError(f"chat_template={config.chat_template!r} fails: {error}") from error
