"""Run a command with a server of warm kernels beside it.

    python -m pipelines.warm dvc repro dvc.yaml

A stage of the graph spends about seven seconds on importing torch, pandas and seaborn, and scale smoke has
47 stages. The server (:mod:`.warm_server`) has imported them once, and forks a kernel of itself for each
stage that asks (:mod:`.warm_kernel`). Whoever cannot reach it starts a kernel as always: nothing but time
depends on it. No code of rlvr is in it, so files may be edited meanwhile.

    dvc ── runner ── watchdog
     └──── server ── kernel ── workers        killed:   what ends the others, beside what does without it
                                              dvc       the server's parent-death signal, so the kernels'
                                              server    the kernels' own; their runners say that they died
                                              runner    the server, which sees its connection close
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path

from pipelines.environment import of_kernels
from pipelines.warm_kernel import ADDRESS, PREFIX, own_prefix
from rlvr.notebook import _QUIET

SERVER = Path(__file__).with_name("warm_server.py")
# By its file, so that it starts in any folder; modules are searched for as by `python -m`.
_BY_FILE = f"import runpy; runpy.run_path({str(SERVER)!r}, run_name='__main__')"


def start_server() -> tuple[subprocess.Popen, dict[str, str]]:
    """A server that ends with this process, and what its users need in their environment."""
    name = f"rlvr-warm-{secrets.token_hex(16)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{name}")  # of no file, so that none is left behind
        listener.listen()  # from here on runners wait for it instead of going without
        process = subprocess.Popen(
            [sys.executable, "-c", _BY_FILE, str(listener.fileno()), str(os.getpid())],
            # Packages read these when they are imported, which is before a notebook's first cell says them.
            env=of_kernels(os.environ) | _QUIET,
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the runners, who end their kernels
        )
    return process, {ADDRESS: name, PREFIX: own_prefix()}


def main(command: list[str]) -> None:
    if not command:
        sys.exit("usage: python -m pipelines.warm COMMAND [ARGUMENT ...]")
    if sys.platform == "linux" and ADDRESS not in os.environ:
        os.environ.update(start_server()[1])
    try:
        os.execvp(command[0], command)  # the server's parent from now on is the command
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
