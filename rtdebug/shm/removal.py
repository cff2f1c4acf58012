"""Removal of orphans: checked again, in the instant of removal, by the kernel itself.

A file is opened below the container's root, compared with what was listed (device, inode, last change), and leased:
the kernel grants a write lease (fcntl(2), F_SETLEASE) only while no other descriptor or mapping of the file exists,
anywhere, also in flight through a socket; and while it is held, whoever opens the file waits. Then it is unlinked.
A SysV segment is looked at again in its namespace, and removed there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import posixpath
import signal
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rtdebug.host.inside import open_inside
from rtdebug.host.process import read_comm
from rtdebug.host.sysv import SysvSegment, read_sysv_shm, remove_sysv_segment
from rtdebug.shm.model import ObjectKind, ShmObject
from rtdebug.shm.uses import read_host_uses

_NO_LEASES = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})


@dataclass(frozen=True, slots=True)
class Removal:
    """What became of one orphan."""

    object: ShmObject
    problem: str | None
    """Why it is still there; None: it was removed."""


def remove_orphans(pid: int, orphans: Iterable[ShmObject], proc: Path = Path("/proc")) -> Iterator[Removal]:
    """Removes what is listed from the container of `pid`, each after a last look; tells of each as it goes."""
    orphans = tuple(orphans)
    segments = {each.shm_id: each for each in read_sysv_shm(pid, proc) or ()}
    used = _used_now(orphans, proc)
    for orphan in orphans:
        if orphan.kind is ObjectKind.SYSV:
            problem = _remove_segment(pid, orphan, segments.get(orphan.inode_id), proc)
        else:
            problem = used.get((orphan.device_id, orphan.inode_id)) or _remove_file(pid, orphan, proc)
        yield Removal(orphan, problem)


def _used_now(orphans: Iterable[ShmObject], proc: Path) -> dict[tuple[int | None, int], str]:
    """Who has begun to use a file since it was listed: by name, for the person to read."""
    devices = frozenset(each.device_id for each in orphans if each.device_id is not None)
    if not devices:
        return {}
    uses = read_host_uses(devices, proc)
    found: dict[tuple[int | None, int], str] = {}
    for key, use in uses.by_key.items():
        user = min(use.mappers | use.holders)
        found[key.device_id, key.inode_id] = f"process {user} ({read_comm(user, proc)}) uses it now"
    return found


def _remove_segment(pid: int, orphan: ShmObject, found: SysvSegment | None, proc: Path) -> str | None:
    if found is None:
        return "it is gone"
    if found.changed_ns != orphan.changed_ns or f"{found.key:#010x}" != orphan.name:
        return "it has been used or replaced meanwhile"
    return remove_sysv_segment(pid, found, proc)


def _remove_file(pid: int, orphan: ShmObject, proc: Path) -> str | None:
    folder, name = posixpath.split(orphan.name)
    try:
        folder_fd = open_inside(pid, folder, os.O_RDONLY | os.O_DIRECTORY, proc)
    except OSError as error:
        return f"{folder} cannot be opened: {error.strerror}"
    try:
        return _unlink(folder_fd, name, orphan)
    except FileNotFoundError:
        return "it is gone"
    except OSError as error:
        return f"it cannot be removed: {error.strerror}"
    finally:
        os.close(folder_fd)


def _unlink(folder_fd: int, name: str, orphan: ShmObject) -> str | None:
    if not _is_same(os.stat(name, dir_fd=folder_fd, follow_symlinks=False), orphan):
        return "it has been changed or replaced meanwhile"
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
    try:
        with _lease(fd) as granted:
            if not granted:
                return "somebody has it open or mapped now"
            if not _is_same(os.fstat(fd), orphan):
                return "it has been changed or replaced meanwhile"
            if not _is_same(os.stat(name, dir_fd=folder_fd, follow_symlinks=False), orphan):
                return "it has been changed or replaced meanwhile"
            os.unlink(name, dir_fd=folder_fd)
            return None
    finally:
        os.close(fd)


def _is_same(status: os.stat_result, orphan: ShmObject) -> bool:
    return (
        stat.S_ISREG(status.st_mode)
        and (status.st_dev, status.st_ino) == (orphan.device_id, orphan.inode_id)
        and max(status.st_mtime_ns, status.st_ctime_ns) == orphan.changed_ns
    )


@contextmanager
def _lease(fd: int) -> Iterator[bool]:
    """Whether nobody else has the file open; until the end nobody will. True, too, where there are no leases."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel tells so that somebody waits for us
    try:
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            granted = True
        except OSError as error:
            granted = error.errno in _NO_LEASES
        yield granted
    finally:
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        signal.signal(signal.SIGIO, before)
