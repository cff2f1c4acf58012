"""What the limited cgroup's usage was made of, as far as a log alone says."""

from __future__ import annotations

from collections.abc import Mapping

from rtdebug.oom.record import MemoryCounter, OomRecord
from rtdebug.oom.usage import UsageByKind, usage_by_kind


def hierarchical_stat(log: OomRecord) -> Mapping[str, int]:
    """memory.stat of the limited cgroup with all below it.

    Old v1 kernels print every cgroup of the tree without those below it: then the sum is the domain's.
    """
    own = log.memory_stat or {}
    if not log.child_memory_stats or any(key.startswith("total_") for key in own):
        return own
    total = dict(own)
    for child in log.child_memory_stats.values():
        for key, value in child.items():
            total[key] = total.get(key, 0) + value
    return total


def counter_of(log: OomRecord) -> MemoryCounter | None:
    """The counter that had no room; without any that has a limit, that of memory."""
    counters = {"memory+swap": log.memory_swap, "kmem": log.kmem}
    return counters.get(log.limiting_counter or "") or log.memory


def usage_of(log: OomRecord) -> UsageByKind | None:
    """The parts of that counter's usage; None when the log has nothing to tell them by."""
    counter = counter_of(log)
    if log.limiting_counter == "kmem" and counter:
        return UsageByKind(kernel_bytes=counter.usage_bytes, other_bytes=0)
    stat = hierarchical_stat(log)
    if not stat:
        return None
    usage = log.memory.usage_bytes if log.memory else None
    swap = None
    if log.limiting_counter == "memory+swap" and counter and usage is not None:
        swap = max(0, counter.usage_bytes - usage)
    return usage_by_kind(stat, usage, log.kmem.usage_bytes if log.kmem else None, swap)
