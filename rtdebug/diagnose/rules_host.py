"""Rules on the limits, and on the host around the container."""

from __future__ import annotations

from collections.abc import Iterator

from rtdebug.diagnose.facts import Facts
from rtdebug.diagnose.finding import Finding, Severity
from rtdebug.host.meminfo import available_bytes
from rtdebug.limits.problems import Problem, find_problems

_LOW = 0.05
_SHORT = 0.20
_THP_SHARE = 0.50
_NEAR = 0.80
_HUGE_ORDER = 9

_CHANGES = {
    "parent-below-child": ("host: raise the limit of the cgroup above, or lower the container's to what it can have",),
    "limit-nearly-used-up": ("rtdebug: rtdebug limits {target} proposes a limit, and the line that sets it",),
    "tmpfs-not-below-limit": ("docker run: a --memory above --shm-size, or a smaller tmpfs",),
    "limit-below-jvm-heap": ("advice: -XX:MaxRAMPercentage=75 in place of -Xmx, or a limit of 1.25 times the heap",),
    "oom-kill-disable": ("docker run: leave out --oom-kill-disable",),
    "oom-kill-disable-without-limit": ("docker run: leave out --oom-kill-disable, or give --memory",),
    "reservation-above-limit": ("docker run: a --memory-reservation below --memory",),
    "high-not-below-max": ("host: memory.high below memory.max",),
    "low-not-below-high": ("host: memory.low below memory.high",),
    "protection-beyond-parent": ("host: raise memory.low of the parent too",),
    "cpuset-nodes-do-not-match": ("docker run: --cpuset-mems with the nodes of --cpuset-cpus",),
}
_DEFAULT_CHANGE = ("rtdebug: rtdebug limits {target} explains it",)


def wrong_limits(facts: Facts) -> Iterator[Finding]:
    """What `rtdebug limits` calls wrong or a risk."""
    for problem in find_problems(facts.limits) if facts.limits else ():
        if problem.severity != "note":
            yield _finding(facts, problem)


def host_overcommitted(facts: Facts) -> Iterator[Finding]:
    """The limits of all containers together are more than there is, and what is left is little."""
    others, total = facts.neighbours, facts.host.meminfo.get("MemTotal")
    left = available_bytes(facts.host.meminfo)
    if others is None or not total or left is None or left >= total * _SHORT:
        return
    swap = facts.host.meminfo.get("SwapFree", 0)
    if others.limits_bytes > total + swap or others.unlimited:
        yield Finding(
            "host-overcommitted",
            Severity.WARNING,
            "the host has {available_bytes} left, and its {containers} containers may take {limits_bytes} together "
            "({unlimited} of them have no limit): the kernel may kill in any of them",
            {
                "available_bytes": left,
                "memory_bytes": total,
                "limits_bytes": others.limits_bytes,
                "containers": others.containers,
                "unlimited": others.unlimited,
            },
            ("host: fewer or smaller containers, or more memory", "docker run: --memory for those without a limit"),
        )


def host_out_of_memory(facts: Facts) -> Iterator[Finding]:
    """Next to nothing is available to anybody."""
    total, left = facts.host.meminfo.get("MemTotal"), available_bytes(facts.host.meminfo)
    if total and left is not None and left < total * _LOW:
        yield Finding(
            "host-out-of-memory",
            Severity.CRITICAL,
            "the host itself has {available_bytes} of {memory_bytes} left: kills hit containers below their limits",
            {"available_bytes": left, "memory_bytes": total, "swap_free_bytes": facts.host.meminfo.get("SwapFree")},
            ("rtdebug: rtdebug ps shows who holds it", "host: free or add memory"),
        )


def fragmented(facts: Facts) -> Iterator[Finding]:
    """Tasks compact memory, and no huge block is free."""
    stalls = facts.host_grew("compact_stall")
    huge = sum(sum(zone.free_blocks[_HUGE_ORDER:]) for zone in facts.host.buddy)
    if not stalls or huge or not facts.host.buddy:
        return
    yield Finding(
        "fragmented",
        Severity.WARNING,
        "the host's free memory lies in pieces: no block of 2 MiB is free, and tasks stopped {compact_stalls} times "
        "in {sample_s} s to compact it",
        {
            "compact_stalls": stalls,
            "sample_s": round(facts.sample_s, 1),
            "free_huge_blocks": huge,
            "thp_enabled": facts.host.thp.enabled if facts.host.thp else None,
        },
        ("host: echo defer+madvise > /sys/kernel/mm/transparent_hugepage/defrag", "host: raise vm.min_free_kbytes"),
    )


def huge_pages_bloat(facts: Facts) -> Iterator[Finding]:
    """THP=always near the limit: a sparse heap takes whole huge pages."""
    memory, limits, thp = facts.memory, facts.limits, facts.host.thp
    if memory is None or limits is None or not limits.limit_bytes or thp is None or thp.enabled != "always":
        return
    huge = memory.stat.get("anon_thp" if memory.version == 2 else "total_rss_huge")
    needed = limits.unreclaimable_bytes
    if not huge or not memory.anon_bytes or needed is None:
        return
    if huge < memory.anon_bytes * _THP_SHARE or needed < limits.limit_bytes * _NEAR:
        return
    yield Finding(
        "huge-pages-near-limit",
        Severity.WARNING,
        "{thp_bytes} of its {anon_bytes} anon are huge pages, taken whether all of each is used or not "
        "(transparent_hugepage is always), and it is near its limit of {limit_bytes}",
        {
            "thp_bytes": huge,
            "anon_bytes": memory.anon_bytes,
            "limit_bytes": limits.limit_bytes,
            "max_ptes_none": thp.khugepaged.get("max_ptes_none"),
        },
        (
            "rtdebug: rtdebug madvise run NAME thp-anon measures whether it gains by them",
            "host: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
    )


def _finding(facts: Facts, problem: Problem) -> Finding:
    severity = Severity.CRITICAL if problem.rule == "limit-nearly-used-up" else Severity.WARNING
    changes = (line.replace("{target}", facts.target) for line in _CHANGES.get(problem.rule, _DEFAULT_CHANGE))
    return Finding(problem.rule, severity, problem.text, problem.evidence, tuple(changes))
