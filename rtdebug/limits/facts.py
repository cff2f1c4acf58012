"""Reads what the rules of problems.py look at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.errors import NotRunning, RtdebugError, UsageProblem
from rtdebug.host.cgroup import MemoryHierarchy, nearest_memory_cgroup, pids_of
from rtdebug.host.meminfo import read_meminfo
from rtdebug.host.process import read_cmdline
from rtdebug.host.text import read_text
from rtdebug.limits.demand import swap_free, unreclaimable_bytes
from rtdebug.limits.problems import Command, Cpuset, Facts
from rtdebug.limits.settings import read_chain
from rtdebug.shm.mounts import read_tmpfs_mounts

_COMMANDS_AT_MOST = 1000
_RUNTIMES_OWN = re.compile(r"/(proc|sys)/|/dev$")


@dataclass(frozen=True, slots=True)
class Place:
    """The memory cgroup that is a container's."""

    container: Container
    hierarchy: MemoryHierarchy
    cgroup: str

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.hierarchy.path(self.cgroup)


def place_of(container: Container, hierarchy: MemoryHierarchy) -> Place:
    """Where a container's limits are. Raises UsageProblem for the root cgroup, NotRunning if there is none."""
    cgroup = container.cgroup and nearest_memory_cgroup(hierarchy, container.cgroup)
    if not cgroup:
        raise NotRunning(f"{container.id} has no memory cgroup now", "it has ended, or is just being made")
    if cgroup == "/":
        raise UsageProblem(
            f"{container.id} is in the root cgroup, which has no limits", "name a container, or a cgroup below the root"
        )
    return Place(container, hierarchy, cgroup)


def read_facts(
    place: Place, proc: Path = Path("/proc"), sys: Path = Path("/sys")
) -> Facts:
    """The facts about one container. Raises NotRunning if its cgroup has vanished."""
    chain = read_chain(place.hierarchy, place.cgroup)
    if not chain or chain[0].cgroup != place.cgroup:
        raise NotRunning(f"the cgroup {place.cgroup} has just vanished", "the container has ended")
    meminfo = read_meminfo(proc)
    return Facts(
        chain=chain,
        unreclaimable_bytes=unreclaimable_bytes(chain[0].memory, swap_free(meminfo)),
        swap_total_bytes=meminfo.get("SwapTotal", 0),
        tmpfs_size_bytes=_tmpfs_sizes(place.container.pid, proc),
        commands=tuple(_commands(place.path, proc)),
        cpuset=None if place.container.pid is None else read_cpuset(place.container.pid, proc, sys),
    )


def _tmpfs_sizes(pid: int | None, proc: Path) -> dict[str, int]:
    """By path; without those that cannot be written, and those the runtime makes for itself and nobody fills."""
    if pid is None:
        return {}
    try:
        mounts = read_tmpfs_mounts(pid, proc=proc)
    except RtdebugError:  # it has exited: the cgroup tells the rest
        return {}
    return {
        mount.path: mount.size_bytes
        for mount in mounts
        if mount.size_bytes is not None
        and not mount.read_only
        and not mount.is_of_others
        and not _RUNTIMES_OWN.match(mount.path)
    }


def read_cpuset(pid: int, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> Cpuset | None:
    """Where `pid` may run and have memory; None if it has exited."""
    status = read_text(proc / str(pid) / "status")
    values = dict(line.split(":", 1) for line in (status or "").split("\n") if ":" in line)
    if "Cpus_allowed_list" not in values or "Mems_allowed_list" not in values:
        return None
    return Cpuset(
        cpus=parse_list(values["Cpus_allowed_list"]),
        nodes=parse_list(values["Mems_allowed_list"]),
        node_of_cpu=dict(_nodes(sys)),
    )


def parse_list(text: str) -> frozenset[int]:
    """`0-3,8` as numbers, Documentation/admin-guide/cputopology.rst; what is no such range is left out."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def _nodes(sys: Path) -> Iterator[tuple[int, int]]:
    for path in sorted((sys / "devices/system/node").glob("node[0-9]*/cpulist")):
        node = int(path.parent.name.removeprefix("node"))
        yield from ((cpu, node) for cpu in parse_list(read_text(path) or ""))


def _commands(path: Path, proc: Path) -> Iterator[Command]:
    for pid in islice(sorted(pids_of(path)), _COMMANDS_AT_MOST):
        if arguments := read_cmdline(pid, proc):
            yield Command(pid, arguments)
