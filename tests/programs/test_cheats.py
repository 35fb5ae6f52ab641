"""Wrong programs that try to pass are wrong, whatever they do; what they do around a right one is let be."""

import pytest
from program_cheats import CHEATS
from program_tasks import RIGHT, TASKS, WRONG

from rlvr.verifiers.programs.results import WRONG as WRONG_REASONS


def _table(results, correct):
    return {
        cheat.name: (result.reason, result.first_failure)
        for cheat, result in zip(CHEATS, results, strict=True)
        if result.correct is not correct
    }


def test_there_are_enough_of_them():
    names = [cheat.name for cheat in CHEATS]
    assert len(set(names)) == len(names) >= 90
    assert {cheat.task for cheat in CHEATS} == set(TASKS)
    assert all(cheat.program != cheat.twin for cheat in CHEATS)


@pytest.mark.fault("program-reaches-its-judge")
def test_no_cheat_passes_and_none_is_left_undecided(isolated):
    results = isolated.verify_many([(cheat.program, TASKS[cheat.task]) for cheat in CHEATS], form="code")
    assert _table(results, False) == {}
    assert {result.reason for result in results} <= set(WRONG_REASONS)
    assert all(r.passed < r.total or r.total == 0 or not r.correct for r in results)


def test_every_honest_twin_passes(isolated):
    results = isolated.verify_many([(cheat.twin, TASKS[cheat.task]) for cheat in CHEATS], form="code")
    assert _table(results, True) == {}
    assert all(result.passed == result.total > 0 for result in results)


def test_cheats_leave_the_worker_as_it_was(isolated):
    """One worker after the other's programs: a right solution still passes, a wrong one still does not."""
    items = []
    for cheat in CHEATS[::4]:
        items += [
            (cheat.program, TASKS[cheat.task]),
            (RIGHT["mean"], TASKS["mean"]),
            (WRONG["mean"], TASKS["mean"]),
        ]
    results = isolated.verify_many(items, form="code")
    assert [r.correct for r in results] == [False, True, False] * len(CHEATS[::4])


@pytest.mark.parametrize("name", TASKS)
def test_right_and_wrong_solutions(pool, name):
    task = TASKS[name]
    right = pool.verify(RIGHT[name], task, form="code")
    wrong = pool.verify(WRONG[name], task, form="code")
    assert (right.correct, right.reason) == (True, "correct") and right.passed == right.total > 0
    assert (wrong.correct, wrong.reason) == (False, "wrong") and wrong.first_failure
    assert right.verdict().correct is True and right.verdict().extracted == RIGHT[name]


def test_the_same_verdict_every_time(pool):
    """Random tests are seeded by the task, programs by a constant."""
    guess = "import random\ndef decode(text):\n    return ''.join(random.choice('abc') for _ in text)\n"
    results = [pool.verify(guess, TASKS["shift"], form="code") for _ in range(4)]
    assert len({(r.correct, r.passed, r.first_failure) for r in results}) == 1
