"""Finding the real working set: memory is taken in steps until the container feels it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rtdebug.errors import RtdebugError
from rtdebug.host.stopping import Wait
from rtdebug.limits.brake import Reading, read_reading, reason_to_stop, stalled
from rtdebug.limits.settings import Level
from rtdebug.limits.squeeze import squeezing

_STEP_SHARE = 0.05
_STEP_LEAST_BYTES = 2 << 20
_STEPS_AT_MOST = 60
_HARDLY = 0.25
"""A step that gave less than this part of what was asked gave what there was."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a probe."""

    ceiling_bytes: int
    """What it was to come down to."""
    usage_bytes: int
    """What it held after the wait."""
    calm: bool


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a probe found."""

    working_set_bytes: int
    """The least it held while all was calm."""
    started_bytes: int
    steps: tuple[Step, ...]
    reason: str
    """Why it ended, in words."""
    way: str
    """The file that was written."""
    measured: bool = True
    """False: it ended before anything was seen of the container, by the host's pressure or by Ctrl-C."""


@dataclass(slots=True)
class _State:
    """How far a probe has come."""

    lowest_calm_bytes: int
    steps: list[Step]
    reason: str | None = None
    measured: bool = True


Progress = Callable[[Step], None]


def probe(level: Level, step_s: float, wait: Wait, progress: Progress) -> ProbeResult:
    """Take memory from a container step by step, each held (v2) or watched (v1) for `step_s`, until it is felt.

    The files are as before when this returns, raises, or we are killed. Raises RtdebugError if the container ends,
    HostUnable if there is no way to take memory here.
    """
    first = _reading(level)
    started = first.usage_bytes or 0
    state = _State(started, [])
    step_bytes = max(int(started * _STEP_SHARE), _STEP_LEAST_BYTES)
    with squeezing(level, hold=True) as squeeze:
        while state.reason is None and len(state.steps) < _STEPS_AT_MOST:
            before = _reading(level)
            ceiling = max((before.usage_bytes or 0) - step_bytes, step_bytes)
            squeeze.lower_to(ceiling)
            if not squeeze.holds:
                squeeze.put_back()
            taken = _reading(level)
            stopped = wait(step_s)
            after = _reading(level)
            state.reason = _judge(before, taken, after, step_bytes) or ("you ended it" if stopped else None)
            if state.reason is not None and not state.steps:
                state.measured = not stopped and not (after.stall_of_host and stalled(before, after))
            _note(state, ceiling, after, progress)
    return ProbeResult(
        working_set_bytes=state.lowest_calm_bytes,
        started_bytes=started,
        steps=tuple(state.steps),
        reason=state.reason or f"it came down {_STEPS_AT_MOST} steps without feeling it",
        way=squeeze.way,
        measured=state.measured,
    )


def _judge(before: Reading, taken: Reading, after: Reading, step_bytes: int) -> str | None:
    """Why the probe has found the bottom; None: go on. Pure."""
    if stop := reason_to_stop(before, after):
        return stop
    was, fell_to, now = (reading.usage_bytes or 0 for reading in (before, taken, after))
    if was - fell_to < step_bytes * _HARDLY:
        return "the kernel finds nothing more to take: the rest is in use, or cannot be reclaimed without swap"
    if was - now < step_bytes * _HARDLY:
        return "what was taken came back at once: it is in use"
    return None


def _note(state: _State, ceiling: int, after: Reading, progress: Progress) -> None:
    calm = state.reason is None
    usage = after.usage_bytes or 0
    if calm:
        state.lowest_calm_bytes = min(state.lowest_calm_bytes, usage)
    state.steps.append(Step(ceiling, usage, calm))
    progress(state.steps[-1])


def _reading(level: Level) -> Reading:
    reading = read_reading(level.path)
    if reading is None or reading.usage_bytes is None:
        raise RtdebugError(f"{level.cgroup} has vanished", "the container has ended; its limits went with it")
    return reading
