"""Which part of a response is the program."""

import pytest
from program_tasks import RUNNING, RUNNING_PROMPT, SUMS

from rlvr.verifiers.programs import extract_program

F = "def f(x):\n    return x\n"
G = "def g(x):\n    return x\n"
PROMPT = 'import math\n\n\ndef f(x):\n    """Doc."""\n'
BODY = "    return math.floor(x)\n"


def fenced(code, language="python"):
    return f"```{language}\n{code}```\n"


@pytest.mark.parametrize("language", ["python", "python3", "py", "Python", ""])
def test_one_block(language):
    assert extract_program(f"Sure:\n{fenced(F, language)}It returns x.", "f") == F
    assert extract_program(fenced(F, language)) == F


def test_the_last_block_that_defines_the_entry_point():
    first, second = F.replace("x\n", "1\n"), F.replace("x\n", "2\n")
    assert (
        extract_program(fenced(first) + "Better:\n" + fenced(second) + fenced("print(f(1))\n"), "f") == second
    )
    assert extract_program(fenced(first) + fenced(second)) == second
    assert extract_program(fenced(F) + fenced("print(f(1))\n"), None) == "print(f(1))\n"
    assert extract_program(fenced(F) + fenced(G), "f") == F
    assert extract_program(fenced(F) + fenced(G), "h") == G  # none defines it: the last
    for code in (
        "f = lambda x: x\n",
        "async def f(x):\n    pass\n",
        "class f:\n    pass\n",
        "f: object = abs\n",
    ):
        assert extract_program(fenced(code) + fenced(G), "f") == code
    for code in (
        "f == 1\n",
        "def ff(x):\n    pass\n",
        "class A:\n    def f(self):\n        pass\n",
        "# def f\n",
    ):
        assert extract_program(fenced(code) + fenced(G), "f") == G


def test_blocks_of_other_languages_and_outputs_do_not_count():
    shown = fenced(F) + "Output:\n" + fenced("5\n", "")
    assert extract_program(shown) == extract_program(shown, "f") == F
    assert extract_program(fenced(F, "") + fenced("int f(int x);\n", "cpp")) == F
    assert extract_program(fenced("int main() {}\n", "cpp")) is None
    assert extract_program(fenced("$ ls\n", "bash"), "f") is None
    assert extract_program(fenced("", "python")) is None


def test_methods():
    code = "class Solution:\n    def run(self, n):\n        return n\n"
    assert extract_program(fenced(code) + fenced("Solution().run(1)\n"), "Solution.run") == code


def test_fences_of_other_kinds():
    assert extract_program(f"~~~python\n{F}~~~\n", "f") == F
    assert extract_program(f"````python\n{F}x = '''\n```\n'''\n````\n", "f") == f"{F}x = '''\n```\n'''\n"
    assert extract_program(f"1. so:\n   ```python\n{F}   ```\n", "f") == F
    assert extract_program(f"```python title=a.py\n{F}```", "f") == F
    assert extract_program(f"```python\r\n{F}```\r\n", "f") == F
    assert extract_program("Use `f(x)` or ```f(x)``` inline\n" + fenced(F), "f") == F


def indented(text, indent):
    return "".join(indent + line if line.strip() else line for line in text.splitlines(keepends=True))


LONGER = 'def f(x):\n    """Doc.\n\n    More."""\n    if x:\n        return x\n\n    return -x\n'


@pytest.mark.parametrize("indent", [" ", "  ", "   ", "    ", "      ", "\t", "\t\t", " \t", "   \t"])
@pytest.mark.parametrize("code", [F, LONGER, LONGER.replace("    ", "\t")])
def test_a_block_loses_the_indentation_of_its_fence(indent, code):
    assert extract_program(f"1. So:\n{indented(fenced(code), indent)}Done.", "f") == code
    assert extract_program(f"1. So:\n{indented(fenced(code), indent)}Done.") == code
    unfinished = indented(fenced(code), indent).rpartition(f"{indent}```")[0]
    assert extract_program(f"So:\n{unfinished}", "f") == code
    windows = indented(fenced(code), indent).replace("\n", "\r\n")
    assert extract_program(windows, "f") == code.replace("\n", "\r\n")
    both = indented(fenced(code), indent) + indented(fenced("print(f(1))\n"), indent)
    assert extract_program(both, "f") == code
    # a completion keeps what is its own
    assert extract_program(indented(fenced(BODY), indent), "f", PROMPT) == PROMPT + BODY


def test_indentation_in_other_writing_than_the_fences():
    # a fence of spaces around lines of tabs, and the reverse
    assert (
        extract_program("   ```python\n\tdef f(x):\n\t\treturn x\n   ```", "f") == "def f(x):\n\treturn x\n"
    )
    assert extract_program("\t```python\n    def f(x):\n        return x\n\t```", "f") == F
    assert extract_program("  ```python\n  def f(x):\n\treturn x\n  ```", "f") == "def f(x):\n  return x\n"
    # lines that have less of it than the fence, as text in quotes does
    assert extract_program("   ```python\n   x = '''\n a\nb\n   '''\n   ```") == "x = '''\na\nb\n'''\n"
    # what is indented inside a fence that is not, stays
    assert extract_program("```python\n    x = 1\n```") == "    x = 1\n"
    assert extract_program("- ```python\n  x = 1\n    ```\n") == "x = 1\n"


@pytest.mark.parametrize("marker", ["- ", "* ", "+ ", "1. ", "12) ", "  - ", "-   ", "-\t"])
def test_a_fence_behind_a_list_marker(marker):
    space = " " * len(marker.expandtabs(4))
    text = f"{marker}```python\n{indented(F, space)}{space}```\n{marker}It returns x.\n"
    assert extract_program(text, "f") == F
    assert extract_program(f"{marker}```python\n{F}```\n", "f") == F
    # in a block it is text: a list in a docstring
    inside = f"x = '''\n{marker}```\n'''\n"
    assert extract_program(fenced(inside)) == inside


def test_a_last_block_without_end_reaches_to_the_end():
    assert extract_program(f"Here:\n```python\n{F}", "f") == F
    assert extract_program(f"{fenced(G)}```python\n{F}", "f") == F


def test_reasoning_does_not_count():
    assert extract_program(f"<think>\n{fenced(F)}</think>\n{fenced(G)}", "f") == G
    assert extract_program(f"{fenced(F)}</think>\nNo program.", "f") == "\nNo program."
    assert extract_program(f"<think>\n{fenced(F)}", "f") is None
    assert extract_program(f"{fenced(F)}<think>\n{fenced(G)}", "f") == F


def test_without_a_fence_the_text_counts():
    assert extract_program(F, "f") == F
    assert extract_program("print(1)") == "print(1)"
    assert extract_program(f"[BEGIN]\n{F}[DONE]\nmore", "f") == f"\n{F}"
    assert extract_program(f"{F}[DONE]\n{G}", "f") == F
    assert extract_program("  \n") is None and extract_program("") is None


def test_completions_continue_the_prompt():
    assert extract_program(BODY, "f", PROMPT) == PROMPT + BODY
    assert extract_program(f"\n\n{BODY}\n\ndef f(x):\n    pass\n", "f", PROMPT).startswith(
        PROMPT + "\n\n    return"
    )
    assert (
        extract_program(f"{BODY}\nprint(f(2))", "f", PROMPT) == f"{PROMPT}{BODY}\nprint(f(2))"
    )  # nothing is cut
    assert extract_program(fenced(BODY), "f", PROMPT) == PROMPT + BODY
    assert extract_program(F, "f", PROMPT) == F
    assert extract_program(PROMPT + BODY, "f", PROMPT) == PROMPT + BODY
    assert extract_program(fenced(F) + "x", "f", PROMPT) == F
    assert extract_program(fenced(G), "f", PROMPT) == G


def test_long_and_hostile_texts_take_no_time():
    """No parsing and no backtracking: such texts crash or stall what parses them in the trainer."""
    for text in (
        "`" * 200_000,
        "```python\n" * 50_000,
        "(" * 300_000,
        "-" * 300_000 + "1",
        " \n" * 200_000,
        "f " * 200_000,
        "~" * 100_000 + "`",
        " " * 100_000 + "~~~" + "x" * 100_000 + "`",
        "\t```python\n" + "\t" * 100_000 + "x\n" + " " * 100_000,
        " " * 100_000 + "```python\n" + (" " * 1000 + "x\n") * 200,
        "1. " * 100_000,
    ):
        extract_program(text, "f", PROMPT)
    assert extract_program("```python\n" + "-" * 300_000 + "1\n```") == "-" * 300_000 + "1\n"


def test_end_to_end(pool):
    solution = "    out = []\n    for v in values:\n        out.append(max([v, *out]))\n    return out\n"
    for response in (
        solution,
        RUNNING_PROMPT + solution,
        f"The idea is simple.\n```python\n{RUNNING_PROMPT}{solution}```\nComplexity: quadratic.",
        f"<think>maybe\n```python\nx\n```</think>```python\n{RUNNING_PROMPT}{solution}```",
    ):
        assert pool.verify(response, RUNNING).correct is True, response
    nested = "".join("   " + line for line in f"```python\n{RUNNING_PROMPT}{solution}```\n".splitlines(True))
    assert pool.verify(f"1. The idea is simple:\n{nested}", RUNNING).correct is True
    assert pool.verify(nested.replace("   ", "\t"), RUNNING).correct is True
    lines = "for _ in range(int(input())):\n    print(sum(map(int, input().split())))\n"
    assert pool.verify(f"- So:\n{indented(fenced(lines), '  ')}", SUMS).correct is True
    assert pool.verify("I cannot do that.", SUMS).reason == "syntax"
    assert pool.verify("```cpp\nint main() {}\n```", SUMS).reason == "no_code"
    assert pool.verify("   ", RUNNING).reason == "no_code"
    cut = pool.verify(solution, RUNNING, finished=False)
    assert (cut.correct, cut.reason) == (False, "truncated") and cut.code == RUNNING_PROMPT + solution
    assert pool.verify(None, RUNNING).reason == "no_response"
    with pytest.raises(ValueError, match="form='text': allowed are"):
        pool.verify("x", RUNNING, form="text")
    with pytest.raises(ValueError, match="problem='x': allowed are"):
        pool.verify("x", "x")
