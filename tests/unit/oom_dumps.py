"""Kernel dumps of OOM kills made to measure: v2 or v1, any figures, for tests of what is concluded from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rtdebug.oom.kernel_log import read_oom_log
from rtdebug.oom.record import OomRecord

KIB = 1024
MIB = 1024 * KIB
PAGE = 4096


@dataclass(frozen=True)
class Task:
    """A row of the task table, sizes in pages."""

    pid: int
    comm: str
    rss: int
    swap: int = 0


def memcg_dump(
    stat: Mapping[str, int],
    tasks: Sequence[Task],
    *,
    limit_kib: int = 65536,
    usage_kib: int | None = None,
    cgroup: str = "/shop.slice/cart.service",
    task_cgroup: str | None = None,
    order: int = 0,
    swap: str = "",
    killed: Task | None = None,
) -> list[str]:
    """What a kernel of 6.x says of a kill by a cgroup's limit; `stat` in bytes."""
    victim = killed or max(tasks, key=lambda task: task.rss, default=Task(1, "init", 0))
    usage_kib = limit_kib if usage_kib is None else usage_kib
    inside = task_cgroup or cgroup
    return [
        f"{victim.comm} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order={order}, oom_score_adj=0",
        f"CPU: 1 UID: 0 PID: {victim.pid} Comm: {victim.comm} Not tainted 6.12.0",
        "Call Trace:",
        " dump_header+0x43/0x1c0",
        f"memory: usage {usage_kib}kB, limit {limit_kib}kB, failcnt 17",
        swap or "swap: usage 0kB, limit 9007199254740988kB, failcnt 0",
        f"Memory cgroup stats for {cgroup}:",
        *(f"{key} {value}" for key, value in stat.items()),
        "Tasks state (memory values in pages):",
        "[  pid  ]   uid  tgid total_vm rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name",
        *(
            f"[{task.pid:7d}]  1000 {task.pid} {task.rss + 500} {task.rss} {task.rss} 0 0 {20 * PAGE} "
            f"{task.swap} 0 {task.comm}"
            for task in tasks
        ),
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={cgroup},"
        f"task_memcg={inside},task={victim.comm},pid={victim.pid},uid=1000",
        _killed("Memory cgroup out of memory", victim),
    ]


def global_dump(
    tasks: Sequence[Task],
    *,
    free_pages: int = 5_000,
    ram_pages: int = 1_000_000,
    order: int = 0,
    gfp_mask: str = "0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP)",
    constraint: str = "CONSTRAINT_NONE",
    nodemask: str = "(null)",
) -> list[str]:
    """What a kernel of 6.x says of a kill for which no cgroup's limit is to blame."""
    victim = max(tasks, key=lambda task: task.rss)
    return [
        f"{victim.comm} invoked oom-killer: gfp_mask={gfp_mask}, order={order}, oom_score_adj=0",
        f"CPU: 0 UID: 0 PID: {victim.pid} Comm: {victim.comm} Not tainted 6.12.0",
        "Mem-Info:",
        "active_anon:1234 inactive_anon:800000 isolated_anon:0",
        " active_file:17 inactive_file:23 isolated_file:0",
        " slab_reclaimable:1700 slab_unreclaimable:2300",
        f" free:{free_pages} free_pcp:13 free_cma:0",
        "Node 0 Normal free:20000kB boost:0kB min:44000kB low:55000kB high:66000kB active_anon:0kB",
        "Free swap  = 0kB",
        "Total swap = 0kB",
        f"{ram_pages} pages RAM",
        "[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name",
        *(
            f"[{task.pid:7d}]  1000 {task.pid} {task.rss + 500} {task.rss} {20 * PAGE} {task.swap} 0 {task.comm}"
            for task in tasks
        ),
        f"oom-kill:constraint={constraint},nodemask={nodemask},cpuset=/,mems_allowed=0-1,global_oom,"
        f"task_memcg=/user.slice,task={victim.comm},pid={victim.pid},uid=1000",
        _killed("Out of memory", victim),
    ]


def _killed(scope: str, victim: Task) -> str:
    return (
        f"{scope}: Killed process {victim.pid} ({victim.comm}) total-vm:{(victim.rss + 500) * 4}kB, "
        f"anon-rss:{victim.rss * 4}kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:80kB oom_score_adj:0"
    )


def record_of(lines: Sequence[str]) -> OomRecord:
    """The one record in a dump."""
    (record,) = read_oom_log(lines)
    return record
