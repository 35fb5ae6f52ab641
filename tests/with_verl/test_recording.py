"""Which responses a job records, and how little it may write. What is recorded: test_plugin_engine.py."""

import logging

import numpy as np
import pandas as pd
import pytest
import torch

# not "verl" alone: without the package, that name finds this folder
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")
pytest.importorskip("transfer_queue", reason="TransferQueue is not installed: pip install -e '.[verl]'")

from verl.utils.metric import Metric

from rlvr.engines.jobs.updates import merged, read_updates
from rlvr.engines.verl.recording import COLUMNS, write_records
from rlvr.engines.verl.trainer import groups_with_signal, marked_rows
from rlvr.engines.verl.updates import UpdateFiles, UpdateRows, parts_of

pytestmark = pytest.mark.verl


def chosen(*arguments):
    return [row for row in marked_rows(*arguments) if row >= 0]


def test_rows_are_spread_over_the_mini_batches():
    assert [row // 4 for row in chosen([True] * 16, 4, 1, 8, 0)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [row // 4 for row in chosen([True] * 16, 4, 1, 1, 0)] == [0, 1, 2, 3]  # one of each at least
    assert chosen([True] * 16, 4, 1, 0, 0) == []
    assert chosen([True] * 8, 1, 1, 100, 0) == list(range(8))


def test_rows_are_drawn():
    """verl's rows come by the length of their responses: taking the first ones would take the short ones."""
    drawn = [row for seed in range(500) for row in chosen([True] * 64, 4, 2, 8, seed)]
    assert abs(sum(drawn) / len(drawn) - 31.5) < 1
    assert len(set(drawn)) == 64
    assert chosen([True] * 64, 4, 2, 8, 3) == chosen([True] * 64, 4, 2, 8, 3)


def test_each_rank_cuts_its_own_block():
    """16 rows on 2 ranks: mini-batch 0 is rows 0-3 of rank 0 and rows 8-11 of rank 1."""
    for seed in range(20):
        marks = marked_rows([True] * 16, 2, 2, 8, seed)
        assert sum(marks[row] >= 0 for row in (0, 1, 2, 3, 8, 9, 10, 11)) == 4
        assert sum(marks[row] >= 0 for row in (4, 5, 6, 7, 12, 13, 14, 15)) == 4
        assert all(mark in (-1, row) for row, mark in enumerate(marks))


def test_filler_is_never_recorded():
    real = [True, False, False, False, True, True, True, False]
    assert chosen(real, 2, 1, 8, 0) == [0, 4, 5, 6]


@pytest.mark.parametrize(("updates", "ranks"), [(3, 1), (0, 1), (2, 3)])
def test_rows_that_do_not_divide(updates, ranks):
    with pytest.raises(ValueError, match=f"updates={updates}, ranks={ranks}: allowed are divisors of the 16"):
        marked_rows([True] * 16, updates, ranks, 4, 0)


def test_a_group_has_signal_if_its_scores_differ():
    assert groups_with_signal(["a", "b", "a", "b"], [1.0, 0.0, 0.0, 0.0]) == 0.5
    assert groups_with_signal(["a", "a"], [1.0, 1.0]) == 0.0
    assert groups_with_signal([], []) == 0.0


def part(tokens):
    names = [name for name in COLUMNS if name != "step"]
    return {name: np.arange(tokens) % 7 for name in names}


def test_a_file_a_step_and_rank_again_as_a_whole(tmp_path):
    write_records([part(3), part(2)], 1, str(tmp_path), 12, 1.0)
    (file,) = tmp_path.iterdir()
    assert file.name == "records-000012-rank1.parquet"
    frame = pd.read_parquet(file)
    assert list(frame) == list(COLUMNS) and len(frame) == 5 and (frame["step"] == 12).all()
    write_records([part(4)], 1, str(tmp_path), 12, 1.0)  # the step repeated after a resume
    assert len(pd.read_parquet(file)) == 4


def test_the_size_is_bounded(tmp_path, caplog):
    rng = np.random.default_rng(0)
    big = {name: rng.random(20_000).astype(np.float32) * 1000 for name in part(1)}
    write_records([big], 0, str(tmp_path), 1, 0.1)
    with caplog.at_level(logging.WARNING):
        write_records([big], 0, str(tmp_path), 2, 0.1)
    assert [file.name for file in tmp_path.iterdir()] == ["records-000001-rank0.parquet"]
    assert "holds 0.1 MB of rank 0; no more are kept" in caplog.text
    write_records([big], 1, str(tmp_path), 2, 0.1)  # another rank has its own share
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_ends_the_records_and_not_the_job(tmp_path, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlvr.engines.verl.recording.pq.write_table", full)
    with caplog.at_level(logging.WARNING):
        write_records([part(3)], 0, str(tmp_path), 1, 1.0)
    assert "records of step 1 are lost: [Errno 28]" in caplog.text
    assert list(tmp_path.iterdir()) == []


# --- rows of updates --------------------------------------------------------------------------------------


def rows_of(*micro_batches):
    """Of one update: (clip fraction, ratios, ranks of the second token) of its micro-batches."""
    rows = UpdateRows()
    rows.begin(True)
    for clip, ratios, ranks in micro_batches:
        metrics = {"actor/clip_fraction": Metric("mean", clip), "actor/pg_clipfrac": Metric("mean", clip)}
        metrics |= {"actor/ratio_variance": Metric("mean", 9.0), "actor/mtp_rank_2": Metric("sum", 9.0)}
        metrics |= {"actor/mtp_rank_3": Metric("sum", 0.0), "kl_loss": Metric("sum", 9.0)}
        named = {"ratio_variance": torch.tensor(ratios), "mtp_rank_2": torch.tensor(ranks)}
        rows.micro_batch(metrics, parts_of(named), len(ratios))
    rows.update({"grad_norm": 0.5})
    return rows.rows


def test_micro_batches_of_an_update_count_by_their_tokens():
    """By hand: 1 and 3 tokens; nothing of a module without entries, nor of verl's other names."""
    (row,) = rows_of((0.4, [1.0], []), (0.2, [2.0, 3.0, 4.0], [1.0, 3.0]))
    found = merged([row])
    assert found.pop("clip_fraction") == pytest.approx(0.25)
    assert found.pop("ratio_variance") == pytest.approx(5 / 3)
    assert found == {"tokens": 4, "mtp_rank_2": 2.0, "grad_norm": 0.5}


def test_micro_batches_without_tokens_say_nothing():
    (row,) = rows_of((0.0, [], []), (0.2, [2.0, 4.0], [1.0]))
    assert merged([row])["clip_fraction"] == 0.2 and merged([row])["ratio_variance"] == 2.0


def test_a_diverged_update_is_a_row_with_less_in_it(tmp_path):
    (row,) = rows_of((float("nan"), [float("nan"), 1.0], [1.0]))
    UpdateFiles().write([row], 0, 1, str(tmp_path), 1)
    found = read_updates(tmp_path, 1).iloc[0]
    assert found["grad_norm"] == 0.5 and "clip_fraction" not in found and "ratio_variance" not in found


def test_a_step_s_file_is_replaced_by_a_repeated_step(tmp_path):
    files = UpdateFiles()
    files.write(rows_of((0.4, [1.0, 2.0], [])), 0, 1, str(tmp_path), 12)
    again = UpdateFiles()  # another attempt
    again.write(rows_of((0.8, [1.0, 2.0], [])), 0, 1, str(tmp_path), 12)
    assert [file.name for file in tmp_path.iterdir()] == ["updates-000012-rank0.json"]
    assert read_updates(tmp_path, 12)["clip_fraction"].tolist() == [0.8]


def test_files_of_updates_are_bounded(tmp_path, monkeypatch, caplog):
    row = rows_of((0.4, [1.0, 2.0], []))
    UpdateFiles().write(row, 0, 1, str(tmp_path), 1)
    size = (tmp_path / "updates-000001-rank0.json").stat().st_size
    monkeypatch.setattr("rlvr.engines.verl.updates.MEGABYTES", 2.5 * size / 1e6)
    files = UpdateFiles()  # counts what the attempt before left
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3, 4):
            files.write(row, 0, 1, str(tmp_path), step)
    assert sorted(file.name[:14] for file in tmp_path.iterdir()) == ["updates-000001", "updates-000002"]
    assert caplog.text.count("no more are kept") == 1


def test_a_full_disk_ends_the_rows_and_not_the_job(tmp_path, monkeypatch, caplog):
    files, row = UpdateFiles(), rows_of((0.4, [1.0, 2.0], []))
    files.write(row, 0, 1, str(tmp_path), 1)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlvr.engines.verl.updates.write_text", full)
    with caplog.at_level(logging.WARNING):
        files.write(row, 0, 1, str(tmp_path), 1)  # repeated: what it was before is not what it is now
    assert "rows of the updates of step 1 are lost: [Errno 28]" in caplog.text
    assert list(tmp_path.iterdir()) == []
