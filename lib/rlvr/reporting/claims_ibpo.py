"""The tests of IBPO's claims, written down before anything is measured."""

from __future__ import annotations

from rlvr.reporting.declared import DeclaredTest

EXACT_TOLERANCE = 1e-12  # of a variance of rewards of size 1
LOWEST, HIGHEST = 0.05, 0.95  # a success rate "away from 0 and 1"
HARD, EASY = 0.25, 0.75  # shares of the base model's samples that are right: at most, at least

MATCHED = """
    Held-out accuracy of policies trained at equal estimated compute, paired by seed and problem: mean over
    seeds with a {confidence:.0%} Student t interval.
"""
TWO_READINGS = """
    The paper's GSPO has 64 responses to a prompt and IBPO 8; how GSPO fares with 8 stands beside it.
"""
PLATEAU = ("0.55", "0.65", "0.70")

IBPO = (
    DeclaredTest(
        id="ibpo-c1",
        test=MATCHED
        + """
            IBPO minus GSPO (64 responses to a prompt), GSPO with a prompt at test time, the second turn of
            SCoRe, and GSPO with the best of 8; mask minus base and base minus ratio. Supported if every
            interval of the first four lies above 0 and those of the last two lie above -{margin:g},
            contradicted if one lies below, else open.
        """,
        parts={
            **{
                f"IBPO - {name}": ("above", 0.0)
                for name in ("GSPO", "GSPO with prompt", "SCoRe", "GSPO with best of 8")
            },
            "mask - base": ("at_least", "-margin"),
            "base - ratio": ("at_least", "-margin"),
        },
        effect="IBPO - GSPO",
        caveat=TWO_READINGS
        + """
            Best of 8 asks a verifier eight times at test time, which the compute of training does not count:
            one sample of IBPO is held against the one of eight that the verifier picks. Where pass@1 of every
            policy is far below best of 8, that part cannot be met, whatever IBPO does.
        """,
    ),
    DeclaredTest(
        id="ibpo-c2",
        test="""
            Compute at which the raw training reward, smoothed alike for all, first reaches the scale's
            threshold: IBPO's over GSPO's (64 responses to a prompt), paired by seed, geometric mean with a
            {confidence:.0%} Student t interval of logarithms. Supported if the upper end is at most 1,
            contradicted if the lower end is above it, else open; open too if a run does not reach it, or is
            above it at its first point: then its compute is known only to a bound.
        """,
        parts={"IBPO / GSPO": ("at_most", 1.0)},
        caveat=TWO_READINGS,
    ),
    DeclaredTest(
        id="ibpo-c3",
        test="""
            Every group that can occur is listed, of several sizes, accuracies and chances of a repair,
            with and without dependence on the right responses of the group, C = 0 among them. Weights are
            placed by each case's own bound 2C/V: below 0, within, and above it. Supported if closed form
            and variance agree to 1e-12 at every weight, if the variance is below GSPO's at those of the
            weights that lie between 0 and 2C/V and at no other, and if Cov(Y, phi) = -2p(1-p)m to 1e-12
            in the local cases. Contradicted if one fails.
        """,
        parts={
            "error of the closed form": ("at_most", EXACT_TOLERANCE),
            "share of weights on the right side": ("at_least", 1.0),
            "error of the local covariance": ("at_most", EXACT_TOLERANCE),
        },
        caveat="""
            It is an identity, and says nothing on whether shaping helps: a phi tossed by a coin meets the
            condition too, and the bound goes to 0 with the accuracy.
        """,
    ),
    DeclaredTest(
        id="ibpo-c4",
        test=MATCHED
        + """
            The full method minus the prompt alone, minus K = 1, minus shaping alone, minus joint training
            alone. Supported if every interval lies above 0, contradicted if one lies below, else open.
        """,
        parts={
            f"full - {name}": ("above", 0.0)
            for name in ("prompt only", "one trajectory", "shaping only", "joint only")
        },
        caveat="At equal compute a part that is left out pays for more steps.",
    ),
    DeclaredTest(
        id="ibpo-c5",
        test=MATCHED
        + """
            Weight 0.6 minus 0.4 and minus 1.2, the ends of the paper's range: above 0. Threshold 0.55, 0.65
            and 0.70 against 0.60, the paper's plateau: within {margin:g} on both sides. Supported if all
            hold, contradicted if one is refuted, else open.
        """,
        parts={
            **{f"weight 0.6 - {end}": ("above", 0.0) for end in ("0.4", "1.2")},
            **{f"alpha {a} - 0.60": ("at_least", "-margin") for a in PLATEAU},
            **{f"alpha 0.60 - {a}": ("at_least", "-margin") for a in PLATEAU},
        },
    ),
    DeclaredTest(
        id="ibpo-c6",
        test="""
            Share of corrections that are right, of IBPO, by fifths of the training: the last minus the first,
            and the lowest and highest fifth, each a mean over seeds with a {confidence:.0%} Student t
            interval. Supported if the first is above 0, the lowest at least 0.05 and the highest at most
            0.95; contradicted if one is refuted, else open.
        """,
        parts={
            "last fifth - first fifth": ("above", 0.0),
            "lowest fifth": ("at_least", LOWEST),
            "highest fifth": ("at_most", HIGHEST),
        },
        caveat="The responses to correct change too: what a better policy still gets wrong is harder.",
    ),
    DeclaredTest(
        id="ibpo-c7",
        test=MATCHED
        + f"""
            IBPO minus GSPO (64 responses to a prompt) on hard problems, of which the base model solves at
            most {HARD:g} of its samples, minus the same on easy ones, at least {EASY:g}. Supported if the
            interval lies above 0, contradicted if below, else open.
        """,
        parts={"gain on hard - gain on easy": ("above", 0.0)},
        caveat="Easy problems leave less room for a gain in points.",
    ),
)
