"""The strict notebook runner: parameters, order of events, failures, resuming, bytes, processes."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_output
from notebook_factory import environment, notebook, repository, write

from pipelines.environment import of_kernels
from pipelines.execute import StageFailed, execute
from pipelines.normalise import mask, merge_streams, normalise, secrets
from pipelines.parameters import Kind, declared, parse, resolve
from pipelines.processes import Busy, exclusive
from pipelines.progress import Loop, Reporter, seconds_left
from pipelines.request import BadInput, Request, check
from pipelines.stage import main, parse_arguments

SCRATCH = 'scratch = ".work/notebooks/scratch"\n'


@pytest.fixture
def repo(tmp_path, monkeypatch):
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.chdir(repository(tmp_path / "repo"))
    return tmp_path / "repo"


def run(path: Path, out: str = "runs/tiny/stage", given=(), **options) -> Path:
    return execute(Request(path, Path(out), given, **options), stream=io.StringIO())


# --- parameters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "kind", "default"),
    [
        ("steps = 40", Kind("int"), 40),
        ("shift = -1", Kind("int"), -1),
        ("lr = 1e-6", Kind("float"), 1e-6),
        ("lr: float = 1", Kind("float"), 1.0),
        ("arm = 'nfpo'", Kind("str"), "nfpo"),
        ("fast = False", Kind("bool"), False),
        ("horizons = [1, 2]", Kind("int", is_list=True), [1, 2]),
        ("clip = [1, 1.4]", Kind("float", is_list=True), [1.0, 1.4]),
        ("names: list[str] = []", Kind("str", is_list=True), []),
        ("limit: int | None = None", Kind("int", optional=True), None),
        ("names: list[str] | None = None", Kind("str", is_list=True, optional=True), None),
    ],
)
def test_declared_types(line, kind, default):
    (parameter,) = declared(notebook(parameters=line)).values()
    assert (parameter.kind, parameter.default) == (kind, default)
    assert type(parameter.default) is type(default)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import os", "only assignments"),
        ("a = b = 1", "only assignments"),
        ("a, b = 1, 2", "only assignments"),
        ("lr = 2 * 3", "must be a literal"),
        ("pair = (1, 2)", "pair has type tuple"),
        ("table = {}", "table has type dict"),
        ("nothing = None", "nothing has type NoneType"),
        ("horizons = []", "annotate it, e.g. `horizons: list\\[int\\] = \\[\\]`"),
        ("mixed = [1, 'a']", "cannot tell what mixed is a list of"),
        ("steps: int = 1.5", "default of steps, 1.5, is not of type int"),
        ("steps: dict = {}", "annotation `dict` is not supported"),
        ("a = 1\na = 2", "a is assigned twice"),
        ("a = ", "invalid syntax"),
    ],
)
def test_parameters_cell_holds_literals_only(source, message):
    with pytest.raises(ValueError, match=message) as caught:
        declared(notebook(parameters=source))
    assert "cell 3" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("1e-6", "float", 1e-6),  # PyYAML reads a string here
        ("1.0e-6", "float", 1e-6),
        ("-1e-6", "float", -1e-6),
        ("2", "float", 2.0),
        ("2.0", "int", 2),  # as the scale files: DVC takes 2 and 2.0 for the same value
        ("-1", "int", -1),
        ("010", "int", 10),  # YAML 1.1 reads 8
        ("true", "bool", True),
        ("no", "str", "no"),
        ("1e-6", "str", "1e-6"),
        ("", "str", ""),
    ],
)
def test_values_are_yaml_1_2_and_typed(text, kind, value):
    parsed = parse("x", text, Kind(kind))
    assert parsed == value
    assert type(parsed) is type(value)


def test_list_and_optional_values():
    assert parse("x", "[1, 2.0]", Kind("int", is_list=True)) == [1, 2]
    assert parse("x", "null", Kind("int", optional=True)) is None
    assert parse("x", "null", Kind("str", optional=True)) is None
    assert parse("x", "null", Kind("str")) == "null"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("2.5", Kind("int")),
        ("true", Kind("int")),
        ("abc", Kind("float")),
        ("1", Kind("bool")),
        ("yes", Kind("bool")),
        (".nan", Kind("float")),
        (".inf", Kind("float")),
        ("nan", Kind("float")),
        ("", Kind("int")),
        ("null", Kind("int")),
        ("1", Kind("int", is_list=True)),
        ("[1, x]", Kind("int", is_list=True)),
        ("[1", Kind("int", is_list=True)),
        ("2024-01-01", Kind("int")),
    ],
)
def test_wrong_type_names_parameter_value_and_type(text, kind):
    with pytest.raises(ValueError) as caught:
        parse("steps", text, kind)
    for part in ("'steps'", repr(text), str(kind)):
        assert part in str(caught.value)


def test_unknown_parameter_suggests_the_nearest_and_all_problems_come_at_once():
    parameters = declared(notebook(parameters="learning_rate = 1e-3\nseed = 0\nout = '.work/x'"))
    with pytest.raises(ValueError) as caught:
        resolve(
            parameters,
            [("learning_rat", "1"), ("seed", "x"), ("seed", "1"), ("out", "a"), ("zzz", "1")],
            notebook="n.ipynb",
        )
    lines = str(caught.value).splitlines()
    assert "unknown parameter 'learning_rat'; did you mean 'learning_rate'? n.ipynb declares" in lines[0]
    assert "parameter 'seed' = 'x' is not of type int" in lines[1]
    assert "set by the runner; use --out" in lines[2]
    assert "did you mean" not in lines[3]
    assert "out" not in lines[3].split("declares")[1]


def test_command_line_takes_values_that_look_like_options():
    args = parse_arguments("n.ipynb --out runs/a/b -p lr -1e-6 -p name --out -p seed -1 --dep d".split())
    assert args.parameters == [("lr", "-1e-6"), ("name", "--out"), ("seed", "-1")]
    assert (args.out, args.dep) == (Path("runs/a/b"), [Path("d")])
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["n.ipynb", "--out", "runs/a/b", "-p", "lr"])
    assert caught.value.code == 2


# --- what is refused before anything runs -------------------------------------------------------------------


def _with_tag(tag):
    book = notebook("1")
    book.cells[3].metadata["tags"] = [tag]
    return book


@pytest.mark.parametrize(
    ("book", "message"),
    [
        (notebook(parameters=None), "exactly one cell must be tagged `parameters`, found none"),
        (_with_tag("parameters"), "exactly one cell must be tagged `parameters`, found cells 3, 4"),
        (notebook(parameters="seed = 0"), "must declare its output folder"),
        (notebook(parameters="out = 1"), "`out` must be a str"),
        (notebook(first="import os"), "2: the first code cell must call start()"),
        (notebook(last="print(1)"), "4: the last code cell must end with done()"),
        (notebook("done()"), "4: done() belongs into the last code cell only"),
        (notebook("print('notebook complete')"), "only done() prints"),
        (notebook("!exit 3"), "shell command `!exit 3` is not allowed"),
        (notebook("files = !ls"), "shell command `!ls` is not allowed"),
        (notebook("%%bash\nexit 3"), "cell magic `%%bash` is not allowed"),
        (notebook("%system false"), "magic `%system` is not allowed"),
        (notebook("get_ipython().system('false')"), "shell command `!false` is not allowed"),
        (notebook("import os\nos.system('false')"), "shell command `!false` is not allowed"),
        (notebook("exit()"), "4: exit() is not allowed"),
        (notebook("import os\nos._exit(0)"), "4: _exit() is not allowed"),
        (notebook("import sys\nsys.exit(0)"), "4: exit() is not allowed"),
        (notebook("if True print(1)"), "4: not valid Python"),
        (_with_tag("raises-exception"), "4: tag `raises-exception` is not allowed"),
        (_with_tag("skip-execution"), "4: tag `skip-execution` is not allowed"),
    ],
)
def test_notebooks_that_are_refused(repo, book, message):
    path = write(repo / "notebooks/n.ipynb", book)
    with pytest.raises(BadInput) as caught:
        run(path)
    assert message in str(caught.value)
    assert not (repo / ".work").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out": "runs"}, "at least two folders"),
        ({"out": "../elsewhere/x"}, "lies outside the repository"),
        ({"out": "runs/tiny/a b"}, "named with letters, digits"),
        ({"out": "notebooks/n.ipynb"}, "exists and is not a folder"),
        ({"deps": [Path("runs/base")]}, "--dep runs/base does not exist"),
        ({"expect": ["/etc/passwd"]}, "must be a path inside the output folder"),
        ({"expect": ["../x"]}, "must be a path inside the output folder"),
        ({"given": [("sed", "1")]}, "did you mean 'seed'?"),
        ({"given": [("params_file", "nowhere.yaml")]}, "scale file .*nowhere.yaml does not exist"),
        ({"given": [("params_file", "bad.yaml")]}, "sclae.*Extra inputs"),
    ],
)
def test_requests_that_are_refused(repo, options, message):
    (repo / "bad.yaml").write_text("sclae: laptop\n")
    book = notebook(parameters='seed = 0\nparams_file = "params.yaml"\nout = ".work/x"')
    path = write(repo / "notebooks/n.ipynb", book)
    with pytest.raises(BadInput, match=message):
        run(path, **options)


def test_missing_or_broken_notebook_and_missing_repository(repo, tmp_path, monkeypatch):
    with pytest.raises(BadInput, match="does not exist"):
        run(Path("notebooks/n.ipynb"))
    broken = repo / "n.ipynb"
    broken.write_text("{")
    with pytest.raises(BadInput, match="not a readable notebook"):
        run(broken)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"no dvc.yaml"):
        run(broken)


def test_command_line_exit_code_for_bad_input(repo, capsys):
    write(repo / "n.ipynb", notebook())
    assert main(["n.ipynb", "--out", "runs/a/b", "-p", "sed", "1"]) == 2
    assert capsys.readouterr().err.startswith("error: unknown parameter 'sed'; did you mean 'seed'?")


# --- a run that succeeds ------------------------------------------------------------------------------------

GOOD = notebook(
    "import os, sys\nfrom pathlib import Path\n"
    "print(f'lr={lr!r} seed={seed!r}')\n"
    "print('a warning', file=sys.stderr)\n"
    "print(Path(out).resolve(), scratch)\n"
    "print('secret', os.environ['MY_API_TOKEN'])\n"
    "print(set('abcdef'), object())\n"
    "Path(out, 'lr.txt').write_text(repr(lr));",
    "import matplotlib.pyplot as plt\nimport pandas as pd\n"
    "plt.plot([1, 2]);\n"
    "pd.DataFrame({'x': [1.23456789]}).style.format(precision=3)",
    "import time\nfor _ in progress(range(3), 'loop'):\n    time.sleep(0.15)\n"
    "from tqdm import tqdm\nfor _ in tqdm(range(3)):\n    pass",
    parameters='seed = 0\nlr = 1e-3\nout = ".work/x"\n' + SCRATCH,
)


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """The same stage run twice, in two repositories; returns roots and the bytes of both notebooks."""
    results = []
    for name in ("one", "another-place"):
        root = repository(tmp_path_factory.mktemp(name))
        write(root / "notebooks/good.ipynb", GOOD)
        (root / "runs/tiny/stage").mkdir(parents=True)
        (root / "runs/tiny/stage/stale.txt").write_text("from before")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MY_API_TOKEN", "hf_abcdefgh")
            patch.delenv("DVC_STAGE", raising=False)
            patch.chdir(root)
            stream = io.StringIO()
            request = Request(
                Path("notebooks/good.ipynb"),
                Path("runs/tiny/stage"),
                [("lr", "1e-6"), ("seed", "2.0")],
                expect=["lr.txt"],
            )
            execute(request, stream)
        results.append((root, stream.getvalue()))
    return results


@pytest.mark.slow
def test_same_inputs_give_the_same_bytes(twice):
    (one, _), (other, _) = twice
    first = (one / "runs/tiny/stage/notebook.ipynb").read_bytes()
    assert first == (other / "runs/tiny/stage/notebook.ipynb").read_bytes()
    assert b"image/png" in first
    assert b"<style" in first


@pytest.mark.slow
def test_executed_notebook_says_what_ran_and_nothing_private(twice):
    root, _ = twice[0]
    text = (root / "runs/tiny/stage/notebook.ipynb").read_text()
    for absent in ("hf_abcdefgh", ".work/stage", str(root), "papermill", "0x7f", "it/s]"):
        assert absent not in text
    book = nbformat.reads(text, as_version=4)
    printed = "".join(o.text for c in book.cells if c.cell_type == "code" for o in c.outputs if "text" in o)
    assert "lr=1e-06 seed=2\n" in printed
    assert "runs/tiny/stage .work/partial/runs__tiny__stage\n" in printed
    assert "secret <MY_API_TOKEN masked>\n" in printed
    assert "object object at 0x0>" in printed
    assert [c.id for c in book.cells] == [f"cell-{i:02d}" for i in range(1, 9)]
    counts = [c.execution_count for c in book.cells if c.cell_type == "code"]
    assert counts == list(range(1, 8))


@pytest.mark.slow
def test_output_folder_is_replaced_as_a_whole_and_nothing_is_left_over(twice):
    root, log = twice[0]
    out = root / "runs/tiny/stage"
    assert sorted(p.name for p in out.iterdir()) == ["lr.txt", "notebook.ipynb"]
    assert (out / "lr.txt").read_text() == "1e-06"
    assert not (root / ".work/stage/runs__tiny__stage").exists()
    assert not (root / ".work/partial/runs__tiny__stage").exists()
    timing = json.loads((root / "runs/tiny/timings/stage.json").read_text())
    assert timing["out"] == "runs/tiny/stage"
    assert timing["parameters"] == {"lr": 1e-6, "seed": 2}
    assert timing["resumed"] is False
    assert len(timing["cell_seconds"]) == 7
    assert 0.4 < timing["cell_seconds"][5] < timing["seconds"]
    assert log.splitlines()[-1].startswith("notebooks/good.ipynb -> runs/tiny/stage: done in ")


# --- runs that fail -----------------------------------------------------------------------------------------


@pytest.mark.fault("secret-in-a-log")
@pytest.mark.slow
def test_failure_names_cell_line_and_library_hides_secrets_and_leaves_no_output(repo, monkeypatch, capsys):
    monkeypatch.setenv("MY_PASSWORD", "swordfish")
    half = "from pathlib import Path\nPath(out, 'a').write_text('half');"
    cell = (
        "import os\nfrom rlvr.storage import read_json\n\n"
        "def load(name):\n    return read_json(name)\n\n"
        "load(os.environ['MY_PASSWORD'])"
    )
    write(repo / "n.ipynb", notebook(half, cell))
    assert main(["n.ipynb", "--out", "runs/tiny/stage"]) == 1
    error = capsys.readouterr().err
    lines = error.splitlines()
    assert lines[0].startswith("error: n.ipynb, cell 5 failed: FileNotFoundError: ")
    assert lines[0].endswith("'<MY_PASSWORD masked>'")
    assert lines[1] == "    line 7: load(os.environ['MY_PASSWORD'])"
    assert lines[2] == "    line 5: return read_json(name)"
    assert "in read_json, lib/rlvr/storage.py:" in lines[3]
    assert lines[-1] == "The notebook up to there: .work/failed/runs__tiny__stage.ipynb"
    assert len(lines) <= 8
    assert not (repo / "runs").exists()
    failed = nbformat.read(repo / ".work/failed/runs__tiny__stage.ipynb", as_version=4)
    assert [c.source for c in failed.cells][-2:] == [cell, "done()"]
    assert "swordfish" not in error + nbformat.writes(failed)


@pytest.mark.slow
def test_missing_or_empty_expected_output_keeps_nothing(repo):
    path = write(repo / "n.ipynb", notebook("from pathlib import Path\nPath(out, 'a.csv').touch()"))
    with pytest.raises(StageFailed, match=r"a.csv is empty; metrics is missing \(it wrote a.csv\)"):
        run(path, expect=["a.csv", "metrics"])
    assert not (repo / "runs").exists()


# --- unfinished work ----------------------------------------------------------------------------------------

RESUMING = notebook(
    "from pathlib import Path\n"
    "log = Path(scratch, 'log')\n"
    "before = log.read_text() if log.exists() else ''\n"
    "log.write_text(before + 'x')\n"
    "assert before or not crash, 'first attempt'\n"
    "Path(out, 'attempts').write_text(log.read_text());",
    parameters='crash = True\nbase = "runs/tiny/base"\nout = ".work/x"\n' + SCRATCH,
)


@pytest.mark.slow
def test_scratch_survives_a_failure_and_is_used_by_the_same_request_only(repo):
    path = write(repo / "n.ipynb", RESUMING)
    base = repo / "runs/tiny/base/weights"
    base.parent.mkdir(parents=True)
    base.write_text("1")
    partial = repo / ".work/partial/runs__tiny__stage"

    with pytest.raises(StageFailed, match="the same command goes on from it"):
        run(path, deps=[Path("runs/tiny/base")])
    (kept,) = partial.iterdir()
    assert (kept / "log").read_text() == "x"

    base.write_text("2")  # another base model: start anew
    with pytest.raises(StageFailed, match="first attempt"):
        run(path, deps=[Path("runs/tiny/base")])
    (other,) = partial.iterdir()
    assert other.name != kept.name

    run(path, deps=[Path("runs/tiny/base")])
    assert (repo / "runs/tiny/stage/attempts").read_text() == "xx"
    assert json.loads((repo / "runs/tiny/timings/stage.json").read_text())["resumed"] is True
    assert not partial.exists()
    assert not list((repo / ".work/failed").iterdir())


def test_fingerprint_covers_values_sources_parameters_and_inputs(repo):
    def partial(**changes):
        given = changes.pop("given", [("base", "runs/tiny/base")])
        return check(Request(path, Path("runs/tiny/stage"), given, **changes)).partial

    path = write(repo / "n.ipynb", RESUMING)
    base = repo / "runs/tiny/base"
    base.mkdir(parents=True)
    (base / "weights").write_text("1")
    (repo / "extra").write_text("1")
    first = partial()
    assert partial() == first
    assert partial(given=[("base", "runs/tiny/base"), ("crash", "false")]) != first
    with_dep = partial(deps=[Path("extra")])
    assert with_dep != first
    (repo / "extra").write_text("2")
    assert partial(deps=[Path("extra")]) != with_dep
    (base / "weights").write_text("2")  # named by a parameter, so covered without --dep
    changed = partial()
    assert changed != first
    book = nbformat.read(path, as_version=4)
    book.cells[0].source = "# Another heading"
    write(path, book)
    assert partial() == changed
    book.cells[3].source += "\npass"
    write(path, book)
    assert partial() != changed


# --- processes ----------------------------------------------------------------------------------------------


def test_lock_is_exclusive_and_says_who_holds_it(tmp_path):
    path = tmp_path / "locks/a.lock"
    with exclusive(path, "runs/a", wait=0):
        with pytest.raises(
            Busy, match=rf"runs/a is being made by process {os.getpid()}, which started at 20"
        ):
            with exclusive(path, "runs/a", wait=0.3):
                pass
    with exclusive(path, "runs/a", wait=0):
        pass


def test_busy_output_is_exit_code_1_and_nothing_runs(repo, monkeypatch, capsys):
    write(repo / "n.ipynb", notebook())
    monkeypatch.setattr("pipelines.execute.LOCK_WAIT", 0.1)
    with exclusive(repo / ".work/locks/runs__tiny__stage.lock", "runs/tiny/stage", wait=0):
        assert main(["n.ipynb", "--out", "runs/tiny/stage"]) == 1
    assert "error: runs/tiny/stage is being made by process" in capsys.readouterr().err
    assert not (repo / "runs").exists()
    assert not (repo / ".work/stage").exists()


SLEEPING = notebook(
    "import multiprocessing, os, time\nfrom pathlib import Path\n"
    "worker = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))\n"
    "worker.start()\n"
    "Path('pids').write_text(f'{os.getpid()} {worker.pid}')\n"
    "time.sleep(60)"
)


def _wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def sleeping(repo):
    """A runner in the middle of a cell; gives the runner and the pids of kernel and worker."""
    write(repo / "n.ipynb", SLEEPING)
    command = [sys.executable, "-m", "pipelines.stage", "n.ipynb", "--out", "runs/tiny/stage"]
    runner = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    pids = repo / "pids"
    assert _wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2, 60)
    kernel, worker = map(int, pids.read_text().split())
    yield runner, kernel, worker
    for pid in (runner.pid, kernel, worker):
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)
    runner.communicate()


@pytest.mark.slow
def test_killed_runner_takes_kernel_and_workers_with_it(sleeping, repo):
    runner, kernel, worker = sleeping
    runner.kill()
    assert _wait_for(lambda: not _alive(kernel) and not _alive(worker), 5)
    assert not (repo / "runs").exists()
    with exclusive(repo / ".work/locks/runs__tiny__stage.lock", "it", wait=5):
        pass  # the lock is free again


@pytest.mark.slow
def test_killed_kernel_is_an_error_and_takes_its_workers_with_it(sleeping, repo):
    runner, kernel, worker = sleeping
    os.kill(kernel, signal.SIGKILL)
    _, error = runner.communicate(timeout=20)
    assert runner.returncode == 1
    assert "cell 4: the kernel died: killed by SIGKILL" in error
    assert _wait_for(lambda: not _alive(worker), 5)
    assert not (repo / "runs").exists()


@pytest.mark.parametrize("shell", ["", "sh -c"], ids=["direct", "through a shell"])
def test_runner_dies_with_dvc(tmp_path, shell):
    child = (
        "import os, pathlib, time; from pipelines.processes import die_with_dvc; die_with_dvc(); "
        "pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(60)"
    )
    (tmp_path / "child.py").write_text(child)
    command = f"{sys.executable} child.py"
    words = ["sh", "-c", f"{command}; true"] if shell else command.split()
    dvc = f"import subprocess; subprocess.run({words!r})"
    parent = subprocess.Popen(
        [sys.executable, "-c", dvc], cwd=tmp_path, env=environment(DVC_STAGE="train@nfpo-0")
    )
    pid_file = tmp_path / "pid"
    assert _wait_for(lambda: pid_file.exists() and pid_file.read_text(), 20)
    pid = int(pid_file.read_text())
    assert _alive(pid)
    parent.kill()
    parent.wait()
    assert _wait_for(lambda: not _alive(pid), 3)


def test_a_killed_tracker_is_not_told_of_in_a_notebook():
    """Nothing of ours depends on it, and the warning would be in the published bytes."""
    program = (
        "import multiprocessing.resource_tracker as tracker, os, signal, warnings\n"
        "tracker.ensure_running(); pid = tracker._resource_tracker._pid\n"
        "os.kill(pid, signal.SIGKILL); os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)\n"
        "tracker.ensure_running(); assert tracker._resource_tracker._pid != pid; warnings.warn('another')"
    )
    given = dict(os.environ) | {"PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=of_kernels(given), capture_output=True, text=True, check=True
    )
    assert "another" in done.stderr and "tracker: process died" not in done.stderr


def test_runner_started_by_hand_outlives_its_shell(tmp_path):
    (tmp_path / "child.py").write_text(
        "import os, pathlib, time; from pipelines.processes import die_with_dvc; die_with_dvc(); "
        "pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(3)"
    )
    starter = f"import subprocess; subprocess.Popen([{sys.executable!r}, 'child.py'])"
    subprocess.run([sys.executable, "-c", starter], cwd=tmp_path, env=environment(), check=True)
    pid_file = tmp_path / "pid"
    assert _wait_for(lambda: pid_file.exists() and pid_file.read_text(), 20)
    time.sleep(0.6)
    assert _alive(int(pid_file.read_text()))


# --- bytes --------------------------------------------------------------------------------------------------


def test_secrets_are_found_by_name_and_masked_in_every_form():
    hidden = secrets(
        {
            "HF_TOKEN": "hf_abcdef",
            "my_secret": "a&b<c>d",
            "SSH_KEY": "first-line\nsecond-line",
            "TOKENIZERS_PARALLELISM": "false",  # a setting, not a secret
            "HOME": "/home/someone",
        }
    )
    text = "hf_abcdef a&b<c>d a&amp;b&lt;c&gt;d second-line false /home/someone"
    assert mask(text, hidden) == (
        "<HF_TOKEN masked> <my_secret masked> <my_secret masked> <SSH_KEY masked> false /home/someone"
    )


def test_longer_secret_wins_over_the_one_inside_it():
    hidden = secrets({"A_TOKEN": "abcdef", "B_TOKEN": "abcdefgh"})
    assert mask("abcdefgh abcdef", hidden) == "<B_TOKEN masked> <A_TOKEN masked>"


def test_streams_are_joined_however_they_were_cut():
    def stream(name, text):
        return new_output("stream", name=name, text=text)

    picture = new_output("display_data", data={"text/plain": "x"})
    cut = [
        stream("stderr", "e1"),
        stream("stdout", "a"),
        stream("stdout", "b"),
        picture,
        stream("stdout", "c"),
    ]
    whole = [stream("stdout", "ab"), stream("stderr", "e1"), picture, stream("stdout", "c")]
    assert merge_streams(cut) == whole
    assert merge_streams(whole) == whole


def test_normalise_removes_times_ids_and_addresses():
    book = notebook("1")
    for index, cell in enumerate(book.cells):
        cell.id = f"random{index}"
        cell.metadata["papermill"] = {"duration": 1.5}
        cell.metadata["execution"] = {"iopub.execute_input": "2024-01-01"}
    book.metadata.update(widgets={"x": 1}, language_info={"name": "python", "version": "3.11.7"})
    book.cells[3].execution_count = 17
    html = "<style>#T_1a2b3 td {}</style><table id='T_1a2b3'><td id='T_1a2b3_row0'>T_shirt</td></table>"
    book.cells[3].outputs = [
        new_output(
            "execute_result",
            data={"text/html": html, "text/plain": "<A at 0x7f12ab34cd>"},
            execution_count=17,
        )
    ]
    before = nbformat.writes(book)
    clean = normalise(book, replacements={}, hidden={})
    assert nbformat.writes(book) == before
    (output,) = clean.cells[3].outputs
    assert output.data["text/html"] == html.replace("1a2b3", "00000")
    assert output.data["text/plain"] == "<A at 0x0>"
    assert (clean.cells[3].execution_count, output.execution_count) == (1, 1)
    text = nbformat.writes(clean)
    for absent in ("random", "papermill", "2024", "3.11.7", "widgets"):
        assert absent not in text


# --- progress -----------------------------------------------------------------------------------------------


def test_time_left_from_the_loop_and_from_an_earlier_run():
    loop = Loop("train", first=0, done=10, total=40, seconds=20.0)
    assert seconds_left(2, 20.0, 5, None, loop) == (60.0, False)  # this cell only
    assert seconds_left(4, 20.0, 5, None, loop) == (60.0, True)  # it is the last cell
    assert seconds_left(2, 20.0, 5, [1, 1, 50, 3, 4], loop) == (67.0, True)
    assert seconds_left(2, 20.0, 5, [1, 1, 50, 3, 4], None) == (37.0, True)
    assert seconds_left(2, 80.0, 5, [1, 1, 50, 3, 4], None) == (7.0, True)
    assert seconds_left(2, 20.0, 5, [1, 1], None) == (None, False)  # another notebook by now


def test_resumed_loop_counts_only_its_own_pace():
    assert Loop("train", first=30, done=35, total=40, seconds=10.0).left() == 10.0
    assert Loop("train", first=30, done=30, total=40, seconds=10.0).left() is None
    assert Loop("train", first=0, done=5, total=None, seconds=10.0).left() is None


def test_reporter_reads_messages_and_survives_half_a_line(tmp_path):
    messages = tmp_path / "messages"
    stream = io.StringIO()
    with Reporter("n.ipynb", 3, messages, stream) as reporter:
        reporter.cell_starts()
        reporter.cell_ends()
        reporter.cell_starts()
        with messages.open("a") as file:
            file.write('{"done": 4, "total": 8, "label": "train"}\nnot json\n{"done": 5, "to')
            file.flush()
            assert _wait_for(lambda: "train 4/8" in reporter.line(), 3)
            file.write('tal": 8, "label": "train"}\n')
            file.flush()
            assert _wait_for(lambda: "train 5/8" in reporter.line(), 3)
        assert reporter.line().startswith("n.ipynb: cell 2 of 3, train 5/8, 00:0")
    assert stream.getvalue() == ""  # a log gets a line every ten seconds, not before
    assert len(reporter.cell_seconds) == 1


def test_terminal_gets_one_line_that_rewrites_itself(tmp_path):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    with Reporter("n.ipynb", 3, tmp_path / "messages", stream) as reporter:
        reporter.cell_starts()
        assert _wait_for(lambda: "cell 1 of 3" in stream.getvalue(), 3)
    assert "\n" not in stream.getvalue()
