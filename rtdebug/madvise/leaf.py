"""The cgroup of an experiment: a leaf below the container's, gone afterwards."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import HostUnable
from rtdebug.host.cgroup import MemoryHierarchy, nearest_memory_cgroup, parse_proc_cgroup, pids_of
from rtdebug.host.mounts import read_mountinfo
from rtdebug.host.process import is_running
from rtdebug.host.text import read_text

PREFIX = "rtdebug-madvise-"
_PATIENCE_S = 2.0
_TIMING_CONTROLLERS = frozenset({"cpu", "cpuset"})
"""Those of v1 that change what is measured: a CPU quota, the memory nodes."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """Where an experiment process is counted."""

    folder: Path
    memory_folder: Path
    """Whose files tell its memory: the leaf's own on v1. On v2 a cgroup with processes of its own cannot enable the
    memory controller for children, so that the container's own files are what there is."""

    @property
    def is_shared(self) -> bool:
        """Whether what the container itself does is in the figures."""
        return self.folder != self.memory_folder


def make_leaf(hierarchy: MemoryHierarchy, cgroup: str) -> Leaf:
    """A child of `cgroup`; those that a killed rtdebug left there are removed first. Raises HostUnable."""
    parent = hierarchy.path(cgroup)
    for stale in stale_leaves(parent):
        remove_leaf(stale, patience_s=0)
    folder = leaf_folder(parent, os.getpid())
    try:
        folder.mkdir()
    except OSError as error:
        raise HostUnable(
            f"cannot make a cgroup below {cgroup!r}: {error.strerror}",
            "see cgroup.max.descendants and cgroup.max.depth of it, and whether /sys/fs/cgroup is mounted read-write",
        ) from None
    nearest = nearest_memory_cgroup(hierarchy, f"{cgroup.rstrip('/')}/{folder.name}")
    return Leaf(folder, hierarchy.path(nearest) if nearest else folder)


def leaf_folder(parent: Path, keeper_pid: int) -> Path:
    """Where the keeper of an experiment makes its leaf."""
    return parent / f"{PREFIX}{keeper_pid}"


def stale_leaves(parent: Path) -> Iterator[Path]:
    """Leaves of experiments whose rtdebug is gone, and in which nothing runs."""
    for folder in sorted(parent.glob(f"{PREFIX}*")):
        owner = folder.name.removeprefix(PREFIX)
        if not pids_of(folder) and not (owner.isdecimal() and is_running(int(owner))):
            yield folder


def remove_leaf(folder: Path, patience_s: float = _PATIENCE_S) -> None:
    """Remove it; a process that has just been killed takes a moment to leave."""
    with contextlib.suppress(OSError):  # v1: page cache that is charged to it goes, or it would linger for ever
        (folder / "memory.force_empty").write_text("0")
    deadline = time.monotonic() + patience_s
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # EBUSY
            if time.monotonic() >= deadline:
                return
            time.sleep(0.01)
        else:
            return


def enter(leaf: Leaf, container_pid: int, pid: int, proc: Path = Path("/proc")) -> None:
    """Move process `pid` to the leaf, and on v1 to the container's CPU cgroups. Raises HostUnable."""
    try:
        (leaf.folder / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise HostUnable(
            f"cannot enter {leaf.folder}: {error.strerror}",
            "a threaded cgroup, or one that may not hold processes; see cgroup.type there",
        ) from None
    for folder in _timing_folders(container_pid, proc):
        with contextlib.suppress(OSError):  # not mounted here: then its limits are not measured
            (folder / "cgroup.procs").write_text(str(pid))


def _timing_folders(container_pid: int, proc: Path) -> Iterator[Path]:
    mounts = [mount for mount in read_mountinfo(proc=proc) if mount.fstype == "cgroup"]
    for entry in parse_proc_cgroup(read_text(proc / str(container_pid) / "cgroup") or ""):
        wanted = _TIMING_CONTROLLERS.intersection(entry.controllers)
        mount = next((mount for mount in mounts if wanted & mount.super_options.keys()), None)
        if wanted and mount is not None and mount.root == "/" and ".." not in entry.path.split("/"):
            yield Path(mount.mount_point) / entry.path.lstrip("/")
