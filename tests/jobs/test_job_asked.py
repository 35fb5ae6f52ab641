"""``--set`` reaches what the scale file leaves to verl, and nothing that it decides."""

import pytest
from job_fixtures import experiments

from rlvr.cli import main
from rlvr.engines.jobs.asked import NAMES, check_settings

NFPO = experiments("paper").get("nfpo-1.7b-nfpo")


@pytest.mark.parametrize(("key", "verl"), NAMES.items())
def test_what_the_file_decides(key, verl):
    for name in (verl, f"+{verl}"):
        with pytest.raises(ValueError, match=rf"--set {verl}: .*{key} of the scale file: change it there"):
            check_settings([f"{name}=3"], NFPO)
    if key != verl:
        with pytest.raises(ValueError, match=rf"--set {key}: .*scale file \({verl} in verl\)"):
            check_settings([f"{key}=3"], NFPO)


@pytest.mark.parametrize(
    "name",
    [
        "trainer.default_local_dir",
        "trainer.resume_mode",
        "trainer.total_epochs",
        "trainer.experiment_name",
        "trainer.v1.trainer_mode",
        "trainer.v1",
        "trainer",
        "trainer.val_only",
        "hydra.run.dir",
        "data.train_files",
        "data.seed",
        "algorithm.adv_estimator",
        "actor_rollout_ref.actor.policy_loss.horizon",
        "actor_rollout_ref.actor.policy_loss.window",
        "actor_rollout_ref.model.path",
        "reward.reward_manager.name",
    ],
)
def test_what_the_job_sets_itself(name):
    with pytest.raises(ValueError, match=f"--set {name}: "):
        check_settings([f"{name}=x"], NFPO)


def test_a_part_of_the_second_generation_pass():
    ibpo = experiments("paper").get("ibpo-32b-ibpo")
    with pytest.raises(ValueError, match="`rlvr job` sets it, by the settings of ibpo-32b-ibpo"):
        check_settings(["trainer.v1.rlvr_ibpo.counterfactual.alpha=0.9"], ibpo)


@pytest.mark.parametrize("name", ["update.offload", "rollout.n", "evaluation.samples"])
def test_a_section_of_the_scale_file_is_none_of_verl(name):
    with pytest.raises(ValueError, match=rf"--set {name}: a section of the scale file"):
        check_settings([f"{name}=1"], NFPO)


@pytest.mark.parametrize(
    "word",
    [
        "actor_rollout_ref.rollout.agent.num_workers=2",
        "reward.num_workers=1",
        "trainer.logger=[console,file,wandb]",
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space=4",
        "ray_kwargs.ray_init.num_cpus=8",
        "data.dataloader_num_workers=0",
    ],
)
def test_what_is_left_to_verl(word):
    check_settings([word], NFPO)


@pytest.mark.parametrize("command", ["show", "submit", "status"])
def test_on_the_command_line(command, capsys, tmp_path):
    words = ["--root", str(tmp_path), "--set", "trainer.total_training_steps=50000"]
    assert main(["job", command, "nfpo-1.7b-nfpo", *words]) == 2
    assert "it is update.steps of the scale file" in capsys.readouterr().err


@pytest.mark.parametrize("seed", ["-1", "4294967296"])
def test_a_seed_that_no_library_takes(seed, capsys, tmp_path):
    assert main(["job", "show", "nfpo-1.7b-nfpo", "--root", str(tmp_path), "--seed", seed]) == 2
    assert f"--seed {seed}: allowed are 0 to 4294967295" in capsys.readouterr().err
