"""Names, signatures, and the errors that bad input gets."""

import inspect
import pickle
from pathlib import Path

import pytest
import torch
from objective_cases import INF, NAMES, make_batch, run

from rlvr import objectives
from rlvr.config import Recipe, load_scale
from rlvr.objectives import merge_metrics
from rlvr.recipes import check_recipes
from rlvr.registry import suggest

PROJECT = Path(__file__).parent.parent

# --- the registry -------------------------------------------------------------------------------------


def test_names():
    assert NAMES == sorted(
        "ppo grpo dr_grpo dapo fipo cispo dppo_tv dppo_kl icepop uncorrected nfpo exact_pg gspo gspo_token "
        "masked_gspo gmpo mpo mpo_grpo".split()
    )
    assert objectives.get("nfpo") is objectives.nfpo
    with pytest.raises(ValueError, match=r"'nfop': did you mean 'nfpo'"):
        objectives.get("nfop")
    with pytest.raises(ValueError, match="allowed are cispo, dapo"):
        objectives.get("zzz")


@pytest.mark.parametrize("name", NAMES)
def test_signature_shows_defaults_and_pickles(name):
    objective = objectives.get(name)
    shown = inspect.signature(objective).parameters
    assert list(shown)[:4] == ["log_prob", "old_log_prob", "advantages", "response_mask"]
    assert {k: shown[k].default for k in objective.parameters} == objective.parameters
    assert shown["loss_agg_mode"].default == objective.loss_agg_mode
    assert objective.__doc__
    assert pickle.loads(pickle.dumps(objective)) is objective


def test_unknown_parameter():
    with pytest.raises(ValueError, match="did you mean 'horizon'"):
        run("nfpo", make_batch(), horizn=4)
    with pytest.raises(ValueError, match="grpo has no parameter 'delta'"):
        run("grpo", make_batch(), delta=0.2)


def replaced(position, value):
    batch = list(make_batch())
    batch[position] = value(batch[position]) if callable(value) else value
    return batch


def with_entry(value):
    def change(tensor):
        tensor = tensor.clone()
        tensor[2, 3] = value  # a valid place
        return tensor

    return change


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, lambda x: x[:, :-1], "log_prob is torch.float64"),
        (0, lambda x: x.long(), "log_prob is torch.int64"),
        (0, [1.0], "log_prob is"),
        (0, with_entry(0.1), "log_prob holds 0.1"),
        (0, with_entry(float("nan")), "log_prob holds nan"),
        (0, with_entry(-INF), "log_prob holds -inf"),
        (1, lambda x: x[:-1], "old_log_prob is"),
        (1, with_entry(2.0), "old_log_prob holds 2.0"),
        (1, with_entry(float("nan")), "old_log_prob holds nan"),
        (2, lambda x: x[:-1], r"advantages is torch.float64 \[5\]"),
        (2, lambda x: x.long(), "advantages is torch.int64"),
        (2, lambda x: x[None].expand(5, 6), "advantages is"),
        (2, lambda x: torch.full_like(x, float("nan")), "advantages holds"),
        (3, lambda x: x[0], "response_mask is"),
        (3, lambda x: x[:0], "response_mask is"),
        (3, lambda x: x * 2, "response_mask holds 2"),
        (3, lambda x: x * 0.5, "response_mask holds 0.5"),
        (3, None, "response_mask is None"),
    ],
)
def test_bad_tensors(position, value, message):
    for name in ("grpo", "nfpo"):
        with pytest.raises(ValueError, match=message):
            objectives.get(name)(*replaced(position, value))


def test_rounding_above_probability_1_is_tolerated():
    run("dppo_kl", replaced(0, with_entry(1e-6)))


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("grpo", {"clip_low": 1.5}, "clip_low=1.5"),
        ("grpo", {"clip_high": -0.1}, "clip_high=-0.1"),
        ("ppo", {"dual_clip": 1.0}, "dual_clip=1.0"),
        ("dppo_tv", {"delta": -0.2}, "delta=-0.2"),
        ("dppo_tv", {"ratio_cap": 0.2}, "ratio_cap=0.2"),
        ("icepop", {"band": (3.0, 1 / 3)}, "band="),
        ("nfpo", {"horizon": 0}, "horizon=0"),
        ("nfpo", {"trace_clip": (1.4, 0.8)}, "trace_clip="),
        ("nfpo", {"region": "tvd"}, "region='tvd'"),
        ("nfpo", {"ratio_bound": 1000.0}, "ratio_bound=1000.0"),
        ("nfpo", {"rho_clip": 0.5}, "rho_clip=0.5"),
        ("nfpo", {"window": "all"}, "window='all'"),
        ("nfpo", {"trace_gradient": True}, "trace_gradient=True"),
        ("nfpo", {"rollout_log_prob": torch.zeros(1, 1)}, "rollout_log_prob is"),
        ("nfpo", {"rollout_log_prob": torch.ones(6, 9)}, "rollout_log_prob holds 1.0"),
        ("exact_pg", {"trace_gradient": "none"}, "trace_gradient='none'"),
        ("grpo", {"loss_agg_mode": "mean"}, "loss_agg_mode='mean'"),
        ("grpo", {"reduction": "mean"}, "reduction='mean'"),
        ("grpo", {"batch_num_tokens": 0}, "batch_num_tokens=0"),
    ],
)
def test_bad_parameters(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        run(name, make_batch(), **parameters)


def test_merge_metrics():
    parts = [
        {"tokens": torch.tensor(1), "kl": torch.tensor(1.0), "ratio_max": torch.tensor(2.0)},
        {"tokens": torch.tensor(9), "kl": torch.tensor(0.0), "ratio_max": torch.tensor(1.5)},
    ]
    assert merge_metrics(parts) == pytest.approx({"tokens": 10, "kl": 0.1, "ratio_max": 2.0})
    with pytest.raises(ValueError, match="parts is empty"):
        merge_metrics([])


def test_a_metric_that_some_parts_lack_is_of_those_that_have_it():
    parts = [
        {"tokens": 1, "kl": 1.0, "rank": 5.0, "ratio_max": 2.0},
        {"tokens": 6, "kl": 2.0},
        {"tokens": 3, "kl": 3.0, "rank": 1.0},
    ]
    merged = merge_metrics(parts, partial=True)
    assert merged == pytest.approx({"tokens": 10, "kl": 2.2, "rank": (5 + 3) / 4, "ratio_max": 2.0})
    with pytest.raises(ValueError, match="different metrics"):
        merge_metrics(parts)
    with pytest.raises(ValueError, match="with 'tokens'"):
        merge_metrics([{"kl": 1.0}, *parts], partial=True)


def test_tensor_parameters_and_what_an_objective_needs():
    assert objectives.nfpo.tensors == ("rollout_log_prob",) and objectives.nfpo.needs == ()
    assert objectives.mpo.tensors == objectives.mpo.needs == ("mtp_log_prob", "old_mtp_log_prob")
    assert objectives.masked_gspo.tensors == objectives.masked_gspo.needs == ("token_mask",)
    for name in NAMES:
        objective = objectives.get(name)
        assert set(objective.needs) <= set(objective.tensors) <= set(objective.parameters)


def test_a_recipe_cannot_ask_the_local_engine_for_what_it_does_not_make():
    scale = load_scale(PROJECT / "params.yaml")
    for name, missing in (("mpo", "mtp_log_prob"), ("masked_gspo", "token_mask")):
        recipes = {**scale.recipes, "arm": Recipe(objective=name)}
        with pytest.raises(ValueError, match=rf"recipes.arm: objective='{name}' needs {missing}"):
            check_recipes(scale.model_copy(update={"recipes": recipes}))


def test_a_long_list_is_shown_by_its_nearest_names():
    known = [f"nfpo-1.7b-arm{i}" for i in range(60)] + ["mpo-7b-ppo"]
    text = suggest("nfpo-1.7b-arm6", known[:30])
    assert "did you mean" in text and all(name in text for name in known[:30])
    text = suggest("nfpo-17b-arm59", known)
    assert "did you mean 'nfpo-1.7b-arm59'" in text and "allowed are 61 names, such as" in text
    assert text.count("nfpo-1.7b") < 20 and "mpo-7b-ppo" not in text
