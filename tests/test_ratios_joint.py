"""Sequence and block ratios, and the discounted sum of what follows, against loops from their formulas."""

import itertools
import math

import numpy as np
import pytest
import torch

from rlvr.ratios import block_log_ratio, block_mask, block_weights, discounted_future, sequence_log_ratio


def random_logs(rows=5, width=12, seed=0):
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, width, generator=g) < 0.7
    mask[1] = False
    logs = torch.randn(rows, width, generator=g, dtype=torch.float64)
    return torch.where(mask, logs, 0.0), mask


@pytest.mark.parametrize("marked", [False, True])
def test_sequence_log_ratio_is_a_mean_over_marked_tokens(marked):
    logs, mask = random_logs()
    marks = torch.rand(mask.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    log_s, share = sequence_log_ratio(logs, mask, marks if marked else None)
    assert log_s.shape == (5, 1)
    for i in range(5):
        at = [t for t in range(12) if mask[i, t] and (marks[i, t] or not marked)]
        expected = sum(float(logs[i, t]) for t in at) / max(1, len(at))
        assert log_s[i, 0].item() == pytest.approx(expected, abs=1e-15)
        assert share[i].tolist() == [1 / len(at) if t in at else 0.0 for t in range(12)]


def test_block_weights():
    assert block_weights(1) == [1.0]
    assert block_weights(3, 0.36, 0.8) == pytest.approx([0.64, 0.2, 0.16])
    assert block_weights(5, 0.2, 1.0) == pytest.approx([0.8, 0.05, 0.05, 0.05, 0.05])
    for blocks in range(2, 9):
        weights = block_weights(blocks, 0.2, 0.8)
        assert len(weights) == blocks and sum(weights) == pytest.approx(1.0)
        assert weights[0] == pytest.approx(0.8)
        assert [b / a for a, b in itertools.pairwise(weights[1:])] == pytest.approx([0.8] * (blocks - 2))


def test_block_mask_and_log_ratio():
    mask = torch.tensor([[1, 1, 0, 1, 1]])
    exists = block_mask(mask, 3)
    # t sees t+1, t+2 if they and t are valid
    assert exists[0].tolist() == [[True, False], [False, True], [False, False], [True, False], [False, False]]
    logs, mask = random_logs()
    g = torch.Generator().manual_seed(2)
    modules = torch.randn(5, 12, 2, generator=g, dtype=torch.float64)
    modules = torch.where(block_mask(mask, 3), modules, 0.0)
    weights = [0.7, 0.2, 0.1]
    result = block_log_ratio(logs, modules, weights)
    for i, t in mask.nonzero().tolist():
        expected = 0.7 * logs[i, t]
        for k in (1, 2):
            if t + k < 12 and mask[i, t + k]:
                expected += weights[k] * modules[i, t, k - 1]
        assert result[i, t].item() == pytest.approx(expected.item(), abs=1e-15)
    assert block_mask(mask, 1).shape == (5, 12, 0)
    assert torch.equal(block_log_ratio(logs, modules[..., :0], [1.0]), logs)


@pytest.mark.parametrize("half_life", [0.01, 0.5, 1.0, 32.0, 1e6, math.inf])
def test_discounted_future(half_life):
    values, mask = random_logs(width=40)
    result = discounted_future(values, mask, half_life)
    for i in range(len(mask)):
        at = mask[i].nonzero().flatten().tolist()
        for k, t in enumerate(at):
            expected = sum(2 ** (-(j - k) / half_life) * float(values[i, at[j]]) for j in range(k, len(at)))
            assert result[i, t].item() == pytest.approx(expected, rel=1e-12, abs=1e-13)


def test_discounted_future_of_a_long_response():
    # longer than the range of g^-k in float64, with holes at the seams of the chunks
    g = torch.Generator().manual_seed(0)
    mask = torch.rand(2, 3000, generator=g) < 0.9
    mask[:, 895:905] = False
    values = torch.where(mask, torch.randn(2, 3000, generator=g, dtype=torch.float64), 0.0)
    result = discounted_future(values, mask, 1.0)
    for i in range(2):
        following = 0.0
        for t in reversed(range(3000)):
            if mask[i, t]:
                following = float(values[i, t]) + following / 2
                assert result[i, t].item() == pytest.approx(following, rel=1e-11, abs=1e-12)
    assert np.isfinite(result.numpy()).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: block_weights(0), "blocks=0"),
        (lambda: block_weights(True), "blocks=True"),
        (lambda: block_weights(3, 1.0), "mtp_weight=1.0"),
        (lambda: block_weights(3, -0.1), "mtp_weight=-0.1"),
        (lambda: block_weights(3, 0.2, 0.0), "decay=0.0"),
        (lambda: block_weights(3, 0.2, 1.1), "decay=1.1"),
        (lambda: block_log_ratio(torch.zeros(1, 2), torch.zeros(1, 2, 1), [1.0]), "weights has 1 entries"),
        (lambda: discounted_future(torch.zeros(1, 2), torch.ones(1, 2), 0.0), "half_life=0.0"),
        (lambda: discounted_future(torch.zeros(1, 2), torch.ones(1, 2), math.nan), "half_life=nan"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
