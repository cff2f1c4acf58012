"""OomReport: one OOM kill, joined from the kernel's tracepoint, its log and the cgroup's files."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Literal, TypeVar

from rtdebug.containers.model import Container
from rtdebug.oom.history import MemorySample, StatReading
from rtdebug.oom.kill import MemcgLevel, OomKill
from rtdebug.oom.limit import Limit, LimitSource, find_limit
from rtdebug.oom.log_usage import hierarchical_stat
from rtdebug.oom.record import Constraint, OomRecord, Victim
from rtdebug.oom.siblings import Sibling
from rtdebug.oom.tasks import OomTask, largest_tasks
from rtdebug.oom.usage import UsageByKind, usage_by_kind
from rtdebug.tracing.line import EventLine, Value

StatSource = Literal["kernel_log", "cgroup_files", "last_sample"]
LimitOwner = Literal["container", "below", "above", "elsewhere"]

T = TypeVar("T")

_ALIKE_SHARE = 0.25
"""What is read of a cgroup is of the kill if its usage was so near."""
_SIBLINGS_AT_MOST = 20
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
    history_cgroup: str | None = None
    presumed_limit: str | None = None
    """presumed_limit() of the kill, whose children `siblings` are."""
    siblings: Sequence[Sibling] | None = None
    """Read right after the kill; None: the limit is the victim's own cgroup's, or they could not be read."""
    page_size_bytes: int | None = None
    """Of the kernel that killed."""


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
    """Of the container's cgroup; the last one is of the kill itself if its usage then is known."""
    usage_by_kind: UsageByKind | None = None
    """What the limited cgroup's usage is made of, of the counter that had no room."""
    tasks: tuple[OomTask, ...] | None = None
    """The largest processes that the kernel could have killed; None: it did not list them."""
    siblings: tuple[Sibling, ...] | None = None
    """The children of the limited cgroup, the largest first, when that is above the victim's."""

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
        result["usage_by_kind"] = None if self.usage_by_kind is None else asdict(self.usage_by_kind)
        result["tasks"] = None if self.tasks is None else [asdict(task) for task in self.tasks]
        result["siblings"] = None if self.siblings is None else [asdict(each) for each in self.siblings]
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
    limit = find_limit(kill, log)
    stat, stat_source = _stat(log, around, limit)
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
        history=_history(kill, around, limit),
        usage_by_kind=_usage_by_kind(stat, stat_source, limit),
        tasks=_tasks(kill, log, around),
        siblings=_siblings(kill, around, limit),
    )


def _constraint(kill: OomKill, log: OomRecord | None, limit: Limit) -> Constraint | None:
    if log and log.constraint:
        return log.constraint
    if kill.constraint is None and limit.source is not None:
        return "memcg"
    return kill.constraint


def _stat(
    log: OomRecord | None, around: Surroundings, limit: Limit
) -> tuple[StatReading | None, StatSource | None]:
    if log and log.memory_stat:
        usage, kmem = (counter.usage_bytes if counter else None for counter in (log.memory, log.kmem))
        return StatReading(hierarchical_stat(log), 0, log.oom_memcg, usage, kmem), "kernel_log"
    readings: list[tuple[StatReading | None, StatSource]] = [
        (around.stat_after, "cgroup_files"),
        (around.last_stat, "last_sample"),
    ]
    known = [(reading, source) for reading, source in readings if reading is not None]
    alike = [(reading, source) for reading, source in known if _is_like_the_kill(reading, limit)]
    return next(iter(alike + known), (None, None))


def _stat_age(kill: OomKill, stat: StatReading | None, source: StatSource | None) -> int | None:
    if stat is None:
        return None
    return 0 if source == "kernel_log" else abs(stat.time_ns - kill.time_ns)


def _usage_by_kind(
    stat: StatReading | None, source: StatSource | None, limit: Limit
) -> UsageByKind | None:
    if limit.cgroup is None:
        return None
    if limit.kind == "kmem":
        return UsageByKind(kernel_bytes=limit.usage_bytes, other_bytes=None if limit.usage_bytes is None else 0)
    if stat is None or stat.cgroup != limit.cgroup:
        return None
    if source != "kernel_log" and not _is_like_the_kill(stat, limit):
        return None
    swap = None
    if limit.kind == "memory+swap" and limit.usage_bytes is not None and stat.usage_bytes is not None:
        swap = max(0, limit.usage_bytes - stat.usage_bytes)
    return usage_by_kind(stat.stat, stat.usage_bytes, stat.kmem_bytes, swap)


def _is_like_the_kill(reading: StatReading, limit: Limit) -> bool:
    """It is of the limited cgroup while that had the victim's memory: not yet given back, or already there."""
    if reading.cgroup != limit.cgroup or limit.kind != "memory":
        return False
    if limit.usage_bytes is None or reading.usage_bytes is None:
        return False
    return abs(reading.usage_bytes - limit.usage_bytes) <= limit.usage_bytes * _ALIKE_SHARE


def _tasks(kill: OomKill, log: OomRecord | None, around: Surroundings) -> tuple[OomTask, ...] | None:
    page_size_bytes = around.page_size_bytes or (log.page_size_bytes if log else None)
    if log is None or page_size_bytes is None:
        return None
    return largest_tasks(log.tasks, page_size_bytes, kill.pid)


def _siblings(kill: OomKill, around: Surroundings, limit: Limit) -> tuple[Sibling, ...] | None:
    """The victim's branch as it was at the kill: what was read has its memory gone, or the cgroup itself."""
    if around.siblings is None or limit.cgroup is None or limit.cgroup != around.presumed_limit:
        return None
    found = {sibling.cgroup: sibling for sibling in around.siblings}
    for level in kill.levels:
        if level.cgroup is None or level.cgroup == "/" or posixpath.dirname(level.cgroup) != limit.cgroup:
            continue
        branch = replace(found.get(level.cgroup, Sibling(level.cgroup, None)), usage_bytes=level.usage_bytes)
        box = around.container
        if box is not None and box.cgroup == level.cgroup:
            branch = replace(branch, container_id=box.id, container_name=box.name)
        found[level.cgroup] = branch
    ordered = sorted(found.values(), key=lambda sibling: sibling.usage_bytes or 0, reverse=True)
    return tuple(ordered[:_SIBLINGS_AT_MOST])


def _history(kill: OomKill, around: Surroundings, limit: Limit) -> tuple[MemorySample, ...]:
    samples = tuple(sample for sample in around.history if sample.time_ns < kill.time_ns)
    usage = next((each.usage_bytes for each in kill.levels if each.cgroup == around.history_cgroup), None)
    if usage is None and limit.kind == "memory" and limit.cgroup == around.history_cgroup:
        usage = limit.usage_bytes
    if not samples or usage is None:
        return samples
    return (*samples, MemorySample(kill.time_ns, usage, None, None, None, None))


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
