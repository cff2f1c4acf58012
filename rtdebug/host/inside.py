"""Files below the root of another process, opened so that no link in there can lead out of it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from rtdebug.host.maps import Mapping
from rtdebug.host.mounts import read_mountinfo

_SYS_OPENAT2 = 437  # one number on every architecture but alpha
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_IN_ROOT = 0x10
_OPENAT2_TRIES = 8


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
    return open_in_root(proc / str(pid) / "root", path, flags)


def open_in_root(root: Path, path: str, flags: int) -> int:
    """Opens `path` as a process with that root would: no symlink and no `..` leads out (D13).

    `root` is usually /proc/PID/root. Returns a descriptor (close-on-exec); raises OSError, with ENOSYS
    where there is no openat2(2) (before Linux 5.6).
    """
    root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(_OPENAT2_TRIES):
            with contextlib.suppress(BlockingIOError):  # EAGAIN: something was renamed on the way
                return _openat2(root_fd, path, flags, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
        raise BlockingIOError(errno.EAGAIN, "its folders are being renamed", path)
    finally:
        os.close(root_fd)


def open_regular_in_root(root: Path, path: str, inode_id: int | None = None) -> int:
    """Opens a regular file below `root` for reading, if given only one with this inode number.

    Nothing else is ever opened: a device may act when opened, a FIFO may block; nor does the last part of
    the path lead elsewhere. Raises OSError, with EINVAL for what is not such a file.
    """
    return _reopen(open_in_root(root, path, os.O_PATH | os.O_NOFOLLOW), inode_id)


def open_mapped_file(pid: int, mapping: Mapping, proc: Path = Path("/proc")) -> int:
    """Opens the file behind a mapping for reading, also when it is deleted or in another mount namespace.

    Through /proc/PID/map_files (needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE), else by its path below
    /proc/PID/root if what lies there has the same inode number. Only a regular file, as in
    open_regular_in_root. Raises OSError.
    """
    process = proc / str(pid)
    map_file = process / "map_files" / f"{mapping.start:x}-{mapping.end:x}"
    try:
        found = os.open(map_file, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        if mapping.deleted or not mapping.path.startswith("/"):
            raise
        return open_regular_in_root(process / "root", mapping.path, mapping.inode_id)
    return _reopen(found, None)


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


def mount_id_of(fd: int, proc: Path = Path("/proc")) -> int | None:
    """The id (as in mountinfo) of the mount that a descriptor of this process lies on: proc_pid_fdinfo(5)."""
    lines = (proc / "self" / "fdinfo" / str(fd)).read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("mnt_id:")), None)


def _fstype_of(fd: int, pid: int, proc: Path) -> str | None:
    """The type of the file system `fd` lies on."""
    mount_id = mount_id_of(fd, proc)
    return next((mount.fstype for mount in read_mountinfo(pid, proc) if mount.mount_id == mount_id), None)


def _reopen(found: int, inode_id: int | None) -> int:
    """A readable descriptor in place of an O_PATH one."""
    try:
        status = os.fstat(found)
        if not stat.S_ISREG(status.st_mode) or inode_id not in (None, status.st_ino):
            raise OSError(errno.EINVAL, "not the regular file that was meant")
        # O_NONBLOCK: who holds a lease on the file (fcntl(2), F_SETLEASE) could make us wait for 45 s.
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(found)


def _openat2(dir_fd: int, path: str, flags: int, resolve: int) -> int:
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, resolve)  # struct open_how
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    fd = syscall(ctypes.c_long(_SYS_OPENAT2), ctypes.c_long(dir_fd), os.fsencode(path), how, ctypes.c_size_t(len(how)))
    if fd < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
    return int(fd)
