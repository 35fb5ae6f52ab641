"""Bias and variance of the N-step surrogate measured on a language model.

The papers show them on a token MDP that can be enumerated. With a policy cheap enough to sample tens
of thousands of times they can be measured: mu is a base model, pi the same model after training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rlvr.config import Problems
from rlvr.engines.local.packing import pack
from rlvr.engines.local.policy import Policy
from rlvr.engines.local.rollout import derive_seed, grade
from rlvr.engines.local.sampling import sample
from rlvr.engines.local.update import response_log_prob
from rlvr.evaluation import Estimate, bootstrap_statistic, clustered_mean, with_ends
from rlvr.problems import get_task
from rlvr.problems.tokenizer import Codec
from rlvr.ratios import forward_trace

CHUNK = 512  # responses per forward pass


def surrogate_terms(log_ratio: Tensor, response_mask: Tensor, horizon: int) -> Tensor:
    """``sum_t (rho_t - 1) Gamma_{t+1}^{(N)}`` per response, [B] float64, unclipped.

    ``log_ratio`` [B, T] of pi over mu on responses of mu. Its expectation under mu is 0 for every N, and
    times the reward it estimates L^(N) (nfpo, Section 3).
    """
    log_ratio = log_ratio.double()
    mask = response_mask.double()
    trace = forward_trace(log_ratio, response_mask, horizon, ratio_clip=None, trace_clip=None)
    return ((torch.where(mask > 0, log_ratio, 0.0).exp() - 1) * trace * mask).sum(-1)


@torch.no_grad()
def measure_surrogate(
    mu_folder: str | Path,
    pi_folder: str | Path,
    problems: Problems,
    prompts: int,
    horizons: Sequence[int],
    max_new_tokens: int,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """One row per prompt: reward of mu, reward of pi, and the one-sample estimate of L^(N) for each N.

    Args:
        mu_folder, pi_folder: saved policies that share a tokenizer.
        problems, prompts: which training problems, and how many.
        horizons: the N to measure; one at or above the longest response is the exact trace.
        max_new_tokens: length limit of the responses.
        seed: of problems and sampling; mu and pi draw the same uniforms.

    The reward in the estimate is centred by mu's mean reward on the other prompts, which changes no
    expectation and lowers the variance. (A mean that held the prompt's own reward would shrink every
    estimate by 1/prompts.) Columns: ``reward_mu``, ``reward_pi``, ``tokens`` and ``L{N}``.

    Raises:
        ValueError: fewer than two prompts.
    """
    if prompts < 2:
        raise ValueError(f"prompts={prompts!r}: allowed are integers >= 2 (each centres the others)")
    mu, pi, codec = (
        Policy.from_pretrained(mu_folder),
        Policy.from_pretrained(pi_folder),
        Codec.load(mu_folder),
    )
    chosen = get_task(problems.task).generate("train", prompts, derive_seed(seed, 0), problems.operations)
    ids = codec.encode_batch(p.prompt for p in chosen)
    total = 3 * prompts

    def tell(offset: int) -> Callable[[int], None]:
        return lambda done: on_progress(offset + done, total) if on_progress else None

    draws = derive_seed(seed, 1)
    of_mu = sample(mu, ids, 1, max_new_tokens, draws, on_progress=tell(0))
    of_pi = sample(pi, ids, 1, max_new_tokens, draws, on_progress=tell(prompts))
    out = {
        "reward_mu": np.array(grade(codec, of_mu, chosen, 1)),
        "reward_pi": np.array(grade(codec, of_pi, chosen, 1)),
        "tokens": of_mu.lengths.numpy(),
    }
    log_ratio = torch.zeros(of_mu.log_prob.shape)
    for start in range(0, prompts, CHUNK):
        rows = slice(start, min(start + CHUNK, prompts))
        packed = pack(ids[rows], of_mu.tokens[rows], of_mu.lengths[rows], 1)
        log_prob, _ = response_log_prob(pi.theta, pi.shape, packed, 1.0)
        width = log_prob.shape[1]
        log_ratio[rows, :width] = (log_prob - of_mu.log_prob[rows, :width]) * packed.response_mask
        tell(2 * prompts)(rows.stop)
    centred = (out["reward_mu"] - out["reward_mu"].mean()) * (prompts / (prompts - 1))
    for horizon in horizons:
        out[f"L{horizon}"] = centred * surrogate_terms(log_ratio, of_mu.response_mask, horizon).numpy()
    return pd.DataFrame(out)


def surrogate_estimates(
    samples: pd.DataFrame, horizons: Sequence[int], confidence: float, resamples: int
) -> tuple[Estimate, pd.DataFrame]:
    """The true gain, and bias and standard deviation of L^(N) for every N.

    Args:
        samples: rows of :func:`measure_surrogate` with a column ``seed``; prompts are independent.
        horizons: which N.
        confidence, resamples: of the intervals. The bias is paired by prompt (its estimate and the gain
            come from the same prompt), Student's t; the standard deviation is bootstrapped.

    Returns:
        gain, and a frame ``horizon, quantity (bias | sd), estimate, value, low, high``.
    """
    seeds = tuple(sorted(int(s) for s in samples["seed"].unique()))
    rows = np.arange(len(samples))
    settings = {"confidence": confidence, "seeds": seeds, "n_unit": "prompts"}
    gains = (samples["reward_pi"] - samples["reward_mu"]).to_numpy()
    out = []
    for horizon in horizons:
        values = samples[f"L{horizon}"].to_numpy()
        bias = clustered_mean(values - gains, rows, **settings)
        spread = _standard_deviation(values, seeds, confidence, resamples)
        out += [
            {"horizon": horizon, "quantity": q, "estimate": e} for q, e in (("bias", bias), ("sd", spread))
        ]
    return clustered_mean(gains, rows, **settings), with_ends(pd.DataFrame(out))


def _standard_deviation(values: np.ndarray, seeds, confidence: float, resamples: int) -> Estimate:
    """Percentile bootstrap over prompts: few heavy samples carry the variance of a long trace."""
    return bootstrap_statistic(
        [values],
        partial(np.std, axis=-1, ddof=1),
        resamples=resamples,
        confidence=confidence,
        seeds=seeds,
        n_unit="prompts",
    )
