"""Named in ``VERL_USE_EXTERNAL_MODULES``: verl imports it in every process that imports verl.

The platform comes first: what the others import asks verl which device there is.
"""

from rlvr.engines.verl.cpu import platform  # isort: skip
from rlvr.engines.verl.cpu import agent_loop, engine, trainer  # isort: skip

__all__ = ["agent_loop", "engine", "platform", "trainer"]
