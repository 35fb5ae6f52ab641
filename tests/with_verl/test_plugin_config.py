"""The parameters in verl's configuration, through verl's own files and Hydra."""

import dataclasses
import pickle

import pytest

# not "verl" alone: without the package, that name finds this folder
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")

from hydra import compose, initialize_config_module
from job import REFUSED
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass, validate_config

from rlvr import objectives
from rlvr.engines.verl import PolicyLossConfig

pytestmark = pytest.mark.verl
LOSS = "actor_rollout_ref.actor.policy_loss"
TARGET = f"{LOSS}._target_=rlvr.engines.verl.PolicyLossConfig"


def job(*overrides):
    """verl's configuration of a job, as main_ppo composes it."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1", *overrides])


def built(*overrides):
    return omega_conf_to_dataclass(job(*overrides).actor_rollout_ref.actor).policy_loss


def test_from_the_command_line():
    config = built(
        TARGET,
        f"{LOSS}.loss_mode=nfpo",
        f"+{LOSS}.horizon=8",
        f"+{LOSS}.trace_clip=[0.8,1.2]",
        f"+{LOSS}.ratio_clip=null",
        f"+{LOSS}.delta=inf",
        f"+{LOSS}.region=kl",
        f"{LOSS}.ppo_kl_coef=0.2",
    )
    assert type(config) is PolicyLossConfig
    assert config.parameters == {
        "horizon": 8,
        "trace_clip": (0.8, 1.2),
        "ratio_clip": None,
        "delta": float("inf"),
        "region": "kl",
    }
    assert config.get("loss_mode") == "nfpo" and config.ppo_kl_coef == 0.2
    assert config.preset is None and config.loss_agg_mode is None


def test_parameters_as_one_mapping():
    config = built(
        TARGET, f"{LOSS}.loss_mode=nfpo", f"+{LOSS}.parameters={{horizon: 8, trace_clip: [0.8, 1.2]}}"
    )
    assert config.parameters == {"horizon": 8, "trace_clip": (0.8, 1.2)}


def test_without_the_class_a_parameter_is_an_error():
    assert built(f"{LOSS}.loss_mode=nfpo").loss_mode == "nfpo"
    with pytest.raises(Exception, match="horizon"):
        built(f"{LOSS}.loss_mode=nfpo", f"+{LOSS}.horizon=8")


def test_the_driver_refuses_before_ray_starts():
    """``main_ppo`` calls ``validate_config`` first."""
    import ray

    rollout = "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1"
    overrides = (TARGET, f"{LOSS}.loss_mode=nfpo", rollout)
    validate_config(job(*overrides), use_reference_policy=False, use_critic=False)
    with pytest.raises(Exception, match="'horizn': did you mean 'horizon'"):
        validate_config(job(*overrides, f"+{LOSS}.horizn=8"), use_reference_policy=False, use_critic=False)
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss_mode": "nfpo", "horizn": 8}, "nfpo has no parameter 'horizn': did you mean 'horizon'"),
        ({"loss_mode": "dapo", "horizon": 8}, "dapo has no parameter 'horizon'.*clip_high, clip_low"),
        ({"loss_mode": "nfpo", "horizon": 0}, "horizon=0: allowed are integers >= 1"),
        ({"loss_mode": "nfpo", "delta": "much"}, "policy_loss of nfpo"),
        ({"loss_mode": "nfpo", "region": "tw"}, "region='tw'.*'tv'"),
        ({"loss_mode": "nfpo", "rollout_log_prob": 1.0}, "rollout_log_prob: nfpo takes a tensor here"),
        ({"loss_mode": "nfpo", "preset": "paper"}, "preset='paper': allowed for nfpo are text, release"),
        ({"loss_mode": "ppo", "preset": "text"}, "preset='text': allowed for ppo are none"),
        (
            {"loss_mode": "nfpo", "loss_agg_mode": "mean"},
            "loss_agg_mode='mean': allowed are null.*token-mean",
        ),
        ({"loss_mode": "nfppo"}, "loss_mode is unknown: 'nfppo': did you mean 'nfpo'"),
        ({"loss_mode": "vanilla", "horizon": 8}, "horizon: loss_mode='vanilla' is no loss of rlvr"),
        ({"loss_mode": "vanilla", "preset": "text"}, "preset: loss_mode='vanilla' is no loss of rlvr"),
        ({"loss_mode": "gspo", "clip_low": 0.1}, "rlvr's loss of that name is 'rlvr.gspo'"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PolicyLossConfig(**settings)


@pytest.mark.parametrize("name", REFUSED)
def test_missing_tensors_are_refused(name):
    with pytest.raises(ValueError, match=rf"'{name}' needs \w+.*verl does not hand"):
        PolicyLossConfig(f"rlvr.{name}")


def test_presets_and_overrides():
    release = objectives.NFPO_PRESETS["release"]
    config = PolicyLossConfig("nfpo", preset="release", horizon=4)
    assert config.parameters == {k: v for k, v in release.items() if k != "loss_agg_mode"} | {"horizon": 4}
    assert config.loss_agg_mode == release["loss_agg_mode"]
    assert (
        PolicyLossConfig("nfpo", preset="release", loss_agg_mode="token-mean").loss_agg_mode == "token-mean"
    )
    assert PolicyLossConfig("fipo", preset="text").parameters == objectives.FIPO_PRESETS["text"]


def test_verls_own_losses_may_use_the_class():
    assert PolicyLossConfig("gspo", clip_cov_ratio=0.1).clip_cov_ratio == 0.1


def test_is_a_configuration_of_verl():
    config = PolicyLossConfig("nfpo", preset="release", horizon=4)
    assert pickle.loads(pickle.dumps(config)) == config
    assert dataclasses.replace(config) == config
    assert omega_conf_to_dataclass(OmegaConf.create(dict(config)), PolicyLossConfig) == config
    assert {f.name for f in dataclasses.fields(config)} == set(config)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.preset = "text"
