"""Several arms in one stage: their folders, seeds and evaluation; revisions and selections of a scale."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest
from notebook_factory import PROJECT

from rlvr.config import Scale, load_scale
from rlvr.config_corrections import Counterfactual
from rlvr.engines.local.policy import new_policy
from rlvr.engines.local.training import train
from rlvr.engines.training import LocalTraining
from rlvr.evaluation import at_test_time
from rlvr.evaluation.at_test_time import REVISED, SELECTED, revise_arms, select_arms, template_of
from rlvr.evaluation.requests import embedded, evaluation_of_arm
from rlvr.evaluation.sampled import sample_policy
from rlvr.problems import get_task
from rlvr.problems.tokenizer import Codec, build_tokenizer

FILE = PROJECT / "pipelines/scales/smoke/ibpo/params.yaml"
SCALE = load_scale(FILE)


def changed(**values) -> Scale:
    return Scale.model_validate(SCALE.model_dump() | values)


def test_ablations_have_seeds_of_their_own():
    scale = changed(seeds=(0, 1, 2), ablations=SCALE.ablations.model_dump() | {"seeds": (0, 2)})
    assert scale.seeds_of("gspo") == (0, 1, 2) and scale.seeds_of("joint_only") == (0, 2)
    assert changed(ablations=SCALE.ablations.model_dump() | {"seeds": None}).seeds_of("joint_only") == (0, 1)
    with pytest.raises(ValueError, match=r"ablations\.seeds=\[5\] must be some of seeds"):
        changed(ablations=SCALE.ablations.model_dump() | {"seeds": (5,)})
    training = LocalTraining(scale, "ablations")
    assert {(job.arm, job.seed) for job in training.jobs} == {
        (a, s) for a in scale.ablation_arms for s in (0, 2)
    }
    found = evaluation_of_arm_labels(scale)
    assert sum(arm == "joint_only" for arm, _ in found) == 2 and sum(arm == "gspo" for arm, _ in found) == 3


def evaluation_of_arm_labels(scale, folder="x"):
    import rlvr.evaluation.requests as requests

    problems = [embedded(p) for p in get_task("program").generate("held_out", 2, 0, (1, 2))]
    original, requests.read_embedded = requests.read_embedded, lambda path: problems
    try:
        policies = evaluation_of_arm(scale, "every").policies
    finally:
        requests.read_embedded = original
    return [(p.labels["arm"], p.labels["seed"]) for p in policies]


def test_every_arm_has_a_folder_of_its_own():
    training = LocalTraining(SCALE, "arms")
    folders = training.runs("out")
    assert folders[("ibpo", 1, 0)].as_posix() == "out/ibpo/seed1/lag0"
    assert len(folders) == len(SCALE.arms) * 2 and training.names == ["arm", "seed", "lag"]
    assert SCALE.run_folder("ibpo", 1, 0).as_posix() == "runs/smoke/ibpo/train/ibpo/seed1/lag0"
    assert SCALE.run_folder("joint_only", 1, 0).as_posix() == "runs/smoke/ibpo/ablate/joint_only/seed1/lag0"
    assert SCALE.evaluation_folder("joint_only").as_posix() == "runs/smoke/ibpo/evaluate"
    assert evaluation_of_arm_labels(SCALE)[0] == ("base", 0)


def test_the_prompt_of_training_is_shown_at_test_time():
    assert template_of(SCALE, "score") == template_of(SCALE, "gspo") == "problem_last"


def test_revisions_and_selections(tmp_path, monkeypatch):
    """Of two arms with one seed, on the program task: columns, pairing, verdicts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(at_test_time, "REVISED", {"gspo_prompt": ("gspo", 1), "score_second": ("score", 0)})
    monkeypatch.setattr(at_test_time, "SELECTED", {"gspo_best": "gspo"})
    scale = changed(seeds=(0,), ablations=SCALE.ablations.model_dump() | {"seeds": None})
    raw = get_task("program").generate("held_out", 3, 0, (1, 2))
    problems = [embedded(p) for p in raw]
    codec = Codec(build_tokenizer(get_task("program").words))
    policy = new_policy(scale.model, len(codec), codec.eos_id, codec.pad_id, 0)
    frames = []
    for arm in ("gspo", "score"):
        folder = scale.run_folder(arm, 0, 0) / "final"
        policy.save_pretrained(folder)
        codec.save(folder)
        own = sample_policy(folder, problems, at_test_time._sampling(scale), arm)
        frames.append(
            own.assign(arm=arm, lag=0, seed=0, correct=pd.array([False] * len(own), dtype="boolean"))
        )
    samples = pd.concat(frames, ignore_index=True)
    samples.loc[0, ["text", "finished"]] = [raw[0].solution, True]
    revised = revise_arms(scale, samples, problems)
    assert revised.groupby("method").size().to_dict() == {"gspo_prompt": 24, "score_second": 24}
    assert revised["first_text"].iloc[0] == raw[0].solution and revised["correct"].notna().all()
    selected = select_arms(samples, problems)
    assert selected["passes"].iloc[0] == 1.0 and set(selected["method"]) == {"gspo_best"}
    assert set(REVISED) > {"gspo_prompt"} and set(SELECTED) > {"gspo_best"}


def test_train_takes_modules_before_progress(tmp_path):
    """A group of arms is trained side by side with one argument list for all methods."""
    job = LocalTraining(SCALE, "gspo8", 0).jobs[0]
    assert job.counterfactual is None and job.train.budget == SCALE.train.budget
    assert dataclasses.replace(job, counterfactual=Counterfactual()).counterfactual.references == 1
    assert train.__code__.co_varnames[4:6] == ("modules", "on_progress")
