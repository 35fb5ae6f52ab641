"""The examples of docs/statistics.md give what the page says."""

import doctest
import re
from pathlib import Path

from rlvr import evaluation

PAGE = Path(__file__).resolve().parents[2] / "docs" / "statistics.md"


def test_examples():
    text = re.sub(r"^```.*$", "", PAGE.read_text(), flags=re.MULTILINE)  # a fence would be read as output
    examples = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    assert len(examples.examples) > 25
    complaints: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(examples, out=complaints.append)
    assert result.failed == 0, "".join(complaints)


def test_functions_it_names_exist():
    named = set(re.findall(r"`(\w+)`|`(\w+)\(", PAGE.read_text()))
    names = {a or b for a, b in named} - {"Estimate", "k", "method", "rlvr", "verify_math"}
    assert len(names) > 10
    assert names <= set(evaluation.__all__), sorted(names - set(evaluation.__all__))
