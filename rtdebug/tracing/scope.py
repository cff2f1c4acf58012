"""Scope: what a trace is about, and who is in it now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.containers.owners import OwnerOf
from rtdebug.errors import HostUnable, RtdebugError, TargetError
from rtdebug.host.cgroup import (
    MemoryHierarchy,
    ancestors,
    cgroup_id,
    child_cgroups,
    find_memory_hierarchy,
    memory_cgroup_of,
    memory_entry,
    parse_proc_cgroup,
    pids_of,
)
from rtdebug.host.maps import read_maps
from rtdebug.host.process import pids, read_cmdline, read_comm, read_ids, read_stat
from rtdebug.host.text import read_text
from rtdebug.tracing.processes import Process

_ELF_CLASS_32 = 1
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Scope:
    """One container, or (None) the whole host."""

    container: Container | None
    hierarchy: MemoryHierarchy | None
    """None: this host has no memory controller in sight; then processes are followed by their parents."""
    hierarchy_id: int

    @property
    def all(self) -> bool:
        """The whole host."""
        return self.container is None

    @property
    def folder(self) -> Path | None:
        """The folder of the container's own memory cgroup; None if it has none of its own."""
        cgroup = self.container.cgroup if self.container else None
        if self.hierarchy is None or cgroup is None or cgroup == "/":
            return None
        try:
            folder = self.hierarchy.path(cgroup)
        except (HostUnable, ValueError):
            return None
        # a bare process is a guest in its cgroup
        return None if self.container and self.container.id.startswith("pid:") else folder


def make_scope(container: Container | None, proc: Path = Path("/proc")) -> Scope:
    """Find the memory controller's hierarchy for a trace of `container`, or of the host."""
    try:
        hierarchy: MemoryHierarchy | None = find_memory_hierarchy(proc)
    except HostUnable:
        hierarchy = None
    entry = memory_entry(parse_proc_cgroup(read_text(proc / "self/cgroup") or ""))
    return Scope(container, hierarchy, entry.hierarchy_id if entry else 0)


def cgroups_in(scope: Scope) -> dict[int, str]:
    """Return the memory cgroups of the container, nested ones too: id -> path below the hierarchy's root."""
    if scope.hierarchy is None or (scope.folder is None and not scope.all):
        return {}
    found = {}
    for folder in child_cgroups(scope.folder or scope.hierarchy.mount_point):
        cgroup = scope.hierarchy.cgroup(folder)
        if cgroup is not None:
            try:
                found[cgroup_id(folder)] = cgroup
            except OSError:
                continue  # gone meanwhile
    return found


def cgroups_above(scope: Scope) -> dict[int, str]:
    """Return the memory cgroups above the container's, up to the root: id -> path. Their limits bind it too."""
    if scope.hierarchy is None or scope.container is None or scope.container.cgroup is None:
        return {}
    found = {}
    for cgroup in ancestors(scope.container.cgroup):
        try:
            found[cgroup_id(scope.hierarchy.path(cgroup))] = cgroup
        except (OSError, HostUnable, ValueError):
            continue
    return found


def pids_in(scope: Scope, proc: Path = Path("/proc")) -> frozenset[int]:
    """Return the processes in scope now: those of the cgroups, else the init process and its descendants."""
    if scope.container is None:
        return frozenset(pids(proc))
    if scope.folder is not None:
        return pids_of(scope.folder)
    return descendants(scope.container.pid, proc) if scope.container.pid else frozenset()


def descendants(pid: int, proc: Path = Path("/proc")) -> frozenset[int]:
    """Return a process and all that descend from it; empty when it has exited."""
    children: dict[int, list[int]] = {}
    for other in pids(proc):
        stat = read_stat(other, proc)
        if stat is not None:
            children.setdefault(stat.ppid, []).append(other)
    found: set[int] = set()
    queue = [pid] if (proc / str(pid)).exists() else []
    while queue:
        current = queue.pop()
        if current not in found:
            found.add(current)
            queue += children.get(current, ())
    return frozenset(found)


def check_pid(pid: int, scope: Scope, proc: Path = Path("/proc")) -> None:
    """Raise TargetError when there is no such process, or it is not in scope."""
    if not (proc / str(pid)).exists():
        raise TargetError(f"there is no process {pid}", "--pid takes the pid that the host sees")
    if scope.container is not None and pid not in pids_in(scope, proc):
        name = scope.container.name or scope.container.id
        raise TargetError(
            f"process {pid} is not in {name}",
            "--pid takes the pid that the host sees; a container's own numbers differ. "
            f"By its pid, pid:{pid} is a target too",
        )


@dataclass(frozen=True, slots=True)
class Found:
    """A process as the trace found it when it began."""

    process: Process
    total_vm_bytes: int | None
    heap_end: int | None
    """Where brk(2) stands, to the page."""
    compat: bool
    """A 32-bit program: its calls are not decoded."""


def find_processes(scope: Scope, owner: OwnerOf, proc: Path = Path("/proc")) -> Iterator[Found]:
    """Look at every process in scope. Those that exit meanwhile are left out."""
    for pid in pids_in(scope, proc):
        found = find_process(pid, scope, owner, proc)
        if found is not None:
            yield found


def find_process(pid: int, scope: Scope, owner: OwnerOf, proc: Path = Path("/proc")) -> Found | None:
    """Look at one process; None when it has exited."""
    ids, stat, comm = read_ids(pid, proc), read_stat(pid, proc), read_comm(pid, proc)
    if ids is None or stat is None:
        return None
    cgroup = memory_cgroup_of(pid, proc, scope.hierarchy) if scope.hierarchy else None
    process = Process(
        pid=pid,
        ns_pid=ids.ns_pid,
        comm=comm,
        cmdline=" ".join(read_cmdline(pid, proc)) or None,
        parent_pid=stat.ppid or None,
        uid=ids.uid,
        cgroup=cgroup,
        container=scope.container or (owner(cgroup) if cgroup is not None else None),
        start_ns=stat.start_ticks * _NS_PER_S // os.sysconf("SC_CLK_TCK"),
    )
    return Found(process, total_vm_bytes(pid, proc), heap_end(pid, proc), is_compat(pid, proc))


def total_vm_bytes(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return the size of a process's address space (statm, man page proc_pid_statm(5)); None when it is gone."""
    text = read_text(proc / str(pid) / "statm")
    return int(text.split()[0]) * os.sysconf("SC_PAGE_SIZE") if text else None


def heap_end(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return where brk(2) stands, to the page; None when the process has no heap, or is gone."""
    try:
        return next((mapping.end for mapping in read_maps(pid, proc) if mapping.path == "[heap]"), None)
    except RtdebugError:
        return None


def is_compat(pid: int, proc: Path = Path("/proc")) -> bool:
    """Say whether a process runs a 32-bit program, by its ELF header."""
    try:
        fd = os.open(proc / str(pid) / "exe", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        head = os.read(fd, 5)
    except OSError:
        return False
    finally:
        os.close(fd)
    return head[:4] == b"\x7fELF" and head[4] == _ELF_CLASS_32
