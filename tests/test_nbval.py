"""nbval with our sanitising file: it passes on what may differ, and still fails on what may not."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from nbformat.v4 import new_output
from notebook_factory import PROJECT, environment, notebook, repository, write

from pipelines.lint import lint

SANITIZE = PROJECT / "notebooks/sanitize.cfg"


def sanitize(text: str) -> str:
    """What nbval does with the file: each pair in turn."""
    found = re.findall("^regex: (.*)$\n^replace: (.*)$", SANITIZE.read_text(), flags=re.MULTILINE)
    assert len(found) == SANITIZE.read_text().count("\nregex:")
    for pattern, replacement in found:
        text = re.sub(pattern, replacement, text)
    return text


@pytest.mark.fault("outputs-that-always-differ")
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


MASKED = "took 27.1 s at 0x55d0c0ffee00\n"


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """Three notebooks under nbval: {name: [PASSED or FAILED per code cell]}, and their folder."""
    folder = repository(tmp_path_factory.mktemp("repo")) / "notebooks/deep"
    write(folder / "same.ipynb", _with_outputs("accuracy 0.1230001\n", MASKED, "[0, 1, 2]\n"))
    write(folder / "changed.ipynb", _with_outputs("accuracy 0.1240001\n", MASKED, "[0, 1, 3]\n"))
    write(folder / "bare.ipynb", notebook("import random\nprint(random.random())"))
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "--color=no", "-v"]
    command += ["-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider"]
    command += ["--nbval-sanitize-with", str(SANITIZE), "."]
    result = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120
    )
    found = re.findall(r"(\w+)(?:\.|::)ipynb::Cell \d+ (PASSED|FAILED)", result.stdout)
    cells: dict[str, list[str]] = {}
    for name, verdict in found:
        cells.setdefault(name, []).append(verdict)
    assert len(cells) == 3, result.stdout + result.stderr
    return cells, folder


@pytest.mark.slow
def test_nbval_passes_on_masked_differences(verdicts):
    assert verdicts[0]["same"] == ["PASSED"] * 6


@pytest.mark.slow
def test_nbval_fails_on_exactly_the_cells_that_changed(verdicts):
    assert verdicts[0]["changed"] == ["PASSED", "PASSED", "FAILED", "PASSED", "FAILED", "PASSED"]


@pytest.mark.fault("nothing-stored-nothing-compared")
@pytest.mark.slow
def test_nbval_passes_a_notebook_without_outputs_and_the_lint_does_not(verdicts):
    """nbval compares with nothing if there is nothing; hence the lint's rule."""
    cells, folder = verdicts
    assert cells["bare"] == ["PASSED"] * 4
    ((cell, message),) = lint(folder / "bare.ipynb")
    assert cell == 0
    assert message.startswith("nbval would compare nothing")
    assert lint(folder / "same.ipynb") == [
        (
            5,
            "stored output shows an object, 'took 27.1 s at 0x55d0c0ffee00'; "
            "end the cell with `;` or print what matters",
        )
    ]
