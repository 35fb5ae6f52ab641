"""Inside Ray: time limits hold in tasks, in actors with several threads, and workers go with the actor."""

import os
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.verl, pytest.mark.slow]

SLOW = "\\boxed{\\sum_{k=0}^{10^9} k!}"


@pytest.fixture(scope="module")
def ray():
    pytest.importorskip("math_verify", reason="math-verify is not installed: pip install 'rlvr[evaluation]'")
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlvr[verl]'")
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *(p for p in sys.path if p)])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    yield ray
    ray.shutdown()


def test_limits_hold_in_a_task(ray):
    @ray.remote
    def grade(responses, golds):
        from rlvr.verifiers import verify_math_batch

        return [(v.correct, v.reason) for v in verify_math_batch(responses, golds, timeout=4.0, workers=2)]

    responses = ["\\boxed{5}", SLOW, "\\boxed{\\int_0^1 2x\\,dx}", "\\boxed{6}"]
    assert ray.get(grade.remote(responses, ["5", "5", "1", "5"]), timeout=120) == [
        (True, "correct"),
        (None, "timeout"),
        (True, "correct"),
        (False, "wrong"),
    ]


def test_limits_hold_in_an_actor_with_threads_and_no_worker_is_left(ray):
    @ray.remote(max_concurrency=4)
    class Grader:
        def grade(self, response, gold):
            from rlvr.verifiers import verify_math

            verdict = verify_math(response, gold, timeout=4.0)
            return verdict.correct, verdict.reason

        def children(self):
            found = []
            for task in os.listdir("/proc/self/task"):
                found += Path(f"/proc/self/task/{task}/children").read_text().split()
            return [int(pid) for pid in found]

    grader = Grader.remote()
    calls = [
        grader.grade.remote(*pair) for pair in [(SLOW, "5"), ("\\boxed{5}", "5"), (SLOW, "6"), ("no", "5")]
    ]
    results = ray.get(calls, timeout=120)
    assert results == [(None, "timeout"), (True, "correct"), (None, "timeout"), (False, "wrong")]
    assert ray.get(grader.grade.remote("\\boxed{\\int_0^1 2x\\,dx}", "1"), timeout=120) == (True, "correct")
    workers = ray.get(grader.children.remote())
    assert workers
    ray.kill(grader)
    end = time.monotonic() + 30
    while time.monotonic() < end and any(Path(f"/proc/{pid}").exists() for pid in workers):
        time.sleep(0.2)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
