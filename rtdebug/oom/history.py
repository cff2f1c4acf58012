"""MemoryHistory: the last minutes of one cgroup's memory, small enough to keep for every container."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

_UNKNOWN = -1
_STAT_KEYS = {  # v2's name, then v1's: with total_ the cgroups below are included, as in v2
    "anon_bytes": ("anon", "total_rss", "rss"),
    "file_bytes": ("file", "total_cache", "cache"),
    "shmem_bytes": ("total_shmem", "shmem"),
    "slab_bytes": ("slab",),
}


class MemoryReading(Protocol):
    """What a memory cgroup's files say."""

    @property
    def usage_bytes(self) -> int | None:
        """memory.current, memory.usage_in_bytes."""

    @property
    def stat(self) -> Mapping[str, int]:
        """memory.stat."""

    @property
    def kmem_usage_bytes(self) -> int | None:
        """v1's memory.kmem.usage_in_bytes."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """One moment of a cgroup's memory. What the kernel does not count there is None."""

    time_ns: int
    """Clock of the caller."""
    usage_bytes: int | None
    anon_bytes: int | None
    """v1: rss."""
    file_bytes: int | None
    """v1: cache. Page cache and shmem."""
    shmem_bytes: int | None
    slab_bytes: int | None
    """v2 only."""


@dataclass(frozen=True, slots=True)
class StatReading:
    """memory.stat of one cgroup at one moment."""

    stat: Mapping[str, int]
    time_ns: int
    cgroup: str | None = None
    usage_bytes: int | None = None
    """Of the memory counter at that moment."""
    kmem_bytes: int | None = None
    """v1: memory.kmem.usage_in_bytes."""

    @classmethod
    def of(cls, reading: MemoryReading, time_ns: int, cgroup: str | None) -> Self:
        """What `reading` says."""
        return cls(reading.stat, time_ns, cgroup, reading.usage_bytes, reading.kmem_usage_bytes)


class MemoryHistory:
    """A ring of samples of one cgroup: 48 bytes each, and the last memory.stat in full.

    `read` gives the cgroup's files, or None, or raises OSError: the cgroup may be gone at any time.
    """

    def __init__(
        self,
        read: Callable[[], MemoryReading | None],
        span_ns: int = 300_000_000_000,
        period_ns: int = 1_000_000_000,
        cgroup: str | None = None,
    ) -> None:
        self._read = read
        self._period_ns = period_ns
        self._capacity = max(1, span_ns // period_ns)
        self._cgroup = cgroup
        self._columns = [array("q") for _ in range(2 + len(_STAT_KEYS))]
        self._oldest = 0
        self._due_ns: int | None = None
        self.last_stat: StatReading | None = None
        """memory.stat of the last sample."""

    @property
    def due_ns(self) -> int | None:
        """When the next sample is due; None: now."""
        return self._due_ns

    def sample(self, now_ns: int) -> bool:
        """Take a sample if one is due; True when there is a new one."""
        if self._due_ns is not None and now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + self._period_ns
        try:
            reading = self._read()
        except OSError:
            return False
        if reading is None:
            return False
        self.last_stat = StatReading.of(reading, now_ns, self._cgroup)
        self._append((now_ns, reading.usage_bytes, *(_first(reading.stat, keys) for keys in _STAT_KEYS.values())))
        return True

    def samples(self) -> tuple[MemorySample, ...]:
        """The samples kept, oldest first."""
        count = len(self._columns[0])
        order = [(self._oldest + index) % count for index in range(count)]
        return tuple(self._sample(index) for index in order)

    def _append(self, values: tuple[int | None, ...]) -> None:
        full = len(self._columns[0]) >= self._capacity
        for column, value in zip(self._columns, values, strict=True):
            number = _UNKNOWN if value is None else value
            if full:
                column[self._oldest] = number
            else:
                column.append(number)
        if full:
            self._oldest = (self._oldest + 1) % self._capacity

    def _sample(self, index: int) -> MemorySample:
        time_ns, *rest = (column[index] for column in self._columns)
        return MemorySample(time_ns, *(None if value == _UNKNOWN else value for value in rest))


def _first(stat: Mapping[str, int], keys: tuple[str, ...]) -> int | None:
    return next((stat[key] for key in keys if key in stat), None)
