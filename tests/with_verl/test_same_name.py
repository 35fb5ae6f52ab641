"""Where the same name means different maths: one test per row of ``docs/same-name.md``.

``shows(row, numbers)`` puts a test under a row of the page and hands it the numbers that the page shows: a
peer's, computed by the peer's own code, and ours, each equal to what the batch gives by hand. The last tests
compare page and tests.
"""

import ast
import inspect
import math
import os
import re
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when huggingface_hub is imported
# By its module: without verl, this folder's own name would pass for the package.
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")
pytest.importorskip("trl", reason="TRL is not installed: pip install -e '.[bench]'")

from peers import INF, NAN, Batch, release, release_grpo_vectorized, rlvr, trl, typed, verl
from trl import GRPOConfig, GRPOTrainer
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.trainer.ppo.v1 import replay_buffer
from verl.workers.config.actor import PolicyLossConfig, RolloutCorrectionConfig

from rlvr import objectives
from rlvr.advantages import group_relative, informative_groups
from rlvr.analysis.dynamics import switch_frequency
from rlvr.losses import AGGREGATIONS

pytestmark = pytest.mark.verl
HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "same-name.md"
SHOWN: dict[str, tuple[str, dict[str, float]]] = {}  # test: row, numbers by label
SUM, MEAN, NORM = "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
SEQUENCE = {"importance_sampling_level": "sequence"}


def shows(row, numbers):
    def mark(test):
        SHOWN[test.__name__] = (row, numbers)
        return pytest.mark.parametrize("n", [numbers], ids=[row])(test)

    return mark


def equal(found, expected):
    assert found == pytest.approx(expected, rel=2e-6, abs=1e-12)


def clips(low, high, c=3.0):
    return {"clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": c}


def reinforce(**correction):
    """verl's loss on rollouts with weights or rejection."""
    correction = RolloutCorrectionConfig(loss_type="reinforce", bypass_mode=True, **correction)
    return {"policy_loss": PolicyLossConfig(rollout_correction=correction)}


# --- what a batch is divided by -----------------------------------------------------------------------


def three_rows():
    """On-policy, log pi = -1; advantages sum to 4, 4 and, fully masked, nothing."""
    return typed([[1.0] * 4] * 3, [1.0, 2.0, 5.0], [[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]], old=-1.0)


@shows("D1", {"verl": 1.0, "release": 2.0, "rlvr": 1.0, "verl, 2 ranks": 0.2, "release, 2 ranks": 2.0})
def test_norm_mode_without_rows(n):
    # -A r log pi = A here: 8 / (2 rows * 4), and 8 / 4
    batch = three_rows()
    theirs, forked = verl("dppo_tv", batch, NORM), release(batch, NORM)
    equal(theirs.loss, n["verl"])
    equal(forked.loss, n["release"])
    torch.testing.assert_close(forked.grad, 2 * theirs.grad)  # rows with a token
    # one of two ranks, 20 rows in all: 8 / (20 * 4) * 2
    equal(verl("dppo_tv", batch, NORM, {"dp_size": 2, "global_batch_size": 20}).loss, n["verl, 2 ranks"])
    equal(release(batch, NORM, dp_size=2, rows=20).loss, n["release, 2 ranks"])
    for name, parameters in (("nfpo", {"horizon": 1}), ("dppo_tv", {})):
        equal(rlvr(name, batch, loss_agg_mode=NORM, **parameters).loss, n["rlvr"])
        equal(
            rlvr(name, batch, loss_agg_mode=NORM, dp_size=2, global_batch_size=20, **parameters).loss,
            n["verl, 2 ranks"],
        )
        equal(rlvr(name, batch, loss_agg_mode=NORM, global_batch_size=1, **parameters).loss, n["release"])


@shows("D2", {"verl": -1.5, "verl, 3 rows given": -1.0, "verl geo_mean": -1.0, "TRL": -1.0, "rlvr": -1.5})
def test_fully_masked_rows(n):
    # token losses are -A: means -1 and -2 over two rows, or over three. verl's trainer hands its losses the
    # number of rows in the mini-batch, masked or not.
    batch = three_rows()
    trainer = Path(core_algos.__file__).with_name("ray_trainer.py").read_text()
    assert "global_batch_size=ppo_mini_batch_size" in trainer
    equal(verl("vanilla", batch, MEAN).loss, n["verl"])
    equal(verl("vanilla", batch, MEAN, {"global_batch_size": 3}).loss, n["verl, 3 rows given"])
    equal(verl("geo_mean", batch).loss, n["verl geo_mean"])
    equal(trl("grpo", batch).loss, n["TRL"])
    for name in ("grpo", "gspo", "gspo_token", "gmpo"):
        equal(rlvr(name, batch, loss_agg_mode=MEAN).loss, n["rlvr"])
        equal(rlvr(name, batch, loss_agg_mode=MEAN, global_batch_size=3).loss, n["TRL"])


@shows(
    "D2", {"gradient: verl": -1.0, "gradient: TRL": -2 / 3, "gradient: release": -2.0, "gradient: rlvr": -1.0}
)
def test_three_scales_of_dr_grpo(n):
    # on-policy the gradients of both loss forms are the advantages: -8 over (2 * 4), (3 * 4) and 4
    batch = three_rows()
    equal(verl("vanilla", batch, NORM).grad.sum().item(), n["gradient: verl"])
    equal(trl("dr_grpo", batch).grad.sum().item(), n["gradient: TRL"])
    equal(release(batch, NORM).grad.sum().item(), n["gradient: release"])
    equal(rlvr("dr_grpo", batch).grad.sum().item(), n["gradient: rlvr"])
    equal(rlvr("dr_grpo", batch, global_batch_size=3).grad.sum().item(), n["gradient: TRL"])
    equal(rlvr("dr_grpo", batch, global_batch_size=1).grad.sum().item(), n["gradient: release"])


@shows("S3", {"verl": -0.5, "TRL": -0.25, "rlvr": -0.5, "rlvr, L=8": -0.25})
def test_dr_grpo_divisor(n):
    # 2 tokens of A = 1 in a batch padded to 4, of at most 8: 2 / 4 and 2 / 8
    batch = typed([[1.0] * 4], [1.0], [[1, 1, 0, 0]])
    equal(verl("vanilla", batch, NORM).loss, n["verl"])
    equal(trl("dr_grpo", batch, width=8).loss, n["TRL"])
    equal(rlvr("dr_grpo", batch).loss, n["rlvr"])
    equal(rlvr("dr_grpo", batch, loss_scale_factor=8).loss, n["rlvr, L=8"])
    equal(verl("vanilla", batch, NORM, {"loss_scale_factor": 8}).loss, n["TRL"])


@shows("S4", {"verl": -1.75, "verl, set": -1.5, "rlvr": -1.5, "rlvr, token-mean": -1.75})
def test_gspo_aggregation(n):
    # rows of 1 and 3 tokens, A = 1 and 2: (1 + 6) / 4 tokens, and (1 + 2) / 2 rows
    batch = typed([[1.0] * 3] * 2, [1.0, 2.0], [[1, 0, 0], [1, 1, 1]])
    equal(verl("gspo", batch, **clips(3e-4, 4e-4)).loss, n["verl"])
    equal(verl("gspo", batch, MEAN, **clips(3e-4, 4e-4)).loss, n["verl, set"])
    equal(rlvr("gspo", batch).loss, n["rlvr"])
    equal(rlvr("gspo", batch, loss_agg_mode="token-mean").loss, n["rlvr, token-mean"])


# --- clips, caps and bounds ---------------------------------------------------------------------------


@shows("D3", {"verl": 3.0, "TRL": math.exp(5), "TRL, delta=3": 3.0, "rlvr": 3.0, "rlvr, off": math.exp(5)})
def test_dual_clip(n):
    batch = typed([[math.exp(5)]], [-1.0], old=-7.0)
    equal(verl("vanilla", batch).loss, n["verl"])
    equal(trl("dapo", batch).loss, n["TRL"])
    equal(trl("dapo", batch, delta=3.0).loss, n["TRL, delta=3"])
    equal(rlvr("grpo", batch).loss, n["rlvr"])
    equal(rlvr("grpo", batch, dual_clip=None).loss, n["rlvr, off"])


@shows("D3", {"r=c: verl": 1.5, "r=c: TRL": 3.0, "r=c: rlvr": 3.0})
def test_ratio_on_the_dual_clip(n):
    # a float32 ratio of exactly 3: the loss is 3 for all, torch.min halves verl's gradient
    batch = Batch(
        torch.tensor([[-2.0]]), torch.tensor([[-3.0986123]]), torch.tensor([-1.0]), torch.tensor([[True]])
    )
    for result, slope in (
        (verl("vanilla", batch), n["r=c: verl"]),
        (trl("dapo", batch, delta=3.0), n["r=c: TRL"]),
        (rlvr("grpo", batch), n["r=c: rlvr"]),
    ):
        assert result.loss == 3.0 and result.grad.item() == slope


@shows(
    "D4", {"verl": math.exp(10), "TRL": math.exp(12), "rlvr": math.exp(10), "rlvr, bound 12.5": math.exp(12)}
)
def test_sequence_exponent(n):
    batch = typed([[math.exp(12)]], [-1.0], old=-13.0)
    theirs, unbounded, ours = verl("gspo", batch), trl("grpo", batch, **SEQUENCE), rlvr("gspo", batch)
    equal(theirs.loss, n["verl"])
    equal(unbounded.loss, n["TRL"])
    equal(ours.loss, n["rlvr"])
    # a bound that acts removes the gradient as well
    equal(unbounded.grad.item(), n["TRL"])
    assert theirs.grad.item() == ours.grad.item() == 0
    wide = rlvr("gspo", batch, ratio_bound=12.5)
    equal(wide.loss, n["rlvr, bound 12.5"])
    equal(wide.grad.item(), n["rlvr, bound 12.5"])


@shows(
    "D4",
    {"below: verl": -math.exp(-12), "below: rlvr": -math.exp(-10), "below: rlvr, bound 12.5": -math.exp(-12)},
)
def test_sequence_exponent_below(n):
    # only ours bounds it below too: 4.5e-5 in place of 6.1e-6, and no gradient
    batch = typed([[math.exp(-12)]], [1.0], old=-1.0)
    theirs, ours, wide = verl("gspo", batch), rlvr("gspo", batch), rlvr("gspo", batch, ratio_bound=12.5)
    equal(theirs.loss, n["below: verl"])
    equal(theirs.grad.item(), n["below: verl"])
    equal(ours.loss, n["below: rlvr"])
    assert ours.grad.item() == 0
    equal(wide.loss, n["below: rlvr, bound 12.5"])
    equal(wide.grad.item(), n["below: rlvr, bound 12.5"])


@shows("D4", {"verl geo_mean": math.exp(25), "rlvr gmpo": math.exp(10)})
def test_geo_mean_exponent(n):
    batch = typed([[math.exp(25)]], [-1.0], old=-26.0)
    equal(verl("geo_mean", batch).loss, n["verl geo_mean"])
    equal(rlvr("gmpo", batch).loss, n["rlvr gmpo"])


@shows("D4", {"token: verl": math.exp(20), "token: TRL": math.exp(25), "token: rlvr": math.exp(20)})
def test_token_exponent(n):
    batch = typed([[math.exp(25)]], [-1.0], old=-26.0)
    theirs, unbounded = verl("vanilla", batch, **clips(0.2, 0.2, INF)), trl("dapo", batch)
    ours = rlvr("ppo", batch, dual_clip=None)
    equal(theirs.loss, n["token: verl"])
    equal(unbounded.loss, n["token: TRL"])
    equal(ours.loss, n["token: rlvr"])
    assert theirs.grad.item() == ours.grad.item() == 0 and unbounded.grad.item() > 7e10


@shows(
    "D4",
    {"weight: verl": 8 * math.exp(12), "weight: release": 8 * math.exp(10), "weight: rlvr": 8 * math.exp(10)},
)
def test_weight_exponent(n):
    # log pi = -8, p moves by 3e-4: inside the trust region
    batch = typed([[math.exp(12)]], [1.0], old=-20.0)
    theirs, forked = verl("dppo_tv", batch, **clips(0.2, 0.2, INF)), release(batch)
    equal(theirs.loss, n["weight: verl"])
    equal(forked.loss, n["weight: release"])
    equal(rlvr("nfpo", batch).loss, n["weight: rlvr"])
    equal(rlvr("nfpo", batch, ratio_bound=20.0).loss, n["weight: verl"])
    # the KL metric is bounded with it; ours is bounded at 20 for every objective
    equal(
        [theirs.metrics["actor/ppo_kl"], forked.metrics["ppo_kl"], rlvr("nfpo", batch).metrics["kl"]],
        [-12, -10, -12],
    )


@shows(
    "D5",
    {
        "verl": 21.0,
        "verl, c=20": 140.0,
        "verl, c=1e4": 7 * math.exp(5),
        "release": 7 * math.exp(5),
        "rlvr": 140.0,
    },
)
def test_truncation_of_dppo(n):
    # ratio e^5 = 148.4, log pi = -7
    batch = typed([[math.exp(5)]], [1.0], old=-12.0)
    signature = inspect.getsource(core_algos.compute_policy_loss_dppo_tv)
    assert 'config.get("clip_ratio_c", 20.0)' in signature  # what never acts
    equal(verl("dppo_tv", batch).loss, n["verl"])
    equal(verl("dppo_tv", batch, clip_ratio_c=20.0).loss, n["verl, c=20"])
    equal(verl("dppo_tv", batch, clip_ratio_c=1e4).loss, n["verl, c=1e4"])
    equal(release(batch).loss, n["release"])
    equal(rlvr("dppo_tv", batch).loss, n["rlvr"])
    for cap in (3.0, 1e4):
        equal(rlvr("dppo_tv", batch, ratio_cap=cap).loss, verl("dppo_tv", batch, clip_ratio_c=cap).loss)
    equal(rlvr("nfpo", batch, horizon=1).loss, n["release"])


@shows(
    "D6", {"verl": 1.0, "release": 0.0, "rlvr": 0.0, "far: verl": 1.0, "far: release": 0.0, "far: rlvr": 1.0}
)
def test_kl_of_a_probability_above_1(n):
    """Share of masked tokens where rounding put pi at 1 + 1e-6."""
    near = Batch(
        *(torch.tensor([[x]], dtype=torch.float64) for x in (1e-6, -1e-6)),
        torch.ones(1),
        torch.ones(1, 1) > 0,
    )
    far = near._replace(old_log_prob=torch.full((1, 1), math.log(0.5), dtype=torch.float64))
    for batch, theirs, forked, ours in (
        (near, n["verl"], n["release"], n["rlvr"]),  # KL about 3e-6: to keep
        (far, n["far: verl"], n["far: release"], n["far: rlvr"]),  # KL about 8: to mask
    ):
        equal(verl("dppo_kl", batch, **clips(0.05, 0.05, 20.0)).metrics["actor/pg_clipfrac"], theirs)
        equal(release(batch, kl=True, delta=0.05).metrics["pg_clipfrac"], forked)
        equal(rlvr("dppo_kl", batch).metrics["masked_fraction"], ours)
        equal(rlvr("nfpo", batch, region="kl", delta=0.05).metrics["masked_fraction"], ours)


@shows("D7", {"verl, .28": -1.04, "TRL, .28": -0.28, "TRL, 1.28": -0.89, "verl, low=1": -0.89, "rlvr": -1.25})
def test_cispo_cap(n):
    # log pi = -1, ratios .5 and 2 under A = 1 and -3: -(w(.5) + w(2)) / 2
    ratios = [[0.5, 2.0]] * 2
    batch = typed(ratios, [1.0, -3.0], old=[[-1 - math.log(r) for r in row] for row in ratios])
    equal(verl("cispo", batch, **clips(0.2, 0.28)).loss, n["verl, .28"])  # .8 and 1.28
    equal(trl("cispo", batch, epsilon_high=0.28).loss, n["TRL, .28"])  # .28 and .28
    equal(trl("cispo", batch, epsilon_high=1.28).loss, n["TRL, 1.28"])  # .5 and 1.28
    equal(verl("cispo", batch, **clips(1.0, 0.28)).loss, n["verl, low=1"])
    equal(rlvr("cispo", batch).loss, n["rlvr"])  # .5 and 2, under a cap of 5
    equal(rlvr("cispo", batch, ratio_cap=1.28).loss, n["TRL, 1.28"])
    equal(rlvr("cispo", batch, ratio_cap=1.28, ratio_floor=0.8).loss, n["verl, .28"])
    with pytest.raises(ValueError, match=r"ratio_cap=0.28: allowed are numbers >= 1"):
        rlvr("cispo", batch, ratio_cap=0.28)


@shows("D7", {"share: TRL": 0.25, "share: verl": 0.5, "share: verl, floor": 1.0, "share: rlvr": 0.5})
def test_cispo_share(n):
    batch = typed([[0.5, 2.0]] * 2, [1.0, -3.0])
    equal(trl("cispo", batch, epsilon_high=1.28).metrics["cispo_clip_ratio"], n["share: TRL"])  # A > 0 only
    equal(verl("cispo", batch, **clips(1.0, 0.28)).metrics["actor/pg_clipfrac"], n["share: verl"])
    equal(verl("cispo", batch, **clips(0.2, 0.28)).metrics["actor/pg_clipfrac"], n["share: verl, floor"])
    equal(rlvr("cispo", batch, ratio_cap=1.28).metrics["ratio_cap_fraction"], n["share: rlvr"])


@shows("D11", {"verl": -1.1, "verl, low and high": -1.05, "rlvr": -1.05})
def test_clip_ratio_alone(n):
    batch = typed([[1.1]], [1.0])
    equal(verl("vanilla", batch, clip_ratio=0.05).loss, n["verl"])
    equal(verl("vanilla", batch, **clips(0.05, 0.05)).loss, n["verl, low and high"])
    equal(rlvr("ppo", batch, clip_low=0.05, clip_high=0.05).loss, n["rlvr"])
    # as DPPO's threshold: p moves from .2 to .3
    batch = typed([[1.5]], [1.0], old=math.log(0.2))
    assert verl("dppo_tv", batch, clip_ratio=0.05).metrics["actor/pg_clipfrac"] == 0
    assert verl("dppo_tv", batch, **clips(0.05, 0.05)).metrics["actor/pg_clipfrac"] == 1
    assert rlvr("dppo_tv", batch, delta=0.05).metrics["masked_fraction"] == 1


@shows("S9", {"verl": -math.exp(0.1), "rlvr": -math.exp(0.15), "rlvr gspo": -1.0004})
def test_gmpo_clip(n):
    # log ratios .3 and 0, A = 1: clipped one by one at .2, at .4, and (GSPO) after the mean
    batch = typed([[math.exp(0.3), 1.0]], [1.0])
    equal(verl("geo_mean", batch).loss, n["verl"])
    equal(verl("geo_mean", batch, **clips(0.4, 0.4)).loss, n["rlvr"])
    equal(rlvr("gmpo", batch).loss, n["rlvr"])
    equal(rlvr("gmpo", batch, clip_low=0.2, clip_high=0.2).loss, n["verl"])
    equal(rlvr("gspo", batch).loss, n["rlvr gspo"])
    # one-sided: with A > 0 nothing is clipped below
    batch = typed([[math.exp(-0.9), 1.0]], [1.0])
    equal(verl("geo_mean", batch).loss, -math.exp(-0.45))
    equal(rlvr("gmpo", batch).loss, -math.exp(-0.45))


# --- ratios and weights -------------------------------------------------------------------------------


@shows(
    "D8",
    {
        "verl, t=1": -0.5,
        "verl, t=2": -1.5,
        "TRL, t=1": -1.0,
        "TRL, t=2": -1.0,
        "gspo, t=1": -1.0,
        "gspo_token, t=2": -1.5,
    },
)
def test_sequence_gradient_of_token_advantages(n):
    # s = 1 and A = 1, 3: each token's own advantage, or the row's mean, over 2 tokens
    batch = typed([[math.exp(0.1), math.exp(-0.1)]], [[1.0, 3.0]])
    theirs, other = verl("gspo", batch, MEAN), trl("grpo", batch, **SEQUENCE)
    equal(theirs.loss, -2.0)
    equal(other.loss, -2.0)
    equal(theirs.grad[0].tolist(), [n["verl, t=1"], n["verl, t=2"]])
    equal(other.grad[0].tolist(), [n["TRL, t=1"], n["TRL, t=2"]])
    equal(rlvr("gspo", batch).grad[0].tolist(), [n["gspo, t=1"], n["gspo, t=1"]])
    equal(rlvr("gspo_token", batch).grad[0].tolist(), [n["verl, t=1"], n["gspo_token, t=2"]])


@shows("D8", {"share: verl": 0.25, "share: TRL": 0.5, "share: rlvr": 0.25})
def test_sequence_clip_share(n):
    # the row of one token is clipped, that of three is not
    batch = typed([[2.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [1.0, 1.0], [[1, 0, 0], [1, 1, 1]])
    equal(verl("gspo", batch, MEAN).metrics["actor/pg_clipfrac"], n["share: verl"])
    equal(trl("grpo", batch, **SEQUENCE).metrics["clip_ratio/region_mean"], n["share: TRL"])
    for name in ("gspo", "gspo_token"):
        equal(rlvr(name, batch, clip_low=0.2, clip_high=0.2).metrics["clip_fraction"], n["share: rlvr"])


@shows("D12", {"cispo": 2.0, "vanilla": -1.0, "gradient": -1.0})
def test_value_of_a_weighted_loss(n):
    # on-policy, A = 1, log pi = -2
    batch = typed([[1.0]], [1.0], old=-2.0)
    for weighted, plain in (
        (verl("cispo", batch), verl("vanilla", batch)),
        (verl("dppo_tv", batch), trl("dapo", batch)),
        (trl("cispo", batch, epsilon_high=5.0), trl("grpo", batch)),
        (rlvr("cispo", batch), rlvr("ppo", batch)),
        (release(batch), rlvr("grpo", batch)),
    ):
        equal(weighted.loss, n["cispo"])
        equal(plain.loss, n["vanilla"])
        assert weighted.grad.item() == plain.grad.item() == n["gradient"]


@shows("D14", {"release": -1.0, "rlvr": -1.2, "rlvr, positions": -1.0})
def test_window_at_a_hole(n):
    # N = 2; the position after token 1 is masked, the next valid token has ratio 1.2
    batch = typed([[1.0, 1.3, 1.2, 1.0]], [1.0], [[1, 0, 1, 1]])
    equal(release(batch, "token-mean", horizon=2).grad[0, 0].item() * 3, n["release"])
    for window, expected in (("valid", n["rlvr"]), ("positions", n["rlvr, positions"])):
        ours = rlvr("nfpo", batch, horizon=2, window=window, loss_agg_mode="token-sum")
        equal(ours.grad[0, 0].item(), expected)


@shows("D15", {"release": 1.0, "release, u=o": 0.0, "trace mean": 1.0, "rlvr": 1.0, "rlvr ratio_mean": 1.5})
def test_switches_of_a_ratio_against_the_rollout(n):
    # on-policy for the recomputed log-probs; against the rollout policy the ratios are 2, .5, 2
    batch = typed([[1.0, 1.0, 1.0]], [1.0], old=-2.0)
    log_ratio = torch.tensor([[2.0, 0.5, 2.0]], dtype=torch.float64).log()
    rollout = batch.old_log_prob - log_ratio
    theirs, same = release(batch, rollout=rollout, horizon=8), release(batch, horizon=8)
    equal(theirs.metrics["switching"], n["release"])
    equal(same.metrics["switching"], n["release, u=o"])
    equal(theirs.metrics["trace_mean"], n["trace mean"])
    equal(same.metrics["trace_mean"], n["trace mean"])
    ours = rlvr("nfpo", batch, horizon=8, rollout_log_prob=rollout).metrics
    equal(ours["trace_mean"], n["trace mean"])
    equal(ours["ratio_mean"], n["rlvr ratio_mean"])
    shares = switch_frequency(log_ratio.exp(), batch.mask)
    equal(shares.value, n["rlvr"])


@shows("S2", {"verl, recomputed": -math.log(0.4), "verl, rollout": 0.0, "release": 0.0, "rlvr, rollout": 0.0})
def test_denominator_of_dppo(n):
    # p = .4 now and when recomputed, .1 in the rollout: the change is 0, or .3 > delta = .2
    batch = typed([[1.0]], [1.0], old=math.log(0.4))
    rollout = batch._replace(old_log_prob=torch.full((1, 1), math.log(0.1), dtype=torch.float64))
    equal(verl("dppo_tv", batch).loss, n["verl, recomputed"])
    equal(verl("dppo_tv", rollout).loss, n["verl, rollout"])
    equal(release(batch, rollout=rollout.old_log_prob).loss, n["release"])
    equal(rlvr("dppo_tv", batch).loss, n["verl, recomputed"])
    equal(rlvr("dppo_tv", rollout).loss, n["rlvr, rollout"])
    equal(rlvr("nfpo", batch, rollout_log_prob=rollout.old_log_prob).loss, n["rlvr, rollout"])


@shows("S5", {"verl weights": 0.875, "verl rejection": 1.0, "slime": 0.35, "rlvr": 0.975})
def test_icepop(n):
    # log pi = -1, A = 1: the loss is the sum of the weights over 4 tokens
    ratios = [[1.0, 0.4, 2.5, 6.0]]
    batch = typed(ratios, [1.0], old=[[-1 - math.log(r) for r in ratios[0]]])
    kept = batch._replace(mask=torch.tensor([[True, False, True, False]]))
    weights = reinforce(rollout_is="token", rollout_is_threshold="0.5_5.0")
    equal(verl("bypass_mode", batch, **weights).loss, n["verl weights"])  # (1 + 2.5) / 4
    rejection = reinforce(rollout_is=None, rollout_rs="token_k1", rollout_rs_threshold="0.5_5.0")
    equal(
        verl("bypass_mode", batch, **rejection).loss, n["verl rejection"]
    )  # (1 + 1) / 2: the others are not counted
    equal(verl("bypass_mode", batch, "token-mean", {"batch_num_tokens": 4}, **rejection).loss, 0.5)
    equal(rlvr("icepop", batch, band=(0.5, 5.0)).loss, n["verl weights"])
    equal(rlvr("uncorrected", kept).loss, n["verl rejection"])
    equal(rlvr("icepop", batch, band=(0.0, 2.0)).loss, n["slime"])  # (1 + .4) / 4
    equal(rlvr("icepop", batch).loss, n["rlvr"])  # [1/3, 3]: (1 + .4 + 2.5) / 4


@shows("S6", {"verl cap": 2.0, "TRL cap": 3.0, "verl, ratio 2.5": 2.0, "rlvr, ratio 2.5": 2.5})
def test_cap_of_the_mismatch_weight(n):
    # a row of two tokens with ratios 2 and 2.5
    log_ratio, mask = torch.tensor([[2.0, 2.5]]).log(), torch.ones(1, 2)
    defaults = RolloutCorrectionConfig()
    assert (defaults.rollout_is, defaults.rollout_is_threshold) == ("sequence", n["verl cap"])
    for level in ("sequence", "token"):  # 5, and 2 and 2.5, cut at 2
        weights, _ = compute_rollout_correction_weights(log_ratio, mask, rollout_is=level)
        equal(weights[0].tolist(), [2.0, n["verl, ratio 2.5"]])
    fields = GRPOConfig.__dataclass_fields__
    assert fields["vllm_importance_sampling_mode"].default == "sequence_mask"  # a product above 3: weight 0
    assert fields["vllm_importance_sampling_clip_max"].default == n["TRL cap"]
    # as a weight on log pi, verl's is that of cispo without a floor; the gradient is -weight / 2 tokens
    batch = typed([[2.0, 2.5]], [1.0])
    theirs = verl("bypass_mode", batch, **reinforce(rollout_is="token", rollout_is_threshold=2.0))
    equal(theirs.grad[0].tolist(), [-1.0, -n["verl, ratio 2.5"] / 2])
    equal(rlvr("cispo", batch, ratio_cap=2.0).grad[0].tolist(), [-1.0, -n["verl, ratio 2.5"] / 2])
    equal(rlvr("dppo_tv", batch).grad[0].tolist(), [-1.0, -n["rlvr, ratio 2.5"] / 2])


@shows("S7", {"binary TV": 0.0, "top-k TV": 0.3})
def test_topk_dppo_is_not_offered(n):
    # the sampled token keeps its probability while the other two swap theirs
    mu, pi = torch.tensor([0.5, 0.4, 0.1]), torch.tensor([0.5, 0.1, 0.4])
    equal((pi - mu)[0].abs().item(), n["binary TV"])
    equal(0.5 * (pi - mu).abs().sum().item(), n["top-k TV"])  # k = 2 and the rest
    batch = Batch(pi[:1, None].log(), mu[:1, None].log(), torch.ones(1), torch.ones(1, 1) > 0)
    assert rlvr("dppo_tv", batch).metrics["masked_fraction"] == 0
    assert verl("dppo_tv", batch).metrics["actor/pg_clipfrac"] == 0
    for names in (core_algos.POLICY_LOSS_REGISTRY, objectives.list_objectives()):
        assert sorted(x for x in names if x.startswith("dppo")) == ["dppo_kl", "dppo_tv"]


# --- advantages and groups (more in test_advantages_parity.py) ----------------------------------------


def by_verl(estimator, rewards):
    rewards = torch.tensor(rewards).unsqueeze(-1)
    function = getattr(core_algos, f"compute_{estimator}_outcome_advantage")
    return function(rewards, torch.ones_like(rewards), np.zeros(len(rewards), dtype=object))[0][:, 0]


@shows("D9", {"verl": 1.494, "release": 0.375, "TRL": 1.07143, "rlvr": 1.49402, "rlvr, eps=1e-4": 1.07143})
def test_floor_of_the_standard_deviation(n):
    # centred: 3.75e-4; unbiased std: 2.5e-4, plus 1e-6 or 1e-4; the release's is at least 1e-3
    rewards = [0.5, 0.5005, 0.5, 0.5]
    assert by_verl("grpo_vectorized", rewards)[1].item() == pytest.approx(n["verl"], abs=1e-3)
    assert release_grpo_vectorized(rewards)[1].item() == pytest.approx(n["release"], abs=1e-3)
    exact = torch.tensor(rewards, dtype=torch.float64)
    assert group_relative(exact, [0] * 4)[1].item() == pytest.approx(n["rlvr"], abs=1e-5)
    assert "/ (std_rewards + 1e-4)" in inspect.getsource(GRPOTrainer)
    assert 3.75e-4 / (2.5e-4 + 1e-4) == pytest.approx(n["TRL"], abs=1e-5)
    assert group_relative(exact, [0] * 4, eps=1e-4)[1].item() == pytest.approx(n["rlvr, eps=1e-4"], abs=1e-5)


@shows("D9", {"0.7 x 11: verl": 0.106, "0.7 x 11: release": 1.2e-4, "0.7 x 11: rlvr": 0.0})
def test_rounding_of_equal_rewards(n):
    # the mean is off by one rounding, 6e-8 or 1.2e-7, over a std of that size or of 1e-3
    rewards = [0.7] * 11
    assert by_verl("grpo", rewards).abs().max().item() == pytest.approx(n["0.7 x 11: verl"], rel=0.6)
    assert 0 < release_grpo_vectorized(rewards).abs().max().item() <= 1.05 * n["0.7 x 11: release"]
    assert group_relative(torch.tensor(rewards), [0] * 11).abs().max().item() == n["0.7 x 11: rlvr"]


@shows("D10", {"verl": (2**-25) / 3, "rlvr": 0.0})
def test_shares_are_float32(n):
    # a share of 1/3 in a float64 batch, minus 1/3
    batch = typed([[2.0, 1.0, 1.0]], [1.0])
    assert verl("vanilla", batch).metrics["actor/pg_clipfrac"] - 1 / 3 == pytest.approx(n["verl"], rel=1e-6)
    assert rlvr("ppo", batch).metrics["clip_fraction"] - 1 / 3 == n["rlvr"]


def verl_keeps(metric, rewards, accuracy, monkeypatch):
    """Whether verl's DAPO filter trains on the group."""
    keys = [f"prompt_{k}" for k in range(len(rewards))]
    data = {
        "rm_scores": [torch.tensor([0.0, r]) for r in rewards],
        "extra_fields": [{"reward_extra_info": {"acc": a}} for a in accuracy],
    }
    monkeypatch.setattr(replay_buffer.tq, "kv_batch_get", lambda keys, partition_id, select_fields: data)
    buffer = SimpleNamespace(
        filter_groups_metric=metric,
        finished_keys={"train": {"prompt"}},
        _dapo_classification_cache=defaultdict(dict),
        partitions={"train": {key: {} for key in keys}},
    )
    dropped, _ = replay_buffer.ReplayBuffer._dapo_filtered_keys(buffer, "train")
    return "prompt" not in dropped


@shows(
    "S8",
    {
        "verl, reward": 1,
        "verl, acc": 0,
        "rlvr": 0,
        "rounding: verl": 1,
        "rounding: rlvr": 0,
        "one: verl": 1,
        "one: rlvr": 0,
    },
)
def test_dapo_filter(n, monkeypatch):
    """1: the group is trained on."""
    # two wrong answers, one of them punished for its length
    assert verl_keeps("reward", [0.0, -0.5], [0.0, 0.0], monkeypatch) == n["verl, reward"]
    assert verl_keeps("acc", [0.0, -0.5], [0.0, 0.0], monkeypatch) == n["verl, acc"]
    wrong = torch.zeros(2)
    assert informative_groups(wrong, [0, 0]).mask.any().item() == n["rlvr"]
    with pytest.raises(ValueError, match="accuracy"):
        informative_groups(torch.tensor([0.0, -0.5]), [0, 0])
    # three equal scores of .1 have a standard deviation of 1e-17
    assert verl_keeps("acc", [0.0] * 3, [0.1] * 3, monkeypatch) == n["rounding: verl"]
    assert (
        group_relative(torch.full((3,), 0.1, dtype=torch.float64), [0] * 3).any().item()
        == n["rounding: rlvr"]
    )
    assert verl_keeps("acc", [1.0], [1.0], monkeypatch) == n["one: verl"]
    assert informative_groups(torch.ones(1), [0]).mask.any().item() == n["one: rlvr"]


# --- metrics ------------------------------------------------------------------------------------------


@shows(
    "D13",
    {
        "vanilla": 2 / 6,
        "vanilla lower": 1 / 6,
        "cispo": 1.0,
        "geo_mean": 2 / 6,
        "geo_mean lower": 3 / 6,
        "dppo_tv": 1 / 6,
        "dppo_tv lower": 1 / 6,
        "gspo lower": 0.0,
        "ppo": 3 / 6,
        "gmpo": 2 / 6,
    },
)
def test_clip_shares(n):
    """One batch, verl's ``pg_clipfrac`` and ``pg_clipfrac_lower`` under five losses, and ours."""
    p = [0.2, 0.2, 0.2, 0.2, 0.2, 0.5]  # the last token falls by .25, with A = 0
    batch = typed(
        [[1.5, 1.5, 0.5, 0.5, 4.0, 0.5]], [[1.0, -1.0, 1.0, -1.0, -1.0, 0.0]], old=[[math.log(x) for x in p]]
    )

    def theirs(name):
        metrics = verl(name, batch).metrics
        return metrics["actor/pg_clipfrac"], metrics["actor/pg_clipfrac_lower"]

    equal(theirs("vanilla"), (n["vanilla"], n["vanilla lower"]))  # tokens 1, 4; token 5
    equal(theirs("cispo"), (n["cispo"], 0.0))  # every changed weight
    equal(theirs("geo_mean"), (n["geo_mean"], n["geo_mean lower"]))  # outside the band, by the sign of A
    equal(theirs("dppo_tv"), (n["dppo_tv"], n["dppo_tv lower"]))  # token 6, A = 0 like A < 0; token 5
    equal(theirs("gspo")[1], n["gspo lower"])
    equal(rlvr("ppo", batch).metrics["clip_fraction"], n["ppo"])
    equal(rlvr("cispo", batch, ratio_cap=1.2, ratio_floor=0.8).metrics["ratio_cap_fraction"], n["cispo"])
    equal(rlvr("gmpo", batch, clip_low=0.2, clip_high=0.2).metrics["clip_fraction"], n["gmpo"])  # tokens 1, 4
    dppo = rlvr("dppo_tv", batch, ratio_cap=3.0).metrics
    equal((dppo["masked_fraction"], dppo["ratio_cap_fraction"]), (n["dppo_tv"], n["dppo_tv lower"]))
    assert {n["ppo"], n["gmpo"], n["dppo_tv"]} == {0.5, 1 / 3, 1 / 6}


# --- bad values in padding, and nothing valid ---------------------------------------------------------

VERL = ("vanilla", "dppo_tv", "dppo_kl", "gspo", "cispo", "geo_mean")
TRL = (
    {},
    {"loss_type": "bnpo"},
    {"loss_type": "dr_grpo"},
    {"loss_type": "dapo"},
    {"loss_type": "cispo"},
    SEQUENCE,
)
RELEASE = ("token-mean", SUM, MEAN, NORM)


def dirty(log_prob=None, old=None, advantage=None):
    """2 x 3, the last position of the first row masked and bad."""
    clean = typed([[1.05, 0.9, 1.1], [0.8, 1.2, 1.0]], [[1.0] * 3, [-1.0] * 3], [[1, 1, 0], [1, 1, 1]])
    bad = [x.clone() for x in clean]
    for tensor, value in zip(bad, (log_prob, old, advantage), strict=False):
        if value is not None:
            tensor[0, 2] = value
    return clean, Batch(*bad)


def probe(batch):
    """Which losses stay finite, and which gradients at valid tokens do not; by (peer, loss, mode)."""
    results = {("verl", name, mode): verl(name, batch, mode) for name in VERL for mode in AGGREGATIONS}
    for k, config in enumerate(TRL):
        config = {"loss_type": "grpo", "epsilon_high": 5.0 if "cispo" in config.values() else 0.2} | config
        results["TRL", k, ""] = trl(batch=batch, **config)
    results |= {("release", "nfpo", mode): release(batch, mode) for mode in RELEASE}
    finite = {key for key, result in results.items() if math.isfinite(result.loss)}
    broken = {key[:2] for key, result in results.items() if not result.grad[batch.mask].isfinite().all()}
    padding = {key[:2] for key, result in results.items() if not result.grad[~batch.mask].isfinite().all()}
    return finite, broken, padding


def count(finite):
    found = Counter(peer for peer, *_ in finite)
    return {name: found[name] for name in ("verl", "TRL", "release")}


def unharmed(clean, bad):
    for name in objectives.list_objectives():
        for mode in AGGREGATIONS:
            one, other = (rlvr(name, batch, loss_agg_mode=mode) for batch in (clean, bad))
            assert (
                one.loss == other.loss and torch.equal(one.grad, other.grad) and one.metrics == other.metrics
            )
            assert math.isfinite(other.loss) and not other.grad[~bad.mask].any()


TOKEN_MODES = ("token-mean", "token-sum")  # verl's masked_sum selects, the other modes multiply by the mask


@shows("P1", {"verl": 8, "TRL": 0, "release": 1})
def test_nan_log_prob_in_padding(n):
    clean, bad = dirty(log_prob=NAN)
    finite, broken, _ = probe(bad)
    assert count(finite) == n
    names = ("vanilla", "dppo_tv", "dppo_kl", "cispo")
    assert finite == {("verl", name, mode) for name in names for mode in TOKEN_MODES} | {
        ("release", "nfpo", "token-mean")
    }
    assert broken == {("verl", "geo_mean"), ("TRL", TRL.index(SEQUENCE))}
    unharmed(clean, bad)


@shows("P2", {"verl": 10, "TRL": 0, "release": 1})
def test_nan_advantage_in_padding(n):
    clean, bad = dirty(advantage=NAN)
    finite, _, _ = probe(bad)
    assert count(finite) == n
    names = ("vanilla", "dppo_tv", "dppo_kl", "cispo", "gspo")
    assert {key for key in finite if key[0] == "verl"} == {
        ("verl", a, mode) for a in names for mode in TOKEN_MODES
    }
    unharmed(clean, bad)


@shows("P3", {"verl": 25, "TRL": 5, "release": 4})
def test_infinite_old_log_prob_in_padding(n):
    clean, bad = dirty(old=-INF)
    finite, _, padding = probe(bad)
    assert count(finite) == n
    assert not any(name == "gspo" for _, name, _ in finite) and ("TRL", TRL.index(SEQUENCE), "") not in finite
    down = bad._replace(advantages=-bad.advantages)
    assert math.isnan(verl("geo_mean", down).loss)  # its clip lets an infinity through where A < 0
    # TRL's token losses pass a NaN on to what stands in the padding, cispo's weight is detached
    assert {k for peer, k in padding if peer == "TRL"} >= {0, 1, 2, 3}
    unharmed(clean, bad)


@shows("P4", {"verl": 0.0, "TRL": NAN, "release": -math.exp(10) / 2, "ppo": 0.0, "nfpo": -math.exp(10) / 2})
def test_infinite_old_log_prob_at_a_valid_token(n):
    """Gradient there, A > 0: the ratio is above every clip."""
    batch = typed([[1.0, 1.0]], [1.0], old=-2.0)
    batch.old_log_prob[0, 0] = -INF
    equal(verl("vanilla", batch).grad[0, 0].item(), n["verl"])
    for loss_type in ("grpo", "bnpo", "dr_grpo", "dapo"):
        assert math.isnan(trl(loss_type, batch).grad[0, 0].item()) == math.isnan(n["TRL"])
    assert trl("cispo", batch, epsilon_high=5.0).grad.isfinite().all()
    # pi = .135 < delta = .2: kept, with the weight e^10
    equal(release(batch).grad[0, 0].item(), n["release"])
    equal(rlvr("nfpo", batch).grad[0, 0].item(), n["nfpo"])
    for name in objectives.list_objectives():
        ours = rlvr(name, batch)
        assert math.isfinite(ours.loss) and ours.grad.isfinite().all(), name
    equal(rlvr("ppo", batch).grad[0, 0].item(), n["ppo"])


@shows(
    "P5", {"verl": NAN, "verl geo_mean": 0.0, "TRL": 0.0, "release": NAN, "release norm": 0.0, "rlvr": 0.0}
)
def test_all_rows_masked(n):
    batch = typed([[1.1, 0.9]] * 2, [1.0, -1.0], [[0, 0]] * 2)
    for mode in set(AGGREGATIONS) - {"token-sum"}:  # which divides by nothing
        for name in set(VERL) - {"geo_mean"}:
            equal(math.isnan(verl(name, batch, mode).loss), math.isnan(n["verl"]))
    equal(verl("geo_mean", batch).loss, n["verl geo_mean"])
    for config in TRL:
        equal(trl(batch=batch, **{"loss_type": "grpo"} | config).loss, n["TRL"])
    for mode in set(RELEASE) - {NORM}:
        equal(math.isnan(release(batch, mode).loss), math.isnan(n["release"]))
    equal(release(batch, NORM).loss, n["release norm"])
    for name in objectives.list_objectives():
        for mode in AGGREGATIONS:
            ours = rlvr(name, batch, loss_agg_mode=mode)
            assert ours.loss == n["rlvr"] and not ours.grad.any()
            assert all(math.isfinite(value) for value in ours.metrics.values())


# --- the page -----------------------------------------------------------------------------------------


def page_rows():
    """Each table row of the page, by its name (D1, P1, S2 ...)."""
    lines = [line for line in PAGE.read_text().splitlines() if re.match(r"\| [DPS]\d+ ", line)]
    rows = {line.split()[1]: line for line in lines}
    assert len(rows) == len(lines), "a row is there twice"
    return rows


def known_tests():
    """Every test function in this folder."""
    return {
        node.name
        for path in HERE.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_row_names_tests_that_exist():
    rows, known = page_rows(), known_tests()
    assert {f"D{k}" for k in range(1, 16)} | {f"P{k}" for k in range(1, 6)} <= set(rows)
    for row, text in rows.items():
        named = set(re.findall(r"`(test_\w+)`", text))
        assert named, f"{row} names no test"
        assert named <= known, f"{row} names {named - known}"


@pytest.mark.parametrize("test", SHOWN)
def test_the_page_shows_the_numbers_of(test):
    row, numbers = SHOWN[test]
    text = page_rows()[row]
    assert f"`{test}`" in text, f"{row} does not name {test}"
    for label, value in numbers.items():
        shown = f"{label}: {value:.6g}"
        found = re.search(rf"(?<=[|;.)] ){re.escape(shown)}(?!\d|\.\d|e)", text)
        assert found, f"{row} does not show '{shown}'"
    assert len(set(numbers.values())) > 1, f"{row}: {test} shows no difference"
