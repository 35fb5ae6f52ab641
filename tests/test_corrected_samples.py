"""Corrections and selections at test time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from local_fixtures import SIZES, codec, random_policy

from rlvr.counterfactual.prompts import TokenPrompts
from rlvr.engines.config import SamplingConfig
from rlvr.engines.local.policy import new_policy
from rlvr.engines.local.rollout import derive_seed
from rlvr.engines.local.sampling import sample
from rlvr.evaluation import best_of_n
from rlvr.evaluation.corrected import _REVISIONS, choose_others, passes, revise_samples
from rlvr.evaluation.grading import grade
from rlvr.evaluation.requests import embedded
from rlvr.evaluation.sampled import sample_policy
from rlvr.problems import get_task
from rlvr.problems.base import Draws
from rlvr.problems.tokenizer import Codec, build_tokenizer

CONFIG = SamplingConfig(max_tokens=12, samples=3, seeds=(7,), skip_special_tokens=False)


@pytest.fixture(scope="module")
def problems():
    return [embedded(p) for p in get_task("word").generate("held_out", 6, 0, (1, 2))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    random_policy().save_pretrained(folder)
    codec().save(folder)
    return folder


@pytest.fixture(scope="module")
def samples(folder, problems):
    return sample_policy(folder, problems, CONFIG, "one")


@pytest.mark.parametrize("references", [0, 1, 2])
def test_revisions_are_sampled_under_the_correction_prompt(folder, problems, samples, references):
    found = revise_samples(folder, problems, samples, CONFIG, references=references)
    others = choose_others(samples, references, 7)
    words = codec()
    build = TokenPrompts("compare", words.encode, words.eos_id)
    prompts = [
        build(
            words.encode(row.prompt),
            words.encode(row.text.replace("<pad>", " ")),
            [words.encode(samples["text"][o].replace("<pad>", " ")) for o in others[i]],
        )
        for i, row in enumerate(samples.itertuples())
    ]
    expected = sample(random_policy(), prompts, 1, 12, derive_seed(_REVISIONS, 7))
    assert found["text"].tolist() == words.responses(expected.responses())[0]
    assert found["tokens"].tolist() == expected.lengths.tolist()
    assert found["prompt_tokens"].tolist() == [len(p) for p in prompts]
    assert found["first_text"].tolist() == samples["text"].tolist()
    assert list(found["problem"]) == list(samples["problem"]) and len(grade(found, problems)) == len(samples)


def test_the_verdicts_of_the_first_texts_do_not_stay(folder, problems, samples):
    graded = grade(samples, problems)
    assert "correct" not in revise_samples(folder, problems, graded, CONFIG)


def test_references_are_other_samples_of_the_same_problem_and_seed(samples):
    two = pd.concat([samples, samples.assign(seed=8)], ignore_index=True)
    chosen = choose_others(two, 2, 0)
    for row, others in enumerate(chosen):
        assert len(set(others)) == 2 and row not in others
        for other in others:
            assert two["problem"][other] == two["problem"][row] and two["seed"][other] == two["seed"][row]
    assert choose_others(two, 1, 0) == choose_others(two, 1, 0) != choose_others(two, 1, 1)
    assert [len(c) for c in choose_others(two, 9, 0)] == [2] * len(two)


def test_every_other_sample_is_chosen_equally_often():
    frame = pd.DataFrame({"problem": np.repeat(np.arange(600), 3), "seed": 0})
    chosen = np.array([c[0] for c in choose_others(frame, 1, 3)]) % 3
    for place in range(3):
        counts = np.bincount(chosen[place::3], minlength=3)
        assert counts[place] == 0 and all(abs(c - 300) < 50 for i, c in enumerate(counts) if i != place)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.assign(model=[*["a"] * (len(f) - 1), "b"]), r"models \['a', 'b'\]: allowed is one"),
        (lambda f: f.assign(problem="unknown"), "hold the problem 'unknown'"),
    ],
)
def test_other_samples_are_refused(folder, problems, samples, change, message):
    with pytest.raises(ValueError, match=message):
        revise_samples(folder, problems, change(samples), CONFIG)


@pytest.mark.parametrize("more", [{"references": -1}, {"references": 1.5}, {"template": "compair"}])
def test_bad_settings_are_named(folder, problems, samples, more):
    with pytest.raises(ValueError, match=next(iter(more))):
        revise_samples(folder, problems, samples, CONFIG, **more)


# --- programs --------------------------------------------------------------------------------------------


def program_frame(problems, texts):
    rows = {
        "problem": [p.id for p in problems], "benchmark": "embedded", "sample": 0, "seed": 0, "text": texts,
        "finished": True,
    }  # fmt: skip
    return pd.DataFrame(rows)


def test_programs_are_graded_by_running_them():
    raw = get_task("program").generate("held_out", 20, 0, (2, 3))
    problems = [embedded(p) for p in raw]
    assert {(p.kind, p.task) for p in problems} == {("expression", "program")}
    right = grade(program_frame(problems, [p.solution for p in raw]), problems)
    assert right["correct"].all() and set(right["grader"]) == {"expression"}
    draws = Draws("train", 0)
    wrong = grade(program_frame(problems, [get_task("program").corrupt(p, draws) for p in raw]), problems)
    assert not wrong["correct"].any() and set(wrong["reason"]) == {"wrong"}
    cut = grade(program_frame(problems, [p.solution for p in raw]).assign(finished=False), problems)
    assert not cut["correct"].any() and set(cut["reason"]) == {"truncated"}
    gone = grade(program_frame(problems, [None] * 20), problems)
    assert gone["correct"].isna().all()


def test_a_selection_by_public_tests_is_below_one_by_the_grader():
    """Samples that pass the public tests and fail a hidden one: best-of-n by the grader would be pass@n."""
    raw = [p for p in get_task("program").generate("held_out", 60, 0, (1, 2)) if p.content == "least 2|add 1"]
    raw = raw or [dataclasses.replace(get_task("program").generate("train", 1, 0)[0], answer="least 2|add 1")]
    problem = embedded(raw[0])
    texts = ["3", "max(x,2)+1", "x", "3"]
    frame = program_frame([problem] * 4, texts)
    correct = grade(frame, [problem])["correct"].astype(float).to_numpy()[None]
    found = np.array([passes(frame, [problem])])
    assert found.tolist() == [[1.0, 1.0, 0.0, 1.0]] and correct.tolist() == [[0.0, 1.0, 0.0, 0.0]]
    assert best_of_n(correct, correct, 4) == pytest.approx(1.0)
    assert best_of_n(correct, found, 4) == pytest.approx(1 / 3)


def test_without_public_tests_the_grader_selects(problems, samples):
    graded = grade(samples, problems)
    assert passes(graded, problems) == graded["correct"].astype(float).tolist()


def test_a_policy_of_the_program_task_is_sampled_and_revised(tmp_path):
    words = Codec(build_tokenizer(get_task("program").words))
    new_policy(SIZES, len(words), words.eos_id, words.pad_id, 0).save_pretrained(tmp_path)
    words.save(tmp_path)
    problems = [embedded(p) for p in get_task("program").generate("held_out", 3, 0, (1, 2))]
    found = revise_samples(
        tmp_path, problems, sample_policy(tmp_path, problems, CONFIG, "one"), CONFIG, template="problem_last"
    )
    assert len(grade(found, problems)) == 9
