"""Rows of updates that several ranks of a job kept, as the local engine's ``updates.parquet``."""

import json
import os

import numpy as np
import pandas as pd
import pytest
from job_fixtures import make_job, save_checkpoint

from rlvr.engines.jobs.collect import collect
from rlvr.engines.jobs.updates import NAME, joined, merged, read_updates, value_of


def part(values):
    """Count, mean and squared deviations, by a loop."""
    mean = sum(values) / len(values)
    return [len(values), mean, sum((value - mean) ** 2 for value in values)]


def row(tokens, clip, ratios, ranks=None, grad_norm=0.5):
    parts = {"token_ratio_variance": part(ratios)} | ({"mtp_rank_2": part(ranks)} if ranks else {})
    metrics = {"tokens": tokens, "clip_fraction": clip, "ratio_max": max(ratios)}
    return {"metrics": metrics, "parts": parts, "shared": {"grad_norm": grad_norm, "loss": -0.1}}


def save(folder, step, rank, ranks, updates, at=0):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME.format(step=step, rank=rank)
    path.write_text(json.dumps({"step": step, "rank": rank, "ranks": ranks, "updates": updates}))
    os.utime(path, (1000 + at, 1000 + at))


@pytest.mark.parametrize("cuts", [[4], [1, 4], [1, 2, 3], [2, 2, 5]])
def test_parts_of_any_cut_are_those_of_the_whole(cuts):
    values = np.random.default_rng(0).lognormal(0, 0.3, 7).tolist()
    pieces = [piece.tolist() for piece in np.split(np.array(values), cuts) if len(piece)]
    whole = joined(part(piece) for piece in pieces)
    assert whole == pytest.approx(part(values), rel=1e-12)
    assert value_of("ratio_variance", whole) == pytest.approx(np.var(values, ddof=1))
    assert value_of("entropy", whole) == pytest.approx(np.mean(values))


def test_a_single_value_has_no_variance_and_no_value_is_refused():
    assert np.isnan(value_of("ratio_variance", (1, 1.5, 0.0)))
    with pytest.raises(ValueError, match="parts hold no values: allowed is at least one"):
        joined([(0, 0.0, 0.0)])


def test_ranks_count_by_their_tokens():
    """By hand: 1 and 3 tokens; (0.4 + 3 * 0.2) / 4; the variance of 1, 2, 3, 4; ranks of three entries."""
    found = merged([row(1, 0.4, [1.0], [5.0]), row(3, 0.2, [2.0, 3.0, 4.0], [1.0, 3.0])])
    assert found["tokens"] == 4 and found["clip_fraction"] == pytest.approx(0.25)
    assert found["token_ratio_variance"] == pytest.approx(5 / 3)
    assert found["mtp_rank_2"] == 3.0 and found["ratio_max"] == 4.0
    assert (found["grad_norm"], found["loss"]) == (0.5, -0.1)
    one = merged([row(1, 0.4, [1.0]), row(3, 0.2, [2.0, 3.0, 4.0], [1.0, 3.0])])
    assert one["mtp_rank_2"] == 2.0  # of the rank whose responses were long enough


def test_a_rank_without_tokens_says_nothing():
    full = row(3, 0.3, [1.0, 2.0, 3.0])
    empty = full | {"metrics": dict.fromkeys(full["metrics"]) | {"tokens": 0}, "parts": {}}
    assert merged([empty, row(3, 0.3, [1.0, 2.0, 3.0])])["clip_fraction"] == pytest.approx(0.3)
    assert merged([row(3, 0.3, [1.0, 2.0, 3.0]), empty])["tokens"] == 3


def test_what_is_not_a_number_is_missing_and_not_invented():
    broken = row(2, None, [1.0, 2.0])
    broken["parts"]["token_ratio_variance"][1] = None
    broken["shared"]["grad_norm"] = None
    found = merged([broken, row(2, 0.1, [1.0, 2.0])])
    assert not {"clip_fraction", "token_ratio_variance", "grad_norm"} & set(found) and found["tokens"] == 4


def test_a_row_per_update_of_every_step(tmp_path):
    save(tmp_path, 1, 0, 2, [row(2, 0.0, [1.0, 1.0]), row(2, 0.5, [1.0, 3.0])])
    save(tmp_path, 1, 1, 2, [row(2, 0.0, [1.0, 1.0]), row(2, 0.0, [1.0, 1.0])])
    save(tmp_path, 2, 0, 1, [row(2, 0.25, [1.0, 2.0])])
    save(tmp_path, 9, 0, 1, [row(2, 0.25, [1.0, 2.0])])  # beyond the last step
    frame = read_updates(tmp_path, 2)
    assert frame["step"].tolist() == [0, 0, 1] and frame["minibatch"].tolist() == [0, 1, 0]
    assert frame["clip_fraction"].tolist() == [0.0, 0.25, 0.25]
    assert frame["ratio_variance"].tolist() == frame["token_ratio_variance"].tolist()  # no modules
    assert "mtp_rank_2" not in frame and "token_clip_fraction" not in frame
    assert read_updates(tmp_path / "absent", 2) is None


def test_of_the_block_s_ratio_where_there_is_one(tmp_path):
    block = row(2, 0.0, [1.0, 3.0])
    block["parts"]["ratio_variance"] = part([1.0, 2.0])
    save(tmp_path, 1, 0, 1, [block])
    assert read_updates(tmp_path, 1)["ratio_variance"].tolist() == [0.5]


def test_a_step_repeated_on_fewer_ranks_is_that_of_the_later_attempt(tmp_path):
    for rank in range(4):
        save(tmp_path, 1, rank, 4, [row(2, 0.9, [1.0, 9.0])], at=rank)
    for rank in range(2):
        save(tmp_path, 1, rank, 2, [row(2, 0.1, [1.0, 2.0])], at=10 + rank)
    frame = read_updates(tmp_path, 1)
    assert frame["clip_fraction"].tolist() == [0.1] and frame["tokens"].tolist() == [4]


@pytest.mark.parametrize("lost", ["a rank", "an update"])
def test_a_step_of_which_a_rank_lost_something_is_left_out(tmp_path, lost):
    updates = [row(2, 0.0, [1.0, 2.0])]
    for rank in range(2):
        save(tmp_path, 1, rank, 2, updates)
    save(tmp_path, 2, 0, 2, updates)
    if lost == "an update":
        save(tmp_path, 2, 1, 2, updates * 2)
    assert read_updates(tmp_path, 2)["step"].tolist() == [0]


def test_a_done_job_has_them_in_its_run(tmp_path):
    job, _ = make_job(tmp_path)
    job.state.new_attempt(str(job.folder))
    save(job.folder / "updates", 3, 0, 1, [row(2, 0.0, [1.0, 2.0])])
    save_checkpoint(job, 200)
    collect(job, tmp_path / "out")
    assert pd.read_parquet(tmp_path / "out/updates.parquet")["step"].tolist() == [2]
