"""Where verl 0.9.1 or TRL 1.16.0 compute the same maths, they get the same loss and gradient.

Where an oddity of a peer stands in the way, the batch leaves it out and the comment says so;
``test_same_name.py`` shows the oddity itself.
"""

import os

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when huggingface_hub is imported
# By its module: without verl, this folder's own name would pass for the package.
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")
pytest.importorskip("trl", reason="TRL is not installed: pip install -e '.[bench]'")

from peers import INF, KINDS, close, random_batch, release, rlvr, trl, verl
from verl.workers.config.actor import PolicyLossConfig, RolloutCorrectionConfig

from rlvr.losses import AGGREGATIONS

pytestmark = pytest.mark.verl
DTYPES = [torch.float32, torch.float64]
SEEDS = range(3)


def clips(low, high, c=3.0):
    return {"clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": c}


def correction(threshold, is_level="token", rejection=None):
    """verl's REINFORCE on rollouts, with its weight for pi / mu."""
    return {
        "policy_loss": PolicyLossConfig(
            rollout_correction=RolloutCorrectionConfig(
                rollout_is=is_level,
                rollout_is_threshold=threshold,
                rollout_rs=rejection,
                loss_type="reinforce",
                bypass_mode=True,
            )
        )
    }


# No row of one token beyond the bound: verl's sequence ratio is bounded at exp(10) above only, geo_mean's
# not at all, ours on both sides.
BOUNDED = [kind for kind in KINDS if kind != "beyond"]

# (theirs, its config, ours, its parameters, kinds of batches)
VERL = [
    ("vanilla", clips(0.2, 0.2), "ppo", {}, KINDS),
    ("vanilla", clips(0.2, 0.28), "grpo", {}, KINDS),
    ("vanilla", clips(0.2, 0.28, 10.0), "dapo", {}, KINDS),
    ("vanilla", clips(0.2, 0.2), "dr_grpo", {}, KINDS),
    ("vanilla", clips(0.1, 0.4, 1.5), "grpo", {"clip_low": 0.1, "clip_high": 0.4, "dual_clip": 1.5}, KINDS),
    ("dppo_tv", clips(0.2, 0.2, 20.0), "dppo_tv", {}, KINDS),
    ("dppo_tv", clips(0.05, 0.05), "dppo_tv", {"delta": 0.05, "ratio_cap": 3.0}, KINDS),
    ("dppo_tv", clips(0.2, 0.2, INF), "nfpo", {"horizon": 1, "ratio_bound": 20.0}, KINDS),
    ("dppo_kl", clips(0.05, 0.05, 20.0), "dppo_kl", {}, KINDS),
    ("dppo_kl", clips(0.2, 0.2, 3.0), "dppo_kl", {"delta": 0.2, "ratio_cap": 3.0}, KINDS),
    ("gspo", clips(3e-4, 4e-4), "gspo_token", {}, BOUNDED),
    ("gspo", clips(0.1, 0.1), "gspo_token", {"clip_low": 0.1, "clip_high": 0.1}, BOUNDED),
    ("cispo", clips(0.2, 0.28), "cispo", {"ratio_cap": 1.28, "ratio_floor": 0.8}, KINDS),
    ("cispo", clips(1.0, 4.0), "cispo", {}, KINDS),
    ("bypass_mode", correction("0.5_5.0"), "icepop", {"band": (0.5, 5.0)}, KINDS),
    ("bypass_mode", correction(2.0), "cispo", {"ratio_cap": 2.0}, KINDS),
    ("bypass_mode", correction(2.0, None), "uncorrected", {}, KINDS),
]
IDS = [f"{theirs}-{ours}-{k}" for k, (theirs, _, ours, _, _) in enumerate(VERL)]


def batches(kinds, dtype, tokens=(False, True)):
    for kind in kinds:
        for seed in SEEDS:
            for per_token in tokens:
                yield random_batch(kind, seed, dtype, per_token)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("theirs", "config", "ours", "parameters", "kinds"), VERL, ids=IDS)
def test_verl(theirs, config, ours, parameters, kinds, dtype):
    for batch in batches(kinds, dtype):
        for mode in AGGREGATIONS:
            close(rlvr(ours, batch, loss_agg_mode=mode, **parameters), verl(theirs, batch, mode, **config))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize(("theirs", "config", "ours", "parameters", "kinds"), VERL, ids=IDS)
def test_verl_micro_batches(theirs, config, ours, parameters, kinds, mode, dtype):
    """Each part, with the counts that verl's trainer hands it: its rows include the fully masked ones."""
    for batch in batches(kinds[-1:], dtype):
        counts = {
            "dp_size": 2,
            "batch_num_tokens": int(batch.mask.sum()),
            "global_batch_size": len(batch.mask),
            "loss_scale_factor": 40,
        }
        for part in batch.split((3, 1, 4)):
            if part.mask.any():
                expected = verl(theirs, part, mode, counts, **config)
                close(rlvr(ours, part, loss_agg_mode=mode, **counts, **parameters), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("clip", [(3e-4, 4e-4), (0.1, 0.1)])
def test_verl_gspo_is_the_sequence_objective_at_one_advantage_per_response(clip, dtype):
    # With advantages per token the gradients differ: verl's is the token variant (D8).
    for batch in batches(BOUNDED, dtype, tokens=(False,)):
        for mode in AGGREGATIONS:
            ours = rlvr("gspo", batch, loss_agg_mode=mode, clip_low=clip[0], clip_high=clip[1])
            close(ours, verl("gspo", batch, mode, **clips(*clip)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_verl_geo_mean(dtype):
    # It averages over all rows in any mode (D2): ours is told that number.
    for batch in batches(BOUNDED, dtype):
        for limit in (0.4, 0.1):
            ours = rlvr("gmpo", batch, clip_low=limit, clip_high=limit, global_batch_size=len(batch.mask))
            for mode in AGGREGATIONS:
                close(ours, verl("geo_mean", batch, mode, **clips(limit, limit)))


# --- TRL ----------------------------------------------------------------------------------------------

# No token beyond 20: TRL bounds no exponent. It averages over all rows, which ours is told.
TRL_KINDS = BOUNDED
SAME_MEAN = {
    "grpo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "dapo": "token-mean",
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("delta", [None, 3.0])
@pytest.mark.parametrize("loss_type", SAME_MEAN)
def test_trl(loss_type, delta, dtype):
    for batch in batches(TRL_KINDS, dtype):
        ours = rlvr(
            "grpo",
            batch,
            dual_clip=delta,
            loss_agg_mode=SAME_MEAN[loss_type],
            global_batch_size=len(batch.mask),
            loss_scale_factor=40,
        )
        close(ours, trl(loss_type, batch, width=40, epsilon_high=0.28, delta=delta))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cap", [5.0, 1.28])
def test_trl_cispo(cap, dtype):
    for batch in batches(TRL_KINDS, dtype):
        close(rlvr("cispo", batch, ratio_cap=cap), trl("cispo", batch, epsilon_high=cap))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("clip", [(3e-4, 4e-4), (0.1, 0.2)])
@pytest.mark.parametrize("loss_type", SAME_MEAN)
def test_trl_sequence_level(loss_type, clip, dtype):
    sequence = {"importance_sampling_level": "sequence", "epsilon": clip[0], "epsilon_high": clip[1]}
    for batch in batches(TRL_KINDS, dtype):
        ours = rlvr(
            "gspo",
            batch,
            clip_low=clip[0],
            clip_high=clip[1],
            loss_agg_mode=SAME_MEAN[loss_type],
            global_batch_size=len(batch.mask),
        )
        close(ours, trl(loss_type, batch, **sequence))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo"])
def test_trl_micro_batches(loss_type, dtype):
    """Two equal parts of an optimizer step, itself half of a generation. (bnpo has a mean per part.)"""
    for batch in batches(TRL_KINDS, dtype):
        tokens = int(batch.mask.sum())
        ours = {
            "loss_agg_mode": SAME_MEAN[loss_type],
            "batch_num_tokens": tokens,
            "global_batch_size": len(batch.mask),
            "dual_clip": None,
        }
        for part in batch.split((4, 4)):
            steps = {"items": 2 * tokens, "accumulation": 2, "per_generation": 4}
            close(rlvr("grpo", part, **ours), trl(loss_type, part, epsilon_high=0.28, **steps))


# --- the NFPO release, as restated --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kl", [False, True])
@pytest.mark.parametrize("horizon", [1, 4, 8, 24])
def test_release(horizon, kl, dtype):
    settings = {"region": "kl" if kl else "tv", "delta": 0.2, "trace_clip": (0.8, 1.2), "window": "positions"}
    for batch in batches(KINDS, dtype):
        rollout = batch.old_log_prob - 0.1 * batch.log_prob.cos().abs()
        for anchor in (None, rollout):
            for mode in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"):
                ours = rlvr(
                    "nfpo", batch, horizon=horizon, rollout_log_prob=anchor, loss_agg_mode=mode, **settings
                )
                close(ours, release(batch, mode, rollout=anchor, horizon=horizon, kl=kl))
            # its mode without the number of rows (D1)
            ours = rlvr(
                "nfpo", batch, horizon=horizon, rollout_log_prob=anchor, global_batch_size=1, **settings
            )
            close(ours, release(batch, rollout=anchor, horizon=horizon, kl=kl))


@pytest.mark.parametrize("dtype", DTYPES)
def test_release_without_trace_is_verls_dppo(dtype):
    # within the release's bound of 10 on the log ratio
    for batch in batches(("typical", "wide", "holes", "ragged"), dtype):
        for mode in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"):
            theirs = release(batch, mode)
            expected = verl("dppo_tv", batch, mode, **clips(0.2, 0.2, 1e4))
            assert theirs.loss == pytest.approx(expected.loss, rel=1e-6)
            torch.testing.assert_close(theirs.grad, expected.grad, rtol=1e-6, atol=0)


# --- metrics that mean the same -----------------------------------------------------------------------


def same_metric(one: float, other: float) -> None:
    assert one == pytest.approx(other, rel=1e-6, abs=1e-7)


# (theirs, config, ours, parameters, verl's shares as a sum of ours)
SHARES = [
    (
        "vanilla",
        clips(0.2, 0.2),
        "ppo",
        {},
        lambda m: m["pg_clipfrac"] + m["pg_clipfrac_lower"],
        "clip_fraction",
    ),
    ("dppo_tv", clips(0.05, 0.05), "dppo_tv", {"delta": 0.05}, lambda m: m["pg_clipfrac"], "masked_fraction"),
    ("dppo_kl", clips(0.05, 0.05), "dppo_kl", {}, lambda m: m["pg_clipfrac"], "masked_fraction"),
    ("gspo", clips(3e-4, 4e-4), "gspo", {}, lambda m: m["pg_clipfrac"], "clip_fraction"),
    ("gspo", clips(3e-4, 4e-4), "gspo_token", {}, lambda m: m["pg_clipfrac"], "clip_fraction"),
    (
        *("cispo", clips(0.2, 0.28), "cispo", {"ratio_cap": 1.28, "ratio_floor": 0.8}),
        *(lambda m: m["pg_clipfrac"], "ratio_cap_fraction"),
    ),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("theirs", "config", "ours", "parameters", "share", "metric"), SHARES, ids=[s[2] for s in SHARES]
)
def test_verl_metrics(theirs, config, ours, parameters, share, metric, dtype):
    seen = []
    for batch in batches(BOUNDED, dtype):
        found = rlvr(ours, batch, **parameters).metrics
        expected = {k.removeprefix("actor/"): v for k, v in verl(theirs, batch, **config).metrics.items()}
        same_metric(found["kl"], expected["ppo_kl"])
        same_metric(found[metric], share(expected))
        seen.append(found[metric])
    assert 0 < max(seen) and min(seen) < 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_trl_metrics(dtype):
    for batch in batches(TRL_KINDS, dtype):
        theirs = trl("dapo", batch, epsilon_high=0.28).metrics
        assert theirs["clip_ratio/region_mean"] == pytest.approx(
            theirs["clip_ratio/low_mean"] + theirs["clip_ratio/high_mean"], abs=1e-6
        )
        same_metric(
            rlvr("grpo", batch, dual_clip=None).metrics["clip_fraction"], theirs["clip_ratio/region_mean"]
        )


def test_release_metrics():
    for batch in batches(BOUNDED[:4], torch.float64):
        theirs = release(batch, horizon=4).metrics
        ours = rlvr("nfpo", batch, horizon=4, trace_clip=(0.8, 1.2), window="positions").metrics
        for metric, name in (
            ("kl", "ppo_kl"),
            ("masked_fraction", "pg_clipfrac"),
            ("trace_mean", "trace_mean"),
        ):
            same_metric(ours[metric], theirs[name])
