"""Every public function on tensors refuses wrong ones by name: no mask of 0.5, no silent broadcasting."""

import numpy as np
import pytest
import torch

from rlvr import advantages, losses, ratios, rewards

B, T = 3, 5
MASK = torch.ones(B, T)
FLOAT = -torch.rand(B, T)
MTP = torch.zeros(B, T, 2)

# function, its tensor arguments, the names of those that are 0/1 masks, and the others
CASES = [
    (ratios.log_ratio, {"log_prob": FLOAT, "old_log_prob": FLOAT, "response_mask": MASK}, {}),
    (ratios.token_ratio, {"log_prob": FLOAT, "old_log_prob": FLOAT, "response_mask": MASK}, {}),
    (ratios.forward_trace, {"log_ratio": FLOAT, "response_mask": MASK}, {"horizon": 2}),
    (ratios.sequence_log_ratio, {"log_ratio": FLOAT, "response_mask": MASK, "token_mask": MASK}, {}),
    (ratios.block_mask, {"response_mask": MASK}, {"blocks": 3}),
    (ratios.block_log_ratio, {"log_ratio": FLOAT, "mtp_log_ratio": MTP}, {"weights": [0.5, 0.3, 0.2]}),
    (ratios.discounted_future, {"values": FLOAT, "response_mask": MASK}, {"half_life": 4.0}),
    (losses.aggregate, {"token_loss": FLOAT, "response_mask": MASK}, {}),
    (losses.aggregation_scale, {"response_mask": MASK}, {"loss_agg_mode": "token-mean"}),
    (advantages.gae, {"rewards": FLOAT, "values": FLOAT, "response_mask": MASK}, {}),
    (advantages.whiten, {"advantages": FLOAT, "response_mask": MASK}, {}),
    (
        rewards.mask_truncated,
        {"response_mask": MASK},
        {"truncated": torch.zeros(B, dtype=torch.bool)},
    ),
    (
        rewards.unchanged_share,
        {"response_mask": MASK},
        {"unchanged": torch.ones(B, T, dtype=torch.bool)},
    ),
]
IDS = [function.__name__ for function, _, _ in CASES]


def wrong(name, value):
    """Tensors and other things that may not stand for ``value``."""
    yield from (None, 1.0, [[1.0] * T] * B, np.ones((B, T)), value[0], value.unsqueeze(0), value.to("meta"))
    yield from (value.to_sparse(), value.to(torch.complex64))
    if "mask" in name:
        for other in (0.5, 2.0, -1.0, float("nan")):
            changed = value.clone()
            changed[1, 2] = other
            yield changed
        yield torch.full((B, T), 2)
    else:
        yield from (value.long(), value.bool())


@pytest.mark.parametrize(("function", "tensors", "others"), CASES, ids=IDS)
def test_wrong_tensors_are_refused_by_name(function, tensors, others):
    function(**tensors, **others)
    for name, value in tensors.items():
        for bad in wrong(name, value):
            if name == "token_mask" and bad is None:
                continue
            with pytest.raises(ValueError, match=rf"({'|'.join(tensors)}) (is|holds) .*allowed"):
                function(**{**tensors, name: bad}, **others)


@pytest.mark.parametrize(("function", "tensors", "others"), [c for c in CASES if len(c[1]) > 1])
def test_shapes_that_would_broadcast_are_refused(function, tensors, others):
    for name, value in tensors.items():
        for bad in (value[:1], value[:, :1], torch.cat([value, value], 1)):
            with pytest.raises(ValueError, match=rf"({'|'.join(tensors)}) is .*allowed"):
                function(**{**tensors, name: bad}, **others)


@pytest.mark.parametrize(("function", "tensors", "others"), CASES, ids=IDS)
def test_masks_may_be_of_any_real_type(function, tensors, others):
    masks = [name for name in tensors if "mask" in name]
    for dtype in (torch.bool, torch.int64, torch.uint8, torch.float64, torch.bfloat16):
        changed = {name: value.to(dtype) if name in masks else value for name, value in tensors.items()}
        function(**changed, **others)
