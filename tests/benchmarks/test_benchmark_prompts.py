"""Prompts are what the docstring says; none loses the problem."""

import pytest

from rlvr.problems.benchmarks import STYLES, BenchmarkProblem, load_catalogue, prompt_for

MATH = BenchmarkProblem("a", "math500", "What is $1+1$?", "2")
FUNCTION = BenchmarkProblem("h", "humaneval", 'def one():\n    """1"""\n', kind="function", tests={})
MBPP = BenchmarkProblem(
    "m",
    "mbpp",
    "Add two numbers.",
    kind="function",
    tests={"test_list": ["assert add(1, 2) == 3", "assert b", "assert c"]},
)
STDIN = BenchmarkProblem("l", "livecodebench_v6", "Print the sum.", kind="stdin", tests={"starter_code": ""})
STARTER = BenchmarkProblem(
    "s",
    "livecodebench_v6",
    "Sum.",
    kind="function",
    tests={"starter_code": "class Solution:\n    def f(self):\n        "},
)


@pytest.mark.parametrize(
    ("problem", "style", "text"),
    [
        (MATH, "plain", "What is $1+1$?"),
        (
            MATH,
            None,
            "What is $1+1$?\nPlease reason step by step, and put your final answer within \\boxed{}.",
        ),
        (
            MATH,
            "dapo",
            "Solve the following math problem step by step. The last line of your response should be of the "
            "form Answer: $Answer (without quotes) where $Answer is the answer to the problem."
            "\n\nWhat is $1+1$?\n\n"
            'Remember to put your answer on its own line after "Answer:".',
        ),
        (
            MATH,
            "hashes",
            'What is $1+1$? Let\'s think step by step and output the final answer after "####".',
        ),
        (FUNCTION, None, 'def one():\n    """1"""\n'),
        (
            MBPP,
            None,
            "Add two numbers.\nWrite it in Python. Your code must satisfy this assertion:\n\n"
            "```python\nassert add(1, 2) == 3\n```\n\nAnswer with the code in one code block.",
        ),
    ],
)
def test_typed_in(problem, style, text):
    assert prompt_for(problem, style) == text


def test_three_assertions():
    assert "assert add(1, 2) == 3\nassert b\nassert c\n```" in prompt_for(MBPP, "mbpp_three")


def test_contest_programs_ask_for_what_is_run():
    program, solution = prompt_for(STDIN), prompt_for(STARTER)
    assert "stdin" in program and "# your code" in program and "Print the sum." in program
    assert "stdin" not in solution and "```python\nclass Solution:\n    def f(self):\n```" in solution


def test_every_style_keeps_the_problem():
    for name, (function, forms) in STYLES.items():
        for problem in (MATH, FUNCTION, MBPP, STDIN, STARTER):
            benchmark = load_catalogue()[problem.benchmark]
            if ("math" if benchmark.kind == "math" else benchmark.form) in forms:
                assert problem.prompt.strip() in function(problem), name


def test_other_styles_are_refused():
    with pytest.raises(
        ValueError, match="style='boxed': allowed for humaneval are plain, completion, function"
    ):
        prompt_for(FUNCTION, "boxed")
    with pytest.raises(ValueError, match="style='box': allowed for math500 are plain, boxed, dapo, hashes"):
        prompt_for(MATH, "box")
