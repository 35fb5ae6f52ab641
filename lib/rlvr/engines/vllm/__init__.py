"""vLLM as the evaluation engine: many samples of many problems, resumable. How to use it: ``docs/vllm.md``.

    from rlvr.engines.vllm import SamplingConfig, sample

    config = SamplingConfig(max_tokens=8192, samples=32, temperature=0.6, chat_template="model")
    frame = sample("models/Qwen3-1.7B", problems, config, out="runs/aime24")

vLLM itself is imported when sampling starts. Written against vLLM 0.32.0.
"""

from rlvr.engines.config import SamplingConfig
from rlvr.engines.vllm.embedded import fitting_folder, widen_heads
from rlvr.engines.vllm.prompts import request_seed
from rlvr.engines.vllm.sampling import sample
from rlvr.engines.vllm.store import read_run, read_samples

__all__ = [
    "SamplingConfig",
    "fitting_folder",
    "read_run",
    "read_samples",
    "request_seed",
    "sample",
    "widen_heads",
]
