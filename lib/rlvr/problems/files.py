"""Problems on disk: one JSON object per line, one file per split, with the tokenizer beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rlvr.problems.base import Problem, digest
from rlvr.problems.tokenizer import Codec
from rlvr.storage import atomic_dir, write_text


def write_problems(path: str | Path, problems: Iterable[Problem]) -> None:
    """Write problems in order, atomically."""
    lines = (json.dumps(problem.to_dict(), ensure_ascii=False) for problem in problems)
    write_text(path, "".join(line + "\n" for line in lines))


def read_problems(path: str | Path) -> list[Problem]:
    """Read what :func:`write_problems` wrote.

    Raises:
        ValueError: a line that is no problem, or whose id is not the hash of its kind and prompt; names the
            file and the line.
    """
    problems = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        try:
            problem = Problem(**json.loads(line))
        except (json.JSONDecodeError, TypeError) as error:
            raise ValueError(f"{path}:{number} is not a problem: {error}") from None
        if problem.id != digest(problem.kind, problem.prompt):
            raise ValueError(f"{path}:{number}: id={problem.id!r} is not the hash of its kind and prompt")
        problems.append(problem)
    return problems


def write_problem_set(out: str | Path, splits: Mapping[str, Sequence[Problem]], codec: Codec) -> None:
    """``<out>/problems/<split>.jsonl`` and ``<out>/tokenizer/``, each folder complete or absent."""
    with atomic_dir(Path(out) / "problems") as folder:
        for split, problems in splits.items():
            write_problems(folder / f"{split}.jsonl", problems)
    with atomic_dir(Path(out) / "tokenizer") as folder:
        codec.save(folder)
