"""The report: everything listed, nothing loaded from elsewhere, the same bytes for the same bundles."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from browser import CHROMIUM

from rlvr.evaluation.intervals import Estimate
from rlvr.reporting.bundle import (
    NOT_MEASURED,
    ArtifactMeta,
    Claim,
    Exact,
    Stated,
    save_claim,
    save_figure,
    save_table,
)
from rlvr.reporting.inline import inline_text
from rlvr.reporting.records import Part
from rlvr.reporting.registry import load_registry
from rlvr.reporting.report import build_report
from rlvr.reporting.style import OBJECTIVE_COLOURS, use_style
from rlvr.reporting.view import _counted

VOID = {"meta", "link", "br", "img", "hr", "input", "use", "path"}
PROJECT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {"torch": "2.13.0", "threads": 1, "commit": "0123abc"}
DECISIONS = [{"decision": "policy <of> the token MDP", "choice": "stays biased", "parameter": "theory"}]
COST = pd.DataFrame({"stage": ["train"], "CPU seconds": [1201.25], "tokens": [1234567]})


def meta(id: str, **fields) -> ArtifactMeta:
    known = {
        "id": id,
        "title": f"Caption of {id}",
        "stage": "dynamics",
        "scale": "smoke",
        "seeds": (0, 1),
        "n": 1500,
        "n_unit": "responses",
        "interval": "95 % bootstrap over responses",
        "notebook": "notebooks/nfpo/dynamics.ipynb",
        "notes": "A small model & short answers.",
    }
    return ArtifactMeta(**(known | fields))


def make_bundles(out: Path) -> list[Path]:
    """Two stages' outputs: two figures, two tables, three claims."""
    use_style()
    data = pd.DataFrame({"step": [1, 2, 3], "reward": [0.4, 0.5, 0.55]})
    for id, alt in (("nfpo-fig3", 'A "rising" line.'), ("nfpo-x1", "Bias over N.")):
        fig, ax = plt.subplots(figsize=(4, 2))
        ax.plot(data["step"], data["reward"], color=OBJECTIVE_COLOURS["nfpo"])
        ax.set_title(id)
        save_figure(out / "a", fig, meta(id, alt=alt), data)
        plt.close(fig)
    low = Estimate(0.0084, 0.0081, 0.0087, 1500, "responses", (0, 1), "bootstrap")
    table = pd.DataFrame(
        {"E|rho - 1|": [low, NOT_MEASURED], "paper": [Stated(None)] * 2},
        index=pd.Index(["all <tokens>", "reasoning"], name="tokens"),
    )
    save_table(out / "a", table, meta("nfpo-tab2"))
    settings = pd.DataFrame({"ours": [Exact(32)]}, index=pd.Index(["prompts per step"], name="setting"))
    save_table(out / "b", settings, meta("nfpo-tabC1", interval="exact", n=None, n_unit="", seeds=()))
    common = {"test": "at most <0.6>", "n": 1500, "n_unit": "responses", "seeds": (0, 1), "scale": "smoke"}
    numbers = {"effect": 0.123456789, "ci_low": 0.1, "ci_high": 0.15}
    save_claim(
        out / "a", Claim(id="nfpo-c4", verdict="supported", artifacts=("nfpo-fig3",), **numbers, **common)
    )
    unknown = {"effect": 0.4, "ci_low": math.nan, "ci_high": math.nan}
    save_claim(out / "a", Claim(id="nfpo-c2", verdict="open", artifacts=("nfpo-x2",), **unknown, **common))
    exact = common | {"seeds": (), "n": 117, "n_unit": "patterns"}
    save_claim(out / "b", Claim(id="nfpo-c1", verdict="supported", effect=1, ci_low=1, ci_high=1, **exact))
    return [out / "a", out / "b"]


def build(folder: Path, out: Path, **changes):
    arguments = {
        "bundle_dirs": make_bundles(folder),
        "registry_dir": None,
        "out_dir": out,
        "scale": "smoke",
        "environment": ENVIRONMENT,
        "decisions": DECISIONS,
        "cost": COST,
    }
    return build_report(**(arguments | changes))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    summary = build(root / "runs", root / "reports" / "smoke")
    return summary, root / "reports" / "smoke"


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    out = tmp_path_factory.mktemp("empty") / "smoke"
    return build_report([], None, out, "smoke", {}, [], None), out


class Page(HTMLParser):
    """Tags must close in order; ids, links and everything that could load are kept."""

    def __init__(self, html: str):
        super().__init__()
        self.stack, self.ids, self.links, self.loads, self.unnamed, self.words = [], [], [], [], [], []
        self.feed(html)
        self.close()
        assert not self.stack, f"never closed: {self.stack}"

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        if tag == "a":
            self.links.append(found["href"])
        if tag == "use":
            self.links.append(found.get("xlink:href") or found["href"])
        if tag in ("script", "img", "iframe", "object", "embed") or "src" in found:
            self.loads.append((tag, found))
        if tag == "link":
            self.loads += [] if found["href"] == "data:," else [(tag, found)]
        if (tag == "img" and not found.get("alt")) or (tag == "svg" and not found.get("aria-label")):
            self.unnamed.append((tag, found))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.stack and self.stack.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module", params=["built", "empty"])
def page(request):
    _, out = request.getfixturevalue(request.param)
    html = (out / "report.html").read_text("utf-8")
    return Page(html), html, out


# --- the page ---------------------------------------------------------------------------------------------


def test_the_page_is_well_formed_and_its_ids_are_its_own(page):
    parsed, _, _ = page
    assert len(parsed.ids) == len(set(parsed.ids)), "an id appears twice"


def test_every_link_resolves(page):
    parsed, _, out = page
    for link in parsed.links:
        if link.startswith("#"):
            assert link[1:] in parsed.ids, link
        elif not link.startswith("../../notebooks/"):
            assert (out / link).is_file(), link


def test_the_page_loads_nothing(page):
    parsed, html, _ = page
    assert parsed.loads == []
    assert "@import" not in html
    outside = re.findall(r"https?://[^\s\"'<>)]+", html)
    assert set(outside) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"url\((?!#)", html)


def test_every_picture_has_words(page):
    assert page[0].unnamed == []


def test_everything_of_the_papers_is_on_the_page_in_order(page):
    parsed, html, out = page
    text = parsed.text
    for paper in load_registry().papers:
        for entry in (*paper.artifacts, *paper.claims):
            assert entry.id in parsed.ids
            assert re.sub(r"\s+", " ", getattr(entry, "title", "") or entry.statement) in text
        places = [html.index(f'id="{a.id}"') for a in paper.artifacts]
        assert places == sorted(places)
        markdown = (out / "report.md").read_text("utf-8")
        order = [markdown.index(f"(`{a.id}`)") for a in paper.artifacts]
        assert order == sorted(order)


def test_what_was_not_run_is_visible(built):
    _, out = built
    html, markdown = (out / "report.html").read_text("utf-8"), (out / "report.md").read_text("utf-8")
    section = html[html.index('id="nfpo-tab1"') :].split("</section>")[0]
    assert "not run" in section and "30.7" in section and "not stated" in section
    assert html.count("artifact not-run") == 29 + 15  # of the papers, of ours
    assert markdown.count("– not run.") == 29 + 15


def test_verdicts_come_before_artifacts_with_interval_and_test(built):
    html = (built[1] / "report.html").read_text("utf-8")
    assert html.index('id="nfpo-claims"') < html.index('id="nfpo-artifacts"')
    claim = html[html.index('id="nfpo-c4"') :].split("</article>")[0]
    assert claim.index("supported") < claim.index("switch frequency")
    for words in ("0.123 [0.100, 0.150]", "n = 1,500 responses; 2 seeds (0 1)", "at most &lt;0.6&gt;"):
        assert words in claim
    assert 'href="#nfpo-fig3"' in claim
    assert "0.4 [interval unknown]" in html
    assert 'href="#nfpo-x2"' not in html, "links to an extra that is not shown as rendered"


def test_each_artifact_says_where_it_comes_from(built):
    html = (built[1] / "report.html").read_text("utf-8")
    section = html[html.index('id="nfpo-tab2"') :].split("</section>")[0]
    for words in (
        "../../notebooks/nfpo/dynamics.ipynb",
        "dynamics</code>",
        "2 seeds (0 1)",
        "bootstrap",
        "&amp;",
    ):
        assert words in section
    assert 'title="n = 1,500 responses; 2 seeds (0 1); bootstrap"' in section
    assert "all &lt;tokens&gt;" in section
    assert "not measured" in section and "not stated" in section


def test_nothing_measured_is_said_and_not_made_up(empty):
    """Known fault: a report of zero finished runs prints default values."""
    summary, out = empty
    assert (summary.rendered, summary.verdicts["not_run"]) == (0, 23)
    text = Page((out / "report.html").read_text("utf-8")).text
    assert "0 of 32" in text and "not measured" in text
    assert not re.search(r"\b(nan|inf|None)\b", text)
    claims = json.loads((out / "claims.json").read_text())
    assert {(c["effect"], c["ci_low"], c["n"], c["verdict"]) for c in claims} == {(None, None, None, "open")}
    assert not any("/effect" in key for key in json.loads((out / "metrics.json").read_text()))


# --- files ------------------------------------------------------------------------------------------------


def test_artifacts_json_has_the_agreed_form(built):
    _, out = built
    rows = json.loads((out / "artifacts.json").read_text())
    keys = {"id", "paper", "kind", "title", "status", "files", "stage", "scale", "seeds", "n"}
    assert len(rows) == 32 and all(set(row) == keys for row in rows)
    assert [row["id"] for row in rows] == [a.id for p in load_registry().papers for a in p.artifacts]
    by_id = {row["id"]: row for row in rows}
    assert by_id["nfpo-fig3"] == {
        "id": "nfpo-fig3",
        "paper": "nfpo",
        "kind": "figure",
        "title": by_id["nfpo-fig3"]["title"],
        "status": "rendered",
        "files": ["figures/nfpo-fig3.png", "figures/nfpo-fig3.svg", "tables/nfpo-fig3-data.csv"],
        "stage": "dynamics",
        "scale": "smoke",
        "seeds": [0, 1],
        "n": 1500,
    }
    assert by_id["mpo-tab4"]["status"] == "not_run" and by_id["mpo-tab4"]["files"] == []
    assert all((out / f).stat().st_size for row in rows for f in row["files"])


def test_claims_json_has_the_agreed_form(built):
    rows = json.loads((built[1] / "claims.json").read_text())
    keys = {"id", "statement", "test", "effect", "ci_low", "ci_high", "n", "seeds", "verdict", "scale"}
    assert len(rows) == 23 and all(set(row) >= keys | {"artifacts", "status"} for row in rows)
    by_id = {row["id"]: row for row in rows}
    assert by_id["nfpo-c4"]["effect"] == 0.123457 and by_id["nfpo-c4"]["verdict"] == "supported"
    assert by_id["nfpo-c2"]["ci_low"] is None and by_id["nfpo-c2"]["status"] == "judged"
    assert (by_id["ibpo-c1"]["status"], by_id["ibpo-c1"]["verdict"]) == ("not_run", "open")


def test_extras_are_apart(built):
    extras = json.loads((built[1] / "extras.json").read_text())
    assert {row["id"] for row in extras if row["status"] == "rendered"} == {"nfpo-x1"}


def test_metrics_are_flat_numbers(built, tmp_path):
    _, out = built
    numbers = json.loads((out / "metrics.json").read_text())
    assert all(isinstance(v, (int, float)) for v in numbers.values())
    assert numbers["artifacts/rendered"] == 3 and numbers["claims/supported"] == 2
    assert numbers["nfpo-c4/ci_high"] == 0.15 and "nfpo-c2/ci_high" not in numbers
    single = Estimate(0.61, None, None, 1, "seeds", (0,), "unknown")
    build(tmp_path / "runs", tmp_path / "out", metrics={"pass1/nfpo": single})
    more = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert {k: v for k, v in more.items() if k.startswith("pass1")} == {"pass1/nfpo": 0.61}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def test_the_same_bundles_give_the_same_bytes(built, tmp_path):
    """Made again from nothing in another process with another hash seed."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        " from test_report import build; build(Path(sys.argv[2]) / 'runs', Path(sys.argv[2]) / 'smoke')"
    )
    here = str(Path(__file__).parent)
    environment = os.environ | {"PYTHONHASHSEED": "77"}
    subprocess.run([sys.executable, "-c", code, here, str(tmp_path)], check=True, env=environment, timeout=60)
    assert contents(tmp_path / "smoke") == contents(built[1])


def test_the_folder_is_replaced_as_one_and_kept_when_a_build_fails(tmp_path):
    out = tmp_path / "reports" / "smoke"
    build(tmp_path / "runs", out)
    (out / "stale.txt").write_text("of an older report")
    build(tmp_path / "runs", out)
    before = contents(out)
    assert "stale.txt" not in before
    figure = tmp_path / "bad" / "artifacts" / "nfpo-fig4"
    shutil.copytree(tmp_path / "runs" / "a" / "artifacts" / "nfpo-fig3", figure)
    record = json.loads((figure / "artifact.json").read_text()) | {"id": "nfpo-fig4"}
    (figure / "artifact.json").write_text(json.dumps(record))
    (figure / "figure.svg").write_text("<svg><script>alert(1)</script></svg>")
    with pytest.raises(ValueError, match="nfpo-fig4"):
        build(tmp_path / "runs", out, bundle_dirs=[tmp_path / "bad"])
    assert contents(out) == before
    assert [p.name for p in out.parent.iterdir()] == ["smoke"]


def test_bundles_of_another_scale_are_refused(tmp_path):
    with pytest.raises(ValueError, match="laptop"):
        build(tmp_path / "runs", tmp_path / "out", scale="laptop")
    assert not (tmp_path / "out").exists()


def test_the_parts_of_a_test_are_a_table(tmp_path):
    """What each measured, what it needed, what that gives; the words that say the same are not repeated."""
    parts = [
        Part(name="A - B", effect=0.3, ci_low=0.2, ci_high=0.4, n=2, n_unit="seeds", seeds=(0, 1),
             method="t", kind="above", threshold=0.0, verdict="supported"),
        Part(name="A - C", effect=-0.01, ci_low=-0.03, ci_high=0.01, n=2, n_unit="seeds", seeds=(0, 1),
             method="t", kind="at_least", threshold=-0.02, verdict="open"),
    ]  # fmt: skip
    told = "Parts: both of them."
    claim = Claim(
        id="nfpo-c2", test="t", effect=-0.01, ci_low=-0.03, ci_high=0.01, n=2, seeds=(0, 1), verdict="open",
        scale="smoke", parts=parts, told=told, note=f"{told} And a caveat.",
    )  # fmt: skip
    bundles = make_bundles(tmp_path / "runs")
    save_claim(bundles[0], claim)
    build(tmp_path / "again", tmp_path / "out", bundle_dirs=bundles)
    text = (tmp_path / "out" / "report.html").read_text()
    article = text[text.index('id="nfpo-c2"') :].split("</article>")[0]
    cells = [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<td>(.*?)</td>", article)]
    assert cells[:3] == ["A - B", "0.30 [0.20, 0.40]", "&gt; 0"] and "supported" in cells[3]
    assert cells[4:7] == ["A - C", "-0.010 [-0.030, 0.010]", "≥ -0.02"] and "open" in cells[7]
    assert '<tr class="effect-of"><td>A - C' in article
    assert "And a caveat." in article and told not in article
    (row,) = [r for r in json.loads((tmp_path / "out" / "claims.json").read_text()) if r["id"] == "nfpo-c2"]
    assert row["effect_of"] == "A - C" and row["note"].startswith(told)


# --- a real browser ---------------------------------------------------------------------------------------

PROBE = """<!DOCTYPE html><body>
<iframe id="f" src="{url}" style="border:0;width:{width}px;height:3000px"></iframe>
<script>
document.getElementById("f").onload = function () {{
  const d = this.contentDocument, w = this.contentWindow;
  const svgs = [...d.querySelectorAll("svg")].map(s => s.getBoundingClientRect());
  const dangling = [...d.querySelectorAll('a[href^="#"]')].filter(a => !d.getElementById(a.hash.slice(1)));
  document.title = JSON.stringify({{
    overflow: d.documentElement.scrollWidth - w.innerWidth,
    svgs: svgs.length, drawn: svgs.filter(r => r.width > 200 && r.height > 80).length,
    images: [...d.images].length, broken: [...d.images].filter(i => !i.naturalWidth).length,
    dangling: dangling.length, loaded: w.performance.getEntriesByType("resource").length,
    ink: w.getComputedStyle(d.body).color, paper: w.getComputedStyle(d.body).backgroundColor,
  }});
}};
</script></body>"""


def browse(out: Path, tmp_path: Path, width: int, dark: bool) -> tuple[dict, str]:
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.format(url=(out / "report.html").as_uri(), width=width))
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--allow-file-access-from-files",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=4000",
        "--window-size=1400,1000",
        "--enable-logging=stderr",
        *(["--blink-settings=preferredColorScheme=0"] if dark else []),
        "--dump-dom",
        probe.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title, f"the page never loaded: {done.stderr[-2000:]}"
    return json.loads(title.group(1).replace("&quot;", '"').replace("&amp;", "&")), done.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: the page is not looked at in a browser")
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_the_committed_report(tmp_path, width):
    seen, log = browse(PROJECT / "reports" / "laptop", tmp_path, width, dark=False)
    assert "CONSOLE" not in log, log
    assert seen["overflow"] <= 0, f"the page scrolls sideways by {seen['overflow']} pixels at {width}"
    assert seen["svgs"] == seen["drawn"] >= 15
    assert (seen["broken"], seen["dangling"], seen["loaded"]) == (0, 0, 0)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: the page is not looked at in a browser")
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)], ids=["desktop-light", "phone-dark"])
def test_a_browser_shows_it(built, tmp_path, width, dark):
    seen, log = browse(built[1], tmp_path, width, dark)
    assert "CONSOLE" not in log, log
    assert seen["overflow"] <= 0, f"the page scrolls sideways by {seen['overflow']} pixels at {width}"
    assert (seen["svgs"], seen["drawn"]) == (2, 2)
    assert (seen["broken"], seen["dangling"], seen["loaded"]) == (0, 0, 0)
    ink, paper = (sum(map(int, re.findall(r"\d+", seen[k])[:3])) for k in ("ink", "paper"))
    assert (ink > paper) == dark


def test_words_of_a_note_are_set_as_they_are_meant():
    assert inline_text("of `over seeds`: a < b & c") == "of <code>over seeds</code>: a &lt; b &amp; c"
    assert inline_text("`<script>`") == "<code>&lt;script&gt;</code>"
    long = "rlvr.engines.jobs.sections.Modules(variant=...)"
    assert inline_text(long).replace("<wbr>", "") == long
    assert "rlvr.<wbr>engines.<wbr>jobs" in inline_text(long)
    assert inline_text("a.short_name and 0.05 [0.01, 0.09]") == "a.short_name and 0.05 [0.01, 0.09]"


def test_seeds_are_counted_once():
    made = Estimate(0.5, 0.4, 0.6, n=3, n_unit="seeds", seeds=(0, 1, 4), method="t")
    assert _counted(made) == "3 seeds (0 1 4)"
    assert _counted(replace(made, n=768, n_unit="problems")) == "n = 768 problems; 3 seeds (0 1 4)"
    assert _counted(replace(made, n=2, seeds=())) == "n = 2 seeds"
