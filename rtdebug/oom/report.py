"""OomReport: one OOM kill, joined from the kernel's tracepoint, its log and the cgroup's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, TypeVar

from rtdebug.containers.model import Container
from rtdebug.oom.history import MemorySample, StatReading
from rtdebug.oom.kill import MemcgLevel, OomKill
from rtdebug.oom.record import Constraint, MemoryCounter, OomRecord, Victim
from rtdebug.tracing.line import EventLine, Value

LimitSource = Literal["kernel_log", "out_of_memory", "at_limit"]
StatSource = Literal["kernel_log", "cgroup_files", "last_sample"]
LimitOwner = Literal["container", "below", "above", "elsewhere"]

T = TypeVar("T")

_NEAR_BYTES = 256 * 1024
"""mm/memcontrol.c charges in batches of MEMCG_CHARGE_BATCH (64) pages: a full cgroup may be so far below."""
_NEAR_SHARE = 128
_NOT_OF_THE_EVENT = frozenset({"time_ns", "pid", "tid", "ns_pid", "comm", "container", "cgroup"})


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was found out about the victim right at the kill; the cgroup may be gone a moment later."""

    container: Container | None = None
    cgroup: str | None = None
    """The victim's, below the root of the memory controller's hierarchy."""
    cmdline: str | None = None
    trigger_cgroup: str | None = None
    stat_after: StatReading | None = None
    """memory.stat from the cgroup's files right after the kill."""
    last_stat: StatReading | None = None
    """memory.stat of the last sample before it."""
    history: Sequence[MemorySample] = ()


@dataclass(frozen=True, slots=True)
class OomReport:
    """Who was killed, by which limit, holding what. Field names are the keys of the event line."""

    time_ns: int
    """CLOCK_MONOTONIC."""
    pid: int
    tid: int
    ns_pid: int | None
    comm: str | None
    container: Container | None
    cgroup: str | None
    constraint: Constraint | None
    """memcg, global, cpuset or mempolicy; None: nothing said so."""
    oom_memcg: str | None
    """Path of the cgroup whose limit was hit."""
    limit_kind: str | None
    """The counter that had no room: memory, memory+swap or kmem."""
    limit_bytes: int | None
    usage_bytes: int | None
    """Of that counter."""
    failcnt: int | None
    limit_source: LimitSource | None
    """How the limit is known; `at_limit`: inferred, the cgroup on the victim's path that was full."""
    limit_owner: LimitOwner | None
    """Whose limit: the container's own cgroup, one below or above it."""
    anon_rss_bytes: int | None
    file_rss_bytes: int | None
    shmem_rss_bytes: int | None
    swap_bytes: int | None
    page_table_bytes: int | None
    total_vm_bytes: int | None
    oom_score_adj: int | None
    uid: int | None
    cmdline: str | None
    victim_is_init: bool | None
    """The container's init, whose end is the container's end."""
    nested_cgroup: bool | None
    """The victim was in a cgroup below the container's."""
    oom_group: bool | None
    """Killed as one of a group, because of memory.oom.group."""
    trigger_pid: int | None
    trigger_tid: int | None
    trigger_comm: str | None
    trigger_cgroup: str | None
    gfp_mask: str | None
    order: int | None
    memcg_levels: tuple[MemcgLevel, ...]
    """From the victim's cgroup to the root."""
    memory_stat: Mapping[str, int] | None
    stat_cgroup: str | None
    stat_source: StatSource | None
    stat_age_ns: int | None
    """Time between the kill and memory_stat."""
    history: Sequence[MemorySample] = field(default=())

    def to_fields(self) -> dict[str, Value]:
        """The event's own JSON keys."""
        names = (each.name for each in fields(self) if each.name not in _NOT_OF_THE_EVENT)
        result: dict[str, Value] = {name: getattr(self, name) for name in names}
        result["memcg_levels"] = [_level_fields(level) for level in self.memcg_levels]
        result["memory_stat"] = None if self.memory_stat is None else dict(self.memory_stat)
        result["history"] = [
            {"age_ns": self.time_ns - sample.time_ns, "usage_bytes": sample.usage_bytes}
            for sample in self.history
        ]
        return result

    def to_line(self, clock_offset_ns: int) -> EventLine:
        """The event line; `clock_offset_ns` is CLOCK_REALTIME less CLOCK_MONOTONIC."""
        container = self.container
        return EventLine(
            time_ns=self.time_ns + clock_offset_ns,
            event="oom_kill",
            container_id=container.id if container else None,
            container_name=container.name if container else None,
            runtime=container.runtime if container else None,
            cgroup=self.cgroup,
            pid=self.pid,
            ns_pid=self.ns_pid,
            tid=self.tid,
            comm=self.comm,
            fields=self.to_fields(),
        )


def build_report(
    kill: OomKill, log: OomRecord | None = None, around: Surroundings | None = None
) -> OomReport:
    """Join what the sources say about one kill. `log` is the record that has `kill` among its victims."""
    around = around or Surroundings()
    victim = log.victim(kill.tid, kill.pid) if log else None
    printed = victim or Victim(kill.tid)
    trigger = log.trigger if log else None
    cgroup = around.cgroup or (kill.levels[0].cgroup if kill.levels else None)
    limit = _limit(kill, log)
    stat, stat_source = _stat(log, around)
    return OomReport(
        time_ns=kill.time_ns,
        pid=kill.pid,
        tid=kill.tid,
        ns_pid=kill.ns_pid,
        comm=_known(kill.comm, printed.comm),
        container=around.container,
        cgroup=cgroup or (log.task_memcg if log and _is_first(log, kill) else None),
        constraint=_constraint(kill, log, limit),
        oom_memcg=limit.cgroup,
        limit_kind=limit.kind,
        limit_bytes=limit.limit_bytes,
        usage_bytes=limit.usage_bytes,
        failcnt=limit.failcnt,
        limit_source=limit.source,
        limit_owner=_owner(around.container, limit.cgroup),
        anon_rss_bytes=_known(kill.anon_rss_bytes, printed.anon_rss_bytes),
        file_rss_bytes=_known(kill.file_rss_bytes, printed.file_rss_bytes),
        shmem_rss_bytes=_known(kill.shmem_rss_bytes, printed.shmem_rss_bytes),
        swap_bytes=_known(kill.swap_bytes, log.swap_bytes(victim) if log and victim else None),
        page_table_bytes=_known(kill.page_table_bytes, printed.page_table_bytes),
        total_vm_bytes=_known(kill.total_vm_bytes, printed.total_vm_bytes),
        oom_score_adj=_known(kill.oom_score_adj, printed.oom_score_adj),
        uid=_known(kill.uid, printed.uid),
        cmdline=around.cmdline,
        victim_is_init=_is_init(kill, around.container),
        nested_cgroup=_is_nested(around.container, cgroup),
        oom_group=log.group_memcg is not None if log and not log.cut else kill.oom_group,
        trigger_pid=kill.trigger_pid,
        trigger_tid=_known(kill.trigger_tid, trigger.tid if trigger else None),
        trigger_comm=_known(kill.trigger_comm, trigger.comm if trigger else None),
        trigger_cgroup=around.trigger_cgroup,
        gfp_mask=_known(trigger.gfp_mask if trigger else None, kill.gfp_mask),  # the log has the names too
        order=_known(kill.order, trigger.order if trigger else None),
        memcg_levels=kill.levels,
        memory_stat=stat.stat if stat else None,
        stat_cgroup=stat.cgroup if stat else None,
        stat_source=stat_source,
        stat_age_ns=_stat_age(kill, stat, stat_source),
        history=around.history,
    )


@dataclass(frozen=True, slots=True)
class _Limit:
    cgroup: str | None = None
    kind: str | None = None
    usage_bytes: int | None = None
    limit_bytes: int | None = None
    failcnt: int | None = None
    source: LimitSource | None = None


def _limit(kill: OomKill, log: OomRecord | None) -> _Limit:
    """Which limit was hit: as the log says, else as the probe says, else the full one above the victim."""
    if log and log.constraint == "memcg" and log.oom_memcg is not None:
        level = next((level for level in kill.levels if level.cgroup == log.oom_memcg), None)
        kind = log.limiting_counter
        counter = _counter(log, kind)
        if counter is None:
            return _of_level(level, "kernel_log", log.oom_memcg)
        # on v2 the log's failcnt is no number of memory.events: the level's is
        failcnt = level.failcnt if level and kind == "memory" else counter.failcnt
        return _Limit(log.oom_memcg, kind, counter.usage_bytes, counter.limit_bytes, failcnt, "kernel_log")
    if kill.oom_memcg_id is not None:
        level = next((level for level in kill.levels if level.memcg_id == kill.oom_memcg_id), None)
        return _of_level(level, "out_of_memory", level.cgroup if level else None)
    if (log.constraint if log and log.constraint else kill.constraint) in (None, "memcg"):
        full = level_at_limit(kill.levels)
        return _of_level(full, "at_limit", full.cgroup) if full else _Limit()
    return _Limit()


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


def _of_level(level: MemcgLevel | None, source: LimitSource, cgroup: str | None) -> _Limit:
    if level is None:
        return _Limit(cgroup, source=source)
    return _Limit(cgroup, "memory", level.usage_bytes, level.limit_bytes, level.failcnt, source)


def _counter(log: OomRecord, kind: str | None) -> MemoryCounter | None:
    counters = {"memory+swap": log.memory_swap, "kmem": log.kmem, "memory": log.memory}
    return counters.get(kind or "memory")


def _constraint(kill: OomKill, log: OomRecord | None, limit: _Limit) -> Constraint | None:
    if log and log.constraint:
        return log.constraint
    if kill.constraint is None and limit.source is not None:
        return "memcg"
    return kill.constraint


def _stat(log: OomRecord | None, around: Surroundings) -> tuple[StatReading | None, StatSource | None]:
    if log and log.memory_stat:
        return StatReading(_hierarchical_stat(log), 0, log.oom_memcg), "kernel_log"
    if around.stat_after:
        return around.stat_after, "cgroup_files"
    return (around.last_stat, "last_sample") if around.last_stat else (None, None)


def _stat_age(kill: OomKill, stat: StatReading | None, source: StatSource | None) -> int | None:
    if stat is None:
        return None
    return 0 if source == "kernel_log" else abs(stat.time_ns - kill.time_ns)


def _hierarchical_stat(log: OomRecord) -> Mapping[str, int]:
    """Old v1 kernels print every cgroup of the tree without those below it: then the sum is the domain's."""
    own = log.memory_stat or {}
    if not log.child_memory_stats or any(key.startswith("total_") for key in own):
        return own
    total = dict(own)
    for child in log.child_memory_stats.values():
        for key, value in child.items():
            total[key] = total.get(key, 0) + value
    return total


def _is_first(log: OomRecord, kill: OomKill) -> bool:
    """The log names the cgroup of the first victim; other members of a group may be in others."""
    return bool(log.victims) and log.victims[0].pid in (kill.tid, kill.pid)


def _is_init(kill: OomKill, container: Container | None) -> bool | None:
    if container is not None and container.pid is not None:
        return kill.pid == container.pid
    return None if kill.ns_pid is None else kill.ns_pid == 1


def _is_nested(container: Container | None, cgroup: str | None) -> bool | None:
    if container is None or container.cgroup is None or cgroup is None:
        return None
    return _is_below(cgroup, container.cgroup)


def _owner(container: Container | None, oom_memcg: str | None) -> LimitOwner | None:
    if container is None or container.cgroup is None or oom_memcg is None:
        return None
    if oom_memcg == container.cgroup:
        return "container"
    if _is_below(oom_memcg, container.cgroup):
        return "below"
    return "above" if _is_below(container.cgroup, oom_memcg) else "elsewhere"


def _is_below(path: str, above: str) -> bool:
    return path != above and path.startswith(above.rstrip("/") + "/")


def _known(first: T | None, second: T | None) -> T | None:
    return second if first is None else first


def _level_fields(level: MemcgLevel) -> dict[str, Value]:
    return {each.name: getattr(level, each.name) for each in fields(level)}
