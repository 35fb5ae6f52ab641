"""What a verdict was made with."""

from __future__ import annotations

import platform
from importlib import metadata

import rlvr


def runtime() -> dict[str, str]:
    """Versions that a stored verdict should be kept with; ``absent`` for what is not installed."""
    versions = {"rlvr": rlvr.__version__, "python": platform.python_version()}
    for name in ("math-verify", "latex2sympy2_extended", "antlr4-python3-runtime", "sympy", "mpmath"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions
