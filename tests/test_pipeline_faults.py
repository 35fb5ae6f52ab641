"""Known faults of papermill, nbval, DVC and of reading results: each is impossible here, or caught."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from nbformat.v4 import new_output
from notebook_factory import PROJECT, environment, notebook, repository, write

from pipelines.execute import StageFailed, execute
from pipelines.lint import lint
from pipelines.request import BadInput, Request
from rlvr.config import load_scale, load_yaml
from rlvr.reporting.cells import NOT_MEASURED
from rlvr.reporting.table import Table


@pytest.fixture
def repo(tmp_path, monkeypatch):
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.chdir(repository(tmp_path / "repo"))
    return tmp_path / "repo"


def run(path: Path, given=(), **options) -> Path:
    return execute(Request(path, Path("runs/tiny/stage"), given, **options), stream=io.StringIO())


# --- papermill and resume -----------------------------------------------------------------------------------


@pytest.mark.fault("notebook-that-ends-early")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("raise SystemExit(0)", "cell 4 ended the notebook early with SystemExit(0)"),
        ("leave = exit\nleave()", "cell 4 called exit() or quit()"),
        (
            "import os\nend = getattr(os, '_' + 'exit')\nend(0)",
            "cell 4: the kernel died: it ended itself with exit",
        ),
        ("def done():\n    print('finished')", "cell 6: the completion marker is not in the output"),
    ],
    ids=["SystemExit", "exit", "os._exit", "no marker"],
)
def test_early_end_is_an_error(repo, cell, message):
    later = "from pathlib import Path\nPath(out, 'result').write_text('1');"
    with pytest.raises(StageFailed) as caught:
        run(write(repo / "n.ipynb", notebook(cell, later)))
    assert f"n.ipynb, {message}" in str(caught.value)
    assert not (repo / "runs").exists()


@pytest.mark.fault("failing-program-unseen")
@pytest.mark.parametrize("cell", ["!exit 3", "%%bash\nexit 3", "import os\nos.system('exit 3')"])
def test_shell_is_refused_by_the_runner(repo, cell):
    with pytest.raises(BadInput, match="its failure would not stop the notebook"):
        run(write(repo / "n.ipynb", notebook(cell)))


@pytest.mark.fault("failing-program-unseen")
@pytest.mark.slow
def test_program_that_fails_fails_the_notebook(repo):
    cell = "from rlvr.notebook import run\nrun(['sh', '-c', 'echo no luck; exit 3'])"
    with pytest.raises(StageFailed, match=r"cell 4 failed: RuntimeError: .*exited with code 3:\nno luck"):
        run(write(repo / "n.ipynb", notebook(cell)))


@pytest.mark.fault("unknown-parameter-ignored", "seed-that-goes-nowhere")
@pytest.mark.parametrize(("given", "right"), [("learning_rate", "lr_rate"), ("random_seed", "seed")])
def test_unknown_parameter_is_an_error_with_a_suggestion(repo, given, right):
    book = notebook(parameters='lr_rate = 1e-3\nseed = 0\nout = ".work/x"')
    with pytest.raises(BadInput, match=f"unknown parameter {given!r}; did you mean {right!r}?"):
        run(write(repo / "n.ipynb", book), [(given, "1")])


@pytest.mark.fault("parameters-overwritten")
def test_parameters_cell_must_be_tagged(repo):
    book = notebook()
    book.cells[2].metadata["tags"] = []
    with pytest.raises(BadInput, match="exactly one cell must be tagged `parameters`, found none"):
        run(write(repo / "n.ipynb", book), [("lr", "0.5")])


@pytest.mark.fault("two-meanings-of-an-expected-error")
def test_raises_exception_tag_is_refused_everywhere(repo):
    book = notebook("1 / 0")
    book.cells[3].metadata["tags"] = ["raises-exception"]
    path = write(repo / "n.ipynb", book)
    with pytest.raises(BadInput, match="4: tag `raises-exception` is not allowed"):
        run(path)
    assert any("tag `raises-exception`" in message for _, message in lint(path))


@pytest.mark.fault("resumed-run-that-does-nothing")
@pytest.mark.slow
def test_resumed_stage_that_does_nothing_is_an_error(repo):
    """A checkpoint from the very end: the loop has no step left, so its results are never written."""
    book = notebook(
        "from pathlib import Path\nstate = Path(scratch, 'step')\n"
        "first = int(state.read_text()) if state.exists() else 0\n"
        "for step in range(first, 2):\n"
        "    state.write_text(str(step + 1))\n"
        "    Path(out, 'metrics').write_text(str(step))\n"
        "assert first or not crash",
        parameters='crash = True\nout = ".work/x"\nscratch = ".work/y"',
    )
    path = write(repo / "n.ipynb", book)
    with pytest.raises(StageFailed, match="cell 4 failed: AssertionError"):
        run(path, expect=["metrics"])
    with pytest.raises(StageFailed, match="ran to its end, but of the expected outputs metrics is missing"):
        run(path, expect=["metrics"])
    assert not (repo / "runs").exists()


# --- nbval --------------------------------------------------------------------------------------------------


def _stored(tmp_path, *outputs, cell="print('x')"):
    book = notebook(cell, "print('accuracy 0.5')")
    book.cells[3].outputs = list(outputs)
    return lint(write(tmp_path / "n.ipynb", book))


@pytest.mark.fault("nothing-stored-nothing-compared")
def test_notebook_without_outputs_is_a_problem(tmp_path):
    ((_, message),) = _stored(tmp_path)
    assert message.startswith("nbval would compare nothing")


@pytest.mark.fault("outputs-that-always-differ")
@pytest.mark.parametrize("text", ["<object object at 0x7f12ab34cd>", "Text(0.5, 91.2, 'Longitude')"])
def test_unstable_outputs_are_a_problem(tmp_path, text):
    problems = _stored(tmp_path, new_output("execute_result", data={"text/plain": text}))
    assert [message[:28] for _, message in problems] == ["stored output shows an objec"]


@pytest.mark.fault("slow-outputs")
def test_widgets_and_bars_are_a_problem(tmp_path):
    stored = new_output("stream", name="stdout", text="x\n")
    for cell in ("from tqdm.notebook import tqdm", "from tqdm.auto import tqdm", "import ipywidgets"):
        ((_, message),) = _stored(tmp_path, stored, cell=cell)
        assert message.startswith("import of ")


# --- DVC ----------------------------------------------------------------------------------------------------


def dvc(folder: Path, *words: str, check: bool = True, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "dvc", *words]
    result = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, **options
    )
    assert not check or result.returncode == 0, result.stdout + result.stderr
    return result


LR = notebook(
    "import json\nfrom pathlib import Path\nfrom rlvr.config import load_scale\n"
    "lr = load_scale(params_file).train.lr\n"
    "Path(out, 'lr.json').write_text(json.dumps([type(lr).__name__, lr]));",
    parameters='params_file = "params.yaml"\nout = ".work/x"',
)
LR_GRAPH = """
stages:
  lr:
    wdir: ${root}
    cmd: >-
      python -m pipelines.stage n.ipynb --out runs/${scale}/lr -p params_file ${scale_file}
      --expect lr.json
    deps: [n.ipynb]
    params:
      - ${scale_file}: [train.lr]
    outs:
      - runs/${scale}/lr
"""


def _set_lr(root: Path, written: str) -> None:
    text = (PROJECT / "params.yaml").read_text()
    before, after = text.split("\ntrain:\n")
    after = re.sub(r"(?m)^  lr: .*$", f"  lr: {written}", after, count=1)
    (root / "params.yaml").write_text(f"{before}\ntrain:\n{after}")


@pytest.mark.fault("number-that-is-a-string", "same-value-other-type", "stale-results")
@pytest.mark.slow
def test_rate_is_the_same_float_for_dvc_and_the_stage_however_it_is_written(tmp_path):
    root = repository(tmp_path / "repo", LR_GRAPH)
    write(root / "n.ipynb", LR)
    dvc(root, "init", "--no-scm", "-q")
    result = root / "runs/laptop/lr/lr.json"

    def locked():
        lock = load_yaml(root / "dvc.lock")
        return lock["stages"]["lr"]["params"]["params.yaml"]["train.lr"]

    _set_lr(root, "1e-6")
    dvc(root, "repro")
    assert json.loads(result.read_text()) == ["float", 1e-6]
    assert (locked(), type(locked())) == (1e-6, float)

    _set_lr(root, "1.0e-6")  # the same for DVC, so it had better be the same for the stage
    report = dvc(root, "repro").stdout
    assert "didn't change, skipping" in report
    assert load_scale(root / "params.yaml").train.lr == json.loads(result.read_text())[1]

    _set_lr(root, "2e-6")  # another value: the output follows
    dvc(root, "repro")
    assert json.loads(result.read_text()) == ["float", 2e-6]

    _set_lr(root, "1e-6")  # and back, from DVC's cache of earlier runs
    report = dvc(root, "repro").stdout
    assert "is cached - skipping run" in report
    assert json.loads(result.read_text()) == ["float", 1e-6]


@pytest.mark.fault("override-with-another-type")
def test_overridden_values_keep_their_type(tmp_path):
    """`dvc exp run -S` writes the file with this function; negative numbers are numbers."""
    hydra = pytest.importorskip("dvc.utils.hydra")
    path = shutil.copy(PROJECT / "params.yaml", tmp_path / "params.yaml")
    hydra.apply_overrides(
        path, ["train.steps=2", "train.lr=1e-6", "theory.seed=-1", "train.loss_agg_mode=no"]
    )
    scale = load_scale(path)
    read = [scale.train.steps, scale.train.lr, scale.theory.seed, scale.train.loss_agg_mode]
    assert read == [2, 1e-6, -1, "no"]
    assert [type(value) for value in read] == [int, float, int, str]


SLOW = notebook(
    "import time\nfrom pathlib import Path\n"
    "log = Path(scratch, 'log')\n"
    "done_before = len(log.read_text()) if log.exists() else 0\n"
    "for step in progress(range(done_before, 20), 'train'):\n"
    "    time.sleep(0.05 if done_before else 1.5)\n"  # the second `dvc` takes seconds on a busy machine
    "    log.open('a').write(str(step % 10))\n"
    "Path(out, 'result').write_text(log.read_text());",
    parameters='out = ".work/x"\nscratch = ".work/y"',
)
SLOW_GRAPH = """
stages:
  slow:
    cmd: python -m pipelines.stage n.ipynb --out runs/tiny/slow --expect result
    deps: [n.ipynb]
    outs: [runs/tiny/slow]
"""


def _wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


@pytest.mark.fault("two-runs-at-once")
@pytest.mark.slow
def test_second_run_is_refused_and_a_killed_one_goes_on_where_it_was(tmp_path):
    root = repository(tmp_path / "repo", SLOW_GRAPH)
    write(root / "n.ipynb", SLOW)
    dvc(root, "init", "--no-scm", "-q")
    command = [sys.executable, "-m", "dvc", "repro"]
    first = subprocess.Popen(command, cwd=root, env=environment(), stderr=subprocess.PIPE, text=True)

    def log():
        found = list(root.glob(".work/partial/*/*/log"))
        return found[0].read_text() if found else ""

    _wait_for(lambda: len(log()) >= 2, 60)
    second = dvc(root, "repro", check=False)
    assert second.returncode != 0
    assert "is busy, it is being blocked by" in second.stderr
    assert first.poll() is None
    assert not (root / "runs/tiny/slow").exists()

    first.send_signal(signal.SIGKILL)
    first.wait()
    time.sleep(1)
    stopped = log()
    time.sleep(2)
    assert log() == stopped  # nothing goes on without DVC
    assert 2 <= len(stopped) < 20

    dvc(root, "repro")
    assert (root / "runs/tiny/slow/result").read_text() == "01234567890123456789"
    assert json.loads((root / "runs/tiny/timings/slow.json").read_text())["resumed"] is True
    report = dvc(root, "repro").stdout
    assert "didn't change, skipping" in report


# --- reading results ----------------------------------------------------------------------------------------


@pytest.mark.fault("default-shown-as-measured")
def test_no_result_is_not_a_number():
    columns = ["pass@1"]
    arms = pd.Index(["grpo", "nfpo"], name="arm")
    table = Table.from_frame(pd.DataFrame([[NOT_MEASURED], [NOT_MEASURED]], index=arms, columns=columns))
    assert table.markdown().count("not measured") == 2
    assert not re.search(r"\d\.\d", table.markdown())
    for nothing in (float("nan"), None, 1.0):
        with pytest.raises(ValueError, match="nfpo"):
            Table.from_frame(
                pd.DataFrame([[NOT_MEASURED], [nothing]], index=arms, columns=columns, dtype=object)
            )
    with pytest.raises(ValueError, match="NOT_MEASURED"):
        Table.from_frame(pd.DataFrame(columns=columns))
