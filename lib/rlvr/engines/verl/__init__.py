"""Every objective as a policy loss of verl: ``actor_rollout_ref.actor.policy_loss.loss_mode=nfpo``.

verl imports this module by itself (entry point group ``verl.plugins``) in every process that imports
verl; importing it registers the objectives. How to use it: ``docs/verl.md``. Tested with verl 0.9.1.
"""

import logging

# verl logs an error raised here at debug level and goes on; the job would stop only at its first update,
# with "Unsupported loss mode". So say it aloud before handing it on.
try:
    from rlvr.engines.verl.config import PolicyLossConfig
    from rlvr.engines.verl.losses import PolicyLoss
    from rlvr.engines.verl.registration import check_registration, register_objectives

    register_objectives()
except Exception as error:
    if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] == "verl":
        raise ImportError(
            f"rlvr.engines.verl needs verl ({error}): pip install -e '.[verl]' (tested with verl 0.9.1)"
        ) from error
    logging.getLogger(__name__).exception("rlvr's objectives are NOT registered with verl")
    raise

__all__ = ["PolicyLoss", "PolicyLossConfig", "check_registration", "register_objectives"]
