"""The verdict must not depend on the installed antlr runtime.

DVC and hydra need antlr 4.9.3, math-verify reads some LaTeX differently there than with 4.13.2. Here
everything is graded once in this process and once in another with the other runtime first on its path. It is
expected in the folder that RLVR_OTHER_ANTLR names (``pip install --no-deps --target FOLDER
antlr4-python3-runtime==4.13.2``).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr.verifiers.judging import judge
from rlvr.verifiers.math import runtime, verify_math, verify_math_batch
from tests.verifiers.math_near_misses import DENIED, NEAR_MISSES
from tests.verifiers.math_odd_clothes import ODD_CLOTHES
from tests.verifiers.math_open_pairs import OPEN_PAIRS

pytest.importorskip("math_verify", reason="math-verify is not installed: pip install 'rlvr[evaluation]'")

PERCENT = [("0.5", "\\boxed{50\\%}"), ("$0.5$", "$50\\%$"), ("50\\%", "0.5"), ("$28\\%$", "28 pct")]

SCRIPT = """
import json, sys
from rlvr.verifiers.math import runtime, verify_math_batch
pairs = json.load(sys.stdin)
predictions, golds, kinds = zip(*pairs)
verdicts = verify_math_batch(predictions, golds, kind=kinds, timeout=120)
json.dump({"runtime": runtime(), "verdicts": [[v.correct, v.reason] for v in verdicts]}, sys.stdout)
"""


def pairs() -> list[tuple[str, str, str]]:
    """(prediction, gold, kind) of all corpora, and of the public pairs if they are at hand."""
    result = [(f"\\boxed{{{answer}}}", gold, kind) for gold, answer, kind in NEAR_MISSES]
    result += [(response, gold, kind) for gold, response, kind in ODD_CLOTHES]
    result += [(f"\\boxed{{{answer}}}", gold, "auto") for gold, answer, _ in OPEN_PAIRS]
    result += [(response, gold, "auto") for gold, response in DENIED]
    result += [(response, gold, "auto") for gold, response in PERCENT]
    public = Path(os.environ.get("RLVR_DATA", "")) / "verifier_pairs.jsonl"
    if public.is_file():
        rows = [json.loads(line) for line in public.read_text().splitlines()]
        result += [(row["pred"], row["gold"], "auto") for row in rows]
    return result


def test_open_pairs_reach_math_verify_and_are_decided_rightly():
    undecided_before = [judge(f"\\boxed{{{a}}}", g, "auto", True, True)[1] for g, a, _ in OPEN_PAIRS]
    assert all(undecided_before)
    golds, answers, expected = zip(*OPEN_PAIRS, strict=True)
    verdicts = verify_math_batch([f"\\boxed{{{a}}}" for a in answers], golds, timeout=120)
    assert [v.correct for v in verdicts] == list(expected)


@pytest.mark.parametrize(("gold", "response"), PERCENT)
def test_percent_is_a_hundredth(gold, response):
    assert verify_math(response, gold).correct is True


def test_the_runtime_is_named():
    versions = runtime()
    assert {"rlvr", "python", "math-verify", "antlr4-python3-runtime", "sympy", "mpmath"} <= set(versions)
    assert versions["antlr4-python3-runtime"][:2] == "4."
    assert all(isinstance(v, str) and v for v in versions.values())
    json.dumps(versions)


@pytest.mark.slow
def test_verdicts_are_the_same_under_the_other_antlr():
    folder = os.environ.get("RLVR_OTHER_ANTLR", "")
    if not (Path(folder) / "antlr4").is_dir():
        pytest.skip(
            "no other antlr runtime: RLVR_OTHER_ANTLR must name a folder made by "
            "`pip install --no-deps --target FOLDER antlr4-python3-runtime==4.13.2`"
        )
    graded = pairs()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(folder).resolve()), *filter(None, sys.path)])
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(graded),
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    other = json.loads(done.stdout)
    name = "antlr4-python3-runtime"
    assert other["runtime"][name] != runtime()[name], "both runtimes are the same version"
    ours = verify_math_batch(
        [p for p, _, _ in graded], [g for _, g, _ in graded], kind=[k for *_, k in graded], timeout=120
    )
    different = [
        (pair, (mine.correct, mine.reason), tuple(theirs))
        for pair, mine, theirs in zip(graded, ours, other["verdicts"], strict=True)
        if (mine.correct, mine.reason) != tuple(theirs)
    ]
    assert different == []
