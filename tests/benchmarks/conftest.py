"""A small project of its own: two training sets, a few evaluation sets, nothing of the real data."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

SMALL = r"""
train:
  title: Small train
  role: train
  kind: math
  answer_type: integer
  form: dapo
  count: 3
  id: "train-{index}"
  source:
    hub: nobody/train
    splits: [train]
    rows: 6
    download_mb: 1
    fields: {prompt: prompt, answer: reward_model, key: extra_info}
  prompt: dapo
  licence: none
  overlaps: {test: {exact: 4, near: 5}}
levels:
  title: Small levels
  role: train
  kind: math
  answer_type: expression
  form: math
  count: 4
  id: "levels-{index}"
  source:
    hub: nobody/levels
    config: main
    splits: [train]
    revision: a123456789012345678901234567890123456789
    revision_from: public code
    download_mb: 0.5
    fields: {problem: question, solution: solution, level: level, subject: type}
  corrections: {levels-3: "0"}
  prompt: boxed
  licence: none
test:
  title: Small test
  role: evaluation
  kind: math
  answer_type: integer
  form: aime
  count: 2
  id: "test-{exam}-{number}"
  source:
    hub: nobody/test
    splits: [train]
    download_mb: 0.5
    fields: {problem: problem, answer: answer, number: problem_idx}
  prompt: boxed
  licence: none
functions:
  title: Small functions
  role: evaluation
  kind: program
  form: mbpp
  count: 2
  id: "mbpp/{id}"
  source:
    hub: nobody/functions
    splits: [test, train]
    download_mb: 0.5
    fields: {id: task_id, prompt: text, canonical_solution: code, test_list: test_list, split: split}
  prompt: mbpp
  licence: none
contest:
  title: Small contest
  role: evaluation
  kind: program
  form: livecodebench
  count: 3
  id: "{id}"
  window: ["2025-02", "2025-05"]
  source:
    hub: nobody/contest
    files: [one.jsonl, two.jsonl]
    revision: a123456789012345678901234567890123456789
    revision_from: public code
    download_mb: 600
    fields:
      id: question_id
      problem: question_content
      contest_date: contest_date
      difficulty: difficulty
      starter_code: starter_code
      public_tests: public_test_cases
      private_test_cases: private_test_cases
      metadata: metadata
  prompt: livecodebench
  licence: none
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The small catalogue above as the project one is in; no data anywhere."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "benchmarks.yaml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RLVR_DATA", raising=False)
    return tmp_path


@pytest.fixture
def write():
    """write(folder, name, records): a file of problems, packed if the name says so."""

    def write_file(folder: Path, name: str, records: list) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records).encode()
        (folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return folder / name

    return write_file


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture
def shared(results, monkeypatch):
    """The folder with the public data; tests of it are skipped where RLVR_DATA is not set."""
    folder = os.environ.get("RLVR_DATA")
    if not folder:
        pytest.skip("RLVR_DATA is not set: the public data is not here")
    monkeypatch.setattr("rlvr.problems.benchmarks.overlap.fetched_dir", lambda: results)
    return Path(folder)
