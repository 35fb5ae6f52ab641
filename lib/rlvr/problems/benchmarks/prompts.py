"""What a model is shown: the text of the user's turn. Chat templates are the engine's business."""

from __future__ import annotations

from collections.abc import Callable

from rlvr.problems.benchmarks.catalogue import get_benchmark
from rlvr.problems.benchmarks.problem import BenchmarkProblem

BOXED = r"Please reason step by step, and put your final answer within \boxed{}."
DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem."
)
DAPO_AFTER = 'Remember to put your answer on its own line after "Answer:".'
HASHES = 'Let\'s think step by step and output the final answer after "####".'


def _plain(problem: BenchmarkProblem) -> str:
    return problem.prompt


def _boxed(problem: BenchmarkProblem) -> str:
    return f"{problem.prompt}\n{BOXED}"


def _dapo(problem: BenchmarkProblem) -> str:
    return f"{DAPO_BEFORE}\n\n{problem.prompt}\n\n{DAPO_AFTER}"


def _hashes(problem: BenchmarkProblem) -> str:
    return f"{problem.prompt} {HASHES}"


def _completion(problem: BenchmarkProblem) -> str:
    return problem.prompt


def _function(problem: BenchmarkProblem) -> str:
    return (
        "Complete this Python function. Answer with the whole function and its imports in one code block.\n\n"
        f"```python\n{problem.prompt.strip()}\n```"
    )


def _mbpp(problem: BenchmarkProblem, asserts: int = 1) -> str:
    shown = "\n".join(problem.tests["test_list"][:asserts])
    one = "this assertion" if asserts == 1 else "these assertions"
    return (
        f"{problem.prompt.strip()}\nWrite it in Python. Your code must satisfy {one}:\n\n"
        f"```python\n{shown}\n```\n\nAnswer with the code in one code block."
    )


def _mbpp_three(problem: BenchmarkProblem) -> str:
    return _mbpp(problem, asserts=3)


def _livecodebench(problem: BenchmarkProblem) -> str:
    starter = (problem.tests.get("starter_code") or "").rstrip()
    if starter:
        task = "Fill in this starter code, keep its names, and answer with all of it in one code block."
        frame = starter
    else:
        task = (
            "Write a program that reads the input from stdin and prints the answer to stdout; do not only "
            "solve the examples. Answer with the whole program in one code block."
        )
        frame = "# your code"
    return (
        "You will be given a programming problem. Write a correct Python program that passes all of its "
        f"tests.\n\n### Problem\n{problem.prompt.strip()}\n\n"
        f"### Format\n{task}\n```python\n{frame}\n```\n\n### Answer\n"
    )


_MATH = ("math",)
_PROGRAMS = ("humaneval", "mbpp", "mbpp_plus", "livecodebench")
STYLES: dict[str, tuple[Callable[[BenchmarkProblem], str], tuple[str, ...]]] = {
    "plain": (_plain, _MATH + _PROGRAMS),
    "boxed": (_boxed, _MATH),
    "dapo": (_dapo, _MATH),
    "hashes": (_hashes, _MATH),
    "completion": (_completion, ("humaneval",)),
    "function": (_function, ("humaneval",)),
    "mbpp": (_mbpp, ("mbpp", "mbpp_plus")),
    "mbpp_three": (_mbpp_three, ("mbpp", "mbpp_plus")),
    "livecodebench": (_livecodebench, ("livecodebench",)),
}  # style: function, the forms it is for


def prompt_for(problem: BenchmarkProblem, style: str | None = None) -> str:
    """The text of the user's turn.

    Args:
        problem: a problem of a benchmark.
        style: None is the benchmark's own in ``data/benchmarks.yaml``. Mathematics: ``boxed`` appends "Please
            reason step by step, and put your final answer within \\boxed{}." [public: Qwen2.5-Math], ``dapo``
            is the wording around the problems of DAPO-Math-17k with its "Answer:" line [public: its data],
            ``hashes`` asks for the answer after "####" [public: verl, GSM8K], ``plain`` is the problem.
            Programs: ``completion`` is HumanEval's prompt for a base model to continue, ``function`` asks
            for the whole function, ``mbpp`` shows one assertion and ``mbpp_three`` three, ``livecodebench``
            has the parts of the official prompt (problem, format, answer). All but ``completion`` are in
            words of our own [choice].

    Raises:
        ValueError: no such style, or not for this benchmark.
    """
    benchmark = get_benchmark(problem.benchmark)
    style = benchmark.prompt if style is None else style
    form = "math" if benchmark.kind == "math" else benchmark.form
    allowed = [name for name, (_, forms) in STYLES.items() if form in forms]
    if style not in allowed:
        raise ValueError(f"style={style!r}: allowed for {problem.benchmark} are {', '.join(allowed)}")
    return STYLES[style][0](problem)
