"""majority@k: how often the most frequent answer among k samples is right.

A problem's decided samples fall into classes of equal answers. For k of them drawn without replacement the
expected accuracy of the plurality answer is a sum over its number of votes w: with h_i the number drawn of
class i, of m_i samples, and v_i the accuracy of the class,

    sum_w E[ (sum_{i: h_i = w} v_i) / #{i: h_i = w} ; no h_i > w ].

Independent binomials with any common p, conditioned on their sum, are that draw. So the sum is a dynamic
programme over classes on (samples drawn, classes with w votes), in probabilities, which neither overflow
nor cancel; classes with fewer than w samples cannot matter and are drawn as one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from rlvr.evaluation.inputs import check_function, items_of, whole
from rlvr.evaluation.metrics import check_enough, outcome_matrix
from rlvr.evaluation.resampling import Floats

MAX_WORK = 10**9  # multiplications of one problem above which samples are drawn instead
DRAWS = 10_000  # their number: a standard error of at most 0.005 on one problem

#: Answers of one problem -> a label each; equal labels are the same answer.
Grouping = Callable[[Sequence[str]], Sequence[Hashable]]
Votes = tuple[tuple[int, float], ...]  # (samples, accuracy) of every class, then of those without an answer


def same_string(answers: Sequence[str]) -> Sequence[Hashable]:
    """Equal as strings, spaces around them aside: for answers in a verifier's canonical form."""
    answers = items_of("answers", answers, "strings")
    if odd := [answer for answer in answers if not isinstance(answer, str)]:
        raise ValueError(f"answers holds {odd[0]!r:.80} ({type(odd[0]).__name__}): allowed are strings")
    return [answer.strip() for answer in answers]


def by_equivalence(equal: Callable[[str, str], bool | None]) -> Grouping:
    r"""A grouping from a pairwise test: an answer joins the first class whose first member it equals.

    With ``lambda a, b: verify_math(rf"\boxed{{{a}}}", b).correct``, 0.5 and 1/2 are one answer. What
    ``equal`` leaves undecided (None) stays apart.

    ``equal`` must be transitive for the classes not to depend on the order; it is asked about distinct
    strings only, in sorted order, so at least the order of samples never matters.
    """

    check_function("equal", equal, "two answers")

    def group(answers: Sequence[str]) -> Sequence[Hashable]:
        heads: list[str] = []
        label: dict[str, str] = {}
        for answer in sorted(set(answers)):
            head = next((h for h in heads if equal(h, answer)), None)
            if head is None:
                heads.append(answer)
            label[answer] = answer if head is None else head
        return [label[answer] for answer in answers]

    return group


def label_answers(answers: ArrayLike, group: Grouping) -> np.ndarray:
    """Answers as labels, [problems, samples] of str or None: group once, then vote with several k."""
    answers = np.asarray(answers, dtype=object)
    out = np.full(answers.shape, None, dtype=object)
    for row, found in zip(answers, out, strict=True):
        given = ~pd.isna(row)
        number: dict[Hashable, str] = {}
        labels = _labels([str(answer) for answer in row[given]], group)
        found[given] = [number.setdefault(label, str(len(number))) for label in labels]
    return out


def majority_at_k(
    correct: ArrayLike, answers: ArrayLike, k: int, *, group: Grouping = same_string, seed: int = 0
) -> Floats:
    """Expected accuracy of the plurality answer of k samples, [problems], over all subsets of k.

    Args:
        correct: [problems, samples] in {0, 1, NaN}. NaN, missing or undecided, is left out and has no vote.
        answers: [problems, samples] of strings; None or NaN is a sample without an answer. It counts among
            the k and casts no vote [choice]; k such samples answer nothing, and count as their ``correct``.
        k: samples that vote. group: which answers are the same. seed: of the draws, see below.

    Ties are split evenly [choice]: the answer is a random one of those with most votes. A class that the
    grader judged in two ways counts with its mean, so majority@1 is avg@k whatever the grader does.

    Exact, unless very many different answers make that dear (:func:`is_exact`): then the mean over 10 000
    subsets, drawn from ``seed`` and the problem's counts, so that the order of rows changes nothing.

    Raises ValueError if a problem has fewer than k decided samples.
    """
    whole("seed", seed, 0)
    tallies = _tallies(correct, answers, k, group)
    known: dict[Votes, float] = {}
    for votes in tallies:
        if votes not in known:
            known[votes] = _exact(votes, k) if _work(votes, k) <= MAX_WORK else _drawn(votes, k, seed)
    return np.array([known[votes] for votes in tallies])


def is_exact(correct: ArrayLike, answers: ArrayLike, k: int, *, group: Grouping = same_string) -> np.ndarray:
    """Whether :func:`majority_at_k` counts all subsets of a problem instead of drawing some, [problems]."""
    return np.array([_work(votes, k) <= MAX_WORK for votes in _tallies(correct, answers, k, group)])


def _tallies(correct: ArrayLike, answers: ArrayLike, k: int, group: Grouping) -> list[Votes]:
    correct, k = outcome_matrix(correct), whole("k", k)
    answers = _answers(answers, correct.shape)
    check_function("group", group, "the answers of a problem")
    decided = ~np.isnan(correct)
    check_enough(k, decided.sum(1))
    return [_tally(c[d], a[d], group) for c, a, d in zip(correct, answers, decided, strict=True)]


def _answers(answers: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    try:
        found = np.asarray(answers, dtype=object)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"answers is no array [problems, samples]: {error}") from None
    if found.shape != shape:
        raise ValueError(f"answers has shape {found.shape}: allowed is that of correct, {shape}")
    return found


def _tally(correct: Floats, answers: np.ndarray, group: Grouping) -> Votes:
    silent = pd.isna(answers)
    given = [str(answer) for answer in answers[~silent]]
    labels = _labels(given, group)
    classes: dict[Hashable, list[float]] = {}
    for label, value in zip(labels, correct[~silent], strict=True):
        classes.setdefault(label, []).append(value)
    without = correct[silent]
    last = (len(without), float(without.mean()) if len(without) else 0.0)
    return (*sorted((len(c), float(np.mean(c))) for c in classes.values()), last)


def _labels(answers: list[str], group: Grouping) -> list[Hashable]:
    labels = list(group(answers))
    if len(labels) != len(answers):
        raise ValueError(f"group gave {len(labels)} labels for {len(answers)} answers: allowed is one each")
    return labels


def _work(votes: Votes, k: int) -> int:
    """Multiplications of :func:`_exact`, roughly."""
    sizes = np.array([m for m, _ in votes[:-1]])
    of_w = [int((sizes >= w).sum()) for w in range(1, min(k, max(sizes, default=0)) + 1)]
    return sum(n * min(n, k // w) * k * k for w, n in enumerate(of_w, start=1))


def _exact(votes: Votes, k: int) -> float:
    *classes, (silent, silent_value) = votes
    total = silent + sum(m for m, _ in classes)
    p = k / total
    drawn = np.arange(k + 1)
    none = stats.binom.pmf(k, silent, p) * np.prod([(1 - p) ** m for m, _ in classes])
    expected = silent_value * none
    for w in range(1, min(k, max((m for m, _ in classes), default=0)) + 1):
        able = [(m, v) for m, v in classes if m >= w]
        rest = silent + sum(m for m, _ in classes if m < w)
        width = min(len(able), k // w) + 1
        ways, value = np.zeros((width, k + 1)), np.zeros((width, k + 1))
        ways[0] = stats.binom.pmf(drawn, rest, p)  # [classes with w votes, samples drawn]
        for m, v in able:
            pmf = stats.binom.pmf(drawn, m, p)
            below = _convolution(np.where(drawn < w, pmf, 0.0))
            at = pmf[w]
            new_ways, new_value = ways @ below, value @ below
            new_ways[1:, w:] += at * ways[:-1, : k + 1 - w]
            new_value[1:, w:] += at * (value[:-1, : k + 1 - w] + v * ways[:-1, : k + 1 - w])
            ways, value = new_ways, new_value
        expected += (value[1:, k] / np.arange(1, width)).sum()
    return float(expected / stats.binom.pmf(k, total, p))


def _convolution(kernel: Floats) -> Floats:
    """Matrix that convolves a row with the kernel, cut to its length: [k+1, k+1]."""
    size = len(kernel)
    lag = np.arange(size)[None] - np.arange(size)[:, None]
    return np.where(lag >= 0, kernel[np.maximum(lag, 0)], 0.0)


def _drawn(votes: Votes, k: int, seed: int) -> float:
    sizes, values = np.array([m for m, _ in votes]), np.array([v for _, v in votes])
    rng = np.random.default_rng([seed, k, *sizes.tolist()])
    found = rng.multivariate_hypergeometric(sizes, k, size=DRAWS)
    cast = found[:, :-1]
    first = cast == cast.max(1, keepdims=True, initial=1)  # none where nobody voted
    number = first.sum(1)
    mean = (first * values[:-1]).sum(1) / np.maximum(number, 1)
    return float(np.where(number > 0, mean, values[-1]).mean())
