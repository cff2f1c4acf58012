"""OomRecord: what the kernel's own words say about one OOM kill.

Words and figures are those of mm/oom_kill.c (dump_header, __oom_kill_process, oom_reap_task_mm) and
mm/memcontrol*.c (mem_cgroup_print_oom_meminfo). What was not printed is None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Constraint = Literal["memcg", "global", "cpuset", "mempolicy", "sysrq"]

_PAGE_SIZES = (4096, 8192, 16384, 32768, 65536, 262144)


@dataclass(frozen=True, slots=True)
class MemoryCounter:
    """One page counter of the cgroup that ran out: `usage 8kB, limit 8kB, failcnt 9`."""

    usage_bytes: int
    limit_bytes: int | None
    """None: no limit is set (`unlimited`)."""
    failcnt: int
    """How often the limit was hit; the v2 dump prints memory.events' max here."""

    @property
    def unlimited(self) -> bool:
        """The kernel printed its largest number instead of a limit."""
        return self.limit_bytes is None

    @property
    def headroom_bytes(self) -> int | None:
        """Limit less usage; negative after the limit was lowered; None without a limit."""
        return None if self.limit_bytes is None else self.limit_bytes - self.usage_bytes


@dataclass(frozen=True, slots=True)
class Trigger:
    """The task whose allocation found no memory. Often not the victim."""

    comm: str | None
    tid: int | None
    """The `PID:` of the dump is the thread's id."""
    gfp_mask: str | None
    """As printed: `0xcc0(GFP_KERNEL)`."""
    order: int | None
    """2**order contiguous pages were asked for."""
    oom_score_adj: int | None


@dataclass(frozen=True, slots=True)
class Selected:
    """`Kill process N (comm) score S or sacrifice child`: before 5.1 a child may have died instead."""

    pid: int
    comm: str | None
    score: int | None


@dataclass(frozen=True, slots=True)
class Victim:
    """A task the kernel killed, from its `Killed process` line (or from the summary, when that is all)."""

    pid: int
    """A thread's id if the thread group's leader had exited already."""
    comm: str | None = None
    uid: int | None = None
    total_vm_bytes: int | None = None
    anon_rss_bytes: int | None = None
    file_rss_bytes: int | None = None
    shmem_rss_bytes: int | None = None
    page_table_bytes: int | None = None
    swap_bytes: int | None = None
    oom_score_adj: int | None = None


@dataclass(frozen=True, slots=True)
class Reaped:
    """`oom_reaper: reaped process`: what the victim still held afterwards."""

    pid: int
    comm: str | None
    anon_rss_bytes: int | None
    file_rss_bytes: int | None
    shmem_rss_bytes: int | None


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One row of `Tasks state`. Columns differ between kernels; a column that is not there is None."""

    pid: int
    uid: int | None = None
    tgid: int | None = None
    total_vm_pages: int | None = None
    rss_pages: int | None = None
    rss_anon_pages: int | None = None
    rss_file_pages: int | None = None
    rss_shmem_pages: int | None = None
    nr_ptes: int | None = None
    nr_pmds: int | None = None
    nr_puds: int | None = None
    pgtables_bytes: int | None = None
    swapents: int | None = None
    """Swap entries, one page each."""
    cpu: int | None = None
    oom_adj: int | None = None
    oom_score_adj: int | None = None
    comm: str | None = None


@dataclass(frozen=True, slots=True)
class Zone:
    """One zone of a NUMA node: below `min_bytes` only the kernel's own emergencies may take from it."""

    node: int | None
    """None: a kernel without NUMA prints none."""
    name: str
    free_bytes: int
    min_bytes: int


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Of the `Mem-Info` part: a global OOM with much of it free was no shortage of the host."""

    pages: Mapping[str, int] = field(default_factory=dict)
    """All of its totals: free, active_anon, inactive_anon, shmem, slab_unreclaimable, pagetables, ..."""
    zones: tuple[Zone, ...] = ()
    ram_pages: int | None = None
    reserved_pages: int | None = None
    swap_free_bytes: int | None = None
    swap_total_bytes: int | None = None

    @property
    def free_pages(self) -> int | None:
        """Free at the kill."""
        return self.pages.get("free")


@dataclass(frozen=True, slots=True)
class OomRecord:
    """One OOM kill of the kernel log, as far as the log holds it."""

    time_ns: int | None
    """Clock of the source: since boot for the kernel's own `[seconds]`. None: not printed as a number."""
    time_text: str | None
    """The time as printed, whatever its language."""
    machine: str | None
    """The host as named in the lines."""
    constraint: Constraint | None
    """sysrq: asked for by hand (SysRq f)."""
    oom_memcg: str | None
    """Path of the cgroup whose limit was hit."""
    task_memcg: str | None
    """Path of the victim's cgroup."""
    unit: str | None
    """The unit in which systemd says a process was killed; it says so right after."""
    cpuset: str | None
    """Name of the trigger's cpuset cgroup: its container, not the victim's."""
    mems_allowed: str | None
    nodemask: str | None
    trigger: Trigger | None
    selected: Selected | None
    chosen: Victim | None
    """task, pid, uid of the summary line `oom-kill:`; the victim when the kill line is missing."""
    victims: tuple[Victim, ...]
    """Each killed task once, the first chosen one first."""
    kill_lines: int
    """As printed: with memory.oom.group the kernel prints the first victim twice."""
    skipped_pids: tuple[int, ...]
    """Members of the group that were `already exiting`: not killed."""
    reaped: tuple[Reaped, ...]
    group_memcg: str | None
    """`Tasks in PATH are going to be killed due to memory.oom.group set`."""
    no_killable_process: bool
    panicked: bool
    """The kernel panicked instead (vm.panic_on_oom, or nobody was left to kill)."""
    memory: MemoryCounter | None
    memory_swap: MemoryCounter | None
    kmem: MemoryCounter | None
    swap: MemoryCounter | None
    memory_stat: Mapping[str, int] | None
    """Of `oom_memcg`: bytes, and counts where the kernel's key is a count."""
    child_memory_stats: Mapping[str, Mapping[str, int]]
    """Older v1 kernels print each cgroup below on its own; `memory_stat` is then without them."""
    tasks: tuple[TaskRow, ...]
    host: HostMemory | None
    suppressed_dumps: int | None
    """Kills before this one whose dump was rate-limited away."""
    slab_failed_memcgs: tuple[str, ...]
    """cgroups in whose name SLUB failed just before: a v1 kmem limit looks like a global OOM."""
    cut: bool
    """Lines end in an ellipsis, rows are half, parts were left out."""

    @property
    def nobody_killed(self) -> bool:
        """The kernel says that it ended otherwise."""
        return self.no_killable_process or self.panicked

    @property
    def complete(self) -> bool:
        """The kill, its victim and the cgroup that was short are all known, and the text is not cut."""
        victim_known = self.nobody_killed or any(victim.comm is not None for victim in self.victims)
        cgroup_known = self.constraint not in (None, "memcg") or (
            self.constraint == "memcg" and self.oom_memcg is not None
        )
        return victim_known and cgroup_known and not self.cut

    @property
    def missing(self) -> tuple[str, ...]:
        """What the kernel prints for such a kill and this log does not hold."""
        by_limit = self.constraint in ("memcg", None)
        absent = {
            "trigger": self.trigger is None or self.trigger.gfp_mask is None,
            "constraint": self.constraint is None,
            "cgroup": by_limit and self.oom_memcg is None,
            "usage and limit": by_limit and self.memory is None,
            "memory.stat": by_limit and not self.memory_stat,
            "task table": not self.tasks and not self.no_killable_process,
            "kill line": not self.victims and not self.nobody_killed,
        }
        return tuple(name for name, is_absent in absent.items() if is_absent)

    @property
    def limiting_counter(self) -> str | None:
        """`memory`, `memory+swap` or `kmem`: which had no room for the request.

        None: no counter was printed, or none has a limit.
        """
        # memory+swap is charged first (mm/memcontrol.c: try_charge_memcg), and newer kernels no longer count its
        # refusals: where both are alike, it was that one
        counters = {"memory+swap": self.memory_swap, "memory": self.memory, "kmem": self.kmem}
        rooms = {name: _room(counter) for name, counter in counters.items()}
        limited = {name: room for name, room in rooms.items() if room is not None}
        if not limited:
            return None
        order = max(0, self.trigger.order or 0) if self.trigger else 0
        request_bytes = (self.page_size_bytes or _PAGE_SIZES[0]) << order
        full = [name for name, room in limited.items() if room[0] < request_bytes]
        # both full (memory.memsw.limit equals memory.limit): the one that kept refusing. None full: pages were
        # given back between the refusal and the dump, from both alike.
        if full:
            return max(full, key=lambda name: limited[name][1])
        return min(limited, key=lambda name: (limited[name][0], -limited[name][1]))

    @property
    def page_size_bytes(self) -> int | None:
        """From a task that is both in the table (pages) and in a kill line (kB), else from sizes in whole pages."""
        rows = {row.pid: row.total_vm_pages for row in self.tasks}
        for victim in self.victims:
            pages = rows.get(victim.pid)
            if pages and victim.total_vm_bytes:
                size = victim.total_vm_bytes / pages
                nearest = min(_PAGE_SIZES, key=lambda page: abs(page - size))
                return nearest if abs(nearest - size) < nearest / 4 else None
        return _PAGE_SIZES[0] if any(size % _PAGE_SIZES[1] for size in self._page_multiples) else None

    @property
    def _page_multiples(self) -> Iterator[int]:
        """Sizes that the kernel counts in pages: one that is no multiple of 8 KiB tells that they are of 4."""
        for counter in (self.memory, self.memory_swap, self.kmem, self.swap):
            if counter is not None:
                yield counter.usage_bytes
                yield counter.limit_bytes or 0
        yield from (zone.free_bytes for zone in (self.host.zones if self.host else ()))

    def task(self, pid: int) -> TaskRow | None:
        """The row of `pid` in the task table."""
        return next((row for row in self.tasks if row.pid == pid), None)

    def victim(self, *pids: int) -> Victim | None:
        """The victim that has one of these ids (a thread may be named for its process)."""
        return next((victim for victim in self.victims if victim.pid in pids), None)

    def swap_bytes(self, victim: Victim) -> int | None:
        """Swap the victim held: as printed, else from its row and the page size."""
        row, page = self.task(victim.pid), self.page_size_bytes
        if victim.swap_bytes is not None or row is None or row.swapents is None or page is None:
            return victim.swap_bytes
        return row.swapents * page


def _room(counter: MemoryCounter | None) -> tuple[int, int] | None:
    """(headroom, failcnt) of a counter that has a limit."""
    if counter is None or counter.headroom_bytes is None:
        return None
    return counter.headroom_bytes, counter.failcnt
