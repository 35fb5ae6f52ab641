"""The pinned versions against the Python that pyproject.toml promises."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from rlvr.doctor.packages import read_lock

ROOT = Path(__file__).parents[1]
OLDEST = "3.11.2"  # of the Pythons that pyproject.toml allows, the one that Debian 12 has


def test_the_project_allows_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert SpecifierSet(project["requires-python"]).contains(OLDEST)


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("constraints*.txt")))
def test_no_pin_refuses_it(name):
    """pip ends in a conflict otherwise, which names another package. Asked of what is installed here."""
    lock, seen, refused = read_lock((ROOT / name).read_text()), 0, {}
    for found in importlib.metadata.distributions():
        needs = found.metadata["Requires-Python"]
        if lock.get(found.name.lower().replace("_", "-")) == found.version.partition("+")[0]:
            seen += 1
            if needs and not SpecifierSet(needs).contains(OLDEST):
                refused[found.name] = needs
    assert seen > 20 and not refused


def test_no_pattern_repeats_a_group_possessively():
    """``(...)*+`` matches too little in Python 3.11.0 to 3.11.4 (gh-106052); ``(?>(...)*)`` says the same."""
    possessive = re.compile(r"\)(?:[*+?]|\{\d*,?\d*\})\+")
    assert possessive.search("(?:a|b)*+") and not possessive.search(r"(?>(?:a|b)*)\d++")
    sources = [*ROOT.glob("lib/**/*.py"), *ROOT.glob("pipelines/*.py")]
    assert len(sources) > 200
    assert not [path.name for path in sources if possessive.search(path.read_text())]
