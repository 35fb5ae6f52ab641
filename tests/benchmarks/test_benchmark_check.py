"""`rlvr data check` and `list` say what is at fault, and end accordingly."""

import gzip
import json
import os
import subprocess
import sys

import pytest

from rlvr.cli import main
from rlvr.problems.benchmarks import load_benchmark
from rlvr.problems.benchmarks.check import MOST_FAULTS, check, describe

GOOD = [
    {"id": "test-I-1", "problem": "What is 2 + 2?", "answer": "4"},
    {"id": "test-I-2", "problem": "What is 3 + 3?", "answer": "6"},
]


def of(reports, name):
    return next(report for report in reports if report.name == name)


def test_a_sound_set_has_no_fault(project, write):
    write(project, "test.jsonl", GOOD)
    report = of(check(data_dir=project), "test")
    assert (report.count, report.expected, report.problems, report.golds_tested) == (2, (2,), (), 2)
    assert describe(report)[1:] == ["  2 problems"]
    assert of(check(data_dir=project), "train").path is None


def test_faults(project, write):
    records = [*GOOD, {"id": "c", "problem": "what is 2+2 ?", "answer": " "}]
    write(project, "test.jsonl", records)
    report = of(check(["test"], project), "test")
    assert report.problems == ("3 problems, expected 2", "1 empty golds: c")
    assert report.duplicates == (("test-I-1", "c"),) == report.conflicts
    assert describe(report)[2:] == [
        "  FAULT 3 problems, expected 2",
        "  FAULT 1 empty golds: c",
        "  1 repeat an earlier problem: test-I-1=c; 1 groups disagree about the answer",
    ]
    write(project, "test.jsonl", ["{"])
    report = of(check(["test"], project), "test")
    assert "test.jsonl:1" in report.problems[0] and describe(report)[2].startswith("  FAULT ")


FAULTY = [
    json.dumps(GOOD[0]),
    json.dumps(GOOD[1] | {"answer": 6}),
    "",
    "{",
    json.dumps(GOOD[0]),
    "[1]",
    json.dumps({"id": "x", "problem": "p \u00e9", "answer": "1" * 5000}, ensure_ascii=False),
    "[" * 100_000,
    json.dumps({"id": "test-I-3", "problem": "What is \u221a4?", "answer": "2"}, ensure_ascii=False),
]
WHERE = {
    2: "field 'answer' is a int, must be a str",
    4: "Expecting property name",
    5: "field 'id': 'test-I-1' is that of line 1",
    6: "holds a list, must be a JSON object",
    7: "field 'answer' has 5000 digits",
    8: "maximum recursion depth exceeded",
}


@pytest.mark.parametrize("name", ["test.jsonl", "test.jsonl.gz"])
def test_every_faulty_record_is_listed_with_its_line(project, write, capsys, name):
    path = write(project, name, FAULTY)
    (report,) = check(["test"], project)
    assert report.count == 2 and report.more_faults == 0
    assert len(report.faults) == len(WHERE) and report.problems == report.faults
    for (line, message), fault in zip(WHERE.items(), report.faults, strict=True):
        assert fault.startswith(f"{path}:{line}: {message}"), fault
    assert main(["data", "check", "test", "--data-dir", str(project)]) == 1
    printed = capsys.readouterr().out
    assert printed.count("FAULT") == len(WHERE) and "  2 problems, 6 faulty records" in printed
    with pytest.raises(
        ValueError, match=r"jsonl(\.gz)?:2: field 'answer' is a int"
    ):  # reading says the first
        load_benchmark("test", project)


def test_a_number_of_faults_is_listed_and_the_rest_counted(project, write):
    write(project, "test.jsonl", [*GOOD, *["{"] * 50])
    (report,) = check(["test"], project)
    assert len(report.faults) == MOST_FAULTS and report.more_faults == 50 - MOST_FAULTS
    assert report.faults[0].split(": ")[0].endswith("test.jsonl:3")
    assert report.problems[-1] == f"and {50 - MOST_FAULTS} more faulty records"
    assert describe(report)[1] == "  2 problems, 50 faulty records"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("line", [1, 2, 700])
def test_a_byte_that_is_no_utf8_is_found_in_its_line(project, packed, line):
    """The decoder reads ahead by kilobytes: its own place is not the line's."""
    lines = [json.dumps({"id": str(k), "problem": f"\u221a{k}?", "answer": "1"}, ensure_ascii=False).encode()
             for k in range(1, 1001)]  # fmt: skip
    lines[line - 1] = lines[line - 1].replace("\u221a".encode(), b"\xe2\x88")
    text = b"\n".join(lines) + b"\n"
    path = project / ("test.jsonl.gz" if packed else "test.jsonl")
    path.write_bytes(gzip.compress(text) if packed else text)
    (report,) = check(["test"], project)
    (fault,) = report.faults
    assert fault.startswith(f"{path}:{line}: 'utf-8' codec can't decode") and report.count == 999
    with pytest.raises(ValueError, match=rf"test\.jsonl(\.gz)?:{line}: 'utf-8'"):
        load_benchmark("test", project)


def test_a_damaged_archive_ends_the_list(project, write):
    path = write(project, "test.jsonl.gz", ["{", *GOOD])
    path.write_bytes(path.read_bytes()[:-9])
    (report,) = check(["test"], project)
    assert report.faults[0].startswith(f"{path}:1: ")
    assert report.faults[-1].startswith(f"{path}: cannot be read after line ")


def test_golds_that_are_hard_to_grade(project, write):
    write(project, "test.jsonl", [GOOD[0] | {"answer": "4 cm"}, GOOD[1]])
    write(project, "levels.jsonl", [{"id": str(k), "problem": str(k), "answer": "x"} for k in range(4)])
    asked = []

    def gold_test(golds, kind):
        asked.append((list(golds), kind))
        return [("2", "x", "prose")]

    reports = check(data_dir=project, gold_test=gold_test)
    assert of(reports, "test").weak_golds == (("test-I-1", "not_an_integer"),)
    assert of(reports, "levels").weak_golds == (("2", "prose"),)
    assert asked == [([(str(k), "x") for k in range(4)], "auto")]
    assert describe(of(reports, "levels"))[-1] == "  1 of 4 golds are hard to grade: 2 (prose)"
    assert of(check(["levels"], project), "levels").golds_tested == 0  # no verifier, not tested


def test_programs_without_readable_tests(project, write):
    test = {"input": "1", "output": "2", "testtype": "stdin"}
    record = {"id": "a", "problem": "p", "contest_date": "2020-01-01", "public_tests": [test]}
    others = [
        record | {"id": "b", "private_test_cases": "broken"},
        record | {"id": "c", "private_test_cases": "[]"},
    ]
    write(project, "contest.jsonl", [record, *others])
    report = of(check(["contest"], project), "contest")
    assert report.bad_tests == ("b",) and "1 without readable tests: b" in report.problems
    assert report.count == 3  # the default window does not hide any


def test_overlaps_are_reported_and_are_no_fault(project, write):
    write(project, "test.jsonl", GOOD)
    write(
        project,
        "train.jsonl",
        [{"id": f"t{k}", "problem": p, "answer": "4"} for k, p in enumerate(("what is 2+2", "b", "c"))],
    )
    report = of(check(["test"], project), "test")
    assert [o.train_id for o in report.overlaps["train"]] == ["t0"] and report.problems == ()
    assert describe(report)[-1] == "  in train: 1 verbatim: test-I-1"


def test_command_check(project, write, capsys, monkeypatch):
    assert main(["data", "check"]) == 1
    assert "no benchmark is here" in capsys.readouterr().err
    write(project / "d", "test.jsonl", GOOD)
    assert main(["data", "check", "--data-dir", "d", "--no-golds"]) == 0
    assert "2 problems" in capsys.readouterr().out
    assert main(["data", "check", "test", "train", "--data-dir", "d"]) == 1  # asked for, not here
    assert "train: not on this machine" in capsys.readouterr().out
    write(project / "d", "test.jsonl", GOOD[:1])
    assert main(["data", "check", "test", "--data-dir", "d"]) == 1
    assert "FAULT" in capsys.readouterr().out
    assert main(["data", "check", "tset"]) == 2
    assert "did you mean 'test'" in capsys.readouterr().err
    assert main(["data", "check", "--data-dir", "nowhere"]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_command_list(project, write, capsys, monkeypatch):
    write(project / "data" / "benchmarks", "test.jsonl.gz", GOOD)
    write(project / "d", "levels.jsonl", [])
    monkeypatch.setenv("RLVR_DATA", "d")
    assert main(["data", "list"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split("  ")[0] == "name" and [row.split()[0] for row in rows] == [
        "train", "levels", "test", "functions", "contest",
    ]  # fmt: skip
    assert "d/levels.jsonl" in rows[1] and "fetched, changed" in rows[2] and "nobody/test" in rows[2]
    assert main(["data", "list", "--data-dir", "nowhere"]) == 2


def test_command_fetch_says_why_not(project, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert main(["data", "fetch", "test"]) == 1
    assert "needs the package `datasets`" in capsys.readouterr().err
    assert main(["data", "fetch", "tset"]) == 2

    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("rlvr.problems.benchmarks.fetch.fetch", interrupted)
    assert main(["data", "fetch", "test"]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["data"], ["data", "fetch"], ["data", "fly"]])
def test_command_usage(arguments, capsys):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2 and "usage: rlvr" in capsys.readouterr().err


def test_importing_costs_no_heavy_package():
    code = (
        "import sys, rlvr.cli, rlvr.problems.benchmarks as b; b.load_catalogue();"
        "print([m for m in ('datasets', 'sympy', 'math_verify', 'torch', 'pandas') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": ""},
    )
    assert out.stdout.strip() == "[]"
