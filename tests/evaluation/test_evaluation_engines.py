"""One evaluation under several engines: the same columns and greedy text; what is missing is said first."""

from __future__ import annotations

import dataclasses
import sys

import pandas as pd
import pytest
from evaluation_fixtures import save_policy, small_repository, write_file
from notebook_factory import PROJECT

from rlvr.evaluation import engines
from rlvr.evaluation.engines import expected_time, sample
from rlvr.evaluation.grading import grade
from rlvr.evaluation.requests import Candidate, Evaluation, evaluation_of_file, read_embedded
from rlvr.evaluation.samples import COLUMNS
from rlvr.evaluation.summary import accuracy, by_steps, lines_below, shown

SMOKE = PROJECT / "runs/smoke"
needs_smoke = pytest.mark.skipif(
    not (SMOKE / "base/model/model.safetensors").is_file(), reason="needs runs/smoke: make repro SCALE=smoke"
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return small_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture
def here(repository, monkeypatch):
    monkeypatch.chdir(repository)
    return repository


def of_file(here, engine, **sampling) -> Evaluation:
    values = {"max_tokens": 20, "samples": 2, "skip_special_tokens": False} | sampling
    return evaluation_of_file(write_file(here, engine=engine, sampling=values))


@pytest.fixture
def both(here, tmp_path):
    """The same evaluation with two engines: (evaluation, graded samples) each."""
    found = {}
    for engine in ("local", "transformers"):
        evaluation = of_file(here, engine)
        found[engine] = evaluation, grade(sample(evaluation, tmp_path / engine), evaluation.problems)
    return found


def test_engines_write_the_same_columns(both):
    (_, local), (_, transformers) = both["local"], both["transformers"]
    assert local.dtypes.to_dict() == transformers.dtypes.to_dict()
    assert list(local) == [*COLUMNS, "difficulty"]
    for name in (
        "problem",
        "benchmark",
        "sample",
        "seed",
        "sampling_seed",
        "prompt",
        "prompt_tokens",
        "model",
        "difficulty",
    ):
        assert local[name].tolist() == transformers[name].tolist(), name
    assert set(local["engine"]) == {"local"} and set(transformers["engine"]) == {"transformers"}
    for frame in (local, transformers):
        assert len(frame) == 10 and frame["correct"].notna().all()
        assert (frame["finished"] == frame["finish_reason"].eq("stop")).all()
        assert (frame.loc[~frame["finished"], "tokens"] == 20).all()


def greedy(evaluation, engine, scratch):
    sampling = dataclasses.replace(evaluation.sampling, temperature=0, samples=1)
    return sample(dataclasses.replace(evaluation, engine=engine, sampling=sampling), scratch)


def assert_same_greedy(evaluation, scratch):
    local, other = (greedy(evaluation, e, scratch / e) for e in ("local", "transformers"))
    same = ["problem", "prompt", "text", "finish_reason", "tokens", "prompt_tokens"]
    pd.testing.assert_frame_equal(local[same], other[same])
    assert local["text"].nunique() > 1


def test_greedy_text_is_the_same_for_a_random_policy(here, tmp_path):
    assert_same_greedy(of_file(here, "local"), tmp_path)


@needs_smoke
def test_greedy_text_is_the_same_for_the_smoke_policy(here, tmp_path):
    evaluation = dataclasses.replace(
        of_file(here, "local"),
        policies=(Candidate(str(SMOKE / "base/model"), "smoke base"),),
        problems=tuple(read_embedded(SMOKE / "problems/problems/held_out.jsonl"))[:100],
    )
    assert_same_greedy(evaluation, tmp_path)


def test_several_policies_side_by_side_draw_the_same_and_keep_their_labels(here, tmp_path):
    evaluation = of_file(here, "local")
    policies = tuple(
        Candidate(evaluation.policies[0].model, "arm", {"arm": "arm", "seed": s, "lag": 0}) for s in (3, 5)
    )
    frame = sample(dataclasses.replace(evaluation, policies=policies, workers=2), tmp_path)
    assert frame["seed"].tolist() == [3] * 10 + [5] * 10 and set(frame["sampling_seed"]) == {0}
    assert frame["text"].head(10).tolist() == frame["text"].tail(10).tolist()  # the same weights
    table = shown(accuracy(grade(frame, evaluation.problems), evaluation))
    assert table["seeds"].tolist() == ["3 5"] and "over seeds" in table


def test_a_killed_run_goes_on_and_other_settings_begin_anew(here, tmp_path, monkeypatch):
    from rlvr.engines.pretrained import sampling

    evaluation = of_file(here, "transformers", chunk_size=4)
    whole = sample(evaluation, tmp_path / "whole")
    calls, generate = [], sampling.generate

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return generate(*arguments)

    monkeypatch.setattr(sampling, "generate", killed)
    monkeypatch.setattr(sampling, "_measure", lambda *_: "a while")
    with pytest.raises(KeyboardInterrupt):
        sample(evaluation, tmp_path / "cut")
    pd.testing.assert_frame_equal(sample(evaluation, tmp_path / "cut"), whole)
    assert len(calls) == 2 + 2  # three parts, the first is kept
    other = sample(of_file(here, "transformers", chunk_size=4, temperature=0.5), tmp_path / "cut")
    assert len(calls) == 4 + 3 and not other["text"].equals(whole["text"])


def test_missing_vllm_is_one_line_before_anything_is_sampled(here, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError) as error:
        sample(of_file(here, "vllm"), tmp_path)
    assert str(error.value).startswith("engine vllm needs vLLM, which is not installed here: `make env-vllm`")
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("engine", "model", "kind", "message"),
    [
        ("local", "runs/none", FileNotFoundError, "runs/none holds no saved model"),
        ("local", "runs/half", FileNotFoundError, "runs/half holds no saved model"),
        ("transformers", "runs/none", FileNotFoundError, "no folder with a saved model"),
        ("transformers", "runs/half", FileNotFoundError, "has a config.json but no weights"),
        ("transformers", "none.gguf", FileNotFoundError, "model='none.gguf': no such file"),
        ("transformers", "no-such-package", ImportError, "`make env-pretrained`"),
        ("vllm", "runs/none", FileNotFoundError, "no folder with a saved model"),
    ],
)
def test_a_missing_model_is_said_when_the_file_is_read(here, tmp_path, engine, model, kind, message):
    (here / "runs/half").mkdir(exist_ok=True)
    (here / "runs/half/config.json").write_text("{}")
    with pytest.raises(kind, match=message):
        evaluation_of_file(write_file(here, engine=engine, model=model))
    # and before anything is sampled where no file is read
    policies = (Candidate(model, "one"), Candidate(model, "two"))
    with pytest.raises(kind, match=message):
        sample(dataclasses.replace(of_file(here, engine), policies=policies), tmp_path / "scratch")
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize(
    ("engine", "setting", "message"),
    [
        ("local", {"top_k": 5}, "top_k=5: engine local has no such setting; allowed is 0"),
        ("local", {"skip_special_tokens": True}, "skip_special_tokens=True: engine local"),
        ("local", {"prompt_style": "plain"}, "prompt_style='plain': engine local has no such setting"),
        ("transformers", {"tensor_parallel_size": 2}, "tensor_parallel_size=2: engine transformers has no"),
        ("transformers", {"stop": ["x"]}, r"stop=\('x',\): engine transformers has no such setting"),
        ("transformers", {"chat_template": "none.jinja"}, "chat_template='none.jinja': no such file"),
        ("vllm", {"chat_template": "none.jinja"}, "chat_template='none.jinja': no such file"),
    ],
)
def test_settings_that_the_engine_does_not_have_are_refused_on_reading(here, engine, setting, message):
    with pytest.raises(ValueError, match=message):
        of_file(here, engine, **setting)


def test_a_response_that_does_not_come_back_is_an_error(here, tmp_path, monkeypatch):
    short = {"local": lambda *arguments: [frame.head(9) for frame in engines._local(*arguments)]}
    monkeypatch.setattr(engines, "_SAMPLERS", short)
    with pytest.raises(RuntimeError, match="9 responses came back, 10 were asked for"):
        sample(of_file(here, "local"), tmp_path)


def test_the_time_is_measured_where_it_can_be(here):
    assert expected_time(of_file(here, "transformers")).startswith("10 responses, at most about ")
    assert (
        expected_time(of_file(here, "local")) == "10 responses with engine local, whose time is not estimated"
    )


# --- what is shown -----------------------------------------------------------------------------------------


def test_the_table_rests_on_the_samples(both):
    evaluation, samples = both["local"]
    samples = samples.assign(correct=pd.array([True, False, *[False] * 7, None], dtype="boolean"))
    table = accuracy(samples, evaluation)
    ((_, row),) = table.iterrows()
    assert row["avg@k"].value == pytest.approx((0.5 + 0 + 0 + 0 + 0) / 5) and row["undecided"] == 1
    text = shown(table).iloc[0]
    assert text["avg@k"] == row["avg@k"].format() and text["samples"] == 10 and "over seeds" not in text
    first, *rest = lines_below(table, samples, evaluation)
    assert first.startswith("embedded, tiny (integer): 5 problems, 10 samples; 0 missing, 1 undecided, ")
    assert rest[-1].startswith("Generated problems: one grader")
    steps = by_steps(samples)
    assert list(steps.index) == ["tiny"] and set(steps.columns) == set(samples["difficulty"])
    assert by_steps(samples.drop(columns="difficulty")).empty


def test_only_mathematics_is_voted_on(both):
    evaluation, samples = both["local"]
    samples = pd.concat([samples.assign(sample=samples["sample"] + 2 * i) for i in range(2)])
    parts = [samples.assign(grader=name, benchmark=name) for name in ("integer", "program", "rlvr")]
    sampling = dataclasses.replace(evaluation.sampling, samples=4)
    table = accuracy(pd.concat(parts), dataclasses.replace(evaluation, sampling=sampling))
    assert list(table.index.get_level_values("benchmark")) == ["integer", "program", "rlvr"]
    assert table["maj@2"].isna().tolist() == [True, True, False] and table["pass@2"].notna().all()
    assert shown(table)["maj@2"].tolist()[:2] == ["", ""]


def test_policies_of_other_folders_are_not_touched(here, tmp_path):
    """What engine vllm needs of a narrow policy is a copy."""
    from rlvr.engines.vllm import fitting_folder

    narrow = save_policy(tmp_path / "narrow")
    before = {p.name: p.read_bytes() for p in narrow.iterdir()}
    assert fitting_folder(narrow, tmp_path / "wide") == tmp_path / "wide"
    assert fitting_folder(tmp_path / "wide", tmp_path / "other") == tmp_path / "wide"
    assert before == {p.name: p.read_bytes() for p in narrow.iterdir()}
