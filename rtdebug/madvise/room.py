"""How much memory an experiment may take, and when it has to stop: it must never be what hurts the container."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import HostUnable
from rtdebug.host.cgroup import MemoryHierarchy, ancestors
from rtdebug.host.memcg import MemoryState, read_memory
from rtdebug.host.meminfo import available_bytes, read_meminfo
from rtdebug.madvise.guard import GuardLimits, Watched, too_strained

MARGIN = 0.1
"""Of every limit this much stays free."""
OWN_BYTES = 16 << 20
"""What the experiment process itself may come to, beside the memory it measures (about 4 MiB were seen)."""
WINDOW_NS = 2_000_000_000
_LIMITS = GuardLimits(stall_share=0.2, limit_hits=0)
"""For the last seconds. Headroom is looked at here, for each limit on the way up."""


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
    """Looks whether an experiment may go on: guard.py over the last seconds, and every limit above the container's."""

    def __init__(self, hierarchy: MemoryHierarchy, cgroup: str, container: Watched) -> None:
        self._hierarchy = hierarchy
        self._cgroup = cgroup
        self._container = container
        self._readings = deque([container.read()])

    def complaint(self, ahead_bytes: Callable[[], int]) -> str | None:
        """Why the experiment has to stop now; None: it may go on.

        `ahead_bytes` is what its next run takes beyond what it holds already. Readings come when a run has just ended
        and its memory is gone: without that a container could come to its limit and never be seen there.
        """
        now = self._container.read()
        self._readings.append(now)
        while now.time_ns - self._readings[1].time_ns > WINDOW_NS:
            self._readings.popleft()
        if not now.is_running:
            return "the container ended"
        found = list(levels(self._hierarchy, self._cgroup))
        ahead = ahead_bytes()  # after the levels: what is taken between the two readings must not count twice
        for level in found:
            if level.room_bytes < ahead:
                return f"another run would bring cgroup {level.cgroup} within {MARGIN:.0%} of its limit"
        return too_strained(self._readings[0], now, _LIMITS)
