"""The README keeps its word: its table is the committed report's, its commands and paths exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from pipelines import readme, summary
from rlvr.storage import write_json

PROJECT = Path(__file__).resolve().parents[1]
README = (PROJECT / "README.md").read_text()


def test_the_table_of_results_is_the_committed_reports(monkeypatch):
    monkeypatch.chdir(PROJECT)
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "reports/laptop/claims.json"])
    if changed.returncode == 1:
        pytest.skip("reports/laptop was made anew here; `python -m pipelines.readme` puts it into README.md")
    assert readme.main(["--check"]) == 0
    for claim in ("nfpo-c1", "nfpo-c2", "nfpo-c3", "nfpo-c4", "nfpo-c10"):
        assert f"**{claim}**" in README


def test_the_table_is_one_table():
    """No text in it breaks a line: Markdown ends a table there."""
    part = README[README.index(readme.BEGIN) : README.index(readme.END)]
    rows = part[part.index("| claim |") :].split("\n\n")[0].splitlines()
    assert len(rows) == 2 + 23 and all(row.startswith("| ") and row.endswith(" |") for row in rows)


def test_rewriting_replaces_only_what_is_between_the_markers():
    text = f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter"
    new = readme.rewrite(text, "| new |")
    assert new == f"before\n{readme.BEGIN}\n\n| new |\n\n{readme.END}\nafter"
    assert readme.rewrite(new, "| new |") == new
    for broken in ("no markers", f"{readme.END}{readme.BEGIN}", text + readme.END):
        with pytest.raises(ValueError, match="once each"):
            readme.rewrite(broken, "x")


def test_a_claim_without_an_interval_says_so_in_the_table(tmp_path, monkeypatch):
    monkeypatch.chdir(PROJECT)
    row = {"effect": 0.5, "ci_low": None, "ci_high": None}
    assert readme._interval(row) == "0.5 [unknown]"
    assert readme._interval(row | {"effect": None}) == "not measured"
    assert readme._interval(row | {"ci_low": 0.5, "ci_high": 0.5}) == "0.5 (exact)"
    assert readme._interval(row | {"ci_low": 0.25, "ci_high": 0.75}) == "0.5 [0.25, 0.75]"


def test_every_make_target_the_readme_names_exists():
    makefile = (PROJECT / "Makefile").read_text()
    documents = README + (PROJECT / "CONTRIBUTING.md").read_text()
    targets = {t for line in re.findall(r"make ((?:[a-z]+ ?)+)", documents) for t in line.split()}
    targets &= set(re.findall(r"`?make ([a-z]+)", documents))
    assert {"repro", "test", "lab", "bench", "help"} <= targets
    for target in targets:
        assert re.search(rf"(?m)^{target}:", makefile), target


def test_make_help_lists_every_documented_target():
    shown = subprocess.run(["make", "help"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    for target in ("repro", "test", "lab", "bench", "lint", "unit", "graph"):
        assert re.search(rf"(?m)^  {target} +\S", shown), target


def test_links_in_the_documents_resolve():
    for document in [PROJECT / "README.md", *PROJECT.glob("docs/*.md"), PROJECT / "bench/README.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_summary_says_where_the_report_is_and_what_it_holds(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert summary.main(["small"]) == 1
    assert "make repro SCALE=small" in capsys.readouterr().err
    folder = tmp_path / "reports/small"
    rows = [("judged", "open"), ("not_run", "open"), ("judged", "supported")]
    write_json(folder / "artifacts.json", [{"status": "rendered"}, {"status": "not_run"}])
    write_json(folder / "claims.json", [{"status": s, "verdict": v} for s, v in rows])
    (folder / "report.html").write_text("x")
    monkeypatch.setattr(summary, "check", lambda scale: None)
    assert summary.main(["--start", "small"]) == 0
    assert summary.main(["small"]) == 0
    shown = capsys.readouterr().out
    assert "report.html" in shown and "1 of 2 tables and figures rendered" in shown
    assert "1 not run, 1 open, 1 supported" in shown and "took 0 min 0 s" in shown
    assert summary.main(["--start", "other"]) == 0
    assert summary.main(["small"]) == 0
    assert "took" not in capsys.readouterr().out, "the time of another scale is not this one's"


def test_a_lock_file_cut_short_by_a_kill_is_removed_and_a_good_one_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not summary.mend_lock()
    summary.RWLOCK.parent.mkdir(parents=True)
    for text, mended in (("", True), ('{"runs/x": {"wri', True), ("{}", False)):
        summary.RWLOCK.write_text(text)
        assert summary.mend_lock() == mended
        assert summary.RWLOCK.exists() != mended


def test_a_wrong_recipe_is_found_before_the_first_stage(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (PROJECT / "params.yaml").read_text()
    for old, new, message in (
        ("{objective: nfpo, horizon", "{objective: nfpo, horizn", "recipes.nfpo.*horizn.*horizon"),
        ("{objective: nfpo,", "{objective: nfpoo,", "recipes.nfpo.*nfpoo.*nfpo"),
        ("ratio_clip: 3.0", "ratio_clip: 0.5", "recipes.nfpo.*ratio_clip"),
        ("loss_agg_mode: token-mean", "loss_agg_mode: tokn-mean", "tokn-mean"),
    ):
        assert old in text
        (tmp_path / "params.yaml").write_text(text.replace(old, new))
        assert summary.main(["--start", "laptop"]) == 2
        assert re.search(message, capsys.readouterr().err, re.DOTALL), message
    (tmp_path / "params.yaml").write_text(text)
    assert summary.main(["--start", "laptop"]) == 0
