"""Differences between horizons on the same records, per seed."""

import numpy as np
import pandas as pd
import pytest

from rlvr.analysis.corrections import pool
from rlvr.analysis.horizons import switch_difference, variance_difference
from rlvr.ratios import forward_trace

TRACE = {"horizon": 4, "trace_clip": (0.5, 2.0), "ratio_clip": 3.0}


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(0)
    rows = []
    for seed in (0, 1, 2):
        for response in range(12):
            n = int(rng.integers(3, 9))
            old = -rng.random(n) * 2
            rows.append(
                pd.DataFrame(
                    {
                        "seed": seed,
                        "step": response // 4,
                        "run_response": 100 * seed + response,
                        "position": range(n),
                        "token": 0,
                        "log_prob": old + 0.3 * rng.standard_normal(n),
                        "old_log_prob": old,
                    }
                )
            )
    return pd.concat(rows, ignore_index=True)


def rows_of(records, seed, step=None):
    part = records[records["seed"] == seed]
    part = part if step is None else part[part["step"] == step]
    for _, response in part.groupby("run_response"):
        yield (response["log_prob"] - response["old_log_prob"]).to_numpy()


def traces(log_ratio, horizon):
    import torch

    one = torch.tensor(log_ratio)[None]
    return forward_trace(one, torch.ones_like(one), horizon, 3.0, (0.5, 2.0))[0].numpy()


def test_variance_by_a_loop(records):
    expected = []
    for seed in (0, 1, 2):
        medians = []
        for horizon in (8, 2):
            by_step = [
                np.var(np.concatenate([traces(row, horizon) for row in rows_of(records, seed, step)]))
                for step in (0, 1, 2)
            ]
            medians.append(np.median(by_step))
        expected.append(medians[0] - medians[1])
    found = variance_difference(pool(records), 8, 2, TRACE, 0.95)
    assert found.value == pytest.approx(np.mean(expected), rel=1e-9)
    assert found.seeds == (0, 1, 2) and found.low < found.value < found.high


def test_switches_by_a_loop(records):
    expected = []
    for seed in (0, 1, 2):
        rates = []
        for horizon in (1, 8):
            switches = pairs = 0
            for row in rows_of(records, seed):
                weight = np.exp(row) * traces(row, horizon)
                side = np.sign(weight - 1)
                switches += int((side[1:] * side[:-1] < 0).sum())
                pairs += len(row) - 1
            rates.append(switches / pairs)
        expected.append(rates[0] - rates[1])
    found = switch_difference(pool(records), 1, 8, TRACE, 0.95)
    assert found.value == pytest.approx(np.mean(expected), rel=1e-12)
    assert switch_difference(pool(records), 4, 4, TRACE, 0.95).value == 0
