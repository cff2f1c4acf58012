"""ProcessTable: who a pid was at the time of an event.

Fed by the kernel's process and cgroup events, and by what user space found when the trace began. Several
versions of a process are kept, for a call made just before an exec, an exit or a new owner of the pid
is often decoded after it: the rings are drained one after the other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from rtdebug.containers.model import Container
from rtdebug.tracing.schema import text_of

MAX_VERSIONS = 8
"""Versions kept of one pid: execs and renames within the time a ring is drained."""

MAX_EXITED = 2048
"""Exited processes that are remembered: more than exit between two looks at what was added up for them."""

MAX_EXITED_AT_ONCE = 16_384
"""As many of which not all calls may have been decoded: several times what the kernel's ring can tell at a time."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process, from one change of it to the next. What is not known is None."""

    pid: int
    """tgid in the host's pid namespace."""
    ns_pid: int | None = None
    comm: str | None = None
    cmdline: str | None = None
    """Arguments with spaces between, at most 255 bytes when the kernel told us."""
    parent_pid: int | None = None
    uid: int | None = None
    memcg_id: int | None = None
    """kernfs id of its cgroup in the memory controller's hierarchy."""
    cgroup: str | None = None
    """Path of that cgroup below the hierarchy's root."""
    container: Container | None = None
    start_ns: int | None = None
    """CLOCK_BOOTTIME."""


@dataclass(frozen=True, slots=True)
class Place:
    """A cgroup of the memory controller, and the container it belongs to."""

    cgroup: str
    container: Container | None


@dataclass(frozen=True, slots=True)
class Version:
    """A process from a time on."""

    since_ns: int
    process: Process


class ProcessTable:
    """Processes by pid and time, and cgroups by their id. Times are CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self._versions: dict[int, list[Version]] = {}
        self._places: dict[int, Place] = {}
        self._exited: deque[tuple[int, int]] = deque()

    def find(self, pid: int, time_ns: int) -> Process | None:
        """Return what `pid` was at that time; its oldest known version for an earlier time."""
        versions = self._versions.get(pid)
        if versions is None:
            return None
        for version in reversed(versions):
            if version.since_ns <= time_ns:
                return version.process
        return versions[0].process

    def versions(self, pid: int) -> tuple[Version, ...]:
        """Return what is known of `pid`, the oldest first."""
        return tuple(self._versions.get(pid, ()))

    def add(self, process: Process, since_ns: int = 0) -> None:
        """Enter a process that user space found, for example in /proc when the trace began."""
        place = self._places.get(process.memcg_id) if process.memcg_id is not None else None
        if place is not None and process.cgroup is None:
            process = replace(process, cgroup=place.cgroup, container=place.container)
        self._push(process, since_ns)

    def add_place(self, memcg_id: int, place: Place) -> None:
        """Tell where a cgroup lies and whose it is; also for the processes already entered with its id."""
        self._places[memcg_id] = place
        for versions in self._versions.values():
            for index, version in enumerate(versions):
                known = Place(version.process.cgroup or "", version.process.container)
                if version.process.memcg_id == memcg_id and known != place:
                    process = replace(version.process, cgroup=place.cgroup, container=place.container)
                    versions[index] = replace(version, process=process)

    def container_of(self, memcg_id: int) -> Container | None:
        """Return whose cgroup this is."""
        place = self._places.get(memcg_id)
        return place.container if place else None

    @property
    def cgroups(self) -> dict[int, str]:
        """Paths of the known memory cgroups by their id."""
        return {memcg_id: place.cgroup for memcg_id, place in self._places.items()}

    def apply(self, event: str, record: np.void) -> None:
        """Take in one process or cgroup event: a struct process_event or cgroup_event of events.h."""
        if event == "cgroup_mkdir":
            self._apply_mkdir(record)
        elif event == "process_exit":
            self.exited(int(record["header"]["pid"]), int(record["header"]["time_ns"]))
        elif event.startswith("process_"):
            self._apply_change(event, record)

    def _apply_change(self, event: str, record: np.void) -> None:
        header = record["header"]
        pid, time_ns = int(header["pid"]), int(header["time_ns"])
        parent_pid, memcg_id = int(record["parent_pid"]) or None, int(record["memcg_id"]) or None
        before = self.find(parent_pid or 0 if event == "process_fork" else pid, time_ns)
        if memcg_id is None and before is not None:
            memcg_id = before.memcg_id
        place = self._places.get(memcg_id) if memcg_id is not None else None
        if place is None and before is not None and before.memcg_id == memcg_id and before.cgroup is not None:
            place = Place(before.cgroup, before.container)
        cmdline = cmdline_of(bytes(record["cmdline"])[: int(record["cmdline_bytes"])])
        process = Process(
            pid=pid,
            ns_pid=int(header["ns_pid"]) or None,
            comm=text_of(bytes(header["comm"])),
            cmdline=cmdline or (before.cmdline if before else None),
            parent_pid=parent_pid,
            uid=int(record["uid"]),
            memcg_id=memcg_id,
            cgroup=place.cgroup if place else None,
            container=place.container if place else None,
            start_ns=int(record["start_ns"]) or None,
        )
        self._push(process, time_ns)

    def _apply_mkdir(self, record: np.void) -> None:
        """A new cgroup belongs to the container of the one it is made in, unless user space knows better."""
        memcg_id, parent = int(record["cgroup_id"]), self._places.get(int(record["parent_id"]))
        path = text_of(bytes(record["path"]))
        if memcg_id not in self._places and path:
            self.add_place(memcg_id, Place(path, parent.container if parent else None))

    def _push(self, process: Process, since_ns: int) -> None:
        versions = self._versions.setdefault(process.pid, [])
        versions.append(Version(since_ns, process))
        del versions[:-MAX_VERSIONS]

    def exited(self, pid: int, exit_ns: int) -> None:
        """Note that a process has exited; it is not forgotten at once, for calls of it may still lie in a ring."""
        self._exited.append((pid, exit_ns))
        if len(self._exited) > MAX_EXITED_AT_ONCE:
            self.forget_exited(1)

    @property
    def exited_count(self) -> int:
        """How many that have exited are remembered."""
        return len(self._exited)

    def forget_exited(self, most: int) -> None:
        """Let go of the `most` oldest of those that have exited, for all their calls are decoded; not of MAX_EXITED."""
        for _ in range(min(most, len(self._exited) - MAX_EXITED)):
            oldest, exit_ns = self._exited.popleft()
            versions = self._versions.get(oldest)
            if versions and versions[-1].since_ns <= exit_ns:  # else the pid has a new owner
                del self._versions[oldest]


def cmdline_of(raw: bytes) -> str | None:
    """Join the NUL-separated arguments of /proc/PID/cmdline or of process_event; None when there are none."""
    arguments = raw.rstrip(b"\0").split(b"\0")
    joined = b" ".join(arguments).decode("utf-8", "surrogateescape")
    return joined or None
