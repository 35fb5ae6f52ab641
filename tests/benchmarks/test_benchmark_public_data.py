"""The public data itself, where RLVR_DATA names a folder that holds it; skipped elsewhere."""

import json
import re
import time
from collections import Counter

import pytest

from rlvr.problems.benchmarks import (
    MissingData,
    all_tests,
    contamination,
    duplicate_groups,
    find_overlaps,
    load_benchmark,
    load_catalogue,
    load_training_set,
    program_record,
    prompt_for,
)
from rlvr.problems.benchmarks.check import check, verifier_gold_test
from rlvr.problems.benchmarks.converters import convert
from rlvr.problems.benchmarks.duplicates import conflict
from rlvr.problems.benchmarks.prompts import DAPO_AFTER, DAPO_BEFORE
from rlvr.problems.benchmarks.records import content_sha256, read_records, to_problem
from rlvr.problems.benchmarks.sources import find_file

CATALOGUE = load_catalogue()
TRAIN = [name for name, benchmark in CATALOGUE.items() if benchmark.role == "train"]
TESTS = [n for n, b in CATALOGUE.items() if b.role == "evaluation" and b.kind == "math"]


def load(name, shared, **arguments):
    """As load_benchmark; skipped where the folder lacks the file."""
    try:
        return load_benchmark(name, shared, **arguments)
    except MissingData as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", CATALOGUE)
def test_counts_and_the_recorded_copy(shared, name):
    problems = load(name, shared, window="all")
    benchmark = CATALOGUE[name]
    assert len(problems) == benchmark.count
    assert content_sha256(find_file(name, shared)) == benchmark.sha256
    assert len({p.id for p in problems}) == len(problems)
    assert all(prompt_for(p) for p in problems)
    if benchmark.kind == "math":
        assert all(p.answer for p in problems)
        if benchmark.answer_type == "integer":
            assert all(re.fullmatch(r"0|-?[1-9]\d*", p.answer) for p in problems)
    else:
        assert all(p.tests for p in problems)
        kinds = {"function", "stdin"} if benchmark.form == "livecodebench" else {"function"}
        assert {p.kind for p in problems} == kinds


def test_levels_of_math(shared):
    load("math_train", shared)
    sizes = {level: len(load_benchmark("math_train", shared, levels=[level])) for level in range(1, 6)}
    assert sizes == {1: 564, 2: 1348, 3: 1592, 4: 1690, 5: 2304}
    assert len(load_benchmark("math_train", shared, levels=[3, 4, 5])) == 5586
    empty = [
        p.id for p in load_benchmark("math_train", shared) if p.metadata.get("answer_as_published") == ""
    ]
    assert {name: "0" for name in empty} == CATALOGUE["math_train"].corrections


def test_parts_of_mbpp(shared):
    load("mbpp", shared)
    sizes = {
        part: len(load_benchmark("mbpp", shared, split=part))
        for part in ("prompt", "test", "validation", "train")
    }
    assert sizes == {"prompt": 10, "test": 500, "validation": 90, "train": 374}


def test_livecodebench_windows(shared):
    problems = load("livecodebench_v1_public", shared)
    window = load("livecodebench_v1_public", shared, window=("2023-09", "2023-10"))
    months = Counter(p.metadata["contest_date"][:7] for p in problems)
    assert 0 < len(window) == months["2023-09"] + months["2023-10"] < 400
    assert all(all_tests(p.tests) for p in problems)
    assert {(p.kind, bool(p.tests["starter_code"])) for p in problems} == {
        ("function", True),
        ("stdin", False),
    }


@pytest.mark.parametrize("name", [name for name, b in CATALOGUE.items() if b.kind == "program"])
def test_programs_are_what_their_verifier_takes(shared, name):
    programs = pytest.importorskip("rlvr.verifiers.programs", reason="there is no verifier of programs")
    if name == "humaneval_plus_mini":
        pytest.skip("inputs only: the expected outputs have to be made first")
    for problem in load(name, shared, window="all"):
        task = programs.ProgramTask.from_record(program_record(problem.tests))
        assert task.id == problem.id and task.tests
        assert (task.kind == "stdin") == (problem.kind == "stdin")


# --- contamination -----------------------------------------------------------------------------------


def test_the_catalogue_records_what_is_found_and_it_takes_seconds(shared):
    for name in [*TRAIN, *TESTS]:
        load(name, shared)
    start = time.process_time()
    reports = check(TESTS, shared)
    assert time.process_time() - start < 60
    for report in reports:
        assert report.problems == () and set(report.overlaps) == set(TRAIN)
        for train, overlaps in report.overlaps.items():
            kinds = Counter(overlap.kind for overlap in overlaps)
            recorded = CATALOGUE[train].overlaps[report.name]
            assert (kinds["exact"], kinds["near"]) == (recorded.exact, recorded.near), (train, report.name)


def test_the_independent_list_of_overlaps(shared):
    """contamination.json was made by other code: the same pairs, the same shares to its two digits."""
    path = shared / "contamination.json"
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    compared = 0
    for pair, expected in json.loads(path.read_text()).items():
        train_name, name = pair.split("|")
        train = load(train_name.removesuffix("_minus500"), shared)
        if train_name.endswith("_minus500"):
            train = [p for p in train if not p.metadata["in_math500"]]
        found = find_overlaps(train, load(name, shared))
        exact = {(o.eval_id, o.train_id) for o in found if o.kind == "exact"}
        assert exact == {tuple(entry) for entry in expected["exact"]}, pair
        near = {o.eval_id: o.share for o in found if o.kind == "near"}
        listed = {entry[0]: entry[2] for entry in expected["near"]}
        assert near == pytest.approx(listed, abs=0.00501), pair
        compared += len(found)
    assert compared > 100


def test_aime_2026_problem_1_is_left_out_of_dapo(shared):
    load("dapo_math_17k", shared), load("aime26", shared)
    assert [(o.eval_id, o.train_id, o.kind) for o in contamination("dapo_math_17k", "aime26", shared)] == [
        ("aime26-I-1", "dapo-728", "exact")
    ]
    kept = load_training_set("dapo_math_17k", exclude=["aime26"], data_dir=shared)
    assert "dapo-728" not in {p.id for p in kept}
    assert find_overlaps(kept, load_benchmark("aime26", shared)) == []
    assert len(kept) == len(load_training_set("dapo_math_17k", data_dir=shared)) - 1


def test_repetitions_in_dapo(shared):
    problems = load("dapo_math_17k", shared)
    groups = duplicate_groups(problems)
    published = {p.id for p in problems if "dup_of" in p.metadata}
    found = {p.id for group in groups for p in group[1:]}
    assert len(published) == 729 and published < found and len(found) == 1489
    assert sum(conflict(group) for group in groups) == 22
    assert len(load_training_set("dapo_math_17k", data_dir=shared)) == 16406
    assert len(load_training_set("dapo_math_17k", duplicates="keep", data_dir=shared)) == 17917


# --- converters --------------------------------------------------------------------------------------


def published_row(record, benchmark, number):
    """The row that the hub has for a record of the local copy, as far as its columns are known."""
    ours = dict(record)
    if benchmark.form == "aime":
        ours["number"] += 15 * ours["exam"].endswith(" II")
        ours.setdefault("orig_id", None)
    elif benchmark.form in ("amc", "amc12"):
        ours |= {"answer": ours["answer_as_published"], "number": ours["id"].split("-")[-1]}
    elif benchmark.form == "math":
        ours["level"] = f"Level {ours['level'] or '?'}"
    elif benchmark.form == "dapo":
        content = f"{DAPO_BEFORE}\n\n{ours['problem']}\n\n{DAPO_AFTER}"
        ours |= {"prompt": [{"content": content}], "key": {"index": number}}
        ours["answer"] = {"ground_truth": ours["answer"]}
    elif benchmark.form == "olympiadbench":
        ours |= {"number": ours["id"].split("-")[1], "context": None}
    elif benchmark.form == "mbpp":
        ours["id"] = int(ours["id"].split("/")[1])
    elif benchmark.form == "livecodebench":
        ours["public_tests"] = json.dumps(ours["public_tests"])
    return {column: ours[name] for name, column in benchmark.source.fields.items()}


@pytest.mark.parametrize("name", CATALOGUE)
def test_converted_rows_are_the_local_copy(shared, name):
    benchmark = CATALOGUE[name]
    load(name, shared, window="all")
    records = [record for _, record in read_records(find_file(name, shared))]
    rows = [published_row(record, benchmark, number) for number, record in enumerate(records)]
    again = [to_problem(record, benchmark) for record in convert(rows, benchmark)]
    for problem, other in zip(again, [to_problem(record, benchmark) for record in records], strict=True):
        for field in ("id", "prompt", "answer", "kind", "answer_type", "level", "tests"):
            assert getattr(problem, field) == getattr(other, field), problem.id


def test_how_answers_are_graded(shared):
    expected = {
        "minerva_math": {"float"},
        "math500": {"auto"},
        "aime24": {"integer"},
        "gsm8k_test": {"integer"},
    }
    for name, kinds in expected.items():
        assert {p.grading for p in load(name, shared)} == kinds, name


# --- golds -------------------------------------------------------------------------------------------


@pytest.mark.fault("gold-not-equal-to-itself")
@pytest.mark.slow
def test_golds_are_graded_correct_against_themselves(shared):
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    gold_test = verifier_gold_test()
    if gold_test is None:
        pytest.skip("rlvr.verifiers.golds cannot be imported")
    for name in TESTS:
        load(name, shared)
    for report in check(TESTS, shared, gold_test=gold_test):
        assert report.golds_tested == report.count and not report.empty_golds
        assert len(report.weak_golds) <= 0.01 * report.count, report.weak_golds
