"""What is loaded is what the file says, and a file that is wrong says where."""

import gzip
import pickle

import pytest

from rlvr.problems.benchmarks import (
    BenchmarkProblem,
    BenchmarkWarning,
    MissingData,
    load_benchmark,
    load_training_set,
)

SUMS = [
    {"id": "test-I-1", "problem": "What is 2 + 2?", "answer": "004", "exam": "I", "number": 1},
    {"id": "test-II-7", "problem": "What is 9 - 10?", "answer": "-1", "exam": "II", "number": 7},
]


def contest(name, date, level="easy", starter="", kind="stdin", **more):
    test = {"input": "1\n", "output": "2\n", "testtype": kind}
    return {
        "id": name,
        "problem": f"Problem {name}.",
        "contest_date": f"{date}T00:00:00",
        "difficulty": level,
        "starter_code": starter,
        "public_tests": [test],
        "metadata": '{"func_name": "f"}' if starter else "{}",
    } | more


# --- fields ------------------------------------------------------------------------------------------


def test_mathematics(project, write):
    write(project, "test.jsonl", SUMS)
    first, second = load_benchmark("test", project)
    assert first == BenchmarkProblem(
        id="test-I-1",
        benchmark="test",
        prompt="What is 2 + 2?",
        answer="4",
        kind="math",
        answer_type="integer",
        metadata={"exam": "I", "number": 1, "answer_as_published": "004"},
    )
    assert second.answer == "-1" and "answer_as_published" not in second.metadata
    assert first.golds == ("4",) and first.grading == "integer"
    assert pickle.loads(pickle.dumps(first)) == first


def test_levels_and_subjects(project, write):
    records = [
        {
            "id": str(k),
            "problem": f"p{k}",
            "answer": rf" \frac{{1}}{{{k}}} ",
            "level": level,
            "subject": "Algebra",
        }
        for k, level in enumerate([3, 5, None, 3])
    ]
    write(project, "levels.jsonl.gz", records)
    problems = load_benchmark("levels", project)
    assert [p.level for p in problems] == [3, 5, None, 3]
    assert problems[1].answer == r"\frac{1}{1}" and problems[1].subject == "Algebra"
    assert problems[0].grading == "auto" and problems[0].answer_type == "expression"
    assert [p.id for p in load_benchmark("levels", project, levels=[5, 3])] == ["0", "1", "3"]
    assert [p.id for p in load_benchmark("levels", project, levels=[3], limit=1)] == ["0"]
    for levels, allowed in (([4], "3, 5"), ([], "3, 5"), ("3", "a list")):
        with pytest.raises(ValueError, match=rf"levels=.*allowed (are|is) {allowed}"):
            load_benchmark("levels", project, levels=levels)


@pytest.mark.filterwarnings("ignore::rlvr.problems.benchmarks.BenchmarkWarning")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"levels": 5}, "levels=5: allowed is a list"),
        ({"levels": "3"}, "levels='3': allowed is a list"),
        ({"levels": [[3]]}, r"levels=\[\[3\]\]: allowed are 3"),
        ({"split": 5}, "split=5: allowed is the name of one"),
        ({"split": ["test"]}, r"split=\['test'\]: allowed is the name of one"),
        ({"limit": 0}, "limit=0: allowed are whole numbers from 1"),
        ({"limit": True}, "limit=True: allowed"),
        ({"limit": "3"}, "limit='3': allowed"),
        ({"window": 5}, "window=5: levels has no dates"),
        ({"data_dir": 5}, "data_dir=5: allowed is the path of a folder"),
        ({"exclude": 5}, "exclude=5: allowed is a list of names"),
        ({"exclude": "test"}, "exclude='test': allowed is a list of names"),
        ({"exclude": [5]}, "benchmark=5: allowed are train, levels"),
        ({"duplicates": None}, "duplicates=None: allowed are 'drop' and 'keep'"),
        ({"name": 5}, "benchmark=5: allowed are"),
        ({"name": ["levels"]}, r"benchmark=\['levels'\]: .*allowed are"),
    ],
)
def test_arguments_of_another_type_are_refused_by_name(project, write, arguments, message):
    write(project, "levels.jsonl", [{"id": "a", "problem": "p", "answer": "1", "level": 3}])
    given = {"name": "levels", "data_dir": project} | arguments
    loaders = [load_training_set] if {"exclude", "duplicates"} & set(arguments) else [load_benchmark]
    if "window" not in arguments:
        loaders = list({*loaders, load_training_set})
    for load in loaders:
        with pytest.raises(ValueError, match=message):
            load(**given)


@pytest.mark.filterwarnings("ignore::rlvr.problems.benchmarks.BenchmarkWarning")
@pytest.mark.parametrize("levels", [[3], (3,), {3}, range(3, 4)])
def test_levels_are_any_list(project, write, levels):
    write(
        project,
        "levels.jsonl",
        [{"id": str(k), "problem": f"p{k}", "answer": "1", "level": k} for k in (3, 4)],
    )
    assert [p.id for p in load_benchmark("levels", project, levels=levels)] == ["3"]


def test_functions(project, write):
    records = [
        {"id": "mbpp/11", "prompt": "Add.", "entry_point": "add", "canonical_solution": "def add(a, b): ...",
         "test": "assert add(1, 2) == 3", "test_list": ["assert add(1, 2) == 3"], "split": "test"},
        {"id": "mbpp/601", "prompt": "Sub.", "entry_point": "sub", "base_input": [[1]], "plus_input": [],
         "split": "train"},
    ]  # fmt: skip
    write(project, "functions.jsonl", records)
    first, second = load_benchmark("functions", project)
    assert (first.kind, first.answer, first.golds) == ("function", "", ())
    assert first.tests == {name: records[0][name] for name in records[0] if name != "split"}
    assert first.metadata == {"split": "test"}
    assert second.tests["plus_input"] == []
    assert load_benchmark("functions", project, split="train") == [second]
    assert load_training_set("functions", data_dir=project, split="train") == [second]
    with pytest.raises(ValueError, match=r"split=\['dev'\]: allowed are 'test', 'train'"):
        load_benchmark("functions", project, split="dev")


def test_contest_programs_and_their_window(project, write):
    dates = ["2025-01-31", "2025-02-01", "2025-05-31"]
    records = [contest(f"c{k}", date) for k, date in enumerate(dates)]
    records[2] |= contest(
        "c2", dates[2], "hard", "class Solution: pass", "functional", private_test_cases="xyz"
    )
    write(project, "contest.jsonl", records)
    inside = load_benchmark("contest", project)
    assert [p.id for p in inside] == ["c1", "c2"]  # February to May, both ends in
    assert [p.kind for p in inside] == ["stdin", "function"]
    names = ("id", "starter_code", "public_tests", "metadata", "private_test_cases")
    assert inside[1].tests == {name: records[2][name] for name in names}
    assert inside[1].level == "hard" and inside[1].metadata == {"contest_date": "2025-05-31T00:00:00"}
    for window, ids in (
        ("all", ["c0", "c1", "c2"]),
        (("2025-01-31", "2025-02-01"), ["c0", "c1"]),
        (("2025", "2025-01"), ["c0"]),
        (("2024", "2024"), []),
    ):
        assert [p.id for p in load_benchmark("contest", project, window=window)] == ids
    assert [p.id for p in load_benchmark("contest", project, window="all", levels=["hard"])] == ["c2"]


@pytest.mark.parametrize(
    "window",
    [
        "2025",
        ("2025-05", "2025-02"),
        ("2025-13", "2026"),
        ("2025-02-30", "2026"),
        ("25", "26"),
        (1, 2),
        ("2025",),
    ],
)
def test_bad_windows(project, write, window):
    write(project, "contest.jsonl", [contest("c", "2025-03-01")])
    with pytest.warns(BenchmarkWarning), pytest.raises(ValueError, match=r"window=.*allowed are two dates"):
        load_benchmark("contest", project, window=window)


def test_arguments_without_a_field_are_refused(project, write):
    write(project, "test.jsonl", SUMS)
    with pytest.raises(ValueError, match=r"window=.*test has no dates"):
        load_benchmark("test", project, window=("2025", "2025"))
    with pytest.raises(ValueError, match=r"levels=.*none, this benchmark has no such field"):
        load_benchmark("test", project, levels=[1])
    for limit in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match=r"limit=.*whole numbers from 1"):
            load_benchmark("test", project, limit=limit)


# --- where -------------------------------------------------------------------------------------------


def test_order_of_the_folders(project, write, monkeypatch):
    variants = {
        folder: [SUMS[0] | {"problem": folder}, SUMS[1]] for folder in ("argument", "variable", "fetched")
    }
    write(project / "data" / "benchmarks", "test.jsonl.gz", variants["fetched"])
    assert load_benchmark("test")[0].prompt == "fetched"
    write(project / "variable", "test.jsonl.gz", variants["variable"])
    monkeypatch.setenv("RLVR_DATA", str(project / "variable"))
    assert load_benchmark("test")[0].prompt == "variable"
    write(project / "argument", "test.jsonl", variants["argument"])
    assert load_benchmark("test", project / "argument")[0].prompt == "argument"
    (project / "empty").mkdir()
    monkeypatch.setenv("RLVR_DATA", str(project / "empty"))  # has it not: what was fetched is next
    assert load_benchmark("test")[0].prompt == "fetched"
    with pytest.raises(MissingData):  # an argument is meant
        load_benchmark("test", project / "empty")


def test_missing_data_says_both_remedies(project, monkeypatch):
    with pytest.raises(
        MissingData, match=r"'test' is not here.*`rlvr data fetch test`, or set RLVR_DATA=DIR"
    ):
        load_benchmark("test")
    with pytest.raises(MissingData, match=r"data_dir='nowhere': no such folder"):
        load_benchmark("test", "nowhere")
    monkeypatch.setenv("RLVR_DATA", "nowhere")
    with pytest.raises(MissingData, match=r"RLVR_DATA='nowhere': no such folder"):
        load_benchmark("test")


def test_another_number_of_problems_is_said(project, write):
    write(project, "test.jsonl", SUMS[:1])
    with pytest.warns(BenchmarkWarning, match=r"test\.jsonl has 1 problems, test has 2"):
        load_benchmark("test", project)


# --- records that are none ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "record", "message"),
    [
        ("test", '{"id": "a", "problem"', r"test\.jsonl:2: "),
        ("test", "[1]", r"test\.jsonl:2: holds a list, must be a JSON object"),
        (
            "test",
            {"problem": "p", "answer": "1"},
            r":2: field 'id' is missing: the record has problem, answer",
        ),
        ("test", {"id": "a", "answer": "1"}, r":2: field 'problem' is missing"),
        ("test", {"id": "a", "problem": " ", "answer": "1"}, r":2: field 'problem' is empty"),
        ("test", {"id": "a", "problem": "p"}, r":2: field 'answer' is missing"),
        ("test", {"id": "a", "problem": "p", "answer": 1}, r":2: field 'answer' is a int, must be a str"),
        ("test", {"id": 1, "problem": "p", "answer": "1"}, r":2: field 'id' is a int"),
        ("test", SUMS[0], r":2: field 'id': 'test-I-1' is that of line 1"),
        ("levels", {"id": "a", "problem": "p", "answer": "1", "level": "5"}, r":2: field 'level' is a str"),
        ("levels", {"id": "a", "problem": "p", "answer": "1", "level": True}, r":2: field 'level' is a bool"),
        ("functions", {"id": "a", "prompt": "p", "test": "x"}, r":2: field 'entry_point' is missing"),
        ("functions", {"id": "a", "prompt": "p", "entry_point": "f"}, r":2: field 'test' is missing"),
        (
            "functions",
            {"id": "a", "prompt": "p", "entry_point": "f", "base_input": 1, "plus_input": []},
            r":2: field 'base_input' is a int, must be a list",
        ),
        (
            "contest",
            contest("a", "yesterday"),
            r":2: field 'contest_date' is 'yesterdayT00:00:00', must begin",
        ),
        ("contest", contest("a", "2025-01-01", metadata="{"), r":2: field 'metadata' is '{', must be a JSON"),
        ("contest", contest("a", "2025-01-01", metadata="[]"), r":2: field 'metadata' is '\[\]', must be"),
        ("contest", contest("a", "2025-01-01", starter="x"), r":2: .*`func_name` belongs to functional"),
        ("contest", contest("a", "2025-01-01", public_tests=[]), r":2: field 'public_tests' is empty"),
        (
            "contest",
            contest("a", "2025-01-01", public_tests=[{"input": ""}]),
            r":2: .*needs `input`, `output`",
        ),
    ],
)
def test_a_bad_record_is_named(project, write, name, record, message):
    good = {
        "test": SUMS[0],
        "levels": {"id": "g", "problem": "p", "answer": "1"},
        "functions": {"id": "g", "prompt": "p", "entry_point": "f", "test": "assert f()"},
        "contest": contest("g", "2025-01-01"),
    }[name]
    write(project, f"{name}.jsonl", [good, record])
    with pytest.raises(ValueError, match=message):
        load_benchmark(name, project)


def test_damaged_archives_are_named(project, write):
    path = write(project, "test.jsonl.gz", SUMS)
    whole = path.read_bytes()
    for damaged in (whole[:-12], whole[: len(whole) // 2], b"\x1f\x8b", b"no archive"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"test\.jsonl\.gz: cannot be read after line"):
            load_benchmark("test", project)
    path.write_bytes(gzip.compress(b'{"id": "\xff"}\n'))
    with pytest.raises(ValueError, match=r"test\.jsonl\.gz:\d: .*utf-8"):
        load_benchmark("test", project)


# --- training sets -----------------------------------------------------------------------------------


def items(*pairs):
    return [
        {"id": f"train-{k}", "problem": problem, "answer": answer}
        for k, (problem, answer) in enumerate(pairs)
    ]


@pytest.mark.fault("contradicting-copies")
def test_duplicates_are_dropped_and_disagreeing_ones_altogether(project, write):
    records = items(
        ("Find $x$ if $x+1 = 3$.", "2"),
        (r"What is \(2^{10}\)?", "1024"),
        ("find x if  x + 1 = 3", "2"),
        ("How many?", "-1"),
        ("What is $2^{10}$?", "1024"),
        ("How  many?", "5"),
        ("How many ? ", "5"),
    )
    write(project, "train.jsonl", records)
    with pytest.warns(BenchmarkWarning):
        assert [p.id for p in load_training_set("train", data_dir=project)] == ["train-0", "train-1"]
        assert [p.id for p in load_training_set("train", data_dir=project, limit=1)] == ["train-0"]
        assert len(load_training_set("train", duplicates="keep", data_dir=project)) == 7
        with pytest.raises(ValueError, match="duplicates='no': allowed are 'drop' and 'keep'"):
            load_training_set("train", duplicates="no", data_dir=project)


@pytest.mark.fault("trained-on-the-test")
def test_evaluation_problems_are_left_out(project, write):
    long = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    records = items((f"{long} sixteen", "1"), ("What is 2+2 ?", "4"), ("What is 2-2?", "0"))
    write(project, "train.jsonl", records)
    write(project, "test.jsonl", [SUMS[0], SUMS[1] | {"problem": long}])
    kept = load_training_set("train", exclude=["test"], data_dir=project)
    assert [p.id for p in kept] == ["train-2"]
    assert len(load_training_set("train", data_dir=project)) == 3
    # all of a dated benchmark is left out, whatever window it is usually evaluated on
    write(
        project,
        "contest.jsonl",
        [contest(f"c{k}", "2020-01-01", problem=f"What is 2 - {k}?") for k in (2, 3, 4)],
    )
    kept = load_training_set("train", exclude=["contest"], data_dir=project)
    assert [p.id for p in kept] == ["train-0", "train-1"]
    with pytest.raises(ValueError, match="exclude='test': allowed is a list"):
        load_training_set("train", exclude="test", data_dir=project)
    with pytest.raises(MissingData, match="'levels' is not here"):
        load_training_set("train", exclude=["levels"], data_dir=project)


@pytest.mark.fault("trained-on-the-test")
def test_an_evaluation_set_is_not_trained_on(project, write):
    write(project, "test.jsonl", SUMS)
    with pytest.raises(ValueError, match="name='test': an evaluation set is not to train on"):
        load_training_set("test", data_dir=project)
