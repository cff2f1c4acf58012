"""Rules on a container that is short of memory without dying: throttled, thrashing, or once was."""

from __future__ import annotations

from collections.abc import Iterator

from rtdebug.diagnose.facts import Facts
from rtdebug.diagnose.finding import Finding, Severity

MIB = 1 << 20
_STALL_PERCENT = 10.0
"""PSI some, avg10: oomd's and systemd-oomd's defaults act at 60; a service with a deadline feels a tenth."""
_PAST_STALL_US = 60_000_000
_REFAULTS_MIB_PER_S = 1.0
_MAJOR_FAULTS_PER_S = 100
_SWAP_FULL = 0.95
_HIGH_REACHED = 0.98
_KERNEL_SHARE = 0.50
_KERNEL_LEAST_BYTES = 256 * MIB


def throttled_at_high(facts: Facts) -> Iterator[Finding]:
    """v2 memory.high: it is slowed down rather than killed; no OOM counter moves."""
    memory = facts.memory
    if memory is None or not memory.high_bytes or not memory.usage_bytes:
        return
    events = memory.events.get("high", 0)
    if not events or memory.usage_bytes < memory.high_bytes * _HIGH_REACHED:
        return
    yield Finding(
        "throttled-at-high",
        Severity.CRITICAL,
        "it is throttled at memory.high ({high_bytes}): {high_events} times so far, {anon_bytes} of it anon, which "
        "cannot be reclaimed without swap: it grows slower and slower, and is never killed",
        {
            "high_bytes": memory.high_bytes,
            "usage_bytes": memory.usage_bytes,
            "high_events": events,
            "anon_bytes": memory.anon_bytes,
            "stalled_percent": memory.pressure.some.avg10 if memory.pressure and memory.pressure.some else None,
        },
        ("host: raise memory.high, or set it to max", "pod: raise the memory limit (MemoryQoS derives memory.high)"),
    )


def swap_full(facts: Facts) -> Iterator[Finding]:
    """What it may swap is used up: from here on only page cache gives way."""
    memory = facts.memory
    if memory is None or not memory.swap_limit_bytes or memory.swap_usage_bytes is None:
        return
    if memory.swap_usage_bytes >= memory.swap_limit_bytes * _SWAP_FULL:
        yield Finding(
            "swap-full",
            Severity.WARNING,
            "it has used up the swap it may have ({swap_bytes} of {swap_limit_bytes})",
            {"swap_bytes": memory.swap_usage_bytes, "swap_limit_bytes": memory.swap_limit_bytes},
            ("rtdebug: rtdebug leaks tells a leak from a working set that is too large", "host: raise memory.swap.max"),
        )


def thrashing(facts: Facts) -> Iterator[Finding]:
    """Its working set does not fit: it reads back what was just reclaimed."""
    seconds = facts.sample_s
    pages = facts.grew("workingset_refault_anon", "workingset_refault_file", "workingset_refault")
    faults = facts.grew("pgmajfault")
    if not seconds or pages is None or faults is None:
        return
    refault_bytes = pages * facts.host.page_bytes
    if refault_bytes / seconds < _REFAULTS_MIB_PER_S * MIB or faults / seconds < _MAJOR_FAULTS_PER_S:
        return
    yield Finding(
        "thrashing",
        Severity.CRITICAL,
        "it reads back {refaulted_bytes_per_s} a second of what was reclaimed a moment before: its working set is "
        "larger than it may hold",
        {
            "refaulted_bytes_per_s": round(refault_bytes / seconds),
            "major_faults_per_s": round(faults / seconds),
            "limit_bytes": facts.limits.limit_bytes if facts.limits else None,
        },
        ("rtdebug: rtdebug limits --probe finds its working set",),
    )


def stalled(facts: Facts) -> Iterator[Finding]:
    """PSI: tasks wait for memory now, or did for long."""
    memory = facts.memory
    some = memory.pressure.some if memory and memory.pressure else None
    if some is None:
        return
    if some.avg10 >= _STALL_PERCENT:
        yield Finding(
            "stalled",
            Severity.CRITICAL,
            "its tasks wait for memory {stalled_percent} % of the time",
            {"stalled_percent": some.avg10, "stalled_percent_5min": some.avg300},
            ("rtdebug: rtdebug limits --probe finds its working set",),
        )
    elif some.total_us >= _PAST_STALL_US:
        yield Finding(
            "stalled-before",
            Severity.NOTE,
            "it is calm now, but its tasks have waited {stalled_s} s for memory since its cgroup was made",
            {"stalled_s": round(some.total_us / 1e6), "stalled_percent_5min": some.avg300},
            ("rtdebug: rtdebug leaks record shows when",),
        )


def kernel_memory(facts: Facts) -> Iterator[Finding]:
    """Slab, page tables, sockets: no process shows it."""
    memory, limits = facts.memory, facts.limits
    kernel = memory.by_kind_bytes.get("kernel") if memory else None
    if memory is None or kernel is None or not memory.usage_bytes:
        return
    limit = limits.limit_bytes if limits else None
    if kernel < (limit * _KERNEL_SHARE if limit else _KERNEL_LEAST_BYTES):
        return
    if kernel < memory.usage_bytes * _KERNEL_SHARE:
        return
    sock = memory.stat.get("sock")
    change = ("rtdebug: rtdebug reclaim takes what is reclaimable", "advice: walk fewer files, or raise the limit")
    if sock is not None and sock * 2 >= kernel:
        unread = "advice: data waits in its sockets: let it read what it is sent, or bound what it sends"
        change = (unread, "advice: or raise the limit")
    yield Finding(
        "kernel-memory",
        Severity.WARNING,
        "{kernel_bytes} of its {usage_bytes} are the kernel's own (dentries and inodes of files it looked at, page "
        "tables, sockets): no process shows them",
        {
            "kernel_bytes": kernel,
            "usage_bytes": memory.usage_bytes,
            "slab_reclaimable_bytes": memory.stat.get("slab_reclaimable"),
            "sock_bytes": sock,
        },
        change,
    )
