"""What stands under every accuracy of a report: who graded it, and what of a test was trained on."""

from __future__ import annotations

from collections.abc import Iterable

from rlvr.config import Scale
from rlvr.problems import get_task
from rlvr.problems.benchmarks import contamination_note

LOOKED_AT = 4096  # training problems of a scale that its held-out problems are compared with
#: Tests of the papers, and what they train on.
TESTS = ("aime24", "aime25", "aime26", "amc23", "math500", "minerva_math", "olympiadbench", "gsm8k_test")
TRAINING_SETS = ("dapo_math_17k", "math_train", "gsm8k_train")
_GRADERS = {
    "integer": "the last number of a finished response, compared as a whole number; no text is normalised, "
    "so that another grader would give the same verdicts",
    "expression": "the response is run, in a process of its own, on inputs that it cannot see",
}


def report_notes(scales: Iterable[Scale]) -> list[str]:
    """Sentences: the grader of each task and its overlap with training, counted; then those of benchmarks."""
    notes, seen = [], set()
    for scale in scales:
        given = scale.problems
        key = (given.task, given.seed, tuple(given.operations), given.held_out)
        if key in seen:
            continue
        seen.add(key)
        task = get_task(given.task)
        notes.append(f"Task `{given.task}`, grader: {_GRADERS[task.grader]}.")
        trained = {p.content for p in task.generate("train", LOOKED_AT, given.seed, given.operations)}
        held = task.generate("held_out", given.held_out, given.seed, given.operations)
        both = sum(problem.content in trained for problem in held)
        notes.append(
            f"Task `{given.task}`, {given.operations[0]} to {given.operations[1]} operations: {both} of "
            f"{len(held)} held-out problems are among {LOOKED_AT:,} training problems (numbers and "
            "operations compared, not the wording); splits are by a hash of the content, so that none can be."
        )
    found = {name: contamination_note(name, TRAINING_SETS) for name in TESTS}
    told, clean = [text for text in found.values() if text], [name for name in TESTS if not found[name]]
    notes = list(dict.fromkeys(notes))
    notes += [f"Public benchmarks, of scales that use them: {text}" for text in told]
    notes.append(f"Of {', '.join(clean)} nothing was found in {', '.join(TRAINING_SETS)}.")
    return notes
