"""What a summary adds up, read from event lines: counts, failures, bytes; and how it stays bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rtdebug.tracing.line import EventLine, Value

# Events whose length_bytes can be added up; for the others it is the size of an object, not of a call.
_SUMMED = frozenset({"mmap", "munmap", "mremap", "brk", "madvise", "process_madvise", "shmget", "shmat"})
# What happened to a process, not a call of it: an errno here (shm_full: ENOSPC) is no failure to count.
_NO_CALLS = frozenset({"shm_full", "sigbus", "oom_kill"})

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Totals:
    """Calls of one kind. A failed call counts in `count` and in `failures`, and adds no bytes."""

    count: int = 0
    failures: int = 0
    length_bytes: int | None = None
    """None: this kind of call has no length to add up. For brk it is the net change."""

    def plus(self, more: Totals) -> Totals:
        """These and some more."""
        lengths = [each.length_bytes for each in (self, more) if each.length_bytes is not None]
        return Totals(self.count + more.count, self.failures + more.failures, sum(lengths) if lengths else None)


_NOTHING = Totals()


def totals_of(line: EventLine) -> Totals:
    """What one line counts for, single or added up (`count`, total `length_bytes`, `failures`)."""
    count, failures = _count(line.fields), _failures(line)
    length = int_of(line.fields.get("length_bytes")) if line.event in _SUMMED and failures < count else None
    return Totals(count, failures, length)


def add_totals(totals: dict[K, Totals], key: K, more: Totals) -> None:
    """Add to the totals of one key."""
    totals[key] = totals.get(key, _NOTHING).plus(more)


def largest_first(totals: Mapping[str, Totals]) -> dict[str, Totals]:
    """The most frequent first; equal ones in one order, whatever order they came in."""
    return dict(sorted(totals.items(), key=lambda item: (-item[1].count, item[0])))


def calls(events: Mapping[str, Totals]) -> int:
    """Calls of all kinds."""
    return sum(totals.count for totals in events.values())


def keep_largest(entries: dict[K, V], count: int, rank: Callable[[K, V], Any]) -> int:
    """Drop all but `count` entries, and return how many were dropped."""
    ranked = sorted(entries.items(), key=lambda item: rank(*item), reverse=True)
    for key, _ in ranked[count:]:
        del entries[key]
    return len(ranked[count:])


def int_of(value: Value) -> int | None:
    """A number, or None for whatever else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _count(fields: Mapping[str, Value]) -> int:
    count = int_of(fields.get("count"))
    return 1 if count is None else count


def _failures(line: EventLine) -> int:
    if line.event in _NO_CALLS:
        return 0
    failures = int_of(line.fields.get("failures"))
    if failures is not None:
        return failures
    return _count(line.fields) if line.fields.get("errno") else 0
