"""Token-level edit alignment of a response ``y`` with its correction ``y_hat``.

The text localises the modified tokens "by computing the token-level edit distance" and writes
``U = {t : y_t = y_hat_t}`` "after alignment" [text: IBPO G.2]: a Levenshtein alignment (insertion, deletion
and substitution cost 1 each), computed by rapidfuzz on token ids.

Several alignments may cost the least, and they need not keep the same tokens, nor equally many: ``a b`` to
``b a`` is two substitutions, or a deletion and an insertion that keep ``a``, or ``b``. :func:`edit_blocks`
says which is taken. Equal inputs give equal outputs, alone or in a batch, in any process; the names of the
ids do not matter, only which are equal.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rapidfuzz.distance import Editops, Levenshtein
from torch import Tensor

from rlvr.checks import check_choice, describe
from rlvr.tensor_checks import check_mask

Insertions = Literal["next", "both", "none"]
INSERTIONS = ("next", "both", "none")
Ids = Sequence[int] | NDArray[np.integer] | Tensor

# rapidfuzz looks for a distance up to this first, in a band of one machine word around the diagonal, and
# doubles it until it suffices: up to eight times faster for local edits, half as fast for unrelated lists.
_NEAR = 31
_PROBES, _PROBE = 16, 12  # so that many runs of so many tokens tell which of the two a pair is
# Ids become characters, which rapidfuzz reads without hashing: around the surrogates, which no text has.
_SURROGATES, _GAP = 0xD800, 0x800
_CHARACTERS = 0x110000 - _GAP


class Block(NamedTuple):
    """``response[start:stop]`` became ``corrected[corrected_start:corrected_stop]``."""

    kind: Literal["equal", "replace", "delete", "insert"]
    start: int
    stop: int
    corrected_start: int
    corrected_stop: int


class Alignment(NamedTuple):
    """What :func:`align_batch` found."""

    unchanged: Tensor  # [B, C, T] bool; False at padding and without a correction
    distance: Tensor  # [B, C] float64 in [0, 1]; NaN without a correction


def edit_blocks(response: Ids, corrected: Ids) -> list[Block]:
    """The alignment as blocks in order, which cover both sides; between two kept runs is one block.

    So ``replace`` may have sides of different lengths. Of the alignments that cost the least [choice]: common
    prefix, then common suffix are kept; from the end of what is left a deletion is preferred to a
    substitution, to an insertion, to a kept token. That is rapidfuzz's rule; long, distant pairs, whose
    table of bits would exceed a megabyte, it divides first, and the rule then holds in the parts.
    """
    first, second = _texts([_ids("response", response), _ids("corrected", corrected)])
    out: list[Block] = []
    for (i, j, size), (after_i, after_j, _) in pairwise(_kept_runs(_edits(first, second))):
        if size:
            out.append(Block("equal", i, i + size, j, j + size))
        i, j = i + size, j + size
        if i < after_i or j < after_j:
            kind = "insert" if i == after_i else "delete" if j == after_j else "replace"
            out.append(Block(kind, i, after_i, j, after_j))
    return out


def unchanged_tokens(response: Ids, corrected: Ids, insertions: Insertions = "next") -> NDArray[np.bool_]:
    """``U`` as flags over the tokens of ``response``, bool [T].

    Args:
        response, corrected: token ids, whole numbers in 0..2**32-1.
        insertions: the tokens that a pure insertion marks as changed; the text speaks of modified tokens
            only. ``next``: the token before which text was inserted, at the end of the response its last
            one. ``both``: the neighbours on both sides. ``none``: no token, so that a correction which
            only inserts leaves U = y [choice]. An insertion beside a replaced or deleted token belongs to
            that change and marks nothing more.
    """
    check_choice("insertions", insertions, INSERTIONS)
    first, second = _texts([_ids("response", response), _ids("corrected", corrected)])
    return _flags(first, _edits(first, second), insertions)


def edit_distance(a: Ids, b: Ids) -> float:
    """Insertions, deletions and substitutions from ``a`` to ``b``, divided by the longer length: in [0, 1].

    The longer length is the largest distance that two lists of these lengths can have; the text says
    nowhere how it normalises [choice]. Symmetric; 0 for equal lists, two empty ones included.
    """
    first, second = _texts([_ids("a", a), _ids("b", b)])
    return _distance(first, second)


def align_batch(
    responses: Sequence[Ids],
    corrected: Sequence[Sequence[Ids | None]],
    insertions: Insertions = "next",
    response_mask: Tensor | None = None,
) -> Alignment:
    """Every response against each of its corrections, in the shapes of :mod:`rlvr.rewards`.

    Args:
        responses: token ids of B responses, without padding.
        corrected: for each the token ids of its corrections; None is missing. C is the largest number of
            them, shorter rows are filled up with missing ones.
        insertions: as in :func:`unchanged_tokens`.
        response_mask: [B, T], where the tokens stand in the padded batch (1 = a token of the response, in
            order). None: padding on the right, T is the longest response. The result is on its device.
    """
    check_choice("insertions", insertions, INSERTIONS)
    places = _places(responses, response_mask)
    count = _count("corrected", corrected, len(responses))
    unchanged = np.zeros((len(responses), count, places.shape[1]), dtype=bool)
    distance = np.full((len(responses), count), np.nan)
    for row, (response, column, texts) in enumerate(_rows(responses, corrected, "responses", "corrected")):
        for c, text in zip(column, texts, strict=True):
            edits = _edits(response, text)
            unchanged[row, c, places[row]] = _flags(response, edits, insertions)
            distance[row, c] = len(edits) / max(len(response), len(text), 1)
    device = None if response_mask is None else response_mask.device
    return Alignment(torch.from_numpy(unchanged).to(device), torch.from_numpy(distance).to(device))


def edit_distances(first: Sequence[Ids], second: Sequence[Sequence[Ids | None]]) -> Tensor:
    """:func:`edit_distance` of ``first[b]`` and ``second[b][c]``, float64 [B, C]; NaN where that is None."""
    out = np.full((len(first), _count("second", second, len(first))), np.nan)
    for row, (text, column, others) in enumerate(_rows(first, second, "first", "second")):
        out[row, column] = [_distance(text, other) for other in others]
    return torch.from_numpy(out)


def reference_distances(
    corrected: Sequence[Sequence[Ids | None]], references: Sequence[Sequence[Ids]]
) -> Tensor:
    """``d(y_hat, y_ref)``, float64 [B, C]: of each correction and the nearest of its response's references.

    With one reference (K = 2) this is the text's; with more, the nearest is what may have been copied
    [choice]. NaN where the correction is missing or the response has no reference (K = 1).
    """
    count = _count("corrected", corrected, len(references), "references")
    out = np.full((len(references), count), np.nan)
    for row, (found, known) in enumerate(zip(corrected, references, strict=True)):
        for c, correction in enumerate(found):
            if correction is not None and len(known):
                out[row, c] = float(edit_distances([correction], [list(known)]).min())
    return torch.from_numpy(out)


def _edits(first: str, second: str) -> Editops:
    return Levenshtein.editops(first, second, score_hint=_hint(first, second))


def _hint(first: str, second: str) -> int | None:
    """Where to look first: near the diagonal, unless hardly any run of ``second`` is found in ``first``.

    A matter of speed; but it also says how a long pair is divided, and so belongs to the rule among
    alignments of equal cost.
    """
    step = max(1, len(second) // _PROBES)
    found = sum(second[at : at + _PROBE] in first for at in range(0, len(second), step))
    return _NEAR if 4 * found >= _PROBES else None


def _kept_runs(edits: Editops) -> list[tuple[int, int, int]]:
    """(start, start in the correction, length) of every kept run, between two empty ones at both ends."""
    return [(0, 0, 0), *edits.as_matching_blocks()]


def _flags(response: str, edits: Editops, insertions: Insertions) -> NDArray[np.bool_]:
    flags = np.zeros(len(response), dtype=bool)
    runs = _kept_runs(edits)
    for start, _, size in runs:
        flags[start : start + size] = True
    if insertions == "none" or not len(response):
        return flags
    for (i, j, size), (after_i, after_j, _) in pairwise(runs):
        if after_i == i + size and after_j > j + size:  # nothing of the response lies between: inserted
            before, after = after_i - 1, after_i
            if after < len(response):
                flags[after] = False
            if before >= 0 and (insertions == "both" or after == len(response)):
                flags[before] = False
    return flags


def _distance(first: str, second: str) -> float:
    edits = Levenshtein.distance(first, second, score_hint=_hint(first, second))
    return edits / max(len(first), len(second), 1)


def _ids(name: str, ids: Any) -> NDArray[np.uint32]:
    """Token ids as uint32 [T]."""
    if isinstance(ids, (list, tuple)):
        try:
            return np.frombuffer(array("I", ids), dtype=np.uintc).astype(np.uint32, copy=False)
        except (TypeError, OverflowError):
            wrong = next(x for x in ids if not _is_id(x))
            raise ValueError(f"{name} holds {wrong!r:.80}: allowed are token ids, 0..2**32-1") from None
    if isinstance(ids, Tensor):
        values = ids.detach().cpu()
        ids = values.float().numpy() if values.dtype == torch.bfloat16 else values.numpy()
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype.kind not in "iu":
        kind = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, np.ndarray) else describe(ids)
        raise ValueError(f"{name}={kind}: allowed is a list, array or tensor of token ids, [T]")
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < 2**32:
        raise ValueError(f"{name} holds {ids.min()} to {ids.max()}: allowed are token ids, 0..2**32-1")
    return ids.astype(np.uint32)


def _is_id(value: Any) -> bool:
    try:
        array("I", [value])
    except (TypeError, OverflowError):
        return False
    return True


def _texts(lists: list[NDArray[np.uint32]]) -> list[str]:
    """One character per id, the same id the same character in all lists."""
    if max((int(ids.max()) for ids in lists if len(ids)), default=0) >= _CHARACTERS:
        _, flat = np.unique(np.concatenate(lists), return_inverse=True)
        lists = np.split(flat.astype(np.uint32), np.cumsum([len(ids) for ids in lists])[:-1])
    shifted = (ids + np.uint32(_GAP) * (ids >= _SURROGATES) for ids in lists)
    return [ids.astype("<u4").tobytes().decode("utf-32-le") for ids in shifted]


def _rows(
    first: Sequence[Ids], second: Sequence[Sequence[Ids | None]], first_name: str, second_name: str
) -> Iterator[tuple[str, list[int], list[str]]]:
    """Of every row: its text, the columns that are there, and their texts."""
    for row, (ids, others) in enumerate(zip(first, second, strict=True)):
        column = [c for c, other in enumerate(others) if other is not None]
        lists = [_ids(f"{second_name}[{row}][{c}]", others[c]) for c in column]
        text, *texts = _texts([_ids(f"{first_name}[{row}]", ids), *lists])
        yield text, column, texts


def _count(name: str, rows: Any, expected: int, like: str = "responses") -> int:
    if not isinstance(rows, (list, tuple)) or len(rows) != expected:
        size = len(rows) if isinstance(rows, (list, tuple)) else describe(rows)
        raise ValueError(f"{name} has {size} rows: allowed is one list per row of {like}, {expected}")
    if wrong := [row for row in rows if not isinstance(row, (list, tuple))]:
        raise ValueError(
            f"{name} holds {describe(wrong[0])}: allowed are lists of token-id lists, one per row"
        )
    return max((len(row) for row in rows), default=0)


def _places(responses: Sequence[Ids], response_mask: Tensor | None) -> NDArray[np.bool_]:
    lengths = np.array([len(response) for response in responses], dtype=np.int64)
    if response_mask is None:
        return np.arange(lengths.max(initial=0)) < lengths[:, None]
    check_mask("response_mask", response_mask)
    places = response_mask.bool().cpu().numpy()
    if len(places) != len(lengths) or (places.sum(1) != lengths).any():
        raise ValueError(
            f"response_mask has {places.sum(1).tolist()} tokens, the responses {lengths.tolist()}: allowed "
            "is one place per token"
        )
    return places
