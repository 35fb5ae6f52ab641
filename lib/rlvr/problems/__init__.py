"""Problems: what the policy is asked, in splits that are disjoint by construction."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from rlvr.problems import program, word
from rlvr.problems.base import SPLITS, Problem, Task

TASKS: dict[str, Task] = {task.name: task for task in (word.TASK, program.TASK)}

__all__ = ["SPLITS", "TASKS", "Problem", "Task", "by_difficulty", "get_task"]


def get_task(name: str) -> Task:
    """The task of that name.

    Raises:
        ValueError: no such task; names what exists and what may have been meant.
    """
    if name in TASKS:
        return TASKS[name]
    close = difflib.get_close_matches(str(name).lower(), TASKS, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"task={name!r} is unknown, tasks are {sorted(TASKS)}{hint}")


def by_difficulty(problems: Iterable[Problem]) -> dict[int, list[Problem]]:
    """Problems by difficulty, easiest first, in their order within each."""
    groups: dict[int, list[Problem]] = {}
    for problem in problems:
        groups.setdefault(problem.difficulty, []).append(problem)
    return dict(sorted(groups.items()))
