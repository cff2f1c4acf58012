"""Files below the root of another process, opened so that no link in there can lead out of it."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from rtdebug.host.mounts import read_mountinfo

_SYS_OPENAT2 = 437  # one number on every architecture but alpha (include/uapi/asm-generic/unistd.h)
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_IN_ROOT = 0x10


class _OpenHow(ctypes.Structure):
    """struct open_how, include/uapi/linux/openat2.h."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@dataclass(frozen=True, slots=True)
class TmpfsUsage:
    """How full a tmpfs is."""

    used_bytes: int | None
    size_bytes: int | None
    """None: it has no limit (size=0), and then the kernel does not say what is used either."""


def open_inside(pid: int, path: str, flags: int, proc: Path = Path("/proc")) -> int:
    """A descriptor for `path` as `pid` sees it; the caller closes it.

    Symbolic links and `..` are resolved with the root of `pid` as `/`, as chroot(2) would, and magic links
    of /proc are refused: openat2(2), Linux 5.6. Use O_PATH where opening could block or have an effect.
    Raises OSError: no such process or file, or ELOOP for a magic link.
    """
    root = os.open(proc / str(pid) / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        how = _OpenHow(flags | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
        libc = ctypes.CDLL(None, use_errno=True)
        fd: int = libc.syscall(
            ctypes.c_long(_SYS_OPENAT2), root, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)
        )
        if fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        return fd
    finally:
        os.close(root)


def read_dev_shm(pid: int, proc: Path = Path("/proc")) -> TmpfsUsage | None:
    """The tmpfs that `pid` sees at /dev/shm.

    None if there is none, if another file system lies there, if `pid` has exited or is not ours to look at.
    """
    try:
        fd = open_inside(pid, "dev/shm", os.O_PATH | os.O_DIRECTORY, proc)
    except OSError:
        return None
    try:
        # Asked first: statvfs of a dead NFS or FUSE mount would hang.
        if _fstype_of(fd, pid, proc) != "tmpfs":
            return None
        status = os.fstatvfs(fd)
    except OSError:
        return None
    finally:
        os.close(fd)
    if status.f_blocks == 0:
        return TmpfsUsage(used_bytes=None, size_bytes=None)
    used = (status.f_blocks - status.f_bfree) * status.f_frsize
    return TmpfsUsage(used, status.f_blocks * status.f_frsize)


def _fstype_of(fd: int, pid: int, proc: Path) -> str | None:
    """The type of the file system `fd` lies on, by the mount id that /proc/self/fdinfo gives."""
    lines = (proc / "self" / "fdinfo" / str(fd)).read_text().splitlines()
    mount_id = next((line.split()[1] for line in lines if line.startswith("mnt_id:")), None)
    mounts = read_mountinfo(pid, proc)
    return next((mount.fstype for mount in mounts if str(mount.mount_id) == mount_id), None)
