"""OomDraft: an OomRecord in the making, line by line."""

from __future__ import annotations

from dataclasses import dataclass, field

from rtdebug.oom.dressing import LogLine
from rtdebug.oom.record import (
    Constraint,
    HostMemory,
    MemoryCounter,
    OomRecord,
    Reaped,
    Selected,
    TaskRow,
    Trigger,
    Victim,
)

_SYSRQ_ORDER = -1
"""is_sysrq_oom() of mm/oom_kill.c."""


@dataclass(slots=True, eq=False)
class OomDraft:
    """A record in the making."""

    first: LogLine
    touched_ns: int | None
    constraint: Constraint | None = None
    oom_memcg: str | None = None
    task_memcg: str | None = None
    cpuset: str | None = None
    mems_allowed: str | None = None
    nodemask: str | None = None
    trigger: Trigger | None = None
    selected: Selected | None = None
    chosen: Victim | None = None
    victims: dict[int, Victim] = field(default_factory=dict)
    kill_lines: int = 0
    skipped: list[int] = field(default_factory=list)
    reaped: list[Reaped] = field(default_factory=list)
    group_memcg: str | None = None
    unkillable: bool = False
    panicked: bool = False
    counters: dict[str, MemoryCounter] = field(default_factory=dict)
    stats: dict[str, dict[str, int]] = field(default_factory=dict)
    open_stat: dict[str, int] | None = None
    columns: list[str] | None = None
    tasks: list[TaskRow] = field(default_factory=list)
    host: HostMemory | None = None
    suppressed: int | None = None
    slab_memcgs: tuple[str, ...] = ()
    scope: str | None = None
    """`Memory cgroup out` or `Out` of memory, as the kill line began."""
    cut: bool = False
    unit: str | None = None
    by_hand: bool = False
    """`sysrq: Manual OOM execution` came right before."""

    @property
    def over(self) -> bool:
        """Its outcome is known; only group members and the reaper may still follow."""
        return bool(self.victims) or self.unkillable or self.panicked

    @property
    def reaped_all(self) -> bool:
        """The reaper has spoken of every victim."""
        return self.unkillable or self.panicked or self.victims.keys() <= {reaped.pid for reaped in self.reaped}

    def record(self) -> OomRecord:
        """What is known so far."""
        stats = dict(self.stats)
        own = self.oom_memcg if self.oom_memcg in stats else next(iter(stats), None)
        own_stat = stats.pop(own) if own is not None else None
        oom_memcg = self.oom_memcg
        constraint = self.constraint
        if constraint is None and (self.counters or self.stats or self.scope == "Memory cgroup out"):
            constraint = "memcg"
        elif constraint is None and self.scope == "Out":
            constraint = "global"
        if constraint == "global" and (self.by_hand or (self.trigger and self.trigger.order == _SYSRQ_ORDER)):
            constraint = "sysrq"
        if oom_memcg is None and constraint == "memcg" and own:
            oom_memcg = own  # the statistics are those of the cgroup whose limit was hit
        return OomRecord(
            time_ns=self.first.time_ns,
            time_text=self.first.time_text,
            machine=self.first.host,
            constraint=constraint,
            oom_memcg=oom_memcg,
            task_memcg=self.task_memcg,
            unit=self.unit,
            cpuset=self.cpuset,
            mems_allowed=self.mems_allowed,
            nodemask=self.nodemask,
            trigger=self.trigger,
            selected=self.selected,
            chosen=self.chosen,
            victims=tuple(self.victims.values()),
            kill_lines=self.kill_lines,
            skipped_pids=tuple(self.skipped),
            reaped=tuple(self.reaped),
            group_memcg=self.group_memcg,
            no_killable_process=self.unkillable,
            panicked=self.panicked,
            memory=self.counters.get("memory"),
            memory_swap=self.counters.get("memory+swap"),
            kmem=self.counters.get("kmem"),
            swap=self.counters.get("swap"),
            memory_stat=own_stat or None,
            child_memory_stats=stats,
            tasks=tuple(self.tasks),
            host=self.host,
            suppressed_dumps=self.suppressed,
            slab_failed_memcgs=self.slab_memcgs,
            cut=self.cut,
        )
