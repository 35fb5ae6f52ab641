"""The whole smoke graph in a temporary clone: killed and resumed, finished, changed, compared, and nbval.

Run by `make test` (`pytest -m graph`); takes several minutes. Tests run in file order on one clone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from temporary_clone import BIN, SMOKE, environment, make_clone

from pipelines.lint import OF_MODELS

# As `make repro SCALE=smoke` does it: kernels are forked from a warm server, which `dvc repro` has not.
GRAPH = [str(BIN / "python"), "-m", "pipelines.warm", "dvc", "repro", f"{SMOKE}/dvc.yaml"]
KILLED: dict[str, str] = {}  # which training was killed, for the tests after it

pytestmark = pytest.mark.graph


def run(clone: Path, *command: str, check: bool = True) -> subprocess.CompletedProcess:
    result = subprocess.run(command, cwd=clone, env=environment(clone), capture_output=True, text=True)
    if check and result.returncode:
        pytest.fail(
            f"{' '.join(command)} exited with {result.returncode}:\n{(result.stdout + result.stderr)[-4000:]}"
        )
    return result


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    return make_clone(tmp_path_factory.mktemp("clone") / "repository")


def repro(clone: Path, *arguments: str) -> str:
    return run(clone, *GRAPH, *arguments).stdout


def ran(output: str) -> list[str]:
    """Names of stages; those of another paper's graph as ``ibpo/train``."""
    found = [name.rpartition("dvc.yaml:") for name in re.findall(r"Running stage '([^']+)'", output)]
    return [folder.removeprefix(f"{SMOKE}/") + name for folder, _, name in found]


def locked(clone: Path) -> dict[str, str]:
    """Hash of every output, by path."""
    locks = [YAML(typ="safe").load(path) for path in (clone / SMOKE).rglob("dvc.lock")]
    return {o["path"]: o["md5"] for lock in locks for stage in lock["stages"].values() for o in stage["outs"]}


def test_killed_in_the_middle_of_a_training_and_run_again(clone):
    """kill -9 of dvc while a training runs: no orphan, nothing half-written, and the rest finishes."""
    start = time.monotonic()
    process = subprocess.Popen(
        GRAPH,
        cwd=clone, env=environment(clone), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    partial = clone / ".work/partial"
    checkpoints = [f"runs__smoke__{stage}/**/seed*/lag*/checkpoint-*.pt" for stage in ("train__*", "ablate")]

    def found() -> list[Path]:
        return [path for pattern in checkpoints for path in partial.glob(pattern)]

    deadline = time.monotonic() + 1800  # the other papers' graphs may come first
    while not found():
        assert process.poll() is None, "dvc ended before the first training checkpoint"
        assert time.monotonic() < deadline, "no checkpoint"
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    slug = found()[0].relative_to(partial).parts[0].split("__")[2:]  # `train` and its arm, or `ablate`
    stage = "@".join(slug)
    KILLED.update(stage=stage)
    assert not (clone / "runs/smoke" / "/".join(slug)).exists(), "a training that was killed left an output"
    first = time.monotonic() - start
    start = time.monotonic()
    done = set(locked(clone))
    output = repro(clone)
    assert stage in ran(output)
    timing = json.loads((clone / f"runs/smoke/timings/{'__'.join(slug)}.json").read_text())
    assert timing["resumed"] is True, "the killed training started over"
    assert "problems" not in ran(output) and "base" not in ran(output), "finished stages were run again"
    assert {"runs/smoke/problems", "runs/smoke/base"} <= done
    print(f"\nsmoke graph: {first:.0f} s until the kill, {time.monotonic() - start:.0f} s after it")
    assert json.loads((clone / "reports/smoke/claims.json").read_text())


def test_a_finished_tree_runs_nothing(clone):
    before = {p: p.stat().st_mtime_ns for p in (clone / "reports").rglob("*")}
    start = time.monotonic()
    output = repro(clone)
    elapsed = time.monotonic() - start
    assert ran(output) == [] and "up to date" in output
    assert before == {p: p.stat().st_mtime_ns for p in (clone / "reports").rglob("*")}
    print(f"\nfinished tree: {elapsed:.1f} s")


@pytest.mark.fault("half-a-checkpoint")
def test_a_killed_and_resumed_run_ends_as_an_undisturbed_one(clone):
    """Forced, without unfinished work or a warm server: a training, its evaluation, tables."""
    before = locked(clone)
    shutil.rmtree(clone / ".work", ignore_errors=True)
    killed = KILLED["stage"]
    stages = [
        "base",
        killed,
        "evaluate_ablations" if killed == "ablate" else killed.replace("train", "evaluate"),
        *"accuracy training dynamics surrogate".split(),
    ]
    for stage in stages:
        output = run(clone, "dvc", "repro", "--force", "--single-item", f"{SMOKE}/dvc.yaml:{stage}").stdout
        assert ran(output) == [stage]
    assert locked(clone) == before


def test_the_report_lists_everything_and_reads_as_declared(clone):
    folder = clone / "reports/smoke"
    artifacts = json.loads((folder / "artifacts.json").read_text())
    assert len(artifacts) == 32
    rendered = {row["id"] for row in artifacts if row["status"] == "rendered"}
    assert rendered == {row["id"] for row in artifacts}
    for row in artifacts:
        assert {"id", "paper", "kind", "title", "status", "files", "stage", "scale", "seeds", "n"} <= set(row)
        assert row["status"] in ("rendered", "not_run")
        assert all((folder / name).is_file() for name in row["files"])
    claims = {row["id"]: row for row in json.loads((folder / "claims.json").read_text())}
    assert len(claims) == 23
    for row in claims.values():
        assert row["verdict"] in ("supported", "contradicted", "open") and row["test"]
        assert set(row["artifacts"]) <= {a["id"] for a in artifacts}
        assert row["status"] == "judged" and row["scale"] == "smoke" and row["test"] != "not run"


def test_notebooks_under_nbval(clone):
    """Stored outputs against a new execution, on the results that the smoke graph just made."""
    options = "--nbval --nbval-current-env --nbval-cell-timeout 300 -p no:cacheprovider"
    options += f" --nbval-sanitize-with notebooks/sanitize.cfg --ignore-glob=*/{OF_MODELS}"
    command = [str(BIN / "python"), "-m", "pytest", *options.split(), "notebooks"]
    result = run(clone, *command, check=False)
    tail = (result.stdout + result.stderr)[-6000:]
    assert result.returncode == 0, tail
    assert int(re.search(r"(\d+) passed", tail).group(1)) > 60
    print("\n" + tail.strip().splitlines()[-1])


def test_changing_nfpos_horizon_runs_nfpo_again_and_nothing_else(clone):
    path = clone / SMOKE / "params.yaml"
    text = path.read_text()
    changed = text.replace("nfpo: {objective: nfpo, horizon: 4", "nfpo: {objective: nfpo, horizon: 3")
    assert changed != text
    path.write_text(changed)
    names = ran(repro(clone))
    path.write_text(text)
    assert sorted(names) == sorted(
        "inputs train@nfpo evaluate@nfpo training accuracy dynamics ablations surrogate report".split()
    )


def test_going_back_takes_results_from_the_cache(clone):
    """The old value again: DVC knows those results, and what comes out is what was there before."""
    output = repro(clone)
    assert "train@nfpo" not in ran(output)
    finished = repro(clone)
    assert ran(finished) == []
