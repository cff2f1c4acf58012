"""What a trace or recording adds up to: per process and event, stack, shared memory, advice, OOM kills, losses.

`SummaryBuilder` takes the lines one by one and keeps only totals, so its memory is bounded however long
the trace runs; `finish` gives the `Summary` that the renderers take.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rtdebug.tracing.line import EventLine, Value
from rtdebug.tracing.options import EVENTS
from rtdebug.tracing.refusals import Refusal, Refusals
from rtdebug.tracing.shared import CREATED_BY, Kind, SharedKey, SharedMemory, SharedObjects, shared_rank
from rtdebug.tracing.totals import Totals, add_totals, calls, int_of, keep_largest, largest_first, totals_of

__all__ = [
    "TOP",
    "TOP_STACKS",
    "Kill",
    "ProcessGroup",
    "ProcessTotals",
    "Refusal",
    "SharedKey",
    "SharedMemory",
    "StackTotals",
    "Summary",
    "SummaryBuilder",
    "Totals",
]

TOP = 20
"""How many processes, objects and kills a summary names; it says how many more there were."""
TOP_STACKS = 10
_KEPT = 1024
"""How many of them the builder holds before it drops the least important ones."""
_KEPT_STACKS = 4096


@dataclass(frozen=True, slots=True)
class ProcessTotals:
    """What one process did, the most frequent event first."""

    pid: int
    comm: str | None
    container_id: str | None
    container_name: str | None
    events: Mapping[str, Totals]
    mapped_bytes: int | None
    """None: nobody asked for mmap events. By mmap, growing brk and growing mremap."""
    still_mapped_bytes: int | None
    """Of these, still mapped at the end; None: not known."""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Processes for one row: a single one, or all of a comm and container that have nothing mapped any more."""

    processes: int
    pid: int | None
    """None: of several."""
    comm: str | None
    container_id: str | None
    container_name: str | None
    events: Mapping[str, Totals]
    mapped_bytes: int | None
    still_mapped_bytes: int | None


class Stack(NamedTuple):
    """Who called what."""

    event: str
    frames: tuple[str, ...]
    """Innermost first."""


@dataclass(frozen=True, slots=True)
class StackTotals:
    """What came from one user stack, over all processes."""

    stack: Stack
    totals: Totals


@dataclass(frozen=True, slots=True)
class Kill:
    """One OOM kill: the victim, and the cgroup whose limit was hit if that is known."""

    time_ns: int
    pid: int
    comm: str | None
    container_id: str | None
    container_name: str | None
    oom_memcg: str | None


@dataclass(frozen=True, slots=True)
class Summary:
    """The whole. Lists are bounded to TOP, the largest first; `more_*` says how many were left out."""

    shown: frozenset[str]
    """Names of the events that were traced: of the others nothing is known."""
    started_ns: int
    """Unix time, as `ended_ns`."""
    ended_ns: int
    lost_events: int | None
    """Counted by the kernel programs; None: the recording breaks off before it says."""
    events: Mapping[str, Totals]
    advice: Mapping[str, Totals]
    """By the name of the advice (`MADV_HUGEPAGE`), madvise and process_madvise together."""
    processes: tuple[ProcessTotals, ...]
    more_processes: int
    process_groups: tuple[ProcessGroup, ...]
    """The same and more processes in fewer rows."""
    more_grouped_processes: int
    """How many processes are in none of them."""
    shared_memory: tuple[SharedMemory, ...]
    more_shared_memory: int
    created: Mapping[Kind, int | None]
    """How many pieces of each kind were created in the trace; None: that was not traced."""
    refusals: tuple[Refusal, ...]
    more_refusals: int
    stacks: tuple[StackTotals, ...]
    """By bytes, then by calls; at most TOP_STACKS."""
    more_stacks: int
    oom_kills: tuple[Kill, ...]
    more_oom_kills: int

    @property
    def duration_ns(self) -> int:
        """From start to end."""
        return self.ended_ns - self.started_ns

    @property
    def count(self) -> int:
        """Events of all kinds."""
        return sum(totals.count for totals in self.events.values())

    @property
    def failures(self) -> int:
        """Calls that failed, of all kinds."""
        return sum(totals.failures for totals in self.events.values())

    @property
    def events_per_second(self) -> float | None:
        """None for a trace that took no time."""
        return self.count * 1e9 / self.duration_ns if self.duration_ns > 0 else None

    def count_of(self, event: str) -> int | None:
        """How often one kind of event happened; None: it was not traced."""
        totals = self.events.get(event)
        return totals.count if totals else 0 if event in self.shown else None


@dataclass(slots=True)
class _Process:
    pid: int
    comm: str | None = None
    container_id: str | None = None
    container_name: str | None = None
    mapped_bytes: int = 0
    events: dict[str, Totals] = field(default_factory=dict)

    @property
    def size(self) -> tuple[int, int]:
        return self.mapped_bytes, calls(self.events)


class SummaryBuilder:
    """Adds up event lines, single or aggregated (`count`, total `length_bytes`, `failures`)."""

    def __init__(self, shown: frozenset[str] | None = None, everyone: bool = True) -> None:
        """`shown`: names of the events that can be among the lines, None: all. `everyone`: of all processes and
        threads; false when only those of a pid or comm are among the lines.
        """
        self._shown = frozenset(EVENTS) if shown is None else shown
        self._events: dict[str, Totals] = {}
        self._advice: dict[str, Totals] = {}
        self._processes: dict[int, _Process] = {}
        self._dropped_processes = 0
        self._shared = SharedObjects(self._shown, everyone)
        self._refusals = Refusals()
        self._stacks: dict[Stack, Totals] = {}
        self._dropped_stacks = 0
        self._kills: list[Kill] = []
        self._more_kills = 0

    def add(self, line: EventLine) -> None:
        """Take one line into account."""
        fields, totals = line.fields, totals_of(line)
        add_totals(self._events, line.event, totals)
        process = self._process(line)
        add_totals(process.events, line.event, totals)
        advice = fields.get("advice")
        if isinstance(advice, str):
            add_totals(self._advice, advice, totals)
        if "stack" in fields:
            self._add_stack(line.event, fields["stack"], totals)
        if totals.failures == totals.count:
            return
        process.mapped_bytes += _mapped(line.event, fields)
        if line.event == "oom_kill":
            self._kill(line)
        else:
            self._shared.apply(line)
            self._refusals.apply(line)

    def finish(
        self,
        started_ns: int,
        ended_ns: int,
        lost_events: int | None,
        still_mapped: Mapping[int, int] | None = None,
        still_linked: Mapping[SharedKey, int | None] | None = None,
        last_sizes: Mapping[SharedKey, int | None] | None = None,
    ) -> Summary:
        """The summary so far.

        `still_mapped`: bytes by host pid. `still_linked`: what exists at the end, with its size in bytes,
        whoever created it. None: nobody looked; then the events alone say what is still linked.
        `last_sizes`: sizes as they were seen before the end, for files that grew by writes.
        """
        processes = sorted(self._process_totals(still_mapped), key=_process_rank, reverse=True)
        groups = sorted(_groups(processes, still_mapped is not None), key=_process_rank, reverse=True)
        names = {each.container_id: each.container_name for each in processes}
        known_names = {container_id: name for container_id, name in names.items() if container_id and name}
        shared = sorted(self._shared.finish(still_linked, last_sizes or {}, known_names), key=shared_rank, reverse=True)
        refusals = self._refusals.finish()
        stacks = sorted(self._stacks.items(), key=lambda item: _stack_rank(*item), reverse=True)
        return Summary(
            shown=self._shown,
            started_ns=started_ns,
            ended_ns=ended_ns,
            lost_events=lost_events,
            events=largest_first(self._events),
            advice=largest_first(self._advice),
            processes=tuple(processes[:TOP]),
            more_processes=len(processes[TOP:]) + self._dropped_processes,
            process_groups=tuple(groups[:TOP]),
            more_grouped_processes=sum(group.processes for group in groups[TOP:]) + self._dropped_processes,
            shared_memory=tuple(shared[:TOP]),
            more_shared_memory=len(shared[TOP:]) + self._shared.dropped,
            created={
                kind: self._shared.created.get(kind, 0) if event in self._shown else None
                for kind, event in CREATED_BY.items()
            },
            refusals=tuple(refusals[:TOP]),
            more_refusals=len(refusals[TOP:]) + self._refusals.dropped,
            stacks=tuple(StackTotals(*item) for item in stacks[:TOP_STACKS]),
            more_stacks=len(stacks[TOP_STACKS:]) + self._dropped_stacks,
            oom_kills=tuple(self._kills),
            more_oom_kills=self._more_kills,
        )

    def _process(self, line: EventLine) -> _Process:
        process = self._processes.get(line.pid)
        if process is None:
            if len(self._processes) >= _KEPT:
                self._dropped_processes += keep_largest(self._processes, _KEPT // 2, lambda _, process: process.size)
            process = self._processes[line.pid] = _Process(line.pid)
        process.comm = line.comm or process.comm
        process.container_id = line.container_id or process.container_id
        process.container_name = line.container_name or process.container_name
        return process

    def _process_totals(self, still_mapped: Mapping[int, int] | None) -> Iterable[ProcessTotals]:
        for process in self._processes.values():
            yield ProcessTotals(
                pid=process.pid,
                comm=process.comm,
                container_id=process.container_id,
                container_name=process.container_name,
                events=largest_first(process.events),
                mapped_bytes=process.mapped_bytes if "mmap" in self._shown else None,
                still_mapped_bytes=None if still_mapped is None else still_mapped.get(process.pid),
            )

    def _add_stack(self, event: str, frames: Value, totals: Totals) -> None:
        if not isinstance(frames, list) or not frames:
            return  # nobody could name them
        stack = Stack(event, tuple(map(str, frames)))
        if stack not in self._stacks:
            stack = Stack(event, tuple(map(sys.intern, stack.frames)))  # they have their outer frames in common
            if len(self._stacks) >= _KEPT_STACKS:
                self._dropped_stacks += keep_largest(self._stacks, _KEPT_STACKS // 2, _stack_rank)
        add_totals(self._stacks, stack, totals)

    def _kill(self, line: EventLine) -> None:
        if len(self._kills) >= TOP:
            self._more_kills += 1
            return
        memcg = line.fields.get("oom_memcg")
        self._kills.append(
            Kill(
                line.time_ns,
                line.pid,
                line.comm,
                line.container_id,
                line.container_name,
                memcg if isinstance(memcg, str) else None,
            )
        )


def _mapped(event: str, fields: Mapping[str, Value]) -> int:
    length = int_of(fields.get("length_bytes")) or 0
    if event == "mmap":
        return length
    if event == "brk":
        return max(0, length)
    old_length = int_of(fields.get("old_length_bytes"))
    if event == "mremap" and old_length is not None:  # added up in the kernel it does not say
        return max(0, length - old_length)
    return 0


def _groups(processes: Iterable[ProcessTotals], at_end: bool) -> Iterable[ProcessGroup]:
    """A program that starts many short-lived processes is one row. `at_end`: what is still mapped is known."""
    groups: dict[Hashable, list[ProcessTotals]] = {}
    for process in processes:
        gone = at_end and not process.still_mapped_bytes
        key: Hashable = (process.comm, process.container_id) if gone else process.pid
        groups.setdefault(key, []).append(process)
    return map(_group, groups.values())


def _group(processes: list[ProcessTotals]) -> ProcessGroup:
    first, events = processes[0], dict[str, Totals]()
    for process in processes:
        for event, totals in process.events.items():
            add_totals(events, event, totals)
    return ProcessGroup(
        processes=len(processes),
        pid=first.pid if len(processes) == 1 else None,
        comm=first.comm,
        container_id=first.container_id,
        container_name=first.container_name,
        events=largest_first(events),
        mapped_bytes=_sum(process.mapped_bytes for process in processes),
        still_mapped_bytes=_sum(process.still_mapped_bytes for process in processes),
    )


def _sum(sizes: Iterable[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def _process_rank(totals: ProcessTotals | ProcessGroup) -> tuple[int, int, int, int, str, str]:
    """The pid and comm last, for a recording gives them in another order than the trace had."""
    return (
        totals.still_mapped_bytes or 0,
        totals.mapped_bytes or 0,
        calls(totals.events),
        totals.pid or 0,
        totals.comm or "",
        totals.container_id or "",
    )


def _stack_rank(stack: Stack, totals: Totals) -> tuple[int, int, Stack]:
    return totals.length_bytes or 0, totals.count, stack
