"""Settings of the trainer of two turns in two stages: what the check says, and what it refuses."""

import pytest

# not "verl" alone: without the package, that name finds this folder
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")
pytest.importorskip("transfer_queue", reason="TransferQueue is not installed: pip install -e '.[verl]'")

from rlvr.engines.verl import check
from rlvr.engines.verl.self_correcting import SelfCorrectingTrainer

pytestmark = pytest.mark.verl
MODE = "rlvr_self_correction"
ACTOR, ROLLOUT, OWN = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", f"trainer.v1.{MODE}"
ANCHORED = {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": 0}
GOOD = {
    f"{ACTOR}.policy_loss.loss_mode": "rlvr.gspo",
    f"{ACTOR}.ppo_mini_batch_size": 8,
    f"{ROLLOUT}.n": 8,
    f"{ROLLOUT}.prompt_length": 2048,
    "data.train_batch_size": 32,
    "algorithm.adv_estimator": "grpo",
    "trainer.total_training_steps": 20,
    "trainer.v1.trainer_mode": MODE,
    f"+{OWN}": "{self_correction:{stage1_share:0.25}}",
    **ANCHORED,
}


def checked(monkeypatch, **changes):
    monkeypatch.setattr(check, "check_registration", lambda loss_mode: {"version": check.TESTED})
    given = {name: value for name, value in (GOOD | changes).items() if value is not None}
    return check.check([f"{name}={value}" for name, value in given.items()])


def test_the_check_says_what_is_trained(monkeypatch):
    said = "\n".join(checked(monkeypatch))
    assert "a second turn for every response, rewarded by r2; in stage 2 by r2 + 2 (r2 - r1)" in said
    assert "0.1 on the first turn of stage 1, 0.01 on the rest" in said and "updates a step: 4" in said
    assert "stage 1: the first 5 of 20 steps" in said and "verl adds its KL term" not in said
    said = "\n".join(checked(monkeypatch, **{"trainer.total_training_steps": 1}))
    assert "warning: self_correction.stage1_share=0.25 leaves none of the 1 steps to stage 2" in said
    free = {f"+{OWN}": "{self_correction:{first_turn_kl:0,kl:0}}", f"{ACTOR}.use_kl_loss": False}
    assert "0 on the first turn" in "\n".join(checked(monkeypatch, **free))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"+{OWN}": "{}"}, f"{MODE}.self_correction is not set: .*config_corrections.SelfCorrection"),
        ({f"+{OWN}": "{self_correction:{bonnus:2}}"}, "bonnus"),
        ({f"+{OWN}": "{self_correction:{stage1_share:1}}"}, "stage1_share.*less than 1"),
        ({f"+{OWN}": "{self_correction:{kl:-1}}"}, "kl"),
        ({f"{ACTOR}.use_kl_loss": False}, "use_kl_loss=False.*allowed is True: self_correction has first"),
        (
            {f"+{OWN}": "{self_correction:{first_turn_kl:0,kl:0}}"},
            "use_kl_loss=True.*allowed is False: self_correction has first_turn_kl=0, kl=0",
        ),
        ({f"{ACTOR}.kl_loss_coef": 0.01}, "kl_loss_coef=0.01.*allowed is 0: .*verl's own would come on top"),
        ({"algorithm.use_kl_in_reward": True}, "use_kl_in_reward=True.*allowed is False"),
        ({"algorithm.adv_estimator": "rloo"}, "adv_estimator=rloo.*allowed is grpo"),
        ({"+algorithm.filter_groups.enable": True}, "filter_groups.enable=True"),
        ({f"{ACTOR}.shuffle": True}, f"actor.shuffle=True with trainer_mode={MODE}: allowed is False"),
        ({f"{ROLLOUT}.n": 1}, "rollout.n=1"),
        ({f"{ROLLOUT}.prompt_length": None}, "prompt_length=512.*more than data.max_prompt_length=512"),
        ({f"{ACTOR}.policy_loss.loss_mode": "masked_gspo"}, "masked_gspo needs a mask of tokens"),
        (
            {
                "trainer.v1.trainer_mode": "rlvr_sync",
                f"+{OWN}": None,
                "+trainer.v1.rlvr_sync": "{self_correction:{}}",
            },
            "rlvr_sync.self_correction is read by nobody: .*rlvr_self_correction, self_correction_cpu",
        ),
        (
            {f"+{OWN}": "{self_correction:{},counterfactual:{}}"},
            "self_correction.counterfactual is read by nobody",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(monkeypatch, changes, message):
    with pytest.raises(check.Failed, match=message):
        checked(monkeypatch, **changes)


def test_the_trainer_itself_refuses_before_it_starts_anything():
    given = GOOD | {f"+{OWN}": "{self_correction:{},recods_dir:x}"}
    config = check.composed([f"{name}={value}" for name, value in given.items()], "ppo_trainer")
    with pytest.raises(check.Failed, match="no setting 'recods_dir': did you mean 'records_dir'"):
        SelfCorrectingTrainer(config)
