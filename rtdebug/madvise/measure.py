"""What an experiment process reads of itself and of its cgroup: before, between and after the steps of a run.

All files are opened before the process enters the container, and read through their descriptors after that.
"""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rtdebug.host.maps import MemoryUse, parse_smaps
from rtdebug.host.memcg import parse_pressure
from rtdebug.host.text import parse_int, parse_keyed
from rtdebug.madvise.area import Area
from rtdebug.madvise.dtlb import DtlbCounter

VMSTAT_KEYS = (
    *("thp_fault_alloc", "thp_fault_fallback", "thp_collapse_alloc", "thp_collapse_alloc_failed"),
    *("thp_file_alloc", "thp_split_pmd", "compact_stall", "compact_fail", "pswpout", "pgsteal_direct"),
)
"""Counters of the whole host: what others do at the same time is in them."""

_SETTLING_S = 0.02
_NEARLY_ALL = 0.95
_JITTER_BYTES = 1 << 19
"""The kernel charges 64 pages at a time for each CPU (MEMCG_CHARGE_BATCH), and a few CPUs are used meanwhile."""
_ANONYMOUS = re.compile(r"^Anonymous: +(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Reading:
    """One look. Bytes of the area from smaps; None: not known here."""

    rss_bytes: int
    thp_bytes: int
    """AnonHugePages, ShmemPmdMapped and FilePmdMapped."""
    lazyfree_bytes: int | None
    swap_bytes: int | None
    cgroup_usage_bytes: int | None
    pressure_us: int | None
    """Memory stall of the cgroup (`some`); of the host where the cgroup has none."""
    stat: Mapping[str, int]
    """memory.stat of the cgroup."""
    vmstat: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Step:
    """One timed step."""

    time_ns: int
    cpu_ns: int
    """User and system time: what others on the host take is not in it, nor is waiting for a disk."""
    minor_faults: int
    major_faults: int
    dtlb_misses: int | None
    """Loads that missed; None: no such counter here, as in most virtual machines."""


class Meter:
    """Open files, and the process's own counters."""

    def __init__(self, cgroup: Path, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._smaps = _open(proc / "self/smaps")
        self._stat = _open(cgroup / "memory.stat")
        self._usage = _open(cgroup / "memory.usage_in_bytes", cgroup / "memory.current")
        self._pressure = _open(cgroup / "memory.pressure", proc / "pressure/memory")
        self._vmstat = _open(proc / "vmstat")
        self._sizes = _open_sizes(sys)
        self._dtlb = DtlbCounter()

    def look_at(self, smaps_fd: int) -> None:
        """From now on this process is another: its child. The other files and the counters are the same for it."""
        if self._smaps is not None:
            os.close(self._smaps)
        self._smaps = smaps_fd

    def read(self, area: Area) -> Reading:
        """Look at everything."""
        entries = parse_smaps(cut_area(_text(self._smaps), area))
        vmstat = parse_keyed(_text(self._vmstat))
        pressure = parse_pressure(_text(self._pressure)).some if self._pressure is not None else None
        return Reading(
            rss_bytes=sum(entry.use.rss_bytes or 0 for entry in entries),
            thp_bytes=sum(_thp_bytes(entry.use) for entry in entries),
            lazyfree_bytes=_sum_known(entry.use.lazyfree_bytes for entry in entries),
            swap_bytes=_sum_known(entry.use.swap_bytes for entry in entries),
            cgroup_usage_bytes=self.usage_bytes(),
            pressure_us=pressure.total_us if pressure else None,
            stat=parse_keyed(_text(self._stat)),
            vmstat={key: vmstat[key] for key in VMSTAT_KEYS if key in vmstat}
            | {name: parse_int(_text(fd).strip()) or 0 for name, fd in self._sizes.items()},
        )

    def own_bytes(self) -> int:
        """Anonymous memory of the whole process, what it shares with its parent since the fork included.

        Entries are not made: for all of a process they would be megabytes of just that memory.
        """
        return sum(int(kib) for kib in _ANONYMOUS.findall(_text(self._smaps))) << 10

    def usage_bytes(self) -> int | None:
        """What the cgroup has charged now."""
        return parse_int(_text(self._usage).strip()) if self._usage is not None else None

    def timed(self, action: Callable[[], object]) -> Step:
        """Do it, with a clock and counters around it and nothing else."""
        dtlb = self._dtlb.read()
        before = resource.getrusage(resource.RUSAGE_SELF)
        began = time.perf_counter_ns()
        action()
        ended = time.perf_counter_ns()
        after = resource.getrusage(resource.RUSAGE_SELF)
        dtlb_after = self._dtlb.read()
        return Step(
            time_ns=ended - began,
            cpu_ns=round((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e9),
            minor_faults=after.ru_minflt - before.ru_minflt,
            major_faults=after.ru_majflt - before.ru_majflt,
            dtlb_misses=None if dtlb is None or dtlb_after is None else dtlb_after - dtlb,
        )

    def watch_return(self, before: int | None, began_ns: int, size_bytes: int) -> tuple[int | None, int | None]:
        """After advice: the bytes that the cgroup got back, and how long that took since `began_ns`.

        The counter is looked at for 20 ms; it took as long as until nearly all (95 %) had come back. Less than a
        hundredth of the memory is the counter's own jitter, and took no time.
        """
        if before is None:
            return None, None
        seen: list[tuple[int, int]] = []
        while not seen or seen[-1][0] - seen[0][0] < _SETTLING_S * 1e9:
            usage = self.usage_bytes()
            seen.append((time.perf_counter_ns(), before - (before if usage is None else usage)))
            time.sleep(0.0005)
        returned = seen[-1][1]
        if returned < max(size_bytes / 100, _JITTER_BYTES):
            return returned, None
        first = next(moment for moment, back in seen if back >= _NEARLY_ALL * returned)
        return returned, first - began_ns


def cut_area(smaps: str, area: Area) -> str:
    """The entries of the area: its neighbours are reserved, so it begins and ends with an entry."""
    begin = _find_header(smaps, area.address)
    end = _find_header(smaps, area.end)
    return smaps[begin : end if end >= 0 else None] if begin >= 0 else ""


def _find_header(smaps: str, address: int) -> int:
    header = f"{address:08x}-"
    if smaps.startswith(header):
        return 0
    found = smaps.find(f"\n{header}")
    return found + 1 if found >= 0 else -1


def differences(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What changed, by name."""
    return {key: after[key] - before[key] for key in after if key in before and after[key] != before[key]}


def _thp_bytes(use: MemoryUse) -> int:
    known = (use.anonhugepages_bytes, use.shmempmdmapped_bytes, use.filepmdmapped_bytes)
    return sum(each or 0 for each in known)


def _sum_known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _open(*paths: Path) -> int | None:
    """The first that is there."""
    for path in paths:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
    return None


def _open_sizes(sys: Path) -> dict[str, int]:
    """mTHP counters of the host by size: `hugepages-64kB/stats/anon_fault_alloc` (Linux 6.9) as `mthp_fault_64kB`."""
    folder = sys / "kernel/mm/transparent_hugepage"
    found = {
        f"mthp_fault_{path.name.removeprefix('hugepages-')}": _open(path / "stats/anon_fault_alloc")
        for path in sorted(folder.glob("hugepages-*kB"))
    }
    return {name: fd for name, fd in found.items() if fd is not None}


def _text(fd: int | None) -> str:
    if fd is None:
        return ""
    chunks = []
    offset = 0
    while chunk := os.pread(fd, 1 << 16, offset):
        chunks.append(chunk)
        offset += len(chunk)
    return b"".join(chunks).decode("utf-8", "surrogateescape")
