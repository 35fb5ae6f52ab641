"""The integer verifier: near misses, extremes, and what must never become a reward."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.verifiers import Verdict, rewards, verify_integer
from rlvr.verifiers.integer import last_number

HUGE = "9" * 6000  # above Python's own limit of 4300 digits for int()


@pytest.mark.parametrize(
    ("prediction", "gold", "correct", "extracted", "reason"),
    [
        ("11+6=17,17-4=13", "13", True, "13", "correct"),
        ("13", "13", True, "13", "correct"),
        ("11+6=17,17-4=13,", "13", True, "13", "correct"),  # trailing comma
        ("so the answer is 13.", "13", True, "13", "correct"),  # full stop
        ("**13**", "13", True, "13", "correct"),
        ("__13__", "13", True, "13", "correct"),
        ("$\\boxed{13}$", "13", True, "13", "correct"),
        ("13...", "13", True, "13", "correct"),
        ("13=", "13", True, "13", "correct"),
        # the last number decides
        ("13,13-4=9", "13", False, "9", "wrong"),
        ("13 14", "13", False, "14", "wrong"),
        ("14 13", "13", True, "13", "correct"),
        ("1,300", "1300", False, "300", "wrong"),  # a comma is no thousands mark here
        ("1 3", "13", False, "3", "wrong"),
        ("113", "13", False, "113", "wrong"),
        ("131", "13", False, "131", "wrong"),
        ("1300", "13", False, "1300", "wrong"),
        ("0.13", "13", False, "0.13", "not_an_integer"),
        # nothing to compare
        ("", "13", False, None, "no_number"),
        ("   ", "13", False, None, "no_number"),
        ("=,=+-", "13", False, None, "no_number"),
        ("how many apples?", "13", False, None, "no_number"),
        ("١٣", "13", False, None, "no_number"),  # digits of another script are not in the vocabulary
        # equality of values
        ("007", "7", True, "007", "correct"),
        ("7", "007", True, "7", "correct"),
        ("000", "0", True, "000", "correct"),
        ("0", "7", False, "0", "wrong"),
        ("", "0", False, None, "no_number"),
        ("7.0", "7", True, "7.0", "correct"),
        ("70", "7", False, "70", "wrong"),
        ("7.10", "7", False, "7.10", "not_an_integer"),
        ("-0", "0", True, "-0", "correct"),
        # signs
        ("=-13", "-13", True, "-13", "correct"),
        ("-13", "13", False, "-13", "wrong"),
        ("13", "-13", False, "13", "wrong"),
        ("4-17=-13", "-13", True, "-13", "correct"),
        ("17-4", "4", True, "4", "correct"),  # a binary minus
        ("17-4", "-4", False, "4", "wrong"),
        ("(20)-4", "-4", False, "4", "wrong"),
        ("20 -4", "-4", True, "-4", "correct"),
        ("5--4", "-4", True, "-4", "correct"),
        ("\N{MINUS SIGN}13", "-13", True, "-13", "correct"),
        ("+13", "13", True, "13", "correct"),
        # what only contains the answer
        ("1/13", "13", False, "1/13", "not_an_integer"),
        ("13%", "13", False, "13%", "not_an_integer"),
        ("2^13", "13", False, "2^13", "not_an_integer"),
        ("1e13", "13", False, "1e13", "not_an_integer"),
        ("x13", "13", False, "x13", "not_an_integer"),
        ("x_13", "13", False, "x_13", "not_an_integer"),
        ("13 0.5", "13", False, "0.5", "not_an_integer"),  # no falling back to an earlier number
        (".13", "13", False, ".13", "not_an_integer"),
        # huge
        (HUGE, HUGE, True, HUGE, "correct"),
        ("0" * 6000 + "7", "7", True, "0" * 6000 + "7", "correct"),
        (HUGE[:-1] + "8", HUGE, False, HUGE[:-1] + "8", "wrong"),
    ],
)
def test_verdicts(prediction, gold, correct, extracted, reason):
    assert verify_integer(prediction, gold) == Verdict(correct, extracted, reason)


def test_truncated_is_wrong_even_with_the_right_number():
    assert verify_integer("11+6=17", "17", finished=False) == Verdict(False, "17", "truncated")
    assert verify_integer("", "17", finished=False) == Verdict(False, None, "truncated")
    assert verify_integer("11+6=17", "17", finished=True).correct is True


@pytest.mark.fault("reward-for-an-unreadable-gold")
@pytest.mark.parametrize(
    "gold", ["", "abc", "1.5", "1/2", "7.0", " 7", "7\n", "+7", "--7", "1,000", "٧", None, 7]
)
def test_bad_gold_is_undecided_and_earns_nothing(gold):
    for prediction in ("7", "", "abc"):
        for finished in (True, False):
            assert verify_integer(prediction, gold, finished) == Verdict(None, None, "bad_gold")
    with pytest.raises(ValueError, match=r"response 1 cannot be graded \(bad_gold\)"):
        rewards(["7", "7"], ["7", gold])


def test_missing_response_is_undecided():
    assert verify_integer(None, "7") == Verdict(None, None, "no_response")
    with pytest.raises(ValueError, match=r"response 0 .*no_response.*NoneType"):
        rewards([None], ["7"])


@given(st.integers())
def test_every_gold_equals_itself(value):
    assert verify_integer(str(value), str(value)).correct is True
    assert verify_integer(f"1+1=2,={value}", str(value)).correct is True


@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6))
def test_equality_is_that_of_integers(a, b):
    assert verify_integer(f"={a}", str(b)).correct is (a == b)
    assert verify_integer(f"={a}", str(b)).correct == verify_integer(f"={b}", str(a)).correct


@given(st.text(alphabet="0123456789+-*=,. ", max_size=40))
def test_last_number_on_texts_of_the_task(text):
    """Read by hand from the right: the last digit belongs to the extracted number, nothing after it does."""
    found = last_number(text)
    digits = [i for i, c in enumerate(text) if c.isdigit()]
    assert (found is None) == (not digits)
    if digits:
        assert re.search(r"[0-9]", found)
        assert found.lstrip("-").rstrip(".0123456789").strip("0123456789.") == ""
        assert text[: digits[-1] + 1].endswith(found)


@pytest.mark.fault("two-scores-for-one-sample")
def test_one_reward_per_response_in_order():
    predictions = ["1", "I do not know.", "=2", "", "3"]
    golds = ["1", "1", "2", "2", "2"]
    assert rewards(predictions, golds) == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert rewards(predictions, golds, [False, True, True, True, True]) == [0.0, 0.0, 1.0, 0.0, 0.0]
    assert rewards([], []) == []
    order = [4, 2, 0, 3, 1]
    assert rewards([predictions[i] for i in order], [golds[i] for i in order]) == [0.0, 1.0, 1.0, 0.0, 0.0]


def test_rewards_are_the_verdicts():
    predictions = ["13", "12", "x", "7.0", "1/7", "-7"]
    for gold in ("13", "7", "-7"):
        one_by_one = [float(verify_integer(p, gold).correct) for p in predictions]
        assert rewards(predictions, [gold] * len(predictions)) == one_by_one


@pytest.mark.parametrize(
    "arguments", [(["1"], ["1", "2"]), (["1", "2"], ["1"]), (["1"], ["1"], []), (["1"], ["1"], [True, True])]
)
def test_lengths_must_agree(arguments):
    with pytest.raises(ValueError, match="one entry per response"):
        rewards(*arguments)
