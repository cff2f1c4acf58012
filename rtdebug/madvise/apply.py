"""Advice on one mapping of a live process: planned (everything that can be refused is refused here), done, verified in
smaps, and undone.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import HostUnable, RtdebugError, TargetError, UsageProblem
from rtdebug.host.maps import Mapping, SmapsEntry, read_maps, read_smaps
from rtdebug.host.meminfo import read_meminfo
from rtdebug.host.process import read_stat
from rtdebug.host.text import read_text
from rtdebug.host.thp import ThpSettings, read_thp
from rtdebug.host.watchdog import Watchdog
from rtdebug.madvise.advice import ADVICE, Advice, Memory, Way, applicable
from rtdebug.madvise.effect import Effect, RangeState, judge, range_state
from rtdebug.madvise.guard import Guard
from rtdebug.madvise.inject import call_madvise, examine
from rtdebug.madvise.process_madvise import advise_range
from rtdebug.madvise.target import find_mapping, label, memory_of

_GUARD_PERIOD_S = 0.25
_ON_PRIVATE_ONLY = frozenset({"MADV_DONTNEED", "MADV_DONTNEED_LOCKED", "MADV_FREE"})
"""On a shared mapping these drop what the process has mapped; the data stay in the file or segment."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done; making one changes nothing."""

    pid: int
    start_ticks: int
    comm: str
    mapping: Mapping
    advice: Advice
    undo: Advice | None
    """What takes it back; None: nothing does, or nothing is to be taken back."""
    notes: tuple[str, ...]


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


@dataclass(frozen=True, slots=True)
class Host:
    """What the plan depends on beside the process."""

    thp: ThpSettings | None
    has_swap: bool
    ksm_runs: bool


def read_host(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> Host:
    """Read it."""
    return Host(
        thp=read_thp(sys),
        has_swap=bool(read_meminfo(proc).get("SwapTotal")),
        ksm_runs=(read_text(sys / "kernel/mm/ksm/run") or "").strip() == "1",
    )


def make_plan(
    pid: int, mapping: str, advice: Advice, *, undo: bool, destroy: bool, host: Host, proc: Path = Path("/proc")
) -> Plan:
    """Find the mapping, and refuse what cannot or must not be.

    `undo`: it is to be taken back later. `destroy`: the user has said that data may be lost. Raises UsageProblem,
    TargetError, and for an advice that the process must give itself what examine() raises.
    """
    if advice.way is Way.NONE:
        names = ", ".join(each.short_name for each in applicable())
        raise UsageProblem(f"{advice.name} cannot be given to a live process", f"these can: {names}")
    stat = read_stat(pid, proc)
    found = find_mapping(read_maps(pid, proc), mapping)
    if stat is None:
        raise TargetError(f"process {pid} has exited", "rtdebug madvise list TARGET shows what there is now")
    memory = _check_kind(found, advice)
    _check_swap(advice, memory, host)
    _check_data(found, advice, destroy)
    entry = _entry_of(pid, found, proc)
    back = _undo_of(advice, entry.vm_flags or (), host.thp) if undo else None
    if advice.way is Way.INJECT:
        examine(pid, proc)
    return Plan(pid, stat.start_ticks, stat.comm, found, advice, back, tuple(_notes(entry, advice, host)))


def apply(plan: Plan, guard: Guard | None = None, proc: Path = Path("/proc")) -> Applied:
    """Do it, and see what came of it. Raises TargetError if the process has ended, or was replaced."""
    return _give(plan, plan.advice, guard, proc)


def apply_for(
    plan: Plan, seconds: float, guard: Guard | None, on_applied: Callable[[Applied], None], proc: Path = Path("/proc")
) -> TakenBack:
    """Do it, tell that, wait, and take it back: after so long, when the guard objects, on KeyboardInterrupt, and when
    this process is killed.
    """
    reason = "the time is over"
    with Watchdog(lambda: _take_back(plan, proc)):
        try:
            on_applied(apply(plan, guard, proc))
            reason = hold(seconds, guard) or reason
        except KeyboardInterrupt:
            reason = "interrupted"
    try:
        state = _state(plan, proc)
    except TargetError:
        state = None
    effect = judge(plan.undo, state, state) if plan.undo and state and plan.undo.has_flag else None
    return TakenBack(reason, state, effect)


def hold(seconds: float, guard: Guard | None, sleep: Callable[[float], None] = time.sleep) -> str | None:
    """Wait so long, or until the guard objects: then why."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        sleep(min(left, _GUARD_PERIOD_S))
        if guard and (reason := guard.check()):
            return reason
    return None


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
        if time.monotonic() - last[0] < _GUARD_PERIOD_S / 5:
            return None
        last[0] = time.monotonic()
        return check()

    return asked


def _state(plan: Plan, proc: Path) -> RangeState | None:
    stat = read_stat(plan.pid, proc)
    if stat is None or stat.start_ticks != plan.start_ticks:
        raise TargetError(f"process {plan.pid} has exited", "rtdebug madvise list TARGET shows what there is now")
    return range_state(read_smaps(plan.pid, proc), plan.mapping.start, plan.mapping.end)


def _entry_of(pid: int, mapping: Mapping, proc: Path) -> SmapsEntry:
    for entry in read_smaps(pid, proc):
        if entry.mapping.start <= mapping.start < entry.mapping.end:
            return entry
    raise TargetError(f"nothing is mapped at {mapping.start:#x} in process {pid} any more", "see /proc/PID/maps")


def _check_kind(mapping: Mapping, advice: Advice) -> Memory:
    memory = memory_of(mapping)
    if memory is None:
        raise UsageProblem(f"{label(mapping)!r} is no memory that can be advised on", "it belongs to the kernel")
    if memory not in advice.acts_on:
        kinds = ", ".join(sorted(advice.acts_on))
        raise UsageProblem(f"{advice.name} acts on {kinds} memory, and {label(mapping)!r} is {memory}", advice.does)
    return memory


def _check_swap(advice: Advice, memory: Memory, host: Host) -> None:
    if advice.name == "MADV_PAGEOUT" and memory is not Memory.FILE and not host.has_swap:
        raise HostUnable(
            "MADV_PAGEOUT can do no good here: this host has no swap",
            f"{memory} memory would stay where it is, and its huge pages would be split; files can be dropped",
        )


def _check_data(mapping: Mapping, advice: Advice, destroy: bool) -> None:
    if not advice.destroys or (advice.name in _ON_PRIVATE_ONLY and mapping.perms[3] == "s"):
        return
    if mapping.perms[2] == "x" or mapping.path in ("[stack]", "[heap]"):
        raise UsageProblem(
            f"{advice.name} on {label(mapping)!r} would crash the process", "it is not done, whatever options are given"
        )
    if not destroy:
        raise UsageProblem(
            f"{advice.name} can destroy data: {advice.does}",
            "if the process can do without what is in this very mapping, say so with --destroy-data",
        )


def _undo_of(advice: Advice, flags: tuple[str, ...], thp: ThpSettings | None) -> Advice | None:
    """The advice that brings back what was; None if it was so before. Raises UsageProblem if nothing does."""
    if advice.undo is None:
        raise UsageProblem(f"{advice.name} cannot be undone", f"leave out --for: it {advice.does}")
    undo = ADVICE[advice.undo]
    if advice.sets_flag in flags or (
        advice.sets_flag is None and advice.clears_flag and advice.clears_flag not in flags
    ):
        return None
    if advice.sets_flag in ("hg", "nh") and undo.sets_flag not in flags:
        # neither was set, and the kernel knows no way back to that: the opposite must mean the same here
        enabled = thp.enabled if thp else None
        same = enabled != "always" if advice.sets_flag == "hg" else enabled == "always"
        if not same:
            raise UsageProblem(
                f"{advice.name} cannot be undone here: the mapping has no advice on huge pages now, and with "
                f"transparent_hugepage/enabled={enabled} {undo.name} would not be the same",
                "leave out --for: it is for the rest of the process's life, or of the mapping's",
            )
    return undo


def _notes(entry: SmapsEntry, advice: Advice, host: Host) -> Iterable[str]:
    mapping, name = entry.mapping, advice.short_name
    pmd = host.thp.pmd_size_bytes if host.thp else None
    if name in ("HUGEPAGE", "COLLAPSE") and not pmd:
        yield "this kernel has no transparent huge pages"
    elif name in ("HUGEPAGE", "COLLAPSE") and pmd and -(-mapping.start // pmd) * pmd + pmd > mapping.end:
        yield f"no aligned huge page of {pmd // 1024} KiB fits into this mapping"
    if name == "HUGEPAGE":
        yield "huge pages come with the next faults and from khugepaged; COLLAPSE makes them of what is there"
        if host.thp and host.thp.enabled == "never":
            yield "transparent_hugepage/enabled=never: only COLLAPSE makes huge pages here"
    if name == "COLLAPSE" and entry.use.rss_bytes is not None:
        more = mapping.length_bytes - entry.use.rss_bytes
        if more > mapping.length_bytes // 10:
            yield f"pages that were never touched come with it: up to {more // 1024:,} KiB more memory"
    if name == "MERGEABLE" and not host.ksm_runs:
        yield "KSM does not run on this host (/sys/kernel/mm/ksm/run): nothing is merged until it does"


def _failed(plan: Plan, advice: Advice, number: int) -> RtdebugError:
    name = errno.errorcode.get(number, str(number))
    hint = {
        "EINVAL": f"this kernel does not take it for this mapping, or was built without it (Linux {advice.since})",
        "ENOMEM": "a part of the range is not mapped any more, or the kernel has no memory for it",
        "EACCES": "the process has the file open without the right to write it",
    }.get(name, "see madvise(2)")
    return RtdebugError(f"{advice.name} in process {plan.pid} failed: {name}", hint)
