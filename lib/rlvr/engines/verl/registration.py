"""Names of the objectives in verl's registry of policy losses, and the check that a job will find them."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any

from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, register_policy_loss

from rlvr import objectives
from rlvr.engines.verl.losses import PolicyLoss
from rlvr.registry import suggest

logger = logging.getLogger(__name__)

PREFIX = "rlvr."
ENTRY_POINT = ("verl.plugins", "rlvr")  # group and name, as in pyproject.toml
_MARK = "rlvr-registry:"

# What a process of the job does, and nothing else: it imports verl.
_PROBE = f"""
import json
import verl
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY as registry
owners = {{name: getattr(loss, "__module__", "") for name, loss in registry.items()}}
print({_MARK!r} + json.dumps({{"version": verl.__version__, "owners": owners}}))
"""


def register_objectives() -> list[str]:
    """Register every objective as ``rlvr.<name>``, and as ``<name>`` where that name is free.

    A loss that is not ours is never replaced: ``gspo`` or ``dppo_tv`` stay verl's. May be called again.
    Returns the registered names, sorted.
    """
    registered = []
    for objective in objectives.list_objectives():
        loss = PolicyLoss(objective)
        for name in (PREFIX + objective, objective):
            owner = getattr(POLICY_LOSS_REGISTRY.get(name, loss), "__module__", "another plugin")
            if owner == PolicyLoss.__module__:
                register_policy_loss(name)(loss)
                registered.append(name)
            elif not owner.startswith("verl."):
                logger.warning("loss_mode=%s is %s's; rlvr's is %s%s", name, owner, PREFIX, objective)
    return sorted(registered)


def probe() -> tuple[dict[str, Any], str]:
    """``version`` and ``owners`` of verl's registry in a fresh interpreter, and what that wrote to stderr."""
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True)
    errors = done.stderr.strip()[-3000:]
    answer = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or not answer:
        raise RuntimeError(f"`import verl` fails in a fresh process:\n{errors}")
    return json.loads(answer[-1].removeprefix(_MARK)), errors


def import_by_hand() -> str:
    """What importing the plugin says where verl said nothing."""
    command = [sys.executable, "-c", "import rlvr.engines.verl"]
    errors = subprocess.run(command, capture_output=True, text=True).stderr.strip()[-3000:]
    if errors:
        return f"verl says nothing of it, but `import rlvr.engines.verl` does:\n{errors}"
    return (
        "verl says nothing of it, and `import rlvr.engines.verl` by hand works: does another plugin, or a "
        "sitecustomize of this environment, take the losses out again?"
    )


def check_registration(loss_mode: str) -> dict[str, Any]:
    """Whether a job with this ``loss_mode`` will run a loss of rlvr.

    Starts a fresh interpreter that does what each process of a job does, import verl, and looks into verl's
    registry there. Returns ``version`` (verl's) and ``owners`` (module of each registered loss).

    Raises:
        RuntimeError: it will not; the message says why and what to do.
    """
    group, plugin = ENTRY_POINT
    if not any(found.name == plugin for found in entry_points(group=group)):
        raise RuntimeError(
            f"the installed rlvr declares no entry point {plugin!r} in the group {group!r}, so verl does not "
            "load it: install it again (pip install -e '.[verl]', or pip install -e . in a checkout)"
        )
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    if policy != "auto" and plugin not in [name.strip() for name in policy.split(",")]:
        raise RuntimeError(
            f"VERL_USE_EXTERNAL_PLUGINS={policy}: verl skips the plugin {plugin!r}; unset the variable, or "
            f"add {plugin} to it, for all processes of the job"
        )
    found, errors = probe()
    owners = found["owners"]
    if not any(owner == PolicyLoss.__module__ for owner in owners.values()):
        said = f"its error in a fresh process:\n{errors}" if errors else import_by_hand()
        raise RuntimeError(f"verl loaded, but rlvr's plugin did not; {said}")
    if loss_mode not in owners:
        raise RuntimeError(f"verl's registry has no loss_mode {suggest(loss_mode, owners)}")
    if owners[loss_mode] != PolicyLoss.__module__:
        ours = f"; rlvr's is {PREFIX}{loss_mode}" if PREFIX + loss_mode in owners else ""
        raise RuntimeError(f"loss_mode={loss_mode!r} is a loss of {owners[loss_mode]}, not of rlvr{ours}")
    return found
