"""What a trace or recording adds up to: per process and event, shared memory, advice, OOM kills, losses.

`SummaryBuilder` takes the lines one by one and keeps only totals, so its memory is bounded however long
the trace runs; `finish` gives the `Summary` that the renderers take.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Literal, NamedTuple

from rtdebug.tracing.line import EventLine, Value

TOP = 20
"""How many processes, objects and kills a summary names; it says how many more there were."""
_KEPT = 1024
"""How many of them the builder holds before it drops the least important ones."""

# Events whose length_bytes can be added up; for the others it is the size of an object, not of a call.
_SUMMED = frozenset({"mmap", "munmap", "mremap", "brk", "madvise", "process_madvise", "shmget", "shmat"})
# What happened to a process, not a call of it: an errno here (shm_full: ENOSPC) is no failure to count.
_NO_CALLS = frozenset({"shm_full", "sigbus", "oom_kill"})

Kind = Literal["posix", "sysv", "memfd"]


@dataclass(frozen=True, slots=True)
class Totals:
    """Calls of one kind. A failed call counts in `count` and in `failures`, and adds no bytes."""

    count: int = 0
    failures: int = 0
    length_bytes: int | None = None
    """None: this kind of call has no length to add up. For brk it is the net change."""

    def plus(self, count: int, failures: int, length_bytes: int | None) -> Totals:
        """These and some more."""
        total = self.length_bytes if length_bytes is None else (self.length_bytes or 0) + length_bytes
        return Totals(self.count + count, self.failures + failures, total)


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


class SharedKey(NamedTuple):
    """Which piece of shared memory. `name`: the path, the id of a SysV segment as text."""

    kind: Kind
    container_id: str | None
    name: str


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """One piece of shared memory that was created in the trace, or that was found linked at its end."""

    key: SharedKey
    container_name: str | None
    length_bytes: int | None
    pid: int | None
    """Who created it; None: it was there before the trace began."""
    comm: str | None
    linked: bool | None
    """Does its name (its id) still exist; None for a memfd, which has none."""


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
    shared_memory: tuple[SharedMemory, ...]
    more_shared_memory: int
    created: Mapping[Kind, int]
    """How many pieces of each kind were created in the trace."""
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

    def count_of(self, event: str) -> int:
        """How often one kind of event happened."""
        totals = self.events.get(event)
        return totals.count if totals else 0


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
        return self.mapped_bytes, sum(totals.count for totals in self.events.values())


class SummaryBuilder:
    """Adds up event lines, single or aggregated (`count`, total `length_bytes`, `failures`)."""

    def __init__(self, shows_mappings: bool = True) -> None:
        """`shows_mappings`: mmap events are among the lines."""
        self._shows_mappings = shows_mappings
        self._events: dict[str, Totals] = {}
        self._advice: dict[str, Totals] = {}
        self._processes: dict[int, _Process] = {}
        self._dropped_processes = 0
        self._shared = _SharedObjects()
        self._kills: list[Kill] = []
        self._more_kills = 0

    def add(self, line: EventLine) -> None:
        """Take one line into account."""
        fields = line.fields
        count, failures = _count(fields), _failures(line)
        length = _length(line.event, fields) if failures < count else None
        _add(self._events, line.event, count, failures, length)
        process = self._process(line)
        _add(process.events, line.event, count, failures, length)
        advice = fields.get("advice")
        if isinstance(advice, str):
            _add(self._advice, advice, count, failures, length)
        if failures == count:
            return
        process.mapped_bytes += _mapped(line.event, fields)
        if line.event == "oom_kill":
            self._kill(line)
        else:
            self._shared.apply(line)

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
        processes = sorted(
            (_process_totals(process, still_mapped, self._shows_mappings) for process in self._processes.values()),
            # the pid last, for a recording gives them in another order than the trace had
            key=lambda totals: (
                totals.still_mapped_bytes or 0, totals.mapped_bytes or 0, _calls(totals.events), totals.pid,
            ),
            reverse=True,
        )
        shared = sorted(self._shared.finish(still_linked, last_sizes or {}), key=_shared_rank, reverse=True)
        return Summary(
            started_ns=started_ns,
            ended_ns=ended_ns,
            lost_events=lost_events,
            events=_largest_first(self._events),
            advice=_largest_first(self._advice),
            processes=tuple(processes[:TOP]),
            more_processes=len(processes[TOP:]) + self._dropped_processes,
            shared_memory=tuple(shared[:TOP]),
            more_shared_memory=len(shared[TOP:]) + self._shared.dropped,
            created=dict(self._shared.created),
            oom_kills=tuple(self._kills),
            more_oom_kills=self._more_kills,
        )

    def _process(self, line: EventLine) -> _Process:
        process = self._processes.get(line.pid)
        if process is None:
            if len(self._processes) >= _KEPT:
                self._drop_small_processes()
            process = self._processes[line.pid] = _Process(line.pid)
        process.comm = line.comm or process.comm
        process.container_id = line.container_id or process.container_id
        process.container_name = line.container_name or process.container_name
        return process

    def _drop_small_processes(self) -> None:
        kept = sorted(self._processes.values(), key=attrgetter("size"), reverse=True)[: _KEPT // 2]
        self._dropped_processes += len(self._processes) - len(kept)
        self._processes = {process.pid: process for process in kept}

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


class _SharedObjects:
    """Follows what is created, resized and unlinked."""

    def __init__(self) -> None:
        self.created: dict[Kind, int] = {}
        self.dropped = 0
        self._objects: dict[SharedKey, SharedMemory] = {}
        self._files: dict[tuple[Value, Value], SharedKey] = {}
        self._followers = {
            "shm_open": self._shm_open,
            "shm_unlink": self._shm_unlink,
            "ftruncate": self._ftruncate,
            "memfd_create": self._memfd_create,
            "shmget": self._shmget,
            "shmctl": self._shmctl,
        }

    def apply(self, line: EventLine) -> None:
        if follower := self._followers.get(line.event):
            follower(line)

    def finish(
        self, still_linked: Mapping[SharedKey, int | None] | None, last_sizes: Mapping[SharedKey, int | None]
    ) -> Iterable[SharedMemory]:
        for key, length in last_sizes.items():
            if length is not None:
                self._change(key, length_bytes=length)
        if still_linked is None:
            return list(self._objects.values())
        objects = {
            key: found if found.linked is None else replace(found, linked=key in still_linked)
            for key, found in self._objects.items()
        }
        for key, length in still_linked.items():
            before = objects.get(key) or SharedMemory(key, None, length, None, None, True)
            objects[key] = replace(before, length_bytes=before.length_bytes if length is None else length)
        return objects.values()

    def _create(self, kind: Kind, name: str, line: EventLine, linked: bool | None) -> None:
        if len(self._objects) >= _KEPT:
            self._drop_unlinked()
        self.created[kind] = self.created.get(kind, 0) + 1
        key = SharedKey(kind, line.container_id, name)
        # A SysV segment has its size from the start. A new file is empty, which says nothing of its end.
        length = _int(line.fields.get("length_bytes")) if kind == "sysv" else None
        self._objects[key] = SharedMemory(key, line.container_name, length, line.pid, line.comm, linked)

    def _drop_unlinked(self) -> None:
        """Make room: first what is gone, then, in a storm of leaks, the smallest."""
        ranked = sorted(self._objects.values(), key=_shared_rank, reverse=True)
        kept = ranked[: _KEPT // 2]
        self.dropped += len(ranked) - len(kept)
        self._objects = {found.key: found for found in kept}
        self._files = {file: key for file, key in self._files.items() if key in self._objects}

    def _change(self, key: SharedKey, **change: int | bool | None) -> None:
        if found := self._objects.get(key):
            self._objects[key] = replace(found, **change)  # type: ignore[arg-type]

    def _shm_open(self, line: EventLine) -> None:
        path = line.fields.get("path")
        if line.fields.get("created") and isinstance(path, str):
            self._create("posix", path, line, linked=True)
            self._files[_file(line)] = SharedKey("posix", line.container_id, path)

    def _shm_unlink(self, line: EventLine) -> None:
        """The path is as the process wrote it, relative perhaps: the inode is surer."""
        path = line.fields.get("path")
        by_path = SharedKey("posix", line.container_id, str(path))
        self._change(self._files.get(_file(line), by_path), linked=False)

    def _ftruncate(self, line: EventLine) -> None:
        length = _int(line.fields.get("length_bytes"))
        if line.fields.get("memfd"):
            self._change(SharedKey("memfd", line.container_id, _memfd_name(line)), length_bytes=length)
        else:
            path = line.fields.get("path")
            self._change(SharedKey("posix", line.container_id, str(path)), length_bytes=length)

    def _memfd_create(self, line: EventLine) -> None:
        self._create("memfd", _memfd_name(line), line, linked=None)

    def _shmget(self, line: EventLine) -> None:
        """The kernel does not say whether shmget made the segment: IPC_CREAT for an id not seen yet did."""
        fields = line.fields
        shm_id, flags = fields.get("shm_id"), fields.get("flags")
        asked = fields.get("key") == 0 or (isinstance(flags, list | str) and "IPC_CREAT" in flags)
        known = self._objects.get(SharedKey("sysv", line.container_id, str(shm_id)))
        if shm_id is not None and asked and not (known and known.linked):
            self._create("sysv", str(shm_id), line, linked=True)

    def _shmctl(self, line: EventLine) -> None:
        if line.fields.get("command") == "IPC_RMID":
            name = str(line.fields.get("shm_id"))
            self._change(SharedKey("sysv", line.container_id, name), linked=False)


def _file(line: EventLine) -> tuple[Value, Value]:
    """Device and inode; where those are not known, the path in its container."""
    fields = line.fields
    inode_id = fields.get("inode_id")
    return (
        (fields.get("device_id"), inode_id)
        if inode_id is not None
        else (line.container_id, fields.get("path"))
    )


def _memfd_name(line: EventLine) -> str:
    """A memfd's name need not be its own: the inode tells two of them apart."""
    fields = line.fields
    name, inode_id = fields.get("path") or fields.get("name") or "", fields.get("inode_id")
    return f"{name} (inode {inode_id})" if inode_id is not None else f"{name} (pid {line.pid})"


def _count(fields: Mapping[str, Value]) -> int:
    count = _int(fields.get("count"))
    return 1 if count is None else count


def _failures(line: EventLine) -> int:
    if line.event in _NO_CALLS:
        return 0
    failures = _int(line.fields.get("failures"))
    if failures is not None:
        return failures
    return _count(line.fields) if line.fields.get("errno") else 0


def _length(event: str, fields: Mapping[str, Value]) -> int | None:
    return _int(fields.get("length_bytes")) if event in _SUMMED else None


def _mapped(event: str, fields: Mapping[str, Value]) -> int:
    length = _int(fields.get("length_bytes")) or 0
    if event == "mmap":
        return length
    if event == "brk":
        return max(0, length)
    old_length = _int(fields.get("old_length_bytes"))
    if event == "mremap" and old_length is not None:  # added up in the kernel it does not say
        return max(0, length - old_length)
    return 0


def _int(value: Value) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _add(totals: dict[str, Totals], name: str, count: int, failures: int, length: int | None) -> None:
    totals[name] = totals.get(name, _NOTHING).plus(count, failures, length)


_NOTHING = Totals()


def _calls(events: Mapping[str, Totals]) -> int:
    return sum(totals.count for totals in events.values())


def _largest_first(totals: Mapping[str, Totals]) -> dict[str, Totals]:
    return dict(sorted(totals.items(), key=lambda item: (-item[1].count, item[0])))


def _process_totals(
    process: _Process, still_mapped: Mapping[int, int] | None, shows_mappings: bool
) -> ProcessTotals:
    return ProcessTotals(
        pid=process.pid,
        comm=process.comm,
        container_id=process.container_id,
        container_name=process.container_name,
        events=_largest_first(process.events),
        mapped_bytes=process.mapped_bytes if shows_mappings else None,
        still_mapped_bytes=None if still_mapped is None else still_mapped.get(process.pid),
    )


def _shared_rank(found: SharedMemory) -> tuple[bool, int, str, str]:
    """What is still linked first, then by size; equal ones in one order, whatever order they came in."""
    return bool(found.linked), found.length_bytes or 0, found.key.kind, found.key.name
