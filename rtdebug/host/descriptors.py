"""/proc/PID/fd: what a process holds open, grouped by what it is.

A memfd or a deleted file of a tmpfs holds memory that no folder shows. Sources: proc_pid_fd(5),
proc_pid_fdinfo(5), fs/d_path.c.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rtdebug.host.mounts import Mount, parse_mountinfo
from rtdebug.host.process_folder import ProcessFolder

MOST_FDS = 65536
"""So many descriptors of a process are looked at: it may have a million."""
_BLOCK_BYTES = 512  # st_blocks, whatever st_blksize says
_DELETED = " (deleted)"
_NUMBERED = re.compile(r"(\w+):\[\d+\]")  # socket:[1234], pipe:[1234], net:[4026531840]


class FdKind(StrEnum):
    """What a descriptor leads to."""

    FILE = "file"
    TMPFS = "tmpfs"
    """A file of a tmpfs, deleted or not: memory."""
    MEMFD = "memfd"
    SOCKET = "socket"
    PIPE = "pipe"
    ANON_INODE = "anon_inode"
    """eventfd, epoll, io_uring, bpf-map, dmabuf, ...: `name` says which."""
    OTHER = "other"
    """A namespace, or what has no name."""


@dataclass(frozen=True, slots=True)
class FdGroup:
    """The descriptors of one process that lead to the same thing; all sockets are one group, and all pipes."""

    kind: FdKind
    name: str
    """The path as the process sees it, without ` (deleted)`; the memfd's name; `[eventfd]`."""
    deleted: bool
    count: int
    device_id: int | None
    """st_dev; this, inode_id and the sizes only for memfds and files of a tmpfs."""
    inode_id: int | None
    size_bytes: int | None
    allocated_bytes: int | None
    """Memory it takes, holes and swapped pages left out."""


class MountTable:
    """Mounts by their id, read once for each mount namespace."""

    def __init__(self) -> None:
        self._known: dict[int | None, dict[int, Mount]] = {}

    def of(self, folder: ProcessFolder) -> dict[int, Mount]:
        """The mounts that a process sees."""
        namespace = folder.namespace_id("mnt")
        if namespace is None or namespace not in self._known:
            mounts = parse_mountinfo(folder.text("mountinfo") or "")
            self._known[namespace] = {mount.mount_id: mount for mount in mounts}
        return self._known[namespace]


def read_fds(folder: ProcessFolder, mounts: MountTable) -> tuple[int, tuple[FdGroup, ...]] | None:
    """How many descriptors a process has open, and their groups; None if it has exited or may not be looked at."""
    try:
        folder_fd = folder.open("fd", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        names = os.listdir(folder_fd)  # noqa: PTH208 - a descriptor
        found = list(_each(folder, folder_fd, names[:MOST_FDS], mounts.of(folder)))
    except OSError:
        return None
    finally:
        os.close(folder_fd)
    groups: dict[tuple[object, ...], FdGroup] = {}
    for group in found:
        key = (group.kind, group.name, group.deleted, group.device_id, group.inode_id)
        known = groups.get(key)
        groups[key] = replace(known, count=known.count + 1) if known else group
    return len(names), tuple(groups.values())


def _each(process: ProcessFolder, folder_fd: int, names: Sequence[str], mounts: dict[int, Mount]) -> Iterator[FdGroup]:
    for name in names:
        try:
            target = os.readlink(name, dir_fd=folder_fd)
        except OSError:  # closed meanwhile
            continue
        yield _group(process, folder_fd, name, target, mounts)


def _group(process: ProcessFolder, folder_fd: int, fd: str, target: str, mounts: dict[int, Mount]) -> FdGroup:
    if match := _NUMBERED.fullmatch(target):
        kind = {"socket": FdKind.SOCKET, "pipe": FdKind.PIPE}.get(match[1], FdKind.OTHER)
        return _plain(kind, match[1])
    if target.startswith("anon_inode:"):
        return _plain(FdKind.ANON_INODE, target.removeprefix("anon_inode:"))
    if not target.startswith("/"):
        return _plain(FdKind.OTHER, target)
    deleted = target.endswith(_DELETED)
    path = target.removesuffix(_DELETED)
    kind = _file_kind(process, fd, path, deleted, mounts)
    plain = _plain(kind, path.removeprefix("/memfd:") if kind is FdKind.MEMFD else path, deleted)
    return plain if kind is FdKind.FILE else _with_size(plain, folder_fd, fd)


def _file_kind(process: ProcessFolder, fd: str, path: str, deleted: bool, mounts: dict[int, Mount]) -> FdKind:
    """By the mount it lies on, which only a memfd (on the kernel's own mount) does not show.

    Looked up before stat(2), which a dead NFS or FUSE server would never answer.
    """
    info = process.text(f"fdinfo/{fd}") or ""
    match = re.search(r"^mnt_id:\s*(\d+)$", info, re.MULTILINE)
    mount = mounts.get(int(match[1])) if match else None
    if mount is not None:
        return FdKind.TMPFS if mount.fstype == "tmpfs" else FdKind.FILE
    return FdKind.MEMFD if deleted and path.startswith("/memfd:") and match else FdKind.FILE


def _plain(kind: FdKind, name: str, deleted: bool = False) -> FdGroup:
    return FdGroup(kind, name, deleted, 1, None, None, None, None)


def _with_size(group: FdGroup, folder_fd: int, fd: str) -> FdGroup:
    try:
        status = os.stat(fd, dir_fd=folder_fd)
    except OSError:
        return group
    if not stat.S_ISREG(status.st_mode):  # a device in /dev, a folder
        return replace(group, kind=FdKind.FILE)
    return replace(
        group,
        device_id=status.st_dev,
        inode_id=status.st_ino,
        size_bytes=status.st_size,
        allocated_bytes=status.st_blocks * _BLOCK_BYTES,
    )
