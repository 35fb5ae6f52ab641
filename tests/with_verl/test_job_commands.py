"""The commands of all experiments against verl itself, and the values that are called verl's defaults."""

import pytest

pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")

from omegaconf import OmegaConf

from rlvr.engines.jobs import command
from rlvr.engines.jobs.experiments import leaves, load_experiments
from rlvr.engines.verl import check, reward
from rlvr.problems.benchmarks.catalogue import project_root

pytestmark = pytest.mark.verl

FILES = [
    load_experiments(path) for path in sorted(project_root().glob("pipelines/scales/*/experiments.yaml"))
]
EXPERIMENTS = {name: file.get(name) for file in FILES for name in file.names}
RUNNABLE = [name for name, experiment in EXPERIMENTS.items() if experiment.needs is None]
# One of each kind goes through the whole check; the others differ from these in numbers.
CHECKED = [
    name
    for name in RUNNABLE
    if name.startswith(("nfpo-1.7b-", "nfpo-8b-nfpo"))
    or name in ("ibpo-32b-gspo", "ibpo-0.6b-gspo")
    or name.startswith("mpo-qwen1.5b-gsm8k-")
]


@pytest.fixture(scope="module")
def stock():
    return check.composed([], "ppo_trainer")


def composed(name, **options):
    words = command.overrides(EXPERIMENTS[name], seed=3, **options)
    return check.composed(words, "ppo_trainer")


@pytest.mark.parametrize("name", CHECKED)
def test_the_check_before_a_job_passes(monkeypatch, name):
    monkeypatch.setattr(check, "check_registration", lambda loss_mode: {"version": check.TESTED})
    # the modules are those of another command, on a GPU
    without = ["actor_rollout_ref.actor.policy_loss.mtp.start=null"] if EXPERIMENTS[name].mtp else []
    lines = check.check(command.overrides(EXPERIMENTS[name], seed=0, extra=without))
    assert any(EXPERIMENTS[name].objective in line for line in lines)
    assert [line for line in lines if line.startswith(("warning", "note"))] == []


@pytest.mark.fault("seed-that-goes-nowhere")
@pytest.mark.parametrize("name", RUNNABLE)
def test_what_verl_composes_is_what_the_experiment_says(name):
    experiment = EXPERIMENTS[name]
    config = composed(name)
    values = dict(leaves(experiment.model_dump()))
    for key, setting in command.KEYS.items():
        found = OmegaConf.select(config, setting)
        found = tuple(found) if OmegaConf.is_list(found) else found
        assert found == values[key], (key, setting)
    for key, setting in command.CRITIC.items() if experiment.critic else ():
        found = OmegaConf.select(config, setting)
        found = tuple(found) if OmegaConf.is_list(found) else found
        assert found == getattr(experiment.critic, key), (key, setting)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert actor.ppo_mini_batch_size * rollout.n == experiment.update.minibatch_responses
    assert config.algorithm.rollout_correction.bypass_mode is not experiment.update.recompute
    assert config.algorithm.norm_adv_by_std_in_grpo is experiment.update.divide_by_std
    parameters = {k: v for k, v in actor.policy_loss.items() if k in experiment.parameters}
    assert {k: list(v) if OmegaConf.is_list(v) else v for k, v in parameters.items()} == {
        k: list(v) if isinstance(v, tuple) else v for k, v in experiment.parameters.items()
    }
    if actor.loss_agg_mode == "seq-mean-token-sum-norm":
        assert actor.loss_scale_factor == experiment.data.max_response_length
    assert config.trainer.total_epochs >= config.trainer.total_training_steps
    assert {config.data.seed, rollout.seed, actor.data_loader_seed, actor.fsdp_config.seed} == {3}
    if experiment.critic:
        assert {config.critic.data_loader_seed, config.critic.fsdp.seed} == {3}
    assert isinstance(config.data.train_files, str)
    assert len(config.data.val_files) == len(experiment.validation.benchmarks)


def test_values_called_verls_default_are(stock):
    """By the sources in the files: nobody retyped one wrong, and a later verl that differs is noticed."""
    compared = 0
    for file in FILES:
        for path, source in file.sources.items():
            if not source.startswith("verl default"):
                continue
            setting, *place = split(path, file)
            key = ".".join(place[-2:])
            value = dict(leaves(file.settings[setting].model_dump()))
            if place[0] == "arms":
                arm = file.settings[setting].arms[place[1]]
                value = dict(leaves({**arm.change, "parameters": arm.parameters}))
            default = verls(stock, key)
            assert value[key] == default, (path, value[key], default)
            compared += 1
    assert compared > 100


def split(path, file):
    """``settings.nfpo-1.7b.update.lr``: a name of a setting may hold dots."""
    rest = path.removeprefix("settings.")
    name = max((s for s in file.settings if rest.startswith(f"{s}.")), key=len)
    return [name, *rest.removeprefix(f"{name}.").split(".")]


def verls(stock, key):
    special = {
        "update.recompute": not stock.algorithm.rollout_correction.bypass_mode,
        "update.divide_by_std": stock.algorithm.norm_adv_by_std_in_grpo,
        "update.kl_coef": 0.0 if not stock.actor_rollout_ref.actor.use_kl_loss else None,
        "parameters.clip_low": stock.actor_rollout_ref.actor.clip_ratio_low,
        "parameters.clip_high": stock.actor_rollout_ref.actor.clip_ratio_high,
        "parameters.dual_clip": stock.actor_rollout_ref.actor.clip_ratio_c,
        "update.offload": stock.actor_rollout_ref.actor.fsdp_config.param_offload,
    }
    if key in special:
        return special[key]
    if key == "evaluation.temperature":  # by another program, with what verl validates with
        key = "validation.temperature"
    names = command.KEYS | {f"critic.{name}": verl for name, verl in command.CRITIC.items()}
    value = OmegaConf.select(stock, names[key])
    return tuple(value) if OmegaConf.is_list(value) else value


def test_what_is_repeated_here_is_what_the_plugin_says():
    assert command.REWARD == reward.SETTINGS
    assert command.TARGET == check.TARGET


def test_modules_that_were_not_warmed_up_end_the_job_before_it_starts(monkeypatch):
    monkeypatch.setattr(check, "check_registration", lambda loss_mode: {"version": check.TESTED})
    with pytest.raises(check.Failed, match=r"mtp.start=runs/paper/modules/DeepSeek.*does not exist here"):
        check.check(command.overrides(EXPERIMENTS["mpo-qwen1.5b-gsm8k-mpo"], seed=0))


def test_a_critic_is_given_the_same_model():
    config = composed("mpo-qwen1.5b-gsm8k-ppo", model_path="/models/it's here")
    assert config.critic.model.path == config.actor_rollout_ref.model.path == "/models/it's here"
    assert config.algorithm.adv_estimator == "gae"
    assert not config.actor_rollout_ref.actor.use_kl_loss


def test_the_last_of_two_settings_wins():
    config = composed("nfpo-1.7b-nfpo", extra=["trainer.save_freq=7"])
    assert config.trainer.save_freq == 7


def test_the_pins_are_those_of_verl():
    """From the metadata of the verl that is installed: ``verl[vllm]``."""
    import re
    from importlib.metadata import requires

    from rlvr.engines.jobs.start import TESTED

    pinned = dict(
        re.match(r"([\w-]+)==([\w.]+)", line).groups()
        for line in requires("verl")
        if 'extra == "vllm"' in line and "==" in line.partition(";")[0]
    )
    assert {name: pinned[name] for name in TESTED if name != "verl"} == {
        name: wanted for name, wanted in TESTED.items() if name != "verl"
    }
    assert TESTED["verl"] == check.TESTED


def test_the_data_files_are_what_verl_reads(tmp_path):
    """`rlvr job prepare` on the public problems, and again, when nothing is left to do."""
    import pyarrow.parquet as pq

    from rlvr.engines.jobs.data import prepare
    from rlvr.problems.benchmarks.sources import MissingData

    experiment = EXPERIMENTS["nfpo-0.6b-nfpo"]
    try:
        lines = list(prepare(experiment, tmp_path))
    except MissingData:
        pytest.skip("the benchmarks are not on this machine: set RLVR_DATA or run `rlvr data fetch`")
    train, validation = command.data_files(experiment, str(tmp_path))
    rows = pq.read_table(train).to_pylist()
    assert len(rows) > 5500 and {row["extra_info"]["split"] for row in rows} == {"train"}
    assert [pq.read_table(file).to_pylist()[0]["data_source"] for file in validation] == ["amc23", "math500"]
    assert lines[1].endswith("40 problems")
    before = [(file, (tmp_path / file).stat().st_mtime_ns) for file in (train, *validation)]
    assert all("there already" in line for line in prepare(experiment, tmp_path))
    assert before == [(file, (tmp_path / file).stat().st_mtime_ns) for file in (train, *validation)]


def test_the_look_at_the_loss_before_verl_starts(monkeypatch, capsys):
    from rlvr.engines.jobs import start

    monkeypatch.setattr(check, "check_registration", lambda loss_mode: {"version": check.TESTED})
    words = [*command.overrides(EXPERIMENTS["nfpo-1.7b-nfpo"], 0), "hydra.run.dir=/somewhere"]
    assert start.loss_faults(words) == []
    assert "nfpo with horizon=4" in capsys.readouterr().out
    (fault,) = start.loss_faults([*words, "+actor_rollout_ref.actor.policy_loss.horizn=4"])
    assert "did you mean 'horizon'" in fault and "\n" not in fault
