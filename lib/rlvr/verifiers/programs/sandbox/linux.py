"""The system calls Python does not wrap (3.11): namespaces, mounts, privileges, limits of a process."""

from __future__ import annotations

import ctypes
import itertools
import os
import resource
import signal
import struct
import time

NEWNS, NEWUTS, NEWIPC = 0x00020000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2

_SYS_MOUNT_SETATTR = 442  # the same number on every architecture
_AT_RECURSIVE, _MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 0x8000, 1, 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_LAST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), f"unshare({flags:#x})")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    arguments = [text.encode() if text else None for text in (source, target, kind)]
    number = ctypes.c_ulong(flags)
    _checked(_libc.mount(*arguments, number, data.encode() or None), f"mount({source or kind} on {target})")


def unmount(target: str) -> None:
    _checked(_libc.umount2(target.encode(), MNT_DETACH), f"umount2({target})")


def make_read_only(target: str) -> None:
    """The mount and all below it: read only, no set-user-id programs."""
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    result = _libc.syscall(
        _SYS_MOUNT_SETATTR, -100, target.encode(), _AT_RECURSIVE, attributes, len(attributes)
    )
    _checked(result, f"mount_setattr({target})")


def pivot_root(root: str) -> None:
    """``root``, a mount, becomes ``/`` and the old tree is gone."""
    os.chdir(root)
    _checked(_libc.pivot_root(b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def adopt_orphans() -> None:
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def bound_capabilities() -> None:
    """No program run from here on can gain a capability by ``exec``."""
    for capability in range(_LAST_CAPABILITY + 1):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # none left, or none to drop


def drop_privileges(uid: int | None, readable: bool) -> None:
    """Become ``uid`` (None: stay who we are), without capabilities, now and after any ``exec``.

    The process also dies with the one that forked it. ``readable``: whether others of the same user may
    trace it and read its memory.
    """
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header = struct.pack("Ii", 0x20080522, 0)
    _libc.capset(header, bytes(24))
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _libc.prctl(_PR_SET_DUMPABLE, int(readable), 0, 0, 0)
    die_with_parent()


def die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def limit(name: int, value: int) -> None:
    """Soft and hard limit, never above what is allowed already."""
    hard = resource.getrlimit(name)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(name, (value, value))


def open_address_space() -> int:
    """Descriptor for :func:`address_space`, which works where there is no /proc any more."""
    return os.open("/proc/self/statm", os.O_RDONLY)


def address_space(fd: int) -> int:
    """Bytes of address space that the process which opened ``fd`` has mapped."""
    return int(os.pread(fd, 100, 0).split()[0]) * os.sysconf("SC_PAGE_SIZE")


def processor_seconds(pid: int) -> float:
    """Processor time that a living process has used so far, in all its threads."""
    return time.clock_gettime(~pid << 3 | 2)


def close_all_but(keep: set[int]) -> None:
    """Close every descriptor from 3 on, except these."""
    low = 3
    for fd in sorted(fd for fd in keep if fd >= 3):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 65536)


def tasks_of(uid: int) -> int:
    """Threads that run as ``uid`` on this machine: what RLIMIT_NPROC counts outside a user namespace."""
    count = 0
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.stat(f"/proc/{entry}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{entry}/task"))
            except OSError:
                continue
    return count


def children_of(pid: int) -> list[int]:
    """Child processes, zombies included."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except FileNotFoundError:  # a kernel without that file
        return [
            child for child in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(child) == pid
        ]


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return None


def release() -> tuple[int, int]:
    """Version of the kernel; its limit of processes counts per user namespace from 5.14 on."""
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(itertools.takewhile(str.isdigit, minor)) or 0)
