"""GSPO with prompt: what every sample of a language model is shown beside, and what comes back."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from rlvr.engines.config import SamplingConfig
from rlvr.evaluation import revisions
from rlvr.evaluation.requests import Candidate, Evaluation
from rlvr.evaluation.revisions import LEAST, asked_of, revise, rooms
from rlvr.evaluation.samples import conform
from rlvr.problems.benchmarks import BenchmarkProblem, prompt_for

PROBLEMS = (
    BenchmarkProblem("1", "amc23", "How many cats?", answer="3"),
    BenchmarkProblem("1", "math500", "How many dogs?", answer="4"),
)
ROWS = [(b, "1", n, f"{b} attempt {n}") for b in ("amc23", "math500") for n in range(3)]


def evaluation(**changes) -> Evaluation:
    values = {
        "policies": (Candidate("models/tiny", "tiny"),),
        "problems": tuple(p for p in PROBLEMS if p.benchmark == "amc23"),
        "sampling": SamplingConfig(max_tokens=64, samples=3, seeds=(5,), temperature=0.7),
        "engine": "vllm",
        "confidence": 0.95,
    }
    return Evaluation(**values | changes)


class Both(Evaluation):
    """Two benchmarks may have a problem of one id; an evaluation refuses it, samples of two do not."""

    def __post_init__(self) -> None:
        pass


def samples(rows=ROWS, seed=5) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["benchmark", "problem", "sample", "text"]).assign(seed=seed)


def words(asked) -> list[int]:
    return [len(one.prompt.split()) for one in asked]


def both() -> Evaluation:
    one = evaluation()
    return Both(
        policies=one.policies, problems=PROBLEMS, sampling=one.sampling, engine="vllm", confidence=0.95
    )


def attempts(prompt: str) -> list[str]:
    return re.findall(r'<attempt number="\d">\n(.*?)\n</attempt>', prompt, re.DOTALL)


def test_a_sample_is_shown_first_and_another_of_its_problem_beside_it():
    asked = asked_of(both(), samples(), words, references=1, longest=10_000)
    assert [one.id for one in asked] == [f"{b}/1#{n}" for b, _, n, _ in ROWS]
    for one, (benchmark, _, _, text) in zip(asked, ROWS, strict=True):
        problem = next(p for p in PROBLEMS if p.benchmark == benchmark)
        assert one.prompt.startswith(prompt_for(problem, None).strip()) and one.benchmark == benchmark
        first, other = attempts(one.prompt)
        assert first == text and other != text and other.startswith(f"{benchmark} attempt")
    again = asked_of(both(), samples(), words, references=1, longest=10_000)
    assert again == asked  # the same references every time
    (alone, *_) = asked_of(both(), samples(), words, references=0, longest=10_000)
    assert attempts(alone.prompt) == ["amc23 attempt 0"]


def test_of_a_prompt_that_is_too_long_both_ends_of_the_responses_are_shown():
    rows = [("amc23", "1", n, f"begin{n} " + "middle " * 2000 + f"end{n}") for n in range(2)]
    rows.append(("amc23", "1", 2, "short"))
    asked = asked_of(evaluation(), samples(rows), words, references=1, longest=900)
    assert max(words(asked)) <= 900
    long = attempts(asked[0].prompt)[0]
    assert long.startswith("begin0") and long.endswith("end0") and len(long) < len(rows[0][3]) / 2
    with pytest.raises(ValueError, match=rf"longest=20: the prompt of amc23/1 is longer with {LEAST} char"):
        asked_of(evaluation(), samples(rows), words, references=1, longest=20)


def test_revisions_have_the_problem_and_sample_that_they_revise(monkeypatch):
    seen = {}

    def answer(asked, scratch):
        seen["evaluation"] = asked
        rows = [
            {"problem": p.id, "benchmark": p.benchmark, "sample": 0, "text": f"again {p.id}"}
            for p in reversed(asked.problems)  # in any order
        ]
        return conform(
            pd.DataFrame(rows).assign(
                seed=5, prompt="?", finish_reason="stop", finished=True, tokens=1, prompt_tokens=1,
                engine="vllm", model="tiny",
            )
        )  # fmt: skip

    monkeypatch.setattr(revisions, "sample", answer)
    monkeypatch.setattr(revisions, "_tokenizer", lambda model: None)
    monkeypatch.setattr(revisions, "read_prompts", lambda asked, *_: [_Ids(one) for one in asked])
    first = samples([row for row in ROWS if row[0] == "amc23"])
    found = revise(evaluation(), first, "scratch", references=1, longest=10_000, max_tokens=20)
    assert found[["benchmark", "problem", "sample"]].to_numpy().tolist() == [
        ["amc23", "1", n] for n in range(3)
    ]
    assert found["text"].tolist() == [f"again amc23/1#{n}" for n in range(3)]
    sampling = seen["evaluation"].sampling
    assert (sampling.samples, sampling.max_tokens, sampling.seeds) == (1, 20, (5,))
    assert sampling.temperature == 0.7


class _Ids:
    def __init__(self, one):
        self.ids = one.prompt.split()


@pytest.mark.parametrize(
    ("frame", "changes", "message"),
    [
        (
            samples([("amc23", "9", 0, "x")]),
            {},
            r"samples hold the problem 'amc23/9', which is not evaluated",
        ),
        (samples(ROWS[:1]), {"references": -1}, r"references=-1"),
        (samples(ROWS[:1]), {"longest": 0}, r"longest=0"),
    ],
)
def test_bad_input(frame, changes, message):
    with pytest.raises(ValueError, match=message):
        asked_of(evaluation(), frame, words, **{"references": 1, "longest": 99} | changes)


def test_samples_of_several_seeds_are_refused():
    two = pd.concat([samples(ROWS[:1]), samples(ROWS[:1], seed=6)])
    with pytest.raises(ValueError, match=r"samples are of the seeds \[5, 6\]: allowed is one"):
        revise(evaluation(), two, "scratch", references=1, longest=99, max_tokens=5)


def test_a_revision_has_what_training_leaves_beside_its_prompt():
    sizes = [100, 900, 300, 500]
    assert rooms(sizes, 700, None) == {"wide": (700, [0, 1, 2, 3])}
    assert rooms(sizes, 700, 1600) == {"wide": (700, [0, 1, 2, 3])}
    assert rooms(sizes, 700, 1000) == {"wide": (700, [0, 2]), "narrow": (100, [1, 3])}
    assert rooms([900], 700, 1000) == {"narrow": (100, [0])}
    with pytest.raises(ValueError, match="context=900: allowed is more than the longest prompt, 900 tokens"):
        rooms(sizes, 700, 900)
    with pytest.raises(ValueError, match="max_tokens"):
        rooms(sizes, 0, None)
