"""One look at a container: its memory cgroup's files, and what it sees at /dev/shm.

Sources: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.export.model import Orphans, Reading
from rtdebug.host.cgroup import MemoryHierarchy, Version, pids_of
from rtdebug.host.inside import TmpfsUsage, read_dev_shm
from rtdebug.leaks.cgroup_sample import Limits, figures_of
from rtdebug.leaks.quick import keyed, read_bytes
from rtdebug.leaks.tables import FIGURES
from rtdebug.shm.report import read_shm

_THP: Mapping[Version, tuple[tuple[str, bytes], ...]] = {
    1: (("anon", b"total_rss_huge"),),
    2: (("anon", b"anon_thp"), ("file", b"file_thp"), ("shmem", b"shmem_thp")),
}
_MOST_PROCESSES = 256
"""Processes of a v1 container whose page tables are added up; of more they are not known."""


class MemoryReader:
    """Reads memory cgroups in one pass: each cgroup above them is asked for its limit once."""

    def __init__(self, hierarchy: MemoryHierarchy, proc: Path = Path("/proc")) -> None:
        self._hierarchy = hierarchy
        self._proc = proc
        self._limits = Limits(hierarchy.version, str(hierarchy.mount_point))

    def read(self, cgroup: str) -> Reading | None:
        """The figures of a cgroup; None if it has gone, or counts no memory."""
        folder = self._hierarchy.path(cgroup)
        content = read_bytes(f"{folder}/memory.stat")
        if content is None:
            return None
        stat = keyed(content)
        version = self._hierarchy.version
        values = zip(FIGURES, figures_of(str(folder), version, stat, self._limits), strict=False)
        figures = {name: value for name, value in values if value is not None}
        if version == 1 and (page_tables_bytes := self._page_tables_bytes(folder)) is not None:
            figures["page_tables_bytes"] = page_tables_bytes
        for name in (b"thp_fault_alloc", b"thp_collapse_alloc"):
            if name in stat:
                figures[name.decode()] = stat[name]
        thp = {kind: stat[key] for kind, key in _THP[version] if key in stat}
        return Reading(figures, kinds_of(figures), thp)

    def _page_tables_bytes(self, folder: Path) -> int | None:
        """v1 does not count them: those of its processes are (VmPTE, proc_pid_status(5))."""
        pids = pids_of(folder)
        if len(pids) > _MOST_PROCESSES:
            return None
        return 1024 * sum(_vm_pte_kib(read_bytes(f"{self._proc}/{pid}/status") or b"") for pid in pids)


def kinds_of(figures: Mapping[str, int]) -> dict[str, int]:
    """Bytes by kind, disjoint; a kind that is not known is absent, and then `kernel` has what belongs to it."""
    kinds = {
        name: figures[f"{name}_bytes"]
        for name in ("anon", "file", "shmem", "slab", "kernel_stack", "page_tables", "sock")
        if f"{name}_bytes" in figures
    }
    if "file" in kinds:
        kinds["file"] = max(0, kinds["file"] - kinds.get("shmem", 0))  # they are read one after the other
    if "kernel_bytes" in figures:
        told = sum(kinds.get(name, 0) for name in ("slab", "kernel_stack", "page_tables"))
        kinds["kernel"] = max(0, figures["kernel_bytes"] - told)
    return kinds


def read_shm_usage(container: Container, proc: Path = Path("/proc")) -> TmpfsUsage | None:
    """How full its /dev/shm is. May block as long as its file systems do: call it apart."""
    return None if container.pid is None else read_dev_shm(container.pid, proc)


def read_orphans(container: Container, hierarchy: MemoryHierarchy) -> Orphans:
    """What is left in its own /dev/shm, tmpfs mounts and SysV segments that nobody uses. Looks at every process."""
    own = [each for each in read_shm(container, hierarchy).orphans if not each.shared]
    return Orphans(len(own), sum(each.allocated_bytes or 0 for each in own))


def _vm_pte_kib(status: bytes) -> int:
    _, found, rest = status.partition(b"\nVmPTE:")
    words = rest.split(None, 1)
    return int(words[0]) if found and words and words[0].isdigit() else 0
