"""What keeps a tmpfs from growing: its size, half of the RAM, the memory cgroups above its writer, the host's memory.

tmpfs pages are charged to the cgroup of the process that first touches them, and cannot be reclaimed without swap
(Documentation/filesystems/tmpfs.rst, cgroup-v2.rst). So what is left before a cgroup's limit is

    limit - usage + page cache of files (active and inactive)

for that cache can be dropped, or written back, while the kernel makes room. Swap is not counted: most containers
have none, and a tmpfs that lives in swap is no use to those that need one. A limit above the container's counts
with everything else that runs below it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rtdebug.errors import HostUnable
from rtdebug.host.cgroup import MemoryHierarchy, ancestors
from rtdebug.host.memcg import MemoryState, read_memory
from rtdebug.host.meminfo import available_bytes, read_meminfo


class LimitKind(StrEnum):
    """What ends the growth of a tmpfs, and so how its writer fails."""

    MOUNT_SIZE = "mount_size"
    """The `size=` of the mount: ENOSPC, or SIGBUS for who touches a page that finds no room."""
    HALF_OF_RAM = "half_of_ram"
    """The size of a tmpfs mounted without one: as MOUNT_SIZE, if nothing else comes first."""
    MEMORY_CGROUP = "memory_cgroup"
    """A memory limit: an OOM kill."""
    HOST_MEMORY = "host_memory"
    """What the host has available: an OOM kill that may hit anybody."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of a tmpfs."""

    kind: LimitKind
    limit_bytes: int
    left_bytes: int
    """What can still be written before it ends."""
    cgroup: str | None = None
    """Who sets the limit, of a MEMORY_CGROUP."""


def binding(limits: Iterable[Limit]) -> Limit | None:
    """The limit that ends first; None without any."""
    return min(limits, key=lambda limit: limit.left_bytes, default=None)


def reclaimable_bytes(state: MemoryState) -> int:
    """Page cache of a cgroup, tmpfs aside: shmem pages are on the lists of anonymous memory."""
    prefix = "total_" if state.version == 1 else ""
    return sum(state.stat.get(f"{prefix}{name}", 0) for name in ("active_file", "inactive_file"))


def memory_limits(
    cgroup: str | None, hierarchy: MemoryHierarchy | None, proc: Path = Path("/proc")
) -> tuple[Limit, ...]:
    """The limits of memory for a process in `cgroup`: of each cgroup above that has one, and of the host."""
    limits = [*_cgroup_limits(cgroup, hierarchy)] if cgroup and hierarchy else []
    meminfo = read_meminfo(proc)
    available, total = available_bytes(meminfo), meminfo.get("MemTotal")
    if available is not None and total is not None:
        limits.append(Limit(LimitKind.HOST_MEMORY, total, available))
    return tuple(limits)


def _cgroup_limits(cgroup: str, hierarchy: MemoryHierarchy) -> Iterable[Limit]:
    for ancestor in ancestors(cgroup):
        try:
            state = read_memory(hierarchy.path(ancestor))
        except HostUnable:
            return
        if state is not None and state.limit_bytes is not None and state.usage_bytes is not None:
            used = max(0, state.usage_bytes - reclaimable_bytes(state))
            left = max(0, state.limit_bytes - used)
            yield Limit(LimitKind.MEMORY_CGROUP, state.limit_bytes, left, ancestor)
