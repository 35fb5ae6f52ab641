"""A download is complete and verified, or absent; the hub is a fake module here."""

import gzip
import json
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rlvr.problems.benchmarks import load_benchmark
from rlvr.problems.benchmarks.catalogue import load_catalogue
from rlvr.problems.benchmarks.fetch import FetchError, Unreachable, fetch, state_of

REVISION = "a123456789012345678901234567890123456789"
PROMPT = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
TEST = [
    {"problem_idx": 1, "problem": "2 + 2?", "answer": 4},
    {"problem_idx": 17, "problem": "0?", "answer": "000"},
]

LEVELS = {"question": "q", "level": "Level 1", "type": "Algebra"}


def dapo(index, problem, answer):
    return {
        "prompt": [{"role": "user", "content": PROMPT.format(problem)}],
        "reward_model": {"ground_truth": answer, "style": "rule"},
        "extra_info": {"index": index},
        "ability": "MATH",
    }


def contest(name, tests="[]", **more):
    public = json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}])
    return {
        "question_id": name, "question_content": f"Problem {name}", "contest_date": "2025-03-01T00:00:00",
        "difficulty": "easy", "starter_code": "", "public_test_cases": public, "private_test_cases": tests,
        "metadata": "{}",
    } | more  # fmt: skip


@pytest.fixture
def hub(project, monkeypatch, tmp_path):
    """A fake `datasets`: rows by (dataset, split), files by address; every call is noted in `calls`."""
    rows = {
        ("nobody/train", "train"): [
            dapo("a", "P1?", "1"), dapo("b", "P2 求?", "-02"), dapo("c", "P3?", "3"),
        ] * 2,
        ("nobody/test", "train"): TEST,
        ("nobody/levels", "train"): [
            {"question": f"q{k}", "solution": solution, "level": f"Level {level}", "type": "Algebra"}
            for k, (solution, level) in enumerate(
                [(r"so \boxed{\frac{1}{2}}.", 5), (r"first \boxed{1}, then \boxed{ 2 }", 1),
                 (r"\fbox{3}", "?"), (r"there are $\boxed{}$", 2)]
            )
        ],
        ("nobody/functions", "test"): [
            {"task_id": 11, "text": "Add.", "code": "def add(a, b):\r\n    return a + b",
             "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]},
        ],
        ("nobody/functions", "train"): [
            {"task_id": 601, "text": "Sub.", "code": "def g():\n    pass\ndef sub(a):\n    return a",
             "test_list": ["assert set(sub([1])) == {1}"]},
        ],
    }  # fmt: skip
    fake = SimpleNamespace(rows=rows, files={}, calls=[])

    def load_dataset(path, name=None, *, split, revision=None):
        fake.calls.append((path, name, split, revision))
        found = fake.rows[path, split]
        if isinstance(found, Exception):
            raise found
        return found

    class DownloadManager:
        def download(self, address):
            fake.calls.append(address)
            path = tmp_path / address.rsplit("/", 1)[-1]
            path.write_bytes(fake.files[address])
            return str(path)

    base = f"hf://datasets/nobody/contest@{REVISION}/"
    lines = [json.dumps(contest(name)).encode() + b"\n" for name in "xyz"]
    fake.files = {base + "one.jsonl": b"".join(lines[:2]), base + "two.jsonl": gzip.compress(lines[2])}
    monkeypatch.setitem(
        sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset, DownloadManager=DownloadManager)
    )
    fake.folder = project / "data" / "benchmarks"
    return fake


def quiet(text):
    pass


def kept(folder):
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith(".git"))


# --- what arrives ------------------------------------------------------------------------------------


def test_fetched_problems_can_be_loaded(hub):
    said = []
    assert fetch(["test"], say=said.append) == [hub.folder / "test.jsonl.gz"]
    assert said[0] == f"to download: 1 set, about 0.5 MB (under a minute at 10 MB/s); to {hub.folder}"
    assert said[1:] == ["test: 2 problems from nobody/test", "test: 2 problems, complete"]
    first, second = load_benchmark("test")
    assert (first.id, first.prompt, first.answer) == ("test-I-1", "2 + 2?", "4")
    assert (second.id, second.answer, second.metadata) == ("test-II-2", "0", {"exam": "II", "number": 2})
    assert kept(hub.folder) == ["test.json", "test.jsonl.gz"]
    assert (hub.folder / ".gitignore").read_text() == "*\n"
    assert hub.calls == [("nobody/test", None, "train", None)]


def test_repetitions_are_removed_by_their_key(hub):
    fetch(["train"], say=quiet)
    problems = load_benchmark("train")
    assert [(p.id, p.prompt, p.answer) for p in problems] == [
        ("train-0", "P1?", "1"), ("train-1", "P2 求?", "-2"), ("train-2", "P3?", "3"),
    ]  # fmt: skip
    assert [p.metadata["lang"] for p in problems] == ["en", "zh", "en"]


def test_answers_from_boxes_and_the_listed_corrections(hub):
    fetch(["levels"], say=quiet)
    problems = load_benchmark("levels")
    assert [p.answer for p in problems] == [r"\frac{1}{2}", "2", "3", "0"]
    assert [p.level for p in problems] == [5, 1, None, 2]
    assert problems[3].metadata["answer_as_published"] == ""
    assert hub.calls == [("nobody/levels", "main", "train", REVISION)]


def test_parts_are_joined_and_named(hub):
    fetch(["functions"], say=quiet)
    first, second = load_benchmark("functions")
    assert (first.id, first.metadata["split"], first.tests["entry_point"]) == ("mbpp/11", "test", "add")
    assert (second.id, second.metadata["split"], second.tests["entry_point"]) == ("mbpp/601", "train", "sub")
    assert first.tests["test"] == "assert add(1, 2) == 3\nassert add(0, 0) == 0"
    assert "\r" not in first.tests["canonical_solution"]


def test_files_are_read_line_by_line_packed_or_not(hub):
    fetch(["contest"], say=quiet)
    assert [p.id for p in load_benchmark("contest")] == ["x", "y", "z"]
    assert load_benchmark("contest")[0].tests["private_test_cases"] == "[]"
    assert hub.calls == [f"hf://datasets/nobody/contest@{REVISION}/{name}.jsonl" for name in ("one", "two")]


def test_the_same_rows_give_the_same_bytes(hub, tmp_path):
    (one,) = fetch(["train"], tmp_path / "one", say=quiet)
    (two,) = fetch(["train"], tmp_path / "two", say=quiet)
    assert one.read_bytes() == two.read_bytes()


def test_all_leaves_the_large_out_unless_named(hub, tmp_path):
    said = []
    names = ["train", "levels", "test", "functions"]
    assert [p.name for p in fetch(["all"], tmp_path / "a", say=said.append)] == [
        f"{n}.jsonl.gz" for n in names
    ]
    assert said[0] == "not in `all`, since larger than 500 MB; fetch by name: contest"
    assert said[-1] == f"to read from there: export RLVR_DATA={tmp_path / 'a'}"
    assert not (tmp_path / "a" / ".gitignore").exists()
    assert len(fetch(["all", "contest"], tmp_path / "a", say=quiet)) == 5


# --- once, and again ---------------------------------------------------------------------------------


def test_what_is_complete_is_skipped(hub):
    fetch(["test", "train"], say=quiet)
    said = []
    hub.calls.clear()
    fetch(["train", "test", "test"], say=said.append)
    assert hub.calls == []
    assert said == [f"{name}: complete and verified, skipped" for name in ("train", "test")]
    fetch(["test"], say=quiet, force=True)
    assert len(hub.calls) == 1


def test_without_the_package_what_is_complete_still_is(hub, monkeypatch):
    fetch(["test"], say=quiet)
    monkeypatch.setitem(sys.modules, "datasets", None)
    fetch(["test"], say=quiet)
    with pytest.raises(FetchError, match="needs the package `datasets`: pip install"):
        fetch(["train"], say=quiet)


def test_a_changed_file_is_fetched_again(hub):
    test = load_catalogue()["test"]
    assert state_of(test, hub.folder) == "absent"
    (path,) = fetch(["test"], say=quiet)
    good = path.read_bytes()
    assert state_of(test, hub.folder) == "complete"
    for damaged in (gzip.compress(gzip.decompress(good).replace(b"2 + 2", b"2 - 2")), good[:-9], b""):
        path.write_bytes(damaged)
        assert state_of(test, hub.folder) == "changed"
        fetch(["test"], say=quiet)
        assert path.read_bytes() == good
    (hub.folder / "test.json").unlink()
    assert state_of(test, hub.folder) == "changed"


def test_another_revision_is_fetched_again(hub, project):
    fetch(["levels"], say=quiet)
    catalogue = project / "data" / "benchmarks.yaml"
    catalogue.write_text(
        catalogue.read_text().replace(f"revision: {REVISION}", f"revision: {REVISION[::-1]}", 1)
    )
    assert state_of(load_catalogue()["levels"], hub.folder) == "outdated"
    fetch(["levels"], say=quiet)
    assert [call[-1] for call in hub.calls] == [REVISION, REVISION[::-1]]
    assert state_of(load_catalogue()["levels"], hub.folder) == "complete"


class Breaks(list):
    """Rows that end in an error, as when a connection or a process dies half-way."""

    def __init__(self, rows, error):
        super().__init__(rows)
        self.error = error

    def __iter__(self):
        yield from list.__iter__(self)
        raise self.error


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), KeyboardInterrupt(), MemoryError()])
def test_interrupted_half_way_then_resumed(hub, error):
    whole = hub.rows["nobody/train", "train"]
    hub.rows["nobody/train", "train"] = Breaks(whole[:2], error)
    expected = Unreachable if isinstance(error, OSError) else FetchError
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else expected
    with pytest.raises(expected):
        fetch(["test", "train", "levels"], say=quiet)
    assert kept(hub.folder) == ["test.json", "test.jsonl.gz"]  # the first is complete, of the second nothing
    hub.rows["nobody/train", "train"] = whole
    hub.calls.clear()
    fetch(["test", "train", "levels"], say=quiet)
    assert [call[0] for call in hub.calls] == ["nobody/train", "nobody/levels"]
    assert len(load_benchmark("train")) == 3


def test_a_failed_refresh_leaves_no_complete_set(hub):
    fetch(["train"], say=quiet)
    hub.rows["nobody/train", "train"] = Breaks([], TimeoutError("slow"))
    with pytest.raises(Unreachable):
        fetch(["train"], say=quiet, force=True)
    assert state_of(load_catalogue()["train"], hub.folder) == "changed"


# --- what can be wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_count(hub, count):
    hub.rows["nobody/test", "train"] = [
        {"problem_idx": k + 1, "problem": "p", "answer": 1} for k in range(count)
    ]
    with pytest.raises(
        FetchError, match=f"test: {count} problems came, 2 were expected: nothing was written"
    ):
        fetch(["test"], say=quiet)
    assert kept(hub.folder) == []


def test_renamed_fields_are_named_and_an_edit_of_the_catalogue_repairs_it(hub, project):
    hub.rows["nobody/test", "train"] = [
        {"question" if k == "problem" else k: v for k, v in r.items()} for r in TEST
    ]
    with pytest.raises(
        FetchError,
        match=r"test: row 0 has no field 'problem': it has problem_idx, question, answer.*"
        r"correct `fields`, in data/benchmarks\.yaml",
    ):
        fetch(["test"], say=quiet)
    assert kept(hub.folder) == []
    catalogue = project / "data" / "benchmarks.yaml"
    catalogue.write_text(
        catalogue.read_text().replace("{problem: problem, answer", "{problem: question, answer")
    )
    fetch(["test"], say=quiet)
    assert load_benchmark("test")[0].prompt == "2 + 2?"


@pytest.mark.parametrize(
    ("name", "split", "row", "message"),
    [
        ("test", "train", TEST[0] | {"answer": "1/2"}, "row 0: answer '1/2' is no whole number"),
        ("test", "train", TEST[0] | {"problem_idx": None}, "row 0 is not as expected: TypeError"),
        ("test", "train", TEST[0] | {"problem": ""}, "test-I-1: field 'problem' is empty"),
        ("train", "train", dapo("a", "p", "1") | {"prompt": []}, "row 0: "),
        ("train", "train", dapo("a", "p", "1") | {"prompt": [{"content": "bare"}]}, "does not carry DAPO's"),
        ("levels", "train", LEVELS | {"solution": "none"}, "no .boxed answer"),
        ("levels", "train", LEVELS | {"solution": r"\boxed{1"}, "does not end"),
        (
            "functions",
            "test",
            {"task_id": 1, "text": "t", "code": "def f(): pass", "test_list": ["assert g()"]},
            "no function of the solution is called by 'assert g",
        ),
    ],
)  # fmt: skip
def test_rows_that_are_not_as_expected(hub, name, split, row, message):
    hub.rows[f"nobody/{name}", split] = [row]
    with pytest.raises(FetchError, match=f"^{name}: .*{message}"):
        fetch([name], say=quiet)
    assert kept(hub.folder) == []


def test_values_that_json_does_not_know(hub):
    hub.rows["nobody/levels", "train"][0]["type"] = {1, 2}
    with pytest.raises(FetchError, match=r"^levels: .*(subject|JSON)"):
        fetch(["levels"], say=quiet)


class ConnectTimeout(Exception):
    """As the HTTP libraries have them: no OSError."""


ConnectTimeout.__module__ = "httpx._exceptions"


def wrapped(outer, inner):
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    ("error", "reachable"),
    [
        (ConnectionError("Couldn't reach 'nobody/test' on the Hub (OfflineModeIsEnabled)"), False),
        (ConnectTimeout("timed out"), False),
        (
            wrapped(RuntimeError("cannot send a request"), socket.gaierror(-2, "Name or service not known")),
            False,
        ),
        (wrapped(ValueError("Couldn't find cache"), ConnectTimeout("timed out")), False),
        (FileNotFoundError("Dataset 'nobody/test' doesn't exist on the Hub"), True),
        (RuntimeError("Dataset scripts are no longer supported"), True),
    ],
)
def test_no_network_is_a_sentence(hub, monkeypatch, error, reachable):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.rows["nobody/test", "train"] = error
    with pytest.raises(FetchError) as caught:
        fetch(["test", "train"], say=quiet)
    assert isinstance(caught.value, Unreachable) == (not reachable)
    text = str(caught.value)
    assert text.startswith("test: nobody/test ") and "\n" not in text
    if not reachable:
        assert "HF_HUB_OFFLINE set: unset to download" in text
        assert "`rlvr data fetch test --to DIR`" in text and "set RLVR_DATA=DIR" in text
    assert len(hub.calls) == 1  # the second set is not waited for
    assert kept(hub.folder) == []


def test_names_are_checked_before_anything_is_downloaded(hub):
    with pytest.raises(ValueError, match="benchmark='tset': did you mean 'test'"):
        fetch(["test", "tset"], say=quiet)
    with pytest.raises(ValueError, match="names='test': allowed is a list"):
        fetch("test", say=quiet)
    assert hub.calls == []


def test_a_folder_that_cannot_be_written(hub, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises((FetchError, FileExistsError, NotADirectoryError)):
        fetch(["test"], tmp_path / "file", say=quiet)


# --- with the real package ---------------------------------------------------------------------------


def command(project, *arguments, **environment):
    pytest.importorskip("datasets", reason="the package `datasets` is not installed")
    return subprocess.run(
        [sys.executable, "-m", "rlvr.cli", "data", *arguments],
        cwd=project,
        env=os.environ | {"HF_HOME": str(project / "cache"), "HF_HUB_OFFLINE": "1"} | environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_the_real_package_reads_rows(project, write):
    """A folder stands in for the hub: `datasets` takes one of that name in the working directory first."""
    write(project / "nobody" / "test", "train.jsonl", [row | {"answer": str(row["answer"])} for row in TEST])
    for split, number in (("test", 11), ("train", 601)):
        code = {
            "task_id": number,
            "text": "t",
            "code": "def f():\n  pass",
            "test_list": ["assert f() is None"],
        }
        write(project / "nobody" / "functions", f"{split}.jsonl", [code])
    done = command(project, "fetch", "test", "functions")
    assert done.returncode == 0, done.stderr
    assert [p.answer for p in load_benchmark("test")] == ["4", "0"]
    assert [p.metadata["split"] for p in load_benchmark("functions")] == ["test", "train"]
    again = command(project, "fetch", "test", "functions")
    assert again.stderr.count("complete and verified, skipped") == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aime24", "livecodebench_v6"])
def test_the_real_package_without_network(tmp_path, name):
    done = command(tmp_path, "fetch", name, "--to", "here")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"rlvr: {name}: " in done.stderr and "HF_HUB_OFFLINE set: unset to download" in done.stderr
    assert kept(tmp_path / "here") == []
