"""The table of graded samples: one row per response, the same columns whatever engine wrote it.

| column | |
| --- | --- |
| ``problem``, ``benchmark`` | id, and the set it is of (``embedded``: generated problems) |
| ``sample`` | number of the response to this problem, from 0, within one seed |
| ``seed`` | what makes two rows with equal problem, model and sample repetitions of one experiment: the seed of the **training run** for trained policies, the seed of **sampling** for models that nobody trained here |
| ``sampling_seed`` | seed of the random numbers that drew the response, always |
| ``prompt``, ``text`` | as the model saw it; the response without what ended it |
| ``finish_reason``, ``finished`` | ``stop`` or ``length``; whether it is ``stop`` |
| ``tokens``, ``prompt_tokens`` | of the response, its end token included; of the prompt |
| ``correct`` | True, False, or missing: undecided |
| ``extracted``, ``reason``, ``grader`` | what was judged, one word for counting, and by what (:mod:`rlvr.evaluation.grading`) |
| ``engine``, ``model`` | what computed the tokens; the policy's name in tables, the same for all its seeds |
| ``arm``, ``lag`` | of the graph's policies only |
| ``difficulty`` | of generated problems only: arithmetic steps |

An engine may append columns of its own (``token_ids``, ``log_probs``).
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

COLUMNS = {
    "problem": "string",
    "benchmark": "string",
    "sample": "int64",
    "seed": "int64",
    "sampling_seed": "int64",
    "prompt": "string",
    "text": "string",
    "finish_reason": "string",
    "finished": "bool",
    "tokens": "int64",
    "prompt_tokens": "int64",
    "correct": "boolean",  # three values
    "extracted": "string",
    "reason": "string",
    "grader": "string",
    "engine": "string",
    "model": "string",
}
LABELS = {"arm": "string", "lag": "int64", "difficulty": "int64"}
GRADED = ("correct", "extracted", "reason", "grader")


def texts_of(samples: pd.DataFrame) -> list[str | None]:
    """Column ``text``, None where there is no response; ValueError for what is neither text nor missing."""
    texts = [None if _is_missing(text) else text for text in samples["text"]]
    if odd := [text for text in texts if text is not None and not isinstance(text, str)]:
        raise ValueError(
            f"text holds {odd[0]!r:.80} ({type(odd[0]).__name__}): allowed are strings, and None or NaN (no "
            "response)"
        )
    return texts


def finished_of(samples: pd.DataFrame) -> list[bool]:
    """Column ``finished``, all True without one; ValueError for what is no truth value. It may be missing
    where ``text`` is."""
    if "finished" not in samples:
        return [True] * len(samples)
    found = list(samples["finished"])
    for value, text in zip(found, samples["text"], strict=True):
        if _is_missing(value) and not _is_missing(text):
            raise ValueError("finished is missing beside a text: allowed are True and False")
        if not _is_missing(value) and (isinstance(value, str) or value not in (0, 1)):
            raise ValueError(f"finished holds {value!r:.80}: allowed are True and False")
    return [not _is_missing(value) and bool(value) for value in found]


def _is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and value != value)


def conform(frame: pd.DataFrame, labels: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """An engine's table, whose ``seed`` is that of sampling, in these columns.

    Args:
        frame: with all columns but ``sampling_seed`` and those of grading.
        labels: of the policy: ``seed`` of its training, ``arm``, ``lag``.
    """
    frame = frame.assign(sampling_seed=frame["seed"], **(labels or {}))
    frame = frame.assign(**{name: None for name in GRADED if name not in frame})
    types = COLUMNS | {name: kind for name, kind in LABELS.items() if name in frame}
    return frame[[*types, *(name for name in frame if name not in types)]].astype(types)
