"""What every verifier answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """One graded response.

    ``correct`` has three values. ``True`` and ``False`` are statements about the response and become
    rewards 1 and 0. ``None`` says that nothing could be decided for a cause outside the response (a gold
    answer that is no answer, a sandbox that died): such a sample belongs in no loss and in no pass@k, but
    in a count of its own.
    """

    correct: bool | None
    extracted: Any  # what was compared with the gold answer; None if nothing was found
    reason: str  # one word for counting: correct, wrong, no_number, truncated, ...
