"""What a job left, as the local engine would have left it."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from job_fixtures import make_job, save_checkpoint

from rlvr.engines.jobs.collect import (
    collect,
    compute_frame,
    metrics_frame,
    read_metrics,
    read_records,
    with_trace,
)
from rlvr.engines.local.accounting import table_of
from rlvr.evaluation.compute import Ledger
from rlvr.ratios import forward_trace


def lines(path, rows, end=""):
    path.write_text("".join(json.dumps({"step": s, "data": d}) + "\n" for s, d in rows) + end)
    return path


def values(step, **more):
    return {
        "critic/score/mean": step / 10,
        "rlvr/response_tokens": 100.0,
        "rlvr/groups_with_signal": 0.5,
        "rlvr/truncated": 0.25,
        "rlvr/entropy_estimate": 0.7,
        "actor/loss": -step,
        "actor/grad_norm": 2.0,
        "actor/grad_norm_max": 3.0,
        "actor/kl": 0.01,
        "response_length/mean": 12.0,
        **more,
    }


def test_of_several_attempts_the_later_one_holds(tmp_path):
    one = lines(tmp_path / "1", [(1, {"a": 1}), (2, {"a": 2})], end='{"step": 3, "da')
    two = lines(tmp_path / "2", [(2, {"a": 20}), (3, {"a": 30})])
    assert read_metrics([one, tmp_path / "absent", two]) == {1: {"a": 1}, 2: {"a": 20}, 3: {"a": 30}}


def test_rows_are_numbered_and_named_as_the_local_engine_does():
    validation = {"val-core/embedded/acc/mean@1": 0.125}
    steps = {
        0: validation,
        1: values(1),
        2: values(2, **{"val-core/embedded/acc/mean@1": 0.25}),
        3: values(3),
    }
    steps[3] |= {"val-core/embedded/acc/mean@1": 0.5, "val-aux/embedded/acc/mean@1": 9.0}
    frame = metrics_frame(steps, 3)
    assert frame["step"].tolist() == [0, 1, 2]
    assert frame["reward"].tolist() == [0.1, 0.2, 0.3]
    assert frame["loss"].tolist() == [-1, -2, -3]
    assert frame["tokens_generated"].tolist() == [100, 200, 300]
    assert frame["truncated"].tolist() == [0.25] * 3
    # before the updates of the row; what verl logs with step 2 is before those of row 2
    assert frame["val_pass1"].isna().tolist() == [False, True, False]
    assert frame["val_pass1"].dropna().tolist() == [0.125, 0.25]
    assert frame["val_pass1_after"].dropna().tolist() == [0.5]
    assert frame["kl"].tolist() == [0.01] * 3
    assert frame["entropy"].tolist() == [0.7] * 3  # no engine's: the estimate


def test_what_our_trainers_say_of_corrections_has_the_local_engine_s_names():
    counted = {"rlvr/compute/base_decode_tokens": 30.0, "rlvr/compute/correction_decode_tokens": 7.0}
    steps = {
        1: values(1, **counted, **{"rlvr/targets": 5.0}),
        2: values(2, **counted),
        4: values(4, **counted),
    }
    frame = metrics_frame(steps, 4)
    assert frame["targets"].dropna().tolist() == [5.0]
    assert not [
        name for name in frame if "compute" in name or name in ("response_tokens", "entropy_estimate")
    ]
    compute = compute_frame(steps, 4)
    assert compute["step"].tolist() == [1, 2, 3, 4]
    assert compute["base_decode_tokens"].tolist() == [30, 60, 90, 120]  # the third is lost: as its neighbours
    assert Ledger.from_dict(table_of(dict(compute.iloc[-1])))["correction", "decode"].tokens == 28
    counted["rlvr/compute/base_decode_tokens"] = 60.0
    last = {1: values(1), 3: values(3, **counted)}  # steps without corrections say nothing of them
    assert compute_frame(last, 3)["base_decode_tokens"].tolist() == [60, 120, 180]
    assert compute_frame({1: values(1)}, 1) is None


def test_the_engine_s_entropy_is_taken_where_there_is_one():
    assert metrics_frame({1: values(1, **{"actor/token_entropy": 0.6})}, 1)["entropy"].tolist() == [0.6]
    # verl's own, of recomputed log-probs, is aggregated as the loss is
    assert metrics_frame({1: values(1, **{"actor/entropy": 0.2})}, 1)["entropy"].tolist() == [0.7]


def test_a_mean_over_validation_sets_and_each_of_them():
    sets = {"val-core/amc23/acc/mean@4": 0.5, "val-core/math500/acc/mean@4": 0.25}
    frame = metrics_frame({0: sets, 1: values(1)}, 1)
    row = frame.iloc[0]
    assert (row["val_pass1"], row["val_pass1_amc23"], row["val_pass1_math500"]) == (0.375, 0.5, 0.25)


def test_a_lost_step_is_a_row_without_values():
    frame = metrics_frame({1: values(1), 3: values(3)}, 3)
    assert frame["reward"].isna().tolist() == [False, True, False]
    assert frame["tokens_generated"].isna().tolist() == [False, True, True]  # unknown from there on


def write_records(folder, step, rank, rows):
    """rows: (minibatch, response, log_prob per token, old_log_prob per token)."""
    parts = []
    for minibatch, response, new, old in rows:
        n = len(new)
        parts.append(
            pd.DataFrame(
                {
                    "step": step,
                    "minibatch": minibatch,
                    "response": response,
                    "position": np.arange(n),
                    "token": np.arange(n) + 5,
                    "log_prob": np.float32(new),
                    "old_log_prob": np.float32(old),
                    "advantage": np.float32(1.0),
                    "mask": np.int8(1),
                }
            )
        )
    folder.mkdir(parents=True, exist_ok=True)
    pd.concat(parts).to_parquet(folder / f"records-{step:06d}-rank{rank}.parquet")


def test_records_of_all_steps_and_ranks_with_their_trace(tmp_path):
    long = [-0.5, -1.0, -0.25, -2.0], [-0.7, -0.9, -0.5, -1.0]
    write_records(tmp_path, 1, 0, [(0, 0, *long)])
    write_records(tmp_path, 1, 1, [(0, 5, [-1.0], [-1.5])])
    write_records(tmp_path, 2, 0, [(1, 0, [-1.0, -1.0], [-1.0, -2.0])])
    write_records(tmp_path, 9, 0, [(0, 0, [-1.0], [-1.0])])  # of other settings: beyond the last step
    records = read_records(tmp_path, 2)
    assert sorted(records["step"].unique()) == [0, 1]
    assert sorted(records["response"].unique()) == [0, 5, 6]  # a step has six rows
    traced = with_trace(records, {"horizon": 3, "trace_clip": (0.8, 1.4), "ratio_clip": 3.0})
    for _, rows in traced.groupby("response"):
        log_ratio = torch.tensor((rows["log_prob"] - rows["old_log_prob"]).to_numpy(np.float32))[None]
        expected = forward_trace(log_ratio, torch.ones_like(log_ratio), 3, 3.0, (0.8, 1.4))
        np.testing.assert_allclose(rows["trace"], expected[0], rtol=1e-6)
        np.testing.assert_allclose(rows["rho"], log_ratio[0].exp(), rtol=1e-6)
    # by hand: exp(-0.1 + 0.25) and then exp(-1) meet at position 0 of the long one, clipped to 0.8
    first = traced[(traced["response"] == 0) & (traced["position"] == 2)]["trace"].item()
    assert first == pytest.approx(0.8)  # exp(-1) = 0.37


def test_rows_that_several_ranks_wrote_count_once(tmp_path):
    rows = [(0, 0, [-1.0, -1.0], [-1.0, -2.0]), (0, 3, [-1.0], [-1.5])]
    for rank in range(4):  # ranks that share a sequence
        write_records(tmp_path, 1, rank, rows)
    assert len(with_trace(read_records(tmp_path, 1), {"horizon": 2})) == 3


def test_no_records_are_none(tmp_path):
    assert read_records(tmp_path / "records", 5) is None


def test_several_epochs_of_a_response_are_traced_apart(tmp_path):
    write_records(tmp_path, 1, 0, [(0, 3, [-1.0, -1.0], [-1.0, -1.0]), (2, 3, [-1.0, -1.0], [-1.0, -1.3])])
    traced = with_trace(read_records(tmp_path, 1), {"horizon": 2})
    assert traced[traced["minibatch"] == 0]["trace"].tolist() == [1.0, 1.0]
    assert traced[traced["minibatch"] == 2]["trace"].iloc[0] == pytest.approx(np.exp(0.3), rel=1e-6)


def test_a_job_that_is_not_done_leaves_nothing(tmp_path):
    job, _ = make_job(tmp_path)
    save_checkpoint(job, 5)
    with pytest.raises(RuntimeError, match="step 5 of 200 is saved: not done"):
        collect(job, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_done_job_is_a_run(tmp_path):
    job, _ = make_job(tmp_path)
    attempt = job.state.new_attempt(str(job.folder))
    job.folder.mkdir(parents=True)
    lines(job.folder / "metrics-1.jsonl", [(s, values(s)) for s in range(1, 201)])
    assert attempt["metrics"] == str(job.folder / "metrics-1.jsonl")
    write_records(job.folder / "records", 1, 0, [(0, 0, [-1.0, -1.0], [-1.0, -2.0])])
    save_checkpoint(job, 200)
    collect(job, tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["reached_step"], summary["requested_steps"]) == (200, 200)
    assert summary["tokens_generated"] == 20_000
    assert summary["steps_without_metrics"] == 0
    assert summary["checkpoint"].endswith("global_step_200/actor")
    assert len(pd.read_parquet(tmp_path / "out" / "metrics.parquet")) == 200
    records = pd.read_parquet(tmp_path / "out" / "records.parquet")
    assert list(records)[:5] == ["step", "minibatch", "response", "position", "token"]
    assert {"log_prob", "old_log_prob", "rho", "trace", "advantage", "mask"} <= set(records)
    assert not (tmp_path / "out" / "final").exists()


def test_of_a_training_in_stages_verls_own_penalty_is_left_out():
    """Its weight is 0: the trainer's own penalty is what acts."""
    penalty = {"actor/kl_loss": 0.2, "actor/kl_coef": 0.0, "actor/anchor_kl": 0.1}
    plain = metrics_frame({1: values(1, **penalty)}, 1)
    assert {"kl_loss", "kl_coef", "anchor_kl"} <= set(plain)
    staged = metrics_frame({1: values(1, **penalty, **{"rlvr/stage": 1.0})}, 1)
    assert not {"kl_loss", "kl_coef"} & set(staged)
    assert staged["anchor_kl"].tolist() == [0.1] and staged["stage"].tolist() == [1.0]
