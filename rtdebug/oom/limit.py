"""Limit: which cgroup's limit was hit, and by which counter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rtdebug.oom.kill import MemcgLevel, OomKill
from rtdebug.oom.record import MemoryCounter, OomRecord

LimitSource = Literal["kernel_log", "out_of_memory", "at_limit"]

_NEAR_BYTES = 256 * 1024
"""mm/memcontrol.c charges in batches of MEMCG_CHARGE_BATCH (64) pages: a full cgroup may be so far below."""
_NEAR_SHARE = 128


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit that was hit; what is not known of it is None, all of it when no cgroup's was."""

    cgroup: str | None = None
    kind: str | None = None
    usage_bytes: int | None = None
    limit_bytes: int | None = None
    failcnt: int | None = None
    source: LimitSource | None = None


def find_limit(kill: OomKill, log: OomRecord | None) -> Limit:
    """Which limit was hit: as the log says, else as the probe says, else the full one above the victim."""
    if log and log.constraint == "memcg" and log.oom_memcg is not None:
        level = next((level for level in kill.levels if level.cgroup == log.oom_memcg), None)
        kind = log.limiting_counter
        counter = _counter(log, kind)
        if counter is None:
            return _of_level(level, "kernel_log", log.oom_memcg)
        # on v2 the log's failcnt is no number of memory.events: the level's is
        failcnt = level.failcnt if level and kind == "memory" else counter.failcnt
        return Limit(log.oom_memcg, kind, counter.usage_bytes, counter.limit_bytes, failcnt, "kernel_log")
    if kill.oom_memcg_id is not None:
        level = next((level for level in kill.levels if level.memcg_id == kill.oom_memcg_id), None)
        return _of_level(level, "out_of_memory", level.cgroup if level else None)
    if (log.constraint if log and log.constraint else kill.constraint) in (None, "memcg"):
        full = level_at_limit(kill.levels)
        return _of_level(full, "at_limit", full.cgroup) if full else Limit()
    return Limit()


def presumed_limit(kill: OomKill) -> str | None:
    """The cgroup whose limit was hit, as far as it can be told before the kernel log is read."""
    return find_limit(kill, None).cgroup


def level_at_limit(levels: Sequence[MemcgLevel]) -> MemcgLevel | None:
    """The cgroup that has no room left, the innermost if several are as full; None if all have room."""
    rooms = [
        (max(0, level.limit_bytes - level.usage_bytes), index)
        for index, level in enumerate(levels)
        if level.limit_bytes is not None
        and level.usage_bytes is not None
        and level.limit_bytes - level.usage_bytes <= max(_NEAR_BYTES, level.limit_bytes // _NEAR_SHARE)
    ]
    return levels[min(rooms)[1]] if rooms else None


def _of_level(level: MemcgLevel | None, source: LimitSource, cgroup: str | None) -> Limit:
    if level is None:
        return Limit(cgroup, source=source)
    return Limit(cgroup, "memory", level.usage_bytes, level.limit_bytes, level.failcnt, source)


def _counter(log: OomRecord, kind: str | None) -> MemoryCounter | None:
    counters = {"memory+swap": log.memory_swap, "kmem": log.kmem, "memory": log.memory}
    return counters.get(kind or "memory")
