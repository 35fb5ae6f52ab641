"""A preloaded interpreter that forks one judge per program. It reads no test and no program itself.

Started by ``worker.Worker`` with its configuration as the only argument and a socket as descriptor 0.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile

from . import channel, codec, judge, linux
from .box import kill_descendants
from .jail import PACKAGES, Jail, program_uid

_LIBRARY = (
    "abc array bisect builtins calendar cmath collections contextlib copy dataclasses datetime decimal enum "
    "fractions functools hashlib heapq io itertools json math numbers operator queue random re statistics "
    "string textwrap threading traceback typing unicodedata"
).split()
_WITH = {"numpy": ("numpy.random",)}  # imported on first use, and slow


def main() -> None:
    config = json.loads(sys.argv[1])
    parent = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    try:
        zygote = Zygote(config)
    except Exception as error:
        channel.send(parent, codec.dumps({"error": f"{type(error).__name__}: {error}"}))
        return
    channel.send(parent, codec.dumps({"ready": os.getpid()}))
    try:
        while True:
            seconds, packages = channel.START.unpack(channel.receive_exactly(parent, channel.START.size))
            zygote.preload(packages)
            zygote.run(parent, seconds)
    except channel.Closed:
        pass
    finally:
        zygote.close()


class Zygote:
    def __init__(self, config: dict):
        self.isolated = config["isolated"]
        import site

        site.setquit()
        for name in _LIBRARY:
            importlib.import_module(name)
        self.packages: list[str] = config["preload"]
        self.loaded = 0
        os.umask(0o022)
        linux.adopt_orphans()
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("500")
        except OSError:
            pass
        self.size = linux.open_address_space()
        self.base = {"memory": linux.address_space(self.size), "processes": 0}
        if os.geteuid() != 0 and not (self.isolated and linux.release() >= (5, 14)):
            self.base["processes"] = linux.tasks_of(os.geteuid())  # the limit counts them too
        self.uid: int | None = None
        self.folder: str | None = None
        self.jail: Jail | None = None
        if self.isolated:
            self.jail = Jail(config)
            self.uid = self.jail.uid
            sys.path.append(PACKAGES)
        else:
            sys.path.extend(config["package_folders"])
            self.uid = self._readable(program_uid())
        linux.bound_capabilities()
        sys.path.insert(0, "")
        gc.collect()
        gc.freeze()

    def preload(self, packages: int) -> None:
        """Import what the next program or its tests mention, for all that follow."""
        new = packages & ~self.loaded
        if not new:
            return
        self.loaded |= new
        for bit, name in enumerate(self.packages):
            if new >> bit & 1:
                with contextlib.suppress(ImportError):  # the program will see it
                    for module in (name, *_WITH.get(name, ())):
                        importlib.import_module(module)
        self.base["memory"] = linux.address_space(self.size)
        gc.collect()
        gc.freeze()

    @staticmethod
    def _readable(uid: int | None) -> int | None:
        """``uid``, or None if that user cannot read the standard library (an interpreter in /root)."""
        if uid is None:
            return None
        child = os.fork()
        if child == 0:
            os.setuid(uid)
            os._exit(not os.access(os.__file__, os.R_OK))
        return uid if os.waitpid(child, 0)[1] == 0 else None

    def run(self, parent: socket.socket, seconds: float) -> None:
        """One job: fork the judge, wait for it and whatever outlived it, and say how it ended."""
        folder = "/tmp" if self.jail else self._new_folder()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                judge.main(parent, self.uid, folder, self.isolated, self.base)
                status = 0
            except channel.Closed:
                pass
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(status)
        end = {"late": self._wait(child, parent, seconds)}
        end["status"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        self._clean()
        channel.send(parent, codec.dumps(end))

    @staticmethod
    def _wait(child: int, parent: socket.socket, seconds: float) -> bool:
        """Whether the judge had to be killed."""
        watch = os.pidfd_open(child)
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        poll.register(parent, select.POLLHUP)
        ready = dict(poll.poll(seconds * 1000))
        os.close(watch)
        if watch in ready:
            return False
        os.kill(child, signal.SIGKILL)
        return True

    def _clean(self) -> None:
        """No process and no file of the last program is left."""
        if not self.isolated:
            while kill_descendants(os.getpid()):
                pass
        while True:  # the box of a killed judge dies with it and is ours to collect
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
        if self.jail:
            self.jail.empty_tmp()
        else:
            self._remove_folder()

    def _new_folder(self) -> str:
        self.folder = tempfile.mkdtemp(prefix="rlvr-program-")
        if self.uid is not None:
            os.chown(self.folder, self.uid, self.uid)
        return self.folder

    def _remove_folder(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    def close(self) -> None:
        self._remove_folder()
