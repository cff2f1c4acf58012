"""OomKill: struct oom_event of bpf/events.h in bytes, with None for what the kernel did not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from rtdebug.oom.record import Constraint

# enum oom_constraint, include/linux/oom.h
_CONSTRAINTS: tuple[Constraint, ...] = ("global", "cpuset", "mempolicy", "memcg")


@dataclass(frozen=True, slots=True)
class MemcgLevel:
    """One cgroup on the way from the victim's to the root, at the moment of the kill."""

    memcg_id: int | None
    """Kernfs id of the cgroup."""
    cgroup: str | None
    """Path below the root of the memory controller's hierarchy."""
    usage_bytes: int | None
    limit_bytes: int | None
    """None: no limit of its own."""
    failcnt: int | None
    """How often its limit was hit."""


@dataclass(frozen=True, slots=True)
class OomKill:
    """One killed process, as the kernel's tracepoint or probe saw it."""

    time_ns: int
    """CLOCK_MONOTONIC."""
    pid: int
    """tgid in the host's pid namespace."""
    tid: int
    """The task that was marked: another thread when the leader had exited."""
    ns_pid: int | None = None
    comm: str | None = None
    uid: int | None = None
    total_vm_bytes: int | None = None
    anon_rss_bytes: int | None = None
    file_rss_bytes: int | None = None
    shmem_rss_bytes: int | None = None
    swap_bytes: int | None = None
    page_table_bytes: int | None = None
    oom_score_adj: int | None = None
    trigger_pid: int | None = None
    trigger_tid: int | None = None
    trigger_comm: str | None = None
    memcg_id: int | None = None
    oom_memcg_id: int | None = None
    """The cgroup whose limit was hit, where a probe of out_of_memory() said so."""
    constraint: Constraint | None = None
    order: int | None = None
    gfp_mask: str | None = None
    oom_group: bool | None = None
    """memory.oom.group is set on the victim's path."""
    levels: tuple[MemcgLevel, ...] = ()
    """From the victim's cgroup to the root."""

    @classmethod
    def from_event(cls, event: Mapping[str, Any], page_size_bytes: int, paths: Mapping[int, str]) -> Self:
        """From the fields of a struct oom_event (header flattened, text decoded); `paths` by memcg id."""
        # A process that has memory has mappings: none means that the task could not be read.
        known = event["total_vm_pages"] > 0
        probed = event["order"] >= 0
        constraint = event["constraint"]

        def of_task(name: str, factor: int = 1) -> int | None:
            return event[name] * factor if known else None

        return cls(
            time_ns=event["time_ns"],
            pid=event["pid"],
            tid=event["tid"],
            ns_pid=event["ns_pid"] or None,
            comm=event["comm"] or (None if not known else ""),
            uid=of_task("uid"),
            total_vm_bytes=of_task("total_vm_pages", page_size_bytes),
            anon_rss_bytes=of_task("anon_pages", page_size_bytes),
            file_rss_bytes=of_task("file_pages", page_size_bytes),
            shmem_rss_bytes=of_task("shmem_pages", page_size_bytes),
            swap_bytes=of_task("swap_pages", page_size_bytes),
            page_table_bytes=of_task("page_table_bytes"),
            oom_score_adj=of_task("oom_score_adj"),
            trigger_pid=event["trigger_pid"] or None,
            trigger_tid=event["trigger_tid"] or None,
            trigger_comm=event["trigger_comm"] or None,
            memcg_id=event["memcg_id"] or None,
            oom_memcg_id=event["oom_memcg_id"] or None,
            constraint=_CONSTRAINTS[constraint] if constraint < len(_CONSTRAINTS) else None,
            order=event["order"] if probed else None,
            gfp_mask=hex(event["gfp_mask"]) if probed else None,
            oom_group=bool(event["oom_group"]) if event["levels"] else None,
            levels=_levels(event, page_size_bytes, paths),
        )


def _levels(event: Mapping[str, Any], page_size_bytes: int, paths: Mapping[int, str]) -> tuple[MemcgLevel, ...]:
    used = event["memcg"][: event["levels"]]
    return tuple(_level(level, page_size_bytes, paths.get(level["memcg_id"])) for level in used)


def _level(level: Mapping[str, Any], page_size_bytes: int, path: str | None) -> MemcgLevel:
    limit_bytes = level["limit_pages"] * page_size_bytes
    # PAGE_COUNTER_MAX, LONG_MAX in pages, is no limit (include/linux/page_counter.h)
    unlimited = limit_bytes >= (1 << 63) - page_size_bytes
    # The root cgroup is not charged: its counter has what the cgroups below it use, not what the host uses.
    uncharged = path == "/" and unlimited
    return MemcgLevel(
        memcg_id=level["memcg_id"],
        cgroup=path,
        usage_bytes=None if uncharged else level["usage_pages"] * page_size_bytes,
        limit_bytes=None if unlimited else limit_bytes,
        failcnt=None if uncharged else level["failcnt"],
    )
