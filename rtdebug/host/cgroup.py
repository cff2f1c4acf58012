"""cgroup v1, v2 and hybrid: where the memory controller is, and which cgroup counts a process's memory.

A *cgroup* here is a path as in /proc/PID/cgroup: it begins with `/` and is relative to the root of the memory
controller's hierarchy. Source: Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst, cgroups(7).
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rtdebug.errors import HostUnable
from rtdebug.host.mounts import Mount, read_mountinfo
from rtdebug.host.text import read_text

Version = Literal[1, 2]

_DELETED = " (deleted)"


@dataclass(frozen=True, slots=True)
class MemoryHierarchy:
    """Where the memory controller lives on this host."""

    version: Version
    mount_point: Path
    root: str = "/"
    """The cgroup that is mounted there. Not `/` where a container sees only its own part."""

    def path(self, cgroup: str) -> Path:
        """The folder of `cgroup`. Raises HostUnable if it is not mounted here, ValueError for `..`."""
        if ".." in cgroup.split("/"):
            raise ValueError(f"{cgroup!r} is not the path of a cgroup: it holds '..'")
        top = "/" if ".." in self.root else self.root
        if not is_within(cgroup, top):
            raise HostUnable(
                f"cgroup {cgroup!r} is out of sight: only {self.root!r} is mounted at {self.mount_point}",
                "run rtdebug on the host, or in a container that sees all of the host's /sys/fs/cgroup",
            )
        return self.mount_point / posixpath.relpath(cgroup, top)

    def cgroup(self, path: Path) -> str | None:
        """The inverse of path(); None if `path` is not below the mount point."""
        if not path.is_relative_to(self.mount_point):
            return None
        top = "/" if ".." in self.root else self.root
        return posixpath.normpath(posixpath.join(top, path.relative_to(self.mount_point)))


@dataclass(frozen=True, slots=True)
class CgroupEntry:
    """One line of /proc/PID/cgroup, cgroups(7)."""

    hierarchy_id: int
    """0: the v2 hierarchy."""
    controllers: tuple[str, ...]
    """`("cpu", "cpuacct")`, `("name=systemd",)`; empty for v2."""
    path: str
    deleted: bool
    """The cgroup has been removed while the process still dies in it."""


def is_within(cgroup: str, ancestor: str) -> bool:
    """Whether `cgroup` is `ancestor` or lies below it."""
    return cgroup == ancestor or cgroup.startswith(ancestor.rstrip("/") + "/")


def parse_proc_cgroup(text: str) -> tuple[CgroupEntry, ...]:
    """/proc/PID/cgroup. Lines cut short are left out; an empty text has no entries."""
    entries = []
    for line in text.split("\n"):
        fields = line.split(":", 2)
        if len(fields) != 3 or not fields[0].isdecimal() or not fields[2].startswith("/"):
            continue
        controllers = tuple(filter(None, fields[1].split(",")))
        path = fields[2].removesuffix(_DELETED)
        entries.append(CgroupEntry(int(fields[0]), controllers, path, deleted=path != fields[2]))
    return tuple(entries)


def memory_entry(entries: Iterable[CgroupEntry]) -> CgroupEntry | None:
    """The line that counts memory: v1's `memory` if there is one, whatever the `0::` line beside it says."""
    unified = None
    for entry in entries:
        if "memory" in entry.controllers:
            return entry
        if entry.hierarchy_id == 0:
            unified = entry
    return unified


def find_memory_hierarchy(proc: Path = Path("/proc")) -> MemoryHierarchy:
    """The hierarchy of the memory controller, among all cgroup mounts of this process.

    Raises HostUnable if the controller is off or its hierarchy is not mounted.
    """
    mounts = read_mountinfo(proc=proc)
    v1 = [mount for mount in mounts if mount.fstype == "cgroup" and "memory" in mount.super_options]
    if v1:
        return _hierarchy(1, v1)
    v2 = [mount for mount in mounts if mount.fstype == "cgroup2"]
    with_memory = [mount for mount in v2 if _has_memory_controller(mount)]
    if with_memory:
        return _hierarchy(2, with_memory)
    if v2:
        raise HostUnable(
            f"the memory controller is not in the cgroup v2 hierarchy at {v2[0].mount_point}",
            "boot without cgroup_disable=memory (some distributions need cgroup_enable=memory)",
        )
    raise HostUnable(
        "no cgroup hierarchy with the memory controller is mounted",
        "mount it: mount -t cgroup2 none /sys/fs/cgroup (or, for v1, -t cgroup -o memory)",
    )


def memory_cgroup_of(pid: int, proc: Path = Path("/proc"), hierarchy: MemoryHierarchy | None = None) -> str | None:
    """The cgroup that counts the memory of `pid`; None if it has exited or is out of sight.

    Seen from inside a cgroup namespace the kernel may print a path that climbs out of it (`/../../x`), or
    one relative to a root whose place is unknown. Then the tree is searched for the pid.
    """
    text = read_text(proc / str(pid) / "cgroup")
    entry = memory_entry(parse_proc_cgroup(text)) if text else None
    if entry is None:
        return None
    if ".." in entry.path.split("/"):
        return _search(pid, hierarchy or find_memory_hierarchy(proc))
    if hierarchy is not None and ".." in hierarchy.root.split("/"):
        return _search(pid, hierarchy)
    return entry.path


def cgroup_id(path: Path) -> int:
    """The kernfs id of a cgroup's folder; in v2 what bpf_get_current_cgroup_id() returns. Raises OSError."""
    return path.stat().st_ino


def child_cgroups(path: Path) -> Iterator[Path]:
    """The folder itself and every cgroup below it; those that vanish meanwhile are left out."""
    for folder, _, _ in os.walk(path):
        yield Path(folder)


def pids_of(path: Path, recursive: bool = True) -> frozenset[int]:
    """Processes in a cgroup, and in those below it; empty if it has vanished."""
    folders = child_cgroups(path) if recursive else (path,)
    return frozenset(pid for folder in folders for pid in _pids_in(folder))


def ancestors(cgroup: str) -> Iterator[str]:
    """`cgroup` and all above it, up to `/`."""
    yield cgroup
    while cgroup != "/":
        cgroup = posixpath.dirname(cgroup)
        yield cgroup


def nearest_memory_cgroup(hierarchy: MemoryHierarchy, cgroup: str) -> str | None:
    """`cgroup`, or the nearest above it that has memory files: v2 enables the controller per sub-tree."""
    for ancestor in ancestors(cgroup):
        try:
            path = hierarchy.path(ancestor)
        except HostUnable:
            return None
        if (path / "memory.stat").exists():
            return ancestor
    return None


def _hierarchy(version: Version, mounts: list[Mount]) -> MemoryHierarchy:
    """The mount that shows most of the hierarchy: `/../..` reaches above `/`, `/` above `/docker/x`."""
    best = min(mounts, key=lambda mount: (-mount.root.split("/").count(".."), len(Path(mount.root).parts)))
    return MemoryHierarchy(version, Path(best.mount_point), best.root)


def _has_memory_controller(mount: Mount) -> bool:
    controllers = read_text(Path(mount.mount_point) / "cgroup.controllers")
    return controllers is not None and "memory" in controllers.split()


def _search(pid: int, hierarchy: MemoryHierarchy) -> str | None:
    for folder in child_cgroups(hierarchy.mount_point):
        if pid in _pids_in(folder):
            return hierarchy.cgroup(folder)
    return None


def _pids_in(folder: Path) -> frozenset[int]:
    """0 stands for a process that this pid namespace does not see."""
    text = read_text(folder / "cgroup.procs") or ""
    return frozenset(map(int, text.split())) - {0}
