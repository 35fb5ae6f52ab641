"""What a test of a claim consists of, written down before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class DeclaredTest:
    """How one claim is tested.

    Attributes:
        id: claim of the registry.
        test: what the report prints; ``{margin}`` and ``{confidence}`` come from the scale's report section.
        parts: name -> the threshold its interval must meet: a keyword of :func:`judge`, and a number,
            ``"-margin"`` or ``"margin"``.
        effect: name of the part whose number stands for the claim; empty: the one that decides.
        caveat: printed with every verdict.
        statement: what the verdict is about, where that is less than the registry's whole claim.
    """

    id: str
    test: str
    parts: Mapping[str, tuple[str, float | str]]
    caveat: str = ""
    statement: str = ""
    effect: str = ""
