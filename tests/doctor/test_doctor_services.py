"""Checks of Ray, data, DVC and the kernel, on made-up answers."""

import os

import pytest

from rlvr.doctor import services
from rlvr.doctor.services import Answer, Repository

HEAD = "http://head:8265"
OK = Answer(200, version="2.60.0")


def ray(installed="2.60.0", address=HEAD, given=True, answer=OK, mode=None, token=False, needed=True):
    return services.ray(installed, address, given, answer, mode, token, needed)


def test_the_address_of_ray():
    assert services.ray_address({}, "default") == ("default", False)
    assert services.ray_address({"RAY_ADDRESS": HEAD}, "default") == (HEAD, True)
    both = {"RAY_ADDRESS": HEAD, "RAY_API_SERVER_ADDRESS": "http://other:8265"}
    assert services.ray_address(both, "default") == ("http://other:8265", True)
    assert services.ray_address({"RAY_ADDRESS": ""}, "default") == ("default", False)


@pytest.mark.parametrize(
    ("facts", "state", "text"),
    [
        ({}, "ok", "Ray 2.60.0 answers at http://head:8265"),
        ({"installed": None}, "fault", "not installed"),
        ({"installed": None, "given": False, "needed": False}, "ok", "only `rlvr job` needs it"),
        ({"installed": None, "needed": False}, "fault", "not installed"),  # RAY_ADDRESS is set
        ({"answer": Answer(None, "Connection refused")}, "fault", "(Connection refused)"),
        ({"answer": Answer(None), "given": False}, "ok", "`ray start --head` starts one"),
        ({"address": "ray://head:10001", "answer": None}, "fault", "not to port 6379 or 10001"),
        ({"address": "head:6379", "answer": None}, "fault", "not to port 6379 or 10001"),
        ({"answer": Answer(401)}, "fault", "asks for a token; RAY_AUTH_MODE is not set"),
        ({"answer": Answer(401), "mode": "disabled"}, "fault", "RAY_AUTH_MODE is disabled"),
        ({"answer": Answer(401), "mode": "token", "token": True}, "fault", "refuses the token"),
        ({"mode": "token", "token": True}, "ok", "answers"),
        ({"mode": "TOKEN", "token": True}, "ok", "answers"),
        ({"mode": "token"}, "fault", "no token here"),
        ({"mode": "tokn"}, "fault", "allowed are token and disabled"),
        ({"mode": "disabled"}, "note", "whoever reaches it"),
        ({"answer": Answer(404)}, "fault", "is it Ray's dashboard?"),
        (
            {"answer": Answer(200, version="2.50.0")},
            "note",
            "Ray 2.50.0 answers at http://head:8265, here is 2.60.0",
        ),
    ],
)
def test_ray(facts, state, text):
    found = ray(**facts)
    assert (found.check, found.state) == ("ray", state) and text in found.text


def test_fixes_of_ray():
    assert ray(answer=Answer(401)).fix == "export RAY_AUTH_MODE=token"
    assert ray(answer=Answer(200, version="2.50.0")).fix == "pip install 'ray[default]==2.50.0'"
    assert ray(address="head:6379").fix == "export RAY_ADDRESS=http://HEAD:8265"


def test_data():
    none = services.data(None, False, [], 23, fetches=True)
    assert none.state == "note" and none.fix == "rlvr data fetch math500 amc23"
    assert services.data(None, False, [], 23, fetches=False).fix.startswith(
        "pip install -e '.[evaluation]' && "
    )
    wrong = services.data("/nowhere", False, [], 23, fetches=True)
    assert wrong.state == "fault" and "RLVR_DATA=/nowhere: no such folder" in wrong.text
    some = services.data("/data", True, [f"set{i}" for i in range(8)], 23, fetches=True)
    assert some.state == "ok" and "8 of 23" in some.text and "set5 and 2 more" in some.text


@pytest.mark.parametrize(
    ("installed", "repository", "needed", "state", "text"),
    [
        ("3.67.1", Repository(git=True, dvc=True), True, "ok", "3.67.1"),
        ("3.67.1", Repository(git=True, dvc=True, lock='{"a": {}}'), True, "ok", "3.67.1"),
        ("3.67.1", Repository(git=True, dvc=True, lock=""), True, "fault", "cut short"),
        ("3.67.1", Repository(git=True, dvc=True, lock='{"a": '), True, "fault", "cut short"),
        ("3.67.1", Repository(git=True, dvc=True, lock='{"a": ', holder=7), True, "note", "process 7"),
        ("3.67.1", Repository(git=False, dvc=True), True, "fault", "not under git"),
        ("3.67.1", Repository(git=True, dvc=False), True, "fault", "no checkout"),
        (None, Repository(git=True, dvc=True), True, "fault", "not installed"),
        (None, Repository(git=True, dvc=True), False, "ok", "not installed"),
    ],
)
def test_dvc(installed, repository, needed, state, text):
    found = services.dvc(installed, repository, needed)
    assert found.state == state and text in found.text


def test_who_holds_a_lock():
    device = os.makedev(0xFE, 0x01)
    text = (
        "1: POSIX  ADVISORY  WRITE 11 fe:01:99 0 EOF\n"
        "2: FLOCK  ADVISORY  WRITE 22 fe:01:1234 0 EOF\n"
        "2: -> FLOCK  ADVISORY  WRITE 33 fe:01:99 0 EOF\n"
        "3: FLOCK  ADVISORY  WRITE 44 fe:02:1235 0 EOF\n"
    )
    assert services.lock_holder(text, device, 1234) == 22
    assert services.lock_holder(text, device, 99) == 11
    assert services.lock_holder(text, device, 1235) is None
    assert services.lock_holder("", device, 1) is None


def test_a_kernel():
    here = "/home/me/.venv/bin/python"
    assert services.kernel("python3", ["python", "-m", "ipykernel"], here, True).state == "ok"
    assert services.kernel("python3", ["/home/me/.venv/bin/python3.11", "-m"], here, True).state == "ok"
    other = services.kernel("python3", ["/usr/bin/python3", "-m"], here, True)
    assert other.state == "fault" and "/usr/bin/python3" in other.text
    assert other.fix.startswith("python -m ipykernel install --sys-prefix --name python3 ")
    assert services.kernel("python3", None, here, True).fix.startswith("pip install ipykernel && python -m")
    assert services.kernel("python3", None, here, False).state == "ok"
