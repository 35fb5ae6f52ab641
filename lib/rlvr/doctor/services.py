"""Checks of what surrounds a run: Ray, the benchmarks, DVC, Jupyter's kernel."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rlvr.doctor.finding import Finding

START = "ray start --head"


@dataclass(frozen=True)
class Answer:
    """What came back from a Ray dashboard: an HTTP status, or why there was none; its Ray's version."""

    status: int | None
    error: str = ""
    version: str | None = None


def ray_address(environment: Mapping[str, str], default: str) -> tuple[str, bool]:
    """(address, whether somebody set it): the variables in the order in which Ray reads them."""
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        if environment.get(name):
            return environment[name], True
    return default, False


def ray(
    installed: str | None,
    address: str,
    given: bool,
    answer: Answer | None,
    mode: str | None,
    token: bool,
    needed: bool,
) -> Finding:
    """Whether a Ray takes jobs.

    Args:
        installed: version of Ray here; None: not installed.
        address: where it was looked for, without credentials; ``given``: by RAY_ADDRESS.
        answer: None if nobody was asked.
        mode: RAY_AUTH_MODE.
        token: whether there is a token here.
        needed: the environment is for jobs, so that Ray has to be installed.
    """
    if installed is None:
        if needed or given:
            return Finding(
                "ray", "fault", "not installed, and jobs go through it", "pip install 'ray[default]'"
            )
        return Finding("ray", "ok", "not installed; only `rlvr job` needs it")
    if given and urlsplit(address).scheme not in ("http", "https"):
        return Finding(
            "ray",
            "fault",
            f"RAY_ADDRESS={address}: jobs go to the dashboard, not to port 6379 or 10001",
            "export RAY_ADDRESS=http://HEAD:8265",
        )
    mode = mode.lower() if mode else None
    if mode not in (None, "token", "disabled"):
        return Finding(
            "ray",
            "fault",
            f"RAY_AUTH_MODE={mode}: allowed are token and disabled",
            "export RAY_AUTH_MODE=token",
        )
    if mode == "token" and not token:
        return Finding(
            "ray",
            "fault",
            "RAY_AUTH_MODE=token, and no token here: RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH and "
            "~/.ray/auth_token are empty. It has to be the cluster's; on its head node, once:",
            "ray get-auth-token --generate",
        )
    if answer is None or answer.status is None:
        why = f" ({answer.error})" if answer and answer.error else ""
        if given:
            return Finding(
                "ray",
                "fault",
                f"nothing answers at RAY_ADDRESS={address}{why}: is the head up, and its port reachable?",
                "ssh -L 8265:localhost:8265 HEAD",
            )
        return Finding(
            "ray", "ok", f"{installed}; none runs here (RAY_ADDRESS is not set): `{START}` starts one"
        )
    if answer.status in (401, 403):
        if mode == "token":
            text = f"Ray at {address} refuses the token here: it is not that cluster's"
            return Finding("ray", "fault", text, "ssh HEAD cat .ray/auth_token > ~/.ray/auth_token")
        text = f"Ray at {address} asks for a token; RAY_AUTH_MODE is {mode or 'not set'} here"
        return Finding("ray", "fault", text, "export RAY_AUTH_MODE=token")
    if answer.status != 200:
        text = f"{address} answers with HTTP {answer.status}: is it Ray's dashboard?"
        return Finding("ray", "fault", text, "export RAY_ADDRESS=http://HEAD:8265")
    text = f"Ray {answer.version or 'of unknown version'} answers at {address}"
    if answer.version and answer.version != installed:
        return Finding(
            "ray", "note", f"{text}, here is {installed}", f"pip install 'ray[default]=={answer.version}'"
        )
    if mode == "disabled":
        return Finding("ray", "note", f"{text}, without a token: whoever reaches it runs programs as you")
    return Finding("ray", "ok", text)


def data(variable: str | None, exists: bool, found: Sequence[str], total: int, fetches: bool) -> Finding:
    """Which benchmarks are on this machine.

    Args:
        variable: RLVR_DATA; ``exists``: it names a folder.
        found: names of those that are here, of ``total``.
        fetches: whether the package ``datasets`` is there to download them.
    """
    if variable and not exists:
        return Finding("data", "fault", f"RLVR_DATA={variable}: no such folder", "unset RLVR_DATA")
    where = f" (RLVR_DATA={variable})" if variable else ""
    fix = "rlvr data fetch math500 amc23"
    if not fetches:
        fix = f"pip install -e '.[evaluation]' && {fix}"
    if not found:
        text = f"none of {total} benchmarks is here{where}; scales smoke and laptop need none"
        return Finding("data", "note", text, fix)
    shown = ", ".join(found[:6]) + (f" and {len(found) - 6} more" if len(found) > 6 else "")
    return Finding("data", "ok", f"{len(found)} of {total} benchmarks are here{where}: {shown}")


@dataclass(frozen=True)
class Repository:
    """What is known of the checkout. ``lock`` is the text of ``.dvc/tmp/rwlock``, None if there is none;
    ``holder`` the process that holds DVC's own lock."""

    git: bool
    dvc: bool
    lock: str | None = None
    holder: int | None = None


def dvc(installed: str | None, repository: Repository, needed: bool) -> Finding:
    """Whether ``dvc repro`` can start."""
    if installed is None:
        if needed:
            text = "not installed, and `make repro` is DVC"
            return Finding("dvc", "fault", text, "pip install -c constraints.txt -e '.[notebooks]'")
        return Finding("dvc", "ok", "not installed; nothing in this environment needs it")
    if not repository.dvc:
        return Finding(
            "dvc", "fault", "no .dvc folder here: this is no checkout of the project", "cd CHECKOUT"
        )
    if not repository.git:
        return Finding("dvc", "fault", "this folder is not under git, where DVC expects it", "git init")
    if repository.holder is not None:
        return Finding(
            "dvc",
            "note",
            f"process {repository.holder} holds DVC's lock: another `dvc` runs here, and a second one waits",
            f"ps -o pid,etime,args -p {repository.holder}",
        )
    if repository.lock is not None and not _is_json(repository.lock):
        text = ".dvc/tmp/rwlock was cut short by a kill, and DVC stops at it"
        return Finding("dvc", "fault", text, "rm .dvc/tmp/rwlock")
    return Finding("dvc", "ok", f"{installed}, git repository, no other `dvc` runs")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def lock_holder(locks: str, device: int, inode: int) -> int | None:
    """The process that holds a lock on a file, from the text of ``/proc/locks``."""
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    for line in locks.splitlines():
        fields = line.split()
        if len(fields) >= 6 and fields[1] != "->" and fields[5] == wanted:
            return int(fields[4])
    return None


def kernel(name: str, command: Sequence[str] | None, python: str, needed: bool) -> Finding:
    """Whether Jupyter's kernel of that name is this interpreter; stages do not ask, JupyterLab does.

    Args:
        command: the kernel's argv; None if there is no such kernel.
        python: this interpreter.
        needed: notebooks are run in this environment.
    """
    fix = f"python -m ipykernel install --sys-prefix --name {name} --display-name 'Python 3 (ipykernel)'"
    if command is None:
        if needed:
            return Finding(
                "kernel", "fault", f"Jupyter knows no kernel {name}", f"pip install ipykernel && {fix}"
            )
        return Finding(
            "kernel", "ok", "Jupyter is not installed here; no notebook is run in this environment"
        )
    first = command[0] if command else ""
    if not os.path.isabs(first) or _environment(first) == _environment(python):
        return Finding("kernel", "ok", f"{name} is this interpreter")
    return Finding(
        "kernel",
        "fault",
        f"{name} is another interpreter, {first}: JupyterLab, nbval and papermill would run notebooks there",
        fix,
    )


def _environment(python: str) -> Path:
    """The environment's folder; its ``python`` is a link to an interpreter that many share."""
    return Path(python).parent.parent.absolute()
