"""All that `rtdebug shm` knows of one container at one moment."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.errors import HostUnable, TargetError
from rtdebug.host.cgroup import MemoryHierarchy, find_memory_hierarchy, pids_of
from rtdebug.host.fds import FileUses
from rtdebug.host.process import read_comm, read_stat
from rtdebug.shm.charges import Charges
from rtdebug.shm.limits import memory_limits
from rtdebug.shm.model import ShmObject
from rtdebug.shm.mounts import TmpfsMount, dev_shm_is, read_tmpfs_mounts
from rtdebug.shm.objects import read_objects
from rtdebug.shm.uses import read_host_uses, shared_memory_devices


@dataclass(frozen=True, slots=True)
class ShmReport:
    """One container's shared memory."""

    container: Container
    pid: int
    """The process whose view it is, on the host: the container's init, mostly."""
    time_ns: int
    """Unix time of the look."""
    mounts: tuple[TmpfsMount, ...]
    """/dev/shm first."""
    objects: tuple[ShmObject, ...]
    """The largest first."""
    dev_shm_fstype: str | None
    """What lies at /dev/shm: `tmpfs`; another type is no memory; None: there is no such folder."""
    comms: frozenset[str]
    """Of the container's processes."""
    unseen_pids: tuple[int, ...]
    """Processes of the host that may not be looked at: whether they use an object is not known."""
    cut: tuple[str, ...] = ()
    """Mounts with more files than are read: the rest is missing."""
    segments_seen: bool = True
    """Whether its SysV segments could be read."""

    @property
    def orphans(self) -> tuple[ShmObject, ...]:
        """What nobody uses any more."""
        return tuple(each for each in self.objects if each.orphan)

    @property
    def orphan_bytes(self) -> int:
        """What removing them would free."""
        return sum(each.allocated_bytes or 0 for each in self.orphans)


def read_shm(
    container: Container,
    hierarchy: MemoryHierarchy | None = None,
    proc: Path = Path("/proc"),
    known: FileUses | None = None,
) -> ShmReport:
    """The shared memory of a running container; `known` is read_uses() of several. Raises TargetError when nothing of
    it runs, RtdebugError as read_tmpfs_mounts() does.
    """
    hierarchy = hierarchy or _hierarchy(proc)
    members = members_of(container, hierarchy)
    pid = _viewer(container, members, proc)
    mounts = read_tmpfs_mounts(pid, memory_limits(container.cgroup, hierarchy, proc), proc)
    with Charges(hierarchy, proc) as charges:
        found = read_objects(pid, members | {pid}, mounts, charges, proc, known)
    return ShmReport(
        container, pid, time.time_ns(), mounts, found.objects, dev_shm_is(pid, proc), _comms(members, proc),
        found.unseen_pids, found.cut, found.segments_seen,
    )  # fmt: skip


def read_uses(
    containers: Iterable[Container], hierarchy: MemoryHierarchy | None, proc: Path = Path("/proc")
) -> FileUses:
    """Who uses the shared memory of these containers, for read_shm() of each."""
    viewers = (container.pid or _oldest(members_of(container, hierarchy), proc) for container in containers)
    return read_host_uses(shared_memory_devices((pid for pid in viewers if pid is not None), proc), proc)


def read_mounts(
    container: Container, hierarchy: MemoryHierarchy | None = None, proc: Path = Path("/proc")
) -> tuple[TmpfsMount, ...]:
    """The part of read_shm() that costs next to nothing: the sizes. Raises as that does."""
    hierarchy = hierarchy or _hierarchy(proc)
    pid = container.pid or _viewer(container, members_of(container, hierarchy), proc)
    return read_tmpfs_mounts(pid, memory_limits(container.cgroup, hierarchy, proc), proc)


def _viewer(container: Container, members: frozenset[int], proc: Path) -> int:
    pid = container.pid if container.pid is not None else _oldest(members, proc)
    if pid is None:
        raise TargetError(f"nothing runs in {container.name or container.id!r}", "`rtdebug ps` lists what runs")
    return pid


def members_of(container: Container, hierarchy: MemoryHierarchy | None) -> frozenset[int]:
    """The container's processes: all in its memory cgroup and below. Of a bare process: itself."""
    own = frozenset() if container.pid is None else frozenset({container.pid})
    if hierarchy is None or container.cgroup in (None, "/") or container.id.startswith("pid:"):
        return own
    try:
        return own | pids_of(hierarchy.path(container.cgroup))
    except (HostUnable, ValueError):
        return own


def _comms(pids: frozenset[int], proc: Path) -> frozenset[str]:
    return frozenset(comm for pid in pids if (comm := read_comm(pid, proc)) is not None)


def _hierarchy(proc: Path) -> MemoryHierarchy | None:
    try:
        return find_memory_hierarchy(proc)
    except HostUnable:
        return None


def _oldest(pids: frozenset[int], proc: Path) -> int | None:
    stats = [stat for pid in pids if (stat := read_stat(pid, proc)) is not None]
    return min(stats, key=lambda stat: (stat.start_ticks, stat.pid)).pid if stats else None
