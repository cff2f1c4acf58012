"""Each tmpfs that a container sees: how large, how full, and what really limits it.

Sources: proc_pid_mountinfo(5), tmpfs(5), mm/shmem.c (shmem_statfs, shmem_show_options).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import RtdebugError
from rtdebug.host.inside import mount_id_of, open_inside
from rtdebug.host.mounts import Mount, read_mountinfo
from rtdebug.shm.limits import Limit, LimitKind, binding
from rtdebug.shm.volumes import Volume, VolumeKind, volume_of

SHM_PATH = "/dev/shm"
_MOST_MOUNTS = 500


@dataclass(frozen=True, slots=True)
class TmpfsMount:
    """One tmpfs, at the place where the container sees most of it. None: the kernel does not say."""

    path: str
    """In the container."""
    also_at: tuple[str, ...]
    """Further mount points of the same file system."""
    source: str
    root: str
    """The folder of the file system that is mounted: not `/` for a part of a larger tmpfs."""
    device_id: int
    """As in st_dev."""
    is_file: bool
    """A single file of a tmpfs is mounted there."""
    covered: bool
    """Another mount lies over it: nobody reaches its files by name, but they still take memory."""
    size_bytes: int | None
    """None: without limit (`size=0`), or covered."""
    used_bytes: int | None
    """Of the whole file system, pages in swap included."""
    inodes: int | None
    """How many files it may hold (`nr_inodes=`); None: without limit, or covered."""
    inodes_left: int | None
    options: Mapping[str, str | None]
    """Of the file system, as mountinfo has them: `size` (absent: half of the RAM), `nr_inodes`, `mode`, `huge`,
    `noswap`, `uid`, `gid`."""
    read_only: bool
    volume: Volume
    limits: tuple[Limit, ...]
    """All that could end its growth; empty when it is read-only or not known how full it is."""

    @property
    def is_dev_shm(self) -> bool:
        """Whether shm_open(3) finds its files."""
        return self.path == SHM_PATH and not self.covered

    @property
    def is_of_others(self) -> bool:
        """Whether it is another container's volume: a process with the host's own mounts sees those of all."""
        return self.volume.kind is not VolumeKind.HOST and self.volume.host_path == self.path

    @property
    def limit(self) -> Limit | None:
        """What ends its growth first."""
        return binding(self.limits)

    @property
    def limited_by(self) -> LimitKind | None:
        """The kind of what ends its growth first."""
        return self.limit.kind if self.limit else None

    @property
    def left_bytes(self) -> int | None:
        """What can still be written before that."""
        return self.limit.left_bytes if self.limit else None


@dataclass(frozen=True, slots=True)
class _Fill:
    """What statvfs(3) says of a tmpfs."""

    size_bytes: int | None
    used_bytes: int | None
    inodes: int | None
    inodes_left: int | None


def read_tmpfs_mounts(pid: int, limits: Iterable[Limit] = (), proc: Path = Path("/proc")) -> tuple[TmpfsMount, ...]:
    """Each tmpfs that `pid` sees, once, /dev/shm first; at most 500.

    `limits` are those of its memory (limits.memory_limits). Raises RtdebugError if `pid` has exited, or may not be
    looked at.
    """
    mounts = read_mountinfo(pid, proc)
    if not mounts:
        raise RtdebugError(f"process {pid} shows no mounts", "it has exited, or rtdebug is not run as root")
    host_mounts = read_mountinfo(1, proc) or read_mountinfo("self", proc)
    memory = tuple(limits)
    groups: dict[str, list[Mount]] = {}
    for mount in mounts:
        if mount.fstype == "tmpfs":
            groups.setdefault(mount.device, []).append(mount)
    found = [_tmpfs(pid, group, host_mounts, memory, proc) for group in list(groups.values())[:_MOST_MOUNTS]]
    return tuple(sorted(found, key=lambda mount: not mount.is_dev_shm))


def dev_shm_is(pid: int, proc: Path = Path("/proc")) -> str | None:
    """The type of the file system at /dev/shm of `pid`, whatever it is; None if there is no such folder."""
    try:
        fd = open_inside(pid, SHM_PATH, os.O_PATH | os.O_DIRECTORY, proc)
    except OSError:
        return None
    try:
        mount_id = mount_id_of(fd, proc)
    finally:
        os.close(fd)
    return next((mount.fstype for mount in read_mountinfo(pid, proc) if mount.mount_id == mount_id), None)


def open_mount(pid: int, mount: Mount, proc: Path = Path("/proc")) -> int | None:
    """An O_PATH descriptor of what is mounted; None when something else is seen there. The caller closes it."""
    try:
        fd = open_inside(pid, mount.mount_point, os.O_PATH | os.O_NOFOLLOW, proc)
    except OSError:
        return None
    if mount_id_of(fd, proc) == mount.mount_id:
        return fd
    os.close(fd)
    return None


def _tmpfs(
    pid: int, group: list[Mount], host_mounts: Iterable[Mount], memory: tuple[Limit, ...], proc: Path
) -> TmpfsMount:
    """One file system, as seen through the best of its mounts."""
    best, fill, is_file = group[0], None, False
    for mount in sorted(group, key=_preference):
        fd = open_mount(pid, mount, proc)
        if fd is not None:
            best, (fill, is_file) = mount, _look(fd)
            break
    read_only = "ro" in best.super_options or all("ro" in mount.options for mount in group)
    return TmpfsMount(
        path=best.mount_point,
        also_at=tuple(dict.fromkeys(mount.mount_point for mount in group if mount is not best)),
        source=best.source,
        root=best.root,
        device_id=os.makedev(*map(int, best.device.split(":"))),
        is_file=is_file,
        covered=fill is None,
        size_bytes=fill.size_bytes if fill else None,
        used_bytes=fill.used_bytes if fill else None,
        inodes=fill.inodes if fill else None,
        inodes_left=fill.inodes_left if fill else None,
        options=best.super_options,
        read_only=read_only,
        volume=volume_of(best, host_mounts),
        limits=() if fill is None or read_only else tuple(_limits(best, fill, memory)),
    )


def _preference(mount: Mount) -> tuple[bool, int]:
    """/dev/shm first, then the mount that shows most of the file system."""
    return mount.mount_point != SHM_PATH, 0 if mount.root == "/" else mount.root.count("/")


def _limits(mount: Mount, fill: _Fill, memory: tuple[Limit, ...]) -> Iterator[Limit]:
    if fill.size_bytes is not None and fill.used_bytes is not None:
        kind = LimitKind.MOUNT_SIZE if "size" in mount.super_options else LimitKind.HALF_OF_RAM
        yield Limit(kind, fill.size_bytes, fill.size_bytes - fill.used_bytes)
    yield from memory


def _look(fd: int) -> tuple[_Fill, bool]:
    """How full it is, and whether a single file is mounted. Closes the descriptor."""
    try:
        is_file = not stat.S_ISDIR(os.fstat(fd).st_mode)
        status = os.fstatvfs(fd)
    finally:
        os.close(fd)
    limited = status.f_blocks > 0
    fill = _Fill(
        size_bytes=status.f_blocks * status.f_frsize if limited else None,
        used_bytes=(status.f_blocks - status.f_bfree) * status.f_frsize if limited else None,
        inodes=status.f_files or None,
        inodes_left=status.f_ffree if status.f_files else None,
    )
    return fill, is_file
