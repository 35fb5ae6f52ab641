"""Many short Python expressions at once, each run on hidden arguments in the sandbox.

:mod:`rlvr.verifiers.programs` starts a judge and a box per program, 10 to 20 ms; a rollout has hundreds of
expressions of a few tokens. Here one box takes them all. A harness, the "program" of that box, forks a child
per block of expressions; the child evaluates one after the other, sets a clock for each, and sends what it
computed. One that ends the child (by the clock, or otherwise) is wrong, and a new child goes on after it.

The judge outside the box alone holds the values that are expected, so that no expression can find them out.
Expressions of one block share a process: one that changes that process on purpose can spoil those after it.
Should the box itself end early, its expressions are run again in halves, down to boxes of their own.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from rlvr.verifiers.programs import IsolationError, Limits, ProgramPool, ProgramTask
from rlvr.verifiers.programs.pool import shared_pool

SECONDS = 0.5  # of processor time, per expression over all its arguments
LONGEST = 2_000  # characters; a longer text is wrong unread
BLOCK = 32  # expressions per child: a fork costs as much as ten of them
BATCH = 512  # expressions per box
HARMLESS = ("abs", "max", "min")  # functions of whole numbers that reach nothing
_TOKEN = re.compile(r"[A-Za-z_]\w*|[0-9]+|[-+*%(), ]")
LIMITS = Limits(test_seconds=2 * BLOCK * SECONDS, total_seconds=2 * BATCH * SECONDS)

_HARNESS = """
import marshal, os, signal

SOURCES = {sources!r}
NAMES = {names!r}
ARGUMENTS = {arguments!r}
SECONDS = {seconds!r}
BLOCK = {block!r}
known = {{}}


def computed(source):
    code = compile(source.strip(), "expression", "eval")
    values = []
    for arguments in ARGUMENTS:
        value = eval(code, {{}}, dict(zip(NAMES, arguments)))
        if type(value) is not int or value.bit_length() > 64:
            return None
        values.append(value)
    return values


def child(numbers, write):
    for number in numbers:
        for clock, name in ((signal.ITIMER_PROF, signal.SIGPROF), (signal.ITIMER_REAL, signal.SIGALRM)):
            signal.signal(name, signal.SIG_DFL)  # ends the process, also within one long operation
            signal.setitimer(clock, SECONDS if clock == signal.ITIMER_PROF else 20 * SECONDS)
        try:
            answer = computed(SOURCES[number])
        except BaseException:
            answer = None
        data = marshal.dumps(answer)
        os.write(write, len(data).to_bytes(4, "big") + data)


def run(numbers):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            child(numbers, write)
        finally:
            os._exit(0)
    os.close(write)
    data = b""
    while part := os.read(read, 65536):
        data += part
    os.close(read)
    os.waitpid(pid, 0)
    answers = []
    while len(data) >= 4 + (size := int.from_bytes(data[:4], "big")) and len(answers) < len(numbers):
        try:
            answers.append(marshal.loads(data[4 : 4 + size]))
        except Exception:
            answers.append(None)
        data = data[4 + size :]
    return answers


def outcome(number, argument=None):
    values = results(number)
    if argument is None:
        return values
    return None if values is None else values[argument]


def results(number):
    if number not in known:
        left = list(range(number, min(number + BLOCK, len(SOURCES))))
        while left:
            answers = run(left)
            if len(answers) < len(left):
                answers.append(None)  # the one that ended the child
            known.update(zip(left, answers))
            left = left[len(answers) :]
    return known[number]
"""


def check_expressions(
    items: Sequence[tuple[str, Sequence[int]]],
    names: Sequence[str],
    arguments: Sequence[Sequence[int]],
) -> list[bool]:
    """Whether each expression has the expected values; exactly one verdict per item, in order.

    Args:
        items: (expression, expected value per argument tuple). Equal items are run once.
        names: of the arguments.
        arguments: tuples of whole numbers.

    An expression is right if on every argument tuple it evaluates to the whole number that is expected, alone
    and within the limits; a ``bool`` or a float is no whole number.

    Where programs cannot be isolated, expressions are run with limits alone if they are made of the
    arguments, :data:`HARMLESS` functions, numbers and ``+ - * % ( ) ,``, which reach nothing; others are not
    run.

    Raises:
        IsolationError: programs cannot be isolated on this machine, and one of the expressions has to be.
        RuntimeError: the sandbox failed; says nothing about the expressions.
    """
    found = _verdicts(items, tuple(names), tuple(map(tuple, arguments)), each=False)
    return [verdicts == (True,) for verdicts in found]


def check_each_argument(
    items: Sequence[tuple[str, Sequence[int]]],
    names: Sequence[str],
    arguments: Sequence[Sequence[int]],
) -> list[list[bool]]:
    """The same, a verdict per item and argument tuple: which of its tests an expression fails.

    An expression that has no whole number on one of the arguments is wrong on all.
    """
    found = _verdicts(items, tuple(names), tuple(map(tuple, arguments)), each=True)
    return [
        list(verdicts) if len(verdicts) == len(arguments) else [False] * len(arguments) for verdicts in found
    ]


def _verdicts(items: Sequence, names: tuple, arguments: tuple, each: bool) -> list[tuple[bool, ...]]:
    """Verdicts of every item; none for a text that is not run."""
    unique = list(dict.fromkeys((text, tuple(expected)) for text, expected in items))
    run = [item for item in unique if item[0].strip() and len(item[0]) <= LONGEST]
    found: dict[tuple[str, tuple[int, ...]], tuple[bool, ...]] = {}
    for start in range(0, len(run), BATCH):
        part = run[start : start + BATCH]
        found |= zip(part, _together(part, names, arguments, each), strict=True)
    return [found.get((text, tuple(expected)), ()) for text, expected in items]


@functools.cache
def isolation() -> str:
    """Why programs cannot be isolated on this machine; empty where they can."""
    try:
        ProgramPool(1, LIMITS, "none", ()).close()
    except IsolationError as error:
        return str(error)
    return ""


def _network(texts: tuple[str, ...], names: tuple[str, ...]) -> str:
    """The setting of the sandbox for these expressions."""
    reason = isolation()
    if not reason:
        return "none"
    for text in texts:
        if not is_harmless(text, names):
            raise IsolationError(f"expression {text!r:.80} is not run: {reason}")
    return "unsafe"


def is_harmless(text: str, names: Sequence[str]) -> bool:
    """Whether a text consists of ``names``, :data:`HARMLESS` functions, numbers and arithmetic alone."""
    tokens = _TOKEN.findall(text)
    words = {token for token in tokens if token[0].isalpha() or token[0] == "_"}
    return "".join(tokens) == text and words <= {*names, *HARMLESS}


def _together(items: list, names: tuple, arguments: tuple, each: bool) -> list[tuple[bool, ...]]:
    if each:
        tests = tuple(
            ((number, argument), value)
            for number, (_, expected) in enumerate(items)
            for argument, value in enumerate(expected)
        )
    else:
        tests = tuple(((number,), list(expected)) for number, (_, expected) in enumerate(items))
    task = ProgramTask("expressions", "functional", tests, "outcome", tolerance=0.0)
    harness = _HARNESS.format(
        sources=[text for text, _ in items],
        names=names,
        arguments=arguments,
        seconds=SECONDS,
        block=BLOCK,
    )
    pool = shared_pool(LIMITS, _network(tuple(text for text, _ in items), names), ())
    result = pool.verify(harness, task, form="code", stop_early=False)
    width = len(arguments) if each else 1
    if len(result.outcomes) == len(tests):
        rows = iter(result.outcomes)
        return [tuple(next(rows) for _ in range(width)) for _ in items]
    if result.correct is None:
        raise RuntimeError(f"expressions could not be checked ({result.reason}): {result.first_failure}")
    if len(items) == 1:
        return [(False,) * width]  # it took the box down with it
    half = len(items) // 2
    return _together(items[:half], names, arguments, each) + _together(items[half:], names, arguments, each)
