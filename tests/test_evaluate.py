"""Evaluating a saved policy with the local engine: one row per sample, and policies on the same draws."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest
import torch
from local_fixtures import codec, random_policy

from rlvr.engines.config import SamplingConfig
from rlvr.evaluation import sampled
from rlvr.evaluation.grading import grade
from rlvr.evaluation.requests import EmbeddedProblem
from rlvr.evaluation.sampled import sample_policy
from rlvr.problems import get_task
from rlvr.verifiers import Verdict, integer, verify_integer

LIMIT = 12
CONFIG = SamplingConfig(max_tokens=LIMIT, samples=4, seeds=(1000,), skip_special_tokens=False)
COLUMNS = (
    "problem benchmark sample seed prompt text finish_reason finished tokens prompt_tokens engine model "
    "correct extracted reason grader"
).split()


def embedded(problems):
    return [EmbeddedProblem(p.id, p.prompt, p.answer, p.difficulty) for p in problems]


def changed(**values):
    return dataclasses.replace(CONFIG, **values)


def evaluate_policy(folder, problems, config=CONFIG, on_progress=None):
    return grade(sample_policy(folder, embedded(problems), config, "one", on_progress), embedded(problems))


@pytest.fixture(scope="module")
def problems():
    return get_task("word").generate("held_out", 16, 0, (1, 2))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """``base``, ``close`` (weights moved by little) and ``far``."""
    root, base = tmp_path_factory.mktemp("policies"), random_policy(0)
    noise = torch.randn(base.theta.shape, generator=torch.Generator().manual_seed(1))
    for name, size in (("base", 0.0), ("close", 1e-4), ("far", 0.05)):
        base.with_theta(base.theta + size * noise).save_pretrained(root / name)
        codec().save(root / name)
    return root


@pytest.fixture(scope="module")
def frame(folders, problems):
    return evaluate_policy(folders / "base", problems)


def test_one_row_per_sample_in_order(frame, problems):
    assert list(frame.columns) == COLUMNS
    assert frame["problem"].tolist() == [p.id for p in problems for _ in range(4)]
    assert frame["sample"].tolist() == [0, 1, 2, 3] * len(problems)
    assert frame["prompt"].tolist() == [p.prompt for p in problems for _ in range(4)]
    assert frame["prompt_tokens"].tolist() == [len(codec().encode(text)) for text in frame["prompt"]]
    assert (frame["finish_reason"].eq("stop") == frame["finished"]).all()
    assert frame["tokens"].between(1, LIMIT).all()


def test_types(frame):
    assert frame["correct"].dtype == "boolean" and frame["extracted"].dtype == "string"
    assert frame["finished"].dtype == bool and frame["tokens"].dtype.kind == "i"


def test_verdicts_are_the_verifiers(frame, problems):
    answers = {p.id: p.answer for p in problems}
    for row in frame.itertuples():
        verdict = verify_integer(row.text, answers[row.problem], row.finished)
        assert (row.correct, row.reason) == (verdict.correct, verdict.reason)
        assert (
            (row.extracted == verdict.extracted) if verdict.extracted is not None else pd.isna(row.extracted)
        )
    assert not frame.loc[~frame["finished"], "correct"].any()
    assert (frame.loc[~frame["finished"], "tokens"] == LIMIT).all()
    assert frame["finished"].any() and not frame["finished"].all()


def test_right_answers_are_seen_and_a_right_answer_cut_off_is_wrong(folders, problems, monkeypatch):
    """A policy that writes the solution; the random one never solves anything."""
    words, chosen = codec(), problems[:3]
    replies = [words.encode(p.solution, end=True) for p in chosen for _ in range(4)]
    replies[0] = replies[0][:-1]  # no end token
    replies[1] = [*words.encode("1"), words.eos_id]

    @dataclasses.dataclass
    class Reply:
        lengths = torch.tensor([len(r) for r in replies])
        finished = torch.tensor([r[-1] == words.eos_id for r in replies])

        def responses(self):
            return replies

    monkeypatch.setattr(sampled, "sample", lambda *_: Reply())
    frame = evaluate_policy(folders / "base", chosen)
    assert frame["correct"].tolist() == [False, chosen[0].answer == "1"] + [True] * 10
    assert frame["reason"].tolist()[:3:2] == ["truncated", "correct"]
    assert frame["extracted"].tolist()[2] == chosen[0].answer
    assert frame["text"].tolist()[4:8] == [chosen[1].solution] * 4


def test_what_cannot_be_decided_is_missing_and_not_wrong(folders, problems):
    broken = [dataclasses.replace(problems[0], answer="seven"), problems[1]]
    frame = evaluate_policy(folders / "base", broken)
    assert frame["correct"].isna().tolist() == [True] * 4 + [False] * 4
    assert frame["reason"].tolist()[:4] == ["bad_gold"] * 4
    assert frame["correct"].dtype == "boolean"


def test_a_lost_verdict_is_kept_as_missing(folders, problems, monkeypatch):
    monkeypatch.setattr(integer, "verify_integer", lambda *_: Verdict(None, None, "sandbox_died"))
    frame = evaluate_policy(folders / "base", problems[:2])
    assert frame["correct"].isna().all() and frame["correct"].dtype == "boolean"
    assert frame["extracted"].isna().all() and frame["extracted"].dtype == "string"


def test_evaluating_again_gives_the_same(folders, problems, frame):
    pd.testing.assert_frame_equal(evaluate_policy(folders / "base", problems), frame)


@pytest.mark.fault("response-depends-on-its-neighbours")
def test_policies_draw_the_same_uniforms(folders, problems, frame):
    """Weights moved by little give nearly the same responses; another seed or far weights do not."""

    def agreement(name, config=CONFIG):
        other = evaluate_policy(folders / name, problems, config)
        return (other["text"] == frame["text"]).mean()

    assert agreement("close") > 0.9
    assert agreement("far") < 0.5
    assert agreement("base", changed(seeds=(1001,))) < 0.2


def test_the_seed_of_the_draws_depends_on_the_config_alone(folders, problems, monkeypatch):
    seeds, real = [], sampled.sample

    def spy(policy, prompts, samples, limit, seed, temperature, progress):
        seeds.append((seed, temperature, samples))
        return real(policy, prompts, samples, limit, seed, temperature, progress)

    monkeypatch.setattr(sampled, "sample", spy)
    evaluate_policy(folders / "base", problems[:3])
    evaluate_policy(folders / "far", problems[:5])
    evaluate_policy(folders / "far", problems[:5], changed(seeds=(1,)))
    assert seeds[0] == seeds[1] != seeds[2]
    assert seeds[0][1:] == (1.0, 4)


def test_temperature_reaches_the_sampler(folders, problems, frame):
    """Nearly greedy: all samples of nearly every problem agree; at temperature 1 those of none do."""
    cold = changed(temperature=0.01)
    nearly_greedy = evaluate_policy(folders / "base", problems, cold)
    assert (nearly_greedy.groupby("problem")["text"].nunique() == 1).mean() > 0.8
    assert (frame.groupby("problem")["text"].nunique() > 1).all()


def test_progress_counts_problems(folders, problems):
    seen = []
    evaluate_policy(folders / "base", problems, CONFIG, lambda *p: seen.append(p))
    assert seen[-1] == (16, 16)


def test_a_folder_without_a_model_is_an_error(tmp_path, problems):
    with pytest.raises(FileNotFoundError, match="holds no saved model"):
        evaluate_policy(tmp_path, problems)


def test_two_seeds_are_two_runs_of_their_own(folders, problems, frame):
    both = evaluate_policy(folders / "base", problems, changed(seeds=(1000, 7)))
    assert both["seed"].tolist() == [1000] * 64 + [7] * 64
    pd.testing.assert_frame_equal(both.head(64), frame)
    assert (both["text"].head(64).array != both["text"].tail(64).array).mean() > 0.8


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"top_p": 0.9}, "top_p=0.9: engine local has no such setting; allowed is 1.0"),
        ({"chat_template": "model"}, "chat_template='model': engine local has no such setting"),
        (
            {"skip_special_tokens": True},
            "skip_special_tokens=True: engine local keeps a sampled <pad> visible",
        ),
    ],
)
def test_what_the_local_engine_does_not_do_is_refused(folders, problems, setting, message):
    with pytest.raises(ValueError, match=message):
        evaluate_policy(folders / "base", problems, changed(**setting))
