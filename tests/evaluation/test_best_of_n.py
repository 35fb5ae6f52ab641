"""Best-of-n with a verifier, and pass@k at sizes where shortcuts break."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.evaluation import avg_at_k, best_of_n, count_correct, pass_at_k, pass_at_ks

NAN = float("nan")


def slow_best_of_n(correct, passes, n):
    """Over all orderings of n samples: the first that passes, else the first."""
    known = [(c, p) for c, p in zip(correct, passes, strict=True) if c == c and p == p]
    chosen = [next((c for c, p in order if p), order[0][0]) for order in itertools.permutations(known, n)]
    return np.mean(chosen)


VALUES = st.sampled_from([0.0, 1.0, 0.0, 1.0, NAN])


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.tuples(VALUES, VALUES), min_size=n, max_size=n)))
def test_against_all_orderings(pairs):
    correct, passes = map(list, zip(*pairs, strict=True))
    known = sum(c == c and p == p for c, p in pairs)
    for n in range(1, known + 1):
        found = best_of_n([correct], [passes], n)[0]
        assert found == pytest.approx(slow_best_of_n(correct, passes, n), abs=1e-12)
    with pytest.raises(ValueError, match=f"n={known + 1} exceeds"):
        best_of_n([correct], [passes], known + 1)


def test_typed_in():
    correct, passes = [[1, 0, 0, 1]], [[0, 1, 0, 0]]
    # the verifier passes only a wrong one: 3 of 6 pairs hold it, else one of 1, 0, 1 comes first
    assert best_of_n(correct, passes, 2)[0] == pytest.approx(0.5 * 0 + 0.5 * 2 / 3)
    assert best_of_n(correct, passes, 4)[0] == 0


def test_identities():
    rng = np.random.default_rng(0)
    correct = rng.integers(0, 2, (30, 8)).astype(float)
    passes = rng.integers(0, 2, (30, 8)).astype(float)
    np.testing.assert_allclose(best_of_n(correct, passes, 1), avg_at_k(correct))  # the first sample
    for n in (1, 3, 8):  # a verifier that is the grader
        np.testing.assert_allclose(best_of_n(correct, correct, n), pass_at_k(*count_correct(correct), n))
    for constant in (np.zeros_like(correct), np.ones_like(correct)):  # a verifier that knows nothing
        np.testing.assert_allclose(best_of_n(correct, constant, 5), avg_at_k(correct))
    columns = rng.permutation(8)
    np.testing.assert_allclose(
        best_of_n(correct[:, columns], passes[:, columns], 5), best_of_n(correct, passes, 5)
    )


def test_the_expectation_is_the_mean_of_first_samples():
    rng = np.random.default_rng(1)
    correct = rng.integers(0, 2, (1, 6)).astype(float)
    first = [correct[0, rng.permutation(6)[0]] for _ in range(4000)]
    assert best_of_n(correct, 1 - correct, 1)[0] == pytest.approx(np.mean(first), abs=0.03)


@pytest.mark.parametrize(
    ("passes", "n", "name"),
    [([[1]], 1, "passes has shape"), ([[1, 2]], 1, "passes holds"), ([[1, 0]], 0, "n=0")],
)
def test_bad_input(passes, n, name):
    with pytest.raises(ValueError, match=name):
        best_of_n([[1, 0]], passes, n)


# --- pass@k at large n ----------------------------------------------------------------------------------


def exact_failure(n, c, k):
    """C(n-c, k) / C(n, k) as a product of c terms instead of k, in whole numbers."""
    return Fraction(math.perm(n - k, c), math.perm(n, c))


@pytest.mark.parametrize("n", [1000, 30_000, 1_000_000])
@pytest.mark.parametrize("c", [1, 3, 40])
@pytest.mark.parametrize("k", [1, 17, 999, 20_000])
def test_pass_at_k_is_stable_up_to_a_million_samples(n, c, k):
    if k > n:
        with pytest.raises(ValueError, match=f"k={k} exceeds"):
            pass_at_k([n], [c], k)
        return
    assert pass_at_k([n], [c], k)[0] == pytest.approx(float(1 - exact_failure(n, c, k)), rel=1e-10)


def test_pass_at_k_of_a_million_at_the_ends():
    n = 10**6
    np.testing.assert_array_equal(pass_at_k([n, n], [0, n], 1000), [0, 1])
    assert pass_at_k([n], [1], 100_000)[0] == pytest.approx(0.1, rel=1e-10)  # k / n with one right sample
    with pytest.raises(ValueError, match="k=1000001 exceeds"):
        pass_at_k([n], [0], n + 1)


def test_several_k_are_the_same_numbers_and_none_falls():
    rng = np.random.default_rng(2)
    n = rng.integers(64, 200, 30)
    c = rng.integers(0, n + 1)
    ks = [32, 1, 64, 7, 7]
    found = pass_at_ks(n, c, ks)
    for row, k in zip(found, ks, strict=True):
        np.testing.assert_array_equal(row, pass_at_k(n, c, k))
    assert (np.diff(pass_at_ks(n, c, range(1, 65)), axis=0) >= -1e-15).all()
    np.testing.assert_allclose(pass_at_ks(n, c, [1])[0], c / n)
    with pytest.raises(ValueError, match="ks is empty"):
        pass_at_ks(n, c, [])
