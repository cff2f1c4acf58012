"""The process of a container whose place an experiment takes: its namespaces, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.errors import NotRunning
from rtdebug.host.cgroup import MemoryHierarchy, pids_of
from rtdebug.host.process import namespace_id
from rtdebug.madvise import syscalls
from rtdebug.madvise.privileges import Privileges, read_privileges

_KINDS = {
    "user": syscalls.CLONE_NEWUSER,
    "ipc": syscalls.CLONE_NEWIPC,
    "net": syscalls.CLONE_NEWNET,
    "mnt": syscalls.CLONE_NEWNS,
    "pid": syscalls.CLONE_NEWPID,
}
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Door:
    """The process whose namespaces are joined, and what it may do."""

    pid: int
    namespaces: tuple[str, ...]
    """Those that are not ours already."""
    privileges: Privileges

    @property
    def kinds(self) -> int:
        """The namespaces as setns(2) has them; 0: there is none to join."""
        return sum(_KINDS[name] for name in self.namespaces)


def find_door(container: Container, hierarchy: MemoryHierarchy, proc: Path = _PROC) -> Door:
    """The container's first process, else any of its cgroup's. Raises NotRunning."""
    pid = container.pid
    if pid is None and container.cgroup is not None:
        pid = min(pids_of(hierarchy.path(container.cgroup)), default=None)
    privileges = read_privileges(pid, proc) if pid is not None else None
    if pid is None or privileges is None:
        raise NotRunning(f"{container.name or container.id!r} has no process", "start it: `rtdebug ps` lists what runs")
    kinds = [kind for kind in _KINDS if namespace_id(pid, kind, proc) not in (None, namespace_id("self", kind, proc))]
    return Door(pid, tuple(kinds), privileges)
