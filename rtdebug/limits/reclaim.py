"""Giving idle memory back now, in steps, and what that costs afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rtdebug.errors import RtdebugError
from rtdebug.host.memcg import MemoryState, read_memory
from rtdebug.host.stopping import Wait
from rtdebug.limits.brake import Reading, read_reading, reason_to_stop
from rtdebug.limits.settings import Level
from rtdebug.limits.squeeze import squeezing

_STEPS = 16
_STEP_SHARE = 0.05
"""Of what it holds, so that the brake comes before much is taken that it needs."""
_STEP_LEAST_BYTES = 4 << 20
_BETWEEN_STEPS_S = 0.2
_HARDLY = 0.25


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What came back, and what it cost. None: not known."""

    way: str
    asked_bytes: int
    usage_before_bytes: int
    usage_after_bytes: int
    by_kind_bytes: Mapping[str, int]
    """What came back of each kind: anon, file (page cache), shmem, kernel; negative: it grew meanwhile."""
    stopped: str | None
    """Why less than asked was taken; None: all of it was."""
    watched_s: float
    usage_later_bytes: int | None
    refaulted_bytes: int | None
    """Read back within the time watched."""
    stalled_us: int | None
    stall_of_host: bool

    @property
    def returned_bytes(self) -> int:
        """What the cgroup holds less."""
        return self.usage_before_bytes - self.usage_after_bytes


def reclaim(
    level: Level, size_bytes: int, watch_s: float, wait: Wait, progress: Callable[[int], None]
) -> Reclaimed:
    """Take up to `size_bytes` from a container, then watch for `watch_s` what it reads back, if anything was
    taken.

    `progress` is told the bytes taken so far. Raises RtdebugError if the container ends, HostUnable if there is no way.
    """
    memory, first = _look(level)
    stopped: str | None = None
    step_bytes = max(min(size_bytes // _STEPS, int((first.usage_bytes or 0) * _STEP_SHARE)), _STEP_LEAST_BYTES)
    with squeezing(level) as squeeze:
        before = first
        while stopped is None and (left := size_bytes - _taken(first, before)) > 0:
            squeeze.take(min(step_bytes, left))
            fell = _look(level)[1]
            ended = wait(_BETWEEN_STEPS_S)
            after = _look(level)[1]
            stopped = _reason(before, fell, after, min(step_bytes, left)) or ("you ended it" if ended else None)
            before = after
            progress(_taken(first, after))
    memory_after, last = _look(level)
    if _taken(first, last) > 0:
        wait(watch_s)
    later = read_reading(level.path)
    return Reclaimed(
        way=squeeze.way,
        asked_bytes=size_bytes,
        usage_before_bytes=first.usage_bytes or 0,
        usage_after_bytes=last.usage_bytes or 0,
        by_kind_bytes=by_kind(memory, memory_after),
        stopped=stopped,
        watched_s=0.0 if later is None else (later.time_ns - last.time_ns) / 1e9,
        usage_later_bytes=later.usage_bytes if later else None,
        refaulted_bytes=_difference(last.refaulted_bytes, later.refaulted_bytes if later else None),
        stalled_us=_difference(last.stall_us, later.stall_us if later else None),
        stall_of_host=last.stall_of_host,
    )


def by_kind(before: MemoryState, after: MemoryState) -> dict[str, int]:
    """What each kind of memory lost; a kind that is not told is left out."""
    now = after.by_kind_bytes
    return {kind: was - now[kind] for kind, was in before.by_kind_bytes.items() if kind in now}


def _reason(before: Reading, fell: Reading, after: Reading, asked: int) -> str | None:
    if stop := reason_to_stop(before, after):
        return stop
    if _taken(before, fell) < asked * _HARDLY:
        return "the kernel finds no more to take: the rest is in use, or cannot be reclaimed without swap"
    return None


def _taken(first: Reading, now: Reading) -> int:
    return (first.usage_bytes or 0) - (now.usage_bytes or 0)


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _look(level: Level) -> tuple[MemoryState, Reading]:
    memory, reading = read_memory(level.path), read_reading(level.path)
    if memory is None or reading is None:
        raise RtdebugError(f"{level.cgroup} has vanished", "the container has ended")
    return memory, reading
