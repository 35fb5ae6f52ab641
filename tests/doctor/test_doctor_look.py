"""``rlvr doctor``: facts are gathered from a machine, and become lines, JSON and an exit code."""

import fcntl
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from rlvr.cli import main
from rlvr.commands.doctor import lines
from rlvr.doctor import look, machine, packages
from rlvr.doctor.finding import Finding
from rlvr.doctor.services import Answer

PROJECT = Path(__file__).resolve().parents[2]
CHECKS = "python versions requirements antlr runs cache memory cores threads gpu ray data dvc kernel".split()


@pytest.fixture
def dashboard():
    """An address that answers what the test puts into ``replies``, and what was asked."""
    asked, replies = [], [(200, b'{"ray_version": "2.60.0"}')]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["Authorization"]))
            status, body = replies[-1]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", replies, asked
    server.shutdown()
    server.server_close()


@pytest.fixture
def quiet(monkeypatch):
    """Nothing that depends on this machine's cards, Ray or data."""
    monkeypatch.chdir(PROJECT)
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE", "RLVR_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(look, "torch_facts", lambda: machine.Torch("2.13.0+cpu", None))
    monkeypatch.setattr(look, "driver_version", lambda: None)
    monkeypatch.setattr(look, "ask", lambda address, token: Answer(None, "refused"))


def test_json_has_every_check(quiet, capsys):
    status = main(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    names = [finding["check"] for finding in told["findings"]]
    assert [name for name in dict.fromkeys(names) if name != "verl plugin"] == CHECKS
    faults = [finding for finding in told["findings"] if finding["state"] == "fault"]
    assert told["faults"] == len(faults) and status == (1 if faults else 0)
    assert told["environment"] in packages.ENVIRONMENTS and all(finding["fix"] for finding in faults)
    assert not any("could not be looked at" in finding["text"] for finding in told["findings"])


def test_a_fault_is_a_line_with_its_fix_and_exit_code_one(quiet, capsys, monkeypatch):
    monkeypatch.setenv("RLVR_DATA", "/nowhere")
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out.splitlines()
    (at,) = [i for i, line in enumerate(shown) if line.startswith("fault  data ")]
    assert (
        "RLVR_DATA=/nowhere: no such folder" in shown[at] and shown[at + 1].strip() == "fix: unset RLVR_DATA"
    )


def test_no_fault_is_exit_code_zero(quiet, capsys, monkeypatch):
    found = [Finding("python", "ok", "3.11.7"), Finding("data", "note", "none here", "fetch")]
    monkeypatch.setattr(look, "examine", lambda root, scale: (packages.ENVIRONMENTS["laptop"], found))
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 faults, 1 notes, 1 ok"
    found.append(Finding("ray", "fault", "gone", "ray start"))
    assert main(["doctor"]) == 1


def test_the_lines():
    shown = lines([Finding("a", "ok", "fine"), Finding("long name", "note", "odd", "do this")])
    assert "ok   " in shown[0] and shown[0].endswith("  a          fine")
    assert shown[2].strip() == "try: do this" and shown[2].index("try") == shown[0].index("fine") - len(
        shown[0]
    ) + len("ok     a          fine")


def test_a_check_that_breaks_stops_no_other(quiet, monkeypatch):
    def broken():
        raise OSError("no /proc here")

    monkeypatch.setattr(look, "memory_bytes", broken)
    _, findings = look.examine(PROJECT)
    (found,) = [finding for finding in findings if finding.check == "memory"]
    assert found.state == "note" and "OSError: no /proc here" in found.text
    assert findings[-1].check == "kernel"


def test_an_unknown_scale(quiet, capsys):
    assert main(["doctor", "--scale", "papr"]) == 2
    assert (
        "allowed are smoke, laptop, overnight, pretrained, cluster, one_gpu, paper" in capsys.readouterr().err
    )


def test_needs_of_experiments_are_those_of_their_plan():
    from rlvr.engines.jobs.experiments import load_experiments
    from rlvr.engines.jobs.plan import plan

    file = load_experiments(PROJECT / "pipelines/scales/one_gpu/experiments.yaml")
    needs = look.needs_of(PROJECT, "one_gpu")
    assert needs.gpus == 1 and needs.runs >= plan(file.get("nfpo-0.6b-nfpo")).disk > 1e9
    assert look.needs_of(PROJECT, "paper").gpus == 8


# --- facts ---------------------------------------------------------------------------------------------


def test_ray_answers(dashboard):
    address, replies, asked = dashboard
    assert look.ask(f"{address}/", None) == Answer(200, version="2.60.0")
    assert look.ask(address, "secret") == Answer(200, version="2.60.0")
    assert asked == [("/api/version", None), ("/api/version", "Bearer secret")]
    replies.append((401, b""))
    assert look.ask(address, None) == Answer(401)
    replies.append((200, b"<html>"))
    assert look.ask(address, None).status == 404


def test_nobody_answers():
    answer = look.ask("http://127.0.0.1:1", None)
    assert answer.status is None and "refused" in answer.error


def test_the_token_goes_out_only_where_it_is_asked_for_and_is_never_shown(dashboard, monkeypatch, tmp_path):
    address, replies, asked = dashboard
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "correct-horse-battery")
    assert look.look_at_ray("2.60.0", True).state == "ok" and asked[-1][1] is None
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    replies.append((401, b"correct-horse-battery"))
    found = look.look_at_ray("2.60.0", True)
    assert asked[-1][1] == "Bearer correct-horse-battery" and found.state == "fault"
    assert "horse" not in found.text + found.fix


def test_a_token_is_found_where_ray_looks(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert look.ray_token() is None
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("home\n")
    assert look.ray_token() == "home"
    (tmp_path / "own").write_text("own")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "own"))
    assert look.ray_token() == "own"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "variable")
    assert look.ray_token() == "variable"


def test_a_held_lock_and_a_half_written_one(tmp_path):
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    lock = tmp_path / ".dvc/tmp/lock"
    lock.write_text("")
    assert look.repository(tmp_path).holder is None and look.repository(tmp_path).lock is None
    (tmp_path / ".dvc/tmp/rwlock").write_text("{")
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = look.repository(tmp_path)
    assert found.git and found.dvc and found.lock == "{"
    if Path("/proc/locks").read_text().strip():  # a sandbox may show none
        assert found.holder == os.getpid()


def test_where_the_cache_is(tmp_path):
    (tmp_path / ".dvc").mkdir()
    assert look.cache_folder(tmp_path) == tmp_path / ".dvc" / "cache"
    (tmp_path / ".dvc/config").write_text("[core]\n    analytics = false\n[cache]\n    dir = /big/cache\n")
    assert look.cache_folder(tmp_path) == Path("/big/cache")
    (tmp_path / ".dvc/config.local").write_text("[cache]\n    dir = ../../shared\n")
    assert look.cache_folder(tmp_path) == tmp_path / ".dvc" / "../../shared"


def test_free_space_of_a_folder_that_is_not_there_yet(tmp_path):
    where, free = look.free_at(tmp_path / "runs" / "laptop")
    assert where == str(tmp_path) and free > 0


def test_of_two_copies_the_first_is_what_is_imported(tmp_path, monkeypatch):
    for folder, version in (("first", "4.13.2"), ("second", "4.9.3")):
        info = tmp_path / folder / f"antlr4_python3_runtime-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: antlr4-python3-runtime\nVersion: {version}\n"
        )
    monkeypatch.setattr("sys.path", [str(tmp_path / "first"), str(tmp_path / "second")])
    assert look.copies("antlr4-python3-runtime") == ["4.13.2", "4.9.3"]
    assert look.installed_packages() == {"antlr4-python3-runtime": "4.13.2"}
