"""Tests of LiveCodeBench are read in both published encodings, and nothing else is ever run."""

import base64
import json
import os
import pickle
import zlib

import pytest

from rlvr.problems.benchmarks import all_tests, decode_tests, livecodebench, program_record
from rlvr.problems.benchmarks.livecodebench import parse_window

TESTS = [
    {"input": "3\n1 2 3\n", "output": "6\n", "testtype": "stdin"},
    {"input": '[1, 2]\n"é"', "output": "null", "testtype": "functional"},
]


def pack(payload: bytes) -> str:
    return base64.b64encode(zlib.compress(payload)).decode()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_both_encodings(protocol):
    text = json.dumps(TESTS)
    assert decode_tests(text) == TESTS
    assert decode_tests(pack(pickle.dumps(text, protocol))) == TESTS  # as published
    assert decode_tests(pack(pickle.dumps(TESTS, protocol))) == TESTS
    assert decode_tests(json.dumps(text)) == TESTS


def test_a_published_string_typed_in():
    text = b'[{"input": "1", "output": "2", "testtype": "stdin"}]'  # 52 bytes, 0x34
    pickled = b"\x80\x04\x958\x00\x00\x00\x00\x00\x00\x00\x8c\x34" + text + b"\x94."
    assert decode_tests(pack(pickled)) == [{"input": "1", "output": "2", "testtype": "stdin"}]


def test_private_tests_follow_the_public_ones():
    private = pack(pickle.dumps(json.dumps(TESTS[1:])))
    assert all_tests({"public_tests": TESTS[:1], "private_test_cases": private}) == TESTS
    assert all_tests({"public_tests": TESTS[:1]}) == TESTS[:1]
    tests = {"id": "a", "public_tests": TESTS[:1], "private_test_cases": private}
    assert program_record(tests) == {"id": "a", "public_tests": TESTS[:1], "private_tests": TESTS[1:]}
    assert program_record({"id": "a", "test": "t"}) == {"id": "a", "test": "t"}


class Payload:
    """Unpickled without care, it makes a file."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_cannot_run_anything(tmp_path, protocol):
    mark = tmp_path / "ran"
    for payload in (
        Payload(os.mkdir, str(mark)),
        [Payload(os.mkdir, str(mark))],
        Payload(eval, f"__import__('os').mkdir({str(mark)!r})"),
        Payload(list),
    ):
        data = pickle.dumps(payload, protocol)
        with pytest.raises(ValueError, match="a pickle that is not plain data: it names "):
            decode_tests(pack(data))
        assert not mark.exists()
    pickle.loads(pickle.dumps(Payload(os.mkdir, str(mark)), protocol))  # the payload is a real one
    assert mark.exists()


def test_old_opcodes_cannot_either():
    for data in (b"cos\ngetcwd\n(tR.", b"(S'x'\nios\ngetcwd\n.", b"Pid\n.", b"\x82\x01."):
        with pytest.raises(ValueError, match="not plain data"):
            decode_tests(pack(data))


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        ("", "cut off"),
        ("not base64!", "neither JSON nor base64"),
        ("é", "neither JSON nor base64"),
        (base64.b64encode(b"not zlib").decode(), "neither JSON nor base64"),
        (pack(pickle.dumps("[]"))[:-8], "cut off|neither JSON nor base64"),
        (pack(b"not a pickle"), "not plain data"),
        (pack(pickle.dumps("[{")), "not JSON once unpickled"),
        (pack(pickle.dumps(7)), "not a list"),
        ("{}", "not a list"),
        ('["a"]', "not a list"),
        ('[{"input": "1"}]', "not a list of objects with"),
    ],
)
def test_what_is_none_of_it(encoded, message):
    with pytest.raises(ValueError, match=message):
        decode_tests(encoded)


def test_a_bomb_stops(monkeypatch):
    monkeypatch.setattr(livecodebench, "MAX_BYTES", 1000)
    text = json.dumps(TESTS)
    assert decode_tests(pack(pickle.dumps(text))) == TESTS
    with pytest.raises(ValueError, match="larger than 1000 bytes"):
        decode_tests(pack(pickle.dumps(text + " " * 2000)))


def test_windows():
    assert parse_window(("2025-02", "2025-05")) == ("2025-02-01", "2025-05-31")
    assert parse_window(("2024", "2024-02")) == ("2024-01-01", "2024-02-29")
    assert parse_window(("2025-02-03", "2025-02-03")) == ("2025-02-03", "2025-02-03")
