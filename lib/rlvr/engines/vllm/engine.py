"""The only module that talks to vLLM: one process for one copy of the model, vLLM's own data parallelism
for several."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from rlvr.engines.config import SamplingConfig
from rlvr.engines.vllm.prompts import Request

INSTALL = (
    "`make env-vllm` makes an environment with its build for CPU; for NVIDIA GPUs pip install -e '.[vllm]' "
    "in one of its own (docs/vllm.md)"
)


class Completion(NamedTuple):
    """What vLLM answered to one request."""

    token_ids: list[int]  # the token that ended it included
    finish_reason: str  # stop | length
    stopped_by: int | str | None  # a token id, a string, or None: the tokenizer's end token
    text: str  # vLLM's own text; empty unless stop strings were given
    log_probs: list[float] | None


class Engine(Protocol):
    def generate(
        self, requests: list[Request], on_done: Callable[[Completion], None]
    ) -> list[Completion]: ...

    def close(self) -> None: ...


def import_vllm() -> Any:
    """vLLM, imported when it is first needed.

    Raises:
        ImportError: not installed, it cannot be loaded, or it has no device here; says what to do.
    """
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        import vllm
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "vllm":
            raise
        raise ImportError(f"engine vllm needs vLLM, which is not installed here: {INSTALL}") from error
    except RuntimeError as error:
        if "torchvision" not in str(error):
            raise
        raise ImportError(
            f"vLLM cannot be loaded because torchvision does not fit this torch ({error}): "
            "pip uninstall -y torchvision torchaudio torchcodec"
        ) from error
    from vllm.platforms import current_platform

    if not current_platform.device_type:  # a build for GPUs, and none here
        raise ImportError(f"engine vllm finds no device that this build of vLLM runs on: {INSTALL}")
    return vllm


def device_name() -> str:
    from vllm.platforms import current_platform

    return current_platform.get_device_name()


@contextmanager
def open_engine(
    folder: Path, config: SamplingConfig, max_model_len: int, stop_token_ids: list[int]
) -> Iterator[Engine]:
    """The model of ``folder``, loaded; unloaded at the end of the block.

    Raises:
        ValueError: what vLLM on this device does not compute.
    """
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _check_cpu(folder, config)
    arguments: dict[str, Any] = {
        "model": str(folder),
        "dtype": config.dtype,
        "max_model_len": max_model_len,
        "tensor_parallel_size": config.tensor_parallel_size,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "enforce_eager": config.enforce_eager,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",  # nothing is sampled with settings that the model's folder names
        "seed": 0,  # every request has its own
        "disable_log_stats": True,
    }
    if config.max_num_seqs is not None:
        arguments["max_num_seqs"] = config.max_num_seqs
    if config.kv_cache_gib is not None:
        arguments["kv_cache_memory_bytes"] = int(config.kv_cache_gib * 2**30)
    environment, kind = {"HF_HUB_OFFLINE": "1"}, _InProcess  # a model is a folder: nothing to ask the hub for
    if config.data_parallel_size > 1:
        kind = _Parallel
        arguments["data_parallel_size"] = config.data_parallel_size
    else:
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if config.batch_invariant:
        environment["VLLM_BATCH_INVARIANT"] = "1"
    with _environment(environment), _callers_state():
        engine = kind(arguments, config, stop_token_ids)
        try:
            yield engine
        finally:
            engine.close()


def _check_cpu(folder: Path, config: SamplingConfig) -> None:
    from transformers import AutoConfig
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    if config.batch_invariant:
        raise ValueError("batch_invariant=True: allowed on CPU is False (vLLM has these kernels for GPUs)")
    model = AutoConfig.from_pretrained(folder, local_files_only=True)
    head_dim = getattr(model, "head_dim", None)
    sizes = CPUAttentionBackend.get_supported_head_sizes()
    if head_dim is not None and head_dim not in sizes:
        raise ValueError(
            f"head_dim={head_dim}: vLLM's attention on CPU computes heads of {', '.join(map(str, sizes))}; "
            "rlvr.engines.vllm.widen_heads makes a policy of the local engine fit"
        )


def _parameters(request: Request, config: SamplingConfig, stop_token_ids: list[int]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        seed=request.engine_seed,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        max_tokens=config.max_tokens,
        stop=list(config.stop),
        stop_token_ids=stop_token_ids,
        logprobs=0 if config.log_probs else None,  # 0: of the sampled token alone
        flat_logprobs=True,
        detokenize=bool(config.stop),  # otherwise the tokenizer decodes the whole response at once
        skip_special_tokens=config.skip_special_tokens,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _completion(output: Any, request: Request) -> Completion:
    (answer,) = output.outputs
    if answer.finish_reason not in ("stop", "length"):
        raise RuntimeError(f"vLLM ended the request {request.key} with {answer.finish_reason!r}")
    token_ids = list(answer.token_ids)
    log_probs = None if answer.logprobs is None else list(answer.logprobs.logprobs)
    if log_probs is not None and len(log_probs) != len(token_ids):
        raise RuntimeError(f"vLLM gave {len(log_probs)} log-probs for {len(token_ids)} tokens")
    return Completion(token_ids, answer.finish_reason, answer.stop_reason, answer.text, log_probs)


class _InProcess:
    """One copy of the model. All requests of a part are handed over before the first step, in this process,
    so that what is computed together does not depend on timing."""

    def __init__(self, arguments: dict[str, Any], config: SamplingConfig, stop_token_ids: list[int]):
        from vllm import EngineArgs, LLMEngine

        self.config, self.stop_token_ids = config, stop_token_ids
        self.engine = LLMEngine.from_engine_args(EngineArgs(**arguments))

    def generate(self, requests: list[Request], on_done: Callable[[Completion], None]) -> list[Completion]:
        from vllm.inputs import tokens_input

        # What earlier parts left in the cache would make a resumed run compute prompts in other pieces.
        self.engine.reset_prefix_cache()
        for index, request in enumerate(requests):
            parameters = _parameters(request, self.config, self.stop_token_ids)
            self.engine.add_request(str(index), tokens_input(request.prompt.ids), parameters)
        done: dict[int, Completion] = {}
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                if output.finished:
                    index = int(output.request_id)
                    done[index] = _completion(output, requests[index])
                    on_done(done[index])
        return [done[index] for index in range(len(requests))]

    def close(self) -> None:
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self.engine.engine_core.shutdown()
        del self.engine
        cleanup_dist_env_and_memory()


class _Parallel:
    """Several copies of the model, started and fed by vLLM. Its event loop has a thread of its own, so that
    this also works where a loop is running already (notebooks)."""

    def __init__(self, arguments: dict[str, Any], config: SamplingConfig, stop_token_ids: list[int]):
        self.config, self.stop_token_ids, self.parts = config, stop_token_ids, 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.engine = self._run(self._start(arguments))

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    async def _start(self, arguments: dict[str, Any]) -> Any:
        from vllm import AsyncEngineArgs, AsyncLLMEngine

        return AsyncLLMEngine.from_engine_args(AsyncEngineArgs(**arguments))

    def generate(self, requests: list[Request], on_done: Callable[[Completion], None]) -> list[Completion]:
        return self._run(self._generate(requests, on_done))

    async def _generate(
        self, requests: list[Request], on_done: Callable[[Completion], None]
    ) -> list[Completion]:
        from vllm.inputs import tokens_input

        await self.engine.reset_prefix_cache()
        self.parts += 1

        async def one(index: int, request: Request) -> Completion:
            parameters = _parameters(request, self.config, self.stop_token_ids)
            prompt = tokens_input(request.prompt.ids)
            async for output in self.engine.generate(prompt, parameters, f"{self.parts}-{index}"):
                if output.finished:
                    completion = _completion(output, request)
                    on_done(completion)
                    return completion
            raise RuntimeError(f"vLLM did not finish the request {request.key}")

        return list(await asyncio.gather(*(one(i, r) for i, r in enumerate(requests))))

    def close(self) -> None:
        self.engine.shutdown()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """vLLM reads some settings from the environment, and its workers inherit it."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _callers_state() -> Iterator[None]:
    """vLLM in this process seeds every global generator, and on CPU disables ``torch.set_num_threads``."""
    states, set_num_threads = (random.getstate(), np.random.get_state()), torch.set_num_threads
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_num_threads = set_num_threads
