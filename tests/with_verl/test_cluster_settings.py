"""The settings of a job on a CPU, as verl's own configuration takes them."""

import pytest

pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")

from local_fixtures import codec, random_policy
from omegaconf import OmegaConf

from rlvr.config import Recipe, load_scale
from rlvr.engines.jobs import command
from rlvr.engines.jobs.cpu import EMBEDDED, OVERRIDES, job_settings, overrides
from rlvr.engines.jobs.embedded import experiment_of, prepare, settings, with_modules
from rlvr.engines.jobs.policy import PLAIN_TEMPLATE, cluster_folder
from rlvr.engines.local.policy import Policy, new_policy
from rlvr.engines.verl import check
from rlvr.engines.verl.check import Failed, composed
from rlvr.engines.verl.reward import SETTINGS
from rlvr.problems.benchmarks.catalogue import project_root

pytestmark = pytest.mark.verl


def test_verl_takes_them():
    config = composed(overrides(EMBEDDED, SETTINGS), "ppo_trainer")
    assert config.trainer.v1.trainer_mode == "sync_cpu"
    assert config.actor_rollout_ref.model.custom_chat_template == PLAIN_TEMPLATE
    assert config.reward.reward_manager.name == "RewardManager"
    for name, value in OVERRIDES.items():
        found = OmegaConf.select(config, name.lstrip("+"))
        assert (OmegaConf.to_container(found) if OmegaConf.is_config(found) else found) == value


@pytest.mark.parametrize("name", OVERRIDES)
def test_a_plus_where_verl_has_no_such_name_and_only_there(name):
    """Hydra refuses a plain name that is not in the file, and a + before one that is."""
    section, _, last = name.lstrip("+").rpartition(".")
    there = OmegaConf.select(composed([], "ppo_trainer"), section)
    assert name.startswith("+") == (there is None or last not in there.keys())


def test_later_groups_win_and_keep_the_plus():
    words = overrides(
        {"trainer.v1.sync_cpu": {"batches_dir": "/a b"}, "trainer.nnodes": 2},
        {"trainer.logger": ["console"], "actor_rollout_ref.actor.loss_scale_factor": None},
    )
    assert '+trainer.v1.sync_cpu={batches_dir:"/a b"}' in words
    assert "trainer.nnodes=2" in words and "trainer.nnodes=1" not in words
    config = composed(words, "ppo_trainer")
    assert config.trainer.v1.sync_cpu.batches_dir == "/a b"
    assert config.actor_rollout_ref.actor.loss_scale_factor is None
    with pytest.raises(Failed, match="no_such"):
        composed(overrides({"trainer.no_such": 1}), "ppo_trainer")


def test_the_embedded_policy_gets_wider_heads(tmp_path):
    narrow = random_policy()
    narrow.save_pretrained(tmp_path / "narrow")
    codec().save(tmp_path / "narrow")
    wide = cluster_folder(tmp_path / "narrow", tmp_path / "wide")
    assert wide == tmp_path / "wide" and Policy.from_pretrained(wide).shape.head_dim == 32
    assert cluster_folder(wide, tmp_path / "again") == wide  # wide enough: taken as it is
    assert not (tmp_path / "again").exists()


def test_a_vocabulary_beyond_the_tokenizer_is_refused(tmp_path):
    from local_fixtures import SIZES

    words = codec()
    policy = new_policy(SIZES, len(words) + 3, words.eos_id, words.pad_id, 0)
    policy.save_pretrained(tmp_path / "model")
    words.save(tmp_path / "model")
    with pytest.raises(
        ValueError, match=f"vocabulary has {len(words) + 3} tokens, its tokenizer {len(words)}"
    ):
        cluster_folder(tmp_path / "model", tmp_path / "wide")


def test_an_arm_with_modules_and_a_critic_passes_the_check(tmp_path, monkeypatch):
    """As the training notebook starts it with engine verl: the recipe's blocks become settings of verl."""
    scale = load_scale(project_root() / "pipelines/scales/cluster/params.yaml")
    warmup = dict(seed=0, steps=2, lr=1e-3, betas=[0.9, 0.98], batch_size=4, check_every=2)
    recipe = {
        "objective": "mpo",
        "recompute": "none",
        "mtp": {"blocks": 3, "lr": 1e-3, "warmup": warmup},
        "critic": {"lr": 2e-3, "value_clip": 0.25},
    }
    recipes = scale.recipes | {"mpo": Recipe.model_validate(recipe)}
    scale = scale.model_copy(update={"recipes": recipes})
    words = codec()
    policy = new_policy(scale.model, len(words), words.eos_id, words.pad_id, 0)
    policy.save_pretrained(tmp_path / "base")
    words.save(tmp_path / "base")
    experiment = experiment_of(scale, "mpo", 0)
    model = prepare(scale, experiment, 0, tmp_path / "base", tmp_path)
    experiment = with_modules(scale, experiment, model, tmp_path)
    more, _, _ = job_settings(experiment, tmp_path, settings(experiment))
    given = [*command.overrides(experiment, 0, str(tmp_path), str(model)), *more]

    config = composed(given, "ppo_trainer")
    assert config.critic.model.path == str(model) and config.critic.strategy == "fsdp2"
    assert config.critic.optim.lr == 2e-3 and config.critic.cliprange_value == 0.25
    assert config.algorithm.rollout_correction.bypass_mode is True
    assert config.actor_rollout_ref.actor.policy_loss.mtp.start == experiment.mtp.start
    monkeypatch.setattr(check, "check_registration", lambda loss_mode: {"version": check.TESTED})
    lines = check.check(given)
    assert any(line.startswith("modules beside the actor: blocks=3") for line in lines)
    assert [line for line in lines if line.startswith(("warning", "note"))] == []
