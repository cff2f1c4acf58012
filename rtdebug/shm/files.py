"""The files of one tmpfs, by name: walked below descriptors, so that no link leads out and no rename matters."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rtdebug.host.inside import mount_id_of, open_inside

MOST_FILES = 50_000
MOST_ENTRIES = 4 * MOST_FILES
"""Names that are looked at: files, folders and all else."""
_MOST_PENDING = 512
"""Folders that wait, each with a descriptor; what lies in further ones is left out."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A regular file."""

    path: str
    """As the container sees it."""
    device_id: int
    inode_id: int
    size_bytes: int
    allocated_bytes: int
    uid: int
    changed_ns: int
    """The last write(2), truncate or change of its attributes."""


def walk(pid: int, path: str, device_id: int, proc: Path = Path("/proc")) -> Iterator[FoundFile]:
    """The regular files of the tmpfs `device_id` that is mounted at `path` of `pid`, without those of other mounts.

    At most MOST_FILES. A file that vanishes meanwhile is left out; links are never followed.
    """
    try:
        fd = open_inside(pid, path, os.O_PATH | os.O_NOFOLLOW, proc)
    except OSError:
        return
    try:
        status = os.fstat(fd)
        if status.st_dev != device_id:
            return
        if stat.S_ISREG(status.st_mode):
            yield _found(path, status)
        elif stat.S_ISDIR(status.st_mode):
            yield from _bounded(_below(fd, path, device_id))
    finally:
        os.close(fd)


def _bounded(files: Iterator[FoundFile]) -> Iterator[FoundFile]:
    for _, file in zip(range(MOST_FILES), files, strict=False):
        yield file


def _below(top: int, path: str, device_id: int) -> Iterator[FoundFile]:
    """Folders are opened one below the other; a folder's files come before those of folders in it."""
    mount_id = mount_id_of(top)
    budget = iter(range(MOST_ENTRIES))
    pending = [(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=top), path.rstrip("/"))]
    try:
        while pending:
            folder, prefix = pending.pop()
            try:
                for name in _names(folder, budget):
                    with suppress(OSError):
                        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode) and status.st_dev == device_id:
                            yield _found(f"{prefix}/{name}", status)
                        elif stat.S_ISDIR(status.st_mode) and len(pending) < _MOST_PENDING:
                            inner = _enter(folder, name, mount_id)
                            pending += [] if inner is None else [(inner, f"{prefix}/{name}")]
            finally:
                os.close(folder)
    finally:
        for folder, _ in pending:
            os.close(folder)


def _names(folder: int, budget: Iterator[int]) -> Iterator[str]:
    """The names in a folder, while the budget of all folders lasts: a container can make millions."""
    with os.scandir(folder) as entries:
        for entry, _ in zip(entries, budget, strict=False):
            yield entry.name


def _enter(folder: int, name: str, mount_id: int | None) -> int | None:
    """A folder of the same mount; None for another mount's, which is listed by itself."""
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    if mount_id_of(inner) == mount_id:
        return inner
    os.close(inner)
    return None


def _found(path: str, status: os.stat_result) -> FoundFile:
    return FoundFile(
        path=path,
        device_id=status.st_dev,
        inode_id=status.st_ino,
        size_bytes=status.st_size,
        allocated_bytes=status.st_blocks * 512,
        uid=status.st_uid,
        changed_ns=max(status.st_mtime_ns, status.st_ctime_ns),
    )
