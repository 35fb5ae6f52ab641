"""Parts of a graph side by side: which they are, that they run at once, what a failure or a kill leaves."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from pipelines import lanes

# a and b each wait for the other: one after the other they would never end
SEEN = "test -f {other}.here"
MEET = f"touch {{me}}.here; for i in $(seq 300); do {SEEN} && break; sleep 0.1; done; {SEEN}"
GRAPH = """
stages:
  a: {{cmd: '{a}; echo a > a', outs: [a]}}
  a2: {{cmd: cat a > a2, deps: [a], outs: [a2]}}
  last: {{cmd: cat a2 part/b > last, deps: [a2, part/b], outs: [last]}}
"""
PART = "stages:\n  b: {{cmd: '{b}; echo b > b', outs: [b]}}\n"


@pytest.fixture
def graph(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(lanes.Path(lanes.__file__).parents[1]))
    subprocess.run([*lanes.DVC, "init", "--no-scm", "-q"], check=True)

    def write(a="true", b="true"):
        (tmp_path / "part").mkdir()
        (tmp_path / "dvc.yaml").write_text(GRAPH.format(a=a))
        (tmp_path / "part" / "dvc.yaml").write_text(PART.format(b=b))

    return write


def command():
    return [sys.executable, "-m", "pipelines.lanes", "dvc.yaml"]


def test_lanes_are_what_shares_no_stage_before_the_last(graph, monkeypatch):
    graph()
    assert sorted(lanes.lanes_of("dvc.yaml").values()) == [["a2"], ["part/dvc.yaml:b"]]
    assert list(lanes.lanes_of("part/dvc.yaml")) == []  # one stage: nothing before the last


@pytest.mark.parametrize(
    ("addresses", "name"),
    [
        (["base", "pipelines/x"], "nfpo"),
        (["pipelines/scales/smoke/dvc.yaml:base"], "nfpo"),
        (
            ["pipelines/scales/laptop/ibpo/dvc.yaml:train@a", "pipelines/scales/laptop/ibpo/dvc.yaml:base"],
            "ibpo",
        ),
        (
            ["pipelines/scales/smoke/mpo/dvc.yaml:base", "pipelines/scales/smoke/mpo/program/dvc.yaml:base"],
            "mpo",
        ),
    ],
)
def test_a_lane_has_the_name_of_its_folder(addresses, name):
    assert lanes._name(addresses) == name


def test_lanes_run_at_once_and_dvc_finds_the_whole_graph_finished(graph, tmp_path):
    root = str(tmp_path)
    graph(a=MEET.format(me=f"{root}/a", other=f"{root}/b"), b=MEET.format(me=f"{root}/b", other=f"{root}/a"))
    done = subprocess.run(command(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "last").read_text() == "a\nb\n"
    assert "Running stage 'part/dvc.yaml:b'" in done.stdout
    clean = subprocess.run([*lanes.DVC, "status"], capture_output=True, text=True)
    assert "up to date" in clean.stdout


def test_a_failed_lane_ends_the_others_and_what_is_finished_is_kept(graph, tmp_path):
    graph(a="sleep 15", b="exit 3")
    began = time.monotonic()
    done = subprocess.run(command(), capture_output=True, text=True)
    assert done.returncode != 0 and time.monotonic() - began < 100
    assert "failed; " in done.stdout and "is stopped, what is finished is kept" in done.stdout
    assert not (tmp_path / "last").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own end of a child with its parent")
def test_killed_lanes_leave_no_dvc_behind(graph):
    graph(a="sleep 300", b="sleep 300")
    process = subprocess.Popen(command(), stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.rstrip().endswith("sleep 300; echo a > a"):
            break
    children = [p for p in psutil.Process(process.pid).children() if "repro" in p.cmdline()]
    assert len(children) == 2
    shells = [grandchild for child in children for grandchild in child.children(recursive=True)]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    for shell in shells:  # ours are runners, which end with their DVC; these are plain shells
        shell.kill()


def test_a_graph_that_is_not_there():
    assert lanes.main(["nowhere/dvc.yaml"]) == 2
