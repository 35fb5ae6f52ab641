"""What happens to the whole graph when the machine fails: tried on scale smoke in a clone, with real faults.

    python tests/faults/whole_graph.py --kills 20 --seed 0 --out FILE.json

First the graph runs undisturbed; its outputs are what every disturbed run is held against, byte by byte. Then

- any process of the graph (dvc, runner, kernel, worker) is killed with SIGKILL at random moments, many times,
  but for Python's own tracker of semaphores, whose successor complains in the notebook that happens to run;
- the disk is full (a small tmpfs, where this user may mount one);
- a file of DVC's cache is corrupt, a parquet file is cut short, a checkpoint is cut short;
- the clock went back, so that files are younger than now;
- the graph is started twice at the same time.

Allowed: it finishes with the undisturbed bytes, or it refuses with a message. A published folder that differs
from the undisturbed one, or a process left behind, is a fault, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from temporary_clone import BIN, SMOKE, environment, make_clone

GRAPH = f"{SMOKE}/dvc.yaml"
REPRO = [str(BIN / "python"), "-m", "pipelines.warm", "dvc", "repro"]  # as `make repro SCALE=smoke` does it
GONE = 40.0  # seconds until the last process of a killed graph has to be gone
HANGS = 3  # times an undisturbed graph, which the one after the last kill may take
GOES_ON = 10.0  # seconds after a kill in which a graph that cannot do without has ended
#: Not outputs of stages: they hold seconds, or name what is unfinished.
VARIES = ("timings", "inputs")
#: Outputs that hold measured seconds: they have to be there, with other bytes in every run.
MEASURED = (
    "runs/smoke/ibpo/analysis/compute/artifacts/ibpo-x5/*",
    "runs/smoke/ibpo/analysis/compute/notebook.ipynb",
    "runs/smoke/mpo/analysis/efficiency/artifacts/mpo-tab[23]/*",
    "runs/smoke/mpo/analysis/efficiency/claims/mpo-c6.json",
    "runs/smoke/mpo/analysis/efficiency/notebook.ipynb",
)
MEASURED_CLAIM = "mpo-c6"
TRACKER = "tracker of semaphores"


@dataclass
class Outcome:
    """What one kind of fault did."""

    fault: str
    n: int
    finished: int  # ended, at once or when run again, with the undisturbed bytes
    refused: int  # ended with a message and changed nothing
    wrong: list[str]  # what was published and is not right, or left behind
    seconds: float
    note: str = ""


class Fault(AssertionError):
    """Something wrong was published, or something was left behind."""


# --- a graph and what it publishes -----------------------------------------------------------------------


def start(clone: Path, *targets: str, log: Path | None = None) -> subprocess.Popen:
    mend(clone)
    stream = open(log, "w") if log else subprocess.DEVNULL
    return subprocess.Popen(
        [*REPRO, *(targets or (GRAPH,))], cwd=clone, env=environment(clone),
        stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def mend(clone: Path) -> None:
    """What `make repro` does first: DVC cannot start from a lock file that a kill cut short."""
    command = [sys.executable, "-c", "from pipelines.summary import mend_lock; mend_lock()"]
    subprocess.run(command, cwd=clone, env=environment(clone), check=True)


def repro(clone: Path, *targets: str, check: bool = True) -> subprocess.CompletedProcess:
    command = [*REPRO, *(targets or (GRAPH,))]
    done = subprocess.run(command, cwd=clone, env=environment(clone), capture_output=True, text=True)
    if check and done.returncode:
        raise Fault(
            f"`{' '.join(command)}` exited with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
        )
    return done


def published(clone: Path) -> dict[str, str]:
    """Hash of every file that stages published, by path; what names times is left out."""
    found = {}
    for path in sorted((clone / "runs/smoke").rglob("*")):
        parts = path.relative_to(clone / "runs/smoke").parts
        if (
            path.is_file()
            and not set(parts) & set(VARIES)
            and not any(p.startswith(".partial") for p in parts)
        ):
            name = path.relative_to(clone).as_posix()
            measured = any(fnmatch(name, pattern) for pattern in MEASURED)
            found[name] = f"measured: {path.stat().st_size > 0}" if measured else digest(path.read_bytes())
    for name in ("artifacts.json", "claims.json"):
        path = clone / "reports/smoke" / name
        if path.is_file():
            rows = [row for row in json.loads(path.read_text()) if row["id"] != MEASURED_CLAIM]
            found[path.relative_to(clone).as_posix()] = digest(json.dumps(rows).encode())
    return found


def digest(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def compare(clone: Path, right: dict[str, str], *, whole: bool) -> None:
    """Everything published has the undisturbed bytes; ``whole``: and nothing is missing.

    A folder is published in one piece: if its notebook is there, all of it has to be.
    """
    now = published(clone)
    if wrong := [name for name, value in now.items() if right.get(name) != value]:
        raise Fault(f"published and not as undisturbed: {wrong[:5]}")
    folders = {str(Path(name).parent) for name in now if Path(name).name == "notebook.ipynb"}
    expected = right if whole else {n for n in right if any(n.startswith(f"{f}/") for f in folders)}
    if missing := sorted(set(expected) - set(now)):
        raise Fault(f"missing: {missing[:5]}")


def family(process: subprocess.Popen) -> list[psutil.Process]:
    """All of its processes that live."""
    try:
        whole = psutil.Process(process.pid)
        return living([whole, *whole.children(recursive=True)])
    except psutil.NoSuchProcess:
        return []


def end_all(processes: list[psutil.Process]) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.kill()


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """One that was killed may wait to be buried: it does not count."""
    found = []
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            if one.is_running() and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


def wait_until_gone(processes: list[psutil.Process]) -> None:
    psutil.wait_procs(processes, timeout=GONE)
    if alive := living(processes):
        raise Fault(f"left behind {GONE:.0f} s after the kill: {[p.cmdline()[:4] for p in alive]}")


def clean(clone: Path) -> None:
    """As if the graph had never run here."""
    for name in ("runs", "reports/smoke", ".dvc/cache", ".dvc/tmp", ".work"):
        shutil.rmtree(clone / name, ignore_errors=True)
    for lock in (clone / SMOKE).rglob("dvc.lock"):
        lock.unlink()


# --- faults ----------------------------------------------------------------------------------------------


def kill_at_random(
    clone: Path, right: dict[str, str], kills: int, seconds: float, seed: int
) -> tuple[int, str]:
    """SIGKILL to one process of the graph, `kills` times on the way to its end; returns (kills, whom)."""
    clean(clone)
    draw, whom = random.Random(seed), Counter()
    done, process, members, hurt = 0, None, [], False
    while done < kills or process:
        if process is None:
            process, hurt = start(clone), False
        # Moments spread over the whole graph: a restarted one skips what is finished.
        wait = HANGS * seconds if done == kills else draw.uniform(0.1, 1.9) * seconds / kills
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait)
        if process.poll() is None and done == kills:
            end_all(family(process))
            raise Fault(f"hangs: it goes on {wait:.0f} s after the last kill")
        if process.poll() is None:
            members = family(process)
            with suppress(psutil.NoSuchProcess, IndexError):  # it just ended
                victim = draw.choice([one for one in members if role(one, process) != TRACKER])
                name = role(victim, process)
                victim.kill()
                done, hurt = done + 1, True
                whom[name] += 1
                print(f"kill {done} of {kills}: {name}", flush=True)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GOES_ON)
        if process.poll() is None:
            continue  # it does without: a process that was waiting for work, say
        if process.returncode and not hurt:
            raise Fault(f"the graph exited with {process.returncode} though nothing was killed")
        wait_until_gone(members)
        compare(clone, right, whole=not process.returncode)
        if not process.returncode and done < kills:
            clean(clone)  # it came to its end: the other kills hit another run
        process = None
    mend(clone)
    repro(clone)
    compare(clone, right, whole=True)
    return done, ", ".join(f"{name} {count}" for name, count in whom.most_common())


def role(victim: psutil.Process, graph: subprocess.Popen) -> str:
    words = " ".join(victim.cmdline())
    if victim.pid == graph.pid:
        return "dvc"
    forked = {"rlvr-warm": "warm server", "rlvr-kernel": "kernel", "rlvr-worker": "worker"}
    if victim.name() in forked:
        return forked[victim.name()]
    for sign, name in (
        ("ipykernel_launcher", "kernel"), ("pipelines.stage", "runner"), ("pipelines.inputs", "runner"),
        ("resource_tracker", TRACKER), ("forkserver", "worker"), ("spawn", "worker"),
        ("groups = set()", "watchdog"),
    ):  # fmt: skip
        if sign in words:
            return name
    return "other"


def corrupt_cache(clone: Path, right: dict[str, str]) -> str:
    """A cached file has other bytes, and the output made from it is gone."""
    name = next(n for n in right if n.endswith("base/model/model.safetensors"))
    cached = clone / ".dvc/cache/files/md5" / right[name][:2] / right[name][2:]
    data = bytearray(cached.read_bytes())
    data[len(data) // 2] ^= 0xFF
    cached.chmod(0o644)
    cached.write_bytes(data)
    shutil.rmtree(clone / "runs/smoke/base")
    return again(clone, right)


def cut(clone: Path, right: dict[str, str], ends: str) -> str:
    """A published file is cut to half its length."""
    name = next(n for n in right if n.endswith(ends))
    path = clone / name
    path.chmod(0o644)
    half = path.read_bytes()[: path.stat().st_size // 2]
    path.unlink()  # not the cache's copy, if that is a link to it
    path.write_bytes(half)
    return again(clone, right)


def clock_back(clone: Path, right: dict[str, str]) -> str:
    """Every file of the run is a year younger than now, and one training is to be made anew."""
    later = time.time() + 365 * 86400
    for path in [*(clone / "runs").rglob("*"), *(clone / ".work").rglob("*"), *(clone / ".dvc").rglob("*")]:
        if not path.is_symlink():
            os.utime(path, (later, later))
    shutil.rmtree(clone / "runs/smoke/train/nfpo")
    return again(clone, right)


def again(clone: Path, right: dict[str, str]) -> str:
    """Run; if that refuses, nothing wrong may be there. Returns ``finished`` or the refusal."""
    done = repro(clone, check=False)
    if done.returncode == 0:
        compare(clone, right, whole=True)
        return "finished"
    message = [
        line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line or "error" in line
    ]
    if not message:
        raise Fault(f"refused without a message: {(done.stdout + done.stderr)[-500:]}")
    return message[-1]


def two_at_once(clone: Path, right: dict[str, str]) -> str:
    """The second one starts while the first one trains, or on a busy machine before it does."""
    shutil.rmtree(clone / "runs/smoke/train/nfpo")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        first = start(clone, f"{GRAPH}:train@nfpo", "--force", log=log)
        time.sleep(4)
        second = repro(clone, check=False)
        ends = [(first.wait(), log.read_text()), (second.returncode, second.stdout + second.stderr)]
    refused = [said for code, said in ends if code]
    if len(refused) == 2 or not all(re.search("busy|acquire lock", said) for said in refused):
        raise Fault(" and ".join(said[-500:] for said in refused))
    repro(clone)
    compare(clone, right, whole=True)
    return "refused" if refused else "finished"


_SMALL_DISK = """
set -e
mount -t tmpfs -o size={size}k tmpfs {folder}
cp -a {clone}/. {folder}/
cd {folder}
free=$(df --output=avail -k . | tail -1)
dd if=/dev/zero of=.filler bs=1k count=$((free - {left})) status=none
set +e
{repro} {graph} > {log} 2>&1
echo "code $?" >> {log}
find runs reports/smoke -type f 2>/dev/null | sed 's/^/published /' >> {log}
rm .filler
{repro} {graph} >> {log} 2>&1
echo "then $?" >> {log}
rm -rf {clone}/runs && cp -a runs {clone}/runs && cp -a reports/smoke {clone}/reports/
"""


def full_disk(clone: Path, right: dict[str, str], left: int) -> str:
    """The graph on a disk with `left` KiB free; then there is room again."""
    clean(clone)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        disk = Path(folder, "disk")
        disk.mkdir()
        script = _SMALL_DISK.format(
            size=1_000_000, folder=disk, clone=clone, left=left, repro=shlex.join(REPRO), graph=GRAPH, log=log
        )
        command = [
            "unshare",
            "--mount",
            *([] if os.geteuid() == 0 else ["--map-root-user"]),
            "bash",
            "-c",
            script,
        ]
        done = subprocess.run(command, env=environment(clone) | {"PYTHONPATH": str(disk / "lib")},
                              capture_output=True, text=True)  # fmt: skip
        if not log.is_file():
            return f"not measured: {done.stderr.strip()[-200:]}"
        text = log.read_text()
    first = next(line for line in text.splitlines() if line.startswith("code "))
    if "then 0" not in text:
        raise Fault(f"with room again it did not finish: {text[-1500:]}")
    if first == "code 0":
        raise Fault("the disk was not full: leave less")
    if "No space left" not in text and "ENOSPC" not in text:
        raise Fault(f"the message does not say that the disk is full: {text[:1500]}")
    compare(clone, right, whole=True)
    return "refused, then finished"


# --- all of them -----------------------------------------------------------------------------------------


def trials(
    clone: Path, right: dict[str, str], seconds: float, options: Any
) -> Iterator[tuple[str, Callable]]:
    """(fault, what tries it); a trial returns (how often, a note) or one outcome."""
    yield (
        "SIGKILL to one process at a random moment",
        lambda: kill_at_random(clone, right, options.kills, seconds, options.seed),
    )
    yield "started twice at once", lambda: two_at_once(clone, right)
    yield "a file of the cache is corrupt", lambda: corrupt_cache(clone, right)
    yield "a parquet file is cut short", lambda: cut(clone, right, "train/nfpo/seed0/lag0/metrics.parquet")
    yield (
        "a policy's file is cut short",
        lambda: cut(clone, right, "train/nfpo/seed0/lag0/final/model.safetensors"),
    )
    yield "the clock went back a year", lambda: clock_back(clone, right)
    yield "disk full", lambda: full_disk(clone, right, options.left)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--left", type=int, default=600, help="KiB free on the full disk")
    parser.add_argument("--only", default="", help="faults whose name holds this; FILE keeps the others")
    parser.add_argument("--out", type=Path, help="a JSON file; default: print only")
    options = parser.parse_args()
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="rlvr-faults-") as folder:
        clone = make_clone(Path(folder, "repository"))
        begun = time.monotonic()
        repro(clone)
        seconds, right = time.monotonic() - begun, published(clone)
        print(f"undisturbed: {seconds:.0f} s, {len(right)} files", flush=True)
        for fault, trial in trials(clone, right, seconds, options):
            if options.only not in fault:
                continue
            begun = time.monotonic()
            outcome = Outcome(fault, 1, 0, 0, [], 0.0)
            try:
                result = trial()
                if isinstance(result, tuple):
                    outcome.n, outcome.note = result
                    outcome.finished = outcome.n
                elif result.startswith("not measured"):
                    outcome.n, outcome.note = 0, result
                else:
                    outcome.finished = int("finished" in result)
                    outcome.refused, outcome.note = (
                        int(result != "finished"),
                        "" if result == "finished" else result,
                    )
            except Fault as error:
                outcome.wrong.append(str(error))
                clean(clone)
                repro(clone)
            outcome.seconds = round(time.monotonic() - begun)
            outcomes.append(outcome)
            print(f"{fault}: {outcome}", flush=True)
    if options.out:
        faults = {outcome.fault: asdict(outcome) for outcome in outcomes}
        if options.only and options.out.is_file():  # the others stay as they were measured
            faults = {row["fault"]: row for row in json.loads(options.out.read_text())["faults"]} | faults
        rows = {"scale": "smoke", "seed": options.seed, "faults": list(faults.values())}
        options.out.write_text(json.dumps(rows, indent=2) + "\n")
    return int(any(outcome.wrong for outcome in outcomes))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
