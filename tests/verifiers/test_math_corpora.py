"""Near misses score False, right answers in odd clothes True; both do so in either order, but for stated
cases."""

import pytest

from rlvr.verifiers.math import verify_math, verify_math_batch
from tests.verifiers.math_near_misses import DENIED, NEAR_MISSES, VALUE_WORDS
from tests.verifiers.math_odd_clothes import ODD_CLOTHES

pytest.importorskip("math_verify", reason="math-verify is not installed: pip install 'rlvr[evaluation]'")

# (gold, answer) whose verdict changes when the two change places, and why
ONE_WAY = {
    ("-1,3,3", "-1,3"): "an answer may repeat an element, a gold answer with repeats means multiplicity",
    ("-2,-2", "-2"): "the same",
    ("37,3,13", "3, 13, 37, 3"): "the same",
    ("100,200", "100200"): "kind='list' reads the gold answer only as a list",
    ("AB=9, CD=4", "4, 9"): "a bare gold list is order-free",
    ("1,-2", "x_1 = -2, x_2 = 1"): "bare values answer named ones in their order",
    ("0.5", "0.5\\%"): "a gold answer may lose its percent sign",
    ("204", "20400\\%"): "the same; against a whole gold answer the sign is a unit",
    ("1000.99", "1000,99"): "a decimal comma is read in answers only",
    ("\\text{(A)}", "A. B. C. D."): "four choices are no gold answer: undecided",
    ("\\text{(C)}", "\\textbf{(C)}\\ 42"): "a choice may be followed by its content in an answer",
}


def test_corpora_are_large_and_free_of_repeats():
    assert len(NEAR_MISSES) >= 80 and len(set(NEAR_MISSES)) == len(NEAR_MISSES)
    assert len(ODD_CLOTHES) >= 60 and len(set(ODD_CLOTHES)) == len(ODD_CLOTHES)


@pytest.mark.parametrize(("gold", "answer", "kind"), NEAR_MISSES)
def test_near_misses_are_wrong(gold, answer, kind):
    verdict = verify_math(f"So it is \\boxed{{{answer}}}.", gold, kind=kind, timeout=60)
    assert verdict.correct is False, verdict


@pytest.mark.parametrize(("gold", "response"), DENIED)
def test_words_around_a_number_in_a_response_count(gold, response):
    verdict = verify_math(response, gold, timeout=60)
    assert verdict.correct is False, verdict
    number = verify_math(f"The answer is {gold}.", gold)
    assert number.correct is True, number


@pytest.mark.parametrize(("gold", "answer", "kind"), VALUE_WORDS)
def test_words_that_change_a_value_make_no_gold_answer(gold, answer, kind):
    verdict = verify_math(f"\\boxed{{{gold}}}", answer, kind=kind, timeout=60)
    assert verdict.correct is not True, verdict


@pytest.mark.parametrize(("gold", "response", "kind"), ODD_CLOTHES)
def test_odd_clothes_are_right(gold, response, kind):
    verdict = verify_math(response, gold, kind=kind, timeout=60)
    assert verdict.correct is True, verdict
    assert verdict.reason == "correct"


def test_a_near_miss_is_measured_against_a_gold_answer_that_works():
    """The corpus would prove nothing if its gold answers scored False as well."""
    golds = sorted({(gold, kind) for gold, _, kind in NEAR_MISSES})
    verdicts = verify_math_batch(
        [f"\\boxed{{{gold}}}" for gold, _ in golds],
        [g for g, _ in golds],
        kind=[k for _, k in golds],
        timeout=60,
    )
    assert [gold for gold, verdict in zip(golds, verdicts, strict=True) if verdict.correct is not True] == []


def test_the_order_of_two_answers_makes_no_difference():
    """Integers apart, where a gold answer must be a literal."""
    pairs = [(g, a, k, False) for g, a, k in NEAR_MISSES if k != "integer" and (g, a, k) not in VALUE_WORDS]
    right = [row for row in ODD_CLOTHES if row[2] != "integer"]
    found = verify_math_batch([r for _, r, _ in right], [g for g, _, _ in right], kind=[k for *_, k in right])
    pairs += [(g, verdict.extracted, k, True) for (g, _, k), verdict in zip(right, found, strict=True)]
    swapped = verify_math_batch(
        [f"\\boxed{{{gold}}}" for gold, _, _, _ in pairs],
        [answer for _, answer, _, _ in pairs],
        kind=[kind for _, _, kind, _ in pairs],
        timeout=60,
    )
    changed = {
        (gold, answer)
        for (gold, answer, _, expected), verdict in zip(pairs, swapped, strict=True)
        if verdict.correct is not expected
    }
    assert changed == set(ONE_WAY)
