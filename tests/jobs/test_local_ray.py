"""A Ray of this machine: what is left of one is found, and cleared away. With a process in Ray's place."""

import subprocess
import sys
import time

import pytest

from rlvr.engines.jobs import local_ray
from rlvr.engines.jobs.client import NoRay
from rlvr.engines.jobs.local_ray import NOTE, _processes, alone, stop, stop_left
from rlvr.storage import write_json


@pytest.fixture
def left(tmp_path):
    """(folder, process) of a Ray that does not answer any more, with a child."""
    temporary = tmp_path / "rlvr-ray-x"
    temporary.mkdir()
    (temporary / "token").write_text("secret")
    program = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        "print('up', flush=True)\ntime.sleep(100)"
    )
    command = [sys.executable, "-c", program, f"--temp-dir={temporary}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    values = {"address": "http://127.0.0.1:9", "temporary": str(temporary), "token": str(temporary / "token")}
    write_json(tmp_path / NOTE, values)
    yield tmp_path, process
    process.kill()
    process.wait()


def test_stops_what_is_noted_with_its_children(left):
    folder, process = left
    temporary = folder / "rlvr-ray-x"
    assert len(_processes(temporary)) == 2
    assert stop(folder) is True
    assert process.wait(5) is not None and not _processes(folder / "rlvr-ray-x")
    assert not _processes(temporary) and not temporary.exists() and not (folder / NOTE).exists()
    assert stop(folder) is False


def test_one_that_was_left_is_stopped_unless_somebody_uses_it(left, monkeypatch):
    folder, process = left
    monkeypatch.setattr(local_ray, "connect", lambda address, token=None: (address, token))
    asked = []

    def before(connected):
        assert process.poll() is None
        asked.append(connected())

    with alone(folder):
        assert stop_left(folder, before) is False
    assert process.poll() is None and (folder / NOTE).exists() and not asked
    assert stop_left(folder, before) is True
    assert asked == [("http://127.0.0.1:9", "secret")]
    assert process.wait(5) is not None and not (folder / NOTE).exists()
    assert stop_left(folder) is False


def test_one_that_does_not_answer_is_cleared_away(left, monkeypatch):
    folder, process = left

    def refuse(address, token=None):
        assert (address, token) == ("http://127.0.0.1:9", "secret")
        raise NoRay("nobody there")

    monkeypatch.setattr(local_ray, "connect", refuse)
    assert local_ray._alive(folder / NOTE) is None
    assert (
        process.wait(5) is not None and not _processes(folder / "rlvr-ray-x") and not (folder / NOTE).exists()
    )


def test_one_that_answers_is_used_again_and_ended(left, monkeypatch):
    folder, process = left
    monkeypatch.setattr(local_ray, "connect", lambda address, token=None: (address, token))
    monkeypatch.setattr(local_ray, "_start", None)
    with local_ray.local_ray(folder) as connected:
        assert connected() == ("http://127.0.0.1:9", "secret")
        assert process.poll() is None
    assert (
        process.wait(5) is not None and not _processes(folder / "rlvr-ray-x") and not (folder / NOTE).exists()
    )


def test_ended_also_if_its_note_was_removed(left, monkeypatch):
    folder, process = left
    monkeypatch.setattr(local_ray, "connect", lambda address, token=None: None)
    with local_ray.local_ray(folder):
        (folder / NOTE).unlink()
    assert process.wait(5) is not None and not _processes(folder / "rlvr-ray-x")


def test_an_address_that_is_set_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "http://there:8265")
    monkeypatch.setattr(local_ray, "connect", lambda: "client")
    with local_ray.local_ray(tmp_path) as connected:
        assert connected() == "client"
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.setattr(
        local_ray.subprocess,
        "run",
        lambda *a, **k: subprocess.CompletedProcess(a, 1, "", "ports are taken\nAPI_TOKEN=abcdefghijklmn"),
    )
    begun = time.monotonic()
    with pytest.raises(NoRay, match=r"`ray start` ended with status 1:\nports are taken") as caught:
        with local_ray.local_ray(tmp_path):
            pass
    assert "abcdefghijklmn" not in str(caught.value)
    assert not (tmp_path / NOTE).exists() and time.monotonic() - begun < 30


def test_a_start_on_a_busy_machine_is_tried_once_more(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    starts = []

    def slow(words, **options):
        starts.append(words)
        return subprocess.CompletedProcess(words, 1, "", f"The current node {local_ray.TOO_SLOW}. This could")

    monkeypatch.setattr(local_ray.subprocess, "run", slow)
    with pytest.raises(NoRay, match="timed out during startup"):
        with local_ray.local_ray(tmp_path):
            pass
    assert len(starts) == 2 and not (tmp_path / NOTE).exists()
