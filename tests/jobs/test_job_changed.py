"""A job's folder goes on with the settings that it was begun with, or not at all."""

import pytest
from job_fixtures import FakeRay, experiments, make_job

from pipelines import job_graph
from rlvr.engines.jobs.changed import changed_settings, check_unchanged
from rlvr.engines.jobs.command import overrides

LR = "actor_rollout_ref.actor.optim.lr"
SCHEDULE = "actor_rollout_ref.actor.optim.lr_scheduler_type"


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (f"{LR}=1e-06", f"{LR}=2e-06", [f"{LR}: 1e-06, now 2e-06"]),
        (f"{LR}=1e-06", f"{LR}=1e-06 {LR}=2e-06", [f"{LR}: 1e-06, now 2e-06"]),
        (f"{LR}=1e-06", "", [f"{LR}: 1e-06, now not set"]),
        ("", "+a.policy_loss.horizon=4", ["a.policy_loss.horizon: not set, now 4"]),
        ("+a.b=1", "a.b=1", []),
        ("data.train_files=/x/t-l345.parquet", "data.train_files=/y/t-l345.parquet", []),
        (
            "data.train_files=/x/t-l345.parquet",
            "data.train_files=/x/t-l5.parquet",
            ["data.train_files: t-l345.parquet, now t-l5.parquet"],
        ),
        ("actor_rollout_ref.model.path=Qwen/Q", "actor_rollout_ref.model.path=/models/Q", []),
        ("trainer.nnodes=1 trainer.save_freq=50", "trainer.nnodes=4 trainer.save_freq=10", []),
        ("hydra.run.dir=a data.val_files=[b]", "hydra.run.dir=c data.val_files=[d]", []),
        (f"{SCHEDULE}=constant trainer.total_training_steps=500",
         f"{SCHEDULE}=constant trainer.total_training_steps=900", []),
        (f"{SCHEDULE}=cosine trainer.total_training_steps=500",
         f"{SCHEDULE}=cosine trainer.total_training_steps=900",
         ["trainer.total_training_steps: 500, now 900"]),
        ("python -m x a=1", "a=1", []),
    ],
)  # fmt: skip
def test_which_settings_make_another_training(old, new, found):
    assert changed_settings(old.split(), new.split()) == found


@pytest.mark.parametrize(
    ("section", "change", "counts"),
    [
        ("rollout", {"tensor_parallel": 1, "gpu_memory_utilization": 0.5, "max_num_seqs": 64}, False),
        ("update", {"tokens_per_gpu": 8192, "offload": False}, False),
        ("validation", {"samples": 8, "temperature": 1.0, "every": 5, "before_train": False}, False),
        ("checkpoints", {"every": 5, "keep": 1}, False),
        ("records", {"responses": 0}, False),
        ("update", {"lr": 3e-6}, True),
        ("update", {"divide_by_std": True}, True),
        ("update", {"recompute": True}, True),
        ("rollout", {"temperature": 0.9}, True),
        ("rollout", {"prompts_per_step": 64}, True),
        ("data", {"max_response_length": 1024}, True),
        ("data", {"levels": (5,)}, True),
    ],
)
def test_settings_of_an_experiment(section, change, counts):
    experiment = experiments().get("nfpo-0.6b-nfpo")
    other = getattr(experiment, section).model_copy(update=change)
    words = [overrides(e, 0) for e in (experiment, experiment.model_copy(update={section: other}))]
    assert words[0] != words[1] and bool(changed_settings(*words)) is counts


def begun(tmp_path, **options):
    job, _ = make_job(tmp_path, **options)
    job._launch(FakeRay())
    return job


def test_a_folder_of_other_settings_is_refused(tmp_path):
    begun(tmp_path, extra=[f"{LR}=5e-06"])
    file = experiments()
    message = rf"{LR}: 5e-06, now 1e-06\. Undo the change .* nfpo-0\.6b-nfpo-s0\.json"
    with pytest.raises(ValueError, match=message):
        job_graph.check_run(file, file.get("nfpo-0.6b-nfpo"), 0, tmp_path)
    job_graph.check_run(file, file.get("nfpo-0.6b-nfpo"), 1, tmp_path)  # of another seed nothing is known


def test_the_same_settings_go_on(tmp_path):
    begun(tmp_path)
    job, _ = make_job(tmp_path, model_path="/elsewhere/Qwen3-0.6B-Base")  # where it lies does not matter
    check_unchanged(job)
    assert job.state.attempts
