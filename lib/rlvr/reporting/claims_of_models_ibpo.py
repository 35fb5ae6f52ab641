"""The tests of IBPO's claims for language models, written down before any was trained.

They ask what the tests of :mod:`rlvr.reporting.claims_ibpo` ask; ``ibpo-c3`` is exact and has no other. What
differs: compute is equal by plan, every benchmark counts once in an accuracy, Best-of-N asks the grader
itself, and what was not run is a part that is not measured, which leaves a claim open.
"""

from __future__ import annotations

from dataclasses import replace

from rlvr.reporting import claims_ibpo
from rlvr.reporting.claims_ibpo import EASY, HARD, IBPO, TWO_READINGS
from rlvr.reporting.declared import DeclaredTest

MATCHED = """
    Accuracy of the last checkpoint, pass@1 averaged over the benchmarks, each counting once, of policies
    whose steps were planned at equal FLOPs, paired by seed and problem: mean over seeds with a
    {confidence:.0%} Student t interval.
"""
PLANNED = """
    FLOPs are equal by the plan, which expects lengths and shares of wrong responses; what every run really
    spent is counted, and stands beside.
"""
_OF = {test.id: test for test in IBPO}

IBPO_OF_MODELS: tuple[DeclaredTest, ...] = (
    replace(
        _OF["ibpo-c1"],
        test=MATCHED
        + """
            IBPO minus GSPO (64 responses to a prompt in the paper, the setting's number here), GSPO with a
            prompt at test time, the second turn of SCoRe, and GSPO with the best of 8; mask minus base and
            base minus ratio. Supported if every interval of the first four lies above 0 and those of the last
            two lie above -{margin:g}, contradicted if one lies below, else open; a part that was not run
            leaves it open.
        """,
        caveat=PLANNED
        + """
            Best of 8 is selected by the grader itself ("the same terminal verifier"), which makes it pass@8:
            one sample of IBPO is held against the one of eight that is right.
        """,
    ),
    replace(
        _OF["ibpo-c2"],
        test="""
            Compute at which the raw training reward, smoothed alike for all, first reaches the setting's
            threshold: IBPO's over GSPO's, paired by seed, geometric mean with a {confidence:.0%} Student t
            interval of logarithms. Supported if the upper end is at most 1, contradicted if the lower end is
            above it, else open; open too if a run does not reach it, or is above it at its first point: then
            its compute is known only to a bound.
        """,
        caveat=TWO_READINGS
        + """
            The reward is that of the rollouts, on problems of the training set.
        """,
    ),
    replace(
        _OF["ibpo-c4"],
        test=MATCHED + _OF["ibpo-c4"].test.removeprefix(claims_ibpo.MATCHED),
        caveat=PLANNED + _OF["ibpo-c4"].caveat,
    ),
    replace(
        _OF["ibpo-c5"],
        test=MATCHED + _OF["ibpo-c5"].test.removeprefix(claims_ibpo.MATCHED),
        caveat=PLANNED,
    ),
    _OF["ibpo-c6"],
    replace(
        _OF["ibpo-c7"],
        test=MATCHED
        + f"""
            IBPO minus GSPO on hard problems, of which the untrained model solves at most {HARD:g} of its
            samples, minus the same on easy ones, at least {EASY:g}. Supported if the interval lies above 0,
            contradicted if below, else open.
        """,
    ),
)
