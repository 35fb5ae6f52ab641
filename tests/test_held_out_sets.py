"""Held-out problems sorted by what they ask."""

import pandas as pd
import pytest

from rlvr.analysis.held_out_sets import SETS, set_of, with_sets
from rlvr.problems import get_task


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("11+6-4+2", "plain, short"),
        ("11+6-4+2+1", "plain, short"),  # 4 of 3 to 6 steps
        ("11+6-4+2+1-1", "plain, long"),
        ("11+6*2-4", "one product, short"),
        ("11*2+6*3", "products, short"),
        ("2*2*2*2*2*2", "products, long"),
    ],
)
def test_a_set_is_a_kind_and_a_length(content, name):
    assert set_of(content, (3, 6)) == name


def test_every_generated_problem_is_in_one_set():
    task = get_task("word")
    problems = task.generate("held_out", 300, 0, (3, 6))
    samples = pd.DataFrame({"prompt": [p.prompt for p in problems]})
    found = with_sets(samples, "word", (3, 6))
    assert set(found["set"]) == set(SETS)
    assert found["set"].tolist() == [set_of(p.content, (3, 6)) for p in problems]
