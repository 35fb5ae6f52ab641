"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "fault"]


@dataclass(frozen=True)
class Finding:
    """One line of ``rlvr doctor``.

    Args:
        check: what was looked at, in one or two words.
        state: "ok"; "note", something to know that breaks nothing; "fault", something that will fail.
        text: what was found.
        fix: a command, or several joined by ``&&``; a fault always has one.

    Raises:
        ValueError: another state, or a fault without a fix.
    """

    check: str
    state: State
    text: str
    fix: str | None = None

    def __post_init__(self) -> None:
        if self.state not in ("ok", "note", "fault"):
            raise ValueError(f"state={self.state!r}: allowed are 'ok', 'note', 'fault'")
        if self.state == "fault" and not self.fix:
            raise ValueError(f"fix={self.fix!r}: a fault in {self.check} needs a command that mends it")
