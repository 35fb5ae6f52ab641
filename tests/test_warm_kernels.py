"""Kernels forked from a server that has imported everything: the same results, and nobody left behind."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from notebook_factory import PROJECT, environment, notebook, repository, write

from pipelines import warm_kernel
from pipelines.execute import StageFailed, execute
from pipelines.request import Request
from pipelines.warm import start_server

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="servers are for Linux")]

LOOK = (
    "import json, os, sys\n"
    "top = {name.partition('.')[0] for name in sys.modules}\n"
    "from pathlib import Path\n"
    "found = {'parent': os.getppid(), 'modules': sorted(top & {'pipelines', 'torch'})}\n"
    "Path(out, 'look.json').write_text(json.dumps(found))"
)
WORK = notebook(
    "import matplotlib.pyplot as plt\nimport numpy as np\nimport pandas as pd\nimport torch\n"
    "from tqdm import tqdm\n"
    "print(os.environ['MINE'] if 'os' in dir() else 'no os', set('abcdef'), plt.get_backend())",
    "plt.plot([1, 2]);\npd.DataFrame({'x': [1.23456789]}).style.format(precision=3)",
    "torch.manual_seed(0)\nprint(torch.rand(3), pd.DataFrame({'x': ['a', 'b']}).dtypes.to_dict())\n"
    "print(list(tqdm(range(3))))",
    "import os, sys\nos.write(1, b'to the descriptor')\nprint(sys.argv[0].rpartition('/')[2], __name__)",
    "left_open = open(f'{out}/left.txt', 'w')\nleft_open.write('x' * 10)\n"
    "open(f'{out}/a.txt', 'w').write('a');",
)


def run(out: str, book: str = "n.ipynb") -> Path:
    return execute(Request(Path(book), Path(f"runs/tiny/{out}"), ()), stream=io.StringIO())


def wait_for(condition, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server; gives its process and the variables that lead to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository(tmp_path_factory.mktemp("served") / "repo"))
        patch.setenv("PYTHONPATH", str(PROJECT))  # as runners have it, who else would not ask
        process, variables = start_server()
    yield process, variables
    process.kill()
    process.wait()


@pytest.fixture
def repo(tmp_path, monkeypatch, served):
    for name in ("DVC_STAGE", *served[1]):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(repository(tmp_path / "repo"))
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    return tmp_path / "repo"


@pytest.fixture
def warm(repo, monkeypatch, served):
    for name, value in served[1].items():
        monkeypatch.setenv(name, value)
    return served[0]


def look(repo: Path, out: str) -> dict:
    write(repo / "look.ipynb", notebook(LOOK))
    run(out, "look.ipynb")
    return json.loads((repo / f"runs/tiny/{out}/look.json").read_text())


def test_a_kernel_is_the_servers_and_has_no_code_of_the_project(repo, warm):
    found = look(repo, "warm")
    assert found["parent"] == warm.pid
    assert found["modules"] == ["torch"]


def test_without_a_server_or_with_that_of_another_environment_it_is_the_runners(repo, monkeypatch, served):
    assert look(repo, "none") == {"parent": os.getpid(), "modules": []}
    monkeypatch.setenv(warm_kernel.ADDRESS, served[1][warm_kernel.ADDRESS])
    monkeypatch.setenv(warm_kernel.PREFIX, "/another/environment")
    assert look(repo, "other") == {"parent": os.getpid(), "modules": []}
    monkeypatch.setenv(warm_kernel.ADDRESS, "rlvr-warm-of-nobody")
    monkeypatch.setenv(warm_kernel.PREFIX, warm_kernel.own_prefix())
    assert look(repo, "gone") == {"parent": os.getpid(), "modules": []}


def test_the_bytes_are_those_of_a_kernel_of_the_runner(repo, served, monkeypatch):
    write(repo / "n.ipynb", WORK)
    monkeypatch.setenv("MINE", "mine")
    run("cold")
    cold = {p.name: p.read_bytes() for p in (repo / "runs/tiny/cold").iterdir()}
    for name, value in served[1].items():
        monkeypatch.setenv(name, value)
    run("warm")
    own = {p.name: p.read_bytes() for p in (repo / "runs/tiny/warm").iterdir()}
    assert sorted(own) == ["a.txt", "left.txt", "notebook.ipynb"]
    assert own.pop("notebook.ipynb").replace(b"tiny/warm", b"tiny/cold") == cold.pop("notebook.ipynb")
    assert own == cold
    assert own["left.txt"] == b"x" * 10


def test_each_stage_has_the_variables_and_the_folder_of_its_own_runner(repo, warm, monkeypatch, tmp_path):
    said = "os.environ.get('MINE', '') + '|' + os.getcwd()"
    book = notebook(f"import os\nopen(out + '/x', 'w').write({said});")
    monkeypatch.setenv("MINE", "first")
    write(repo / "n.ipynb", book)
    assert (run("one") / "x").read_text() == f"first|{repo}"
    other = repository(tmp_path / "other")
    write(other / "n.ipynb", book)
    monkeypatch.chdir(other)
    monkeypatch.delenv("MINE")
    assert (run("two") / "x").read_text() == f"|{other}"


def test_what_nobody_seeded_is_drawn_anew(repo, warm):
    draws = "[random.random(), numpy.random.random(), torch.rand(1).item()]"
    code = f"import json, random, numpy, torch\nopen(out + '/x', 'w').write(json.dumps({draws}));"
    write(repo / "n.ipynb", notebook(code))
    first, second = (json.loads((run(name) / "x").read_text()) for name in ("one", "two"))
    assert all(a != b for a, b in zip(first, second, strict=True))


WORKERS = notebook(
    "import multiprocessing, os, sys\nfrom multiprocessing import forkserver\n"
    "context = multiprocessing.get_context('forkserver')\ncontext.set_forkserver_preload(['fractions'])\n"
    "os.environ['SAID'] = 'in the notebook'",
    "import json\nfrom concurrent.futures import ProcessPoolExecutor\n"
    "top = '{m.partition(chr(46))[0] for m in __import__(\"sys\").modules}'\n"
    'code = f\'sorted({top} & {{"torch", "fractions"}})\'\n'
    "with ProcessPoolExecutor(1, context) as pool:\n"
    "    def there(function, *arguments):\n        return pool.submit(function, *arguments).result()\n"
    "    found = {'modules': there(eval, code), 'said': there(os.getenv, 'SAID'),\n"
    "             'folder': there(os.getcwd) == os.getcwd(),\n"
    "             'server': there(os.getppid) == forkserver._forkserver._forkserver_pid}\n"
    "left_open = open(out + '/left.txt', 'w')\nleft_open.write('x')\n"
    "again = context.Process(target=os.getpid)\nagain.start()\nagain.join()\n"
    "open(out + '/x', 'w').write(json.dumps(found | {'code': again.exitcode}));",
)


def test_a_fork_server_of_the_kernel_is_warm_too(repo, served, monkeypatch):
    write(repo / "n.ipynb", WORKERS)
    cold = json.loads((run("cold") / "x").read_text())
    for name, value in served[1].items():
        monkeypatch.setenv(name, value)
    warm = json.loads((run("warm") / "x").read_text())
    # The kernel came to its end by itself; it was not cut off because a process of the pool was still there.
    assert (repo / "runs/tiny/warm/left.txt").read_text() == "x"
    assert cold.pop("modules") == ["fractions"]
    assert warm.pop("modules") == ["fractions", "torch"]
    assert warm == cold
    right = {"server": True, "folder": True, "code": 0, "said": "in the notebook"}
    assert warm == right


def test_a_killed_kernel_takes_its_fork_server_and_the_workers_with_it(repo, served):
    runner, kernel, server, worker = sleeping(repo, served[1], FORK_SERVER)
    os.kill(kernel, signal.SIGKILL)
    runner.communicate(timeout=20)
    assert runner.returncode == 1
    assert wait_for(lambda: not alive(server))
    assert wait_for(lambda: not alive(worker))


def both(repo, served, monkeypatch, book) -> list[Path]:
    """The outputs of a notebook without a server, and with one."""
    write(repo / "n.ipynb", book)
    out = [run("cold")]
    for name, value in served[1].items():
        monkeypatch.setenv(name, value)
    return [*out, run("warm")]


def test_a_fork_server_may_be_asked_for_late(repo, served, monkeypatch):
    book = notebook(
        "import multiprocessing, os, time\ntime.sleep(11)\n"
        "def child(context):\n"
        "    process = multiprocessing.get_context(context).Process(target=os.getpid)\n"
        "    process.start()\n    process.join()\n    return process.exitcode\n"
        "first = multiprocessing.get_context('fork').Process(target=child, args=('forkserver',))\n"
        "first.start()\nfirst.join()\n"
        "open(out + '/x', 'w').write(f\"{first.exitcode} {child('forkserver')} {child('forkserver')}\");"
    )
    cold, warm = both(repo, served, monkeypatch, book)
    assert (cold / "x").read_text() == (warm / "x").read_text() == "0 0 0"


def test_threads_of_a_notebook_end_their_work(repo, served, monkeypatch):
    book = notebook(
        "import ctypes, threading, time\n"
        "def late():\n    time.sleep(1)\n    open(out + '/late', 'w').write('late')\n"
        "threading.Thread(target=late).start()\n"
        "c = ctypes.CDLL(None)\nc.fopen.restype = ctypes.c_void_p\n"
        "c.fputs(b'hello', ctypes.c_void_p(c.fopen((out + '/c').encode(), b'w')));"
    )
    for out in both(repo, served, monkeypatch, book):
        assert (out / "late").read_text() == "late" and (out / "c").read_text() == "hello"


def test_workers_draw_anew_what_nobody_seeded(repo, warm):
    book = notebook(
        "import json, multiprocessing, numpy, torch\nfrom concurrent.futures import ProcessPoolExecutor\n"
        'code = \'[__import__("numpy").random.random(), __import__("torch").rand(1).item()]\'\n'
        "draws = [eval(code)]\n"
        "for _ in range(2):\n"
        "    with ProcessPoolExecutor(1, multiprocessing.get_context('forkserver')) as pool:\n"
        "        draws.append(pool.submit(eval, code).result())\n"
        "open(out + '/x', 'w').write(json.dumps(draws));"
    )
    write(repo / "n.ipynb", book)
    for drawn in zip(*json.loads((run("stage") / "x").read_text()), strict=True):
        assert len(set(drawn)) == 3


def test_what_loggers_say_stands_between_what_is_printed(repo, served, monkeypatch):
    book = notebook(
        "import sys\nfrom transformers.utils import logging\nlogger = logging.get_logger('transformers')\n"
        "for n in range(100):\n    print(n, file=sys.stderr)\n    logger.error(n)"
    )
    cold, warm = both(repo, served, monkeypatch, book)
    first, second = ((out / "notebook.ipynb").read_text() for out in (cold, warm))
    assert second.replace("tiny/warm", "tiny/cold") == first


def test_nobody_of_another_user_is_asked(repo, monkeypatch, served):
    monkeypatch.setattr(warm_kernel, "same_user", lambda connection: False)
    for name, value in served[1].items():
        monkeypatch.setenv(name, value)
    assert look(repo, "stage")["parent"] == os.getpid()


@pytest.mark.parametrize("whom", ["runner", "server"])
def test_workers_in_the_fork_server_do_not_outlive(repo, whom):
    process, variables = start_server()
    runner, kernel, server, worker = sleeping(repo, variables, FORK_SERVER)
    assert psutil.Process(kernel).ppid() == process.pid
    process.kill()
    process.wait()
    if whom == "runner":
        runner.kill()
    runner.communicate(timeout=20)
    assert wait_for(lambda: not any(map(alive, (kernel, server, worker))))


def test_a_kernel_that_ends_itself_says_how(repo, warm):
    write(repo / "n.ipynb", notebook("import os\ngetattr(os, '_exit')(7)"))
    with pytest.raises(StageFailed, match="exit code 7"):
        run("stage")
    write(repo / "n.ipynb", notebook("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"))
    with pytest.raises(StageFailed, match="killed by SIGSEGV"):
        run("stage")
    assert not Path("runs/tiny/stage").exists()


SLEEPING = notebook(
    "import multiprocessing, os, time\nfrom pathlib import Path\n"
    "worker = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))\nworker.start()\n"
    "Path('pids.part').write_text(f'{os.getpid()} {worker.pid}')\nPath('pids.part').rename('pids')\n"
    "time.sleep(60)"
)


FORK_SERVER = notebook(
    "import multiprocessing, os, time\nfrom multiprocessing import forkserver\nfrom pathlib import Path\n"
    "worker = multiprocessing.get_context('forkserver').Process(target=time.sleep, args=(60,))\n"
    "worker.start()\nserver = forkserver._forkserver._forkserver_pid\n"
    "Path('pids.part').write_text(f'{os.getpid()} {server} {worker.pid}')\n"
    "Path('pids.part').rename('pids')\ntime.sleep(60)"
)


def sleeping(repo: Path, variables: dict[str, str], book=SLEEPING) -> tuple:
    """A runner in the middle of a cell, and the processes that the notebook names, its kernel the first."""
    write(repo / "n.ipynb", book)
    command = [sys.executable, "-m", "pipelines.stage", "n.ipynb", "--out", "runs/tiny/stage"]
    runner = subprocess.Popen(command, env=environment(**variables), stderr=subprocess.PIPE, text=True)
    assert wait_for((repo / "pids").exists, 60)
    return runner, *map(int, (repo / "pids").read_text().split())


def test_a_killed_runner_takes_kernel_and_workers_with_it(repo, served):
    runner, kernel, worker = sleeping(repo, served[1])
    assert psutil.Process(kernel).ppid() == served[0].pid
    runner.kill()
    runner.communicate()
    assert wait_for(lambda: not alive(kernel) and not alive(worker))


def test_so_it_does_where_the_watchdog_was_killed_before(repo, served):
    runner, kernel, worker = sleeping(repo, served[1])
    for child in psutil.Process(runner.pid).children():
        child.kill()
    runner.kill()
    runner.communicate()
    assert wait_for(lambda: not alive(kernel) and not alive(worker))


def test_a_killed_kernel_is_an_error(repo, served):
    runner, kernel, worker = sleeping(repo, served[1])
    os.kill(kernel, signal.SIGKILL)
    _, error = runner.communicate(timeout=20)
    assert runner.returncode == 1
    assert "the kernel died: killed by SIGKILL" in error
    assert wait_for(lambda: not alive(worker))


def test_a_killed_server_ends_its_kernels_and_the_next_stage_has_its_own(repo, monkeypatch):
    process, variables = start_server()
    runner, kernel, worker = sleeping(repo, variables)
    assert psutil.Process(kernel).ppid() == process.pid
    process.kill()
    process.wait()
    _, error = runner.communicate(timeout=20)
    assert runner.returncode == 1
    assert "the kernel died: killed by SIGKILL" in error
    assert wait_for(lambda: not alive(kernel) and not alive(worker))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert look(repo, "next")["parent"] == os.getpid()


@pytest.mark.parametrize("end", ["by itself", "killed"])
def test_the_server_ends_with_the_command(repo, end):
    seconds = "0.5" if end == "by itself" else "60"
    process = subprocess.Popen(
        [sys.executable, "-m", "pipelines.warm", sys.executable, "-c",
         f"import os, time; open('pid.part', 'w').write(os.environ['{warm_kernel.ADDRESS}']); "
         f"os.rename('pid.part', 'pid'); time.sleep({seconds})"],
        env=environment(),
    )  # fmt: skip
    assert wait_for((repo / "pid").exists, 20)
    servers = [
        p
        for p in psutil.Process(process.pid).children()
        if any("warm_server" in word for word in p.cmdline())
    ]
    assert len(servers) == 1
    if end == "killed":
        process.kill()
    assert process.wait() == (0 if end == "by itself" else -signal.SIGKILL)
    assert wait_for(lambda: not alive(servers[0].pid))


def test_the_exit_code_is_the_commands_and_a_missing_one_is_said(repo):
    command = [sys.executable, "-m", "pipelines.warm"]
    done = subprocess.run([*command, sys.executable, "-c", "raise SystemExit(3)"], env=environment())
    assert done.returncode == 3
    done = subprocess.run([*command, "no-such-command"], env=environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "no-such-command: No such file or directory\n"
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("usage: ")


def test_what_is_no_request_is_dropped_and_the_server_goes_on(repo, warm, served):
    import socket

    for text in (b"", b"nonsense\n", b'{"half": '):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(f"\0{served[1][warm_kernel.ADDRESS]}")
            connection.sendall(text)
    assert look(repo, "after")["parent"] == warm.pid
