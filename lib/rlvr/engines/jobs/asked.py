"""What a user may add to a job with ``--set``: settings of verl that the experiment's file does not decide.

The plan, the limit of GPU-hours and the verdict whether a job is done are by the file. A setting that went
round it would cost what nobody allowed, or count as done what is not.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlvr.engines.jobs.command import ACTOR, CRITIC, KEYS, overrides
from rlvr.engines.jobs.experiments import Experiment
from rlvr.engines.jobs.sections import SECTIONS

FREE = frozenset({"trainer.logger"})  # of what the command names
#: What the command need not name, and a job would end by, or train something else.
HELD = ("hydra.run", "trainer.val_only", "trainer.use_v1", "trainer.resume_from_path", f"{ACTOR}.policy_loss")
#: Name in the scale file: name of verl.
NAMES = {
    **KEYS,
    **{f"critic.{key}": verl for key, verl in CRITIC.items()},
    "update.minibatch_responses": f"{ACTOR}.ppo_mini_batch_size",
}


def check_settings(words: Sequence[str], experiment: Experiment) -> None:
    """Refuse what the file of experiments decides, or the job itself.

    Raises:
        ValueError: names the setting, and where it is changed.
    """
    own = {word.partition("=")[0].lstrip("+") for word in overrides(experiment, experiment.seeds[0])} - FREE
    for word in words:
        name = word.partition("=")[0].lstrip("+~")
        if name in NAMES and NAMES[name] != name:
            raise ValueError(
                f"--set {name}: that is its name in the scale file ({NAMES[name]} in verl): change it there, "
                "with its source"
            )
        if name.partition(".")[0] in SECTIONS.keys() - {"data", "critic"}:  # two that verl has, too
            raise ValueError(f"--set {name}: a section of the scale file, which verl does not have")
        if key := next((key for key, verl in NAMES.items() if _touches(name, verl)), None):
            raise ValueError(f"--set {name}: it is {key} of the scale file: change it there, with its source")
        if any(_touches(name, held) for held in (*own, *HELD)):
            raise ValueError(
                f"--set {name}: `rlvr job` sets it, by the settings of {experiment.name} in its scale file; "
                "allowed are settings of verl that it does not set"
            )


def _touches(name: str, own: str) -> bool:
    """Whether to set ``name`` changes ``own``: itself, a part of it, or a section around it."""
    return name == own or name.startswith(f"{own}.") or own.startswith(f"{name}.")
