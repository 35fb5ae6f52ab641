"""The tests of the claims for language models evaluated on benchmarks, written down before any was trained.

They ask what the tests of :mod:`rlvr.reporting.claims` ask. What differs: rollouts are of the same step, as
in the paper; every benchmark counts once in an accuracy; and tokens have the paper's eight categories, so
that the claim about them is judged as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from rlvr.analysis.token_categories import CATEGORIES
from rlvr.reporting.claims import DECLARED, HORIZON_PARTS, DeclaredTest, declared
from rlvr.reporting.claims_of_models_ibpo import IBPO_OF_MODELS
from rlvr.reporting.claims_of_models_mpo import MPO_OF_MODELS

#: Part of the claim about token classes: what the trace adds in correction strength, reasoning minus others.
REASONING_PART = "reasoning - other tokens"

_ACCURACY = """
    Accuracy of the last checkpoint, pass@1 averaged over the benchmarks, each counting once, paired by seed
    and problem: mean over seeds with a {confidence:.0%} Student t interval.
"""
_ABLATION = f"{_ACCURACY} Rollouts are of the same step. "

_OWN = declared(
    DeclaredTest(
        id="nfpo-c2",
        test=f"""
            {_ACCURACY} NFPO minus GRPO and NFPO minus DPPO-TV. 'Better or as good' means at least
            -{{margin:g}}. Supported if both lower ends reach that, contradicted if either upper end stays
            below it, else open.
        """,
        parts=DECLARED["nfpo-c2"].parts,
        caveat=DECLARED["nfpo-c2"].caveat,
    ),
    DeclaredTest(
        id="nfpo-c3",
        test="""
            E|rho * trace - 1| minus E|rho - 1| in each of the paper's eight token categories, and how much
            larger that is for reasoning tokens (connectives and actions) than for all others: mean over
            training seeds with a {confidence:.0%} Student t interval. Supported if every lower end is above
            0, contradicted if any upper end is below 0, else open; a category that a seed lacks leaves it
            open.
        """,
        parts={name: ("above", 0.0) for name in (*CATEGORIES, REASONING_PART)},
        caveat="Which words are of which category is a choice; 'reasoning tokens' are not defined further.",
    ),
    replace(
        DECLARED["nfpo-c4"],
        caveat=DECLARED["nfpo-c4"].caveat
        + """
            Sampler and trainer are two engines, whose difference is part of every ratio.
        """,
    ),
    DeclaredTest(
        id="nfpo-c5",
        test=f"""
            {_ABLATION} N = 1 is DPPO-TV; 'an intermediate N is best' means N = 4, the paper's, against the
            largest, 16. Variance (median over steps, clipped trace) and switch frequency: of the same records
            of NFPO, per seed, from each N to the next. Supported if every difference lies above 0,
            contradicted if one lies below, else open.
        """,
        parts=HORIZON_PARTS,
    ),
    DeclaredTest(
        id="nfpo-c6",
        test=f"""
            {_ABLATION} Each trace clip range minus DPPO-TV. Supported if all three lie above 0, contradicted
            if one lies below, else open.
        """,
        parts=DECLARED["nfpo-c6"].parts,
    ),
    DeclaredTest(
        id="nfpo-c7",
        test=f"""
            {_ABLATION} 'Slightly worse' means that NFPO minus NFPO with all ratios against recomputed
            log-probs lies above 0 and is at most 0.06, the span of the paper's axis; 'changes little' that
            NFPO without the ratio clip minus NFPO lies within {{margin:g}} of 0 on both sides. Supported if
            all hold, contradicted if one is excluded, else open.
        """,
        parts=DECLARED["nfpo-c7"].parts,
    ),
    DeclaredTest(
        id="nfpo-c8",
        test=f"""
            {_ABLATION} NFPO, whose mask is TV, minus NFPO with each other mask. Supported if all three lie
            above 0, contradicted if one lies below, else open.
        """,
        parts=DECLARED["nfpo-c8"].parts,
    ),
    DeclaredTest(
        id="nfpo-c9",
        test=f"{_ABLATION} NFPO minus FIPO. Supported above 0, contradicted below, else open.",
        parts=DECLARED["nfpo-c9"].parts,
        caveat="FIPO with the settings of its released script; they were not tuned here.",
    ),
)

#: Of the other papers what is exact, and does not depend on a model, is not among them.
DECLARED_OF_MODELS: Mapping[str, DeclaredTest] = MappingProxyType(
    {name: _OWN.get(name, test) for name, test in DECLARED.items() if name.startswith("nfpo-")}
    | declared(*IBPO_OF_MODELS, *MPO_OF_MODELS)
)
