"""LiveCodeBench: dates, and the published encoding of its tests.

A record's ``private_test_cases`` is JSON, or base64 of zlib of a pickled string that holds JSON [public:
livecodebench/code_generation_lite]. Unpickling can run anything, so the unpickler here knows no globals:
whatever is not made of plain strings, numbers, lists and dicts is refused.
"""

from __future__ import annotations

import base64
import binascii
import calendar
import io
import json
import pickle
import re
import zlib
from collections.abc import Mapping
from typing import Any

MAX_BYTES = 1 << 30  # choice: of one problem's decoded tests; compressed bombs stop here
_DATE = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2}))?)?")


class _NoGlobals(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it names a persistent object")


def decode_tests(encoded: str) -> list[dict[str, Any]]:
    """The tests of one field: a list of ``{"input", "output", "testtype"}``.

    Raises:
        ValueError: the field has neither of the two published forms, or would load more than plain data.
    """
    try:
        tests = json.loads(encoded)
    except json.JSONDecodeError:
        tests = _decode_binary(encoded)
    if isinstance(tests, str):  # JSON within JSON
        tests = json.loads(tests)
    if not isinstance(tests, list) or not all(
        isinstance(test, dict) and {"input", "output", "testtype"} <= test.keys() for test in tests
    ):
        raise ValueError("tests are not a list of objects with `input`, `output` and `testtype`")
    return tests


def _decode_binary(encoded: str) -> Any:
    try:
        packed = base64.b64decode(encoded.encode("ascii"), validate=True)
        stream = zlib.decompressobj()
        payload = stream.decompress(packed, MAX_BYTES)
    except (UnicodeEncodeError, binascii.Error, zlib.error) as error:
        raise ValueError(f"tests are neither JSON nor base64 of zlib: {error}") from None
    if stream.unconsumed_tail or not stream.eof:
        raise ValueError(f"tests are cut off, or larger than {MAX_BYTES} bytes")
    try:
        value = _NoGlobals(io.BytesIO(payload)).load()
    except Exception as error:  # a damaged pickle raises nearly anything
        raise ValueError(f"tests are a pickle that is not plain data: {error}") from None
    try:
        return json.loads(value) if isinstance(value, (str, bytes)) else value
    except ValueError as error:
        raise ValueError(f"tests are not JSON once unpickled: {error}") from None


def all_tests(tests: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Public and private tests of ``BenchmarkProblem.tests``."""
    private = tests.get("private_test_cases")
    return [*tests["public_tests"], *(decode_tests(private) if private else [])]


def program_record(tests: Mapping[str, Any]) -> dict[str, Any]:
    """``BenchmarkProblem.tests`` in the form that :mod:`rlvr.verifiers.programs` takes.

    Private tests of LiveCodeBench are decoded here and not on loading, since together they fill gigabytes;
    other benchmarks' tests are as they were.
    """
    record = {name: value for name, value in tests.items() if name != "private_test_cases"}
    if tests.get("private_test_cases"):
        record["private_tests"] = decode_tests(tests["private_test_cases"])
    return record


def parse_window(window: tuple[str, str]) -> tuple[str, str]:
    """First and last day, inclusive; a month or a year alone means all of it.

    Raises:
        ValueError: not two dates ``YYYY[-MM[-DD]]`` in order.
    """
    try:
        start, end = (_day(text, last) for text, last in zip(window, (False, True), strict=True))
    except (TypeError, ValueError):
        start, end = "", ""
    if not start or start > end:
        raise ValueError(
            f"window={window!r}: allowed are two dates YYYY[-MM[-DD]] in order, both inclusive, or 'all'"
        )
    return start, end


def _day(text: str, last: bool) -> str:
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    year, month = int(match[1]), int(match[2] or (12 if last else 1))
    day = int(match[3] or (calendar.monthrange(year, month)[1] if last else 1))
    if not 1 <= month <= 12 or not 1 <= day <= calendar.monthrange(year, month)[1]:
        raise ValueError(text)
    return f"{year:04}-{month:02}-{day:02}"
