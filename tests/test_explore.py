"""The explore notebook's parts: weights against the objective, the rollouts, the figure, and the sliders."""

from __future__ import annotations

import html
import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from notebook_factory import PROJECT

from rlvr import objectives
from rlvr.analysis.rollout import EXAMPLE, Rollout, available, example_rollout, rollout_of_records
from rlvr.analysis.rollout_weights import THRESHOLDS, Settings, explore_frame
from rlvr.config import load_scale
from rlvr.explore import Explorer, explore_figure
from rlvr.storage import write_json

RATIOS = (1.1, 0.5, 4.0, 1.0, 1.05)


def one_response(ratios=RATIOS, mu=0.2, advantage=1.0) -> Rollout:
    """mu gives every token the same probability."""
    ratio = torch.tensor([list(ratios)], dtype=torch.float64)
    old = torch.full_like(ratio, math.log(mu))
    texts = (tuple("vwxyz"[: len(ratios)]),)
    return Rollout(
        old + ratio.log(),
        old,
        torch.ones_like(ratio).bool(),
        torch.tensor([advantage]).double(),
        texts,
        "typed",
    )


@pytest.fixture(scope="module")
def rollout():
    return example_rollout()


@pytest.mark.parametrize(
    ("horizon", "clips", "trace"),
    [
        (1, {}, (1, 1, 1, 1, 1)),
        (2, {"trace_clip": (0.8, 1.2)}, (0.8, 1.2, 1, 1.05, 1)),
        (8, {"trace_clip": (0.8, 1.2)}, (1.2, 1.2, 1.05, 1.05, 1)),
        (2, {"trace_clip": None}, (0.5, 3, 1, 1.05, 1)),
        (8, {"trace_clip": None}, (1.575, 3.15, 1.05, 1.05, 1)),
        (8, {"trace_clip": None, "ratio_clip": None}, (2.1, 4.2, 1.05, 1.05, 1)),
    ],
)
def test_trace_and_weight_by_hand(horizon, clips, trace):
    explored = explore_frame(one_response(), Settings(horizon=horizon, **clips))
    assert explored.trace[0].tolist() == pytest.approx(trace)
    assert explored.rho[0].tolist() == pytest.approx(RATIOS)
    assert explored.weight[0].tolist() == pytest.approx([r * t for r, t in zip(RATIOS, trace, strict=True)])


@pytest.mark.parametrize(
    ("advantage", "region", "threshold", "kept"),
    [
        # pi - mu = 0.2 (rho - 1) = 0.02, -0.1, 0.6, 0, 0.01
        (1, "tv", None, "11011"),
        (-1, "tv", None, "11111"),
        (-1, "tv", 0.09, "10111"),
        (1, "tv", 0.7, "11111"),
        (1, "clip", None, "11011"),  # up to 1.28
        (-1, "clip", None, "10111"),  # down to 0.8
        (1, "clip", 0.05, "01011"),  # up to 1.07
        (1, "band", None, "11011"),
        (1, "band", 1.9, "10011"),
        (1, "band", 4.1, "11111"),
        (1, "none", None, "11111"),
        # KL(0.2 || 0.8) = 0.2 log(1/4) + 0.8 log 4 = 0.83; KL(0.2 || 0.1) = 0.2 log 2 + 0.8 log(8/9) = 0.044
        (1, "kl", None, "11011"),
        (1, "kl", 0.84, "11111"),
        (-1, "kl", 0.04, "10111"),
        (-1, "kl", 0.05, "11111"),
    ],
)
def test_masks_by_hand(advantage, region, threshold, kept):
    settings = Settings(region=region, threshold=threshold)
    explored = explore_frame(one_response(advantage=advantage), settings)
    assert "".join(str(int(k)) for k in explored.kept[0].tolist()) == kept
    row = explored.table.loc["masked tokens"]
    assert (row["traced"], row["n"], row["unit"]) == (kept.count("0") / 5, 5, "tokens")
    assert math.isnan(row["rho"])


def test_the_table_by_hand():
    """Sides of rho: + - + 0 +, so 2 of 4 pairs switch; of rho * trace at N = 2: - - + + +, so 1."""
    table = explore_frame(one_response(), Settings(horizon=2, trace_clip=(0.8, 1.2))).table
    switch, strength = table.loc["switch frequency"], table.loc["correction strength"]
    assert (switch["rho"], switch["traced"], switch["n"], switch["unit"]) == (0.5, 0.25, 4, "pairs")
    assert strength["rho"] == pytest.approx((0.1 + 0.5 + 3 + 0 + 0.05) / 5)
    # 0.88, 0.6, 4, 1.05, 1.05
    assert strength["traced"] == pytest.approx((0.12 + 0.4 + 3 + 0.05 + 0.05) / 5)
    assert strength["n"] == 5
    assert table.loc["trace at a clip", "traced"] == pytest.approx(2 / 5)  # 0.5 and 3


OBJECTIVE = {
    "tv": lambda x: {"delta": x},
    "kl": lambda x: {"delta": x},
    "clip": lambda x: {"clip_low": x, "clip_high": 1.4 * x},
    "band": lambda x: {"band": (1 / x, x)},
    "none": lambda x: {},
}


@pytest.mark.parametrize("region", OBJECTIVE)
@pytest.mark.parametrize("trace_clip", [(0.8, 1.4), (0.5, 1.0), None])
def test_weights_and_masks_are_those_of_the_objective(rollout, region, trace_clip):
    """The gradient of the objective's loss is -M w A, token by token."""
    for horizon, ratio_clip, factor in itertools.product((1, 4, 99), (3.0, None), (0.3, 1.0)):
        default = THRESHOLDS[region].default
        threshold = 1 + (default - 1) * factor if region == "band" else default * factor
        explored = explore_frame(rollout, Settings(horizon, trace_clip, ratio_clip, region, threshold))
        leaf = rollout.log_prob.clone().requires_grad_()
        loss, metrics = objectives.nfpo(
            leaf, rollout.old_log_prob, rollout.advantages, rollout.mask, horizon=horizon, region=region,
            trace_clip=trace_clip, ratio_clip=ratio_clip, reduction="none", **OBJECTIVE[region](threshold),
        )  # fmt: skip
        (slope,) = torch.autograd.grad(loss.sum(), leaf)
        expected = -explored.weight * explored.kept * rollout.advantages[:, None]
        assert torch.allclose(slope, expected, atol=1e-12)
        share = explored.table["traced"]
        assert share["masked tokens"] == pytest.approx(float(metrics["masked_fraction"]), abs=1e-12)
        assert share["trace at a clip"] == pytest.approx(float(metrics["trace_clip_fraction"]), abs=1e-12)
        if region != "none" and factor < 1:
            assert share["masked tokens"] > 0  # else the mask was not tested


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"horizon": 0}, "horizon=0: allowed are integers >= 1"),
        ({"trace_clip": (1.1, 1.4)}, r"trace_clip=\(1.1, 1.4\): allowed are None"),
        ({"ratio_clip": 0.5}, "ratio_clip=0.5: allowed are None"),
        ({"region": "disc"}, "region='disc': allowed are 'tv', 'kl', 'clip', 'band', 'none'"),
        ({"threshold": -1.0}, r"threshold=-1.0: allowed are numbers > 0 \(region 'tv'\)"),
        ({"region": "kl", "threshold": 0}, "threshold=0: allowed are numbers > 0"),
        ({"region": "clip", "threshold": 0.72}, "threshold=0.72: allowed are 0 < threshold < 0.71"),
        ({"region": "band", "threshold": 1.0}, "threshold=1.0: allowed are numbers > 1"),
        ({"region": "band", "threshold": math.nan}, "threshold=nan: allowed are numbers > 1"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        explore_frame(one_response(), Settings(**settings))


def test_what_masked_places_hold_does_not_matter(rollout):
    holes = ~rollout.mask
    dirty = Rollout(
        rollout.log_prob.masked_fill(holes, math.nan), rollout.old_log_prob.masked_fill(holes, -math.inf),
        rollout.mask, rollout.advantages, rollout.tokens, "dirty",
    )  # fmt: skip
    clean, other = (explore_frame(r, Settings(region="kl")) for r in (rollout, dirty))
    assert torch.equal(clean.weight, other.weight) and torch.equal(clean.kept, other.kept)
    assert clean.table.equals(other.table)
    assert not clean.kept[holes].any() and (clean.weight[holes] == 1).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"advantages": torch.zeros(2)}, r"advantages has shape \[2\]: allowed is \[B\]"),
        ({"tokens": (("v",),)}, "tokens: allowed is the text of every valid token"),
        ({"old_log_prob": torch.zeros(1, 4)}, "old_log_prob"),
        ({"mask": torch.zeros(1, 5), "tokens": ((),)}, "at least one in all"),
    ],
)
def test_rollouts_that_are_refused(changes, message):
    good = one_response()
    fields = {k: getattr(good, k) for k in ("log_prob", "old_log_prob", "mask", "advantages", "tokens")}
    with pytest.raises(ValueError, match=message):
        Rollout(**{**fields, **changes}, source="x")


def test_the_example_is_what_it_says(rollout):
    again, other = example_rollout(), example_rollout(seed=1)
    assert torch.equal(rollout.log_prob, again.log_prob) and rollout.tokens == again.tokens
    assert rollout.tokens != other.tokens
    assert len(rollout) == 96 and rollout.mask.shape == (96, 48)
    for row in rollout.tokens:
        assert 1 <= len(row) <= 48 and "." not in row[:-1] and (row[-1] == "." or len(row) == 48)
    right = [row.count("a") % 2 == 0 for row in rollout.tokens]
    for group in range(12):  # right ones above 0, wrong ones below, in sum 0; all alike: exactly 0
        rows = slice(8 * group, 8 * group + 8)
        advantages, won = rollout.advantages[rows], right[rows]
        assert abs(float(advantages.sum())) < 1e-12
        for advantage, good in zip(advantages.tolist(), won, strict=True):
            assert advantage == 0 if len(set(won)) == 1 else (advantage > 0) == good
    change = (rollout.log_prob.exp() - rollout.old_log_prob.exp())[rollout.mask].abs().max()
    assert 0.2 < change <= 0.4  # at most the total variation
    assert (rollout.log_ratio * rollout.advantages[:, None]).sum() > 0  # pi went uphill


def test_the_example_has_the_probabilities_of_its_policies(rollout):
    """Every (last symbol, symbol) has one probability under either policy, and those of a state sum to 1."""
    for log_prob in (rollout.log_prob, rollout.old_log_prob):
        table: dict[str, dict[str, float]] = {}
        for i, row in enumerate(rollout.tokens):
            state = "abcdefgh"[(i // 8) % 8]
            for t, token in enumerate(row):
                known = table.setdefault(state, {}).setdefault(token, float(log_prob[i, t]))
                assert known == pytest.approx(float(log_prob[i, t]), abs=1e-12)
                state = token
        full = [math.fsum(map(math.exp, row.values())) for row in table.values() if len(row) == 9]
        assert len(full) >= 6
        assert full == pytest.approx([1.0] * len(full))


def records(responses=6, tokens=3) -> pd.DataFrame:
    """Off-policy from response 2 on; a token is 10 times its response plus its position."""
    rows = [
        {
            "seed": seed, "step": r // 2, "minibatch": r % 2, "run_response": 100 * seed + r, "position": t,
            "token": 10 * r + t, "log_prob": -1.0 - r / 10, "old_log_prob": -1.0 - t / 10,
            "advantage": r - 2.5, "off_policy": r >= 2,
        }
        for seed in (0, 3)
        for r in range(responses)
        for t in range(tokens)
    ]  # fmt: skip
    return pd.DataFrame(rows).sample(frac=1, random_state=0)


def test_records_become_a_rollout():
    found = rollout_of_records(records(), "theirs", names=lambda v: f"<{v}>", responses=3)
    assert found.tokens == tuple(
        tuple(f"<{10 * r + t}>" for t in range(3)) for r in (3, 4, 5)
    )  # the last, seed 0
    assert found.advantages.tolist() == [0.5, 1.5, 2.5]
    assert found.mask.all() and found.source == "theirs"
    assert found.log_ratio[0].tolist() == pytest.approx([-0.3, -0.2, -0.1])
    assert len(rollout_of_records(records(), "all")) == 4  # those that are off-policy
    with pytest.raises(ValueError, match="no off-policy token"):
        rollout_of_records(records().assign(off_policy=False), "none")
    with pytest.raises(ValueError, match="responses=0: allowed are integers >= 1"):
        rollout_of_records(records(), "none", responses=0)


def test_a_fresh_clone_has_the_example_and_a_run_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = [PROJECT / "params.yaml", tmp_path / "missing.yaml"]
    assert list(available(files)) == [EXAMPLE]
    scale = load_scale(PROJECT / "params.yaml")
    for lag, reached in ((0, 40), (8, 39)):
        for seed in scale.seeds:
            folder = scale.run_folder("nfpo", seed, lag)
            folder.mkdir(parents=True)
            write_json(folder / "summary.json", {"reached_step": reached, "requested_steps": 40})
            frame = records().query("seed == 0").rename(columns={"run_response": "response"})
            frame.drop(columns=["seed", "off_policy"]).to_parquet(folder / "records.parquet", index=False)
    sources = available(files)
    assert list(sources) == ["NFPO records, laptop, lag 0", EXAMPLE]  # lag 8 did not reach its end
    found = sources["NFPO records, laptop, lag 0"]()
    assert found.source == "NFPO records, laptop, lag 0"
    assert found.tokens[-1] == ("50", "51", "52")  # ids, where there is no tokenizer


def test_the_figure_draws_one_response_and_all_weights(rollout):
    explored = explore_frame(rollout, Settings(horizon=3, threshold=0.05))
    response = int((rollout.mask & ~explored.kept).sum(-1).argmax())
    along, histogram, bars = explore_figure(rollout, explored, response).axes
    drawn = {line.get_label(): line.get_ydata() for line in along.lines}
    n = len(rollout.tokens[response])
    for name, values in (("ρ", explored.rho), ("ρ × trace", explored.weight), ("trace", explored.trace)):
        assert np.array_equal(drawn[name], values[response, :n].numpy())
    dropped = ~explored.kept[response, :n]
    assert dropped.any() and np.array_equal(drawn["masked"], explored.weight[response, :n][dropped].numpy())
    assert "".join(text.get_text() for text in along.texts) == "".join(rollout.tokens[response])
    assert f"Response {response}" in along.get_title(loc="left") and "N = 3" in along.get_title(loc="left")
    assert len(histogram.patches) == 2
    widths = [patch.get_width() for patch in bars.patches]
    table = explored.table
    assert widths[:2] == pytest.approx(list(table.loc["switch frequency", ["rho", "traced"]]))
    assert widths[-1] == pytest.approx(table.loc["masked tokens", "traced"])
    assert len(widths) == 6
    for wrong in (-1, 96):
        with pytest.raises(ValueError, match=f"response={wrong}: allowed are 0..95"):
            explore_figure(rollout, explored, wrong)


def test_the_same_settings_are_the_same_picture(explorer):
    before = explorer.picture.value
    explorer.controls["horizon"].value = 9
    assert explorer.picture.value != before
    explorer.controls["horizon"].value = 4
    assert explorer.picture.value == before


@pytest.fixture
def explorer(rollout):
    pytest.importorskip("ipywidgets")
    return Explorer({"one": lambda: rollout, "two": lambda: one_response()})


MOVES = {
    "response": 5, "horizon": 8, "trace_clip": (0.5, 2.0), "clip_trace": False, "ratio_clip": 1.2,
    "clip_ratio": False, "region": "kl", "threshold": 0.01,
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_every_control_moves_the_picture(explorer, name):
    if name == "clip_ratio":  # its factors only show where the trace itself is not clipped, and far from 1
        explorer.controls["clip_trace"].value = False
        explorer.controls["ratio_clip"].value = 1.2
    picture, numbers, explored = explorer.picture.value, explorer.numbers.value, explorer.explored
    assert bytes(picture).startswith(b"\x89PNG")
    explorer.controls[name].value = MOVES[name]
    assert explorer.message.value == ""
    assert explorer.picture.value != picture
    if name != "response":
        assert explorer.numbers.value != numbers
        assert not explorer.explored.table.equals(explored.table)
    expected = explore_frame(explorer.rollout, explorer.settings()).table
    assert explorer.explored.table.equals(expected)
    assert f"{expected.loc['switch frequency', 'traced']:.4f}" in explorer.numbers.value
    assert f"n = {expected.loc['switch frequency', 'n']} pairs" in explorer.numbers.value


def test_a_bad_setting_is_a_message_and_no_traceback(explorer):
    picture = explorer.picture.value
    explorer.controls["threshold"].value = -0.5
    assert "threshold=-0.5: allowed are numbers &gt; 0" in explorer.message.value
    assert explorer.picture.value == picture  # the last good one stays
    explorer.controls["threshold"].value = 0.2
    assert explorer.message.value == "" and explorer.picture.value == picture
    explorer.controls["trace_clip"].value = (1.2, 1.5)
    assert "trace_clip=(1.2, 1.5): allowed are" in html.unescape(explorer.message.value)


def test_a_region_brings_its_own_threshold(explorer):
    explorer.controls["threshold"].value = 0.7
    for region in ("band", "kl", "clip", "none", "tv"):
        explorer.controls["region"].value = region
        assert explorer.controls["threshold"].value == THRESHOLDS[region].default
        assert explorer.explored.settings.region == region
        assert html.escape(THRESHOLDS[region].meaning) in explorer.meaning.value


def test_another_rollout(explorer):
    assert explorer.controls["response"].value == 0 and explorer.controls["response"].max == 95
    explorer.controls["response"].value = 95
    explorer.controls["horizon"].value = 40
    explorer.controls["source"].value = "two"
    assert len(explorer.rollout) == 1 and explorer.rollout.source in explorer.numbers.value
    assert (explorer.controls["response"].value, explorer.controls["response"].max) == (0, 0)
    assert explorer.explored.settings.horizon == explorer.controls["horizon"].max == 5
    explorer.controls["source"].value = "one"
    assert (explorer.controls["response"].max, explorer.controls["horizon"].max) == (95, 48)


def test_the_longest_response_is_shown_first():
    pytest.importorskip("ipywidgets")
    found = example_rollout(seed=3, prompts=2, group_size=2)
    lengths = [len(row) for row in found.tokens]
    assert lengths.index(max(lengths)) > 0
    explorer = Explorer({"x": lambda: found})
    assert explorer.controls["response"].value == lengths.index(max(lengths))


def test_without_a_person_it_prints_one_line(explorer, capsys):
    explorer.show()
    assert capsys.readouterr().out == (
        "open this notebook in JupyterLab (`make lab`) and run it: the sliders appear here\n"
    )
