"""The cgroups of controllers other than memory: v1 has a hierarchy for each, v2 one for all. cgroups(7)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rtdebug.errors import HostUnable
from rtdebug.host.cgroup import MemoryHierarchy, parse_proc_cgroup
from rtdebug.host.mounts import Mount, read_mountinfo
from rtdebug.host.text import read_text


def controller_folder(pid: int, controller: str, proc: Path = Path("/proc")) -> Path | None:
    """The folder of the cgroup in which `controller` (`pids`, `cpu`, `freezer`) has `pid`.

    None if it has exited, or the hierarchy is not mounted where we see it. v2 has no freezer by name: every
    cgroup of it has cgroup.freeze (Linux 5.2).
    """
    entries = parse_proc_cgroup(read_text(proc / str(pid) / "cgroup") or "")
    mounts = read_mountinfo(proc=proc)
    for entry in entries:
        if controller in entry.controllers:
            return _folder(1, entry.path, [m for m in mounts if m.fstype == "cgroup" and controller in m.super_options])
    for entry in entries:
        if entry.hierarchy_id == 0:
            return _folder(2, entry.path, [mount for mount in mounts if mount.fstype == "cgroup2"])
    return None


def _folder(version: int, path: str, mounts: Sequence[Mount]) -> Path | None:
    for mount in mounts:
        hierarchy = MemoryHierarchy(2 if version == 2 else 1, Path(mount.mount_point), mount.root)
        try:
            return hierarchy.path(path)
        except (HostUnable, ValueError):  # mounted in part, or a path that climbs out of our namespace
            continue
    return None
