"""When to stop, because the container or its neighbours suffer: a decision over two readings of its memory cgroup.

Where the kernel measures it, pressure decides (PSI, Documentation/accounting/psi.rst): the share of the time since the
last reading in which a task of the cgroup waited for memory. Where it does not (cgroup v1, psi=0), reclaim does: how
often the limit was hit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import HostUnable
from rtdebug.host.cgroup import MemoryHierarchy, find_memory_hierarchy, memory_cgroup_of, nearest_memory_cgroup
from rtdebug.host.memcg import effective_limit, read_memory
from rtdebug.host.process import read_stat

_NS_PER_US = 1000
_PERIOD_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """What is too much."""

    headroom_share: float = 0.10
    """So much of the limit must stay free."""
    stall_share: float = 0.10
    """At most so much of the time may a task of the cgroup wait for memory."""
    limit_hits: int = 100
    """So often may the limit be hit between two readings, where there is no PSI; each hit reclaims some pages."""


@dataclass(frozen=True, slots=True)
class GuardReading:
    """The cgroup at one moment; what the kernel does not say is None."""

    time_ns: int
    """Of CLOCK_MONOTONIC."""
    is_running: bool
    working_set_bytes: int | None
    """Usage without inactive page cache: a container whose cache fills its limit is not in need."""
    limit_bytes: int | None
    """The lowest of its own limit and those above it."""
    stalled_ns: int | None
    """PSI `some`, total."""
    limit_hits: int | None

    @property
    def headroom_bytes(self) -> int | None:
        """What is left below the limit; None without a limit."""
        if self.limit_bytes is None or self.working_set_bytes is None:
            return None
        return self.limit_bytes - self.working_set_bytes


@dataclass(frozen=True, slots=True)
class Watched:
    """Whose cgroup is read: that of a process, which must be the same one all the time."""

    pid: int
    start_ticks: int
    cgroup: str | None
    hierarchy: MemoryHierarchy
    proc: Path = Path("/proc")

    def read(self) -> GuardReading:
        """Read it now."""
        stat = read_stat(self.pid, self.proc)
        is_running = stat is not None and stat.start_ticks == self.start_ticks and stat.state not in "ZX"
        cgroup = self.cgroup and nearest_memory_cgroup(self.hierarchy, self.cgroup)
        state = read_memory(self.hierarchy.path(cgroup)) if cgroup else None
        limit = effective_limit(self.hierarchy, cgroup) if cgroup and state else None
        some = state.pressure.some if state and state.pressure else None
        return GuardReading(
            time_ns=time.monotonic_ns(),
            is_running=is_running,
            working_set_bytes=state.working_set_bytes if state else None,
            limit_bytes=limit.limit_bytes if limit else None,
            stalled_ns=some.total_us * _NS_PER_US if some else None,
            limit_hits=None if state is None else state.failcnt if state.version == 1 else state.events.get("max"),
        )


def watch(pid: int, proc: Path = Path("/proc")) -> Watched | None:
    """The memory cgroup of a process; None if it has exited. Raises HostUnable without a memory controller."""
    stat = read_stat(pid, proc)
    if stat is None:
        return None
    hierarchy = find_memory_hierarchy(proc)
    return Watched(pid, stat.start_ticks, memory_cgroup_of(pid, proc, hierarchy), hierarchy, proc)


def guard_process(pid: int, proc: Path = Path("/proc")) -> Guard | None:
    """A guard for the cgroup of `pid`; None where there is nothing to watch: no memory controller, or it has exited."""
    try:
        watched = watch(pid, proc)
    except HostUnable:
        return None
    return Guard(watched) if watched else None


class Guard:
    """Watches one cgroup from its construction on."""

    def __init__(self, watched: Watched, limits: GuardLimits | None = None) -> None:
        self._watched = watched
        self._limits = limits or GuardLimits()
        self._first = self._last = watched.read()

    def check(self) -> str | None:
        """Why to stop now, in words for people; None to go on. To be asked several times a second."""
        now = self._watched.read()
        reason = too_near(self._first, now, self._limits) or too_strained(self._last, now, self._limits)
        if now.time_ns - self._last.time_ns >= _PERIOD_NS:
            self._last = now
        return reason


def too_near(first: GuardReading, now: GuardReading, limits: GuardLimits) -> str | None:
    """Whether the cgroup has come too near to its limit since the first reading, or its process has ended.

    A container that was that near before is not stopped for it, unless it comes nearer still: else nothing could ever
    be done for it.
    """
    if not now.is_running:
        return "the process has ended"
    if _is_near(now, limits) and (not _is_near(first, limits) or _came_nearer(first, now)):
        return f"the container came within {limits.headroom_share:.0%} of its memory limit"
    return None


def too_strained(last: GuardReading, now: GuardReading, limits: GuardLimits) -> str | None:
    """Whether its tasks wait for memory too much of the time between two readings; without PSI, whether the limit was
    hit too often.
    """
    share = _stall_share(last, now)
    if share is not None and share > limits.stall_share:
        return f"its tasks wait for memory {share:.0%} of the time"
    if share is None and last.limit_hits is not None and now.limit_hits is not None:
        hits = now.limit_hits - last.limit_hits
        if hits > limits.limit_hits:
            return f"it hit its memory limit {hits:,} times"
    return None


def _is_near(reading: GuardReading, limits: GuardLimits) -> bool:
    headroom = reading.headroom_bytes
    return headroom is not None and headroom < (reading.limit_bytes or 0) * limits.headroom_share


def _came_nearer(first: GuardReading, now: GuardReading) -> bool:
    """By more than a hundredth of the limit: counters of cgroups jitter."""
    if first.headroom_bytes is None or now.headroom_bytes is None:
        return False
    return first.headroom_bytes - now.headroom_bytes > (now.limit_bytes or 0) / 100


def _stall_share(last: GuardReading, now: GuardReading) -> float | None:
    """None also for a time that is too short: the kernel brings its total up to date every 2 s."""
    elapsed = now.time_ns - last.time_ns
    if last.stalled_ns is None or now.stalled_ns is None or elapsed < _PERIOD_NS:
        return None
    return (now.stalled_ns - last.stalled_ns) / elapsed
