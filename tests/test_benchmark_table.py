"""From evaluations of experiments to Table 1."""

import json

import pandas as pd
import pytest

from pipelines import benchmark_table as command
from rlvr.analysis.benchmark_table import benchmark_table
from rlvr.reporting.bundle import NOT_MEASURED


def samples_of(rates, seeds=(0, 1)):
    """{arm: {benchmark: share right}}, ten problems a benchmark, four samples, the same for every seed."""
    rows = [
        {"arm": arm, "seed": seed, "benchmark": name, "problem": f"{name}-{i}", "sample": j,
         "correct": i < 10 * rate}
        for arm, by_name in rates.items() for seed in seeds for name, rate in by_name.items()
        for i in range(10) for j in range(4)
    ]  # fmt: skip
    return pd.DataFrame(rows).astype({"correct": "boolean"})


RATES = {"grpo": {"aime24": 0.2, "math500": 0.6}, "dppo": {"aime24": 0.3, "math500": 0.5},
         "nfpo": {"aime24": 0.3, "math500": 0.7}}  # fmt: skip


def test_every_benchmark_counts_once_and_the_gain_is_of_the_averages():
    table = benchmark_table(samples_of(RATES), ["grpo", "dppo", "nfpo"], 0.95)
    assert list(table.index) == ["GRPO", "DPPO-TV", "NFPO"]
    assert list(table) == ["aime24", "math500", "average", "NFPO's gain over it, %"]
    assert table.loc["GRPO", "aime24"].value == pytest.approx(0.2)
    assert table.loc["GRPO", "average"].value == pytest.approx(0.4)
    assert table.loc["GRPO", "NFPO's gain over it, %"].value == pytest.approx(25.0)
    assert table.loc["NFPO", "NFPO's gain over it, %"] is NOT_MEASURED
    assert table.loc["GRPO", "aime24"].n == 10  # problems, not responses


def test_one_seed_has_no_interval_over_seeds():
    table = benchmark_table(samples_of(RATES, seeds=(0,)), ["grpo", "nfpo"], 0.95)
    assert table.loc["NFPO", "average"].low is None
    assert table.loc["NFPO", "aime24"].low is not None


def test_arms_on_different_problems_are_not_compared():
    samples = samples_of(RATES)
    dropped = samples[~((samples["arm"] == "grpo") & (samples["problem"] == "aime24-0"))]
    with pytest.raises(ValueError, match="grpo and nfpo were evaluated on different problems"):
        benchmark_table(dropped, ["grpo", "nfpo"], 0.95)
    with pytest.raises(ValueError, match="no rows of arm 'fipo'"):
        benchmark_table(samples, ["fipo", "nfpo"], 0.95)


def test_the_command(tmp_path, capsys):
    for (arm, seed), rows in samples_of(RATES).groupby(["arm", "seed"]):
        folder = tmp_path / "paper" / "evaluate" / f"nfpo-1.7b-{arm}" / f"seed{seed}"
        folder.mkdir(parents=True)
        # the file's own seed is that of sampling
        rows.drop(columns="arm").assign(seed=7, text="").to_parquet(folder / "samples.parquet")
    assert command.main(["paper", "nfpo-1.7b", "--runs", str(tmp_path)]) == 0
    assert "DPPO-TV" in capsys.readouterr().out
    (file,) = (tmp_path / "paper" / "tables" / "nfpo-1.7b").rglob("table.json")
    assert json.loads(file.read_text())
    assert command.main(["paper", "nfpo-8b", "--runs", str(tmp_path)]) == 2
    assert "dvc repro pipelines/scales/paper/dvc.yaml:evaluate@nfpo-8b-grpo-0" in capsys.readouterr().err
    assert command.main(["paper", "nfpo-1.7b", "--arms", "grpoo", "nfpo", "--runs", str(tmp_path)]) == 2
    assert "did you mean 'nfpo-1.7b-grpo'" in capsys.readouterr().err
