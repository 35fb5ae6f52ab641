"""A root directory that holds Python, /usr and an empty /tmp, in namespaces without network.

What a program cannot see cannot be written or read by it: home directories, the repository, benchmark
files, other processes (there is no /proc), sockets. Everything visible is read only, except /tmp, a
file system in memory with a size limit that is emptied between programs.
"""

from __future__ import annotations

import os

from . import linux

_STAGES = ("/srv", "/media", "/mnt", "/opt", "/run", "/var")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32")
_FILES = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
)
PACKAGES = "/packages"  # where the packages are that programs may import


def program_uid() -> int | None:
    """Whom programs run as where we are root, one user per zygote; None where we cannot become another."""
    if os.geteuid() != 0:
        return None
    uid = 20000 + os.getpid() % 40000
    with open("/proc/self/uid_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return uid if any(first <= uid < first + count for first, _, count in ranges) else None


class Jail:
    """Built once per zygote. ``uid`` is whom programs run as: None where we are already nobody special."""

    def __init__(self, config: dict):
        self.disk_bytes = config["disk_bytes"]
        self.uid: int | None = None
        self._enter_namespaces()
        self._no_ipc_objects()
        self._build(config)

    def _enter_namespaces(self) -> None:
        spaces = linux.NEWNS | linux.NEWNET | linux.NEWIPC | linux.NEWUTS
        uid, gid = os.geteuid(), os.getegid()
        other = program_uid()
        if other is not None:
            try:
                linux.unshare(spaces)
            except PermissionError:  # root in a container; it may still have user namespaces
                pass
            else:
                self.uid = other
                return
        linux.unshare(linux.NEWUSER | spaces)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)

    @staticmethod
    def _no_ipc_objects() -> None:
        """System V memory would outlive a program; not every kernel lets us forbid it."""
        for name in ("shmmni", "msgmni"):
            try:
                with open(f"/proc/sys/kernel/{name}", "w") as file:
                    file.write("0")
            except OSError:
                pass

    def _build(self, config: dict) -> None:
        sources, packages = config["sources"], config["packages"]
        used = [f"{os.path.realpath(path)}/" for path in (*sources, *packages)]
        free = (s for s in _STAGES if os.path.isdir(s) and not any(path.startswith(f"{s}/") for path in used))
        root = next(free, None)
        if any(path.startswith("/tmp/") for path in used[: len(sources)]):
            raise OSError("Python's library lies in /tmp, which is empty for programs")
        if root is None:
            raise OSError(f"no directory to build a root in: tried {', '.join(_STAGES)}")
        linux.mount("", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
        linux.mount("tmpfs", root, "tmpfs", linux.MS_NOSUID, "mode=755,size=16m")
        for path in _SYSTEM:
            if os.path.islink(path):
                os.symlink(os.readlink(path), root + path)
            elif os.path.isdir(path):
                self._bind(path, root)
        for path in sources:
            if not any(path.startswith(f"{system}/") for system in _SYSTEM):
                self._bind(path, root)
        for path in config["masks"]:  # other packages may ship benchmark data
            if os.path.isdir(root + path):
                linux.mount("tmpfs", root + path, "tmpfs", linux.MS_NOSUID, "mode=755,size=1m")
        for path in _FILES:
            if os.path.exists(path):
                self._bind(path, root)
        for path in packages:  # side by side: they find each other's libraries there
            self._bind(path, root, f"{PACKAGES}/{os.path.basename(path)}")
        os.makedirs(f"{root}/tmp", exist_ok=True)
        os.symlink("/tmp", f"{root}/dev/shm")
        os.symlink("/tmp/stdin", f"{root}/dev/stdin")
        linux.pivot_root(root)
        linux.make_read_only("/")
        self._mount_tmp()

    @staticmethod
    def _bind(path: str, root: str, name: str | None = None) -> None:
        target = root + (name or path)
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        elif not os.path.exists(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "w"):
                pass
        linux.mount(path, target, flags=linux.MS_BIND | linux.MS_REC)

    def _mount_tmp(self) -> None:
        options = f"mode=1777,size={self.disk_bytes},nr_inodes=4096"
        linux.mount("tmpfs", "/tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)

    def empty_tmp(self) -> None:
        """A new /tmp unless the last program left it as it was."""
        if os.listdir("/tmp"):
            linux.unmount("/tmp")
            self._mount_tmp()
