"""Verdict: why the memory ran out, as far as the figures of one kill carry. The first rule that holds decides.

A rule gives a sentence whose `{names}` are figures of its evidence; who shows it puts them in by the endings of
their names. Where no rule holds the verdict is `unknown`: no guess.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from rtdebug.oom.facts import Facts
from rtdebug.oom.judges import (
    Finding,
    all_pods,
    anon_of_somebody,
    anon_one_process,
    cpuset,
    fork_storm,
    fragmentation,
    host_exhausted,
    kernel_limit,
    kernel_memory,
    limit_too_small,
    low_memory,
    many_processes,
    mempolicy,
    page_cache,
    shmem,
    sysrq,
)
from rtdebug.oom.notes import Evidence, Note, notes_of

VerdictKind = Literal[
    "sysrq",
    "cpuset",
    "mempolicy",
    "kernel_memory",
    "low_memory",
    "fragmentation",
    "fork_storm",
    "many_processes",
    "node_exhausted",
    "shmem",
    "page_cache",
    "anon_one_process",
    "anon",
    "limit_too_small",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why it happened, on what evidence, and what to do."""

    kind: VerdictKind
    text: str
    """With `{names}` of evidence."""
    evidence: Evidence = field(default_factory=dict)
    advice: str = ""
    notes: tuple[Note, ...] = ()
    """What is easily misread in this record."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table."""

    kind: VerdictKind
    judge: Callable[[Facts], Finding | None]
    why: str
    """Why this tells the kind."""
    advice: str


def judge(facts: Facts) -> Verdict:
    """The verdict of the first rule that holds."""
    notes = notes_of(facts)
    for rule in RULES:
        finding = rule.judge(facts)
        if finding is not None:
            return Verdict(rule.kind, finding.text, finding.evidence, rule.advice, notes)
    return Verdict("unknown", _unknown(facts), {}, UNKNOWN_ADVICE, notes)


RULES: tuple[Rule, ...] = (
    Rule(
        "sysrq",
        sysrq,
        "The kernel says so: order -1, or the line of SysRq before it.",
        "Find out who did it.",
    ),
    Rule(
        "cpuset",
        cpuset,
        "CONSTRAINT_CPUSET: other nodes may have had memory.",
        "Widen cpuset.mems of that cgroup; a node that holds only movable memory cannot serve the kernel.",
    ),
    Rule(
        "mempolicy",
        mempolicy,
        "CONSTRAINT_MEMORY_POLICY: other nodes may have had memory.",
        "Loosen the binding (numactl, mbind), or let it interleave.",
    ),
    Rule(
        "kernel_memory",
        kernel_limit,
        "A global kill with an empty gfp_mask, or after SLUB failed for a cgroup, while the host had room.",
        "Lift the kmem limit of that cgroup (memory.kmem.limit_in_bytes), or use cgroup v2.",
    ),
    Rule(
        "low_memory",
        low_memory,
        "Most of what was free lies in zones (HighMem, Movable) that the kernel cannot use for its own data.",
        "Use a 64-bit kernel, or less movable memory; else fewer inodes, sockets and threads: they need low memory.",
    ),
    Rule(
        "fragmentation",
        fragmentation,
        "More than one page was asked for while free memory was above the watermarks: it lies in pieces.",
        "See /proc/buddyinfo; lower the order (driver, jumbo frames), or raise vm.min_free_kbytes.",
    ),
    Rule(
        "node_exhausted",
        all_pods,
        "The limit is that of the kubelet's own cgroup: the node's allocatable memory.",
        "Raising a container's limit will not help: lower requests and limits on this node, or move pods.",
    ),
    Rule(
        "shmem",
        shmem,
        "A kill frees no file in a tmpfs: it happens again and again.",
        "Look for it with `rtdebug shm`; bound the tmpfs (size=, sizeLimit), delete orphaned files.",
    ),
    Rule(
        "page_cache",
        page_cache,
        "Clean page cache goes before a kill: what is left is dirty, locked or in use.",
        "Write in smaller steps (sync, O_DIRECT), or give room for the writes in flight.",
    ),
    Rule(
        "fork_storm",
        fork_storm,
        "A hundred processes of one name whose pids follow each other hold most of the memory.",
        "Set a limit of processes (pids.max, --pids-limit), and find what keeps starting them.",
    ),
    Rule(
        "kernel_memory",
        kernel_memory,
        "It belongs to no process, so that a kill frees little of it.",
        "See memory.stat for which: many files, sockets, threads or mappings.",
    ),
    Rule(
        "many_processes",
        many_processes,
        "No process is large: a kill frees next to nothing.",
        "Start fewer processes, or size the limit for their number.",
    ),
    Rule(
        "anon_one_process",
        anon_one_process,
        "One process has more than half of the anon memory. One kill cannot tell a leak from a heap that is larger "
        "than the limit: a leak is a trend.",
        "Watch it with `rtdebug leaks`: a trend is a leak; a large heap wants a bound (-Xmx, max-old-space-size) or a "
        "higher limit.",
    ),
    Rule(
        "limit_too_small",
        limit_too_small,
        "What is in use is spread over several processes or kinds: none of them is to blame.",
        "Raise the limit, or run fewer processes in it.",
    ),
    Rule(
        "anon",
        anon_of_somebody,
        "Most of it is anon memory, and the log does not say of which process.",
        "Look at the processes of that cgroup with `rtdebug snapshot`, and at their trend with `rtdebug leaks`.",
    ),
    Rule(
        "node_exhausted",
        host_exhausted,
        "A global kill, and the host's free memory is down at the watermarks.",
        "Give containers limits that together fit into the host, reserve memory for the system, or add some.",
    ),
)
"""In this order: what the kernel itself says, then what no limit of a container explains, then the kinds of memory."""

UNKNOWN_ADVICE = (
    "Look for the rest of the dump in the same log; `rtdebug oom --watch --keep 20` has all of the next one."
)


def _unknown(facts: Facts) -> str:
    if facts.scope is None:
        return "The log does not say what was short."
    if facts.scope == "global":
        return "The host had memory left, and the log does not say what else was short."
    return "The log does not hold enough figures to say what filled the memory."
