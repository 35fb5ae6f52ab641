"""``rlvr report``: the claims of a report, or how to make it."""

import webbrowser
from pathlib import Path

import pytest

from rlvr.cli import main
from rlvr.commands import report
from rlvr.config import load_yaml
from rlvr.storage import read_json, write_json

PROJECT = Path(__file__).resolve().parents[2]
CLAIM = {
    "id": "nfpo-c1", "status": "judged", "verdict": "open", "effect": 0.0123456, "ci_low": -0.2,
    "ci_high": 0.25, "n": 4, "statement": "Better.", "test": "A difference.",
}  # fmt: skip
WAITING = CLAIM | {
    "id": "mpo-c1",
    "status": "not_run",
    "effect": None,
    "ci_low": None,
    "ci_high": None,
    "n": None,
}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Scales smoke, paper and pretrained, and no report."""
    for file in ("data/benchmarks.yaml", "pipelines/scales/smoke/params.yaml"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    for scale, file in (("paper", "experiments.yaml"), ("pretrained", "evaluation.yaml")):
        (tmp_path / "pipelines/scales" / scale).mkdir()
        (tmp_path / "pipelines/scales" / scale / file).write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def test_the_committed_report(capsys, monkeypatch):
    monkeypatch.chdir(PROJECT)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["report"]) == 0
    shown = capsys.readouterr().out
    for claim in read_json(PROJECT / "reports/laptop/claims.json"):
        assert claim["id"] in shown
        if claim["status"] != "not_run":
            (line,) = [line for line in shown.splitlines() if line.split()[:1] == [claim["id"]]]
            assert claim["verdict"] in line and f"{claim['effect']:.3g}" in line
    assert (PROJECT / "reports/laptop/report.html").as_uri() in shown


def test_a_row():
    assert report.row(CLAIM) == ("nfpo-c1", "open", "0.0123", "[-0.2, 0.25]", "4", "Better.")
    assert report.row(CLAIM | {"ci_low": 0.5, "ci_high": 0.5})[3] == "exact"
    assert report.row(CLAIM | {"ci_low": None})[3] == "unknown"
    assert report.row(CLAIM | {"effect": None})[2:4] == ("not measured", "")


def test_all_about_a_claim(capsys, monkeypatch):
    """The command that it names is a stage of the graph, and the files are there."""
    monkeypatch.chdir(PROJECT)
    for claim in read_json(PROJECT / "reports/laptop/claims.json"):
        assert main(["report", "--claim", claim["id"]]) == 0
        shown = capsys.readouterr().out
        assert claim["statement"] in shown and claim["test"] in shown and claim["verdict"] in shown
        again = [line.split()[3] for line in shown.splitlines() if line.startswith("again:")]
        assert again and all(".ipynb)" in line for line in shown.splitlines() if line.startswith("again:"))
        for command in again:
            graph, _, stage = command.partition(":")
            assert stage in load_yaml(PROJECT / graph)["stages"], command
        files = [word for line in shown.splitlines() if line.startswith("  ") for word in line.split()]
        assert files and all((PROJECT / file).is_file() for file in files)
    assert main(["report", "--claim", "nfpo-c77"]) == 2
    assert "--claim 'nfpo-c77': did you mean 'nfpo-c7'" in capsys.readouterr().err


def test_what_is_not_run_is_counted_and_named():
    assert report.remarks([CLAIM, CLAIM | {"verdict": "supported"}, WAITING]) == [
        "3 claims: 1 open, 1 supported, 1 not run",
        "not run: mpo-c1",
    ]
    assert report.remarks([CLAIM]) == ["1 claims: 1 open, 0 not run"]


def test_a_report_of_a_paper_is_found_below_its_scale(checkout, capsys):
    for folder in ("reports/smoke", "reports/smoke/ibpo"):
        (checkout / folder).mkdir(parents=True)
        write_json(checkout / folder / "claims.json", [CLAIM])
    (checkout / "reports/smoke/ibpo/report.html").write_text("")
    assert main(["report", "smoke"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("nfpo-c1") == 2 and "reports/smoke/report.html does not exist" in shown
    assert (checkout / "reports/smoke/ibpo/report.html").as_uri() in shown


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ("smoke", "reports/smoke/claims.json does not exist: `make repro SCALE=smoke` makes it"),
        ("laptop", "`make repro SCALE=laptop` makes it"),
        ("paper", "`rlvr plan paper`"),
        ("pretrained", "runs/pretrained/evaluate/accuracy.csv"),
        ("smok", "allowed are laptop, smoke"),
    ],
)
def test_no_report(checkout, scale, message, capsys):
    assert main(["report", scale]) == 2
    assert message in capsys.readouterr().err


def test_open(checkout, monkeypatch, capsys):
    opened, answers = [], iter([True, False])
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or next(answers))
    (checkout / "reports/smoke").mkdir(parents=True)
    write_json(checkout / "reports/smoke/claims.json", [CLAIM])
    assert main(["report", "smoke", "--open"]) == 2 and opened == []  # no page yet
    (checkout / "reports/smoke/report.html").write_text("")
    assert main(["report", "smoke", "--open"]) == 0
    assert opened == [(checkout / "reports/smoke/report.html").as_uri()]
    assert main(["report", "smoke", "--open"]) == 2
    assert "no browser" in capsys.readouterr().err
