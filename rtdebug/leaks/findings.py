"""Verdicts joined to findings: a container's kind of memory, with the process and the allocation site that do it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rtdebug.leaks.site_growth import SiteGrowth
from rtdebug.leaks.verdict import LEAK, SUSPECT, VERDICTS, Judged

_PROCESS_KIND = {"anon": "rss_anon", "usage": "rss_anon", "shmem": "rss_shmem"}
ANONYMOUS = "anonymous memory that is not freed"
HEAP = "managed heap that never returns"
THREADS = "threads: memory grows with their number"
FDS = "file descriptors grow along with memory"
AT_LIMIT = "memory that grew up to the limit"
ALL_KINDS = "memory of unknown kind: the input has all kinds together"
MMAP = "mmap that is not released"
PATTERNS = {
    "shmem": "tmpfs or shared memory that nobody removes",
    "rss_shmem": "tmpfs or shared memory that nobody removes",
    "slab": "slab: dentries, inodes or other kernel objects",
    "kernel": "kernel memory: dentries, inodes, stacks, page tables",
    "kernel_stack": "kernel stacks: threads or processes that do not end",
    "page_tables": "page tables: mappings that are not given back",
    "sock": "socket buffers: data that nobody reads",
    "threads": "threads that do not end",
    "fds": "file descriptors that are not closed",
    "file": "page cache",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A leak or a suspicion."""

    judged: Judged
    process: Judged | None
    """The process of the container that grows the fastest in this kind."""
    site: SiteGrowth | None
    pattern: str
    """Of the field, in words."""

    @property
    def executable(self) -> str | None:
        """What grows."""
        source = self.process or self.judged
        return source.verdict.labels.executable


def findings(judged: Iterable[Judged], sites: Sequence[SiteGrowth] = ()) -> list[Finding]:
    """Return what is a leak or suspect, the worst first. A process is one of its own only if its container is none."""
    growing = [each for each in judged if each.verdict.verdict in (LEAK, SUSPECT)]
    by_process: dict[tuple[str | None, str | None, str], list[Judged]] = {}
    for each in growing:
        labels = each.verdict.labels
        if labels.process is not None:
            by_process.setdefault((labels.host, labels.container_id, labels.kind), []).append(each)
    found, told = [], set()
    for each in growing:
        labels = each.verdict.labels
        if labels.process is not None:
            continue
        kind = _PROCESS_KIND.get(labels.kind, labels.kind)
        told.add((labels.host, labels.container_id, kind))
        found.append(_finding(each, by_process, sites))
    for (host, container, kind), processes in by_process.items():
        if (host, container, kind) not in told:
            found += [_finding(each, by_process, sites) for each in processes]
    return sorted(found, key=_worst_first)


def _worst_first(finding: Finding) -> tuple[int, bool, float]:
    verdict = finding.judged.verdict
    return VERDICTS.index(verdict.verdict), verdict.labels.unit != "bytes", -(verdict.growth_per_hour or 0.0)


def _finding(
    judged: Judged, by_process: dict[tuple[str | None, str | None, str], list[Judged]], sites: Sequence[SiteGrowth]
) -> Finding:
    labels = judged.verdict.labels
    where = labels.host, labels.container_id
    kind = _PROCESS_KIND.get(labels.kind, labels.kind)
    candidates = [] if labels.process else by_process.get((*where, kind), [])
    process = max(candidates, key=lambda each: each.verdict.growth_per_hour or 0.0, default=None)
    site = None
    if labels.container_id is not None and labels.unit == "bytes":
        own = [each for each in sites if (each.host, each.container_id) == where and each.growth_per_hour > 0]
        site = own[0] if own else None
    counts = {name for name in ("threads", "fds") if (*where, name) in by_process}
    return Finding(judged, process, site, _pattern(judged, site, counts))


def _pattern(judged: Judged, site: SiteGrowth | None, counts: set[str]) -> str:
    verdict = judged.verdict
    if verdict.shape == "at the limit":
        return AT_LIMIT
    if verdict.labels.kind in PATTERNS:
        return PATTERNS[verdict.labels.kind]
    if "threads" in counts:
        return THREADS
    if "fds" in counts:
        return FDS
    if verdict.shape in ("staircase", "sawtooth with drift"):
        return HEAP
    if site is not None and site.kind == "mmap":
        return MMAP
    return ALL_KINDS if verdict.labels.kind == "usage" else ANONYMOUS
