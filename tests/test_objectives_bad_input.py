"""Bad input is a ValueError that names the argument, its value and what is allowed; odd input is right."""

import math
import re

import numpy as np
import pytest
import torch
from objective_cases import BLOCK, IDS, INF, NAMES, VARIANTS, make_batch, resolve, run, token_marks

from rlvr import objectives
from rlvr.losses import AGGREGATIONS
from rlvr.objectives import merge_metrics
from rlvr.ratios import discounted_future, forward_trace

NAN = float("nan")
TENSORS = {tensor for name in NAMES for tensor in objectives.get(name).tensors}
EXTRA = {
    "masked_gspo": {"token_mask": token_marks},
    "nfpo": {"rollout_log_prob": lambda batch: batch[1]},
    "mpo": BLOCK,
    "mpo_grpo": BLOCK,
}


def arguments(name, **settings):
    """Keyword arguments of a good call in float32, further tensors included."""
    batch = make_batch(**{"dtype": torch.float32, **settings})
    names = ("log_prob", "old_log_prob", "advantages", "response_mask")
    return dict(zip(names, batch, strict=True)) | resolve(batch, EXTRA.get(name, {}))


def complaint(name, argument, value, **context):
    """What is wrong with how the objective refuses ``argument=value``; "" if nothing is."""
    shown = re.sub(r"\s+", " ", repr(value))[:40]
    try:
        loss, _ = objectives.get(name)(**{**arguments(name), **context, argument: value})
    except ValueError as error:
        message = str(error)
        good = re.match(rf"{argument}\b", message) and "allowed" in message and len(message) < 1000
        return "" if good else f"{argument}={shown}: ValueError {message[:80]!r} of {len(message)} characters"
    except Exception as error:
        return f"{argument}={shown}: {type(error).__name__} {str(error)[:60]!r}"
    return f"{argument}={shown}: accepted, loss {loss:.4g}"


def refused(name, argument, values, **context):
    found = [c for value in values if (c := complaint(name, argument, value, **context))]
    assert not found, f"{name}\n" + "\n".join(found)


# --- parameters ---------------------------------------------------------------------------------------

NOT_A_NUMBER = [
    "0.2", True, False, NAN, -INF, -1, 1j, b"1", [0.2], (0.1, 0.2), {}, np.bool_(True), np.array([0.1, 0.2]),
    torch.tensor([0.2, 0.3]),
]  # fmt: skip
NOT_A_PAIR = [
    5, True, "12", "ab", ("0.5", "2"), (0.5,), (0.5, 1, 2), (), {}, {0.5, 2.0}, (None, 2), (1j, 2), (NAN, 2),
    (0.5, NAN), (1.4, 0.8), (2, 3), (0.1, 0.5), (-1, 2), (-INF, INF), (False, 2.0), np.ones((2, 2)),
]  # fmt: skip
NOT_A_NAME = [True, 1, NAN, "", "TV", "none ", ["tv"], b"stop", {}, np.array(["tv", "kl"])]
OUT_OF_RANGE = {
    "clip_low": [None, 0, 1, 1.5, INF],
    "clip_high": [None, 0, 1, 1.5, INF],
    "dual_clip": [0, 0.5, 1],
    "delta": [None, 0],
    "ratio_cap": [None, 0, 0.999],
    "ratio_floor": [None, 1.1, INF],
    "horizon": [None, 0, 2.5, INF, np.float64(2)],
    "ratio_clip": [0, 0.5],
    "rho_clip": [0, 0.5],
    "ratio_bound": [None, 0, 80.1, INF],
    "half_life": [None, 0],
    "ratio_limit": [None, 0.5, 1],
    "max_dual_clipped": [0.5, 1.0, INF],
    "mtp_weight": [None, 1, 1.5, INF],
    "decay": [None, 0, 1.1, INF],
}
OPTIONAL = {"dual_clip", "ratio_clip", "rho_clip", "trace_clip", "unsafe_influence_clip", "max_dual_clipped"}
PAIRS = {"band", "trace_clip", "influence_clip", "unsafe_influence_clip"}
PARAMETERS = [(n, p) for n in NAMES for p in objectives.get(n).parameters if p not in TENSORS]


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_bad_parameters(name, parameter):
    default = objectives.get(name).parameters[parameter]
    values = [] if default is None or parameter in OPTIONAL else [None]
    if isinstance(default, str):
        values += NOT_A_NAME
    elif parameter in PAIRS:
        values += NOT_A_PAIR
    else:
        allowed = {"gmpo": (1, 1.5, INF)}.get(name, ()) if parameter in ("clip_low", "clip_high") else ()
        allowed = (*allowed, None) if default is None else allowed
        values += NOT_A_NUMBER + [v for v in OUT_OF_RANGE[parameter] if v not in allowed]
    refused(name, parameter, values)


@pytest.mark.parametrize("region", ["tv", "kl", "clip", "band", "none"])
def test_parameters_of_the_other_regions_are_checked_too(region):
    for parameter, value in (("clip_low", 2), ("clip_high", -1), ("band", (3, 2)), ("delta", -1.0)):
        refused("nfpo", parameter, [value], region=region)


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_numpy_scalars_and_huge_numbers_are_numbers(name, parameter):
    default = objectives.get(name).parameters[parameter]
    pair = parameter in PAIRS
    if isinstance(default, str):
        same, huge = [np.str_(default)], []
    elif pair:
        same, huge = [list(default), tuple(np.float64(v) for v in default), np.array(default)], []
        huge = [(default[0], v) for v in (1e308, 10**400)]
    else:
        default = 2 if parameter == "max_dual_clipped" else 2.0 if default is None else default
        whole = isinstance(default, int)
        same = [np.int64(default)] if whole else [np.float64(default), np.float32(default)]
        huge = [10**400] if whole else [1e308, 10**400]
    objective, call = objectives.get(name), arguments(name)
    expected = objective(**{**call, parameter: default})[0]
    for value in same:
        torch.testing.assert_close(objective(**{**call, parameter: value})[0], expected, rtol=1e-6, atol=0)
    for value in huge:  # as good as infinite, or refused
        try:
            loss = objective(**{**call, parameter: value})[0]
        except ValueError as error:
            assert str(error).startswith(parameter)
        else:
            assert loss.isfinite()


@pytest.mark.parametrize("gap", [80.0, -80.0, 3.0])
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("nfpo", {"trace_clip": (0.0, INF), "ratio_clip": None}),
        ("nfpo", {"trace_clip": (0.5, 1e38), "ratio_clip": INF}),
        ("nfpo", {"trace_clip": (0.0, INF), "ratio_clip": None, "trace_gradient": "full"}),
        ("nfpo", {"trace_clip": None, "ratio_clip": None, "ratio_bound": 80.0, "rho_clip": INF}),
        ("fipo", {"influence_clip": (0.0, INF), "unsafe_influence_clip": None, "half_life": INF}),
        ("fipo", {"dual_clip": INF, "ratio_limit": INF, "influence_clip": (0.0, INF)}),
        ("gmpo", {"clip_low": INF, "clip_high": INF, "ratio_bound": 80.0}),
        ("gspo", {"clip_low": 0.9, "clip_high": 0.9, "ratio_bound": 80.0}),
        ("exact_pg", {"ratio_bound": 80.0, "trace_gradient": "full"}),
        ("dppo_tv", {"delta": INF, "ratio_cap": INF}),
        ("dppo_kl", {"delta": INF, "ratio_cap": INF}),
        ("cispo", {"ratio_cap": INF}),
        ("icepop", {"band": (0.0, INF)}),
    ],
)
def test_without_bounds_the_loss_stays_finite(name, parameters, gap):
    low = torch.tensor([[-0.1, -81.0, -0.1, -81.0, -0.1, -0.2]] * 2)
    new, old = (low + gap, low) if gap > 0 else (low, low - gap)
    batch = (new.clamp(max=0), old.clamp(max=0), torch.tensor([1.0, -1.0]), torch.ones(2, 6))
    loss, grad, metrics = run(name, batch, **parameters)
    assert loss.isfinite() and grad.isfinite().all()
    assert all(value.isfinite() for value in metrics.values())


# --- tensors ------------------------------------------------------------------------------------------

ARGUMENTS = [(n, a) for n in NAMES for a in arguments(n)]


def put(tensor, value, at):
    tensor = tensor.double() if tensor.dtype == torch.bool else tensor.clone()
    tensor = tensor if tensor.is_floating_point() else tensor.double()
    tensor[at if tensor.ndim == len(at) else at[: tensor.ndim]] = value
    return tensor


def first_valid(call, argument):
    mask = call["response_mask"].bool()
    if "mtp" in argument:  # a token with a valid successor
        mask = mask[:, :-1] & mask[:, 1:]
    row, column = mask.nonzero()[0].tolist()
    return (row, column, 0)[: max(2, call[argument].ndim)]


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_bad_tensors(name, argument):
    good = arguments(name)[argument]
    values = [1.0, "x", good.tolist(), [[-1.0] * 200] * 200, good.numpy(), good.sum(), good[:0], good[..., 0]]
    values += [good.unsqueeze(-1).expand(*good.shape, 2), good.to(torch.complex64)]
    values += [good.to("meta"), good.float().to_sparse()]
    if argument not in EXTRA.get(name, {}) or "mtp" in argument:
        values.append(None)
    if "mask" not in argument:
        values += [good.long(), good.bool()]
    if argument != "response_mask":  # which says what the shapes are
        one_more = torch.cat([good, good[:1]])
        values += [one_more, one_more.transpose(0, -1)]
        values += [good[:, :-1], good[:, :0], good.reshape(-1)] if good.ndim > 1 else []
    refused(name, argument, values)


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_bad_values_at_a_valid_token(name, argument):
    call = arguments(name)
    at = first_valid(call, argument)
    values = [NAN, INF]
    if "mask" in argument:
        values += [0.5, 2, -1, -INF, 1e-30]
    elif argument == "advantages":
        values += [-INF]
    else:
        values += [0.001, 3e38] + ([-INF] if argument == "log_prob" else [])
    refused(name, argument, [put(call[argument], value, at) for value in values])


@pytest.mark.parametrize(("name", "argument"), [(n, a) for n, a in ARGUMENTS if "mask" in a])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.float16, torch.bfloat16, torch.float64])
def test_masks_of_any_type_hold_0_and_1_only(name, argument, dtype):
    call = arguments(name)
    objective, mask = objectives.get(name), call[argument].to(dtype)
    assert objective(**{**call, argument: mask})[0] == objective(**call)[0]
    refused(name, argument, [put(mask, v, first_valid(call, argument)).to(dtype) for v in (2, -1)])


@pytest.mark.parametrize("name", NAMES)
def test_empty_batches(name):
    call = arguments(name)
    for cut in (lambda x: x[:0], lambda x: x[:, :0] if x.ndim > 1 else x):
        with pytest.raises(ValueError, match=r"response_mask is .*not empty"):
            objectives.get(name)(**{k: cut(v) for k, v in call.items()})


@pytest.mark.parametrize("name", NAMES)
def test_tensors_without_values(name):
    with pytest.raises(ValueError, match="meta"):
        objectives.get(name)(**{k: v.to("meta") for k, v in arguments(name).items()})


@pytest.mark.parametrize("mtp_gradient", ["stop", "full"])
def test_mtp_module_that_rules_a_token_out(mtp_gradient):
    # 0 / 0 is no ratio: either it is refused, or the loss stays a number
    call = arguments("mpo", dtype=torch.float64)
    for new, old in ((-INF, -1.0), (-1.0, -INF), (-INF, -INF)):
        mtp_log_prob = torch.full_like(call["mtp_log_prob"], new).requires_grad_()
        call |= {"mtp_log_prob": mtp_log_prob, "old_mtp_log_prob": torch.full_like(mtp_log_prob, old)}
        for name in ("mpo", "mpo_grpo"):
            log_prob = call["log_prob"].clone().requires_grad_()
            try:
                loss, metrics = objectives.get(name)(
                    **call | {"log_prob": log_prob}, mtp_gradient=mtp_gradient
                )
            except ValueError as error:
                assert re.match("(old_)?mtp_log_prob holds -inf", str(error))
                continue
            loss.backward()
            assert loss.isfinite() and log_prob.grad.isfinite().all()
            assert all(value.isfinite() for value in metrics.values())
            assert mtp_log_prob.grad is None or mtp_log_prob.grad.isfinite().all()


def test_the_shape_an_error_asks_for_is_that_of_its_source():
    call = arguments("mpo")
    with pytest.raises(ValueError, match="old_mtp_log_prob is") as caught:
        objectives.mpo(**call | {"old_mtp_log_prob": call["old_mtp_log_prob"][..., :1]})
    assert "response_mask" not in str(caught.value), "the number of modules is mtp_log_prob's"


# --- aggregation, names, metrics ----------------------------------------------------------------------


COUNTS = ["batch_num_tokens", "global_batch_size", "loss_scale_factor", "dp_size"]


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("count", COUNTS)
def test_bad_counts(mode, count):
    values = ["3", True, NAN, INF, 0, -1, 1j, [3], (3,), {}, np.array([40, 40])]
    values += [None] if count == "dp_size" else []
    values += [] if count == "loss_scale_factor" else [0.5]
    refused("grpo", count, values, loss_agg_mode=mode)
    call = arguments("grpo") | {"loss_agg_mode": mode}
    expected = objectives.grpo(**call, **{count: 40})[0]
    for same in (np.int64(40), torch.tensor(40), torch.tensor(40.0)):
        assert objectives.grpo(**call, **{count: same})[0] == expected


@pytest.mark.parametrize("count", COUNTS)
def test_bad_counts_in_tensors(count):
    modes = {"global_batch_size": "seq-mean-token-sum", "loss_scale_factor": "seq-mean-token-sum-norm"}
    values = [-3, 0, NAN, INF, True, [40, 40], [[40.0]] * 6]
    refused("grpo", count, [torch.tensor(v) for v in values], loss_agg_mode=modes.get(count, "token-mean"))


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_a_count_of_0_is_that_of_a_batch_without_a_valid_token(mode):
    call = arguments("grpo") | {"response_mask": torch.zeros(6, 9), "loss_agg_mode": mode}
    for zero in (0, torch.tensor(0)):
        assert objectives.grpo(**call, batch_num_tokens=zero, global_batch_size=zero)[0] == 0


def test_bad_modes():
    for name in NAMES:
        refused(name, "loss_agg_mode", ["", 0, False, "mean", ["token-mean"], np.array(["token-mean"] * 2)])
        refused(name, "reduction", [None, "", "mean", ["loss"], np.array(["loss", "none"])])


def test_bad_names():
    for name in (None, 1, "", "NFPO", ["nfpo"], {}):
        with pytest.raises(ValueError, match="unknown objective"):
            objectives.get(name)


def test_metrics_that_do_not_belong_together():
    clipped, masked = (run(name, make_batch())[2] for name in ("grpo", "dppo_tv"))
    for parts in ([clipped, masked], [clipped, clipped | {"x": 1.0}], [{"kl": 0.0}]):
        with pytest.raises(ValueError, match="allowed"):
            merge_metrics(parts)


# --- odd, but right -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
def test_layout_and_repetition_do_not_matter(name, parameters):
    batch = make_batch()
    parameters = resolve(batch, parameters)
    expected = run(name, batch, **parameters)

    def check(change):
        moved = {k: change(v) if isinstance(v, torch.Tensor) else v for k, v in parameters.items()}
        log_prob, *rest = (change(x) for x in batch)
        log_prob = log_prob.requires_grad_()
        loss, metrics = objectives.get(name)(log_prob, *rest, **moved)
        (grad,) = torch.autograd.grad(loss, log_prob)
        torch.testing.assert_close(loss, expected[0], rtol=1e-12, atol=0)
        torch.testing.assert_close(grad, expected[1], rtol=1e-12, atol=1e-15)
        floats = {k: v.item() for k, v in metrics.items()}
        assert floats == pytest.approx({k: v.item() for k, v in expected[2].items()}, rel=1e-12)

    check(torch.clone)
    check(lambda x: x.transpose(0, -1).contiguous().transpose(0, -1))
    check(lambda x: torch.stack([x, x], -1)[..., 0])
    unchecked = objectives.get(name)(*batch, **parameters, check=False)
    assert torch.equal(unchecked[0], expected[0]) and unchecked[1] == expected[2]


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
def test_expanded_rows(name, parameters):
    row = [x[:1] for x in make_batch()]
    parameters = resolve(row, parameters)
    wide = {k: v.expand(4, *v.shape[1:]) if isinstance(v, torch.Tensor) else v for k, v in parameters.items()}
    many = run(name, [x.expand(4, *x.shape[1:]) for x in row], loss_agg_mode="token-mean", **wide)
    one = run(name, row, loss_agg_mode="token-mean", **parameters)
    torch.testing.assert_close(many[0], one[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(many[1], one[1].expand(4, -1) / 4, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("reduction", ["loss", "none"])
def test_inputs_are_left_as_they_were(name, parameters, reduction):
    batch = make_batch()
    parameters = resolve(batch, parameters)
    given = [*batch, *(v for v in parameters.values() if isinstance(v, torch.Tensor))]
    before = [(x.clone(), x._version) for x in given]
    batch[0].requires_grad_()
    for _ in range(2):
        loss, metrics = objectives.get(name)(*batch, reduction=reduction, **parameters)
        loss.sum().backward()
        loss.detach().zero_()
        for value in metrics.values():
            value.zero_()  # nor does a result share memory with an input
    for x, (copy, version) in zip(given, before, strict=True):
        assert torch.equal(x, copy) and x._version == version


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(name, parameters, mode):
    batch = make_batch()
    parameters = resolve(batch, parameters)
    objective, expected = objectives.get(name), run(name, batch, **parameters)
    for log_prob in (batch[0], batch[0].clone().requires_grad_()):
        with mode():
            loss, metrics = objective(log_prob, *batch[1:], **parameters)
            matrix, _ = objective(log_prob, *batch[1:], **parameters, reduction="none")
        assert not loss.requires_grad and torch.equal(loss, expected[0]) and metrics == expected[2]
        assert not matrix.requires_grad
    assert not objective(*batch, **parameters)[0].requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(objective(*batch, **parameters)[0], expected[0])


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
def test_training_on_what_inference_mode_left_behind(name, parameters):
    batch = make_batch()
    parameters = resolve(batch, parameters)
    expected = run(name, batch, **parameters)
    with torch.inference_mode():
        rest = [x.clone() for x in batch[1:]]
        old = {
            k: v.clone() if isinstance(v, torch.Tensor) and k != "mtp_log_prob" else v
            for k, v in parameters.items()
        }
    assert torch.equal(run(name, (batch[0], *rest), **old)[1], expected[1])


MASKED = {"cispo", "dppo_kl", "dppo_tv", "icepop", "uncorrected", "nfpo", "exact_pg"}


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
def test_second_derivative_is_right_or_an_error(name, parameters):
    # l = -x^2 at x = 1 and ratio 1: (d/dx)^2 of -e^(l + 1) is -2, of -l (a constant weight) 2
    x = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    old = -torch.ones(1, 1, dtype=torch.float64)
    marks = {k: v for k, v in parameters.items() if k not in TENSORS}
    loss, _ = objectives.get(name)(
        -(x**2), old, torch.ones(1, dtype=torch.float64), torch.ones(1, 1), **marks
    )
    try:
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        (second,) = torch.autograd.grad(first, x)
    except RuntimeError as error:
        assert re.search("first order|twice", str(error))
        return
    constant = name in MASKED and parameters.get("trace_gradient") != "full"
    assert second.item() == pytest.approx(2.0 if constant else -2.0)


def test_second_derivative_through_the_trace():
    # (rho_1 - 1) rho_2 with rho = e^(x_t): the mixed derivative at ratio 1 is 1
    x = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    zero = torch.full((1, 2), -1.0, dtype=torch.float64)
    loss, _ = objectives.exact_pg(
        zero + x, zero, torch.ones(1).double(), torch.ones(1, 2), trace_gradient="full"
    )
    try:
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        (second,) = torch.autograd.grad(first[0, 0], x)
    except RuntimeError as error:
        assert re.search("first order|twice", str(error))
        return
    np.testing.assert_allclose(second, [[-1, -1]])


@pytest.mark.parametrize("name", NAMES)
def test_a_very_long_row_in_float32(name):
    # prefix sums over 40000 tokens, with holes
    single = arguments(name, rows=3, width=40_000)
    double = {k: v.double() if v.is_floating_point() else v for k, v in single.items()}
    results = []
    for call in (single, double):
        call["log_prob"].requires_grad_()
        loss, metrics = objectives.get(name)(**call)
        results.append((loss, torch.autograd.grad(loss, call["log_prob"])[0], metrics))
    (loss, grad, metrics), (expected, expected_grad, expected_metrics) = results
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    scale = expected_grad.abs().max()
    torch.testing.assert_close(grad.double() / scale, expected_grad / scale, rtol=1e-4, atol=1e-5)
    for key, value in expected_metrics.items():
        assert metrics[key].item() == pytest.approx(value.item(), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("half_life", [1e-300, 0.01, 0.5, 1.0, 32.0, 1e4, 1e300, INF])
@pytest.mark.parametrize("width", [1, 2, 300, 40_000])
def test_discounted_future_of_a_long_row(half_life, width):
    if half_life < 1e-3 and width > 1000:
        width = 4000  # one chunk per token
    g = torch.Generator().manual_seed(2)
    mask = torch.rand(2, width, generator=g) < 0.7
    mask[0] = True
    values = torch.where(mask, torch.randn(2, width, generator=g, dtype=torch.float64), 0.0)
    future = discounted_future(values, mask, half_life)
    decay = math.exp(-math.log(2) / half_life) if half_life > 1e-3 else 0.0
    for row in range(2):
        total, at = 0.0, mask[row].nonzero().flatten().tolist()
        slow = []
        for t in reversed(at):
            total = values[row, t].item() + decay * total
            slow.append(total)
        np.testing.assert_allclose(future[row, at], slow[::-1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("horizon", [2, 40_000, 10**400])
@pytest.mark.parametrize("window", ["valid", "positions"])
def test_forward_trace_of_a_long_row(horizon, window):
    width = 40_000
    g = torch.Generator().manual_seed(3)
    drift = 0.3 if horizon == 2 else 0.0  # prefix sums of 12000 nats, windows of 0.3
    log_ratio = drift + 0.02 * torch.randn(1, width, generator=g)
    mask = torch.rand(1, width, generator=g) < 0.7
    trace = forward_trace(log_ratio, mask, horizon, None, None, window)[0].double()
    factors = torch.where(mask, log_ratio, 0.0)[0].double().numpy()
    if horizon == 2 and window == "positions":
        slow = np.append(factors[1:], 0.0)
    elif horizon == 2:
        at = mask[0].nonzero().flatten().numpy()
        slow = np.zeros(width)
        slow[at[:-1]] = factors[at[1:]]
    else:
        slow = np.append(np.cumsum(factors[::-1])[::-1][1:], 0.0)
    np.testing.assert_allclose(trace[mask[0]], np.exp(slow)[mask[0]], rtol=1e-5)


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=IDS)
def test_width_1_is_a_padded_response_of_one_token(name, parameters):
    batch = make_batch(rows=5, width=1)
    batch[3][:] = True
    padded = [torch.nn.functional.pad(x, (0, 4)) if x.ndim == 2 else x for x in batch]
    narrow = run(name, batch, loss_scale_factor=1, **parameters)
    wide = run(name, padded, loss_scale_factor=1, **parameters)
    torch.testing.assert_close(wide[0], narrow[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(wide[1][:, :1], narrow[1], rtol=1e-12, atol=1e-15)
