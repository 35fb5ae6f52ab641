"""From a published row to a record of our form, one function per form.

Rows arrive with *our* field names (``source.fields`` of the catalogue), so that a renamed column is an edit
of the catalogue. A converter raises ValueError where a row is not what it expects.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rlvr.problems.benchmarks.catalogue import Benchmark

Record = dict[str, Any]

_DAPO_BEFORE = re.compile(
    r"^Solve the following math problem step by step\..*?to the problem\.\s*", re.DOTALL
)
_DAPO_AFTER = re.compile(r'\s*Remember to put your answer on its own line after "Answer:"\.\s*$')
_CJK = re.compile(r"[\u3400-\u9fff]")


def convert(rows: Iterable[Record], benchmark: Benchmark) -> Iterator[Record]:
    """Records in the rows' order; rows that repeat an earlier one of the same ``key`` are left out.

    Raises:
        ValueError: a row without a field of the catalogue, or of another form; names row and field.
    """
    finish = CONVERTERS[benchmark.form]
    fields = benchmark.source.fields
    keys: set[Any] = set()
    for number, row in enumerate(rows):
        missing = [name for name in fields.values() if name not in row]
        if missing:
            raise ValueError(
                f"row {number} has no field {', '.join(map(repr, missing))}: it has {', '.join(row)}. The "
                "published copy has changed: pin `revision`, or correct `fields`, in data/benchmarks.yaml"
            )
        record = {ours: row[published] for ours, published in fields.items()}
        try:
            if "key" in record:
                key = _key(record.pop("key"))
                if key in keys:
                    continue
                keys.add(key)
            index = len(keys) - 1 if keys else number
            record = finish(record)
            identity = benchmark.id.format(index=index, **record)
            record = {"id": identity} | {name: value for name, value in record.items() if name != "id"}
            if identity in benchmark.corrections and not record["answer"]:
                record |= {"answer": benchmark.corrections[identity], "answer_as_published": ""}
        except (KeyError, TypeError, IndexError, AttributeError, SyntaxError) as error:
            raise ValueError(f"row {number} is not as expected: {type(error).__name__}: {error}") from None
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from None
        yield record


def _key(value: Any) -> Any:
    return value["index"] if isinstance(value, dict) else value


def _whole(value: Any) -> str:
    """A whole number as digits: 27, 27.0, "27.0" and "025" alike."""
    text = str(value).strip()
    match = re.fullmatch(r"(-?)0*(\d+?)(?:\.0*)?", text)
    if match is None:
        raise ValueError(f"answer {text!r} is no whole number")
    return match[1] + match[2]


def last_boxed(solution: str) -> str:
    """The content of the last ``\\boxed{...}`` (or ``\\fbox``), braces matched.

    Raises:
        ValueError: there is none, or it does not end.
    """
    start = max(solution.rfind(r"\boxed"), solution.rfind(r"\fbox"))
    if start < 0:
        raise ValueError("the solution has no \\boxed answer")
    after = re.match(r"\\[a-z]+\s*", solution[start:]).end() + start
    if solution[after : after + 1] != "{":  # \boxed 2
        return solution[after:].split("$")[0].strip()
    depth = 0
    for end in range(after, len(solution)):
        depth += {"{": 1, "}": -1}.get(solution[end], 0)
        if solution[end] in "{}" and solution[end - 1] == "\\":
            depth -= {"{": 1, "}": -1}[solution[end]]  # \{ is no brace
        if depth == 0:
            return solution[after + 1 : end].strip()
    raise ValueError("the last \\boxed answer of the solution does not end")


def _aime(record: Record) -> Record:
    if "source" in record:
        match = re.search(r"(\d{4})_AIME_(I{1,2})_Problems/Problem_(\d+)", record["source"])
        if match is None:
            raise ValueError(f"source {record['source']!r} names no AIME problem")
        exam, number = match[2], int(match[3])
    else:  # numbered through both exams
        exam, number = (
            ("I", int(record["number"]))
            if int(record["number"]) <= 15
            else ("II", int(record["number"]) - 15)
        )
    return record | {"answer": _whole(record["answer"]), "exam": exam, "number": number}


def _amc(record: Record) -> Record:
    return record | {"answer": _whole(record["answer"]), "answer_as_published": record["answer"]}


def _amc12(record: Record) -> Record:
    match = re.search(r"(\d{4})_AMC_12([AB])_Problems/Problem_(\d+)", record["source"])
    if match is None:
        raise ValueError(f"source {record['source']!r} names no AMC 12 problem")
    return _amc(record) | {"year": match[1], "paper": match[2].lower(), "number": int(match[3])}


def _dapo(record: Record) -> Record:
    (message,) = record["prompt"]
    text = message["content"]
    problem = _DAPO_AFTER.sub("", _DAPO_BEFORE.sub("", text))
    if len(problem) == len(text):
        raise ValueError("the prompt does not carry DAPO's instruction")
    language = "zh" if _CJK.search(problem) else "en"
    return {"problem": problem, "answer": _whole(record["answer"]["ground_truth"]), "lang": language}


def _gsm8k(record: Record) -> Record:
    _, mark, answer = record["solution"].rpartition("####")
    if not mark:
        raise ValueError("the solution has no '####'")
    published, answer = answer.strip(), answer.strip().replace(",", "")
    return record | {"answer": answer} | ({"answer_as_published": published} if answer != published else {})


def _hmmt(record: Record) -> Record:
    answer = str(record["answer"]).strip()
    return record | {"answer": answer, "multi_answer": "," in answer}


def _math(record: Record) -> Record:
    level = re.fullmatch(r"Level (\d)", record["level"])
    return record | {"answer": last_boxed(record["solution"]), "level": int(level[1]) if level else None}


def _same(record: Record) -> Record:
    return record


def _olympiadbench(record: Record) -> Record:
    (answer,) = record["answers"]
    context = record.pop("context", None)
    problem = f"{context.strip()}\n{record['problem']}" if context and context.strip() else record["problem"]
    return record | {"problem": problem, "answer": str(answer).strip()}


def entry_point(code: str, assertion: str) -> str:
    """The function of ``code`` that the assertion calls first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some solutions have escapes such as "\w" outside of raw strings
        parts, called_in = ast.parse(code).body, ast.parse(assertion.strip())
    defined = {part.name for part in parts if isinstance(part, (ast.FunctionDef, ast.ClassDef))}
    calls = [
        node.func.id
        for node in ast.walk(called_in)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    called = [name for name in calls if name in defined]
    if not called:
        raise ValueError(f"no function of the solution is called by {assertion!r}")
    return called[0]


def _mbpp(record: Record) -> Record:
    record["canonical_solution"] = record["canonical_solution"].replace("\r\n", "\n")
    record["entry_point"] = entry_point(record["canonical_solution"], record["test_list"][0])
    if "test" not in record:
        setup = [*record.get("test_imports", ()), *filter(None, [record.get("test_setup_code")])]
        record["test"] = "\n".join([*setup, *record["test_list"]])
    return record


def _livecodebench(record: Record) -> Record:
    record["contest_date"] = str(record["contest_date"]).replace(" ", "T")
    record["public_tests"] = json.loads(record["public_tests"])
    return record


CONVERTERS: dict[str, Callable[[Record], Record]] = {
    "aime": _aime,
    "amc": _amc,
    "amc12": _amc12,
    "dapo": _dapo,
    "gsm8k": _gsm8k,
    "hmmt": _hmmt,
    "humaneval": _same,
    "livecodebench": _livecodebench,
    "math": _math,
    "math500": _same,
    "mbpp": _mbpp,
    "mbpp_plus": _mbpp,
    "minerva": _same,
    "olympiadbench": _olympiadbench,
}
