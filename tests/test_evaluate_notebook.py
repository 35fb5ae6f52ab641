"""The evaluation notebook as it stands, on an arm and on a file, and what a stage really imports of it."""

from __future__ import annotations

import pandas as pd
import pytest
from evaluation_fixtures import run_notebook, small_repository, write_file
from test_scales import SOURCES, modules_of

from pipelines.imports import ONLY_MOVES_DATA
from rlvr.config import load_scale
from rlvr.evaluation.samples import COLUMNS

pytestmark = pytest.mark.slow


@pytest.fixture
def repository(tmp_path):
    return small_repository(tmp_path)


def assert_covered(modules, stage):
    """Everything that ran is an input of the stage, or moves data, or says nothing."""
    known = {m for m in modules if SOURCES.file_of(m) and m not in ONLY_MOVES_DATA}
    lacking = sorted(m for m in known - modules_of(stage) if not SOURCES.says_nothing(m))
    assert not lacking, f"stage {stage} imports {lacking}, which it says it skips"


def test_an_arm(repository):
    printed, modules = run_notebook(repository)
    scale = load_scale(repository / "params.yaml")
    samples = pd.read_parquet(repository / "out/samples.parquet")
    assert list(samples) == [*COLUMNS, "arm", "lag", "difficulty"]
    assert len(samples) == 12 * scale.evaluate.samples and set(samples["engine"]) == {"local"}
    assert set(samples["seed"]) == {scale.warmup.seed} and set(samples["sampling_seed"]) == {
        scale.evaluate.seed
    }
    assert (repository / "out/accuracy.csv").read_text().startswith("benchmark,model,grader,avg@k,")
    assert printed.endswith("notebook complete")
    assert_covered(modules, "evaluate_base")


@pytest.mark.parametrize("engine", ["transformers", "local"])
def test_a_file(repository, engine):
    printed, modules = run_notebook(repository, evaluation_file=write_file(repository, engine=engine))
    samples = pd.read_parquet(repository / "out/samples.parquet")
    assert list(samples) == [*COLUMNS, "difficulty"] and len(samples) == 10
    assert set(samples["engine"]) == {engine} and printed.endswith("notebook complete")
    table = pd.read_csv(repository / "out/accuracy.csv")
    assert table["samples"].tolist() == [10] and table["model"].tolist() == ["tiny"]
    if engine == "transformers":
        assert_covered(modules, "pretrained")
