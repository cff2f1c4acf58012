"""What changed between two snapshots: by kind of memory, process, mapping, open file, shared memory, cgroup figure.

Processes are matched by pid and start time, for ever the same one. What is left on both sides is matched by command
line: a worker that was restarted. The rest appeared or vanished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rtdebug.host.memcg import MemoryState
from rtdebug.snapshot.accounting import Part, account, pss_by_kind
from rtdebug.snapshot.model import ProcessRecord, Snapshot

Figures = Mapping[str, int]


class Fate(StrEnum):
    """What became of a thing."""

    GREW = "grew"
    SHRANK = "shrank"
    APPEARED = "appeared"
    VANISHED = "vanished"
    RESTARTED = "restarted"
    """A process of the same command line in place of another."""


class Subject(StrEnum):
    """What kind of thing it is."""

    KIND = "kind"
    """A part of the accounting."""
    PROCESS = "process"
    MAPPING = "mapping"
    FD = "fd"
    SHM = "shm"
    """A piece of shared memory: a file of a tmpfs, a memfd, a SysV segment."""
    CGROUP = "cgroup"


_ORDER = tuple(Subject)


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not as it was. None: not there, or not known."""

    subject: Subject
    fate: Fate
    name: str
    """Not escaped."""
    before_bytes: int | None
    after_bytes: int | None
    before_count: int | None
    """How many mappings, descriptors or, of a process, threads."""
    after_count: int | None
    pid: int | None = None
    """Of the process it belongs to: as it is now, else as it was."""
    comm: str | None = None

    @property
    def delta_bytes(self) -> int:
        """What it adds to the container."""
        return (self.after_bytes or 0) - (self.before_bytes or 0)

    @property
    def delta_count(self) -> int:
        """As delta_bytes, of the counts."""
        return (self.after_count or 0) - (self.before_count or 0)


@dataclass(frozen=True, slots=True)
class Diff:
    """All changes, the largest first within a subject."""

    before: Snapshot
    after: Snapshot
    changes: tuple[Change, ...]

    def of(self, subject: Subject) -> tuple[Change, ...]:
        """Those of one kind of thing."""
        return tuple(change for change in self.changes if change.subject is subject)


@dataclass(frozen=True, slots=True)
class _Pair:
    """One process at both times; None where it was not there."""

    before: ProcessRecord | None
    after: ProcessRecord | None

    @property
    def is_same(self) -> bool:
        return _identity(self.before) == _identity(self.after)

    @property
    def shown(self) -> ProcessRecord:
        found = self.after or self.before
        assert found is not None
        return found


def compare(before: Snapshot, after: Snapshot) -> Diff:
    """The changes from one snapshot to a later one."""
    pairs = tuple(_pairs(before.processes, after.processes))
    changes = (
        *_kinds(before, after),
        *filter(None, map(_process_change, pairs)),
        *(change for pair in pairs for change in _inside(Subject.MAPPING, pair, _mapping_figures)),
        *(change for pair in pairs for change in _inside(Subject.FD, pair, _fd_figures)),
        *_changes(Subject.SHM, _shm_figures(before), _shm_figures(after)),
        *_cgroup_changes(before, after),
    )
    return Diff(before, after, tuple(sorted(changes, key=_rank)))


def _rank(change: Change) -> tuple[int, int, int]:
    return _ORDER.index(change.subject), -abs(change.delta_bytes), -abs(change.delta_count)


def _identity(process: ProcessRecord | None) -> tuple[int, int] | None:
    return None if process is None else (process.pid, process.start_ticks)


def _pairs(before: Sequence[ProcessRecord], after: Sequence[ProcessRecord]) -> Iterator[_Pair]:
    now = {_identity(process): process for process in after}
    gone = []
    for process in before:
        same = now.pop(_identity(process), None)
        if same is not None:
            yield _Pair(process, same)
        else:
            gone.append(process)
    new: dict[tuple[str, ...], deque[ProcessRecord]] = {}
    for process in now.values():
        new.setdefault(_called(process), deque()).append(process)
    for process in gone:
        heirs = new.get(_called(process))
        yield _Pair(process, heirs.popleft() if heirs else None)
    yield from (_Pair(None, process) for heirs in new.values() for process in heirs)


def _called(process: ProcessRecord) -> tuple[str, ...]:
    return process.cmdline or (process.comm,)


def _kinds(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    accounts = account(before), account(after)
    figures = [dict(_flat(each.parts)) | dict(_flat(each.beside)) for each in accounts]
    for each, found in zip(accounts, figures, strict=True):
        sums = {"cgroup": each.cgroup_bytes, "difference": each.difference_bytes}
        found.update({name: size for name, size in sums.items() if size is not None})
    old, new = ({name: (size, None) for name, size in each.items()} for each in figures)
    yield from _changes(Subject.KIND, old, new)


def _flat(parts: Iterable[Part]) -> Iterator[tuple[str, int]]:
    for part in parts:
        yield part.kind, part.bytes
        yield from ((f"{part.kind}.{kind}", size) for kind, size in _flat(part.parts))


def _process_change(pair: _Pair) -> Change | None:
    old, new = (None if process is None else sum(pss_by_kind(process)) for process in (pair.before, pair.after))
    count, count_now = (None if process is None else process.threads for process in (pair.before, pair.after))
    fate = _fate(old, new, count, count_now)
    if pair.before is not None and pair.after is not None and not pair.is_same:
        fate = Fate.RESTARTED
    if fate is None:
        return None
    process = pair.shown
    name = " ".join(process.cmdline) or f"[{process.comm}]"
    return Change(Subject.PROCESS, fate, name, old, new, count, count_now, process.pid, process.comm)


_Sized = Mapping[str, tuple[int | None, int | None]]
"""Name to bytes and count."""


def _inside(subject: Subject, pair: _Pair, figures: Callable[[ProcessRecord], _Sized]) -> Iterator[Change]:
    """What changed in one process. Of one that came or went as a whole, the process itself says it."""
    if pair.before is None or pair.after is None:
        return
    yield from _changes(subject, figures(pair.before), figures(pair.after), pair.after)


def _changes(
    subject: Subject, before: _Sized, after: _Sized, process: ProcessRecord | None = None
) -> Iterator[Change]:
    pid, comm = (process.pid, process.comm) if process else (None, None)
    for name in dict.fromkeys((*before, *after)):
        sizes, counts = zip(before.get(name, (None, None)), after.get(name, (None, None)), strict=True)
        fate = _fate(*sizes, *counts)
        if name not in before or name not in after:
            fate = Fate.APPEARED if name in after else Fate.VANISHED
        if fate is not None:
            yield Change(subject, fate, name, *sizes, *counts, pid, comm)


def _fate(before: int | None, after: int | None, count: int | None, count_after: int | None) -> Fate | None:
    """By the bytes; where those are the same or not known, by the count. None: nothing changed."""
    for old, new in ((before, after), (count, count_after)):
        if old is None and new is not None:
            return Fate.APPEARED
        if new is None and old is not None:
            return Fate.VANISHED
        if old is not None and new is not None and old != new:
            return Fate.GREW if new > old else Fate.SHRANK
    return None


def _mapping_figures(process: ProcessRecord) -> _Sized:
    """By name: a library's mappings are one thing, whatever their flags."""
    found: dict[str, tuple[int, int]] = {}
    for group in process.mappings:
        name = f"{group.path or f'({group.kind.value})'}{' (deleted)' if group.deleted else ''}"
        size, count = found.get(name, (0, 0))
        found[name] = (size + (group.use.pss_bytes or 0) + (group.use.swappss_bytes or 0), count + group.count)
    return dict(found)


def _fd_figures(process: ProcessRecord) -> _Sized:
    found: dict[str, tuple[int | None, int]] = {}
    for group in process.fds:
        name = f"{group.kind.value} {group.name}{' (deleted)' if group.deleted else ''}"
        size, count = found.get(name, (None, 0))
        held = None if group.allocated_bytes is None else group.allocated_bytes + (size or 0)
        found[name] = (held, count + group.count)
    return dict(found)


def _shm_figures(snapshot: Snapshot) -> _Sized:
    """By name and inode number: a new file of an old name is another one."""
    shared = snapshot.shared
    return {
        f"{each.kind.value} {each.name} ({each.inode_id})": (each.allocated_bytes, len(each.users))
        for each in ((*shared.shm, *shared.sysv) if shared else ())
    }


def _cgroup_changes(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    old = {record.path: record.memory for record in before.cgroups}
    for record in after.cgroups:
        memory = old.get(record.path)
        if memory is not None and record.memory is not None:
            yield from _changes(
                Subject.CGROUP, _cgroup_figures(record.path, memory), _cgroup_figures(record.path, record.memory)
            )


def _cgroup_figures(path: str, memory: MemoryState) -> _Sized:
    """Sizes as bytes, events as counts. Of memory.stat only what is a size: it holds counters of pages too."""
    sizes = {"usage": memory.usage_bytes, "limit": memory.limit_bytes, "peak": memory.peak_bytes}
    events = {**memory.events, **({"failcnt": memory.failcnt} if memory.failcnt is not None else {})}
    return {
        **{f"{path} {name}": (size, None) for name, size in sizes.items() if size is not None},
        **{f"{path} {name}": (None, count) for name, count in events.items()},
    }
