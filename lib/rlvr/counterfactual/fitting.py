"""A correction prompt of texts that fits: of long responses less is shown, until it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlvr.counterfactual.prompts import text_prompt

SHOWN = 24_000  # characters of one response, at most; as text_prompt has it
LEAST = 250  # below which nothing is left to compare


def fitting_prompt(
    kind: str,
    problem: str,
    response: str,
    references: Sequence[str],
    fits: Callable[[str], bool],
    shown: int = SHOWN,
) -> str | None:
    """:func:`rlvr.counterfactual.prompts.text_prompt` with ``shown`` characters of a response, or half as
    many each time until ``fits`` says so; None where none of at least :data:`LEAST` does.

    Raises:
        ValueError: as :func:`text_prompt`.
    """
    while shown >= LEAST:
        said = text_prompt(kind, problem, response, references, shown)
        if fits(said):
            return said
        shown //= 2
    return None
