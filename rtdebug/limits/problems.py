"""What is wrong with a container's limits as they stand. One function a rule; RULES is the list of them.

Each takes the Facts and gives a Problem with the figures it rests on, or None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rtdebug.limits.settings import Level

Severity = Literal["wrong", "risk", "note"]
"""`wrong`: cannot mean what it says; `risk`: will hurt; `note`: good to know."""

_NEAR_LIMIT = 0.90
"""From here on a burst of a tenth ends it."""
_JVM_OVERHEAD = 1.25
"""Metaspace, code cache, threads and buffers of a JVM come on top of its heap: a quarter is the usual advice."""
_JVM_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@dataclass(frozen=True, slots=True)
class Cpuset:
    """The CPUs and memory nodes a container may use, and which node each CPU belongs to; None: not known."""

    cpus: frozenset[int]
    nodes: frozenset[int]
    node_of_cpu: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Command:
    """A process of the container and its command line."""

    pid: int
    arguments: Sequence[str]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rules look at."""

    chain: Sequence[Level]
    """The container's cgroup first, the root last."""
    unreclaimable_bytes: int | None
    swap_total_bytes: int
    """The host's."""
    tmpfs_size_bytes: Mapping[str, int]
    """Size of each tmpfs that the container itself may fill, by its path."""
    commands: Sequence[Command] = ()
    cpuset: Cpuset | None = None

    @property
    def own(self) -> Level:
        """The container's cgroup."""
        return self.chain[0]

    @property
    def limit_bytes(self) -> int | None:
        """The lowest limit that binds it, wherever it is set."""
        limits = [value for level in self.binding if (value := level.value("max")) is not None]
        return min(limits, default=None)

    @property
    def binding(self) -> Sequence[Level]:
        """Itself and those above whose limit counts for it: on v1 only with use_hierarchy."""
        above = [level for level in self.chain[1:] if level.use_hierarchy is not False]
        return [self.own, *above]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with the limits."""

    rule: str
    severity: Severity
    text: str
    """One sentence: what and why it matters; `{names}` stand for figures of the evidence."""
    evidence: Mapping[str, int | float | str]
    """The figures it rests on, by name."""


Rule = Callable[[Facts], Problem | None]


def find_problems(facts: Facts) -> tuple[Problem, ...]:
    """All that the rules find, the worst first."""
    order = ("wrong", "risk", "note")
    found = [problem for rule in RULES if (problem := rule(facts)) is not None]
    return tuple(sorted(found, key=lambda problem: order.index(problem.severity)))


def low_not_below_high(facts: Facts) -> Problem | None:
    """v2: protected up to `low`, throttled from `high` on."""
    low, high = facts.own.value("low"), facts.own.value("high")
    if facts.own.version == 1 or not low or high is None or low < high:
        return None
    return Problem(
        "low-not-below-high",
        "wrong",
        "memory.low is not below memory.high: it is throttled before its protection is used up",
        {"low_bytes": low, "high_bytes": high},
    )


def min_above_low(facts: Facts) -> Problem | None:
    """v2: `low` means nothing below `min`."""
    least, low = facts.own.value("min"), facts.own.value("low")
    if not least or not low or least <= low:
        return None
    return Problem(
        "min-above-low",
        "wrong",
        "memory.min is above memory.low: the soft protection has no effect",
        {"min_bytes": least, "low_bytes": low},
    )


def high_not_below_max(facts: Facts) -> Problem | None:
    """v2: a `high` that is never reached throttles nobody."""
    high, limit = facts.own.value("high"), facts.limit_bytes
    if facts.own.version == 1 or high is None or limit is None or high < limit:
        return None
    return Problem(
        "high-not-below-max",
        "wrong",
        "memory.high is not below the limit that binds: it is killed before it is ever throttled",
        {"high_bytes": high, "limit_bytes": limit},
    )


def reservation_above_limit(facts: Facts) -> Problem | None:
    """v1: the soft limit (docker's --memory-reservation)."""
    soft, limit = facts.own.value("low"), facts.limit_bytes
    if facts.own.version == 2 or soft is None or limit is None or soft <= limit:
        return None
    return Problem(
        "reservation-above-limit",
        "wrong",
        "the soft limit (reservation) is above the hard one: it never does anything",
        {"soft_limit_bytes": soft, "limit_bytes": limit},
    )


def protection_beyond_parent(facts: Facts) -> Problem | None:
    """v2: what a parent does not protect, its children share without protection."""
    for name in ("min", "low"):
        own = facts.own.value(name)
        for level in facts.chain[1:]:
            above = level.value(name)
            if own and level.has(name) and level.cgroup != "/" and above is not None and above < own:
                return Problem(
                    "protection-beyond-parent",
                    "wrong",
                    f"memory.{name} is above that of {{parent}}: only what the parent has protects",
                    {f"{name}_bytes": own, f"parent_{name}_bytes": above, "parent": level.cgroup},
                )
    return None


def parent_below_child(facts: Facts) -> Problem | None:
    """The limit that counts is the lowest on the way up."""
    own = facts.own.value("max")
    for level in facts.binding[1:]:
        above = level.value("max")
        if own is not None and above is not None and above < own:
            return Problem(
                "parent-below-child",
                "risk",
                "{parent} has a lower limit than the container itself: that one kills it, and the container's own is "
                "never reached",
                {"limit_bytes": own, "parent_limit_bytes": above, "parent": level.cgroup},
            )
    return None


def no_limit(facts: Facts) -> Problem | None:
    """Nothing on the way up limits it."""
    if facts.limit_bytes is not None:
        return None
    return Problem(
        "no-limit",
        "note",
        "nothing limits its memory: a leak in it takes the whole host, and the kernel then kills whom it likes",
        {"usage_bytes": facts.own.memory.usage_bytes or 0},
    )


def kill_disabled_without_limit(facts: Facts) -> Problem | None:
    """v1 --oom-kill-disable: without a limit the host itself hangs."""
    if not facts.own.memory.oom_kill_disable:
        return None
    if facts.limit_bytes is None:
        return Problem(
            "oom-kill-disable-without-limit",
            "wrong",
            "the OOM killer is disabled and there is no limit: a leak takes the host and cannot be killed",
            {"oom_kill_disable": 1},
        )
    return Problem(
        "oom-kill-disable",
        "risk",
        "the OOM killer is disabled: at the limit its processes hang, holding what they hold, instead of ending",
        {"oom_kill_disable": 1, "limit_bytes": facts.limit_bytes},
    )


def near_the_limit(facts: Facts) -> Problem | None:
    """Counted without what reclaim would take first."""
    needed, limit = facts.unreclaimable_bytes, facts.limit_bytes
    if needed is None or not limit or needed < limit * _NEAR_LIMIT:
        return None
    return Problem(
        "limit-nearly-used-up",
        "risk",
        "{unreclaimable_share} of the limit is memory that cannot be reclaimed: the next burst is an OOM kill",
        {"unreclaimable_bytes": needed, "limit_bytes": limit, "unreclaimable_share": round(needed / limit, 3)},
    )


def swap_as_large_as_memory(facts: Facts) -> Problem | None:
    """docker's default, --memory-swap twice --memory; Kubernetes LimitedSwap gives less."""
    limit = facts.own.value("max")
    swap = facts.own.memory.swap_limit_bytes
    if not limit or swap is None or swap < limit or not facts.swap_total_bytes:
        return None
    return Problem(
        "swap-as-large-as-memory",
        "note",
        "it may swap as much as it may hold: a leak makes it (and the disk) slow for long before it is killed",
        {"limit_bytes": limit, "swap_limit_bytes": swap},
    )


def tmpfs_beyond_limit(facts: Facts) -> Problem | None:
    """tmpfs pages are charged to who writes them: a full tmpfs must fit beside the processes."""
    limit = facts.limit_bytes
    if limit is None:
        return None
    for path, size in sorted(facts.tmpfs_size_bytes.items(), key=lambda item: -item[1]):
        if size >= limit:
            return Problem(
                "tmpfs-not-below-limit",
                "risk",
                "{tmpfs} may hold as much as the limit: filling it is an OOM kill, never a 'no space left'",
                {"tmpfs": path, "tmpfs_size_bytes": size, "limit_bytes": limit},
            )
    return None


def limit_below_jvm_heap(facts: Facts) -> Problem | None:
    """A JVM that was given a fixed heap does not know the limit."""
    limit = facts.limit_bytes
    for command in facts.commands if limit else ():
        heap = jvm_heap_bytes(command.arguments)
        if limit and heap is not None and heap * _JVM_OVERHEAD > limit:
            return Problem(
                "limit-below-jvm-heap",
                "risk",
                "the JVM's heap and what comes on top of it (a quarter, at least) do not fit below the limit",
                {"pid": command.pid, "heap_bytes": heap, "limit_bytes": limit},
            )
    return None


def nodes_without_cpus(facts: Facts) -> Problem | None:
    """cpuset.mems against cpuset.cpus: memory that is always remote, or that it may not have where it runs."""
    sets = facts.cpuset
    if sets is None:
        return None
    near = {sets.node_of_cpu[cpu] for cpu in sets.cpus if cpu in sets.node_of_cpu}
    if not near or not sets.nodes or near <= sets.nodes:
        return None
    return Problem(
        "cpuset-nodes-do-not-match",
        "risk",
        "it may run on CPUs whose memory node it may not use: that memory is always remote, and its own nodes can "
        "run out (an OOM kill with constraint CPUSET) while others are free",
        {"cpu_nodes": _list(near), "memory_nodes": _list(sets.nodes)},
    )


RULES: Sequence[Rule] = (
    low_not_below_high,
    min_above_low,
    high_not_below_max,
    reservation_above_limit,
    protection_beyond_parent,
    parent_below_child,
    no_limit,
    kill_disabled_without_limit,
    near_the_limit,
    swap_as_large_as_memory,
    tmpfs_beyond_limit,
    limit_below_jvm_heap,
    nodes_without_cpus,
)


def jvm_heap_bytes(arguments: Sequence[str]) -> int | None:
    """The heap a JVM was given: the last of -Xmx and -XX:MaxHeapSize counts; None: not a JVM, or not said."""
    if not arguments or not arguments[0].rsplit("/", 1)[-1].startswith("java"):
        return None
    return next(reversed(list(_heap_options(arguments))), None)


def _heap_options(arguments: Sequence[str]) -> Iterator[int]:
    for argument in arguments[1:]:
        match = re.fullmatch(r"-(?:Xmx|XX:MaxHeapSize=)(\d+)([kmgt]?)", argument, re.ASCII | re.IGNORECASE)
        if match:
            yield int(match[1]) * _JVM_UNITS[match[2].lower()]


def _list(numbers: frozenset[int] | set[int]) -> str:
    return ",".join(map(str, sorted(numbers)))
