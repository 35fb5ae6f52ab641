"""Which part of a response is its answer, and that finding it takes linear time."""

import time

import pytest

from rlvr.verifiers.extraction import extract
from rlvr.verifiers.formulas import clean
from rlvr.verifiers.math import verify_math


def first(text: str, **options) -> str | None:
    found = extract(text, **options)
    return None if found is None else found.candidates[0]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{5}", "5"),
        ("\\boxed{\\frac{1}{\\sqrt{2}}} is it", "\\frac{1}{\\sqrt{2}}"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed {5}", "5"),
        ("\\boxed 5 holds", "5"),
        ("\\boxed\\pi", "\\pi"),
        ("\\fbox{7}", "7"),
        ("\\boxed{\\boxed{3}}", "\\boxed{3}"),
        ("$\\boxed{3}$ and later $\\boxed{4}$ because", "4"),
        ("\\boxed{3}, then \\boxed{}", "3"),
        ("\\[ \\boxed{42} \\]", "42"),
        ("\\boxed{" + "+".join(["1"] * 61) + "}", "+".join(["1"] * 61)),
        ("\\boxed{x = 5.}", "x = 5"),
        ("\\boxed{12\nnever closed", "12"),
        ("\\boxed{2} and \\boxed{3}", "2, 3"),
        ("\\boxed{2}, \\boxed{3}, and \\boxed{5}", "2, 3, 5"),
        ("$\\boxed{2}$ \\text{ or } $\\boxed{3}$", "2, 3"),
        ("\\boxed{2} no no no no no \\boxed{3}", "3"),
        ("\\boxed{2}\n\\boxed{3}", "3"),
        ("\\boxed{2} and again \\boxed{2}", "2"),
    ],
)
def test_boxes(text, answer):
    assert first(text) == answer
    assert extract(text).rule == "box"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 204.", "204"),
        ("Answer: **204**", "204"),
        ("**Answer:** 204", "204"),
        ("**Answer**: 204", "204"),
        ("**Answer: 204**", "204"),
        ("> Answer: `204`", "204"),
        ("ANSWER : $204$", "204"),
        ("Answer:\n\n204\nDone.", "204"),
        ("Answer: $$x = 5$$", "x = 5"),
        ("Answer:\n\\[\n5\n\\]", "5"),
        ("Final Answer: 204", "204"),
        ("### Final Answer\n\n204", "204"),
        ("**Final Answer**\n\n\\(204\\)", "204"),
        ("Therefore, the final answer is $204$. I hope it is correct.", "204"),
        ("So the final answer is: 204", "204"),
        ("Long work. Answer: 42", "42"),
        ("Answer: 1\nSorry. Answer: 2", "2"),
        ("<answer> 42 </answer>", "42"),
        ("<answer>so \\boxed{42}</answer>", "42"),
        ("答案：42", "42"),
    ],
)
def test_answer_lines(text, answer):
    assert first(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("6 + 12 = 18\n#### 18", "18"),
        ("#### $18.", "$18"),
        ("#### -1,000", "-1,000"),
        ("#### Step 2: look at 3 cases\nthe answer is 7", "7"),
        ("#### 1. Setup\nthe answer is 7", "7"),
        ("The answer is 18.", "18"),
        ("The answer to the question is \\frac{1}{2}", "\\frac{1}{2}"),
        ("the answer is x = 5", "x = 5"),
        ("hm, answer: 3", "3"),
        ("The answer is 5!", "5"),
    ],
)
def test_statements(text, answer):
    assert first(text) == answer


@pytest.mark.fault("which-answer-counts")
def test_the_last_commitment_wins_and_a_statement_never_beats_one():
    """The stated policy, on the response that verl's math_dapo grades by its last ``Answer:``."""
    text = "Answer: \\boxed{204}\nHmm wait, Answer: 17? no it is not."
    assert first(text) == "204"
    assert verify_math(text, "204", kind="integer").correct is True
    assert first("\\boxed{1}\nFinal Answer: 2") == "2"
    assert first("Final Answer: 2\nthat is \\boxed{1}") == "1"
    assert first("\\boxed{1}. The answer is 2.") == "1"
    assert first("\\boxed{1}\n#### 2") == "1"
    assert first("\\boxed{5}. This answer is consistent with 3 checks.") == "5"
    assert first("The final answer is right: \\boxed{5}, as the final answer is correct.") == "5"


def test_a_wrong_commitment_is_not_rescued_by_what_stands_elsewhere():
    for text in (
        "It is 5. \\boxed{6}",
        "\\boxed{5}, no: \\boxed{6}",
        "Answer: 5\nAnswer: 6",
        "5\nAnswer: \\boxed{?}",
    ):
        assert verify_math(text, "5").correct is False, text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>it is \\boxed{3}</think>\nIt is \\boxed{4}", "4"),
        ("it is \\boxed{3}</think>\\boxed{4}", "4"),
        ("<think>it is \\boxed{3}", None),
        ("<think>it is \\boxed{3}</think> well", "well"),
        ("\\boxed{4}<|im_end|>\n<|im_start|>user \\boxed{5}", "4"),
        ("<|im_start|>assistant\n\\boxed{4}<|im_end|>", "4"),
        ("\\boxed{4}</s>\\boxed{5}", "4"),
    ],
)
def test_reasoning_and_chat_markers(text, answer):
    assert first(text) == answer


def test_remainder_is_a_choice():
    for text in ("just 42", "so $x$ is $42$", "it is 42.", "we get 42 apples"):
        assert extract(text).candidates[-1] == "42", text
        assert extract(text).rule == "remainder"
        assert extract(text, fallback=False) is None
        assert verify_math(text, "42").correct is True
        assert verify_math(text, "42", fallback=False).correct is False
        assert verify_math(text, "42", fallback=False).reason == "no_answer"
    assert extract("so $6$ and $8$").candidates[-1] == "$6$ and $8$"
    assert extract("") is None and extract("   ") is None


@pytest.mark.parametrize("fallback", [True, False])
def test_a_response_that_is_nothing_but_an_expression_is_its_own_answer(fallback):
    halves = ("0.5", "1/2", "\\frac12", "$\\frac{1}{2}$", " \\(0.50\\)\n", "x = 1/2", "50%", "**0.5**")
    for text in halves:
        assert extract(text, fallback=fallback).rule == "bare", text
        for gold in ("1/2", "0.5", "\\frac{1}{2}"):
            assert verify_math(text, gold, fallback=fallback).correct is True, (text, gold)
        assert verify_math(text, "1/3", fallback=fallback).reason == "wrong"
    for text, gold in (("10 cm", "10"), ("x = 5 \\text{ or } x = 6", "6, 5"), ("(1,2)", "(1,2)"), ("C", "C")):
        assert verify_math(text, gold, fallback=fallback).correct is True, text
    # words are prose, whatever they are worth
    for text in ("half", "it is 0.5", "ellipse", "0.5 or so I think", "so 5"):
        found = extract(text, fallback=fallback)
        assert (found is None) is (not fallback), text
    # an expression beside a marked answer is nothing
    assert verify_math("0.5 \\boxed{0.4}", "0.5", fallback=fallback).correct is False


def test_a_number_inside_a_word_is_none():
    assert verify_math("AZYUK2A", "2").correct is False
    assert verify_math("this is GPT4", "4").correct is False


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("**5**", "5"),
        ("__5__", "5"),
        ("`5`", "5"),
        ("$5$.", "5"),
        ("$$5$$", "5"),
        ("\\(5\\)", "5"),
        ("\\[5\\],", "5"),
        ("5\\,", "5"),
        ("$1$, $2$", "$1$, $2$"),
        ("\\$5", "\\$5"),
        ("1, 2, ...", "1, 2, ..."),
        ("", ""),
    ],
)
def test_clean(text, bare):
    assert clean(text) == bare


HOSTILE = {
    "boxes": "\\boxed{" * 20_000,
    "braces": "{" * 100_000,
    "closed braces": "\\boxed{" + "{" * 50_000 + "}" * 50_000 + "}",
    "brackets": "\\[" * 50_000,
    "parentheses": "\\(" * 50_000,
    "dollars": "$" * 100_000,
    "digits": "1" * 100_000 + "abcd",
    "groups": "1,111" * 20_000,
    "spaced digits": "1 " * 50_000,
    "answers": "answer: " * 13_000,
    "answers that are": "the answer is " * 8_000,
    "final answers": "final answer\n" * 8_000,
    "tags": "<answer>" * 12_000,
    "hashes": "#### 1\n" * 14_000,
    "stars": "**" * 50_000,
    "minuses": "- " * 50_000,
    "slashes": "1/" * 50_000,
    "backslashes": "\\" * 100_000,
    "blank": " " * 100_000 + "5",
    "newlines": "\n" * 100_000 + "Answer:" + "\n" * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_responses_take_bounded_time(name):
    """Each is 100,000 characters; a quadratic scan would take minutes."""
    start = time.process_time()
    extract(HOSTILE[name])
    verdict = verify_math(HOSTILE[name], "5")
    assert time.process_time() - start < 3
    assert verdict.correct is (name == "blank")
