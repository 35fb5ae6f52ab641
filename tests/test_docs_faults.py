"""The page of what goes wrong: each kind has a test that exists, or a reason to have none."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines import docs_faults
from rlvr.storage import write_text

PROJECT = Path(__file__).resolve().parents[1]
AREA = """area:
  title: One area
  kinds:
    first: {fault: One *thing*., effect: "Another | one.", seen: [owner/name#12, a script]}
    second: {fault: Two., effect: Three.}
"""
MARKED = """import pytest
pytestmark = [pytest.mark.slow, pytest.mark.verl]

@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.fault("first", "second")
def test_one(x): ...

def test_of_nothing(): ...
"""


@pytest.fixture
def project(tmp_path):
    """A project with two kinds and one marked test."""
    write_text(tmp_path / docs_faults.SOURCE, AREA)
    write_text(tmp_path / "tests/sub/test_it.py", MARKED)
    return tmp_path


def test_every_kind_of_the_project_is_held_off_or_out_of_scope():
    areas, tests = docs_faults.load_faults(PROJECT), docs_faults.marked_tests(PROJECT)
    docs_faults.check(areas, tests)
    kinds = {kind: fault for area in areas.values() for kind, fault in area.kinds.items()}
    assert len(kinds) > 60 and len(areas) > 5 and len(tests) > 80
    usual = {kind for test in tests if test.command is None for kind in test.kinds}
    assert {kind for kind, fault in kinds.items() if not fault.out_of_scope} == usual  # without verl or a GPU


@pytest.mark.slow
def test_tests_on_the_page_are_collected():
    """By pytest itself: that a name stands in a file does not make it a test."""
    text = (PROJECT / "docs/what-goes-wrong.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\[`(test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)(?! \(`make)", text))
    files = sorted({path for _, path in named})
    assert len(named) > 80 and len(files) > 20
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-o", "addopts=", *files]
    shown = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    collected = {(name, path) for path, name in re.findall(r"(?m)^(tests/[\w/]+\.py)::(test_\w+)", shown)}
    assert named - collected == set()


def test_a_kind_a_report_and_a_test_on_the_page(project):
    page = docs_faults.page(project)
    seen = "[owner/name#12](https://github.com/owner/name/issues/12)<br>a script"
    test = "[`test_one`](../tests/sub/test_it.py) (`make test-verl`)"
    assert "## One area" in page and "test_of_nothing" not in page
    assert rf"| One \*thing\*. | Another \| one. | {seen} | {test} |" in page
    assert f"| Two. | Three. |  | {test} |" in page


def test_a_kind_without_a_test_says_why(project):
    test = project / "tests/sub/test_it.py"
    test.write_text(MARKED.replace(', "second"', ""))
    with pytest.raises(ValueError, match=r"^second: no test is marked with it, and it is not out_of_scope$"):
        docs_faults.page(project)
    text = AREA.replace("effect: Three.", "effect: Three., out_of_scope: no such machine here")
    (project / docs_faults.SOURCE).write_text(text)
    assert "| Two. | Three. |  | out of scope: no such machine here |" in docs_faults.page(project)
    test.write_text(MARKED)
    with pytest.raises(ValueError, match=r"^second: out_of_scope, and yet a test is marked with it$"):
        docs_faults.page(project)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"second")', '"secnd")', "test_it.py, test_one: 'secnd' is no kind of data/faults.yaml"),
        ('fault("first", "second")', "fault()", "test_it.py, test_one: pytest.mark.fault needs the kinds"),
        ('fault("first", "second")', "fault", "test_it.py, test_one: pytest.mark.fault needs the kinds"),
        ('"second")', "7)", "test_it.py, test_one: pytest.mark.fault needs the kinds as texts"),
    ],
)
def test_a_wrong_mark_is_named(project, old, new, message):
    assert old in MARKED
    (project / "tests/sub/test_it.py").write_text(MARKED.replace(old, new))
    with pytest.raises(ValueError, match=re.escape(message)):
        docs_faults.page(project)


def test_a_wrong_catalogue_is_named(project):
    path = project / docs_faults.SOURCE
    path.write_text(AREA.replace("effect: Three.", "efect: Three."))
    with pytest.raises(ValueError, match=r"data/faults.yaml, area:\n.*kinds.second.effect"):
        docs_faults.page(project)
    path.write_text(AREA + AREA.replace("area:", "other:").replace("second", "third"))
    with pytest.raises(ValueError, match=r"there twice: first$"):
        docs_faults.page(project)
