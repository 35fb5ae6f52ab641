"""What a step of a verl job computes, by purpose and activity, as the local engine counts it.

Unlike there, every row of an update computes its prompt again: verl's engines share no prefix in training.
A prompt's prefill is counted once for its group, whether or not the rollout engine has it in its cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlvr.engines.local.accounting import Compute

METRIC = "rlvr/compute/"


def count_rows(
    compute: Compute,
    purpose: str,
    groups: Sequence[str],
    prompts: Sequence[int],
    responses: Sequence[int],
    *,
    trained: int,
    scored: int,
) -> None:
    """Add responses and what they were generated, verified and trained for.

    Args:
        purpose: ``base`` or ``correction``.
        groups: the prompt of each row, by any name.
        prompts, responses: tokens of each row.
        trained: passes of the update over each row; ``scored``: passes without a gradient, for recomputed
            log-probs and those of a reference policy.
    """
    first = {group: number for number, group in reversed(list(enumerate(groups)))}
    compute.add(purpose, "prefill", [prompts[number] for number in sorted(first.values())])
    compute.add(purpose, "decode", list(responses), list(prompts))
    compute.add(purpose, "verify", list(responses))
    rows = [a + b for a, b in zip(prompts, responses, strict=True)]
    for _ in range(scored):
        compute.add(purpose, "score", rows)
    for _ in range(trained):
        compute.add(purpose, "train", rows)


def as_metrics(compute: Compute) -> dict[str, float]:
    """The counts under the names that :meth:`Compute.row` gives them."""
    row = compute.row(0)
    row.pop("step")
    return {f"{METRIC}{name}": float(value) for name, value in row.items()}
