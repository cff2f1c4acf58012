"""The mappings of many processes that advice would help, largest gain first.

What is resident bounds what can be gained, so entries are looked at in that order, and no further than needed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rtdebug.host.maps import Mapping, SmapsEntry
from rtdebug.host.process import read_comm
from rtdebug.host.smaps_index import SmapsIndex, read_smaps_index
from rtdebug.host.thp import ThpSettings
from rtdebug.madvise.advice import Memory
from rtdebug.madvise.apply_plan import Host
from rtdebug.madvise.effect import huge_bytes
from rtdebug.madvise.eligible import Eligibility, aligned_bytes, eligibility
from rtdebug.madvise.fitness import thp_disabled
from rtdebug.madvise.target import memory_of

_MOST_JUDGED = 2000
"""No more entries are parsed: the largest of all, so what is left out could gain less than each of them holds."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One mapping, and what advice could gain there. None: this kernel does not say."""

    pid: int
    comm: str
    mapping: Mapping
    memory: Memory | None
    rss_bytes: int
    huge_bytes: int | None
    idle_bytes: int | None
    """Resident and not accessed since the kernel last looked, or since the bits were cleared."""
    thp_eligible: bool | None
    """What smaps says: any size of huge page counts."""
    eligibility: Eligibility
    advice: str | None
    """What gains most; None: none would."""
    gain_bytes: int
    """By huge pages: what they could map and do not. By giving back: what is idle."""
    processes: int
    """How many processes have this part of this file or segment mapped; 1 for private memory."""


@dataclass(frozen=True, slots=True)
class ProcessMaps:
    """One process, read."""

    pid: int
    comm: str
    thp_disabled: bool
    index: SmapsIndex


@dataclass(frozen=True, slots=True)
class Candidates:
    """The answer."""

    found: tuple[Candidate, ...]
    """Largest gain first, then largest."""
    mappings: int
    """All that were looked at."""
    processes: int
    rss_bytes: int
    """Of all of them together; what several share counts for each."""
    left_out: int
    """Mappings below the least size."""
    gone: int
    """Processes that are threads of the kernel, ended meanwhile, or may not be read."""


def read_process(pid: int, proc: Path = Path("/proc")) -> ProcessMaps | None:
    """None if it has exited, is a kernel thread, or may not be read."""
    try:
        index = read_smaps_index(pid, proc)
    except OSError:
        return None
    comm = read_comm(pid, proc)
    if comm is None or not len(index):
        return None
    return ProcessMaps(pid, comm, thp_disabled(pid, proc), index)


def find_candidates(
    processes: Iterable[ProcessMaps | None], host: Host, least_bytes: int, most: int
) -> Candidates:
    """The `most` best of all mappings that have `least_bytes` resident."""
    kept: list[tuple[int, ProcessMaps, int]] = []
    mappings = total = seen = gone = 0
    for process in processes:
        if process is None:
            gone += 1
            continue
        seen += 1
        rss = process.index.rss_bytes
        mappings += len(rss)
        total += sum(rss)
        kept += [(size, process, number) for number, size in enumerate(rss) if size >= least_bytes]
    kept.sort(key=lambda each: -each[0])
    best = _best(_judged(kept, host), most)
    return Candidates(tuple(best), mappings, seen, total, mappings - len(kept), gone)


def candidate(entry: SmapsEntry, process: ProcessMaps, host: Host) -> Candidate:
    """What advice could gain on one mapping."""
    memory = memory_of(entry.mapping)
    may = eligibility(entry, memory, host.thp, process.thp_disabled, host.collapses)
    rss, huge, referenced = entry.use.rss_bytes or 0, huge_bytes(entry), entry.use.referenced_bytes
    idle = None if referenced is None else max(0, rss - referenced)
    gains = [
        (_huge_gain(entry, rss, huge, host.thp), _huge_advice(may)),
        (_idle_gain(entry, idle, memory, host.has_swap), "MADV_PAGEOUT"),
    ]
    gain, advice = max(((gain, advice) for gain, advice in gains if advice), default=(0, None))
    return Candidate(
        pid=process.pid,
        comm=process.comm,
        mapping=entry.mapping,
        memory=memory,
        rss_bytes=rss,
        huge_bytes=huge,
        idle_bytes=idle,
        thp_eligible=entry.thp_eligible,
        eligibility=may,
        advice=advice if gain else None,
        gain_bytes=gain,
        processes=1,
    )


def _huge_advice(may: Eligibility) -> str | None:
    if may.advisable:
        return "MADV_HUGEPAGE"
    return "MADV_COLLAPSE" if may.collapse else None


def _huge_gain(entry: SmapsEntry, rss: int, huge: int | None, thp: ThpSettings | None) -> int:
    size = thp.pmd_size_bytes if thp else None
    if not size or huge is None:
        return 0
    gain = min(rss, aligned_bytes(entry.mapping.start, entry.mapping.end, size)) - huge
    return gain if gain >= size else 0


def _idle_gain(entry: SmapsEntry, idle: int | None, memory: Memory | None, has_swap: bool) -> int:
    """Without swap only pages of files can go, and none that was written to. Locked memory stays."""
    if idle is None or memory is None or "lo" in (entry.vm_flags or ()):
        return 0
    if has_swap:
        return idle
    of_file = (entry.use.rss_bytes or 0) - (entry.use.anonymous_bytes or 0)
    return min(idle, of_file) if memory is Memory.FILE else 0


def _judged(
    kept: Sequence[tuple[int, ProcessMaps, int]], host: Host
) -> Iterator[tuple[int, Candidate]]:
    """With the bound of all that follow."""
    for size, process, number in kept[:_MOST_JUDGED]:
        yield size, candidate(process.index.entry(number), process, host)


def _best(judged: Iterable[tuple[int, Candidate]], most: int) -> list[Candidate]:
    """The best, what several processes share once. Stops as soon as none that follows can be among them."""
    by_key: dict[tuple[object, ...], Candidate] = {}
    gains: list[int] = []  # a heap of the `most` largest
    for bound, found in judged:
        if len(gains) == most and gains[0] > bound:
            break
        key = _shared_key(found)
        known = by_key.get(key)
        if known is None:
            by_key[key] = found
            (heapq.heappush if len(gains) < most else heapq.heappushpop)(gains, found.gain_bytes)
        else:
            better = max(known, found, key=lambda each: each.gain_bytes)
            by_key[key] = replace(better, processes=known.processes + 1)
    return sorted(by_key.values(), key=lambda each: (-each.gain_bytes, -each.rss_bytes))[:most]


def _shared_key(found: Candidate) -> tuple[object, ...]:
    """Equal for the same part of the same file or segment; private memory is each process's own."""
    mapping = found.mapping
    if mapping.perms[3] == "s" or found.memory is Memory.FILE:
        return (mapping.device, mapping.inode_id, mapping.offset_bytes, mapping.length_bytes, mapping.perms)
    return (found.pid, mapping.start)
