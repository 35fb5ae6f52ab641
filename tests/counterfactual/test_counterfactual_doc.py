"""The examples of docs/counterfactual.md give what the page says, and so do its numbers."""

import doctest
import importlib
import re
from pathlib import Path

import pytest
import torch

from rlvr.analysis.advantage_variance import local_moments, weight_limit
from rlvr.counterfactual.operators import list_operators
from rlvr.counterfactual.rewrite import adaptive_threshold

PAGE = Path(__file__).resolve().parents[2] / "docs" / "counterfactual.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_examples():
    text = re.sub(r"^```.*$", "", TEXT, flags=re.MULTILINE)  # a fence would be read as output
    examples = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    assert len(examples.examples) > 25
    complaints: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(examples, out=complaints.append)
    assert result.failed == 0, "".join(complaints)


def exists(name: str) -> bool:
    """Whether ``name`` is a module, or something in one, of the library or of its counterfactual package."""
    for package in ("rlvr", "rlvr.counterfactual"):
        parts = f"{package}.{name}".split(".")
        for cut in (len(parts), len(parts) - 1):
            try:
                module = importlib.import_module(".".join(parts[:cut]))
            except ImportError:
                continue
            if all(hasattr(module, part) for part in parts[cut:]):
                return True
    return False


def test_functions_it_names_exist():
    named = set(re.findall(r"`((?:\w+\.)+\w+)`", TEXT))
    named = {name.removeprefix("rlvr.") for name in named if not name.endswith((".parquet", ".py"))}
    assert len(named) > 15 and not exists("rewards.recoverabilty") and not exists("prompt.TokenPrompts")
    assert [name for name in named if not exists(name)] == []


def test_operators_of_the_table():
    rows = re.search(r"\| name \| distance \|\n.*?\n\n", TEXT, re.DOTALL)[0]
    assert sorted(re.findall(r"^\| `(\w+)`", rows, re.MULTILINE)) == list_operators()


@pytest.mark.parametrize(("q", "accuracy"), [(0.12, 0.13), (0.67, 0.06)])
def test_accuracy_at_which_the_bound_is_the_weight(q, accuracy):
    def limit(p):
        _, c, v = local_moments(p, [0.5, 0.0], [q, 1 - q], "binary")
        assert weight_limit(c, v) == pytest.approx(4 * p / (1 - (1 - p) * q))
        return weight_limit(c, v)

    crossing = 0.6 * (1 - q) / (4 - 0.6 * q)
    assert limit(crossing - 1e-6) < 0.6 < limit(crossing + 1e-6)
    assert f"{crossing:.2f}" == f"{accuracy:.2f}" and f"{accuracy:.0%}".replace("%", " %") in TEXT


def test_adaptive_threshold_of_the_page():
    value = adaptive_threshold(torch.tensor([[1.0, 0.1, 0.1, 0.1]], dtype=torch.float64))
    assert f"{value:.2f}" in re.search(r"## Rewrites.*?\n## ", TEXT, re.DOTALL)[0]
