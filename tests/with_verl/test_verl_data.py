"""Problems as verl's parquet rows."""

import dataclasses
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")

from rlvr.engines.jobs.rows import SCHEMA, check_dataset, row_of, write_dataset
from rlvr.problems import get_task
from rlvr.problems.benchmarks import BenchmarkProblem

pytestmark = pytest.mark.verl
WORDS = get_task("word").generate("train", 3, 0, (1, 2))
MATH = BenchmarkProblem("7", "amc23", "What is 1/2 + 1/2?", "1", answers=("1", "1.0"), answer_type="integer")
RECORD = {
    "task_id": "HumanEval/0",
    "prompt": "def f(x):\n",
    "entry_point": "f",
    "test": "def check(candidate):\n    assert candidate(1) == 1\n",
}
PROGRAM = BenchmarkProblem("HumanEval/0", "humaneval", RECORD["prompt"], kind="function", tests=RECORD)


def test_a_generated_problem():
    row = row_of(WORDS[0], 4, "train")
    assert row["data_source"] == "embedded" and row["ability"] == "integer"
    assert row["prompt"] == [{"role": "user", "content": WORDS[0].prompt}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": WORDS[0].answer}
    assert row["extra_info"] == {
        "index": 4,
        "id": WORDS[0].id,
        "split": "train",
        "kind": "integer",
        "grading": "integer",
        "golds": [WORDS[0].answer],
    }


def test_mathematics_and_programs():
    row = row_of(MATH, 0, "test", style="boxed", system_prompt="Be brief.")
    assert [turn["role"] for turn in row["prompt"]] == ["system", "user"]
    assert row["prompt"][1]["content"].startswith(MATH.prompt) and "boxed" in row["prompt"][1]["content"]
    assert row["reward_model"]["ground_truth"] == "1"
    assert row["extra_info"]["golds"] == ["1", "1.0"] and row["extra_info"]["grading"] == "integer"
    program = row_of(PROGRAM, 1, "test")
    assert json.loads(program["reward_model"]["ground_truth"]) == RECORD
    assert program["extra_info"]["kind"] == "function" and program["extra_info"]["golds"] == []


def test_one_schema_for_all_kinds(tmp_path):
    """verl concatenates the files it is given."""
    import datasets

    paths = [
        write_dataset(tmp_path / "words.parquet", WORDS, "train"),
        write_dataset(tmp_path / "other.parquet", [MATH, PROGRAM], "train"),
    ]
    assert [check_dataset(path) for path in paths] == [3, 2]
    assert all(pq.read_schema(path).equals(SCHEMA) for path in paths)
    frames = [
        datasets.load_dataset("parquet", data_files=str(path), cache_dir=str(tmp_path / "cache"))["train"]
        for path in paths
    ]
    rows = datasets.concatenate_datasets(frames)
    assert rows[0]["prompt"] == [{"role": "user", "content": WORDS[0].prompt}]
    assert [row["extra_info"]["id"] for row in rows] == [p.id for p in [*WORDS, MATH, PROGRAM]]


@pytest.mark.parametrize(
    ("problems", "said"),
    [
        ([], "there is no row"),
        ([WORDS[0], WORDS[0]], "is there 2 times"),
        ([dataclasses.replace(WORDS[0], answer=" ")], "golds"),
        ([dataclasses.replace(PROGRAM, tests=None)], "without tests"),
        (["a text"], "allowed are Problem and BenchmarkProblem"),
    ],
)
def test_refused(tmp_path, problems, said):
    with pytest.raises(ValueError, match=said):
        write_dataset(tmp_path / "train.parquet", problems, "train")
    assert list(tmp_path.iterdir()) == []


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"end in \.parquet"):
        write_dataset(tmp_path / "train.json", WORDS, "train")


def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch):
    path = write_dataset(tmp_path / "train.parquet", WORDS, "train")
    before = path.read_bytes()

    def full(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(OSError):
        write_dataset(path, WORDS[:1], "train")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["train.parquet"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.drop_columns(["ability"]), "lacks the columns ability"),
        (lambda t: t.set_column(0, "data_source", pa.array([1, 2, 3])), "column data_source is int64"),
        (lambda t: t.slice(1), "row 0: extra_info.index is 1"),
        (lambda t: t.slice(0, 0), "there is no row"),
        (lambda t: t.set_column(0, "data_source", pa.array(["", "a", "a"])), "row 0: data_source is empty"),
    ],
)
def test_a_file_from_elsewhere_is_checked(tmp_path, change, said):
    path = write_dataset(tmp_path / "train.parquet", WORDS, "train")
    pq.write_table(change(pq.read_table(path)), path)
    with pytest.raises(ValueError, match=said):
        check_dataset(path)
