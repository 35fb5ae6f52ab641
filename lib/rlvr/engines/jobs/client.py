"""Ray's Jobs API: connect, and follow a job's log through lost connections."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from rlvr.engines.jobs.redaction import redact

LOCAL = "http://127.0.0.1:8265"
ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # Ray reads them in this order, before any argument
ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
#: What a connection that is gone raises in Ray's client: its own, those of requests and of aiohttp (OSError).
LOST = (RuntimeError, OSError, asyncio.TimeoutError)
DOWN = (
    "is a Ray running there? On this machine: `ray start --head`. Elsewhere: RAY_ADDRESS=http://HEAD:8265, "
    "the dashboard's address, reachable from here (ssh -L 8265:localhost:8265 HEAD), not port 6379 or 10001"
)
#: `ray start` asks for a token as soon as one exists in ~/.ray, which an earlier `ray.init()` may have made.
TOKEN = (
    "RAY_AUTH_MODE=token here too, and the same token as there (Ray reads ~/.ray/auth_token or the file in "
    "RAY_AUTH_TOKEN_PATH); or start Ray with RAY_AUTH_MODE=disabled on a machine that nobody else reaches"
)


class Client(Protocol):
    """What is used of ``ray.job_submission.JobSubmissionClient``."""

    def submit_job(
        self, *, entrypoint: str, submission_id: str, runtime_env: dict[str, Any], metadata: dict[str, str]
    ) -> str: ...
    def get_job_status(self, job_id: str) -> Any: ...
    def tail_job_logs(self, job_id: str) -> Any: ...
    def stop_job(self, job_id: str) -> bool: ...


class NoRay(RuntimeError):
    """There is no Ray to talk to."""


class ConnectionLost(RuntimeError):
    """Nothing was heard for too long; the job may go on."""


def connect(address: str | None = None, token: str | None = None) -> Client:
    """A client of the cluster at ``address``, else at ``RAY_ADDRESS``, else of the Ray on this machine.

    ``token``: what that Ray asks for; None: what Ray finds itself.

    Raises:
        NoRay: says what to do.
    """
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise NoRay(
            f"Ray is not installed here ({error}): pip install 'ray[default]', the version that the "
            "cluster has"
        ) from error
    held = {name: os.environ.pop(name) for name in ADDRESSES if address and name in os.environ}
    given = address or next((os.environ[name] for name in ADDRESSES if os.environ.get(name)), None)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else None
        return JobSubmissionClient(given or LOCAL, headers=headers)
    except Exception as error:  # Ray's own errors share no base with those of its transport
        where = redact(given) if given else f"RAY_ADDRESS is not set, and {LOCAL} does not answer"
        if type(error).__name__ == "AuthenticationError":
            raise NoRay(f"Ray at {where} asks for a token: {TOKEN}") from None  # its text holds the address
        raise NoRay(f"no Ray at {where} ({redact(str(error))[:200]}): {DOWN}") from None
    finally:
        os.environ.update(held)


def submit(client: Client, patience: float = 120.0, **job: Any) -> None:
    """``client.submit_job``; a Ray that has just started has no agent that takes jobs: it is asked again."""
    end = time.monotonic() + patience
    while True:
        try:
            client.submit_job(**job)
            return
        except RuntimeError as error:
            if "No available agent" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(2.0)


def status_of(client: Client, job: str) -> str | None:
    """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED; None if this cluster does not know the job."""
    try:
        status = client.get_job_status(job)
    except RuntimeError as error:
        if "404" in str(error) or "does not exist" in str(error):
            return None
        raise
    return str(getattr(status, "value", status))


def follow(
    client: Client,
    job: str,
    sink: Callable[[str], None],
    note: Callable[[str], None],
    patience: float = 900.0,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str | None:
    """Hand every line of the log to ``sink``, once and in order, until the job has ended.

    A connection that breaks is opened again, for ``patience`` seconds without an answer.

    Returns:
        The job's last status; None if the cluster no longer knows it.

    Raises:
        ConnectionLost: after ``patience``.
    """
    lines, heard, told, wait = 0, clock(), False, 2.0
    while True:
        try:
            status = status_of(client, job)
            if status is None:
                return None
            heard, wait = clock(), 2.0
            if told:
                note("connected again")
                told = False
            if status == "PENDING":
                sleep(2.0)
                continue
            lines = _run(_tail(client, job, sink, lines))
            status = status_of(client, job)
            if status in ENDED or status is None:
                return status
            sleep(1.0)  # the log ended, its job not quite
        except _Broken as broken:
            lines, error = broken.lines, broken.cause
        except LOST as cause:
            error = cause
        else:
            continue
        if clock() - heard > patience:
            raise ConnectionLost(
                f"nothing heard of {job} for {patience:.0f} s ({redact(str(error))[:200]}); the job may go "
                "on: `rlvr job logs` with the same experiment attaches again"
            ) from error
        if not told:
            note(f"connection lost ({redact(str(error))[:120]}); trying again, the job goes on meanwhile")
            told = True
        sleep(wait)
        wait = min(60.0, wait * 2)


class _Broken(Exception):
    def __init__(self, lines: int, cause: BaseException):
        super().__init__(str(cause))
        self.lines, self.cause = lines, cause


async def _tail(client: Client, job: str, sink: Callable[[str], None], known: int) -> int:
    """The log always comes from its beginning: the first ``known`` lines were handed on before."""
    count, rest = 0, ""
    try:
        async for chunk in client.tail_job_logs(job):
            *complete, rest = (rest + chunk).split("\n")
            for line in complete:
                count += 1
                if count > known:
                    sink(line.rstrip("\r").rpartition("\r")[2])  # of a progress bar, its last state
    except LOST as error:
        raise _Broken(max(count, known), error) from error
    if rest:
        count += 1
        if count > known:
            sink(rest.rpartition("\r")[2])
    return max(count, known)


def _run(work: Coroutine[Any, Any, int]) -> int:
    """``asyncio.run``, also where a loop runs already: in a notebook, on a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    loop = asyncio.new_event_loop()
    task, outcome = loop.create_task(work), []

    def target() -> None:
        try:
            outcome.append((loop.run_until_complete(task), None))
        except BaseException as error:
            outcome.append((0, error))
        finally:
            loop.close()

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.2)
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(task.cancel)
        raise
    value, error = outcome[0]
    if error is not None:
        raise error
    return value
