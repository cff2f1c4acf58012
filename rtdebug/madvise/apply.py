"""Advice on one mapping of a live process, as apply_plan.py planned it: given, verified in smaps, and taken back."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import RtdebugError, TargetError
from rtdebug.host.maps import read_smaps
from rtdebug.host.process import read_stat
from rtdebug.host.watchdog import Watchdog
from rtdebug.madvise.advice import Advice, Way
from rtdebug.madvise.apply_plan import Plan
from rtdebug.madvise.effect import Effect, RangeState, judge, range_state
from rtdebug.madvise.guard import Guard
from rtdebug.madvise.inject import call_madvise
from rtdebug.madvise.process_madvise import advise_range
from rtdebug.madvise.waiting import LOOK_EVERY_S, wait


@dataclass(frozen=True, slots=True)
class Applied:
    """What was done."""

    before: RangeState
    after: RangeState | None
    """None: the range is not mapped any more."""
    effect: Effect
    advised_bytes: int
    refused_bytes: int
    error: str | None
    """Why the kernel refused a part, as `EINVAL`."""
    stopped: str | None
    """Why the guard stopped it before its end."""
    thread_id: int | None
    """The thread that was borrowed for the call."""
    thread_stopped_ns: int | None


@dataclass(frozen=True, slots=True)
class TakenBack:
    """The end of advice that was given for a time."""

    reason: str
    """Why then."""
    state: RangeState | None
    """None: the process has ended, or the range is not mapped any more."""
    effect: Effect | None
    """None: smaps does not show it."""


def apply(plan: Plan, guard: Guard | None = None, proc: Path = Path("/proc")) -> Applied:
    """Do it, and see what came of it. Raises TargetError if the process has ended, or was replaced."""
    return _give(plan, plan.advice, guard, proc)


def apply_for(
    plan: Plan,
    seconds: float,
    guard: Guard | None,
    on_applied: Callable[[Applied], None],
    on_wait: Callable[[int, int], None],
    proc: Path = Path("/proc"),
) -> TakenBack:
    """Do it, tell that, wait, and take it back: after so long, when the guard objects, on KeyboardInterrupt, and when
    this process is killed. `on_wait` is told the seconds that have passed, and all of them.
    """
    reason = "the time is over"
    with Watchdog(lambda: _take_back(plan, proc)):
        try:
            on_applied(apply(plan, guard, proc))
            reason = wait(seconds, guard.check if guard else lambda: None, on_wait) or reason
        except KeyboardInterrupt:
            reason = "interrupted"
    try:
        state = _state(plan, proc)
    except TargetError:
        state = None
    effect = judge(plan.undo, state, state) if plan.undo and state and plan.undo.has_flag else None
    return TakenBack(reason, state, effect)


def _take_back(plan: Plan, proc: Path) -> None:
    with contextlib.suppress(TargetError):  # it has ended: there is nothing left to take back
        if plan.undo:
            _give(plan, plan.undo, None, proc)


def _give(plan: Plan, advice: Advice, guard: Guard | None, proc: Path) -> Applied:
    start, end = plan.mapping.start, plan.mapping.end
    before = _state(plan, proc)
    if before is None:
        raise TargetError(f"nothing is mapped at {start:#x} in process {plan.pid} any more", "see /proc/PID/maps")
    if advice.way is Way.PROCESS_MADVISE:
        advised = advise_range(plan.pid, start, end, advice, _rarely(guard.check) if guard else lambda: None)
        done, refused, error, stopped = (
            advised.advised_bytes,
            advised.refused_bytes,
            advised.error,
            advised.stopped,
        )
        thread_id, thread_stopped_ns = None, None
    else:
        injected = call_madvise(plan.pid, (start, end - start, advice.number), proc)
        if injected.result < 0:
            raise _failed(plan, advice, -injected.result)
        done, refused, error, stopped = end - start, 0, None, None
        thread_id, thread_stopped_ns = injected.tid, injected.stopped_ns
    after = _state(plan, proc)
    effect = judge(advice, before, after) if after else Effect(None, "it is not mapped any more")
    return Applied(before, after, effect, done, refused, error, stopped, thread_id, thread_stopped_ns)


def _rarely(check: Callable[[], str | None]) -> Callable[[], str | None]:
    """`check`, not more often than the guard needs."""
    last = [0.0]

    def asked() -> str | None:
        if time.monotonic() - last[0] < LOOK_EVERY_S / 5:
            return None
        last[0] = time.monotonic()
        return check()

    return asked


def _state(plan: Plan, proc: Path) -> RangeState | None:
    stat = read_stat(plan.pid, proc)
    if stat is None or stat.start_ticks != plan.start_ticks:
        raise TargetError(f"process {plan.pid} has exited", "rtdebug madvise list TARGET shows what there is now")
    return range_state(read_smaps(plan.pid, proc), plan.mapping.start, plan.mapping.end)


def _failed(plan: Plan, advice: Advice, number: int) -> RtdebugError:
    name = errno.errorcode.get(number, str(number))
    hint = {
        "EINVAL": f"this kernel does not take it for this mapping, or was built without it (Linux {advice.since})",
        "ENOMEM": "a part of the range is not mapped any more, or the kernel has no memory for it",
        "EACCES": "the process has the file open without the right to write it",
    }.get(name, "see madvise(2)")
    return RtdebugError(f"{advice.name} in process {plan.pid} failed: {name}", hint)
