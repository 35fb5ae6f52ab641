"""Task ``program``: a short specification in words, answered by a Python expression that is run.

    take x, add 3, double and then at most y. which python?      min((x+3)*2,y)

A specification is a list of operations on the argument ``x``, in order; operands are digits or the argument
``y``. The expression has to be written from the last operation inwards, with brackets where Python needs
them, and several expressions are right: a verdict comes from running it on hidden arguments, in a sandbox
(:mod:`rlvr.verifiers.expressions`), and from nothing else.

Splits. A problem's *content* is its operations (``add 3|times 2|most y``); its *behaviour* the values on the
probe arguments. The split is a hash of the behaviour: no problem of a held-out split asks for a function that
a training problem asks for, however it is worded or written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rlvr.problems.base import Draws, Operations, Problem, Seed, Task, check_split, digest, split_of

LARGEST = 10_000  # magnitude of a value on any probe
DIGITS = tuple("123456789")


class Kind(NamedTuple):
    """One kind of operation: ``{e}`` is the expression so far, ``{k}`` the operand."""

    phrases: tuple[str, ...]
    forms: tuple[str, ...]  # equal expressions; the first is the usual one
    operands: tuple[str, ...]
    strength: int  # of the outermost operator: 1 sum, 2 product, 3 a call, which needs no brackets
    inner: int  # the least strength that ``{e}`` must have to stand without brackets


KINDS = {
    "add": Kind(("add {k}", "plus {k}"), ("{e}+{k}", "{k}+{e}"), (*DIGITS, "y"), 1, 1),
    "subtract": Kind(("subtract {k}", "minus {k}"), ("{e}-{k}",), (*DIGITS, "y"), 1, 1),
    "times": Kind(("times {k}", "multiply by {k}"), ("{e}*{k}", "{k}*{e}"), (*DIGITS[1:], "y"), 2, 2),
    "modulo": Kind(("modulo {k}", "remainder by {k}"), ("{e}%{k}",), DIGITS[1:], 2, 2),
    "least": Kind(("at least {k}",), ("max({e},{k})", "max({k},{e})"), (*DIGITS, "y"), 3, 0),
    "most": Kind(("at most {k}",), ("min({e},{k})", "min({k},{e})"), (*DIGITS, "y"), 3, 0),
    "size": Kind(("without sign", "in size"), ("abs({e})",), ("",), 3, 0),
}
SHORT = {("times", "2"): "double", ("times", "3"): "triple"}
LINKS = (", ", " then ", " and ")
STARTS = ("take x", "from x", "of x")
QUESTIONS = ("which python?", "what python?")
OTHER_FORM = 4  # one operation in so many is written in its other form
WORDS = tuple(
    "x y max min abs take from of add plus subtract minus times multiply by modulo remainder at least most "
    "without sign in size double triple then and which what python ( ) %".split()
)
#: Arguments (x, y) that decide the split; also the verifier's hidden ones.
PROBES = (
    (0, 0), (1, 2), (2, 1), (5, 3), (-4, 2), (7, -3), (-9, -5), (12, 8), (3, 15), (-16, 11), (23, -7), (6, 6),
    (-1, -13), (31, 4),
)  # fmt: skip
PUBLIC = PROBES[:3]  # those that a selection among samples may look at; the rest is hidden


class Step(NamedTuple):
    kind: str
    operand: str

    def __str__(self) -> str:
        return f"{self.kind} {self.operand}".strip()


def parse(content: str) -> list[Step]:
    """``add 3|times y`` -> its steps.

    Raises:
        ValueError: not the content of a problem.
    """
    steps = []
    for part in content.split("|"):
        kind, _, operand = part.partition(" ")
        if kind not in KINDS or operand not in KINDS[kind].operands:
            raise ValueError(f"operation {part!r} of {content!r} is none of the task 'program'")
        steps.append(Step(kind, operand))
    return steps


def values(content: str, arguments: Sequence[tuple[int, int]]) -> list[int]:
    """What the specification asks for on each (x, y); computed step by step, without any expression."""
    steps, out = parse(content), []
    for x, y in arguments:
        for kind, operand in steps:
            k = y if operand == "y" else int(operand or 0)
            if kind == "add":
                x = x + k
            elif kind == "subtract":
                x = x - k
            elif kind == "times":
                x = x * k
            elif kind == "modulo":
                x = x % k
            elif kind == "least":
                x = x if x > k else k
            elif kind == "most":
                x = x if x < k else k
            else:
                x = x if x >= 0 else -x
        out.append(x)
    return out


def expression(content: str, forms: Draws) -> str:
    """A right expression; ``forms`` chooses between equal ones, the same for an operation at its place."""
    text, strength = "x", 3
    for kind, operand in parse(content):
        options = KINDS[kind].forms
        pick = 1 if forms.below(OTHER_FORM) == 0 and len(options) > 1 else 0
        if strength < KINDS[kind].inner or (pick and strength <= KINDS[kind].inner < 3 and "*" in options[0]):
            text = f"({text})"  # 3*(x%4) is not 3*x%4
        text, strength = options[pick].format(e=text, k=operand), KINDS[kind].strength
    return text


def stream(split: str, seed: Seed, operations: Operations = (2, 4)) -> Iterator[Problem]:
    """Problems of one split without end; the number of operations is uniform over ``operations``.

    Raises:
        ValueError: unknown split, bad seed, bad range (at the call, not at the first problem).
    """
    return _stream(check_split(split), Draws(split, seed), _check_operations(operations))


def _check_operations(operations: Operations) -> Operations:
    low, high = operations
    if not (isinstance(low, int) and isinstance(high, int) and 1 <= low <= high <= 8):
        raise ValueError(f"operations={operations!r} must be (fewest, most) with 1 <= fewest <= most <= 8")
    return low, high


def _stream(split: str, draws: Draws, operations: Operations) -> Iterator[Problem]:
    low, high = operations
    while True:
        steps = [_step(draws) for _ in range(low + draws.below(high - low + 1))]
        prompt = _tell(steps, draws)
        content = "|".join(map(str, steps))
        behaviour = values(content, PROBES)
        if not _sensible(behaviour) or split_of(fingerprint(behaviour)) != split:
            continue
        yield Problem(
            id=digest("program", prompt),
            prompt=prompt,
            answer=content,
            solution=expression(content, _forms(prompt)),
            kind="program",
            difficulty=len(steps),
            split=split,
            content=content,
        )


def fingerprint(behaviour: list[int]) -> str:
    return "program " + " ".join(map(str, behaviour))


def _sensible(behaviour: list[int]) -> bool:
    """Neither constant nor huge."""
    return len(set(behaviour)) > 2 and max(map(abs, behaviour)) <= LARGEST


def _step(draws: Draws) -> Step:
    kind = draws.pick(tuple(KINDS))
    return Step(kind, draws.pick(KINDS[kind].operands))


def _tell(steps: list[Step], draws: Draws) -> str:
    text = draws.pick(STARTS)
    for step in steps:
        phrase = draws.pick(KINDS[step.kind].phrases).format(k=step.operand)
        if step in SHORT and draws.below(2):
            phrase = SHORT[step]
        text += draws.pick(LINKS) + phrase
    return f"{text}. {draws.pick(QUESTIONS)}"


def _forms(prompt: str, hand: int | None = None) -> Draws:
    """The choices of forms of a problem: a function of its wording, so that a wrong solution shares them."""
    parts = (prompt,) if hand is None else (prompt, str(hand))
    return Draws("train", int(digest("forms", *parts), 16))


def solve(problem: Problem, hand: int) -> str:
    """A right expression as another hand would write it: ``3+x`` for ``x+3``, and the like."""
    return expression(problem.content, _forms(problem.prompt, hand))


def corrupt(problem: Problem, draws: Draws, hand: int | None = None) -> str:
    """The expression of the same operations but one: another operand, another kind, one too few or too many.

    It computes something else on some probe, and is written by the hand of the problem's solution, or of
    ``solve(problem, hand)``.
    """
    steps = parse(problem.content)
    right = values(problem.content, PROBES)
    while True:
        at = draws.below(len(steps))
        fault = draws.pick(("operand", "operand", "kind", "kind", "missing", "twice"))
        changed = list(steps)
        if fault == "operand":
            changed[at] = Step(steps[at].kind, draws.pick(KINDS[steps[at].kind].operands))
        elif fault == "kind":
            kind = draws.pick(tuple(KINDS))
            operands = KINDS[kind].operands
            same = steps[at].operand if steps[at].operand in operands else draws.pick(operands)
            changed[at] = Step(kind, same)
        elif fault == "missing" and len(steps) > 1:
            del changed[at]
        elif fault == "twice":
            changed.insert(at, steps[at])
        content = "|".join(map(str, changed))
        if values(content, PROBES) != right and len(changed) <= len(steps) + 1:
            return expression(content, _forms(problem.prompt, hand))


_PHRASES = {
    **{re.escape(short): str(Step(*step)) for step, short in SHORT.items()},
    **{
        re.escape(phrase).replace(r"\{k\}", r"([0-9y])"): kind
        for kind, of in KINDS.items()
        for phrase in of.phrases
    },
}


def content_of(prompt: str) -> str:
    """Read the content back out of a prompt, independently of how the prompt was made.

    Raises:
        ValueError: the prompt is not one of this task.
    """
    match = re.fullmatch(rf"(?:{'|'.join(STARTS)})(.*)\. (?:which|what) python\?", prompt)
    steps, rest = [], match[1] if match else ""
    while rest:
        for phrase, step in _PHRASES.items():
            if found := re.match(rf"(?:, | then | and ){phrase}(?![a-z0-9])", rest):
                steps.append(f"{step} {found[1]}" if found.groups() else step)
                rest = rest[found.end() :]
                break
        else:
            steps = []
            break
    if not steps:
        raise ValueError(f"prompt={prompt!r} is not a problem of the task 'program'")
    return "|".join(steps)


def max_response_tokens(operations: Operations = (2, 4)) -> int:
    """Of a solution, end token included: an operation adds at most ``max ( , k )``, or ``( ) % k``."""
    return 2 + 5 * _check_operations(operations)[1]


def rewards(
    predictions: Sequence[str], golds: Sequence[str], finished: Sequence[bool] | None = None
) -> list[float]:
    """1.0 for an expression with the right value on every probe, else 0.0; one per response, in order.

    Args:
        golds: contents.
        finished: a response that did not end by itself is wrong, and is not run.

    Raises:
        ValueError: lengths differ, or a gold that is no content.
        IsolationError: programs cannot be isolated on this machine, and an expression is not harmless.
    """
    return _rewards(predictions, golds, finished, PROBES)


def public_rewards(
    predictions: Sequence[str], golds: Sequence[str], finished: Sequence[bool] | None = None
) -> list[float]:
    """The same on the public arguments alone: what Best-of-N may select by. A wrong program can pass."""
    return _rewards(predictions, golds, finished, PUBLIC)


def outcomes(predictions: Sequence[str], golds: Sequence[str]) -> list[dict[str, bool]]:
    """Verdict on every probe, by its number: which tests a response fails.

    Raises: as :func:`rewards`.
    """
    from rlvr.verifiers.expressions import check_each_argument

    if len(predictions) != len(golds):
        raise ValueError(
            f"predictions and golds must have one entry each, got {len(predictions)} and {len(golds)}"
        )
    expected = {gold: values(gold, PROBES) for gold in dict.fromkeys(golds)}
    items = [(text, expected[gold]) for text, gold in zip(predictions, golds, strict=True)]
    found = check_each_argument(items, ("x", "y"), PROBES)
    return [{str(number): right for number, right in enumerate(verdicts)} for verdicts in found]


def _rewards(
    predictions: Sequence[str],
    golds: Sequence[str],
    finished: Sequence[bool] | None,
    arguments: Sequence[tuple[int, int]],
) -> list[float]:
    from rlvr.verifiers.expressions import check_expressions  # the sandbox: no other task needs it

    finished = [True] * len(predictions) if finished is None else finished
    if not len(predictions) == len(golds) == len(finished):
        raise ValueError(
            f"predictions, golds and finished must have one entry per response, "
            f"got {len(predictions)}, {len(golds)} and {len(finished)}"
        )
    expected = {gold: values(gold, arguments) for gold in dict.fromkeys(golds)}
    rows = [i for i, done in enumerate(finished) if done]
    items = [(predictions[i], expected[golds[i]]) for i in rows]
    right = dict(zip(rows, check_expressions(items, ("x", "y"), arguments), strict=True))
    return [float(right.get(i, False)) for i in range(len(predictions))]


TASK = Task(
    name="program",
    words=WORDS,
    stream=stream,
    content_of=content_of,
    max_response_tokens=max_response_tokens,
    rewards=rewards,
    corrupt=corrupt,
    solve=solve,
    grader="expression",
    public_rewards=public_rewards,
    outcomes=outcomes,
)
