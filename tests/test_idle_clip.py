"""A clip that never acts is named once, and only where it could have acted."""

from __future__ import annotations

import math

import pytest
import torch

from rlvr import objectives
from rlvr.engines.idle_clip import PATIENCE, IdleClip

ROWS, WIDTH = 8, 6


def metrics_of(name, spread, seed, **parameters):
    """Of one update with token log ratios of this spread (nats), as numbers."""
    g = torch.Generator().manual_seed(seed)
    old = -1 - torch.rand(ROWS, WIDTH, generator=g)
    new = (old + spread * torch.randn(ROWS, WIDTH, generator=g)).clamp(max=-1e-3)
    advantages = torch.randn(ROWS, generator=g)
    _, metrics = objectives.get(name)(new, old, advantages, torch.ones(ROWS, WIDTH), **parameters)
    return {key: float(value) for key, value in metrics.items()}


def said(name, spread, updates, **parameters):
    """(update, text) of each warning over so many updates."""
    idle = IdleClip(objectives.get(name), parameters)
    texts = [(step, idle(metrics_of(name, spread, step, **parameters))) for step in range(1, updates + 1)]
    return [(step, text) for step, text in texts if text]


# huggingface/trl#3834: GSPO with the inherited epsilon 0.2
@pytest.mark.fault("clip-that-never-acts")
@pytest.mark.parametrize("name", ["gspo", "gspo_token"])
def test_a_token_clip_on_a_sequence_ratio_is_named_once(name):
    ((step, text),) = said(name, 0.02, 3 * PATIENCE, clip_low=0.2, clip_high=0.28)
    assert step == PATIENCE == 50
    assert f"{name}: its clip or mask (clip_low=0.2, clip_high=0.28) touched no token in 50 updates" in text
    assert "sequence ratios need about 3e-4" in text
    assert said(name, 0.02, 3 * PATIENCE) == []  # its own clip acts


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("grpo", {}),
        ("dppo_tv", {}),
        ("dppo_kl", {}),
        ("icepop", {}),
        ("gmpo", {}),
        ("nfpo", {}),
        ("nfpo", {"region": "kl", "delta": 0.05}),
        ("nfpo", {"region": "clip"}),
        ("nfpo", {"region": "band"}),
    ],
)
def test_every_kind_of_region(name, parameters):
    assert [step for step, _ in said(name, 1e-3, 60, **parameters)] == [PATIENCE]  # moved, and inside
    assert said(name, 1.0, 120, **parameters) == []


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("cispo", {}),
        ("uncorrected", {}),
        ("exact_pg", {}),
        ("nfpo", {"region": "none"}),
        ("dppo_tv", {"delta": math.inf}),
        ("gmpo", {"clip_low": math.inf, "clip_high": math.inf}),
    ],
)
def test_no_region_no_warning(name, parameters):
    assert said(name, 0.02, 120, **parameters) == []


def test_on_policy_no_clip_can_act():
    """One update per rollout: every ratio is 1, up to the rounding of two forward passes."""
    assert said("grpo", 0.0, 200) == []
    assert said("grpo", 1e-7, 200) == []


def test_only_updates_in_a_row_count_and_on_policy_ones_not():
    idle = IdleClip(objectives.grpo, {}, patience=3)
    still = {"clip_fraction": 0.0, "ratio_correction_strength": 0.0, "ratio_max": 1.0}
    moved = still | {"ratio_correction_strength": 1e-3, "ratio_max": 1.01}
    acts = moved | {"clip_fraction": 1e-9}
    sequence = [moved, moved, acts, moved, still, moved, still]
    assert [idle(metrics) for metrics in sequence] == [None] * 7
    assert "in 3 updates" in idle(moved) and idle(moved) is None


def test_parts_of_an_update_add_up():
    idle = IdleClip(objectives.grpo, {}, patience=2)
    moved = {"clip_fraction": 0.0, "ratio_correction_strength": 1e-3, "ratio_max": 1.01}
    assert [bool(idle(moved, 0.1)) for _ in range(20)] == [False] * 19 + [True]
