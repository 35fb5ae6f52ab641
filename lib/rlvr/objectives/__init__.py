"""The recipes: every named objective, a few lines over ratios, trust regions and losses.

    loss, metrics = objectives.nfpo(log_prob, old_log_prob, advantages, response_mask, horizon=4)
    loss, metrics = objectives.get("nfpo")(...)          # the same, by name

Arguments of every objective: ``log_prob``, ``old_log_prob`` [B, T], log-probabilities (nats) of the
sampled tokens under the current policy pi and under the policy that the ratio is taken against (the
rollout policy mu); ``advantages`` [B] (one per response; always per row, also when B == T) or [B, T];
``response_mask`` [B, T], 0/1. Then, by keyword: the objective's own parameters; ``loss_agg_mode`` and
the global counts of :func:`rlvr.losses.aggregation_scale`; ``reduction``: "loss" gives the scalar to
minimise, "none" the per-token loss [B, T], 0 where masked; ``check=False`` skips the input checks.
Everything is a constant but ``log_prob``; half precision is computed in float32, float64 stays. The gradient
has the dtype of ``log_prob``: beyond float16's range it is infinite, which a gradient scaler looks for.

Metrics are detached 0-d tensors: ``tokens`` is a count, a ``*_max`` a maximum, everything else a mean
over the call's valid tokens (with none, 0 or what a ratio of 1 gives). :func:`merge_metrics` joins those of
several micro-batches.
Common to all: ``kl`` = E[-log rho] (the sampled KL(mu||pi), log rho bounded), ``ratio_mean``,
``ratio_max``, ``ratio_correction_strength`` = E|rho - 1|, ``correction_strength`` = E|w - 1|, w the
weight before trust region and advantage. Then ``clip_fraction`` or ``masked_fraction``, the share of
tokens whose gradient the trust region removed; they stay in every denominator.

The modules, by what the ratio looks at: ``clipped`` and ``masked`` one token, in the two loss forms;
``trace`` the tokens that follow; ``sequence`` the whole response; ``block`` the next K tokens.
"""

from rlvr.objectives.block import mpo, mpo_grpo
from rlvr.objectives.clipped import FIPO_PRESETS, dapo, dr_grpo, fipo, grpo, ppo
from rlvr.objectives.masked import cispo, dppo_kl, dppo_tv, icepop, uncorrected
from rlvr.objectives.sequence import gmpo, gspo, gspo_token, masked_gspo
from rlvr.objectives.trace import NFPO_PRESETS, exact_pg, nfpo
from rlvr.registry import get, list_objectives, merge_metrics

__all__ = [
    "FIPO_PRESETS",
    "NFPO_PRESETS",
    "cispo",
    "dapo",
    "dppo_kl",
    "dppo_tv",
    "dr_grpo",
    "exact_pg",
    "fipo",
    "get",
    "gmpo",
    "grpo",
    "gspo",
    "gspo_token",
    "icepop",
    "list_objectives",
    "masked_gspo",
    "merge_metrics",
    "mpo",
    "mpo_grpo",
    "nfpo",
    "ppo",
    "uncorrected",
]
