"""Files of problems: one JSON object a line, as ``<name>.jsonl`` or ``<name>.jsonl.gz``."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rlvr.problems.benchmarks.catalogue import Benchmark
from rlvr.problems.benchmarks.problem import BenchmarkProblem
from rlvr.storage import atomic_path

Record = dict[str, Any]
INTEGER = re.compile(r"-?\d+")
MAX_DIGITS = 1000  # of a whole answer
_ANSWER_TYPES = {"Numerical": "number", "Expression": "expression", "Tuple": "tuple", "Interval": "interval"}
_ANSWER_TYPES |= {"Equation": "expression"}


class BadRecord(ValueError):
    """A record that is no problem; :func:`read_records` and :func:`examine` add the file and the line."""


def read_records(path: Path) -> Iterator[tuple[int, Record | BadRecord]]:
    """Line numbers and objects of a file; for a line that is none what is wrong with it, where.

    A damaged archive is a fault of its last readable line; nothing after it can be read.
    """
    number = 0
    try:
        opened = (gzip.open if path.suffix == ".gz" else open)(
            path, "rt", encoding="utf-8", errors="surrogateescape"
        )
        with opened as lines:  # the decoder reads ahead: a byte that is no UTF-8 is found here, line by line
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    try:
                        yield number, _record(line)
                    except (ValueError, RecursionError) as error:  # JSON and UTF-8 included
                        yield number, BadRecord(f"{path}:{number}: {error}")
    except (OSError, EOFError, zlib.error) as error:
        yield number, BadRecord(f"{path}: cannot be read after line {number}: {error}")


def _record(line: str) -> Record:
    if not line.isascii():
        line.encode("utf-8", "surrogateescape").decode("utf-8")
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError(f"holds a {type(record).__name__}, must be a JSON object")
    return record


def write_records(path: Path, records: Iterable[Record]) -> tuple[int, str]:
    """Write a ``.jsonl.gz`` that is complete or absent, the same bytes for the same records.

    Returns:
        The number of records and the sha256 of the uncompressed text.
    """
    count, digest = 0, hashlib.sha256()
    with atomic_path(path) as partial, open(partial, "wb") as raw:
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as out:
            for record in records:
                line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
                out.write(line)
                digest.update(line)
                count += 1
    return count, digest.hexdigest()


def content_sha256(path: Path) -> str:
    """sha256 of the uncompressed text."""
    digest = hashlib.sha256()
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None
    return digest.hexdigest()


def read_problems(path: Path, benchmark: Benchmark) -> list[BenchmarkProblem]:
    """The problems of a file, in its order.

    Raises:
        ValueError: a record that is no problem of this benchmark, or an id that occurs twice; names the
            file, the line and the field.
    """
    problems = []
    for found in examine(path, benchmark):
        if isinstance(found, BadRecord):
            raise ValueError(str(found))
        problems.append(found)
    return problems


def examine(path: Path, benchmark: Benchmark) -> Iterator[BenchmarkProblem | BadRecord]:
    """Every record of a file: as a problem, or what is wrong with it, where."""
    lines: dict[str, int] = {}
    for number, record in read_records(path):
        if isinstance(record, BadRecord):
            yield record
            continue
        try:
            problem = to_problem(record, benchmark)
            if problem.id in lines:
                raise BadRecord(f"field 'id': {problem.id!r} is that of line {lines[problem.id]}")
        except BadRecord as error:
            yield BadRecord(f"{path}:{number}: {error}")
            continue
        lines[problem.id] = number
        yield problem


def to_problem(record: Record, benchmark: Benchmark) -> BenchmarkProblem:
    """One record of a file as a problem.

    Raises:
        BadRecord: names the field.
    """
    if benchmark.form == "livecodebench":
        return _contest_program(record, benchmark)
    return _function(record, benchmark) if benchmark.kind == "program" else _math(record, benchmark)


def _math(record: Record, benchmark: Benchmark) -> BenchmarkProblem:
    answer = published = require(record, "answer", str, empty=True).strip()
    if INTEGER.fullmatch(answer) and benchmark.answer_type == "integer":
        if len(answer) > MAX_DIGITS:
            raise BadRecord(f"field 'answer' has {len(answer)} digits, must have at most {MAX_DIGITS}")
        answer = str(int(answer))  # AIME 2024 is published with leading zeros
    core = ("id", "problem", "answer", "answers", "level", "subject")
    metadata = {name: value for name, value in record.items() if name not in core}
    if answer != published:
        metadata.setdefault("answer_as_published", published)
    answer_type = benchmark.answer_type
    if benchmark.form == "olympiadbench":
        kind = require(record, "answer_type", str, optional=True, empty=True)
        answer_type = _ANSWER_TYPES.get(kind, answer_type)
    if record.get("is_multiple_answer") is True or record.get("multi_answer") is True:
        answer_type = "list"
    return BenchmarkProblem(
        id=require(record, "id", str),
        benchmark=benchmark.name,
        prompt=require(record, "problem", str),
        answer=answer,
        kind="math",
        answer_type=answer_type,
        level=require(record, "level", int, optional=True),
        subject=require(record, "subject", str, optional=True),
        metadata=metadata,
    )


def _function(record: Record, benchmark: Benchmark) -> BenchmarkProblem:
    if "test" not in record and "base_input" in record:
        for name in ("base_input", "plus_input"):
            require(record, name, list, empty=True)
    else:
        require(record, "test", str)
    require(record, "entry_point", str)
    outside = ("split", "source_file")
    return BenchmarkProblem(
        id=require(record, "id", str),
        benchmark=benchmark.name,
        prompt=require(record, "prompt", str),
        kind="function",
        tests={name: value for name, value in record.items() if name not in outside},
        metadata={name: record[name] for name in outside if name in record},
    )


def _contest_program(record: Record, benchmark: Benchmark) -> BenchmarkProblem:
    public = require(record, "public_tests", list)
    for test in public:
        if not isinstance(test, dict) or not {"input", "output", "testtype"} <= test.keys():
            raise BadRecord("field 'public_tests': a test needs `input`, `output` and `testtype`")
    require(record, "starter_code", str, optional=True, empty=True)
    require(record, "private_test_cases", str, optional=True, empty=True)
    more = record.get("metadata")
    try:
        functional = isinstance(json.loads(more or "{}").get("func_name"), str)
    except (TypeError, ValueError, AttributeError):
        raise BadRecord(f"field 'metadata' is {more!r:.60}, must be a JSON object as text") from None
    if functional != (public[0]["testtype"] == "functional"):
        raise BadRecord("field 'metadata': `func_name` belongs to functional tests, and only to them")
    date = require(record, "contest_date", str)
    if re.match(r"\d{4}-\d{2}-\d{2}", date) is None:
        raise BadRecord(f"field 'contest_date' is {date!r}, must begin with YYYY-MM-DD")
    outside = ("problem", "difficulty", "title", "platform", "contest_id", "contest_date")
    return BenchmarkProblem(
        id=require(record, "id", str),
        benchmark=benchmark.name,
        prompt=require(record, "problem", str),
        kind="function" if functional else "stdin",
        level=require(record, "difficulty", str, optional=True),
        tests={name: value for name, value in record.items() if name not in outside},
        metadata={name: record[name] for name in outside[2:] if name in record},
    )


def require(record: Record, name: str, kind: type, *, optional: bool = False, empty: bool = False) -> Any:
    """A field, checked; BadRecord where it is missing, of another type, or empty."""
    value = record.get(name)
    if value is None:
        if optional:
            return None
        raise BadRecord(
            f"field {name!r} is missing: the record has {', '.join(map(str, record)) or 'no field'}"
        )
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadRecord(f"field {name!r} is a {type(value).__name__}, must be a {kind.__name__}")
    if not empty and kind in (str, list) and not (value.strip() if kind is str else value):
        raise BadRecord(f"field {name!r} is empty")
    return value
