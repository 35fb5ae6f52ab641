"""vLLM's own parallelism: two copies of the model, and one model in two pieces. Minutes: vLLM starts a
process per piece, which imports everything anew. ``RLVR_VLLM_PARALLEL=1 make test-vllm`` runs it."""

import os

import numpy as np
import pytest
from vllm_fixtures import PROMPTS, config, policy, save

from rlvr.engines.vllm import sample

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("RLVR_VLLM_PARALLEL") != "1", reason="takes minutes: set RLVR_VLLM_PARALLEL=1"
    ),
]


@pytest.mark.parametrize("size", ["data_parallel_size", "tensor_parallel_size"])
def test_two_are_as_one(size, tmp_path):
    model = save(policy(), tmp_path)
    settings = {"samples": 4, "log_probs": True, "chunk_size": 15}
    one = sample(model, PROMPTS, config(**settings), progress=False)
    two = sample(model, PROMPTS, config(**settings, **{size: 2}), tmp_path / "run", progress=False)
    for column in set(one) - {"token_ids", "log_probs"}:
        assert one[column].equals(two[column]), column
    assert all(np.array_equal(a, b) for a, b in zip(one["token_ids"], two["token_ids"], strict=True))
    for a, b in zip(one["log_probs"], two["log_probs"], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=0)
    assert os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") is None
