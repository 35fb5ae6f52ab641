"""The paper index: what it says is what the scale files hold, and nothing that a text states is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipelines import docs_decisions, docs_papers, docs_values
from rlvr.config import load_scale, load_yaml
from rlvr.engines.jobs.experiments import load_experiments
from rlvr.storage import write_text

PROJECT = Path(__file__).resolve().parents[1]
INDEX = docs_papers.load_index(PROJECT)
EXPERIMENTS = load_experiments(PROJECT / docs_papers.EXPERIMENTS)
SCALE = load_scale(PROJECT / "params.yaml")
SHARED = ("what", "section", "key", "laptop_key", "paper", "ours", "laptop", "why")
ARMS = ("arm", "objective", "key", "section", "paper", "ours", "laptop", "why")


def shared(paper="nfpo", scale=SCALE, index=INDEX):
    rows = docs_papers.shared_rows(index, paper, EXPERIMENTS, scale)
    return {row[2].strip("`"): dict(zip(SHARED, row, strict=True)) for row in rows}


def arms(paper="nfpo", scale=SCALE):
    rows = docs_papers.arm_rows(INDEX, paper, EXPERIMENTS, scale)
    return {(row[0].strip("`"), row[2].strip("`")): dict(zip(ARMS, row, strict=True)) for row in rows}


# --- from the papers' texts, typed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paper", "key", "section", "stated"),
    [
        ("nfpo", "rollout.prompts_per_step", "Sec. 4", "128"),
        ("nfpo", "data.max_response_length", "Sec. 4", "1.7b: 8192 (8k; 8000 in the release)<br>8b: 16384"),
        ("nfpo", "update.lr", "-", "not stated"),
        ("nfpo", "update.entropy_coef", "App. C", "0"),
        ("ibpo", "update.lr", "Sec. 4", "5e-07"),
        ("ibpo", "update.min_lr_ratio", "Sec. 4", "0.1"),
        ("ibpo", "seeds", "Table 1", "5"),
        ("mpo", "rollout.responses_per_prompt", "Sec. 5.7", "4 (GRPO's group; the others write as many)"),
        ("mpo", "data.train", "App. A.2", "gsm8k: gsm8k_train<br>math: math_train<br>humaneval: mbpp"),
        ("mpo", "data.max_response_length", "App. A.3", "humaneval: 3072"),
    ],
)
def test_what_a_paper_states(paper, key, section, stated):
    row = shared(paper, None)[key]
    assert (row["section"], row["paper"]) == (section, stated)


@pytest.mark.parametrize(
    ("paper", "arm", "key", "section", "stated"),
    [
        ("nfpo", "nfpo", "parameters.horizon", "App. C", "1.7b: 4 (1.7B)<br>8b: 8 (8B)"),
        ("nfpo", "nfpo_kl", "parameters.delta", "App. C", "0.05"),
        ("nfpo", "nfpo_n2", "parameters.horizon", "-", "not stated"),
        ("ibpo", "ibpo", "counterfactual.shaping_weight", "App. C", "0.6 (lambda, Table 4)"),
        ("ibpo", "ibpo", "counterfactual.scale", "App. G.2", "0.5 (rho)"),
        ("mpo", "mpo", "mtp.train", "Sec. 5.1 and 5.6", "none (only warmed up initially)"),
        ("ibpo", "ibpo", "change.rollout.responses_per_prompt", "Sec. 4", "8"),
        ("ibpo", "alpha_75", "counterfactual.alpha", "Table 5", "0.75"),
        ("mpo", "mpo", "parameters.decay", "Sec. 5.4", "0.8"),
        ("mpo", "mpo_k2", "mtp.blocks", "Figure 5", "2"),
    ],
)
def test_what_a_paper_states_of_an_arm(paper, arm, key, section, stated):
    row = arms(paper, None)[arm, key]
    assert (row["section"], row["paper"]) == (section, stated)


# --- completeness, and why ----------------------------------------------------------------------------


def test_every_value_that_a_text_states_has_a_row():
    stated = [path for path, source in EXPERIMENTS.sources.items() if docs_values.from_text(source)]
    assert len(stated) > 100
    assert not [
        path
        for path in stated
        if ".arms." not in path
        and not path.startswith("analysis.")  # what a table or figure shows: rows of `stated`
        and not any(path.endswith(f".{key}") for key in INDEX.shared)
    ]


def test_a_key_of_the_laptop_exists_and_its_difference_has_a_reason():
    for key, row in INDEX.shared.items():
        assert (row.laptop is None) != (row.engine is None), key
        if row.laptop:
            assert row.why, key
            docs_values.value_at(SCALE, row.laptop)


def test_a_reason_stands_where_the_values_differ_and_nowhere_else():
    rows = shared()
    assert rows["rollout.responses_per_prompt"]["laptop"] == "8"
    assert rows["rollout.responses_per_prompt"]["why"] == ""
    assert rows["rollout.prompts_per_step"]["laptop"] == str(SCALE.train.prompts_per_step)
    assert rows["rollout.prompts_per_step"]["why"] == INDEX.shared["rollout.prompts_per_step"].why
    own = INDEX.papers["nfpo"].model_copy(update={"own": {"update.lr": "of its own"}})
    index = INDEX.model_copy(update={"papers": INDEX.papers | {"nfpo": own}})
    assert shared(index=index)["update.lr"]["why"] == "of its own"


def test_values_follow_the_scale_file():
    changed = SCALE.model_copy(
        update={"train": SCALE.train.model_copy(update={"group_size": 64, "advantage_std": "none"})}
    )
    rows = shared(scale=changed)
    assert rows["rollout.responses_per_prompt"]["laptop"] == "64"
    assert rows["update.minibatch_responses"]["laptop"] == str(
        SCALE.train.prompts_per_step * 64 // SCALE.train.minibatches
    )
    assert rows["update.divide_by_std"]["laptop"] == "no" and rows["update.divide_by_std"]["why"] == ""


def test_an_arm_shows_what_it_changes():
    rows = arms()
    of = {arm: [key for name, key in rows if name == arm] for arm, _ in rows}
    assert of["nfpo_n2"] == ["parameters.horizon"]
    assert of["nfpo_kl"] == ["parameters.delta", "parameters.region"]
    assert of["dppo"] == ["parameters.delta"] and len(of["nfpo"]) == 5
    assert rows["dppo", "parameters.delta"]["laptop"] == "0.2"  # the recipe dppo_tv
    assert rows["nfpo_recompute", "change.update.recompute"]["laptop"] == "yes"
    assert rows["grpo", "change.update.recompute"]["laptop"] == "no"
    assert rows["grpo", "change.update.recompute"]["why"]
    assert rows["fipo", "change.update.loss_agg_mode"]["laptop"] == "token-mean"  # the method's own
    assert arms("mpo", None)["ppo", "parameters.clip_low"]["objective"] == "`ppo`"


def test_another_papers_laptop_is_shown_once_it_is_there(tmp_path):
    """The file of MPO is not needed for the page; what stands in it is read from its recipes."""
    singles = ("data/benchmarks.yaml", "params.yaml", docs_papers.INDEX, docs_papers.EXPERIMENTS)
    for path in [*PROJECT.glob("data/paper/*.yaml"), *(PROJECT / name for name in singles)]:
        write_text(tmp_path / path.relative_to(PROJECT), path.read_text(encoding="utf-8"))
    assert "It has no scale file for the laptop yet." in docs_papers.page(tmp_path)
    raw = (PROJECT / "params.yaml").read_text(encoding="utf-8")
    recipe = (
        "{objective: mpo, decay: 0.7, mtp: {blocks: 3, lr: 1e-3, warmup: {seed: 0, steps: 9, lr: 1e-3, "
        "betas: [0.9, 0.9], batch_size: 8, check_every: 3}}, critic: {lr: 1e-3}}"
    )
    text = raw.replace("recipes:\n", f"recipes:\n  mpo: {recipe}\n").replace(
        "scale: laptop\n", "scale: laptop\npaper: mpo\n", 1
    )
    text += "efficiency: {blocks: [1], repeats: 1}\nbias: {horizons: [1], gamma: 0.9}\n"
    write_text(tmp_path / INDEX.papers["mpo"].laptop, text)
    page = docs_papers.page(tmp_path).partition("## MPO")[2]
    assert "Laptop: [pipelines/scales/laptop/mpo/params.yaml](../pipelines" in page
    assert "| `mpo` | `mpo` | `parameters.decay` | Sec. 5.4 | 0.8 | 0.8 | 0.7 |" in page
    assert re.search(r"\| `mpo` \| `mpo` \| `mtp.blocks` \| .* \| 5 \| 3 \|", page)
    assert "| `mpo_k2` | `mpo` | `mtp.blocks` | Figure 5 | 2 | 2 | not an arm |" in page
    assert "`recipes.mpo.mtp.warmup.steps` | about 12 minutes | 9 | counted in steps |" in page


def test_a_wrong_index_is_named(tmp_path):
    raw = (PROJECT / docs_papers.INDEX).read_text(encoding="utf-8")
    write_text(tmp_path / docs_papers.INDEX, raw.replace("what: policy", "wat: policy"))
    with pytest.raises(ValueError, match=r"data/paper-index.yaml:\n  shared.model.what: Field required"):
        docs_papers.load_index(tmp_path)


# --- values -------------------------------------------------------------------------------------------


def test_values_and_sources():
    cell = docs_values.Cell(
        {"a-x": (1e-6, "release"), "b-x": (1e-6, "text: 4, in words"), "a-y": (None, "choice: why")},
        ["a-x", "a-y", "b-x"],
    )
    assert cell.paper == "b-x: 1e-06 (in words)" and cell.sections == "Sec. 4"
    assert cell.ours == "a-x: 1e-06 (release)<br>b-x: 1e-06<br>a-y: none (choice: why)"
    assert docs_values.shown([0.8, 1.0, True]) == "0.8, 1, yes"
    assert docs_values.section("text: I.2, x") == "App. I.2"
    assert docs_values.section("text: Figure 4") == "Figure 4"
    assert docs_values.shortest(["a-x", "b-x"], ["a-x", "a-y", "b-x", "b-y"]) == ["x"]
    assert docs_values.shortest(["a-x", "b-y"], ["a-x", "a-y", "b-x", "b-y"]) == ["a-x", "b-y"]
    assert docs_values.default_of("rlvr.analysis.token_mdp.TokenMDP(length)") == 7
    with pytest.raises(KeyError, match=r"train\.nothing"):
        docs_values.value_at(SCALE, "train.nothing")


# --- decisions ----------------------------------------------------------------------------------------


def test_every_decision_is_on_its_page_once_with_a_link():
    page = (PROJECT / "docs/decisions.md").read_text(encoding="utf-8")
    entries = load_yaml(PROJECT / docs_decisions.SOURCE)
    groups = docs_decisions.grouped(entries)
    assert [len(group) for group in groups.values()] and all(groups.values())
    assert sorted(e["topic"] for group in groups.values() for e in group) == sorted(
        e["topic"] for e in entries
    )
    assert page.count("\n| ") == len(entries) + 2 * len(groups)
    unlinked = re.findall(r"(?:\| |<br>)(`[^`]+`)(?= \||<br>)", page)
    assert unlinked == ["`TokenMDP(after_completion=...)`"]


def test_the_place_of_a_decision():
    assert docs_decisions.place("nfpo(window=...)", PROJECT) == "[`nfpo(window=...)`](objectives/nfpo.md)"
    shown = docs_decisions.place("rlvr.ratios.forward_trace(window=...)", PROJECT)
    assert shown.endswith("](../lib/rlvr/ratios.py)")
    assert docs_decisions.place("rlvr.mtp.MtpModules(variant=...)", PROJECT).endswith(
        "(../lib/rlvr/mtp/__init__.py)"
    )
    assert docs_decisions.place("train.steps", PROJECT).endswith("](../params.yaml)")
    assert docs_decisions.place("nothing.here", PROJECT) == "`nothing.here`"
