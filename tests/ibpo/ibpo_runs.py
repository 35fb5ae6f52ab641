"""Made-up results of IBPO's graph, for the tests of its analyses."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rlvr.evaluation.at_test_time import REVISED, SELECTED

PROBLEMS = {f"p{i}": 2 + i % 3 for i in range(9)}  # id -> operations
ARMS = ("gspo", "gspo8", "ibpo", "ibpo_ratio", "ibpo_mask", "score")


def verdicts(key: str, chance: float, samples: int = 8) -> np.ndarray:
    """[problems, samples] of 0 and 1; a function of its arguments."""
    rng = np.random.default_rng([ord(c) for c in key])
    return (rng.random((len(PROBLEMS), samples)) < chance).astype(int)


def rows(values: np.ndarray, **labels) -> pd.DataFrame:
    frame = pd.DataFrame(
        [
            {"problem": p, "sample": j, "correct": bool(v), "difficulty": d}
            for (p, d), of_problem in zip(PROBLEMS.items(), values, strict=True)
            for j, v in enumerate(of_problem)
        ]
    )
    return frame.assign(**labels).astype({"correct": "boolean"})


def sample_frame(arms=ARMS, seeds=(0, 1, 2), lift=None) -> pd.DataFrame:
    """Graded samples of the base model and of arms; ``lift``: arm -> its chance of a right one."""
    chances = {"gspo": 0.6, "ibpo": 0.5} | (lift or {})
    base = np.linspace(0, 8, len(PROBLEMS)).round().astype(int)
    of_base = (np.arange(8) < base[:, None]).astype(int)  # 0, 1, ..., 8 of 8 are right
    frames = [rows(of_base, arm="base", seed=0, lag=0)]
    for arm in arms:
        for seed in seeds:
            frames.append(rows(verdicts(f"{arm}{seed}", chances.get(arm, 0.4)), arm=arm, seed=seed, lag=0))
    return pd.concat(frames, ignore_index=True)


def revised_frame(seeds=(0, 1, 2)) -> pd.DataFrame:
    return pd.concat(
        [rows(verdicts(f"r{m}{s}", 0.3), method=m, seed=s) for m in REVISED for s in seeds], ignore_index=True
    )


def selected_frame(samples: pd.DataFrame) -> pd.DataFrame:
    """Everything right passes, and every other wrong sample too."""
    frames = []
    for method, arm in SELECTED.items():
        own = samples[samples["arm"] == arm]
        passes = own["correct"].astype(int).where(own["correct"], own["sample"] % 2)
        frames.append(
            own[["seed", "problem", "sample", "correct"]].assign(method=method, passes=passes.astype(float))
        )
    return pd.concat(frames, ignore_index=True)
