"""MTP modules beside verl's actor against the local engine: the same update, checkpoints, what is synced."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

# not "verl" alone: without the package, that name finds this folder
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")

from job import python_path

pytestmark = [pytest.mark.verl, pytest.mark.slow]
HERE = Path(__file__).parent
CASES = ["parallel", "chained", "policy-only", "frozen"]
TWO = "two ranks"  # chained modules, sharded
ALL = [*CASES, TWO]
#: AdamW's first step divides by |g| + 1e-8: weights whose gradient is rounding go their own way, some more of
#: them on one processor than on another. A wrong gradient moves more by orders of magnitude.
ALIKE = 1e-3


def run(folder, ranks, *cases):
    """What rank 0 of ``mtp_run.py`` prints; ``ranks`` processes of their own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "HF_HUB_OFFLINE": "1",
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "rlvr.engines.verl.cpu.platform",
        "VERL_ENGINE_DEVICE": "cuda",
        "PYTHONPATH": python_path(HERE, HERE.parent),
    }
    processes = []
    for rank in map(str, range(ranks)):
        with open(folder / f"log{rank}", "wb") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(HERE / "mtp_run.py"), str(folder / rank), *cases],
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank},
                )
            )
    codes = [process.wait(900) for process in processes]
    log = (folder / "log0").read_text(errors="replace")
    marked = [line for line in log.splitlines() if line.startswith("engine-run:")]
    assert not any(codes) and marked, log[-4000:]
    return json.loads(marked[-1].removeprefix("engine-run:"))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    one = run(tmp_path_factory.mktemp("one"), 1, *CASES)
    two = run(tmp_path_factory.mktemp("two"), 2, "chained")
    return one | {TWO: two["chained"]}


@pytest.mark.parametrize("case", ALL)
def test_a_pass_without_gradients_says_what_the_local_engine_does(results, case):
    assert results[case]["inferred"] < 1e-5


@pytest.mark.parametrize("case", ALL)
def test_same_update_of_the_policy(results, case):
    """Two micro-batches against one batch; with activations and logits computed again or not."""
    found = results[case]
    assert found["policy_moved"] > 0.1
    assert found["policy_difference"] < ALIKE * found["policy_moved"]
    theirs, ours = found["metrics"]["loss"]
    assert theirs == pytest.approx(ours, rel=1e-5)
    theirs, ours = found["metrics"]["grad_norm"]
    assert theirs == pytest.approx(ours, rel=1e-5)


@pytest.mark.parametrize("case", ALL)
def test_same_update_of_the_modules(results, case):
    """By their cross entropy, by the policy's gradient, by both, or not at all; with a clip of their own."""
    found = results[case]
    if case == "frozen":
        assert found["modules_moved"] == found["modules_difference"] == 0
        return
    assert found["modules_moved"] > 0.1
    assert found["modules_difference"] < ALIKE * found["modules_moved"]
    theirs, ours = found["metrics"]["mtp_grad_norm"]
    assert theirs == pytest.approx(ours, rel=1e-5) and ours > 0.05  # beyond the clip


@pytest.mark.parametrize("case", ALL)
def test_metrics_are_those_of_the_local_engine(results, case):
    """Means over the mini-batch; those of variances are over its micro-batches, and nearly the same."""
    found = results[case]
    assert found["missing"] == ["entropy"]  # its name is actor/token_entropy
    for k in (2, 3, 4):
        for name in ("mtp_loss", "mtp_rank", "mtp_top1", "mtp_log_ratio"):
            theirs, ours = found["metrics"][f"{name}_{k}"]
            assert theirs == pytest.approx(ours, rel=1e-5), name
    for name in ("ratio_variance", "token_ratio_variance", "scaled_ratio_variance"):
        theirs, ours = found["metrics"][name]
        assert theirs == pytest.approx(ours, rel=0.15) and ours > 0.01
    for name in ("clip_fraction", "token_clip_fraction", "scaled_clip_fraction"):
        theirs, ours = found["metrics"][name]
        assert theirs == pytest.approx(ours, abs=0.02) and ours > 0.1, name


@pytest.mark.parametrize("case", ALL)
def test_the_row_of_an_update_is_the_local_engine_s(results, case):
    """Over micro-batches and ranks of different size; even variances are those of the mini-batch."""
    found = results[case]
    ranks = 2 if case == TWO else 1
    assert found["update_files"] == [f"updates-000003-rank{rank}.json" for rank in range(ranks)]
    assert found["update_lacks"] == [] and found["update_adds"] == ["minibatch", "step"]
    for name, (theirs, ours) in found["update"].items():
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-6), name
    assert found["update"]["ratio_variance"][1] > 0.01 and found["update"]["clip_fraction"][1] > 0.1


def test_a_checkpoint_holds_modules_and_optimiser(results):
    """A worker with other modules goes on as the one that saved would have."""
    found = results["checkpoint"]
    assert found["apart"] > 1
    assert found["loaded"] == 0
    assert found["after_update"] == 0
    assert "mtp_world_size_1_rank_0.pt" in found["files"]


def test_inference_never_meets_the_modules(results):
    """Neither the weights synced to the rollout engine nor the saved model; the modules lie beside it."""
    found = results["checkpoint"]
    assert {name for name in found["synced"] if name != "lm_head.weight"} == set(found["named"])
    assert set(found["hf_names"]) == set(found["named"])
    assert "mtp.safetensors" in found["hf_files"]
