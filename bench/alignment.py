"""Token pairs aligned per second: ours against difflib, python-Levenshtein, edlib and rapidfuzz on lists.

Every side gets the same two Python lists of 8,192 token ids (ours also arrays, as an engine holds them) and
returns which tokens of the first are kept: ours as flags, the others as their own list of edits. Sides take
turns in one run, in a new order every round, on one thread and by its CPU time. Costs are compared first:
every side but difflib must find the least one, and difflib's is shown as a multiple of it.

Pairs: tokens of 150,000 ids as frequent as words are; corrections that change 1, 3, 10 or 50 places of one to
eight tokens, that insert a paragraph, and that rewrite the second half. Hostile: unrelated tokens, all of
four ids, all alike but a few, and a response reversed. What a side cannot do, or not in reasonable time, is
said instead of timed. Target: 1,000 pairs a second, the least that "thousands" can mean on two cores.
"""

from __future__ import annotations

import difflib
import platform
import statistics
from collections.abc import Callable

import Levenshtein as python_levenshtein
import numpy as np
import rapidfuzz
import torch
from edlib import align as edlib_align
from measure import interleaved, ratio_of_medians, shown

from rlvr.counterfactual.alignment import edit_distance, unchanged_tokens

LENGTH, VOCABULARY, ROUNDS, TARGET = 8192, 150_000, 15, 1000
EDLIB_SYMBOLS = 256
SLOW = {"four ids", "nearly all alike"}  # difflib needs minutes: it visits every pair of equal tokens
Pair = tuple[list[int], list[int]]


def tokens(rng: np.random.Generator, count: int, symbols: int = VOCABULARY) -> list[int]:
    """Ids drawn with density falling as a power of the rank, as words are."""
    return (symbols * rng.random(count) ** 6).astype(int).tolist()


def edited(rng: np.random.Generator, places: int, longest: int = 8) -> Pair:
    response = tokens(rng, LENGTH)
    corrected = list(response)
    for _ in range(places):
        at = int(rng.integers(len(corrected)))
        corrected[at : at + int(rng.integers(longest))] = tokens(rng, int(rng.integers(1, longest)))
    return response, corrected


def pairs() -> dict[str, Pair]:
    rng = np.random.default_rng(0)
    out = {f"{places} places": edited(rng, places) for places in (1, 3, 10, 50)}
    response = tokens(rng, LENGTH)
    middle = LENGTH // 2
    out["a paragraph inserted"] = response, response[:middle] + tokens(rng, 300) + response[middle:]
    out["second half new"] = response, response[:middle] + tokens(rng, middle)
    out["unrelated"] = rng.permutation(LENGTH).tolist(), (LENGTH + rng.permutation(LENGTH)).tolist()
    out["unrelated words"] = tokens(rng, LENGTH), tokens(rng, LENGTH)
    out["reversed"] = response, response[::-1]
    out["four ids"] = rng.integers(0, 4, LENGTH).tolist(), rng.integers(0, 4, LENGTH).tolist()
    alike = np.zeros((2, LENGTH), dtype=int)
    for row in alike:
        row[rng.integers(0, LENGTH, 40)] = 1
    out["nearly all alike"] = alike[0].tolist(), alike[1].tolist()
    return out


def cost(opcodes: list) -> int:
    return sum(max(op[2] - op[1], op[4] - op[3]) for op in opcodes if op[0] != "equal")


def difflib_opcodes(pair: Pair) -> list:
    return difflib.SequenceMatcher(None, *pair, autojunk=False).get_opcodes()


def sides(name: str, pair: Pair) -> dict[str, Callable[[], object]]:
    arrays = [np.array(ids) for ids in pair]
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: unchanged_tokens(*pair),
        "ours, arrays": lambda: unchanged_tokens(*arrays),
        "ours, distance": lambda: edit_distance(*pair),
        "python-Levenshtein": lambda: python_levenshtein.opcodes(*pair),
        "rapidfuzz on lists": lambda: rapidfuzz.distance.Levenshtein.opcodes(*pair),
    }
    if len(set(pair[0]) | set(pair[1])) <= EDLIB_SYMBOLS:
        calls["edlib"] = lambda: edlib_align(*pair, task="path")
    if name not in SLOW:
        calls["difflib"] = lambda: difflib_opcodes(pair)
    return calls


def check(name: str, pair: Pair) -> str:
    least = round(edit_distance(*pair) * max(map(len, pair)))
    opcodes = python_levenshtein.opcodes(*pair)
    assert least == cost(opcodes) == rapidfuzz.distance.Levenshtein.distance(*pair), name
    if name in SLOW:
        return f"distance {least}"
    return f"distance {least}, difflib's {cost(difflib_opcodes(pair)) / max(least, 1):.2f} times that"


def main() -> None:
    torch.set_num_threads(1)
    print(
        f"{platform.machine()}, one thread; rapidfuzz {rapidfuzz.__version__}, python-Levenshtein "
        f"{python_levenshtein.__version__}; pairs of {LENGTH} tokens, {ROUNDS} rounds; ours in pairs "
        "per second; time of the others as a multiple of ours: ratio of medians, 95 % bootstrap interval"
    )
    for name, pair in pairs().items():
        note = check(name, pair)
        calls = sides(name, pair)
        times = interleaved(calls, ROUNDS)
        rate = {side: 1 / statistics.median(taken) for side, taken in times.items()}
        met = "met" if rate["ours"] >= TARGET else "missed"
        print(f"\n{name} ({note}): {rate['ours']:,.0f} pairs/s, target {TARGET:,} {met}")
        print(
            f"  from arrays {rate['ours, arrays']:,.0f}, distance alone {rate['ours, distance']:,.0f} pairs/s"
        )
        for side in ("rapidfuzz on lists", "python-Levenshtein", "edlib", "difflib"):
            if side in times:
                print(f"  {side}: {shown(ratio_of_medians(times[side], times['ours']))}")
            else:
                why = "at most 256 different ids" if side == "edlib" else "takes minutes"
                print(f"  {side}: not timed, {why}")


if __name__ == "__main__":
    main()
