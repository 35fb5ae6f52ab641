"""What is evaluated: from an arm of the graph and from an evaluation file, and what does not go together."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from evaluation_fixtures import small_repository, write_file
from notebook_factory import PROJECT

from rlvr.config import load_scale, load_yaml
from rlvr.engines.config import SamplingConfig
from rlvr.evaluation.files import Settings, load_problems, load_settings
from rlvr.evaluation.requests import (
    Candidate,
    EmbeddedProblem,
    Evaluation,
    evaluation_of_arm,
    evaluation_of_file,
)
from rlvr.evaluation.samples import COLUMNS, conform
from rlvr.problems.benchmarks import MissingData

TIER = PROJECT / "pipelines/scales/pretrained"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A small repository that this process is in."""
    monkeypatch.chdir(small_repository(tmp_path))
    monkeypatch.delenv("RLVR_DATA", raising=False)
    return tmp_path


# --- arms --------------------------------------------------------------------------------------------------


def test_an_arm_has_every_seed_and_lag_under_one_name_per_lag(here):
    scale = load_scale("params.yaml")
    found = evaluation_of_arm(scale, "nfpo")
    assert len(found.policies) == len(scale.seeds) * len(scale.train.lags)
    for policy in found.policies:
        seed, lag = policy.labels["seed"], policy.labels["lag"]
        assert policy.model == f"runs/tiny/train/nfpo/seed{seed}/lag{lag}/final"
        assert policy.name == f"nfpo lag {lag}" and policy.labels["arm"] == "nfpo"
    assert {p.labels["seed"] for p in found.policies} == set(scale.seeds)
    assert found.responses == len(found.policies) * 12 * scale.evaluate.samples
    assert found.engine == "local" and found.ks == tuple(k for k in scale.evaluate.pass_k if k > 1)


def test_all_ablations_are_one_evaluation_at_their_own_lag(here):
    scale = load_scale("params.yaml")
    found = evaluation_of_arm(scale, "ablations")
    arms, lag = scale.ablations.arms, scale.ablations.lag
    assert [(p.labels["arm"], p.labels["seed"], p.labels["lag"]) for p in found.policies] == [
        (arm, seed, lag) for arm in arms for seed in scale.seeds
    ]
    assert found.policies[0].model == f"runs/tiny/ablate/{arms[0]}/seed{scale.seeds[0]}/lag{lag}/final"
    trained = evaluation_of_arm(scale, "nfpo")
    assert (found.sampling, found.problems) == (trained.sampling, trained.problems)  # hence paired


def test_every_arm_may_be_one_evaluation(here):
    scale = load_scale("params.yaml")
    found = evaluation_of_arm(scale, "every")
    named = dict.fromkeys(p.labels["arm"] for p in found.policies)
    assert tuple(named) == ("base", *scale.arms, *scale.ablations.arms)
    parts = [evaluation_of_arm(scale, name) for name in ("base", "arms", "ablations")]
    assert found.policies == tuple(policy for part in parts for policy in part.policies)
    assert all((found.sampling, found.problems) == (part.sampling, part.problems) for part in parts)


def test_the_seed_of_an_arms_sampling_is_no_seed_of_training(here):
    scale = load_scale("params.yaml")
    base, arm = evaluation_of_arm(scale, "base"), evaluation_of_arm(scale, "nfpo")
    assert base.sampling == arm.sampling and base.problems == arm.problems  # hence paired
    assert base.sampling.seeds == (scale.evaluate.seed,)
    assert [p.labels["seed"] for p in base.policies] == [scale.warmup.seed]
    rows = pd.DataFrame({name: ["x"] for name in COLUMNS if name != "sampling_seed"})
    rows = rows.assign(
        sample=0, seed=scale.evaluate.seed, tokens=1, prompt_tokens=1, finished=True, correct=None
    )
    trained = conform(rows, {"arm": "nfpo", "seed": 1, "lag": 2}).iloc[0]
    assert (trained["seed"], trained["sampling_seed"], trained["lag"]) == (1, scale.evaluate.seed, 2)
    plain = conform(rows).iloc[0]
    assert plain["seed"] == plain["sampling_seed"] == scale.evaluate.seed


# --- what does not go together -----------------------------------------------------------------------------


def request(**changes):
    values = {
        "policies": (Candidate("a", "one"),),
        "problems": (EmbeddedProblem("p", "1+1=", "2", 1),),
        "sampling": SamplingConfig(max_tokens=4, seeds=(0, 1)),
        "engine": "transformers",
        "confidence": 0.95,
    }
    return Evaluation(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "tgi"}, "engine='tgi': allowed are local, transformers, vllm"),
        ({"engine": "vllm", "threads": 2}, "threads=2: allowed with engine vllm is 1"),
        (
            {"policies": (Candidate("a", "one", {"seed": 3}),)},
            r"seeds=\[0, 1\]: allowed is one seed of sampling",
        ),
        (
            {"policies": (Candidate("a", "one"), Candidate("b", "one"))},
            r"policies hold \('one', None\) twice",
        ),
        ({"problems": (EmbeddedProblem("p", "", "", 1),) * 2}, "problems hold 'p' twice"),
        ({"problems": ()}, "problems is empty"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(changes, message):
    assert request().responses == 2
    with pytest.raises(ValueError, match=message):
        request(**changes)


# --- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["evaluation", "rehearsal"])
def test_an_evaluation_file_loads_and_leads_back_to_itself(name):
    path = TIER / f"{name}.yaml"
    settings = load_settings(path)
    assert (PROJECT / settings.scale_file).resolve() == path.resolve()
    assert (path.parent / settings.root).resolve() == PROJECT


def test_a_wrong_evaluation_file_is_refused_by_name(tmp_path):
    text = (TIER / "evaluation.yaml").read_text()
    for old, new, message in [
        ("threads: 1", "threads: 0", "threads"),
        ("top_p: 0.9", "top_p: 1.9", "top_p=1.9"),
        ("top_p: 0.9", "topp: 0.9", "no field"),
        ("number: 16", "file: x", "allowed is one of the two"),
        (
            "benchmark: math500, number: 16",
            "file: x, split: test",
            "split with a file: allowed with a benchmark",
        ),
        ("engine: transformers", "engine: tgi", "engine"),
        ("[gsm8k_train, math_train]", "[nope]", "training_sets: .*benchmark='nope': allowed are"),
        ("[gsm8k_train, math_train]", "[gsm8k-train]", "training_sets: .*did you mean 'gsm8k_train'"),
    ]:
        assert old in text
        (tmp_path / "e.yaml").write_text(text.replace(old, new))
        with pytest.raises(ValueError, match=message):
            load_settings(tmp_path / "e.yaml")


def test_every_setting_of_results_is_a_parameter_of_the_stage():
    (stage,) = load_yaml(TIER / "dvc.yaml")["stages"].values()
    (entry,) = stage["params"]
    (keys,) = entry.values()
    assert set(keys) == set(Settings.model_fields) - {"root", "scale_file", "workers"}
    written = load_yaml(TIER / "evaluation.yaml")
    assert set(keys) <= set(written)  # DVC takes an absent one for an error


def test_a_file_of_generated_problems(here):
    found = evaluation_of_file(write_file(here))
    assert found.engine == "transformers" and found.responses == 10
    assert found.benchmarks == ("embedded",) and {p.kind for p in found.problems} == {"integer"}
    with pytest.raises(FileNotFoundError, match=r"nothing\.jsonl does not exist"):
        evaluation_of_file(write_file(here, problems=[{"file": "nothing.jsonl"}]))
    with pytest.raises(FileNotFoundError, match=r"evaluation file none\.yaml does not exist"):
        evaluation_of_file("none.yaml")


def test_what_a_file_asks_for_in_vain_is_said_when_it_is_read(here):
    with pytest.raises(ValueError, match=r"training_sets: .*benchmark='nope': allowed are"):
        evaluation_of_file(write_file(here, training_sets=["math_train", "nope"]))
    with pytest.raises(ValueError, match=r"benchmark='math5000': did you mean 'math500'"):
        evaluation_of_file(write_file(here, problems=[{"benchmark": "math5000"}]))
    assert evaluation_of_file(write_file(here, training_sets=["math_train"])).training_sets == ("math_train",)


def test_a_style_of_prompts_is_for_every_benchmark_of_the_file(here, monkeypatch):
    (here / "amc23.jsonl").write_text('{"id": "a", "problem": "1 + 1", "answer": "2"}\n')
    monkeypatch.setenv("RLVR_DATA", str(here))
    source = {"problems": [{"benchmark": "amc23"}]}
    with pytest.warns(UserWarning, match="has 1 problems"):
        assert evaluation_of_file(
            write_file(here, sampling={"max_tokens": 4, "prompt_style": "dapo"}, **source)
        )
        with pytest.raises(ValueError, match="prompt_style='mbpp': allowed for amc23 are plain, boxed"):
            evaluation_of_file(write_file(here, sampling={"max_tokens": 4, "prompt_style": "mbpp"}, **source))


def test_smaller_subsets_are_parts_of_larger_ones(here):
    def ids(number, seed=0):
        source = {"file": "runs/tiny/problems/problems/held_out.jsonl", "number": number}
        return [
            p.id for p in load_problems(load_settings(write_file(here, problems=[source], subset_seed=seed)))
        ]

    five, nine, every = ids(5), ids(9), ids(12)
    assert len(five) == 5 and set(five) < set(nine) < set(every)
    assert nine == [i for i in every if i in nine]  # in the published order
    assert any(set(ids(5, seed)) != set(five) for seed in (1, 2))
    with pytest.raises(ValueError, match=r"number=13 of .*: it has 12"):
        ids(13)


def test_benchmarks_that_are_not_here_are_named_with_one_command(here):
    (here / "data").mkdir()
    (here / "data/benchmarks.yaml").write_text((PROJECT / "data/benchmarks.yaml").read_text())
    sources = [{"benchmark": "gsm8k_test", "number": 1}, {"benchmark": "humaneval"}]
    path = write_file(here, problems=sources, training_sets=["gsm8k_train"])
    with pytest.raises(MissingData, match="`rlvr data fetch gsm8k_test humaneval gsm8k_train`"):
        evaluation_of_file(path)


@pytest.mark.parametrize(("window", "kept"), [(["2025-02", "2025-03"], ["in"]), ("all", ["in", "after"])])
def test_parts_of_a_benchmark_are_chosen_as_by_load_benchmark(here, monkeypatch, window, kept):
    dates = {"in": "2025-03-01T00:00:00", "after": "2025-06-01T00:00:00"}
    records = [
        {"id": name, "problem": "Print 1.", "contest_date": date, "difficulty": "easy", "starter_code": "",
         "public_tests": [{"input": "", "output": "1", "testtype": "stdin"}], "metadata": "{}"}
        for name, date in dates.items()
    ]  # fmt: skip
    (here / "livecodebench_v1_public.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    monkeypatch.setenv("RLVR_DATA", str(here))
    source = {"benchmark": "livecodebench_v1_public", "window": window}
    with pytest.warns(UserWarning, match="has 2 problems"):
        problems = evaluation_of_file(write_file(here, problems=[source])).problems
    assert [p.id for p in problems] == kept
