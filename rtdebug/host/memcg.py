"""What a memory cgroup says: usage, limits, kinds of memory, events, pressure; and which limit binds it.

Sources: Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst, Documentation/accounting/psi.rst.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import HostUnable
from rtdebug.host.cgroup import MemoryHierarchy, Version, ancestors
from rtdebug.host.text import parse_int, parse_keyed, read_text

_LIMIT_FILE: Mapping[Version, str] = {1: "memory.limit_in_bytes", 2: "memory.max"}
_UNLIMITED_FROM = 2**63 - 2**24
"""v1 prints "no limit" as the largest multiple of the page size below 2^63 (page_counter.h), once 2^64-1."""
_UNLIMITED_32_BIT = (2**31 - 1) * 4096
_BATCH_BYTES = 1 << 20
"""The figures of memory.stat are kept in batches per CPU: two of them that differ by less may be equal."""


@dataclass(frozen=True, slots=True)
class Stall:
    """One line of a pressure file, Documentation/accounting/psi.rst."""

    avg10: float
    """Per cent of the last 10 seconds."""
    avg60: float
    avg300: float
    total_us: int
    """Since the cgroup was made. Averages of 0 beside a large total mean: it is over now."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """memory.pressure. A line the kernel does not print is None."""

    some: Stall | None
    """At least one task waited for memory."""
    full: Stall | None
    """All of them did."""


@dataclass(frozen=True, slots=True)
class MemoryState:
    """What a memory cgroup says about itself, its descendants included.

    The files are not read at one instant, and v1 counts in batches per CPU: sums agree only roughly, and v1's
    memory+swap may be below its memory.
    """

    version: Version
    usage_bytes: int | None
    limit_bytes: int | None
    """Its own limit; None: no limit. See effective_limit() for those above it."""
    high_bytes: int | None
    """v2 memory.high: throttled from here on."""
    peak_bytes: int | None
    failcnt: int | None
    """v1: how often the limit was hit. v2 says so in `events["max"]`."""
    swap_usage_bytes: int | None
    """None: swap is not accounted here."""
    swap_limit_bytes: int | None
    """None: no limit, or swap is not accounted."""
    kmem_usage_bytes: int | None
    """v1 memory.kmem.usage_in_bytes."""
    stat: Mapping[str, int]
    """memory.stat with the kernel's names: v1 `rss`, `total_rss`, ...; v2 `anon`, `file`, ..."""
    events: Mapping[str, int]
    """v2 memory.events; v1 has only `oom_kill`, since 4.13."""
    events_local: Mapping[str, int]
    """v2 memory.events.local: limits hit here, and kills of processes that were here."""
    pressure: Pressure | None
    oom_group: bool | None
    """v2 memory.oom.group: an OOM kills all of the cgroup."""
    oom_kill_disable: bool | None
    """v1: a process that hits the limit waits instead of being killed."""
    under_oom: bool | None
    """v1: processes wait so right now."""

    @property
    def anon_bytes(self) -> int | None:
        """Anonymous memory, swap cache aside."""
        return self._stat("anon", "total_rss")

    @property
    def file_bytes(self) -> int | None:
        """Page cache, and with it tmpfs, /dev/shm and SysV shared memory (`shmem_bytes`)."""
        return self._stat("file", "total_cache")

    @property
    def shmem_bytes(self) -> int | None:
        """The part of file_bytes that has no file behind it, and without swap cannot be reclaimed."""
        return self._stat("shmem", "total_shmem")

    @property
    def least_shmem_bytes(self) -> int | None:
        """shmem_bytes, or what an old v1 kernel gives away of it: see the function of this name."""
        return least_shmem_bytes(self.stat)

    @property
    def kernel_bytes(self) -> int | None:
        """Memory the kernel holds on behalf of the cgroup: slab, stacks, page tables; on v2 without socket buffers."""
        if self.version == 1:
            return self.kmem_usage_bytes
        if "kernel" in self.stat:  # since 5.18
            return self.stat["kernel"]
        parts = [self.stat.get(key) for key in ("kernel_stack", "pagetables", "percpu", "slab")]
        known = [part for part in parts if part is not None]
        return sum(known) if known else None

    @property
    def by_kind_bytes(self) -> Mapping[str, int]:
        """The usage in parts that do not overlap: `anon`, `shmem`, `file` without shmem, `kernel`; as far as known.

        `kernel` is with socket buffers, which v1 counts apart. Where an old v1 kernel does not tell shmem, `file` is
        what lies on the file lists.
        """
        file = self.file_bytes
        if self.shmem_bytes is None and self.version == 1:
            page_cache = file_lists_bytes(self.stat)
        else:
            page_cache = None if file is None else max(0, file - (self.shmem_bytes or 0))
        kernel = self.kernel_bytes
        if self.version == 2 and "sock" in self.stat:
            kernel = (kernel or 0) + self.stat["sock"]
        parts = {"anon": self.anon_bytes, "shmem": self.least_shmem_bytes, "file": page_cache, "kernel": kernel}
        return {kind: count for kind, count in parts.items() if count is not None}

    @property
    def dominant_kind(self) -> str | None:
        """The largest of by_kind_bytes; None if more than that belongs to none of them, or all of it is 0."""
        kinds = self.by_kind_bytes
        largest = max(kinds, key=lambda kind: kinds[kind], default=None)
        if largest is None or not kinds[largest]:
            return None
        unknown = (self.usage_bytes or 0) - sum(kinds.values())
        return largest if kinds[largest] >= unknown else None

    @property
    def working_set_bytes(self) -> int | None:
        """Usage without inactive page cache: what kubectl and docker stats show."""
        inactive = self._stat("inactive_file", "total_inactive_file")
        if self.usage_bytes is None or inactive is None:
            return None
        return max(0, self.usage_bytes - inactive)

    def _stat(self, v2_key: str, v1_key: str) -> int | None:
        return self.stat.get(v2_key if self.version == 2 else v1_key)


@dataclass(frozen=True, slots=True)
class EffectiveLimit:
    """The lowest limit on the way from a cgroup up to the root."""

    limit_bytes: int
    cgroup: str | None
    """Who sets it; None: an ancestor beyond what is mounted here."""


def read_memory(path: Path) -> MemoryState | None:
    """The memory cgroup whose folder is `path`; None if it has vanished or has no memory controller.

    A file that this kernel does not have gives None.
    """
    text = read_text(path / "memory.stat")
    if text is None:
        return None
    stat = parse_keyed(text)
    is_v1 = "total_cache" in stat or (path / "memory.usage_in_bytes").exists()
    return _read_v1(path, stat) if is_v1 else _read_v2(path, stat)


def least_shmem_bytes(stat: Mapping[str, int]) -> int | None:
    """Shmem by memory.stat; where old v1 kernels do not tell it, what of the cache is on no list of file pages.

    Shmem is on the anon lists. Locked pages of either are on neither, so there it may be more. None: not known, or as
    little as two of the figures may differ.
    """
    prefix = "total_" if "total_cache" in stat else ""
    cache, told = stat.get(f"{prefix}cache"), stat.get("total_shmem", stat.get("shmem"))
    lists = file_lists_bytes(stat)
    if told is not None or cache is None or lists is None:
        return told
    rest = cache - lists - stat.get(f"{prefix}unevictable", 0)
    return rest if rest > _BATCH_BYTES else None


def file_lists_bytes(stat: Mapping[str, int]) -> int | None:
    """Pages of files that can be reclaimed, by v1's memory.stat."""
    prefix = "total_" if "total_cache" in stat else ""
    lists = [stat[key] for key in (f"{prefix}active_file", f"{prefix}inactive_file") if key in stat]
    return sum(lists) if lists else None


def parse_limit(text: str | None) -> int | None:
    """A limit in bytes; None for `max` and for v1's "unlimited" of any page size, and if there is no text."""
    value = parse_int(text)
    return None if value is None or value >= _UNLIMITED_FROM or value == _UNLIMITED_32_BIT else value


def parse_pressure(text: str) -> Pressure:
    """A pressure file (PSI)."""
    lines = {words[0]: words[1:] for words in map(str.split, text.splitlines()) if words}
    return Pressure(some=_parse_stall(lines.get("some")), full=_parse_stall(lines.get("full")))


def effective_limit(hierarchy: MemoryHierarchy, cgroup: str) -> EffectiveLimit | None:
    """The limit that binds `cgroup`: the lowest of its own and its ancestors'; None if there is none.

    On v1 an ancestor counts only if it has `memory.use_hierarchy` (always so since 5.11).
    """
    lowest: EffectiveLimit | None = None
    for ancestor in ancestors(cgroup):
        try:
            path = hierarchy.path(ancestor)
        except HostUnable:
            return _beyond_the_mount(hierarchy, cgroup, lowest)
        if ancestor != cgroup and hierarchy.version == 1 and _flag(path, "memory.use_hierarchy") is False:
            break
        limit = parse_limit(read_text(path / _LIMIT_FILE[hierarchy.version]))
        if limit is not None and (lowest is None or limit < lowest.limit_bytes):
            lowest = EffectiveLimit(limit, ancestor)
    return lowest


def _beyond_the_mount(hierarchy: MemoryHierarchy, cgroup: str, lowest: EffectiveLimit | None) -> EffectiveLimit | None:
    """v1 tells the lowest limit of all ancestors, also of those that are not mounted here."""
    stat = parse_keyed(read_text(hierarchy.path(cgroup) / "memory.stat") or "")
    hidden = parse_limit(str(stat.get("hierarchical_memory_limit", "")))
    if hidden is not None and (lowest is None or hidden < lowest.limit_bytes):
        return EffectiveLimit(hidden, None)
    return lowest


def _read_v1(path: Path, stat: Mapping[str, int]) -> MemoryState:
    limit = _limit(path, "memory.limit_in_bytes")
    memsw_limit = _limit(path, "memory.memsw.limit_in_bytes")
    control = _keyed(path, "memory.oom_control")
    return MemoryState(
        version=1,
        usage_bytes=_int(path, "memory.usage_in_bytes"),
        limit_bytes=limit,
        high_bytes=None,
        peak_bytes=_int(path, "memory.max_usage_in_bytes"),
        failcnt=_int(path, "memory.failcnt"),
        # Not memsw.usage - usage: the two are counted apart and the difference can be negative.
        swap_usage_bytes=stat.get("total_swap"),
        swap_limit_bytes=None if memsw_limit is None or limit is None else memsw_limit - limit,
        kmem_usage_bytes=_int(path, "memory.kmem.usage_in_bytes"),
        stat=stat,
        events={key: control[key] for key in ("oom_kill",) if key in control},
        events_local={},
        pressure=None,
        oom_group=None,
        oom_kill_disable=_truth(control.get("oom_kill_disable")),
        under_oom=_truth(control.get("under_oom")),
    )


def _read_v2(path: Path, stat: Mapping[str, int]) -> MemoryState:
    pressure = read_text(path / "memory.pressure")
    return MemoryState(
        version=2,
        usage_bytes=_int(path, "memory.current"),
        limit_bytes=_limit(path, "memory.max"),
        high_bytes=_limit(path, "memory.high"),
        peak_bytes=_int(path, "memory.peak"),
        failcnt=None,
        swap_usage_bytes=_int(path, "memory.swap.current"),
        swap_limit_bytes=_limit(path, "memory.swap.max"),
        kmem_usage_bytes=None,
        stat=stat,
        events=_keyed(path, "memory.events"),
        events_local=_keyed(path, "memory.events.local"),
        pressure=None if pressure is None else parse_pressure(pressure),
        oom_group=_flag(path, "memory.oom.group"),
        oom_kill_disable=None,
        under_oom=None,
    )


def _int(path: Path, name: str) -> int | None:
    return parse_int(read_text(path / name))


def _limit(path: Path, name: str) -> int | None:
    return parse_limit(read_text(path / name))


def _flag(path: Path, name: str) -> bool | None:
    return _truth(_int(path, name))


def _keyed(path: Path, name: str) -> dict[str, int]:
    return parse_keyed(read_text(path / name) or "")


def _truth(value: int | None) -> bool | None:
    return None if value is None else value != 0


def _parse_stall(words: list[str] | None) -> Stall | None:
    values = dict(word.split("=", 1) for word in words or () if "=" in word)
    try:
        return Stall(
            avg10=float(values["avg10"]),
            avg60=float(values["avg60"]),
            avg300=float(values["avg300"]),
            total_us=int(values["total"]),
        )
    except (KeyError, ValueError):
        return None
