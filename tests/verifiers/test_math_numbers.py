"""Values: exact where rational, many digits elsewhere, bounded everywhere; and the tolerance of decimals."""

import subprocess
import sys
import threading
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.verifiers.answers import numeric
from rlvr.verifiers.answers.notation import normalize, tokenize
from rlvr.verifiers.answers.reader import read
from rlvr.verifiers.answers.scalars import DECIMAL_TOLERANCE, FLOAT_TOLERANCE
from rlvr.verifiers.answers.tree import Node, Num, Unreadable
from rlvr.verifiers.math import verify_math


def tree(text: str) -> Node:
    return read(tokenize(normalize(text)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("007", 7),
        ("-0", 0),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("4.5e3", 4500),
        ("1e-3", Fraction(1, 1000)),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("12{,}345", 12345),
        ("\\frac12", Fraction(1, 2)),
        ("\\frac1{512}", Fraction(1, 512)),
        ("\\frac 3 8", Fraction(3, 8)),
        ("2\\frac{1}{3}", Fraction(7, 3)),
        ("-15\\frac{3}{5}", Fraction(-78, 5)),
        ("1 1/2", Fraction(3, 2)),
        ("2\\frac{5}{3}", Fraction(10, 3)),
        ("1/2/2", Fraction(1, 4)),
        ("2^10", 1024),
        ("2^{-3}", Fraction(1, 8)),
        ("-2^2", -4),
        ("2^3^2", 64),
        ("2^{3^2}", 512),
        ("5!", 120),
        ("\\binom{5}{2}", 10),
        ("\\sqrt{49}", 7),
        ("\\sqrt{\\frac{4}{9}}", Fraction(2, 3)),
        ("\\sqrt[3]{-8}", -2),
        ("8^{2/3}", 4),
        ("|3-5|", 2),
        ("\\lfloor 7/2 \\rfloor", 3),
        ("\\lceil 7/2 \\rceil", 4),
        ("50\\%", Fraction(1, 2)),
        ("17 \\bmod 5", 2),
        ("0.1\\overline{6}", Fraction(1, 6)),
        ("2021 \\cdot 505 \\cdot 337", 2021 * 505 * 337),
        ("3 \\times -2", -6),
    ],
)
def test_rational_values_are_exact(text, value):
    assert numeric.exact(tree(text)) == value


def test_what_is_not_rational_has_no_exact_value():
    for text in ("\\sqrt{2}", "\\pi", "x", "e", "1/0", "0^0", "(-1)!", "\\infty"):
        assert numeric.exact(tree(text)) is None, text


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("\\frac{1}{2004!}", "\\frac{1}{2006!}", False),
        ("2^{-99}", "2^{-98}", False),
        ("\\sqrt{2}\\sqrt{3}-\\sqrt{6}", "0", True),
        ("\\sqrt{2}\\sqrt{3}-\\sqrt{6}", "10^{-60}", False),
        ("\\sqrt{10^{200}+1}", "10^{100}", False),
        ("\\sqrt{10^{200}+1}-10^{100}", "0", False),
        ("640320^3+744", "e^{\\pi\\sqrt{163}}", False),
        ("\\sqrt{5+2\\sqrt{6}}", "\\sqrt{2}+\\sqrt{3}", True),
        ("\\cos 36^\\circ", "\\frac{1+\\sqrt{5}}{4}", True),
        ("e^{i\\pi}", "-1", True),
        ("i^2", "-1", True),
        ("\\ln 8", "3 \\ln 2", True),
        ("\\log_2 8", "3", True),
        ("\\arcsin \\frac{1}{2}", "\\frac{\\pi}{6}", True),
        ("\\frac{1}{3x^{2/3}}", "\\frac{1}{3\\sqrt[3]{x}^2}", True),
        ("(x+1)^{20}", "(x+1)^{19}(x+1)", True),
        ("(x+y)^3", "x^3+3x^2y+3xy^2+y^3", True),
        ("(x+y)^3", "x^3+y^3", False),
        ("\\frac{x^2-1}{x-1}", "x+1", True),
        ("\\sin 2x", "2 \\sin x \\cos x", True),
        ("\\sqrt{x-3}+3", "3+(x-3)^{1/2}", True),
        ("\\sqrt{1-x^2}", "\\sqrt{(1-x)(1+x)}", True),
        ("\\ln(-x)", "\\ln x", False),
        ("n!", "n (n-1)!", True),
        ("\\binom{n}{2}", "\\frac{n(n-1)}{2}", True),
        ("(-1)^n", "\\cos(n\\pi)", True),
        ("(-1)^n", "1", False),
        ("\\lceil n/2 \\rceil", "\\lfloor (n+1)/2 \\rfloor", True),
        ("\\lceil n/2 \\rceil", "\\lfloor n/2 \\rfloor", False),
        ("|x|", "x", False),
        ("|x|", "\\sqrt{x^2}", True),
        ("f(x)+f(y)", "f(y)+f(x)", True),
        ("f(x)", "f(2x)", False),
        ("f(x)", "g(x)", False),
        ("I(0) e^{-t}", "0", False),
    ],
)
def test_equality_of_values(first, second, same):
    assert numeric.equal(gold=tree(first), answer=tree(second)) is same
    assert numeric.equal(gold=tree(second), answer=tree(first)) is same


@settings(max_examples=200, deadline=None)
@given(st.fractions(), st.fractions(), st.integers(-3, 3))
def test_fractions_are_equal_exactly_when_their_values_are(a, b, scale):
    written = f"\\frac{{{a.numerator * 7}}}{{{a.denominator * 7}}}"
    assert numeric.equal(gold=tree(str(a)), answer=tree(written)) is True
    assert numeric.equal(gold=tree(str(a)), answer=tree(str(b))) is (a == b)
    assert numeric.equal(gold=tree(str(a)), answer=tree(str(a + Fraction(scale, 10**40)))) is (scale == 0)


@pytest.mark.fault("tolerance-on-integers")
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**18))
def test_integers_compare_as_integers(n):
    for text in (f"{n}", f"{n:,}", f"{n:03d}", f"{n}.0", f"{n:,}".replace(",", "{,}"), f"+{n}"):
        assert verify_math(f"\\boxed{{{text}}}", str(n), kind="integer").correct is True, text
        assert verify_math(f"\\boxed{{{text}}}", str(n + 1), kind="integer").correct is False, text
        assert verify_math(f"\\boxed{{-{text.lstrip('+')}}}", str(n), kind="integer").correct is (n == 0), (
            text
        )


def test_tolerance_of_decimals():
    assert (DECIMAL_TOLERANCE, FLOAT_TOLERANCE) == (Fraction(1, 10**9), Fraction(1, 10**4))
    third = "\\frac{1}{3}"
    assert verify_math("\\boxed{0.3333333333}", third).correct is True
    assert verify_math("\\boxed{0.33333333}", third).correct is False
    assert verify_math(f"\\boxed{{{third}}}", "0.3333333333").correct is True
    # finite decimals are exact, and so is everything against an integer
    assert verify_math("\\boxed{0.1250000000001}", "\\frac{1}{8}").correct is False
    assert verify_math("\\boxed{0.1250000000001}", "0.125").correct is False
    assert verify_math("\\boxed{2.0000000000001}", "2").correct is False
    assert verify_math("\\boxed{1.0000000000001 \\sqrt{4.1}}", "\\sqrt{4.1}").correct is True


@pytest.mark.parametrize(
    ("gold", "kind", "near", "far"),
    [
        ("3.83e35", "auto", "3.8302 \\times 10^{35}", "3.831 \\times 10^{35}"),
        ("20.39", "float", "20.391", "20.4"),
        ("-0.875", "float", "-0.87501", "0.875"),
        ("np.arcsin(10/13)", "float", "\\arcsin(0.7692307692307692)", "0.8777"),
    ],
)
def test_tolerance_of_measured_values(gold, kind, near, far):
    assert verify_math(f"\\boxed{{{near}}}", gold, kind=kind).correct is True
    assert verify_math(f"\\boxed{{{far}}}", gold, kind=kind).correct is False


def test_integer_golds_have_no_tolerance_under_float():
    assert verify_math("\\boxed{100000.5}", "100000", kind="float").correct is False
    assert verify_math("\\boxed{20.391}", "20.39").correct is False  # kind="auto": an exact decimal


HUGE = [
    "9^9^9",
    "9^{9^{9^9}}",
    "10^10^10",
    "10^{10^{10^{10}}}",
    "9999999999!",
    "(((9!)!)!)!",
    "2^{2^{2^{2^{2^{2}}}}}",
    "+".join(["20000!"] * 300),
    "\\cdot ".join(["7^{140000}"] * 50),
    "\\binom{10^9}{5\\cdot 10^8}",
    "\\sin(10^{10^{10}})",
    "1e99999",
    "1e999999999",
    "1" * 3_000,
    "1" * 100_000,
    "(" * 1_900 + "1" + ")" * 1_900,
    "{" * 50_000 + "1" + "}" * 50_000,
    "\\frac{1}{" * 500 + "2" + "}" * 500,
    "\\sqrt{" * 400 + "2" + "}" * 400,
    "x^" * 1_000 + "x",
    "+".join(["x"] * 1_500),
    "*".join(["(x+1)"] * 500),
    "-" * 3_000 + "5",
    "5" + "!" * 2_000,
    "5" + "%" * 2_000,
    "|" * 3_000,
    "\\pm" * 500 + "5",
    ",".join(["1"] * 1_900),
    ",".join(f"x+{k}" for k in range(500)),
    "[0,1)\\cup" * 300 + "[0,1)",
    "a=b=" * 900 + "c",
    "\\lfloor 10^{10^5}\\pi\\rfloor",
    "1/0",
    "0^0",
    "\\ln 0",
    "\\tan(\\pi/2)",
]


@pytest.mark.parametrize("gold", ["5", "x^2+1", "1,2", "(-\\infty,2)\\cup(3,\\infty)", "y=2x"])
def test_huge_answers_are_false_in_bounded_time(gold):
    """Without a worker process: the time limit is so short that one could not help."""
    for answer in HUGE:
        start = time.process_time()
        verdict = verify_math(f"\\boxed{{{answer}}}", gold, timeout=0.01)
        assert verdict.correct is False, (answer[:50], verdict)
        assert time.process_time() - start < 3, answer[:50]


def test_a_value_too_large_to_tell_apart_is_not_called_equal():
    assert numeric.equal(gold=tree("9^{9^9}"), answer=tree("9^{387420489}")) is None
    assert numeric.equal(gold=tree("9^{9^9}"), answer=tree("9^{387420488}")) is False


def test_threads_do_not_disturb_each_other():
    """mpmath keeps its precision in one place."""
    wrong = []

    def work(k: int) -> None:
        for _ in range(20):
            equal = numeric.equal(gold=tree("\\sqrt{10^{200}+1}"), answer=tree("10^{100}")) is False
            equal &= numeric.equal(gold=tree(f"\\sqrt{{{k}}}^2"), answer=tree(str(k))) is True
            if not equal:
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_nothing_is_read_in_part():
    """Text behind what could be read would be dropped in silence."""
    for text in ("5 + apples", "4\\sqrt", "\\frac{1}", "(1,2", "1,2)", "x = ", "5 \\foo", "[1;", "\\{1"):
        with pytest.raises(Unreadable):
            tree(text)
    assert tree("5") == Num(Fraction(5))


def test_importing_the_package_stays_light():
    code = (
        "import sys, rlvr.verifiers, rlvr.verifiers.math; from rlvr.verifiers import verify_math;"
        "verify_math('1,000', '1000');"
        "print(sorted({'sympy', 'mpmath', 'math_verify', 'torch', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
