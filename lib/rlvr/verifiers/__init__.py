"""Verifiers: text of a response in, verdict out. No model, no tokenizer, no network."""

from importlib import import_module
from typing import Any

from rlvr.verifiers.base import Verdict
from rlvr.verifiers.integer import rewards, verify_integer

# Imported when first asked for, so that importing the package stays cheap.
_LAZY = {
    "verify_math": "rlvr.verifiers.math",
    "verify_math_batch": "rlvr.verifiers.math",
    "runtime": "rlvr.verifiers.versions",
    "GRADERS": "rlvr.verifiers.graders",
    "rescore": "rlvr.verifiers.graders",
    "sensitivity": "rlvr.verifiers.graders",
}

__all__ = ["Verdict", "rewards", "verify_integer", *_LAZY]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
