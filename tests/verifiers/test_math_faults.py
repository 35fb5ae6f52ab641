"""Faults that graders in use have had, one test per kind; none may come back here."""

import threading

import pytest

from rlvr.verifiers import golds
from rlvr.verifiers.math import verify_math, verify_math_batch

needs_math_verify = pytest.importorskip(
    "math_verify", reason="math-verify is not installed: pip install 'rlvr[evaluation]'"
)


def judge(prediction: str, gold: str, **options) -> bool | None:
    return verify_math(prediction, gold, timeout=60, **options).correct


# math-verify


@pytest.mark.fault("equal-by-rounding")
@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        ("$\\frac{1}{2004!}$", "$\\frac{1}{2006!}$"),
        ("$\\frac{1}{2^{99}}$", "$\\frac{1}{2^{98}}$"),
        ("$10^{-12}$", "$2 \\cdot 10^{-12}$"),
        ("$0$", "$10^{-50}$"),
        ("$\\sqrt{2}$", "$\\sqrt{2} + 10^{-30}$"),
    ],
)
def test_small_values_are_not_equal_because_they_round_alike(gold, prediction):
    assert judge(prediction, gold) is False
    assert judge(gold, prediction) is False
    assert judge(gold, gold) is True


@pytest.mark.fault("list-read-as-one-element")
@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        ("$1, 2, \\ldots, n$", "$1, 3, 5, \\ldots, 2n-1$"),
        ("$1:2:3:\\ldots$", "$1:4:9:\\ldots$"),
        ("$1, 2, \\ldots, n$", "$2$"),
        ("$2$", "$1, 2, \\ldots, n$"),
        ("$1, 2, \\dots$", "$1, 2$"),
    ],
)
def test_lists_with_an_ellipsis_do_not_collapse(gold, prediction):
    assert judge(prediction, gold) is False
    assert judge(gold, gold) is True


@pytest.mark.fault("half-of-an-equation")
@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        ("3x + 4y + 14=0", "3*x-1*y+13=0"),
        ("f(x) = 0", "\\forall x>0, f(x) = 0"),
        ("3x + 4y + 14=0", "0"),
        ("0", "3x + 4y + 14=0"),
        ("x^2 + y^2 = 5", "x^2 - y^2 = 5"),
    ],
)
def test_equations_without_delimiters_are_not_their_right_sides(gold, prediction):
    assert judge(prediction, gold) is False
    assert judge(gold, gold) is True


@pytest.mark.fault("malformed-gold")
def test_malformed_gold_is_undecided_and_found_by_the_self_test():
    verdict = verify_math("$4$", "$4\\sqrt(2)$")
    assert (verdict.correct, verdict.reason) == (None, "bad_gold")
    assert golds.check_gold("$4\\sqrt(2)$") == "malformed_root"
    assert golds.self_test([("a", "$4\\sqrt{2}$"), ("b", "$4\\sqrt(2)$")]) == [
        ("b", "$4\\sqrt(2)$", "malformed_root")
    ]
    assert judge("$4$", "$4\\sqrt{2}$") is False


@pytest.mark.fault("order-of-the-arguments")
def test_a_set_and_its_inequality_are_equal_in_either_order():
    interval, relation = "$m \\in [\\sqrt{2}, \\infty)$", "$m \\geq \\sqrt{2}$"
    assert judge(relation, interval) is True
    assert judge(interval, relation) is True
    assert judge("$m > \\sqrt{2}$", interval) is False


@pytest.mark.fault("marks-around-the-answer")
def test_emphasis_around_the_last_number():
    tail = "So 234 is reached after 17 steps, of which 12 count.\n\n" * 20 + "Final Answer: **73**"
    assert verify_math(tail, "73", kind="integer").extracted == "73"
    assert judge(tail, "73", kind="integer") is True


@pytest.mark.fault("crash-inside-a-comparison")
def test_equations_of_two_curves_do_not_crash():
    first, second = "$x^2/4+y^2/3=1$", "$x^2/16+y^2/12=1$"
    assert judge(first, second) is False
    assert judge(first, f"{first[:-1]}, {second[1:]}") is False
    assert judge(f"{second[:-1]}, {first[1:]}", f"{first[:-1]}, {second[1:]}") is True


def test_time_limits_work_outside_the_main_thread():
    results = []
    thread = threading.Thread(
        target=lambda: results.append(verify_math("\\boxed{\\sum_{k=0}^{10^9} k!}", "5", timeout=0.5))
    )
    thread.start()
    thread.join(60)
    assert [(v.correct, v.reason) for v in results] == [(None, "timeout")]


# wiring of rewards


@pytest.mark.fault("two-scores-for-one-sample")
def test_exactly_one_verdict_per_sample_in_order():
    predictions = [
        "\\boxed{137}",
        "I don't know.",
        "\\boxed{5}",
        "I don't know.",
        "\\boxed{\\int_0^1 2x\\,dx}",
    ]
    verdicts = verify_math_batch(predictions, ["137", "1", "6", "1", "1"], timeout=60)
    assert len(verdicts) == 5
    assert [v.correct for v in verdicts] == [True, False, False, False, True]
    assert verdicts[0].extracted == "137"
    assert verify_math_batch([], []) == []
    with pytest.raises(ValueError, match="2, 1"):
        verify_math_batch(["1", "2"], ["1"])


@pytest.mark.fault("reward-for-an-unreadable-gold")
@pytest.mark.parametrize("gold", ["\\boxed{", "", "   ", "\\frac{1}{2", "}{", None, 5, "\ufffd"])
def test_an_unreadable_gold_pays_nobody(gold):
    for completion in ("\\boxed{5}", "5", "", str(gold), "\\boxed{"):
        verdict = verify_math(completion, gold)
        assert (verdict.correct, verdict.reason) == (None, "bad_gold")


@pytest.mark.fault("undecided-counted-as-wrong")
def test_what_is_not_text_is_undecided():
    assert verify_math(None, "5").reason == "no_response"
    assert verify_math(5, "5").correct is None


# lm-eval


@pytest.mark.fault("gold-not-equal-to-itself")
@pytest.mark.parametrize(
    "gold", ["\\frac{5}{3}", "x^2 - 4", "(-\\infty, 2]", "\\text{east}", "5\\sqrt{2}\\text{ cm}"]
)
def test_a_gold_answer_equals_itself(gold):
    assert golds.self_test([("id", gold)]) == []


@pytest.mark.fault("display-mathematics-not-read")
def test_display_math_is_looked_into():
    assert verify_math("Thus the answer is \\[ \\boxed{42} \\]", "42").extracted == "42"
    assert judge("Thus \\[ 42 \\]", "42") is True


# verl prime_math


@pytest.mark.fault("percent-where-none-is-meant", "tolerance-on-integers")
@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("5", "500"),
        ("1", "100"),
        ("500", "5"),
        ("7", "0.07"),
        ("100000", "100001"),
        ("999", "999.05"),
        ("33", "33.001"),
        ("5", "5.0000001"),
    ],
)
def test_integers_know_no_percent_and_no_tolerance(gold, answer):
    assert judge(f"\\boxed{{{answer}}}", gold, kind="integer") is False
    assert judge(f"\\boxed{{{answer}}}", gold) is False


# verl math_dapo


@pytest.mark.fault("long-answer-cut-off")
def test_a_long_box_is_kept_whole():
    ones = "+".join(["1"] * 61)
    text = f"\\boxed{{{ones}}}"
    assert verify_math(text, ones).extracted == ones
    assert judge(text, ones) is True
    assert judge(text, "61") is True
    assert judge(text, "62") is False


@pytest.mark.fault("marks-around-the-answer")
@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("Answer: 204.", "204"),
        ("Answer: **204**", "204"),
        ("**Answer:** 204", "204"),
        ("Answer: 7.0", "7"),
        ("Answer: 0.5", "\\frac{1}{2}"),
    ],
)
def test_answer_lines_with_dots_stars_and_decimals(text, gold):
    assert judge(text, gold) is True


# verl gsm8k, verl math_reward


@pytest.mark.fault("one-way-to-write-a-number")
@pytest.mark.parametrize("text", ["#### 18.", "#### 18.0", "#### $18", "The answer is 18."])
def test_gsm8k_forms(text):
    assert judge(text, "18") is True
    assert judge(text, "17") is False


@pytest.mark.fault("one-way-to-write-a-number")
@pytest.mark.parametrize(("answer", "gold"), [("1,000", "1000"), ("-1/2", "-\\frac{1}{2}"), ("x+1", "1+x")])
def test_equal_values_in_other_writing(answer, gold):
    assert judge(f"\\boxed{{{answer}}}", gold) is True


def test_without_math_verify_most_is_graded_and_the_rest_says_what_to_install(monkeypatch):
    monkeypatch.setattr("rlvr.verifiers.math.importlib.util.find_spec", lambda name: None)
    assert verify_math("\\boxed{\\frac{2}{4}}", "0.5").correct is True
    assert verify_math_batch(["\\boxed{x^2-1}"], ["(x-1)(x+1)"])[0].correct is True
    with pytest.raises(ImportError, match="rlvr\\[evaluation\\]"):
        verify_math("\\boxed{\\int_0^1 2x\\,dx}", "1")
