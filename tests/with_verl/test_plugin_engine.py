"""The actor update through verl's FSDP2 engine against the local engine, on the same weights and batch."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

# not "verl" alone: without the package, that name finds this folder
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")

import rlvr

pytestmark = [pytest.mark.verl, pytest.mark.slow]
HERE = Path(__file__).parent
CASES = ["nfpo", "nfpo-parameters", "rlvr.gspo", "with-pad"]


def printed_by(program, folder, *more):
    """What a program of this folder prints; one process of its own, world size 1."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    environment = {
        **os.environ,
        **ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "HF_HUB_OFFLINE": "1",
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "rlvr.engines.verl.cpu.platform",
        "VERL_ENGINE_DEVICE": "cuda",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent), str(Path(rlvr.__file__).parents[1])]),
    }
    done = subprocess.run(
        [sys.executable, str(HERE / program), str(folder), *map(str, more)],
        capture_output=True,
        text=True,
        env=environment,
    )
    marked = [line for line in done.stdout.splitlines() if line.startswith("engine-run:")]
    assert done.returncode == 0 and marked, done.stderr[-4000:]
    return json.loads(marked[-1].removeprefix("engine-run:"))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return printed_by("engine_run.py", tmp_path_factory.mktemp("policy"))


@pytest.mark.parametrize("case", CASES)
def test_same_gradient(results, case):
    found = results[case]
    assert found["micro_batches"] == 2
    assert found["correction_strength"] > 0.1  # ratios far from 1, so that the objective matters
    assert found["largest_gradient"] > 0.01
    assert found["gradient_difference"] < 3e-6 * found["largest_gradient"]
    assert found["loss"][0] == pytest.approx(found["loss"][1], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("case", [case for case in CASES if case != "with-pad"])
def test_same_norm_and_nothing_left_out(results, case):
    found = results[case]
    assert found["grad_norm"][0] == pytest.approx(found["grad_norm"][1], rel=1e-5)
    assert found["gradient_difference_of_pad"] < 3e-6 * found["largest_gradient"]


def test_same_step(results):
    """The first update: later ones start from other moments of AdamW on the two sides."""
    found = results["nfpo"]
    assert found["step_norm"] > 0.1
    assert found["step_difference"] < 1e-4 * found["step_norm"]


def test_a_sampled_pad_token_has_no_input_gradient_in_transformers(results):
    """The one difference between the engines: transformers gives the embedding of ``pad_token_id`` none."""
    assert results["with-pad"]["gradient_difference_of_pad"] > 0.01


@pytest.mark.parametrize("case", CASES)
def test_metrics_of_the_update(results, case):
    names = results[case]["metrics"]
    assert {"actor/pg_loss", "actor/pg_clipfrac", "actor/ppo_kl", "actor/correction_strength"} <= set(names)
    assert ("actor/trace_mean" in names) == (case != "rlvr.gspo")


@pytest.mark.parametrize("case", CASES)
def test_records_are_what_the_local_engine_would_have_kept(results, case):
    """Of the marked rows alone, from both micro-batches; also which tokens kept their gradient."""
    found = results[case]["records"]
    assert found["token"] == found["advantage"] == found["mask"] == 0
    assert found["log_prob"] < 1e-5 and found["old_log_prob"] == 0
    if case == "nfpo-parameters":  # a narrow region
        assert found["masked"] > 0


@pytest.mark.parametrize("case", CASES)
def test_entropy_is_the_mean_over_tokens(results, case):
    """Whatever the loss's aggregation, over both micro-batches together."""
    theirs, ours = results[case]["entropy"]
    assert theirs == pytest.approx(ours, rel=1e-5)
    assert results[case]["grad_norm_max"] == results[case]["grad_norm"][0]


@pytest.mark.parametrize("case", CASES)
def test_the_row_of_an_update_is_the_local_engine_s(results, case):
    """Weighted by tokens over micro-batches of different size, so that not even a variance differs."""
    found = results[case]
    assert found["update_lacks"] == []
    assert found["update_adds"] == ["minibatch", "ratio_variance", "step"]
    for name, (theirs, ours) in found["update"].items():
        if case == "with-pad" and name == "grad_norm":
            continue  # of the embedding that transformers leaves out
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-6), name
    assert found["update"]["token_ratio_variance"][1] > 0.01


def test_masks_and_filled_up_rows_of_a_step_with_corrections(tmp_path):
    """Twelve rows with tokens and four without, masks of tokens: the mean is over twelve."""
    found = printed_by("masked_run.py", tmp_path)
    assert found["rows"] == 16 and 0.3 < found["marked"] < 0.9
    assert found["largest_gradient"] > 0.01
    assert found["gradient_difference"] < 3e-6 * found["largest_gradient"]
    assert found["loss"][0] == pytest.approx(found["loss"][1], rel=1e-4, abs=1e-6)
    assert found["difference_without_mask"] > 0.1 * found["largest_gradient"]
    assert found["difference_of_sixteen"] > 0.1 * found["largest_gradient"]


@pytest.mark.parametrize("micro", [4, 8, 16])
def test_each_turn_has_its_own_weight_of_the_penalty(tmp_path, micro):
    """Sixteen rows in micro-batches of any size: first turns without an advantage, second turns, filler."""
    found = printed_by("anchored_run.py", tmp_path, micro)
    assert found["largest_gradient"] > 0.01
    assert found["gradient_difference"] < 3e-6 * found["largest_gradient"]
    assert found["difference_without_penalty"] > 0.1 * found["largest_gradient"]
    assert found["difference_of_swapped_weights"] > 0.1 * found["largest_gradient"]
    for name in ("loss", "anchor_kl", "correction_anchor_kl"):
        theirs, ours = found[name]
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-6), name
        assert abs(ours) > 1e-3


def test_without_ray(results):
    assert results["ray_initialised"] is False
