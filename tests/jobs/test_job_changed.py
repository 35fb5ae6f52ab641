"""A job's folder goes on with the settings that it was begun with, or not at all."""

import pytest
from job_fixtures import FakeRay, experiments, make_job

from pipelines import job_graph
from rlvr.engines.jobs.changed import changed_settings, check_unchanged
from rlvr.engines.jobs.command import overrides

LR = "actor_rollout_ref.actor.optim.lr"
SCHEDULE = "actor_rollout_ref.actor.optim.lr_scheduler_type"
STAGES = "+trainer.v1.m={self_correction:{stage1_share:0.5}}"


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
        (f"{SCHEDULE}=constant trainer.total_training_steps=500 {STAGES}",
         f"{SCHEDULE}=constant trainer.total_training_steps=900 {STAGES}",
         ["trainer.total_training_steps: 500, now 900"]),  # the boundary of the stages moves
        ("python -m x a=1", "a=1", []),
        ("+trainer.v1.m={records_dir:/x,counterfactual:{alpha:0.6,k:[1,2]}}",
         "+trainer.v1.m={records_dir:/y,records_every:9,counterfactual:{alpha:0.5,k:[1,2]}}",
         ["trainer.v1.m.counterfactual.alpha: 0.6, now 0.5"]),
        ("+trainer.v1.m={counterfactual:{alpha:0.6}}", "trainer.v1.m.counterfactual.alpha=0.6", []),
        ("trainer.v1.trainer_mode=a", "trainer.v1.trainer_mode=b", ["trainer.v1.trainer_mode: a, now b"]),
        ("+a.policy_loss.mtp={start:/x/m-k5,lr:1}", "+a.policy_loss.mtp={start:/y/m-k5,lr:1}", []),
        ("+a.policy_loss.mtp={start:/x/m-k5,lr:1}", "+a.policy_loss.mtp={start:/x/m-k3,lr:2}",
         ["a.policy_loss.mtp.start: m-k5, now m-k3", "a.policy_loss.mtp.lr: 1, now 2"]),
        ('a={b:"x,y:{z",c:1}', 'a={b:"x,y:{z",c:2}', ["a.c: 1, now 2"]),
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


@pytest.mark.parametrize(
    "change",
    [{"shaping_weight": 1.2}, {"alpha": 0.7}, {"joint": False}, {"variant": "ratio"}, {"corrections": 3}],
)
def test_settings_of_the_second_generation_pass(change):
    experiment = experiments("paper").get("ibpo-32b-ibpo")
    other = experiment.counterfactual.model_copy(update=change)
    changed = experiment.model_copy(update={"counterfactual": other})
    (name,) = change
    (found,) = changed_settings(overrides(experiment, 0), overrides(changed, 0))
    assert found.startswith(f"trainer.v1.rlvr_ibpo.counterfactual.{name}: ")


@pytest.mark.parametrize(
    "change", [{"stage1_share": 0.4}, {"first_turn_kl": 0.2}, {"kl": 0.02}, {"bonus": 1.5}]
)
def test_settings_of_two_stages(change):
    experiment = experiments("paper").get("ibpo-32b-score")
    changed = experiment.model_copy(
        update={"self_correction": experiment.self_correction.model_copy(update=change)}
    )
    (name,) = change
    (found,) = changed_settings(overrides(experiment, 0), overrides(changed, 0))
    assert found.startswith(f"trainer.v1.rlvr_self_correction.self_correction.{name}: ")


@pytest.mark.parametrize("name", ["nfpo-1.7b-nfpo", "ibpo-32b-ibpo", "mpo-qwen1.5b-gsm8k-mpo"])
def test_another_root_is_no_other_training(name):
    experiment = experiments("paper").get(name)
    words = [overrides(experiment, 0, root) for root in ("/a/runs", "/b/runs")]
    assert words[0] != words[1] and not changed_settings(*words)


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
