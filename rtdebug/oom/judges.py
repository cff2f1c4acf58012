"""Judges: what each rule of verdict.py looks for, and the thresholds with their reasons."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from rtdebug.oom.facts import Facts, Process
from rtdebug.oom.notes import Evidence

MOST = 0.5
"""More than half of the usage: whatever else was given up, it would not have helped."""
NEARLY_ALL = 0.9
"""Of the victim's own RSS, where nothing is known of the cgroup: then only a clear case is one."""
PLENTY_FREE = 0.05
"""Of the host's RAM: the kernel's watermarks are about 1 to 2 %, so a host with 5 % free was not short of pages."""
STORM_PROCESSES = 100
"""Of one name. Web servers and databases run some dozens of workers; below a hundred it may be meant so."""
STORM_PIDS_APART = 3.0
"""Mean distance of their pids: they were started one after another, with hardly anything else in between."""
MANY_PROCESSES = 50
SMALL_SHARE = 0.05
"""The largest of many has no more than that: to kill it is of no use, and the next kill follows."""
SMALL_SCORE = 10
"""Of the kernel's 1000, which are the whole limit: each process has a hundredth of it at the most."""
ALL_PODS = re.compile(
    r"/(?:[^/]*/)*(?:kubepods|(?:[^/]*-)?kubepods\.slice)"
    r"(?:/(?:burstable|besteffort|(?:[^/]*-)?kubepods-(?:burstable|besteffort)\.slice))?"
)
_KERNEL_PARTS = ("slab", "slab_unreclaimable", "pagetables", "sock", "kernel_stack", "percpu", "vmalloc", "zswap")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found: a sentence, and the figures it rests on."""

    text: str
    evidence: Evidence


def sysrq(facts: Facts) -> Finding | None:
    """Asked for by hand."""
    return Finding("Somebody asked for the kill (SysRq f).", {}) if facts.scope == "sysrq" else None


def cpuset(facts: Facts) -> Finding | None:
    """The allowed nodes were full."""
    if facts.scope != "cpuset":
        return None
    return Finding(
        "The memory nodes that the cpuset allows ({mems_allowed}) had no usable page; " + _free(facts),
        {"mems_allowed": facts.mems_allowed, "cpuset": facts.cpuset, **_host(facts)},
    )


def mempolicy(facts: Facts) -> Finding | None:
    """The nodes of the binding were full."""
    if facts.scope != "mempolicy":
        return None
    return Finding(
        "The memory nodes that the process is bound to ({nodemask}) were full; " + _free(facts),
        {"nodemask": facts.nodemask, **_host(facts)},
    )


def kernel_limit(facts: Facts) -> Finding | None:
    """A v1 kmem limit fails an allocation in a page fault, and pagefault_out_of_memory() calls it global."""
    from_fault = facts.gfp_mask is not None and facts.gfp_mask.partition("(")[0] == "0x0"
    if facts.scope != "global" or not (facts.slab_failed_memcgs or from_fault):
        return None
    if facts.free_share is not None and facts.free_share < PLENTY_FREE:
        return None
    evidence: Evidence = {"gfp_mask": facts.gfp_mask, "failed_memcgs": list(facts.slab_failed_memcgs), **_host(facts)}
    return Finding(
        "It looks global, but a cgroup's kernel memory was refused in a page fault; " + _free(facts), evidence
    )


def fragmentation(facts: Facts) -> Finding | None:
    """Memory enough, but in pieces."""
    if facts.scope != "global" or not facts.order or facts.order < 1:
        return None
    if facts.free_share is None or facts.free_share < PLENTY_FREE:
        return None
    return Finding(
        "{request_pages} pages in a row were asked for and none were found; " + _free(facts),
        {"order": facts.order, "request_pages": 1 << min(facts.order, 32), **_host(facts)},
    )


def fork_storm(facts: Facts) -> Finding | None:
    """One program started over and over."""
    named = facts.most_frequent_comm()
    if facts.scope not in ("memcg", "global", None) or named is None:
        return None
    comm, processes = named
    pids = [process.pid for process in processes]
    if len(pids) < STORM_PROCESSES or (max(pids) - min(pids)) / len(pids) > STORM_PIDS_APART:
        return None
    if _sum(processes) < MOST * _sum(facts.processes):
        return None
    return Finding(
        "{same_name} of {processes} processes are named {comm} and were started one after another.",
        {"same_name": len(pids), "processes": len(facts.processes), "comm": comm, "pids_apart": _apart(pids)},
    )


def many_processes(facts: Facts) -> Finding | None:
    """No process is large."""
    if facts.scope not in ("memcg", None):
        return None
    score, share = facts.selected_score, facts.largest_share
    if share is not None and len(facts.processes) >= MANY_PROCESSES and share <= SMALL_SHARE:
        return Finding(
            "{processes} processes, the largest of them has only {largest_share} of their memory.",
            {"processes": len(facts.processes), "largest_share": share, **_largest(facts)},
        )
    unadjusted = facts.lowest_adj is not None and facts.lowest_adj >= 0
    if score is not None and score <= SMALL_SCORE and unadjusted and facts.scope == "memcg":
        return Finding(
            "The worst process has a score of {score} of 1000: the limit is used up by many small processes.",
            {"score": score, "processes": len(facts.processes) or None},
        )
    return None


def all_pods(facts: Facts) -> Finding | None:
    """The limit of all pods of the node."""
    if facts.scope != "memcg" or facts.oom_memcg is None or ALL_PODS.fullmatch(facts.oom_memcg) is None:
        return None
    return Finding(
        "The limit of all pods together ({oom_memcg}) was hit, not that of a container.",
        {"oom_memcg": facts.oom_memcg, "limit_bytes": facts.limit_bytes, **_largest(facts)},
    )


def host_exhausted(facts: Facts) -> Finding | None:
    """The host itself was full."""
    if facts.scope != "global" or (facts.free_share is not None and facts.free_share >= PLENTY_FREE):
        return None
    largest = "" if not facts.processes else " The largest process there was {largest_comm} with {largest_bytes}."
    text = "The host ran out of memory, no cgroup hit its limit; " + _free(facts) + largest
    return Finding(text, {**_host(facts), **_largest(facts)})


def _by_kind(kind: str) -> Callable[[Facts], Finding | None]:
    def holds(facts: Facts) -> Finding | None:
        size, total = facts.kinds.get(kind), facts.total_bytes
        if facts.scope not in ("memcg", None) or size is None or not total or size <= MOST * total:
            return None
        evidence: Evidence = {f"{kind}_bytes": size, "usage_bytes": total, "share": size / total}
        return Finding(f"{{share}} of the usage ({{{kind}_bytes}} of {{usage_bytes}}) {_IS[kind]}.", evidence)

    return holds


_IS = {
    "shmem": "is shared memory: tmpfs, /dev/shm, memfd, SysV",
    "file": "is page cache that was not given back in time",
    "kernel": "is the kernel's own memory",
}


_CALLED = {"anon": "anon memory", "shmem": "shared memory"}


def shmem(facts: Facts) -> Finding | None:
    """Most of the usage is shared memory."""
    return _by_kind("shmem")(facts) or _of_victims("shmem", facts)


def page_cache(facts: Facts) -> Finding | None:
    """Most of the usage is page cache."""
    found = _by_kind("file")(facts)
    if found is None:
        return None
    stat = facts.stat or {}
    dirty = _first(stat, "total_dirty", "dirty", "file_dirty")
    writeback = _first(stat, "total_writeback", "writeback", "file_writeback")
    evidence = {**found.evidence, "dirty_bytes": dirty, "writeback_bytes": writeback}
    unwritten = (dirty or 0) + (writeback or 0)
    file = facts.kinds["file"]
    if unwritten > MOST * file:
        return Finding(
            found.text + " {unwritten_share} of it was not written yet.",
            {**evidence, "unwritten_share": min(1.0, unwritten / file)},
        )
    return Finding(found.text, evidence)


def kernel_memory(facts: Facts) -> Finding | None:
    """Most of the usage is the kernel's own."""
    found = _by_kind("kernel")(facts)
    if found is None:
        return None
    stat = facts.stat or {}
    parts = {f"{key}_bytes": stat[key] for key in _KERNEL_PARTS if stat.get(key)}
    return Finding(found.text, {**found.evidence, **parts})


def _anon(facts: Facts) -> tuple[int, int] | None:
    """Anon memory and its swap, of the usage, where that is most of it."""
    kinds, total = facts.kinds, facts.total_bytes
    if facts.scope not in ("memcg", None) or not total:
        return None
    anon = kinds["anon"] + kinds.get("swap", 0) if "anon" in kinds else None
    if anon is None and facts.processes and facts.limit_bytes:
        # no memory.stat: what the processes themselves hold
        anon = sum(process.size_bytes or 0 for process in facts.processes)
    return (min(anon, total), total) if anon is not None and anon > MOST * total else None


def anon_one_process(facts: Facts) -> Finding | None:
    """One process has most of the anon memory."""
    anon, share = _anon(facts), facts.largest_share
    if anon is None or share is None or share <= MOST:
        return None
    size, total = anon
    evidence: Evidence = {"anon_bytes": size, "usage_bytes": total, "share": size / total, "largest_share": share}
    return Finding(
        "{share} of the usage ({anon_bytes} of {usage_bytes}) is anon memory, and {largest_comm} alone has "
        "{largest_share} of it.",
        {**evidence, **_largest(facts)},
    )


def anon_of_somebody(facts: Facts) -> Finding | None:
    """Anon memory, but whose?"""
    anon = _anon(facts)
    if anon is not None:
        size, total = anon
        return Finding(
            "{share} of the usage ({anon_bytes} of {usage_bytes}) is anon memory; whose, the log does not say.",
            {"anon_bytes": size, "usage_bytes": total, "share": size / total},
        )
    return _of_victims("anon", facts)


def _of_victims(kind: str, facts: Facts) -> Finding | None:
    """By what the killed held alone, where the log has no figure of the cgroup."""
    sizes = facts.victim_kinds
    total = sum(sizes.values())
    if facts.scope != "memcg" or facts.parts is not None or facts.usage_bytes is not None or not total:
        return None
    if not {"anon", "shmem", "file"} <= sizes.keys() or sizes[kind] < NEARLY_ALL * total:
        return None
    return Finding(
        f"{{share}} of what the killed held ({{{kind}_bytes}}) is {_CALLED[kind]}; "
        "what the limit counts is not in the log.",
        {f"{kind}_bytes": sizes[kind], "share": sizes[kind] / total, "killed": facts.killed},
    )


def limit_too_small(facts: Facts) -> Finding | None:
    """Several share what is in use."""
    anon, share = _anon(facts), facts.largest_share
    if anon is not None and share is not None and len(facts.processes) > 1:
        size, total = anon
        return Finding(
            "{share} of the usage ({anon_bytes} of {usage_bytes}) is anon memory of {processes} processes, none of "
            "which has more than {largest_share}.",
            {
                "anon_bytes": size,
                "usage_bytes": total,
                "share": size / total,
                "processes": len(facts.processes),
                "largest_share": share,
                **_largest(facts),
            },
        )
    used, kinds = facts.total_bytes, facts.kinds
    if facts.scope != "memcg" or not used or facts.limit_bytes is None or sum(kinds.values()) <= MOST * used:
        return None
    if max(kinds.values()) > MOST * used:
        return None
    return Finding(
        "No kind is more than half of the usage ({usage_bytes}): together they are more than the limit.",
        {"usage_bytes": used, "limit_bytes": facts.limit_bytes, **{f"{kind}_bytes": kinds[kind] for kind in kinds}},
    )


def _free(facts: Facts) -> str:
    if facts.free_bytes is None:
        return "how much the host had free is not in the log."
    if facts.free_share is None:
        return "the host had {free_bytes} free."
    return "the host had {free_bytes} free, {free_share} of its RAM."


def _host(facts: Facts) -> Evidence:
    return {
        "free_bytes": facts.free_bytes,
        "free_share": facts.free_share,
        "swap_free_bytes": facts.host.swap_free_bytes if facts.host else None,
    }


def _largest(facts: Facts) -> Evidence:
    largest: Process | None = facts.processes[0] if facts.processes else None
    if largest is None:
        return {}
    return {"largest_pid": largest.pid, "largest_comm": largest.comm, "largest_bytes": largest.size_bytes}


def _sum(processes: tuple[Process, ...]) -> int:
    return sum(process.size for process in processes)


def _apart(pids: list[int]) -> float:
    return round((max(pids) - min(pids)) / len(pids), 2)


def _first(stat: dict[str, int], *keys: str) -> int | None:
    return next((stat[key] for key in keys if key in stat), None)
