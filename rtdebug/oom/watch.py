"""OomWatch: OOM kills while a trace runs. Takes at once what is gone a moment later, and makes the reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rtdebug.containers.model import Container
from rtdebug.containers.owners import owner_by_path
from rtdebug.errors import HostUnable, RtdebugError
from rtdebug.host.cgroup import MemoryHierarchy, memory_cgroup_of
from rtdebug.host.kmsg import KmsgReader
from rtdebug.host.memcg import MemoryState, read_memory
from rtdebug.oom.history import MemoryHistory, StatReading
from rtdebug.oom.kill import OomKill
from rtdebug.oom.limit import presumed_limit
from rtdebug.oom.live import OomJoiner
from rtdebug.oom.report import OomReport, Surroundings
from rtdebug.oom.siblings import Sibling, read_siblings
from rtdebug.tracing.processes import ProcessTable


class OomWatch:
    """Feed it the kills and call `advance` when `due_ns` says so; both give the reports that are ready.

    All times are CLOCK_MONOTONIC. Without access to the kernel log (`problem` says why) reports rest on the
    tracepoint and the cgroup's files alone.
    """

    def __init__(self, hierarchy: MemoryHierarchy | None, processes: ProcessTable, page_size_bytes: int) -> None:
        self._hierarchy = hierarchy
        self._processes = processes
        self._page_size_bytes = page_size_bytes
        self._histories: dict[str, MemoryHistory] = {}
        self._kmsg: KmsgReader | None = None
        self.problem: str | None = None
        try:
            self._kmsg = KmsgReader.open()
        except HostUnable as error:
            self.problem = error.message
        self._joiner = OomJoiner() if self._kmsg else OomJoiner(wait_ns=0)

    def close(self) -> None:
        """Close the kernel log."""
        if self._kmsg is not None:
            self._kmsg.close()
            self._kmsg = None

    def fileno(self) -> int | None:
        """Polls readable when the kernel logged something; None: no kernel log."""
        return self._kmsg.fileno() if self._kmsg else None

    def follow(self, cgroup: str) -> None:
        """Keep the last minutes of this cgroup's memory, from now on: it may be a new one of the same path."""
        if self._hierarchy is not None:
            self._histories[cgroup] = MemoryHistory(lambda: self._read(cgroup), cgroup=cgroup)

    def add_kill(self, event: Mapping[str, Any], now_ns: int) -> list[OomReport]:
        """Take the fields of a struct oom_event."""
        kill = OomKill.from_event(event, self._page_size_bytes, self._processes.cgroups)
        return self._joiner.add_kill(kill, self._surroundings(kill, now_ns), now_ns)

    def advance(self, now_ns: int) -> list[OomReport]:
        """Read the kernel log, sample the memory, and give the reports that are ready."""
        for history in self._histories.values():
            history.sample(now_ns)
        reports = []
        for record in self._kmsg.read() if self._kmsg else ():
            reports += self._joiner.add_message(record, now_ns)
        return reports + self._joiner.advance(now_ns)

    @property
    def due_ns(self) -> int | None:
        """When to call `advance` at the latest for a kill that waits; None: none waits."""
        return self._joiner.due_ns

    def finish(self, now_ns: int) -> list[OomReport]:
        """Give the reports that still wait, as complete as they are."""
        return self.advance(now_ns) + self._joiner.finish()

    def _surroundings(self, kill: OomKill, now_ns: int) -> Surroundings:
        process = self._processes.find(kill.pid, kill.time_ns)
        cgroup = kill.levels[0].cgroup if kill.levels else process.cgroup if process else None
        container = process.container if process else self._container_of(kill)
        box = container.cgroup if container else None
        history = self._histories.get(box or cgroup or "")
        limited = presumed_limit(kill)
        read_from = limited or box or cgroup
        state = self._read(read_from) if read_from else None
        return Surroundings(
            container=container,
            cgroup=cgroup,
            cmdline=process.cmdline if process else None,
            trigger_cgroup=self._trigger_cgroup(kill),
            stat_after=StatReading.of(state, now_ns, read_from) if state and state.stat else None,
            last_stat=history.last_stat if history else None,
            history=history.samples() if history else (),
            history_cgroup=box or cgroup,
            presumed_limit=limited,
            siblings=self._siblings(limited) if limited != cgroup else None,
            page_size_bytes=self._page_size_bytes,
        )

    def _siblings(self, limited: str | None) -> tuple[Sibling, ...] | None:
        if self._hierarchy is None or limited is None:
            return None

        def owner_of(memcg_id: int, cgroup: str) -> Container | None:
            return self._processes.container_of(memcg_id) or owner_by_path(cgroup)

        return read_siblings(self._hierarchy, limited, owner_of)

    def _container_of(self, kill: OomKill) -> Container | None:
        owners = (self._processes.container_of(level.memcg_id) for level in kill.levels if level.memcg_id)
        return next((container for container in owners if container), None)

    def _trigger_cgroup(self, kill: OomKill) -> str | None:
        if kill.trigger_pid is None:
            return None
        process = self._processes.find(kill.trigger_pid, kill.time_ns)
        if process is not None:
            return process.cgroup
        return memory_cgroup_of(kill.trigger_pid, hierarchy=self._hierarchy) if self._hierarchy else None

    def _read(self, cgroup: str) -> MemoryState | None:
        """The cgroup's files; None when it is gone or out of sight."""
        if self._hierarchy is None:
            return None
        try:
            return read_memory(self._hierarchy.path(cgroup))
        except (RtdebugError, OSError, ValueError):
            return None
