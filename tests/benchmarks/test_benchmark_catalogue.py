"""The catalogue is what the code can read, and says nothing that is not so."""

import re
from pathlib import Path

import pytest

from rlvr.problems.benchmarks.catalogue import FORMS, get_benchmark, load_catalogue
from rlvr.problems.benchmarks.converters import CONVERTERS
from rlvr.problems.benchmarks.prompts import STYLES
from rlvr.problems.benchmarks.records import to_problem
from rlvr.verifiers import verify_math

PROJECT = Path(__file__).resolve().parents[2]
FILE = PROJECT / "data" / "benchmarks.yaml"
CATALOGUE = load_catalogue(FILE)
# our names that a form's converter, and the reader after it, cannot do without
NEEDED = {
    "aime": {"problem", "answer"},
    "amc": {"problem", "answer", "number"},
    "amc12": {"problem", "answer", "source"},
    "dapo": {"prompt", "answer", "key"},
    "gsm8k": {"problem", "solution"},
    "hmmt": {"problem", "answer", "number"},
    "humaneval": {"id", "prompt", "entry_point", "canonical_solution"},
    "livecodebench": {"id", "problem", "contest_date", "starter_code", "public_tests", "metadata"},
    "math": {"problem", "solution", "level", "subject"},
    "math500": {"problem", "answer", "level", "unique_id"},
    "mbpp": {"id", "prompt", "canonical_solution", "test_list", "split"},
    "mbpp_plus": {"id", "prompt", "canonical_solution", "test_list", "test"},
    "minerva": {"problem", "answer"},
    "olympiadbench": {"problem", "answers", "answer_type", "is_multiple_answer", "number"},
}
COUNTS = dict(
    aime24=30, aime25=30, aime26=30, amc23=40, amc_83=83, math500=500, math_train=7500, math_test=5000,
    minerva_math=272, olympiadbench=675, hmmt_feb_2025=30, gsm8k_train=7473, gsm8k_test=1319,
    dapo_math_17k=17917, humaneval=164, humaneval_plus=164, humaneval_plus_mini=164, mbpp=974,
    mbpp_sanitized=427, mbpp_plus=378, livecodebench_v6=175, livecodebench_release_v6=1055,
    livecodebench_v1_public=400,
)  # fmt: skip


def test_every_set_is_there_with_its_published_number_of_problems():
    assert {name: benchmark.count for name, benchmark in CATALOGUE.items()} == COUNTS


def test_forms_are_those_with_a_converter():
    assert set(FORMS) == set(CONVERTERS) == set(NEEDED) == {b.form for b in CATALOGUE.values()}


@pytest.mark.parametrize("name", CATALOGUE)
def test_entry_is_complete(name):
    benchmark = CATALOGUE[name]
    assert NEEDED[benchmark.form] <= set(benchmark.source.fields)
    assert benchmark.licence and benchmark.quirks
    assert all(quirk.endswith((".", ").")) for quirk in benchmark.quirks)  # a # in YAML cuts a sentence off
    form = "math" if benchmark.kind == "math" else benchmark.form
    assert form in STYLES[benchmark.prompt][1]
    # of the copies on the hub each is pinned; a commit in the address of a file would be another pin
    assert (benchmark.source.revision is not None) == (benchmark.source.hub is not None)


def test_overlaps_name_every_mathematics_test_of_every_training_set():
    tests = [b.name for b in CATALOGUE.values() if b.role == "evaluation" and b.kind == "math"]
    for benchmark in CATALOGUE.values():
        assert list(benchmark.overlaps) == (tests if benchmark.role == "train" else [])


def test_the_page_has_the_same_numbers():
    page = (PROJECT / "docs" / "data.md").read_text(encoding="utf-8")
    for name, benchmark in CATALOGUE.items():
        assert re.search(
            rf"^\| `{name}` \| {benchmark.count:,}[ |].*{re.escape(benchmark.licence)}", page, re.M
        )
    columns = ("dapo_math_17k", "math_train", "gsm8k_train")
    table = page.split("## Contamination")[1].split("## Prompts")[0].splitlines()
    for test in CATALOGUE["dapo_math_17k"].overlaps:
        (row,) = [line.split("|") for line in table if line.startswith("|") and f"`{test}`" in line]
        for train, cell in zip(columns, row[2:5], strict=True):
            counts = CATALOGUE[train].overlaps[test]
            total = f"{counts.exact} + {counts.near}" if counts.exact + counts.near else "0"
            assert re.fullmatch(rf" {re.escape(total)}( of [\d,]+| \(I-1\))? ", cell), (test, train)


def test_measured_values_are_graded_with_a_tolerance():
    benchmark = get_benchmark("minerva_math")
    record = {"id": "m", "problem": "How far is it, in parsecs?", "answer": "20.39"}
    problem = to_problem(record, benchmark)
    assert benchmark.answer_type == problem.grading == "float"
    for answer, right in (("20.391", True), ("20.39 \\text{ pc}", True), ("20.4", False), ("20.45", False)):
        assert verify_math(f"\\boxed{{{answer}}}", problem.golds, kind=problem.grading).correct is right
    whole = to_problem(record | {"answer": "188"}, benchmark)  # without a point it is exact
    assert verify_math("\\boxed{188.01}", whole.golds, kind=whole.grading).correct is False
    exact = to_problem(record, get_benchmark("math500"))
    assert verify_math("\\boxed{20.391}", exact.golds, kind=exact.grading).correct is False


def test_unknown_name_suggests():
    with pytest.raises(
        ValueError, match=r"benchmark='MATH-500': did you mean 'math500'.*allowed are aime24,"
    ):
        get_benchmark("MATH-500")
    with pytest.raises(ValueError, match=r"benchmark='zzz': allowed are aime24, "):
        get_benchmark("zzz")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("count: 3", "count: none", r"entry 'train': .*count"),
        ("kind: math", "kind: maths", r"entry 'train': .*kind"),
        ("form: dapo", "form: dpo", r"entry 'train': .*form"),
        ("  licence: none\n", "", r"entry 'train': .*licence"),
        ("prompt: dapo", "prompt: dapo\n  extra: 1", r"entry 'train': .*extra"),
        ("  answer_type: integer\n", "", r"entry 'train': .*answer_type"),
        ("    splits: [train]\n    rows", "    rows", r"either `files` or `splits`"),
        ("hub: nobody/train\n", "config: null\n", r"without `hub`"),
        ("rows: 6", "revision: abc", r"revision"),
        ("rows: 6", "revision: a123456789012345678901234567890123456789", "go together"),
    ],
)
def test_a_mistake_in_the_file_is_named(project, old, new, message):
    path = project / "data" / "benchmarks.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=re.compile(f"benchmarks.yaml: .*{message}", re.DOTALL)):
        load_catalogue()


def test_the_file_is_found_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_catalogue().keys() == CATALOGUE.keys()
