"""The cgroups from the container's up to the root, with their memory, pids and cpu files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.errors import HostUnable
from rtdebug.host.cgroup import MemoryHierarchy, ancestors
from rtdebug.host.controllers import controller_folder
from rtdebug.host.memcg import read_memory
from rtdebug.host.text import read_text
from rtdebug.snapshot.model import CgroupRecord

# Named, for to read is not always harmless: memory.force_empty and memory.reclaim act, others need an open event.
_MEMORY = (
    *("memory.numa_stat", "memory.pressure", "memory.min", "memory.low", "memory.high", "memory.swap.high"),
    *("memory.swap.events", "memory.swap.peak", "memory.zswap.current", "memory.zswap.max", "memory.zswap.writeback"),
    *("memory.soft_limit_in_bytes", "memory.swappiness", "memory.use_hierarchy", "memory.oom_control"),
    *("memory.memsw.usage_in_bytes", "memory.memsw.max_usage_in_bytes", "memory.memsw.failcnt"),
    *("memory.kmem.usage_in_bytes", "memory.kmem.limit_in_bytes", "memory.kmem.failcnt"),
    *("memory.kmem.tcp.usage_in_bytes", "memory.kmem.tcp.limit_in_bytes", "memory.kmem.tcp.failcnt"),
    *("memory.oom.group", "cgroup.events", "cgroup.stat", "cgroup.controllers"),
)
_OTHERS = {
    "pids": ("pids.current", "pids.max", "pids.peak", "pids.events"),
    "cpu": ("cpu.max", "cpu.weight", "cpu.stat", "cpu.pressure", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares"),
    "hugetlb": ("hugetlb.*[KMG]B.current", "hugetlb.*[KMG]B.usage_in_bytes"),
}
"""Patterns: which sizes of huge pages there are depends on the machine and its page size."""


def read_cgroups(
    container: Container, hierarchy: MemoryHierarchy, proc: Path = Path("/proc")
) -> Iterator[CgroupRecord]:
    """The container's cgroup first, the root last; those beyond what is mounted here are left out."""
    if container.cgroup is None:
        return
    others = _other_folders(container.pid, proc)
    for depth, cgroup in enumerate(ancestors(container.cgroup)):
        try:
            folder = hierarchy.path(cgroup)
        except (HostUnable, ValueError):
            return
        files = dict(_read(folder, _MEMORY))
        for controller, top in others.items():
            if depth < len(top):
                names = [path.name for pattern in _OTHERS[controller] for path in top[depth].glob(pattern)]
                files |= _read(top[depth], names)
        yield CgroupRecord(cgroup, read_memory(folder), files)


def _other_folders(pid: int | None, proc: Path) -> dict[str, list[Path]]:
    """Of each controller the folders from that of `pid` upwards. Runtimes give all hierarchies the same path."""
    if pid is None:
        return {}
    found = {}
    for controller in _OTHERS:
        folder = controller_folder(pid, controller, proc)
        if folder is not None:
            found[controller] = [path for path in (folder, *folder.parents) if (path / "cgroup.procs").exists()]
    return found


def _read(folder: Path, names: Iterable[str]) -> dict[str, str]:
    texts = ((name, read_text(folder / name)) for name in names)
    return {name: text for name, text in texts if text is not None}
