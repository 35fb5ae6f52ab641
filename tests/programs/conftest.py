"""Pools for all tests: isolated where this machine allows it, else with limits only, and then said so."""

import pytest

from rlvr.verifiers.programs import IsolationError, Limits, ProgramPool

PATIENT = Limits(test_seconds=3.0, total_seconds=10.0, patience=10.0)  # for programs that should end
HASTY = Limits(test_seconds=0.4, total_seconds=1.0, patience=3.0)  # for those that do not


@pytest.fixture(scope="session")
def network():
    """``none`` where the kernel allows it. Without isolation only programs that do no harm are run."""
    try:
        ProgramPool(1).close()
    except IsolationError as error:
        return f"unsafe: {error}"
    return "none"


@pytest.fixture(scope="session")
def pool(network):
    with ProgramPool(2, PATIENT, network.partition(":")[0]) as pool:
        yield pool


@pytest.fixture(scope="session")
def hasty(network):
    with ProgramPool(2, HASTY, network.partition(":")[0], packages=()) as pool:
        yield pool


@pytest.fixture(scope="session")
def isolated(network, pool):
    """The pool, in tests that need isolation."""
    if network != "none":
        pytest.skip(f"isolation is not available here, {network}")
    return pool
