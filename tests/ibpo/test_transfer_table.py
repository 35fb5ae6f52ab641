"""Transfer of several policies as a table."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlvr.analysis.backward_transfer import inner_products, transfer
from rlvr.analysis.transfer_table import _over_seeds, transfer_table
from rlvr.evaluation import Estimate, seed_interval
from rlvr.reporting.cells import NOT_MEASURED
from rlvr.reporting.table import Table


def products(seed, mean=1.0, batches=8, noise=0.1):
    generator = torch.Generator().manual_seed(seed)
    base, own = (mean + noise * torch.randn(batches, 20, generator=generator) for _ in range(2))
    return inner_products(base, own)


def test_rows_are_the_transfers_and_their_mean():
    trained = {seed: products(seed) for seed in (3, 5)}
    table = transfer_table(products(0), trained, 7, 0.9)
    assert table.index.tolist() == [
        "base model", "after IBPO, seed 3", "after IBPO, seed 5", "after IBPO, mean over seeds",
    ]  # fmt: skip
    assert table.loc["base model", "cosine"].seeds == (7,)
    own = {seed: transfer(p, confidence=0.9).cosine.value for seed, p in trained.items()}
    assert table.loc["after IBPO, seed 5", "cosine"].value == own[5]
    mean = table.loc["after IBPO, mean over seeds", "cosine"]
    assert mean.value == pytest.approx(np.mean(list(own.values())), abs=0.01) and mean.value > 0.9
    shares = [transfer(p, confidence=0.9).ratio.value for p in trained.values()]
    expected = seed_interval(shares, [3, 5], confidence=0.9)
    assert table.loc["after IBPO, mean over seeds", "share of a base step"] == expected
    Table.from_frame(table)


def test_a_length_that_noise_hides_is_not_measured():
    """Gradients without a mean: some of the squares are estimated below 0."""
    hidden = [
        p for p in (products(seed, mean=0.0, noise=1.0) for seed in range(40)) if transfer(p).ratio is None
    ]
    table = transfer_table(hidden[0], {1: hidden[1]}, 0, 0.9)
    assert table.loc["base model", "share of a base step"] is NOT_MEASURED
    assert table.loc["after IBPO, mean over seeds", "share of a base step"] is NOT_MEASURED
    assert isinstance(table.loc["base model", "inner product"], Estimate)


def test_the_interval_of_cosines_is_fisher_s():
    """Cosines 0.6 and 0.96, whose z are 0.6931 and 1.9459: mean 1.3195, half width 63.657 / 2 of their
    difference at 99%; plain Student would reach from -10 to 12."""
    found = _over_seeds({0: 0.6, 1: 0.96}, 0.99, cosine=True)
    assert found.value == pytest.approx(np.tanh(1.31952), abs=1e-4)
    half = 63.65674 * 1.25276 / 2
    assert found.low == pytest.approx(np.tanh(1.31952 - half), abs=1e-4)
    assert -1 <= found.low < found.value < found.high <= 1
    three = _over_seeds({0: 0.5, 1: 0.6, 2: 0.7}, 0.95, cosine=True)
    z = np.arctanh([0.5, 0.6, 0.7])
    half = 4.302653 * z.std(ddof=1) / np.sqrt(3)
    assert (three.low, three.high) == pytest.approx(tuple(np.tanh([z.mean() - half, z.mean() + half])))
    unknown = _over_seeds({0: 0.6, 1: 1.02}, 0.95, cosine=True)
    assert unknown.low is None and unknown.value == pytest.approx(0.81)
