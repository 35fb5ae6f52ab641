"""The evaluation notebook with engine vllm: the same columns, and the local engine's greedy text."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest
from evaluation_fixtures import run_notebook, small_repository, write_file
from notebook_factory import PROJECT
from vllm_fixtures import ENGINE

from rlvr.evaluation.engines import sample
from rlvr.evaluation.files import evaluation, load_settings
from rlvr.evaluation.requests import evaluation_of_file
from rlvr.evaluation.samples import COLUMNS

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")

pytestmark = pytest.mark.vllm
SMOKE = PROJECT / "runs/smoke/base/model"


def test_the_notebook_with_engine_vllm(tmp_path):
    """The random policy has narrow heads: the engine gets a copy that fits."""
    small_repository(tmp_path)
    sampling = ENGINE | {"max_tokens": 20, "samples": 2, "skip_special_tokens": False}
    printed, modules = run_notebook(
        tmp_path, evaluation_file=write_file(tmp_path, engine="vllm", sampling=sampling)
    )
    samples = pd.read_parquet(tmp_path / "out/samples.parquet")
    assert list(samples) == [*COLUMNS, "difficulty"] and len(samples) == 10
    assert set(samples["engine"]) == {"vllm"} and set(samples["model"]) == {"tiny"}
    assert samples["correct"].notna().all() and printed.endswith("notebook complete")
    assert pd.read_csv(tmp_path / "out/accuracy.csv")["samples"].tolist() == [10]
    assert "vllm" in modules and "rlvr.engines.pretrained" not in modules


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """An evaluation of the random policy with engine local; the process is in its repository."""
    monkeypatch.chdir(small_repository(tmp_path))
    sampling = {"max_tokens": 20, "skip_special_tokens": False, "temperature": 0}
    return evaluation_of_file(write_file(tmp_path, engine="local", sampling=sampling))


def with_vllm(request):
    return dataclasses.replace(
        request, engine="vllm", sampling=dataclasses.replace(request.sampling, **ENGINE)
    )


def assert_same_greedy(request, scratch):
    ours, vllm = sample(request, scratch / "local"), sample(with_vllm(request), scratch / "vllm")
    same = [
        "problem",
        "benchmark",
        "sample",
        "seed",
        "prompt",
        "text",
        "finish_reason",
        "tokens",
        "prompt_tokens",
    ]
    pd.testing.assert_frame_equal(ours[same], vllm[same])
    assert ours.dtypes.to_dict() == vllm.dtypes.to_dict() and ours["text"].nunique() > 1


def test_greedy_text_of_a_random_policy(tiny, tmp_path):
    assert_same_greedy(tiny, tmp_path / "scratch")


@pytest.mark.skipif(not SMOKE.is_dir(), reason="needs runs/smoke: make repro SCALE=smoke")
def test_greedy_text_of_the_rehearsal(tmp_path, monkeypatch):
    monkeypatch.chdir(PROJECT)
    settings = load_settings("pipelines/scales/pretrained/rehearsal.yaml")
    greedy = settings.sampling | {"temperature": 0, "samples": 1}
    assert_same_greedy(
        evaluation(settings.model_copy(update={"engine": "local", "sampling": greedy})), tmp_path
    )


def test_scratch_of_other_settings_is_removed(tiny, tmp_path):
    request = with_vllm(tiny)
    first = sample(request, tmp_path / "scratch")
    assert first.equals(sample(request, tmp_path / "scratch"))  # complete: only read
    shorter = dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, max_tokens=5))
    assert sample(shorter, tmp_path / "scratch")["tokens"].max() <= 5


def test_a_build_without_a_device_is_explained(tiny, tmp_path, monkeypatch):
    import vllm.platforms

    nothing = type("Nothing", (), {"device_type": ""})()
    monkeypatch.setattr(vllm.platforms, "current_platform", nothing, raising=False)
    with pytest.raises(ImportError, match="finds no device that this build of vLLM runs on: `make env-vllm`"):
        sample(with_vllm(tiny), tmp_path / "scratch")
    assert not (tmp_path / "scratch").exists()
