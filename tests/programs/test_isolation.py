"""What a program can reach, and what is left of it when it is over."""

import os
import socket
import tempfile
import threading
import time
from pathlib import Path

import pytest
from program_tasks import RIGHT, TASKS

from rlvr.verifiers.programs import IsolationError, Limits, ProgramPool, ProgramTask, verify_program, worker

SHOW = ProgramTask("own/show", "stdin", (("", "yes\n"),))


def holds(pool, code):
    """Whether the program prints yes; if not, what it printed."""
    result = pool.verify(code, SHOW, form="code")
    return result.correct or (result.reason, result.stdout, result.stderr)


# --- network ------------------------------------------------------------------------------------------

CONNECT = """
import ctypes, os, socket, struct, subprocess, sys
port, errors = {port}, 0
for host in ("127.0.0.1", "::1", "localhost", "192.0.2.1", "example.com"):
    try:
        socket.create_connection((host, port), timeout=0.2).sendall(b"out")
    except OSError:
        errors += 1
libc = ctypes.CDLL(None)
fd = libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
address = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), bytes([127, 0, 0, 1]))
errors += libc.connect(fd, address, len(address)) != 0
errors += os.system("bash -c 'echo out > /dev/tcp/127.0.0.1/%d' 2> /dev/null" % port) != 0
errors += os.system("curl -s -m 1 http://127.0.0.1:%d > /dev/null 2>&1" % port) != 0
unix = socket.socket(socket.AF_UNIX)
try:
    unix.connect(chr(0) + "{name}")
except OSError:
    errors += 1
print("yes" if errors == 9 else errors)
"""


@pytest.mark.fault("network-by-another-door")
def test_no_way_to_the_network(isolated):
    name = f"rlvr-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as unix:
        unix.bind("\0" + name)
        unix.listen()
        for sock in (server, unix):
            sock.setblocking(False)
        assert holds(isolated, CONNECT.format(port=server.getsockname()[1], name=name)) is True
        for sock in (server, unix):
            with pytest.raises(BlockingIOError):
                sock.accept()


def test_unsafe_reaches_the_network_when_told_to():
    """The test above tests something: without isolation the same listener is reached."""
    code = "import socket\nsocket.create_connection(('127.0.0.1', {})).sendall(b'out')\nprint('yes')\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = code.format(server.getsockname()[1])
        result = verify_program(code, SHOW, form="code", network="unsafe", packages=())
        assert result.correct is True
        assert server.accept()[0].recv(3) == b"out"


def test_sockets_among_a_programs_own_processes_work(isolated):
    assert holds(isolated, "import asyncio\nasyncio.run(asyncio.sleep(0))\nprint('yes')\n") is True
    code = "import socket\na, b = socket.socketpair()\na.send(b'x')\nprint('yes' if b.recv(1) else 0)\n"
    assert holds(isolated, code) is True
    code = (
        "from multiprocessing import Pool\nif __name__ == '__main__':\n    with Pool(2) as p:\n"
        "        print('yes' if p.map(abs, [-1]) == [1] else 0)\n"
    )
    assert holds(isolated, code) is True


# --- files, processes, environment --------------------------------------------------------------------


def test_files_of_others_are_not_there(isolated, tmp_path):
    secret = tmp_path / "answers.jsonl"
    secret.write_text("[2, 4]")
    repository = Path(__file__).resolve().parents[2]
    for path in (
        secret,
        tmp_path,
        repository / "README.md",
        Path(__file__),
        Path.home() / ".bashrc",
        "/proc",
        "/sys",
    ):
        assert (
            holds(isolated, f"import os\nprint('yes' if not os.path.exists({str(path)!r}) else 0)\n") is True
        ), path
    assert holds(isolated, "import os\nprint('yes' if not os.listdir('/tmp/run/1') else 0)\n") is True
    packages = (
        "import glob, json, os\nlibrary = os.path.dirname(os.path.dirname(json.__file__))\n"
        "found = glob.glob(library + '/site-packages/*')\nprint('yes' if not found else found)\n"
    )
    assert holds(isolated, packages) is True


WRITE = """
import json, os, sys
folders = ["/", "/usr", "/usr/bin", "/etc", "/dev", os.path.dirname(json.__file__), *sys.path[1:]]
failures = 0
for folder in folders:
    try:
        open(os.path.join(folder, "x"), "w")
        print(folder)
    except OSError:
        failures += 1
fresh = not os.path.exists("/tmp/x")
open("/tmp/x", "w").write("x")
mounts = ["/", "/usr", "/packages/numpy", os.path.dirname(json.__file__)]
open_for_writing = [m for m in mounts if not os.statvfs(m).f_flag & os.ST_RDONLY]
right = failures == len(folders) and fresh and not open_for_writing
print("yes" if right else (failures, fresh, open_for_writing))
"""


def test_nothing_can_be_written_but_tmp(isolated):
    for _ in range(4):  # each time the same file, which the one before has left
        assert holds(isolated, WRITE) is True


PRIVILEGES = """
import ctypes, os
libc = ctypes.CDLL(None)
succeeded = [flag for flag in (0x20000, 0x40000000, 0x20000000) if libc.unshare(flag) == 0]
succeeded += ["mount"] if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0 else []
succeeded += ["umount"] if libc.umount2(b"/tmp", 2) == 0 else []
calls = {"chroot": lambda: os.chroot("/tmp"), "mknod": lambda: os.mknod("/tmp/d", 0o20666, os.makedev(1, 3))}
if os.getuid():
    calls["setuid"] = lambda: os.setuid(0)
for name, call in calls.items():
    try:
        call()
        succeeded.append(name)
    except OSError:
        pass
print("yes" if not succeeded else succeeded)
"""


def test_no_privileges(isolated):
    assert holds(isolated, PRIVILEGES) is True


def test_other_processes_are_out_of_sight(isolated):
    code = (
        "import os\nseen = []\nfor pid in [*range(3, 3000), {me}]:\n    try:\n        os.kill(pid, 0)\n"
        "        seen.append(pid)\n    except OSError:\n        pass\n"
        "print('yes' if set(seen) <= {{os.getpid()}} else seen)\n"
    )
    assert holds(isolated, code.format(me=os.getpid())) is True


def test_environment_is_not_inherited(pool, monkeypatch, network):
    monkeypatch.setenv("SECRET_TOKEN", "hf_123")
    with ProgramPool(1, network=network.partition(":")[0], packages=()) as fresh:
        code = (
            "import os\n"
            "print('yes' if 'hf_123' not in str(os.environ) and len(os.environ) < 12 else os.environ)\n"
        )
        assert holds(fresh, code) is True


def test_only_listed_packages_can_be_imported(isolated):
    assert holds(isolated, "import numpy as np\nprint('yes' if np.arange(3).sum() == 3 else 0)\n") is True
    code = "try:\n    import {}\nexcept ImportError:\n    print('yes')\n"
    for name in ("torch", "pytest", "rlvr"):
        assert holds(isolated, code.format(name)) is True, name
    with ProgramPool(1, packages=()) as bare:
        assert holds(bare, code.format("numpy")) is True
        result = bare.verify(RIGHT["mean"], TASKS["mean"], form="code")
        assert (result.correct, result.reason) == (None, "bad_tests") and "numpy" in result.first_failure
    with pytest.raises(ValueError, match=r"packages=.*'no_such_package' is not"):
        ProgramPool(1, packages=("no_such_package",))


def test_hashes_and_random_numbers_repeat(pool):
    code = "import random\nprint(hash('text'), random.random(), list({'a', 'b', 'c', 'd'}))\n"
    assert len({pool.verify(code, SHOW, form="code").stdout for _ in range(4)}) == 1


def test_refused_with_a_reason_where_isolation_is_not_to_be_had(monkeypatch):
    broken = (
        "import sys; sys.path.insert(0, {folder!r}); from sandbox import linux, zygote; del sys.path[0]\n"
        "def unshare(flags):\n    raise PermissionError(1, 'unshare: Operation not permitted')\n"
        "linux.unshare = unshare\nzygote.main()"
    )
    monkeypatch.setattr(worker, "_START", broken)
    with pytest.raises(IsolationError, match=r"Operation not permitted.*network='unsafe'"):
        ProgramPool(2, packages=())
    with pytest.raises(ValueError, match="network='all': allowed are 'none' and 'unsafe'"):
        ProgramPool(1, network="all")
    with ProgramPool(1, network="unsafe", packages=()) as unsafe:
        assert unsafe.verify(RIGHT["sums"], TASKS["sums"], form="code").correct is True


# --- what is left -------------------------------------------------------------------------------------

MESSY = (
    "import subprocess, threading, time, tempfile, os\nsubprocess.Popen(['sleep', '999'])\n"
    "if not os.fork():\n    os.setsid()\n    if not os.fork():\n        time.sleep(999)\n    os._exit(0)\n"
    "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\ntempfile.mkdtemp()\n"
)


def _descendants(pid: int) -> list[tuple[int, str]]:
    """(pid, state) of all processes below this one."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            parents[int(entry)] = (int(parent), state)
    found, frontier = [], {pid}
    while frontier:
        frontier = {child for child, (parent, _) in parents.items() if parent in frontier}
        found += [(child, parents[child][1]) for child in sorted(frontier)]
    return found


@pytest.mark.fault("processes-left-behind")
@pytest.mark.parametrize(("mode", "rounds"), [("none", 20), ("unsafe", 4)])  # of ten programs
def test_nothing_is_left_after_many_programs(mode, rounds, network, monkeypatch, tmp_path):
    if mode == "none" and network != "none":
        pytest.skip(f"isolation is not available here, {network}")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    limits = Limits(test_seconds=0.4, total_seconds=1.0, patience=4.0)
    with ProgramPool(1, limits, mode, packages=()) as pool:
        [child] = pool._all
        zygote = child._process.pid
        function = MESSY + RIGHT["running"]
        items = [(function, TASKS["running"]), (MESSY + RIGHT["sums"], TASKS["sums"])]
        items += [("def running_max(values):\n    1 / 0\n", TASKS["running"]), ("x = (", TASKS["sums"])] * 4
        late = [
            (MESSY + "time.sleep(9)\n", TASKS["sums"]),
            (MESSY + "while 1:\n    pass\n", TASKS["running"]),
        ]
        assert [r.correct for r in pool.verify_many(items + late, form="code")] == [True, True] + [False] * 10
        before = (len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{zygote}/fd")))
        for _ in range(rounds):
            results = pool.verify_many(items, form="code")
            assert [r.correct for r in results] == [True, True] + [False] * 8
        assert child._process.pid == zygote  # it was never started anew
        left = _descendants(zygote)
        assert left == [], "processes, zombies among them, below the worker"
        assert (len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{zygote}/fd"))) == before
        assert [p for p in os.listdir("/tmp") if p.startswith("rlvr-program-")] == []
        assert os.listdir(tmp_path) == []
    time.sleep(0.05)
    assert zygote not in dict(_descendants(os.getpid()))
    assert threading.active_count() < 10


def test_workers_end_with_their_owner(network):
    """Killed without a word, the owner leaves no worker and no program behind."""
    import subprocess
    import sys

    code = (
        "import os, threading\nfrom rlvr.verifiers.programs import ProgramPool, ProgramTask, Limits\n"
        f"pool = ProgramPool(1, Limits(test_seconds=60), {network.partition(':')[0]!r}, packages=())\n"
        "print(pool._all[0]._process.pid, flush=True)\n"
        "task = ProgramTask('t', 'stdin', (('', ''),))\n"
        "threading.Timer(0.3, os._exit, (0,)).start()\n"
        "pool.verify('import time; time.sleep(60)', task, form='code')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    zygote = int(done.stdout)
    for _ in range(100):
        if (
            not os.path.exists(f"/proc/{zygote}")
            or "Z" in Path(f"/proc/{zygote}/stat").read_text().split()[2]
        ):
            break
        time.sleep(0.05)
    else:
        pytest.fail("the worker outlived its owner")
    assert _descendants(zygote) == []
