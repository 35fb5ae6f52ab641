"""`rlvr data check` and `list` say what is at fault, and end accordingly."""

import os
import subprocess
import sys

import pytest

from rlvr.cli import main
from rlvr.problems.benchmarks.check import check, describe

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
    assert "test.jsonl:1" in report.problems[0] and describe(report)[1].startswith("  FAULT ")


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
