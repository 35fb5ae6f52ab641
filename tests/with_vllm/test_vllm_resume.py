"""A killed run and its continuation give what an uninterrupted run gives, byte by byte."""

import json
import os
import signal
import subprocess
import sys

import pandas as pd
import pytest
from vllm_fixtures import PROMPTS, config, policy, save

from rlvr.engines.vllm import __main__ as command
from rlvr.engines.vllm import read_run, read_samples, sample
from rlvr.storage import write_json

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")

pytestmark = pytest.mark.vllm
# The command, killed (SIGKILL) while it writes its third part: after the bytes, before they have their name.
KILLED = """
import os, signal, sys
from pathlib import Path
replace = os.replace
def kill_at_the_third_part(source, target):
    if Path(target).name == "00002.parquet":
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = kill_at_the_third_part
from rlvr.engines.vllm.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
SETTINGS = config(
    samples=4, seeds=(0, 1), log_probs=True, chunk_size=11
)  # 48 requests: 4 parts of 11, one of 4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save(policy(), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """The folder of an uninterrupted run, and what ``sample`` returned."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    return out, sample(model, PROMPTS, SETTINGS, out, name="small", progress=False)


def forbid_engine(monkeypatch):
    monkeypatch.setattr("rlvr.engines.vllm.sampling.open_engine", None)


def test_a_killed_run_goes_on(model, whole, tmp_path):
    out, settings, problems = tmp_path / "run", tmp_path / "eval.yaml", tmp_path / "problems.jsonl"
    write_json(settings, SETTINGS.to_dict())  # JSON is YAML
    ids = whole[1]["problem"].unique()
    lines = (json.dumps({"id": i, "prompt": p}) + "\n" for i, p in zip(ids, PROMPTS, strict=True))
    problems.write_text("".join(lines))
    words = [str(model), str(problems), str(out), "--config", str(settings), "--name", "small"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = sorted(os.listdir(out / "parts"))
    assert left[-2:] == ["00000.parquet", "00001.parquet"] and left[0].startswith(".partial-00002")
    first = (out / "parts" / "00001.parquet").read_bytes()
    with pytest.raises(FileNotFoundError, match="no finished run"):
        read_samples(out)

    assert command.main([*words, "--quiet"]) == 0
    assert (out / "samples.parquet").read_bytes() == (whole[0] / "samples.parquet").read_bytes()
    assert read_run(out) == read_run(whole[0])
    assert sorted(os.listdir(out)) == ["run.json", "samples.parquet"]
    assert len(first) > 1000


def test_only_missing_parts_are_sampled_again(model, whole, tmp_path, monkeypatch):
    out = tmp_path / "run"
    from rlvr.engines.vllm.engine import _InProcess
    from rlvr.engines.vllm.store import Store

    asked, generate, write = [], _InProcess.generate, Store.write

    def counted(self, requests, on_done):
        asked.append(len(requests))
        return generate(self, requests, on_done)

    def stop_at_the_fourth(self, index, rows):
        if index == 3:
            raise KeyboardInterrupt
        write(self, index, rows)

    monkeypatch.setattr(_InProcess, "generate", counted)
    monkeypatch.setattr(Store, "write", stop_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        sample(model, PROMPTS, SETTINGS, out, name="small", progress=False)
    monkeypatch.setattr(Store, "write", write)
    (out / "parts" / "00001.parquet").unlink()
    frame = sample(model, PROMPTS, SETTINGS, out, name="small", progress=False)
    assert asked == [11, 11, 11, 11, 11, 11, 4]  # parts 0-3, then 1, 3 and 4
    pd.testing.assert_frame_equal(frame, whole[1])


def test_a_complete_run_is_only_read(model, whole, monkeypatch):
    forbid_engine(monkeypatch)
    out, frame = whole
    pd.testing.assert_frame_equal(sample(model, PROMPTS, SETTINGS, out, name="small"), frame)
    pd.testing.assert_frame_equal(read_samples(out), frame)


def test_without_a_folder_it_is_the_same_table(model, whole):
    frame = sample(model, PROMPTS, SETTINGS, name="small", progress=False)
    pd.testing.assert_frame_equal(frame, whole[1])


def test_another_run_in_the_folder_is_refused(model, whole, tmp_path, monkeypatch):
    forbid_engine(monkeypatch)
    out, _ = whole
    other = save(policy(seed=1), tmp_path)
    changed = {**SETTINGS.to_dict(), "temperature": 0.5, "seeds": [0]}
    for arguments, lines in (
        (
            (model, PROMPTS, type(SETTINGS).from_dict(changed)),
            ["config.seeds: [0, 1] there, [0] now", "config.temperature: 1.0 there, 0.5 now"],
        ),
        ((other, PROMPTS, SETTINGS), ["model: '"]),
        ((model, PROMPTS[:5], SETTINGS), ["prompts.count: 6 there, 5 now", "prompts.digest: "]),
        ((model, PROMPTS[::-1], SETTINGS), ["prompts.digest: "]),
    ):
        with pytest.raises(ValueError) as error:
            sample(*arguments, out, name="small")
        found = str(error.value).splitlines()
        assert "holds another run" in found[0] and len(found) == len(lines) + 2
        for line, expected in zip(found[1:], lines, strict=False):
            assert line.strip().startswith(expected)


def test_the_command_says_what_is_wrong(model, tmp_path, capsys):
    problems = tmp_path / "p.jsonl"
    problems.write_text('{"id": "a", "prompt": "Dan"}\n')
    for words, message in (
        ([str(model), str(problems), "x", "max_tokens=0"], "max_tokens=0: allowed are whole numbers"),
        ([str(model), str(problems), "x"], "max_tokens is missing"),
        ([str(tmp_path), str(problems), "x", "max_tokens=8"], "no folder with a saved model"),
        ([str(model), str(tmp_path / "none.jsonl"), "x", "max_tokens=8"], "none.jsonl"),
        ([str(model), "no_such_benchmark", "x", "max_tokens=8"], "no_such_benchmark"),
    ):
        assert command.main(words) == 2
        assert message in capsys.readouterr().err
