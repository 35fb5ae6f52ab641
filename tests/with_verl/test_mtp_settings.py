"""Settings of modules beside the actor: what is refused before a job starts; where the modules say what."""

import pickle
from dataclasses import replace

import pytest
import torch

# not "verl" alone: without the package, that name finds this folder
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")

from job import actor, direct, make_batch, run
from local_fixtures import random_policy

from rlvr.engines.local.mtp import new_modules
from rlvr.engines.verl import PolicyLossConfig, check
from rlvr.engines.verl.losses import handed
from rlvr.engines.verl.mtp_stack import entries_of, of_responses, padded

pytestmark = pytest.mark.verl
MODULES = {"blocks": 3, "lr": 1e-3}
ACTOR, LOSS = "actor_rollout_ref.actor", "actor_rollout_ref.actor.policy_loss"
JOB = [
    f"{LOSS}._target_=rlvr.engines.verl.PolicyLossConfig",
    f"{LOSS}.loss_mode=mpo",
    f"{ACTOR}.strategy=fsdp2",
    "trainer.v1.trainer_mode=rlvr_sync",
    "+trainer.v1.rlvr_sync={}",
]


def said(batch, blocks=3, seed=1):
    g = torch.Generator().manual_seed(seed)
    return {
        name: -0.3 - 2 * torch.rand(*batch[0].shape, blocks - 1, generator=g)
        for name in ("mtp_log_prob", "old_mtp_log_prob")
    }


@pytest.mark.parametrize("name", ["mpo", "mpo_grpo"])
@pytest.mark.parametrize("gradient", ["stop", "modules"])
def test_the_objective_gets_what_the_modules_say(name, gradient):
    batch = make_batch()
    more = said(batch)
    config = PolicyLossConfig(name, mtp=MODULES | {"policy_gradient": gradient}, mtp_weight=0.5)
    with handed(**more):
        loss, slope, metrics = run(actor(config), batch)
    how = {"mtp_gradient": "stop" if gradient == "stop" else "full"}
    expected = direct(name, batch, mtp_weight=0.5, **how, **more)
    assert loss == expected[0] and (slope == expected[1]).all()
    assert metrics["actor/token_ratio_mean"] == pytest.approx(float(expected[2]["token_ratio_mean"]))
    with pytest.raises(ValueError, match="needs mtp_log_prob, old_mtp_log_prob"):
        run(actor(config), batch)  # in a worker without modules


def test_a_block_of_one_token_needs_no_modules():
    batch, config = make_batch(), PolicyLossConfig("mpo", mtp={"blocks": 1, "lr": 1e-3})
    with handed(mtp_log_prob=None, old_mtp_log_prob=None):
        loss, slope, _ = run(actor(config), batch)
    expected = direct("ppo", batch)
    assert loss == pytest.approx(expected[0]) and torch.allclose(slope, expected[1])


def test_is_a_configuration_of_verl():
    config = PolicyLossConfig("mpo", mtp=MODULES, decay=0.5)
    assert config.mtp["variant"] == "parallel" and config.parameters["mtp_gradient"] == "stop"
    assert pickle.loads(pickle.dumps(config)) == config == replace(config)


@pytest.mark.parametrize(
    ("loss_mode", "settings", "message"),
    [
        ("mpo", {"mtp": {"blocks": 0, "lr": 1e-3}}, r"policy_loss.mtp.blocks=0: .*greater than 0"),
        ("mpo", {"mtp": {"blocks": 3}}, r"policy_loss.mtp.lr=.*Field required"),
        ("mpo", {"mtp": MODULES | {"variant": "serial"}}, r"mtp.variant='serial': .*'parallel' or 'chained'"),
        ("mpo", {"mtp": MODULES | {"policy_gradient": "full"}}, r"policy_gradient='full': .*'stop' or 'mod"),
        ("mpo", {"mtp": MODULES | {"steps": 3}}, r"policy_loss.mtp.steps=3: Extra inputs"),
        ("mpo", {"mtp": MODULES | {"start": " "}}, r"policy_loss.mtp.start=' '"),
        ("mpo", {"mtp": 3}, r"policy_loss.mtp=3: allowed is a mapping"),
        (
            "mpo",
            {"mtp": MODULES, "mtp_gradient": "full"},
            r"mtp_gradient='full': allowed is to set pol",
        ),
        ("mpo", {"mtp": MODULES, "mtp_weight": 1.5}, r"mtp_weight=1.5"),
        ("mpo", {"mtp": MODULES, "mtp_log_prob": 1}, r"mtp_log_prob: mpo takes a tensor"),
        ("mpo", {"mtp_weight": 0.1}, r"needs mtp_log_prob, .*allowed is policy_loss.mtp="),
        ("nfpo", {"mtp": MODULES}, r"policy_loss.mtp: loss_mode='nfpo' takes no modules"),
        ("vanilla", {"mtp": MODULES}, r"policy_loss.mtp: loss_mode='vanilla' takes no modules"),
    ],
)
def test_bad_settings_are_refused(loss_mode, settings, message):
    with pytest.raises(ValueError, match=message):
        PolicyLossConfig(loss_mode, **settings)


@pytest.fixture
def found(monkeypatch):
    """Without the fresh interpreter, which other tests start."""
    monkeypatch.setattr(check, "check_registration", lambda loss_mode: {"version": check.TESTED})


def modules(**changes):
    pairs = (MODULES | changes).items()
    return f"+{LOSS}.mtp={{{','.join(f'{name}:{value}' for name, value in pairs)}}}"


def test_the_check_passes(found):
    lines = check.check([*JOB, modules()])
    assert any("mpo with mtp_gradient='stop'" in line for line in lines)
    assert any(line.startswith("modules beside the actor: blocks=3") for line in lines)
    assert any("actor/token_ratio_mean" in line for line in lines)
    check.check([*JOB, modules(blocks=1)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([f"{ACTOR}.strategy=fsdp"], r"actor.strategy=fsdp: allowed with policy_loss.mtp is fsdp2"),
        ([f"{ACTOR}.ulysses_sequence_parallel_size=2"], r"ulysses_sequence_parallel_size=2: .* is 1"),
        (["actor_rollout_ref.model.use_fused_kernels=True"], r"use_fused_kernels=True: .* is False"),
        (["actor_rollout_ref.model.lora_rank=8"], r"lora_rank=8: allowed with policy_loss.mtp is 0"),
        (["trainer.v1.trainer_mode=sync"], r"trainer_mode=sync, .*allowed .* are rlvr_sync, sync_cpu"),
        (["trainer.use_v1=False"], r"trainer.use_v1=False: another trainer has no modules"),
        ([f"+{LOSS}.horizon=3"], r"mpo has no parameter"),
    ],
)
def test_the_check_fails_where_a_job_would_have_no_modules(found, words, message):
    with pytest.raises(check.Failed, match=message):
        check.check([*JOB, modules(), *words])


def test_the_check_looks_into_the_file_of_modules(found, tmp_path):
    with pytest.raises(check.Failed, match=r"mtp.start=.*mtp.safetensors does not exist here"):
        check.check([*JOB, modules(start=tmp_path)])
    new_modules(random_policy(), 4).save(tmp_path)
    with pytest.raises(check.Failed, match=r"hidden = \[4, 'parallel', 'last'\]; allowed are \[3, 'par"):
        check.check([*JOB, modules(start=tmp_path)])
    check.check([*JOB, modules(start=tmp_path, blocks=4)])


def test_which_hidden_states_say_what():
    """Two sequences, prompts of 2 and 1 tokens, responses of 3 and 2, a hole in the first; K = 3."""
    nested = lambda rows: torch.nested.as_nested_tensor(  # noqa: E731
        [torch.tensor(row) for row in rows], layout=torch.jagged
    )
    batch = {
        "input_ids": nested([[10, 11, 12, 13, 14], [20, 21, 22]]),
        "responses": nested([[12, 13, 14], [21, 22]]),
        "response_mask": nested([[1, 1, 1], [1, 1]]),
        "temperature": 0.5,
    }
    two, three = entries_of(batch, 3, width=None)
    assert two.at.tolist() == [1, 2, 5] and two.target.tolist() == [13, 14, 22]
    assert three.at.tolist() == [1] and three.target.tolist() == [14]
    assert two.row.tolist() == two.at.tolist() and two.place.tolist() == [2, 3, 6]
    assert two.temperature.tolist() == [0.5] * 3
    (two, _) = entries_of(batch, 3, width=5)  # rows of hidden states, padded on the right
    assert two.row.tolist() == [1, 2, 5] and two.place.tolist() == [2, 3, 6]
    (two, _) = entries_of(batch, 3, width=7)
    assert two.row.tolist() == [1, 2, 7] and two.target.tolist() == [13, 14, 22]
    holed = batch | {"response_mask": nested([[1, 0, 1], [1, 1]])}
    assert [found.at.tolist() for found in entries_of(holed, 3, None)] == [[5], [1]]


def test_fields_of_sequences_and_of_responses():
    whole = torch.arange(8.0)[:, None].expand(8, 2) + torch.tensor([0.0, 0.5])
    field = torch.nested.as_nested_tensor([whole[:5].flatten(), whole[5:].flatten()], layout=torch.jagged)
    responses = torch.nested.as_nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged)
    found = padded(of_responses(field, responses, 3), 3)
    assert found[..., 0].tolist() == [[1, 2, 3], [5, 6, 0]]
    assert found[1, :, 1].tolist() == [5.5, 6.5, 0]
