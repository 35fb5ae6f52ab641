"""Losses: forward and backward of every objective against verl's, in turn, on the same tensors.

Both sides are called as a trainer calls them: global counts given, gradient by `log_prob` taken, metrics
turned into floats. Settings make both compute the same loss where verl has it, which is checked before
anything is timed. Also: the trace's cost and accuracy by horizon, peak memory, and what moving the inputs
and the gradient once would take.
"""

from __future__ import annotations

import argparse
import functools
import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from measure import (
    Busy,
    Interval,
    copy_bandwidth,
    interleaved,
    peak_memory,
    ratio_of_medians,
    shown,
    verdict,
    warm_allocator,
)
from torch import Tensor

from rlvr import objectives
from rlvr.ratios import forward_trace

ROWS, WIDTH, MODULES = 64, 8192, 3
THREADS = (1, 2)
SAME, NFPO = 0.8, 0.6  # targets: time over verl's; NFPO against DPPO-TV
MTP = ("mtp_log_prob", "old_mtp_log_prob")
Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """An objective at ``parameters`` and the loss of verl it stands against."""

    name: str
    parameters: dict[str, Any]
    verl: str
    settings: dict[str, Any]  # of verl's ActorConfig
    target: float | None = SAME  # None: verl lacks it, the ratio is for orientation
    same: bool = True  # both have the same gradient
    extra: tuple[str, ...] = ()  # further inputs, by the objective's parameter

    @property
    def label(self) -> str:
        return self.name + (f" N={self.parameters['horizon']}" if "horizon" in self.parameters else "")


def verl_clip(low: float, high: float, cap: float = 3.0) -> dict[str, float]:
    return {"clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": cap}


TV, KL, GSPO = verl_clip(0.2, 0.2, 20.0), verl_clip(0.05, 0.05, 20.0), verl_clip(3e-4, 4e-4)
CASES = (
    *(Case("nfpo", {"horizon": n}, "dppo_tv", TV, NFPO, same=False) for n in (4, 8, 256)),
    Case("ppo", {}, "vanilla", verl_clip(0.2, 0.2)),
    Case("grpo", {}, "vanilla", verl_clip(0.2, 0.28)),
    Case("dr_grpo", {}, "vanilla", verl_clip(0.2, 0.2)),
    Case("dapo", {}, "vanilla", verl_clip(0.2, 0.28, 10.0)),
    Case("dppo_tv", {}, "dppo_tv", TV),
    Case("dppo_kl", {}, "dppo_kl", KL),
    Case("cispo", {"ratio_floor": 0.8, "ratio_cap": 1.28}, "cispo", verl_clip(0.2, 0.28)),
    Case("gspo", {}, "gspo", GSPO),
    Case("gspo_token", {}, "gspo", GSPO),
    Case("gmpo", {}, "geo_mean", verl_clip(0.4, 0.4)),
    Case("fipo", {}, "vanilla", verl_clip(0.2, 0.28, 10.0), None, same=False),
    Case("mpo", {}, "vanilla", verl_clip(0.2, 0.2), None, same=False, extra=MTP),
    Case("mpo_grpo", {}, "vanilla", verl_clip(0.2, 0.28), None, same=False, extra=MTP),
    Case("masked_gspo", {}, "gspo", GSPO, None, same=False, extra=("token_mask",)),
    Case("icepop", {}, "dppo_tv", TV, None, same=False),
    Case("exact_pg", {}, "dppo_tv", TV, None, same=False),
    Case("uncorrected", {}, "dppo_tv", TV, None, same=False),
)


def make_inputs(rows: int = ROWS, width: int = WIDTH, ragged: bool = False, seed: int = 0) -> Inputs:
    """Log-probs a few updates apart. ragged: lengths uniform in 1..width, first row full; padding is 0."""
    g = torch.Generator().manual_seed(seed)
    old = torch.empty(rows, width).exponential_(2.0, generator=g).neg_() - 0.02
    new = (old + 0.12 * torch.randn(rows, width, generator=g)).clamp_(max=-1e-4)
    lengths = torch.randint(1, width + 1, (rows, 1), generator=g) if ragged else torch.full((rows, 1), width)
    lengths[0] = width
    mask = torch.arange(width) < lengths
    inputs = {
        "log_prob": new,
        "old_log_prob": old,
        "advantages": torch.randn(rows, 1, generator=g).expand(rows, width).clone(),
        "token_mask": torch.rand(rows, width, generator=g) < 0.5,
    }
    for name in MTP:
        inputs[name] = torch.empty(rows, width, MODULES).exponential_(1.0, generator=g).neg_()
    for name, value in inputs.items():
        inputs[name] = torch.where(
            mask[..., None] if value.ndim == 3 else mask, value, torch.zeros_like(value)
        )
    inputs["log_prob"].requires_grad_()
    return inputs | {"response_mask": mask}


def ours(case: Case, inputs: Inputs, check: bool = True) -> Callable[[], Tensor]:
    """One call of the objective; returns the gradient."""
    objective = objectives.get(case.name)
    parameters = case.parameters | {name: inputs[name] for name in case.extra}
    arguments = [inputs[k] for k in ("log_prob", "old_log_prob", "advantages", "response_mask")]
    mask = inputs["response_mask"]
    counts = {"batch_num_tokens": int(mask.sum()), "global_batch_size": len(mask)}

    def call() -> Tensor:
        loss, metrics = objective(*arguments, **parameters, **counts, check=check)
        (gradient,) = torch.autograd.grad(loss, arguments[0])
        _ = {name: float(value) for name, value in metrics.items()}
        return gradient

    return call


def theirs(case: Case, inputs: Inputs) -> Callable[[], Tensor]:
    """One call of verl's loss with its configuration, as its `ppo_loss` makes it; returns the gradient."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig

    mode = objectives.get(case.name).loss_agg_mode
    config = ActorConfig(
        strategy="fsdp", rollout_n=8, ppo_micro_batch_size_per_gpu=8, loss_agg_mode=mode, **case.settings
    )
    mask = inputs["response_mask"]
    config.global_batch_info.update(
        dp_size=1, batch_num_tokens=int(mask.sum()), global_batch_size=len(mask), loss_scale_factor=None
    )
    arguments = {k: inputs[k] for k in ("old_log_prob", "log_prob", "advantages", "response_mask")}

    def call() -> Tensor:
        loss, _ = get_policy_loss_fn(case.verl)(
            **arguments, loss_agg_mode=mode, config=config, rollout_is_weights=None
        )
        return torch.autograd.grad(loss, inputs["log_prob"])[0]

    return call


def check_same(case: Case, inputs: Inputs) -> None:
    """Stops the benchmark where the two sides' gradients differ (a few tokens may round across a bound)."""
    a, b = ours(case, inputs)(), theirs(case, inputs)()
    share = float(((a - b).abs() > 1e-5 * b.abs().max()).float().mean())
    if share > 1e-4 or not b.any():
        raise SystemExit(f"{case.label}: {share:.2%} of the gradient differs from verl's {case.verl}")


def minimal_bytes(case: Case, inputs: Inputs) -> int:
    """Every input read once and the gradient written."""
    names = ("log_prob", "old_log_prob", "advantages", "response_mask", *case.extra)
    return sum(inputs[name].nbytes for name in names) + inputs["log_prob"].nbytes


def time_cases(
    cases: tuple[Case, ...], inputs: Inputs, rounds: int
) -> dict[str, tuple[dict[str, float], Interval, Interval]]:
    """By label: (median milliseconds of each side, ratio, ratio without checks); prints a table."""
    speed = copy_bandwidth(inputs["old_log_prob"], rounds)
    print(f"copy bandwidth {speed / 1e9:.0f} GB/s (read + written)")
    print("| objective | verl | verl, ms | ours, ms | floor, ms | ratio | target | ratio, check=False |")
    print("| --- | --- | ---: | ---: | ---: | --- | --- | --- |")
    results = {}
    for case in cases:
        calls = {
            "theirs": theirs(case, inputs),
            "ours": ours(case, inputs),
            "unchecked": ours(case, inputs, check=False),
        }
        times = interleaved(calls, rounds)
        middle = {name: 1e3 * statistics.median(values) for name, values in times.items()}
        middle["floor"] = 1e3 * minimal_bytes(case, inputs) / speed
        ratio, unchecked = (ratio_of_medians(times[name], times["theirs"]) for name in ("ours", "unchecked"))
        results[case.label] = middle, ratio, unchecked
        print(
            f"| {case.label} | {case.verl} | {middle['theirs']:.1f} | {middle['ours']:.1f} "
            f"| {middle['floor']:.2f} | {shown(ratio)} | {verdict(ratio, case.target)} "
            f"| {shown(unchecked)} |",
            flush=True,
        )
    return results


def print_summary(cases: tuple[Case, ...], results: dict[tuple[int, bool], dict]) -> None:
    """One row per objective: the ratio in every setting, and peak memory."""
    inputs = make_inputs(ragged=True)
    unit = inputs["old_log_prob"].nbytes
    names = [f"{n} thread{'s' * (n > 1)}, {'ragged' if ragged else 'full'}" for n, ragged in results]
    print(f"\n| objective | verl | {' | '.join(names)} | target | memory: ours | verl |")
    print(f"| --- | --- |{' --- |' * len(names)} --- | ---: | ---: |")
    for case in cases:
        cells = [shown(result[case.label][1]) for result in results.values()]
        memory = [peak_memory(side(case, inputs), unit) for side in (ours, theirs)]
        target = "-" if case.target is None else f"{case.target}"
        print(
            f"| {case.label} | {case.verl} | {' | '.join(cells)} | {target} "
            f"| {memory[0]:.1f} | {memory[1]:.1f} |",
            flush=True,
        )
    print("ratio: ours / verl; memory: peak of forward and backward, in float32 tensors [B, T]")


def drifting_rows(width: int) -> Tensor:
    """Log ratios [7, width] whose prefix sums grow large: what a difference of two of them would lose."""
    g = torch.Generator().manual_seed(1)
    noise = 0.1 * torch.randn(7, width, generator=g)
    half = torch.arange(width) < width // 2
    drift = torch.zeros(7, width)
    drift[1], drift[2] = 0.05, -0.05
    drift[3] = torch.where(half, 5.0, -5.0)  # beyond the factors' clip
    drift[4] = torch.where(torch.arange(width) % 2 == 0, 5.0, -5.0)
    drift[5] = torch.where(torch.arange(width) % 12 == 0, 5.0, -0.1)
    drift[6] = torch.where(torch.arange(width) % 1000 == 0, -40.0, 0.02)
    return drift + noise


def trace_by_loop(log_ratio: Tensor, horizon: int, ratio_clip: float | None) -> Tensor:
    """The unclipped trace as a product of up to N-1 factors, float64, factor by factor."""
    ratio = log_ratio.double().exp()
    if ratio_clip is not None:
        ratio = ratio.clamp(1 / ratio_clip, ratio_clip)
    product = torch.ones_like(ratio)
    for step in range(1, min(horizon, ratio.shape[1])):
        product[:, :-step] *= ratio[:, step:]
    return product


def trace_error(width: int, horizon: int, trace_clip: tuple[float, float] | None) -> float:
    """Largest relative error of the float32 trace against the loop; numbers beyond float32 are left out."""
    log_ratio = drifting_rows(width)
    exact = trace_by_loop(log_ratio, horizon, 3.0)
    fits = (exact > 1e-30) & (exact < 1e30)
    if trace_clip is not None:
        exact = exact.clamp(*trace_clip)
    trace = forward_trace(log_ratio, torch.ones_like(log_ratio), horizon, 3.0, trace_clip).double()
    return float(((trace - exact).abs() / exact)[fits].max())


def trace_report(rounds: int) -> None:
    for ragged in (False, True):
        inputs = make_inputs(ragged=ragged)
        mask = inputs["response_mask"]
        log_ratio = (inputs["log_prob"] - inputs["old_log_prob"]).detach()
        calls = {f"N={n}": functools.partial(forward_trace, log_ratio, mask, n) for n in (4, 256)}
        times = interleaved(calls, 3 * rounds)
        ratio = ratio_of_medians(times["N=256"], times["N=4"])
        print(
            f"forward_trace, {'ragged' if ragged else 'full'} mask: N=4 "
            f"{1e3 * statistics.median(times['N=4']):.2f} ms, N=256 over N=4: {shown(ratio)} "
            f"({verdict(ratio, 1.2)})"
        )
    for horizon in (4, 256, 16384):
        errors = [trace_error(16384, horizon, clip) for clip in ((0.8, 1.4), None)]
        print(
            f"forward_trace, T=16384, N={horizon}: largest relative error against a float64 loop "
            f"{errors[0]:.1e} clipped, {errors[1]:.1e} unclipped (<= 1e-6)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="per objective and setting (40)")
    parser.add_argument("--only", nargs="+", help="names of objectives (all)")
    parser.add_argument("--threads", nargs="+", type=int, default=THREADS, help="(1 2)")
    parser.add_argument(
        "--fresh-allocator", action="store_true", help="as in a process that just started (first table)"
    )
    options = parser.parse_args()
    cases = tuple(case for case in CASES if not options.only or case.name in options.only)
    import verl

    print(f"{platform.machine()}, torch {torch.__version__}, verl {verl.__version__}; [{ROWS}, {WIDTH}]")
    if not options.fresh_allocator:
        warm_allocator()
    results = {}
    for threads in options.threads:
        torch.set_num_threads(threads)
        for ragged in (False, True):
            inputs = make_inputs(ragged=ragged)
            for case in cases:
                if case.same:
                    check_same(case, inputs)
            print(f"\n{'Ragged' if ragged else 'Full'} mask, {threads} thread{'s' * (threads > 1)}:", end=" ")
            try:
                results[threads, ragged] = time_cases(cases, inputs, options.rounds)
            except Busy as busy:
                print(f"\nleft out, the machine is busy: {busy}")
    torch.set_num_threads(1)
    print_summary(cases, results)
    trace_report(options.rounds)


if __name__ == "__main__":
    main()
