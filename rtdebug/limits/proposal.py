"""What the limits should be, from what was measured; each figure with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rtdebug.limits.demand import Demand
from rtdebug.limits.problems import Facts
from rtdebug.limits.settings import Level
from rtdebug.shm.advice import times

_MIB = 1 << 20
_SMALLEST_BYTES = 16 * _MIB
"""Less than that no container runs in for long: runc's own start needs some."""
_CLOSE = 0.10
"""A limit that is so near to the proposed one stays."""
_CUT_SHORT = 1.5
"""How far a limit is raised that kept the container from showing what it needs."""
LONG_ENOUGH_S = 3600.0
"""Less is no ground to lower a limit."""
_HIGH_BELOW_MAX = 0.05
_RECLAIMABLE_SHARE = 0.10
"""With less of it in use, throttling has nothing to take."""


@dataclass(frozen=True, slots=True)
class Change:
    """One knob to set."""

    knob: str
    """A name of settings.FILES."""
    file: str
    old_bytes: int | None
    """None: no limit."""
    new_bytes: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """What to set, and what was thought about and left."""

    changes: tuple[Change, ...]
    remarks: tuple[str, ...]


def propose(facts: Facts, demand: Demand) -> Proposal:
    """The limits that fit the demand. No figure is proposed where nothing was measured."""
    needed = _needed(demand)
    if needed is None:
        return Proposal((), ("the kernel does not say what it needs: nothing is proposed",))
    remarks: list[str] = []
    limit = _new_limit(facts, demand, needed, remarks)
    changes = [*_change_max(facts, demand, needed, limit, remarks)]
    changes += _change_memsw(facts, limit)
    changes += _change_low(facts, demand, needed)
    changes += _change_high(facts, demand, needed, limit, remarks)
    return Proposal(tuple(changes), tuple(remarks))


def in_order(changes: Iterable[Change]) -> list[Change]:
    """In an order the kernel takes: on v1 memory+swap may never be below memory, not even for a moment."""

    def rank(change: Change) -> int:
        grows = change.new_bytes is None or (change.old_bytes is not None and change.new_bytes > change.old_bytes)
        return {"memsw": 0 if grows else 2, "max": 1}.get(change.knob, 3)

    return sorted(changes, key=rank)


def round_up(count_bytes: float) -> int:
    """To a figure that a person would write: 4 MiB steps below 256 MiB, then 16, 64 (from 2 GiB), 256 (from 16 GiB)."""
    for below, step in ((256 * _MIB, 4), (2048 * _MIB, 16), (16384 * _MIB, 64)):
        if count_bytes < below:
            return _to_step(count_bytes, step * _MIB)
    return _to_step(count_bytes, 256 * _MIB)


def _needed(demand: Demand) -> int | None:
    """At least what cannot be taken from it."""
    known = [part for part in (demand.working_set_bytes, demand.unreclaimable_bytes) if part is not None]
    return max(known, default=None)


def _kills(facts: Facts) -> int:
    """After a kill at a limit, what it needs has never been seen."""
    return facts.own.memory.events.get("oom_kill", 0)


def _lower_above(facts: Facts) -> Level | None:
    """The cgroup above whose limit is reached before the container's own."""
    limited = [(value, level) for level in facts.binding if (value := level.value("max")) is not None]
    _, lowest = min(limited, key=lambda each: each[0], default=(0, None))
    return None if lowest is facts.own else lowest


def _new_limit(facts: Facts, demand: Demand, needed: int, remarks: list[str]) -> int | None:
    """None: none, as it is now."""
    wanted = round_up(max(needed * (1 + demand.margin), _SMALLEST_BYTES))
    present = facts.own.value("max")
    if _kills(facts) and (above := _lower_above(facts)) is not None:
        limit = _mib(above.value("max") or 0)
        remarks.append(
            f"it was OOM-killed {times(_kills(facts))} below the limit of {limit} of {above.cgroup}, so what it needs "
            "was never seen: raise that one; its own limit stays"
        )
        return present
    if present is not None and _kills(facts):
        return max(wanted, round_up(present * _CUT_SHORT))
    if present is not None and abs(wanted - present) <= present * _CLOSE:
        remarks.append("the limit fits what was measured, to a tenth: it stays")
        return present
    lowers = present is None or wanted < present
    if lowers and not demand.probed and demand.observed_s < LONG_ENOUGH_S:
        remarks.append(
            f"{_mib(wanted)} would do for what is seen now, but one look is too little to lower or set a limit by: "
            "--probe measures, --from takes a recording"
        )
        return present
    return wanted


def _change_max(
    facts: Facts, demand: Demand, needed: int, limit: int | None, remarks: list[str]
) -> Iterator[Change]:
    own = facts.own
    present = own.value("max")
    if present == limit or limit is None or not own.has("max"):
        return
    _warn_of_parents(facts, limit, remarks)
    if _kills(facts) and present is not None:
        killed = f"it was OOM-killed {times(_kills(facts))} at the present limit"
        reason = f"{killed}, so what it needs was never seen: half more"
    else:
        what = "working set" if demand.probed else "what it needed at most"
        reason = f"{what} {_mib(needed)} and {demand.margin:.0%} for what was not seen ({_watched(demand)})"
    yield Change("max", own.knobs["max"].file, present, limit, reason)


def _change_memsw(facts: Facts, limit: int | None) -> Iterator[Change]:
    """v1 counts memory and swap in one figure, which must not be below the limit: what it may swap stays."""
    own = facts.own
    memsw, present = own.value("memsw"), own.value("max")
    if own.version == 2 or memsw is None or present is None or limit is None or limit == present:
        return
    yield Change("memsw", own.knobs["memsw"].file, memsw, limit + max(0, memsw - present), "as much swap as before")


def _change_low(facts: Facts, demand: Demand, needed: int) -> Iterator[Change]:
    own = facts.own
    present = own.value("low") if own.has("low") else None
    if not own.has("low") or (not demand.probed and demand.observed_s == 0):
        return  # one look says too little to take memory from others for it
    wanted = _to_step(needed, 4 * _MIB)
    if present is not None and abs(present - wanted) <= wanted * _CLOSE:
        return
    reason = (
        "the working set: pressure from others then takes what is beyond it first"
        if own.version == 2
        else "the working set: when the host is short, what is beyond it goes first"
    )
    yield Change("low", own.knobs["low"].file, present, wanted, reason)


def _change_high(
    facts: Facts, demand: Demand, needed: int, limit: int | None, remarks: list[str]
) -> Iterator[Change]:
    own = facts.own
    if limit is None or not own.has("high") or _lower_above(facts) is not None:
        return
    present = own.value("high")
    reclaimable = (demand.usage_bytes or 0) - (demand.unreclaimable_bytes or 0)
    may_swap = facts.swap_total_bytes > 0 and own.value("swap") != 0
    if reclaimable < needed * _RECLAIMABLE_SHARE and not may_swap:
        remarks.append(
            "memory.high is not proposed: nearly all of its memory is anon, shmem or the kernel's and there is no "
            "swap, so throttling could take nothing and would only make it hang before it is killed"
        )
        return
    wanted = min(limit - _to_step(max(limit * _HIGH_BELOW_MAX, _MIB), _MIB), limit - 1)
    if wanted <= needed:
        return
    if present is not None and needed < present < limit and abs(present - wanted) <= wanted * _CLOSE:
        return
    yield Change(
        "high", own.knobs["high"].file, present, wanted, "5 % below the limit: reclaim and PSI tell before a kill does"
    )


def _warn_of_parents(facts: Facts, limit: int, remarks: list[str]) -> None:
    for level in facts.binding[1:]:
        above = level.value("max")
        if above is not None and above < limit:
            remarks.append(f"{level.cgroup} limits it to {_mib(above)}: raise that first, or it has no effect")


def _watched(demand: Demand) -> str:
    if demand.observed_s <= 0:
        return "one look; a recording of a day needs less"
    hours = demand.observed_s / 3600
    return f"watched for {hours:.1f} h" if hours >= 1 else f"watched for {demand.observed_s / 60:.0f} min"


def _to_step(count_bytes: float, step: int) -> int:
    return -(-int(count_bytes) // step) * step


def _mib(count_bytes: int) -> str:
    return f"{count_bytes / _MIB:.1f} MiB"
