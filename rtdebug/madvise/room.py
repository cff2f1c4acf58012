"""How much memory an experiment may take, and when it has to stop: it must never be what hurts the container.

Sources: Documentation/accounting/psi.rst, Documentation/admin-guide/cgroup-v2.rst (memory.events).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import HostUnable
from rtdebug.host.cgroup import MemoryHierarchy, ancestors
from rtdebug.host.memcg import MemoryState, read_memory
from rtdebug.host.meminfo import available_bytes, read_meminfo
from rtdebug.host.process import is_running

MARGIN = 0.1
"""Of every limit this much stays free."""
OWN_BYTES = 16 << 20
"""What the experiment process itself may come to, beside the memory it measures (about 4 MiB were seen)."""
MOST_STALLED = 0.2
"""Of the last seconds, the share in which some task of the cgroup waited for memory."""
WINDOW_S = 2.0


@dataclass(frozen=True, slots=True)
class Level:
    """A cgroup with a limit, on the way from the container's up to the root."""

    cgroup: str
    state: MemoryState
    limit_bytes: int
    """Its limit, or where it is throttled (memory.high) if that is lower."""
    used_bytes: int
    """Without page cache that has not been used lately, which the kernel takes back first."""

    @property
    def room_bytes(self) -> int:
        """What is left up to a tenth below the limit; negative beyond it."""
        return int(self.limit_bytes * (1 - MARGIN)) - self.used_bytes


def levels(hierarchy: MemoryHierarchy, cgroup: str) -> Iterator[Level]:
    """Those of the cgroup and all above it that have a limit."""
    for ancestor in ancestors(cgroup):
        try:
            state = read_memory(hierarchy.path(ancestor))
        except HostUnable:
            return
        limits = [limit for limit in (state.limit_bytes, state.high_bytes) if limit is not None] if state else []
        if state is not None and limits and state.usage_bytes is not None:
            used = state.working_set_bytes
            yield Level(ancestor, state, min(limits), state.usage_bytes if used is None else used)


def room_bytes(hierarchy: MemoryHierarchy, cgroup: str, proc: Path = Path("/proc")) -> int | None:
    """The most that an experiment may map there: by all limits, and by what the host has. None: nobody knows."""
    rooms = [level.room_bytes for level in levels(hierarchy, cgroup)]
    meminfo = read_meminfo(proc)
    available = available_bytes(meminfo)
    if available is not None:
        rooms.append(available - int(meminfo.get("MemTotal", 0) * MARGIN))
    return max(0, min(rooms) - OWN_BYTES) if rooms else None


class Watch:
    """Looks whether an experiment may go on."""

    def __init__(
        self,
        hierarchy: MemoryHierarchy,
        cgroup: str,
        container_pid: int,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hierarchy = hierarchy
        self._cgroup = cgroup
        self._container_pid = container_pid
        self._proc = proc
        self._clock = clock
        self._stalls: deque[tuple[float, int]] = deque()
        self._hits = self._times_at_limit()

    def complaint(self) -> str | None:
        """Why the experiment has to stop now; None: it may go on."""
        if not is_running(self._container_pid, self._proc):
            return "the container ended"
        for level in levels(self._hierarchy, self._cgroup):
            if level.room_bytes < 0:
                return f"cgroup {level.cgroup} came within {MARGIN:.0%} of its limit"
        hits = self._times_at_limit()
        for name, count in hits.items():
            if count > self._hits.get(name, 0):
                return f"cgroup {name} hit its limit"
        return self._stalled()

    def _times_at_limit(self) -> dict[str, int]:
        """How often each level was at its limit or throttled; the kernel reclaimed there then."""
        found = levels(self._hierarchy, self._cgroup)
        return {level.cgroup: _hits(level.state) for level in found}

    def _stalled(self) -> str | None:
        try:
            state = read_memory(self._hierarchy.path(self._cgroup))
        except HostUnable:
            return None
        stall = state.pressure.some if state and state.pressure else None
        if stall is None:
            return None
        now = self._clock()
        self._stalls.append((now, stall.total_us))
        while now - self._stalls[0][0] > WINDOW_S:
            self._stalls.popleft()
        share = (stall.total_us - self._stalls[0][1]) / (WINDOW_S * 1e6)
        if share > MOST_STALLED:
            return f"its processes waited for memory {share:.0%} of the last {WINDOW_S:.0f} s"
        return None


def _hits(state: MemoryState) -> int:
    if state.failcnt is not None:
        return state.failcnt
    return sum(state.events.get(key, 0) for key in ("high", "max", "oom"))
