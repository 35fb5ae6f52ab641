"""Verifiers: text of a response in, verdict out. No model, no tokenizer, no network."""

from rlvr.verifiers.base import Verdict
from rlvr.verifiers.integer import rewards, verify_integer

__all__ = ["Verdict", "rewards", "verify_integer"]
