"""nbval with our sanitising file: it passes on what may differ, and still fails on what may not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_output
from notebook_factory import PROJECT, environment, notebook, repository, write

SANITIZE = PROJECT / "notebooks/sanitize.cfg"


def sanitize(text: str) -> str:
    """What nbval does with the file: each pair in turn."""
    found = re.findall("^regex: (.*)$\n^replace: (.*)$", SANITIZE.read_text(), flags=re.MULTILINE)
    assert len(found) == SANITIZE.read_text().count("\nregex:")
    for pattern, replacement in found:
        text = re.sub(pattern, replacement, text)
    return text


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        ("made 2024-01-31 at 09:15:59", "made 2026-11-02 at 23:01:00.123"),
        ("<Axes at 0x7f3a12cd>", "<Axes at 0x55d0c0ffee00>"),
        ("took 12.3 s, 45 ms per step", "took 9 s, 51.22 ms per step"),
        ("1,234 tokens/s", "2.5e4 tokens/s"),
        ("in /tmp/a1b2/x.csv", "in /var/folders/zz/y.csv"),
        ("identity error 1.1e-16", "identity error -7e-14"),
        ("accuracy 0.12345", "accuracy 0.123489"),
        ("lr 1.23456e-05", "lr 1.23499e-05"),
        ("<td>-0.00001</td>", "<td>0.00002</td>"),
        ("#T_1a2b3 td {}", "#T_9f8e7 td {}"),
    ],
)
def test_what_may_differ_is_masked(stored, new):
    assert stored != new
    assert sanitize(stored) == sanitize(new)


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        ("accuracy 0.123", "accuracy 0.124"),
        ("accuracy 0.1234", "accuracy 0.1244"),
        ("effect -0.012", "effect 0.012"),
        ("40 steps", "41 steps"),
        ("3 seeds", "2 seeds"),
        ("n = 1024", "n = 1023"),
        ("identity error 1e-12", "identity error 1e-11"),
        ("identity error 1e-16", "identity error 1e-12"),
        ("lr 1e-05", "lr 1e-06"),
        ("supported", "contradicted"),
        ("colour 0x1f77", "colour 0xff7f"),
        ("5:3", "5:4"),
        ("runs/laptop/tmp/a", "runs/laptop/tmp/b"),
        ("T_max", "T_min"),
    ],
)
def test_what_may_not_differ_still_fails(stored, new):
    assert sanitize(stored) != sanitize(new)


def _with_outputs(*outputs: str):
    cells = [
        "print('accuracy', 0.1234999)",
        "print('took', 1.5, 's at 0x7f12ab34cd')",
        "print(list(range(3)))",
    ]
    book = notebook(*cells)
    for cell, text in zip(book.cells[3:6], outputs, strict=True):
        cell.outputs = [new_output("stream", name="stdout", text=text)]
    book.cells[-1].outputs = [new_output("stream", name="stdout", text="notebook complete\n")]
    for count, cell in enumerate(book.cells[1:], start=1):
        cell.execution_count = count  # nbval refuses outputs of a cell that never ran
    return book


def nbval(path: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "--color=no", "-q"]
    command += ["-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider"]
    command += ["--nbval-sanitize-with", str(SANITIZE), path.name]
    result = subprocess.run(
        command, cwd=path.parent, env=environment(), capture_output=True, text=True, timeout=120
    )
    return result.returncode, result.stdout + result.stderr


@pytest.mark.slow
def test_nbval_passes_on_masked_differences_and_fails_on_the_changed_one(tmp_path):
    root = repository(tmp_path / "repo")
    same = ("accuracy 0.1230001\n", "took 27.1 s at 0x55d0c0ffee00\n", "[0, 1, 2]\n")
    path = write(root / "notebooks/deep/tiny.ipynb", _with_outputs(*same))
    code, report = nbval(path)
    assert code == 0, report
    assert "6 passed" in report

    changed = ("accuracy 0.1240001\n", same[1], "[0, 1, 3]\n")
    write(path, _with_outputs(*changed))
    code, report = nbval(path)
    assert code == 1
    assert "2 failed, 4 passed" in report
    assert "Cell 2" in report and "Cell 4" in report


@pytest.mark.slow
def test_nbval_alone_passes_a_notebook_without_outputs_and_the_lint_does_not(tmp_path):
    """nbval compares with nothing if there is nothing; hence the lint's rule."""
    from pipelines.lint import lint

    root = repository(tmp_path / "repo")
    path = write(root / "notebooks/tiny.ipynb", notebook("import random\nprint(random.random())"))
    code, report = nbval(path)
    assert code == 0, report
    (problem,) = lint(path)
    assert problem[0] == 0
    assert problem[1].startswith("nbval would compare nothing")
    book = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells)
