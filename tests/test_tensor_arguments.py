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


@pytest.mark.fault("broadcast-the-wrong-way")
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    rows, width = 1000, 100
    half = torch.full((rows, width), 0.5, dtype=dtype)
    mask = torch.ones(rows, width)
    assert losses.aggregate(half, mask).item() == pytest.approx(0.5, abs=1e-6)
    assert losses.aggregate(torch.ones(7, 143, dtype=dtype), torch.ones(7, 143), "token-sum").item() == 1001
    ones = torch.ones(1, 70000, dtype=dtype)
    for marks in (None, ones):
        log_s, share = ratios.sequence_log_ratio(ones, ones, marks)
        assert log_s.item() == 1 and log_s.dtype == share.dtype == torch.float32
    block = ratios.block_log_ratio(half, torch.zeros(rows, width, 1, dtype=dtype), [0.7, 0.3])
    assert block.dtype == torch.float32 and block[0, 0].item() == pytest.approx(0.35)


def test_a_sequence_ratio_keeps_its_gradient():
    for marks in (None, torch.tensor([[1, 0, 1]])):
        x = torch.tensor([[0.1, 0.2, 0.3]], requires_grad=True)
        ratios.sequence_log_ratio(x, torch.ones(1, 3), marks)[0].sum().backward()
        assert torch.equal(x.grad, torch.ones(1, 3) / 3 if marks is None else torch.tensor([[0.5, 0, 0.5]]))


ONE = torch.ones(2)
PAIR = torch.ones(2, 1)
NUMBERS = [None, "10", True, float("nan"), -1, [1], 10**400]
SCALARS = [
    (rewards.overlong_penalty, (torch.tensor([3, 4]),), {"max_length": 10, "buffer": 4}, "max_length"),
    (rewards.overlong_penalty, (torch.tensor([3, 4]),), {"max_length": 10, "buffer": 4}, "buffer"),
    (rewards.overlong_penalty, (torch.tensor([3, 4]),), {"max_length": 10, "buffer": 4}, "penalty_factor"),
    (rewards.recoverability, (ONE, PAIR), {}, "scale"),
    (rewards.shaped_reward, (ONE, ONE), {}, "shaping_weight"),
    (rewards.correction_reward, (PAIR, PAIR.bool()), {}, "rewrite_penalty"),
    (advantages.group_relative, (ONE, [0, 0]), {}, "eps"),
    (advantages.whiten, (torch.ones(2, 2), torch.ones(2, 2)), {}, "eps"),
    (advantages.gae, (torch.ones(2, 2),) * 3, {}, "gamma"),
    (advantages.gae, (torch.ones(2, 2),) * 3, {}, "lam"),
]


@pytest.mark.parametrize(("function", "given", "named", "name"), SCALARS)
def test_wrong_numbers_are_refused_by_name(function, given, named, name):
    function(*given, **named)
    for bad in NUMBERS:
        with pytest.raises(ValueError, match=rf"{name}=.*allowed are"):
            function(*given, **{**named, name: bad})


@pytest.mark.parametrize("weights", [None, 0.5, [0.5], ["a", "b"], [0.5, float("nan")], [None, 1.0]])
def test_wrong_block_weights_are_refused(weights):
    with pytest.raises(ValueError, match="weights"):
        ratios.block_log_ratio(FLOAT, MTP[..., :1], weights)


WRONG_IDS = [None, 3, torch.zeros(2, 1), torch.zeros(2, device="meta"), [[0], [1]], {0, 1}, [0]]


@pytest.mark.parametrize("ids", WRONG_IDS)
def test_wrong_group_ids_are_refused(ids):
    for function in (advantages.group_relative, advantages.informative_groups):
        with pytest.raises(ValueError, match="group_ids"):
            function(ONE, ids)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (advantages.group_relative, (ONE, [0, 1])),
        (advantages.informative_groups, (ONE, [0, 1])),
        (rewards.overlong_penalty, (torch.tensor([3, 4]), 10, 4)),
        (rewards.mask_truncated, (MASK, torch.zeros(B, dtype=torch.bool))),
        (rewards.accepted_corrections, (ONE, PAIR, PAIR.bool())),
        (rewards.recoverability, (ONE, PAIR)),
        (rewards.shaped_reward, (ONE, ONE)),
        (rewards.correction_reward, (PAIR, PAIR.bool())),
        (rewards.best_correction, (PAIR.bool(), PAIR)),
        (rewards.unchanged_share, (MASK.bool(), MASK)),
        (rewards.changed_token_mask, (MASK.bool(), torch.ones(B, dtype=torch.bool), MASK)),
    ],
)
def test_tensors_without_plain_memory_are_refused(function, given):
    function(*given)
    for index, value in enumerate(given):
        if not isinstance(value, torch.Tensor):
            continue
        for bad in (value.to("meta"), value.to_sparse(), value.to(torch.complex64)):
            with pytest.raises(ValueError, match="allowed"):
                function(*given[:index], bad, *given[index + 1 :])
