"""The tests of MPO's claims; :mod:`rlvr.reporting.claims` decides by them."""

from __future__ import annotations

from rlvr.reporting.declared import DeclaredTest

OVER_SEEDS = "mean over training seeds with a {confidence:.0%} Student t interval"
PAIRED = f"paired by seed and problem: {OVER_SEEDS}"
OTHERS = {"ppo": "PPO", "grpo_4": "GRPO", "dapo": "DAPO"}
TASKS = ("word problems", "programs")
#: Total weights between which the ratio's variance must fall, in percent; 0 is PPO.
WEIGHTS = ((0, 20), (20, 40))
VARIANCE, CLIP = "variance, {1} % over {0} %", "clip fraction, {1} % - {0} %, points"
RANKED = (2, 3)  # K of Figure 7a
HEADS = (2, 3, 5)

MPO = (
    DeclaredTest(
        id="mpo-c1",
        test=f"""
            Final held-out pass@1 of MPO (K = 5, total weight 0.2, decay 0.8, on PPO) minus that of PPO, GRPO
            (groups of 4) and DAPO, on the word problems and on the programs, {PAIRED}. Same steps, updates
            and trained responses for all. Supported if every difference lies above 0, contradicted if one
            lies below, else open.
        """,
        parts={f"MPO - {other}, {task}": ("above", 0.0) for task in TASKS for other in OTHERS.values()},
        caveat="""
            DAPO generates more for the same updates, since it drops groups without signal; PPO and MPO have
            a critic to train, on some rollouts before the first step, and MPO modules, on solutions that the
            others never see: the tables count these tokens of warm-ups beside the rest. Where the critic
            explains almost nothing of the returns' variance, PPO's baseline is near a constant one. And the
            gradient's norm is clipped: MPO's own gradient is about 1 - S times PPO's, so that fewer of its
            updates are cut, and a part of any gap between the two may be that. The note has the shares.
        """,
    ),
    DeclaredTest(
        id="mpo-c2",
        test=f"""
            MPO on PPO with a total weight of 20 % against PPO (0 %), and of 40 % against 20 %, K = 5: the
            ratio of the medians over off-policy updates of the importance ratio's variance ({OVER_SEEDS} of
            the logs), and the difference of the mean clip fractions. Supported if every variance ratio is at
            most 1 and every difference at most 0, contradicted if one is above, else open.
        """,
        parts={VARIANCE.format(*pair): ("at_most", 1.0) for pair in WEIGHTS}
        | {CLIP.format(*pair): ("at_most", 0.0) for pair in WEIGHTS},
        caveat="""
            A weight S on the modules leaves 1 - S on the token's log ratio, which alone scales the variance
            by about (1 - S) squared: the statement says nothing of what the modules add. The control beside
            it, the token's ratio with its log scaled by 1 - S on the same updates, does. What is between the
            two is not all the block's: here the modules are trained along with the policy, by cross entropy
            (a deviation from the paper's 5.6), which moves their log ratios by itself. The arm whose modules
            are not trained along stands beside it.
        """,
    ),
    DeclaredTest(
        id="mpo-c3",
        test=f"""
            Final held-out pass@1 on the word problems, {PAIRED}. '10 to 20 % is best' means that the mean of
            the arms at 10 and 20 % lies above PPO (0 %), above 30 % and above 40 %; 'K helps up to 5' that
            K = 2 lies above K = 1 (PPO), 3 above 2, and 5 above 3, at a total weight of 20 %. K = 4 and
            K > 5 are not tested. Supported if every difference lies above 0, contradicted if one lies below,
            else open.
        """,
        parts={
            "10 and 20 % - 0 %": ("above", 0.0),
            "10 and 20 % - 30 %": ("above", 0.0),
            "10 and 20 % - 40 %": ("above", 0.0),
            "K=2 - K=1": ("above", 0.0),
            "K=3 - K=2": ("above", 0.0),
            "K=5 - K=3": ("above", 0.0),
        },
        caveat="""
            The gradient's norm is clipped, and the policy's own gradient falls with 1 - S: along the axis of
            the weight fewer and fewer updates are cut, so that the weight is also a step size. The note has
            the shares.
        """,
    ),
    DeclaredTest(
        id="mpo-c4",
        test=f"""
            Spearman's correlation, over the off-policy updates of a run, of the mean rank of the second token
            that the module predicts with the norm of the policy's gradient, both without their trend over the
            training, in MPO with K = 2 and with K = 3: {OVER_SEEDS} of atanh. Supported if both lie above 0,
            contradicted if one lies below, else open.
        """,
        parts={f"rank and gradient norm, K={k}": ("above", 0.0) for k in RANKED},
        caveat="""
            Both drift over a training, so that a plain correlation says that both drift; it stands beside
            this one in the table.
        """,
    ),
    DeclaredTest(
        id="mpo-c5",
        test=f"""
            Final held-out pass@1 of MPO with K value heads minus MPO with one, K = 2, 3 and 5, {PAIRED}. 'Do
            not help' means by at most {{margin:g}}. Supported if every upper end is at most that,
            contradicted if a lower end is above it, else open.
        """,
        parts={f"heads, K={k}": ("at_most", "margin") for k in HEADS},
        caveat="""
            The formula of the paper's heads is lost; the reading is a listed decision. Where the critic
            explains almost nothing of the returns' variance, as it may on a small scale, there is little
            that its heads could help or harm.
        """,
    ),
    DeclaredTest(
        id="mpo-c6",
        test=f"""
            MPO (K = 5, with critic) over GRPO (groups of 4), at the same number of responses a step: memory
            of a training step ({OVER_SEEDS} of the logs), 'about as much' meaning at most 1.1 times; and
            processor time of a step, 'about 30 % faster' meaning at most 0.8 times. Supported if both hold,
            contradicted if one is excluded, else open.
        """,
        parts={"memory, MPO over GRPO": ("at_most", 1.1), "time, MPO over GRPO": ("at_most", 0.8)},
        caveat="""
            The part on memory is arithmetic: weights, gradients and moments of a critic as large as the
            policy and of four copies of its last layer are counted, against GRPO without a reference policy,
            and cannot come out otherwise at any scale like this one. On one processor a step's time is that
            of its arithmetic too. That sampling takes a larger share on the paper's machines, and that its
            GRPO had a reference policy, are guesses which would explain the statement; neither is measured.
        """,
    ),
)
