"""How much memory and /dev/shm a container uses right now."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.host.cgroup import MemoryHierarchy, nearest_memory_cgroup
from rtdebug.host.inside import read_dev_shm
from rtdebug.host.memcg import effective_limit, read_memory


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """One container's figures; None: the kernel does not say."""

    container: Container
    memory_usage_bytes: int | None
    memory_limit_bytes: int | None
    """The lowest limit of its cgroup and all above; None: there is none."""
    memory_limit_cgroup: str | None
    """The cgroup that sets that limit."""
    shm_used_bytes: int | None
    shm_size_bytes: int | None


def read_usage(container: Container, hierarchy: MemoryHierarchy, proc: Path = Path("/proc")) -> ContainerUsage:
    """The figures of a container; all None if it has exited meanwhile."""
    usage, limit = None, None
    cgroup = container.cgroup and nearest_memory_cgroup(hierarchy, container.cgroup)
    if cgroup:
        state = read_memory(hierarchy.path(cgroup))
        usage = state.usage_bytes if state else None
        limit = effective_limit(hierarchy, cgroup)
    shm = read_dev_shm(container.pid, proc) if container.pid is not None else None
    return ContainerUsage(
        container=container,
        memory_usage_bytes=usage,
        memory_limit_bytes=limit.limit_bytes if limit else None,
        memory_limit_cgroup=limit.cgroup if limit else None,
        shm_used_bytes=shm.used_bytes if shm else None,
        shm_size_bytes=shm.size_bytes if shm else None,
    )
