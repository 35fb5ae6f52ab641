"""Problems as rows of the parquet files that verl reads.

| column | embedded | mathematics | programs |
| --- | --- | --- | --- |
| ``data_source`` | ``embedded`` | the benchmark | the benchmark |
| ``prompt`` | a chat: the problem's text | the same, in the benchmark's wording | the same |
| ``ability`` | ``integer`` | ``math`` | ``function``, ``stdin`` |
| ``reward_model.ground_truth`` | the integer | the first gold answer | its tests as published, JSON |
| ``extra_info`` | ``index``, ``id``, ``split``, ``kind``, ``grading``, ``golds`` | the same | the same |

Every file has the same columns and types, so that verl can read several together. :mod:`.reward` is the other
end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlvr.problems import Problem
from rlvr.problems.benchmarks import BenchmarkProblem, prompt_for
from rlvr.storage import atomic_path

EMBEDDED = "embedded"  # data_source of generated problems
KINDS = ("integer", "math", "function", "stdin")
TEXT = pa.string()
SCHEMA = pa.schema(
    {
        "data_source": TEXT,
        "prompt": pa.list_(pa.struct({"role": TEXT, "content": TEXT})),
        "ability": TEXT,
        "reward_model": pa.struct({"style": TEXT, "ground_truth": TEXT}),
        "extra_info": pa.struct(
            {
                "index": pa.int64(),
                "id": TEXT,
                "split": TEXT,
                "kind": TEXT,
                "grading": TEXT,
                "golds": pa.list_(TEXT),
            }
        ),
    }
)


def row_of(
    problem: Any, index: int, split: str, style: str | None = None, system_prompt: str | None = None
) -> dict[str, Any]:
    """One problem as verl's row.

    Args:
        problem: a generated :class:`~rlvr.problems.Problem`, or a ``BenchmarkProblem``.
        index: of the row in its file.
        split: ``train`` for training, any other name for validation: :mod:`.reward` reads it.
        style: wording around a benchmark's problem; None is the benchmark's own. Generated problems are
            shown as they are.
        system_prompt: a system turn in front.

    Raises:
        ValueError: a problem of another kind, without gold answer, or without tests.
    """
    if isinstance(problem, Problem):
        source, kind, grading, text = EMBEDDED, "integer", "integer", problem.prompt
        golds: Sequence[str] = (problem.answer,)
    elif isinstance(problem, BenchmarkProblem) and problem.kind in KINDS:
        source, kind, grading = problem.benchmark, problem.kind, problem.grading
        text, golds = prompt_for(problem, style), problem.golds
    else:
        raise ValueError(f"problem={problem!r:.80}: allowed are Problem and BenchmarkProblem of kind {KINDS}")
    if kind in ("function", "stdin"):
        if not problem.tests:
            raise ValueError(f"problem {problem.id!r}: a program without tests cannot be rewarded")
        truth, golds = json.dumps(problem.tests, ensure_ascii=False), ()
    else:
        if not golds or not all(isinstance(gold, str) and gold.strip() for gold in golds):
            raise ValueError(f"problem {problem.id!r}: golds={golds!r}: allowed is at least one text")
        truth = golds[0]
    turns = [("system", system_prompt)] if system_prompt is not None else []
    return {
        "data_source": source,
        "prompt": [{"role": role, "content": said} for role, said in [*turns, ("user", text)]],
        "ability": kind,
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {
            "index": index,
            "id": problem.id,
            "split": split,
            "kind": kind,
            "grading": grading,
            "golds": list(golds),
        },
    }


def write_dataset(
    path: str | Path,
    problems: Iterable[Any],
    split: str,
    style: str | None = None,
    system_prompt: str | None = None,
) -> Path:
    """Write problems, in order, as a parquet file that is either complete or absent; returns its path.

    Raises:
        ValueError: no problem, one of them twice, or one that :func:`row_of` refuses.
    """
    rows = [row_of(p, index, split, style, system_prompt) for index, p in enumerate(problems)]
    path = Path(path)
    if path.suffix != ".parquet":
        raise ValueError(
            f"path={str(path)!r}: allowed are names that end in .parquet; verl reads the others as JSON"
        )
    _check_rows(rows, f"problems of {path.name}")
    with atomic_path(path) as partial:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), partial)
        check_dataset(partial)
    return path


def check_dataset(path: str | Path) -> int:
    """Whether a job can be started on this file: columns, types, and what every row must hold.

    Returns the number of rows.

    Raises:
        ValueError: names the file, and what is wrong in it.
    """
    try:
        found = pq.read_schema(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is no parquet file, or one that was cut short: {error}") from None
    if missing := [name for name in SCHEMA.names if name not in found.names]:
        raise ValueError(f"{path}: lacks the columns {', '.join(missing)}; has {', '.join(found.names)}")
    for field in SCHEMA:
        if found.field(field.name).type != field.type:
            raise ValueError(
                f"{path}: column {field.name} is {found.field(field.name).type}, allowed is {field.type}"
            )
    rows = pq.read_table(path, columns=SCHEMA.names).to_pylist()
    _check_rows(rows, str(path))
    return len(rows)


def _check_rows(rows: Sequence[Mapping[str, Any]], where: str) -> None:
    if not rows:
        raise ValueError(f"{where}: there is no row; a job needs at least one")
    for number, row in enumerate(rows):
        info, chat = row["extra_info"], row["prompt"]
        wrong = None
        if not row["data_source"]:
            wrong = "data_source is empty"
        elif not chat or chat[-1]["role"] != "user" or not all(turn["content"] for turn in chat):
            wrong = "prompt is not a chat that ends with what the user says"
        elif not row["reward_model"] or not row["reward_model"]["ground_truth"]:
            wrong = "reward_model.ground_truth is empty: nothing could be rewarded"
        elif not info or info["kind"] not in KINDS:
            wrong = f"extra_info.kind is none of {', '.join(KINDS)}"
        elif info["index"] != number:
            wrong = f"extra_info.index is {info['index']}"
        if wrong:
            raise ValueError(f"{where}, row {number}: {wrong}")
    counts = Counter((row["data_source"], row["extra_info"]["id"]) for row in rows)
    (source, name), most = counts.most_common(1)[0]
    if most > 1:
        raise ValueError(f"{where}: problem {name!r} of {source} is there {most} times; allowed is once")
