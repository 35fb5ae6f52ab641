"""Programs against tests: what a model wrote runs in a child process, the tests run where it cannot reach."""

from rlvr.verifiers.programs.extraction import extract_program
from rlvr.verifiers.programs.pool import ProgramPool, verify_program, verify_programs
from rlvr.verifiers.programs.results import Limits, ProgramResult
from rlvr.verifiers.programs.tasks import ProgramTask
from rlvr.verifiers.programs.worker import IsolationError

__all__ = [
    "IsolationError",
    "Limits",
    "ProgramPool",
    "ProgramResult",
    "ProgramTask",
    "extract_program",
    "verify_program",
    "verify_programs",
]
