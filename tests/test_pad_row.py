"""Where engines differ below the loss: the row of the pad token in the embedding (docs/same-name.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from local_fixtures import random_policy, random_prompts

from rlvr.engines.local.packing import pack
from rlvr.engines.local.policy import flatten, unflatten
from rlvr.engines.local.update import response_log_prob

PAGE = Path(__file__).resolve().parents[1] / "docs/same-name.md"
LENGTH = 4


def embedding_gradients(responses):
    """Gradients of the responses' log-probability by the embedding: the local engine's, transformers'."""
    policy, prompts = random_policy(seed=1), random_prompts(1, seed=1)
    lengths = torch.full((len(responses),), LENGTH)
    packed = pack(prompts, responses, lengths, len(responses))
    theta = policy.theta.clone().requires_grad_()
    response_log_prob(theta, policy.shape, packed, 1.0)[0].sum().backward()
    model = policy.to_hf()
    pad = model.config.pad_token_id
    assert model.get_input_embeddings().padding_idx == pad
    for row in responses:
        ids = torch.tensor([prompts[0] + row.tolist()])
        log_prob = model(ids).logits[0].log_softmax(-1)[len(prompts[0]) - 1 : -1]
        log_prob.gather(1, row[:, None]).sum().backward()
    theirs = flatten({name: p.grad for name, p in model.named_parameters()}, policy.shape)
    return unflatten(theta.grad, policy.shape).embed, unflatten(theirs, policy.shape).embed, pad


@pytest.mark.fault("padding-token-gets-no-gradient")
def test_pad_row_of_the_embedding():
    """The pad token as a sampled token: its row alone differs, by the part that it gets as an input."""
    responses = torch.randint(2, 60, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    ours, theirs, pad = embedding_gradients(responses)
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)
    responses[:, 1] = pad
    ours, theirs, pad = embedding_gradients(responses)
    difference = (ours - theirs).abs().amax(1)
    assert difference[pad] > 0.01
    difference[pad] = 0
    assert difference.max() < 2e-4
    # transformers trains it as an output all the same (tied weights)
    assert theirs[pad].abs().max() > 0.01
    assert "`test_pad_row_of_the_embedding`" in PAGE.read_text()
