"""The tests of MPO's claims for language models of one setting, written down before any was trained.

They ask what :mod:`rlvr.reporting.claims_mpo` asks of embedded policies. What differs: a setting is trained
on one set and evaluated on its benchmark (where it has several, each counts once); modules stay as they were
warmed up, as in the text (5.6); and time and memory are those of jobs on GPUs.
"""

from __future__ import annotations

from dataclasses import replace

from rlvr.reporting.claims_mpo import CLIP, MPO, OTHERS, OVER_SEEDS, PAIRED, VARIANCE, WEIGHTS
from rlvr.reporting.declared import DeclaredTest

_OWN = {test.id: test for test in MPO}
_ACCURACY = "Accuracy of the last checkpoint on the setting's benchmark (pass@1; of several each counts once)"

MPO_OF_MODELS = (
    DeclaredTest(
        id="mpo-c1",
        test=f"""
            {_ACCURACY}: MPO (K = 5, total weight 0.2, decay 0.8, on PPO) minus PPO, GRPO (groups of 4) and
            DAPO, {PAIRED}. Same steps, updates and trained responses for all. Supported if every difference
            lies above 0, contradicted if one lies below, else open.
        """,
        parts={f"MPO - {other}": ("above", 0.0) for other in OTHERS.values()},
        caveat="""
            One model and one benchmark; the paper has three of each. DAPO generates more for the same
            updates, since it drops groups without signal; PPO and MPO have a critic to train, and MPO modules
            that were warmed up on solutions which the others never see. And the gradient's norm is clipped:
            MPO's own gradient is about 1 - S times PPO's, so that fewer of its updates are cut, and a part of
            any gap between the two may be that. The note has the shares.
        """,
    ),
    DeclaredTest(
        id="mpo-c2",
        test=f"""
            MPO on PPO with a total weight of 20 % against PPO (0 %), and of 40 % against 20 %, K = 5: the
            ratio of the medians over off-policy updates of the importance ratio's variance ({OVER_SEEDS} of
            the logs), and the difference of the mean clip fractions. An update is off-policy if it is not the
            first of its step. Supported if every variance ratio is at most 1 and every difference at most 0,
            contradicted if one is above, else open.
        """,
        parts={VARIANCE.format(*pair): ("at_most", 1.0) for pair in WEIGHTS}
        | {CLIP.format(*pair): ("at_most", 0.0) for pair in WEIGHTS},
        caveat="""
            A weight S on the modules leaves 1 - S on the token's log ratio, which alone scales the variance
            by about (1 - S) squared: the statement says nothing of what the modules add. The control beside
            it, the token's ratio with its log scaled by 1 - S on the same updates, does.
        """,
    ),
    DeclaredTest(
        id="mpo-c3",
        test=f"""
            {_ACCURACY}, {PAIRED}. '10 to 20 % is best' means that the mean of the arms at 10 and 20 % lies
            above PPO (0 %), above 30 % and above 40 %; 'K helps up to 5' that K = 2 lies above K = 1 (PPO), 3
            above 2, and 5 above 3, at a total weight of 20 %. K = 4 and K > 5 are not tested. Supported if
            every difference lies above 0, contradicted if one lies below, else open.
        """,
        parts=_OWN["mpo-c3"].parts,
        caveat=_OWN["mpo-c3"].caveat,
    ),
    _OWN["mpo-c4"],
    DeclaredTest(
        id="mpo-c5",
        test=f"""
            {_ACCURACY}: MPO with K value heads minus MPO with one, K = 2, 3 and 5, {PAIRED}. 'Do not help'
            means by at most {{margin:g}}. Supported if every upper end is at most that, contradicted if a
            lower end is above it, else open.
        """,
        parts=_OWN["mpo-c5"].parts,
        caveat="The formula of the paper's heads is lost; the reading is a listed decision.",
    ),
    replace(
        _OWN["mpo-c6"],
        test=f"""
            MPO (K = 5, with critic) over GRPO (groups of 4), at the same number of responses a step and on
            the same GPUs: the most memory that torch held on the first of them ({OVER_SEEDS} of the
            logs), 'about as much' meaning at most 1.1 times; and the median time of a job's step, 'about 30 %
            faster' meaning at most 0.8 times. Supported if both hold, contradicted if one is excluded, else
            open.
        """,
        caveat="""
            Memory is what torch held allocated in the training's process, without the sampler's own. The
            paper's GRPO may have had a reference policy, which ours has not. A step's time is that of one
            cluster, at the response lengths that each arm came to.
        """,
    ),
)
