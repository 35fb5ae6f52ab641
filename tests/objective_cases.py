"""What the tests of objectives share: batches, settings, and the formulas as slow loops over tokens."""

import math

import torch

from rlvr import objectives

NAMES = objectives.list_objectives()
INF = float("inf")


def make_batch(rows=6, width=9, scale=0.4, seed=0, per_token=False, dtype=torch.float64):
    """Random log-probs with holes, a fully masked row and a one-token row."""
    g = torch.Generator().manual_seed(seed)
    old = -0.05 - 2 * torch.rand(rows, width, generator=g, dtype=torch.float64)
    new = (old + scale * torch.randn(rows, width, generator=g, dtype=torch.float64)).clamp(max=-1e-3)
    advantages = torch.randn((rows, width) if per_token else (rows,), generator=g, dtype=torch.float64)
    mask = torch.rand(rows, width, generator=g) < 0.75
    mask[1] = False
    mask[2] = False
    mask[2, width // 3] = True
    return new.to(dtype), old.to(dtype), advantages.to(dtype), mask


# Further tensors are functions of the batch, entry by entry, so that padding, permuting or splitting the
# batch does the same to them. Multiples of 1/8 are exact in every dtype; NaN stays NaN.


def _scrambled(old, factor):
    value = torch.frac(old.double().nan_to_num(0.0, 0.0, 0.0).abs() * factor)
    return torch.where(old.isnan(), torch.nan, value)


def token_marks(batch):
    old = batch[1]
    return (_scrambled(old, 7.3) > 0.5).to(torch.int64)


def mtp(factor, modules=2):
    """MTP log-probs [B, T, modules]."""

    def build(batch):
        old = batch[1]
        values = [-(_scrambled(old, factor + k) * 16).floor() / 8 - 0.125 for k in range(modules)]
        return torch.stack(values, -1).to(old.dtype)

    return build


BLOCK = {"mtp_log_prob": mtp(3.7), "old_mtp_log_prob": mtp(5.1)}

# every objective, and the settings that take another path
VARIANTS = [(name, {}) for name in NAMES] + [
    ("nfpo", {"horizon": 1}),
    ("nfpo", {"region": "kl"}),
    ("nfpo", {"region": "kl", "delta": 0.02}),
    ("nfpo", {"region": "clip"}),
    ("nfpo", {"region": "band"}),
    ("nfpo", {"region": "none", "trace_clip": None, "ratio_clip": None}),
    ("nfpo", {"window": "positions", "rho_clip": 2.0}),
    ("nfpo", {"trace_gradient": "full"}),
    ("exact_pg", {"trace_gradient": "full"}),
    ("cispo", {"ratio_cap": 1.28, "ratio_floor": 0.8}),
    ("fipo", {"half_life": 2.0, "influence_clip": (0.7, 1.5), "ratio_limit": 1.4}),
    ("fipo", {"half_life": INF, "max_dual_clipped": 0, "dual_clip": 1.5, "unsafe_influence_clip": None}),
    ("gspo", {"clip_low": 0.1, "clip_high": 0.1}),
    ("gspo_token", {"clip_low": 0.1, "clip_high": 0.1}),
    ("masked_gspo", {"clip_low": 0.1, "clip_high": 0.1, "token_mask": token_marks}),
    ("mpo", BLOCK),
    ("mpo", {**BLOCK, "mtp_gradient": "full", "mtp_weight": 0.3, "decay": 0.5}),
    ("mpo_grpo", BLOCK),
]


def _label(value):
    return getattr(value, "__name__", str(value))


IDS = [name + "".join(f"-{_label(v)}" for v in p.values()) for name, p in VARIANTS]
# Settings under which a ratio of 1 everywhere means on-policy: MTP modules have ratios of their own.
TOKEN_ONLY = [(name, p) for name, p in VARIANTS if "mtp_log_prob" not in p]


def resolve(batch, parameters):
    """Parameters with the tensors that depend on the batch."""
    return {k: v(batch) if callable(v) else v for k, v in parameters.items()}


def run(name, batch, **parameters):
    """(loss, gradient by log_prob, metrics)."""
    log_prob = batch[0].detach().clone().requires_grad_()
    loss, metrics = objectives.get(name)(log_prob, *batch[1:], **resolve(batch, parameters))
    loss.sum().backward()
    return loss.detach(), log_prob.grad, metrics


# --- the formulas -------------------------------------------------------------------------------------

CLIPPED = {"ppo", "grpo", "dr_grpo", "dapo", "fipo", "mpo", "mpo_grpo"}
SEQUENCE = {"gspo", "gspo_token", "masked_gspo"}


def clip(value, low, high):
    return min(max(value, low), high)


def slow_keep(name, p, pi, mu, rho, advantage):
    region = {"dppo_tv": "tv", "dppo_kl": "kl", "icepop": "band"}.get(name, p.get("region", "none"))
    delta = p.get("delta")
    if delta is None:
        delta = {"tv": 0.2, "kl": 0.05}.get(region)
    if region == "tv":
        return pi - mu <= delta if advantage > 0 else pi - mu >= -delta
    if region == "kl":
        kl = mu * math.log(mu / pi) + (1 - mu) * math.log((1 - mu) / (1 - pi))
        return kl <= delta or (pi <= mu if advantage > 0 else pi >= mu)
    if region == "band":
        return p["band"][0] <= rho <= p["band"][1]
    if region == "clip":
        return rho <= 1 + p["clip_high"] if advantage > 0 else rho >= 1 - p["clip_low"]
    return True


def slow_trace(p, ratios, t):
    """Product over the window after ``t``; ``ratios`` are those of the valid tokens."""
    trace = 1.0
    for ratio in ratios[t + 1 : t + p["horizon"]]:
        beta = p["ratio_clip"]
        trace *= ratio if beta is None else clip(ratio, 1 / beta, beta)
    return trace if p["trace_clip"] is None else clip(trace, *p["trace_clip"])


def slow_weight(name, p, ratios, t):
    """Constant weight of token ``t`` of a response with token ratios ``ratios``."""
    if name == "uncorrected":
        return 1.0
    if name in ("dppo_tv", "dppo_kl"):
        return min(ratios[t], p["ratio_cap"])
    if name == "cispo":
        return clip(ratios[t], p["ratio_floor"], p["ratio_cap"])
    if name == "icepop":
        return ratios[t]
    if name == "exact_pg":
        return math.prod(ratios[t:])
    rho = ratios[t] if p["rho_clip"] is None else clip(ratios[t], 1 / p["rho_clip"], p["rho_clip"])
    return rho * slow_trace(p, ratios, t)


def slow_surrogate(ratio, a, p):
    surrogate = min(ratio * a, clip(ratio, 1 - p["clip_low"], 1 + p["clip_high"]) * a)
    if a < 0 and p.get("dual_clip") is not None:
        surrogate = max(surrogate, p["dual_clip"] * a)
    return -surrogate


def slow_influence(p, logs, k, a):
    total = sum(
        2 ** (-(j - k) / p["half_life"]) * logs[j]
        for j in range(k, len(logs))
        if math.exp(logs[j]) <= p["ratio_limit"]
    )
    unsafe = p["unsafe_influence_clip"] if a < 0 and math.exp(logs[k]) > p["ratio_limit"] else None
    return clip(math.exp(total), *(unsafe or p["influence_clip"]))


def slow_block(p, live, old, at, k, modules):
    """Block ratio at position ``at[k]``: the backbone live, the modules' log ratios given."""
    t = at[k]
    count = modules.shape[-1]
    raw = [p["decay"] ** j for j in range(count)]
    log = (1 - p["mtp_weight"] if count else 1.0) * (live[t] - old[t])
    for j in range(count):
        if t + j + 1 in at:
            log += p["mtp_weight"] * raw[j] / sum(raw) * float(modules[t, j])
    return math.exp(log)


def slow_row(name, p, live, frozen, old, advantages, at, marks, modules):
    """Loss of each valid token of one row, {position: loss}; what is detached is taken at ``frozen``."""
    logs = [float(frozen[t] - old[t]) for t in at]
    ratios = [math.exp(x) for x in logs]
    out = {}
    for k, t in enumerate(at):
        a = float(advantages[t])
        if name in CLIPPED:
            if name in ("mpo", "mpo_grpo"):
                ratio = slow_block(p, live, old, at, k, modules)
            else:
                ratio = math.exp(live[t] - old[t])
            a *= slow_influence(p, logs, k, a) if name == "fipo" else 1.0
            out[t] = slow_surrogate(ratio, a, p)
        elif name in SEQUENCE:
            used = [j for j in at if marks is None or marks[j]]
            source = frozen if name == "gspo_token" else live
            s = math.exp(sum(float(source[j] - old[j]) for j in used) / max(1, len(used)))
            s *= math.exp(live[t] - frozen[t]) if name == "gspo_token" else 1.0
            out[t] = slow_surrogate(s, a, p) if t in used else 0.0
        elif name == "gmpo":
            clips = [
                min(float(live[j] - old[j]), p["clip_high"])
                if advantages[j] > 0
                else max(float(live[j] - old[j]), -p["clip_low"])
                for j in at
            ]
            out[t] = -a * math.exp(sum(clips) / len(at))
        else:
            pi, mu = math.exp(frozen[t]), math.exp(old[t])
            keep = slow_keep(name, p, pi, mu, ratios[k], a)
            if p.get("trace_gradient") == "full":
                moved = [math.exp(live[j] - old[j]) for j in at]
                full = {**p, "horizon": len(at) + 1, "ratio_clip": None, "trace_clip": None}
                trace = slow_trace(full if name == "exact_pg" else p, moved, k)
                out[t] = -keep * a * (moved[k] - 1) * trace
            else:
                out[t] = -keep * slow_weight(name, p, ratios, k) * a * float(live[t])
    if name == "fipo" and p["max_dual_clipped"] is not None and p["dual_clip"] is not None:
        hits = sum(ratios[k] > p["dual_clip"] and advantages[t] < 0 for k, t in enumerate(at))
        if hits > p["max_dual_clipped"]:
            out = dict.fromkeys(out, 0.0)
    return out


def slow_objective(name, parameters, live, frozen, old, advantages, mask):
    """Per-token losses [B, T] of an objective at its defaults and ``parameters``."""
    batch = (live, old, advantages, mask)
    p = {**objectives.get(name).parameters, **resolve(batch, parameters)}
    if advantages.ndim == 1:
        advantages = advantages[:, None].expand(mask.shape)
    value = torch.zeros_like(live)
    for i in range(len(mask)):
        at = mask[i].nonzero().flatten().tolist()
        marks = None if p.get("token_mask") is None else p["token_mask"][i]
        modules = old.new_zeros(mask.shape[1], 0)
        if p.get("mtp_log_prob") is not None:
            modules = (p["mtp_log_prob"] - p["old_mtp_log_prob"])[i]
        row = slow_row(name, p, live[i], frozen[i], old[i], advantages[i], at, marks, modules)
        for t, loss in row.items():
            value[i, t] = loss
    return value


def slow_gradient(name, parameters, batch, step=1e-6):
    """Gradient of the sum of the slow losses by each valid log-prob: central differences, [B, T]."""
    new, old, advantages, mask = batch
    grad = torch.zeros_like(new)
    for i in range(len(mask)):
        row = [new[i : i + 1], old[i : i + 1], advantages[i : i + 1], mask[i : i + 1]]
        for t in mask[i].nonzero().flatten().tolist():
            ends = []
            for sign in (1, -1):
                moved = row[0].clone()
                moved[0, t] += sign * step
                ends.append(slow_objective(name, parameters, moved, *row).sum())
            grad[i, t] = (ends[0] - ends[1]) / (2 * step)
    return grad
