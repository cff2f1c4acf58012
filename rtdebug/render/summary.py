"""The closing summary of `trace` and `report`: as text for people, and as the last JSON line.

The keys of the JSON object are those of docs/events.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from rtdebug.render.columns import align, cut_middle, wrap
from rtdebug.render.jsonl import format_time_utc
from rtdebug.render.terminal import Style, paint
from rtdebug.render.units import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_time,
    short_id,
    short_path,
)
from rtdebug.tracing.line import Value
from rtdebug.tracing.summary import (
    Kill,
    ProcessGroup,
    ProcessTotals,
    Refusal,
    SharedMemory,
    StackTotals,
    Summary,
    Totals,
)

_WIDTH = 100
"""Columns that the summary is made for."""
_CONTAINER_WIDTH = 16
_NAME_WIDTH = 32
_CGROUP_WIDTH, _CGROUP_END = 40, 34  # cri-containerd-8f3c8f3c8f3c.scope
_PIDS = 3
"""So many processes of one comm are named by their pids."""
_FRAMES = 20
"""Frames that are shown of a stack."""
_LOUD = {"oom_kill": "OOM kills", "sigbus": "SIGBUS", "shm_full": "shared memory full"}


def summary_fields(summary: Summary) -> dict[str, Value]:
    """The summary as one JSON object, see the module's text."""
    return {
        "time": format_time_utc(summary.ended_ns),
        "event": "summary",
        "traced_events": [*sorted(summary.shown)],
        "duration_ns": summary.duration_ns,
        "events": summary.count,
        "events_per_second": summary.events_per_second,
        "failures": summary.failures,
        "lost_events": summary.lost_events,
        "oom_kills": summary.count_of("oom_kill"),
        "sigbus": summary.count_of("sigbus"),
        "shm_full": summary.count_of("shm_full"),
        "event_totals": _totals("event", summary.events),
        "advice": _totals("advice", summary.advice),
        "processes": [_process_fields(process) for process in summary.processes],
        "more_processes": summary.more_processes,
        "shm_created": {kind: summary.created.get(kind) for kind in ("posix", "sysv", "memfd")},
        "shared_memory": [_shared_fields(found) for found in summary.shared_memory],
        "more_shared_memory": summary.more_shared_memory,
        "shared_memory_full": [_refusal_fields(found, summary.shown) for found in summary.refusals],
        "more_shared_memory_full": summary.more_refusals,
        "stacks": [_stack_fields(found) for found in summary.stacks],
        "more_stacks": summary.more_stacks,
        "killed": [_kill_fields(kill) for kill in summary.oom_kills],
    }


def render_summary(summary: Summary, colour: bool = False) -> list[str]:
    """The summary as lines of text, safe for a terminal; what did not happen has no section."""
    sections = (
        ("OOM kills", _kills(summary)),
        ("Shared memory full", _full(summary)),
        ("Processes", _processes(summary)),
        ("Shared memory", _shared(summary)),
        ("Advice", _advice(summary)),
        ("Stacks", _stacks(summary)),
    )
    lines = _overview(summary, colour)
    for title, body in sections:
        if body:
            lines += ["", paint(title, Style.TITLE, colour), *(f"  {line}" for line in body)]
    return lines


def _overview(summary: Summary, colour: bool) -> list[str]:
    lost = summary.lost_events
    loss = "losses not known" if lost is None else f"{format_count(lost)} lost"
    loud = [f"{words} {format_count(count)}" for event, words in _LOUD.items() if (count := summary.count_of(event))]
    noun = "event" if summary.count == 1 else "events"
    lines = [
        f"{format_count(summary.count)} {noun} in {format_duration(summary.duration_ns)} "
        f"({format_rate(summary.events_per_second)}), {format_count(summary.failures)} failed, "
        + paint(loss, Style.ALARM, colour and lost != 0)
    ]
    return lines + ([paint(", ".join(loud), Style.ALARM, colour)] if loud else [])


def _kills(summary: Summary) -> list[str]:
    rows = [["TIME", "PID", "COMM", "CONTAINER", "LIMIT OF"]] + [
        [
            format_time(kill.time_ns),
            str(kill.pid),
            kill.comm or UNKNOWN,
            _container(kill),
            cut_middle(short_path(kill.oom_memcg), _CGROUP_WIDTH, _CGROUP_END) if kill.oom_memcg else UNKNOWN,
        ]
        for kill in summary.oom_kills
    ]
    return _list(rows, {1}, summary.more_oom_kills, "kills")


def _full(summary: Summary) -> list[str]:
    """Which tmpfs was full, for whom, and what to do about the one that containers have by default."""
    rows = [["PLACE", "SIZE", "REFUSED", "SIGBUS", "CONTAINER", "BY"]]
    for who, found in _alike(summary.refusals).items():
        path = found[0].key.path
        rows.append(
            [
                cut_middle(path, _NAME_WIDTH) if path else "a tmpfs",
                who.size,
                _how_often("shm_full", sum(each.shm_full for each in found), summary),
                _how_often("sigbus", sum(each.sigbus for each in found), summary),
                who.container,
                _refused(found),
            ]
        )
    return _list(rows, {2, 3}, summary.more_refusals, "processes") + _remedy(summary.refusals)


class _Refused(NamedTuple):
    """What refusals in one row have in common."""

    path: str | None
    size: str
    container: str
    comm: str | None


def _alike(refusals: Iterable[Refusal]) -> dict[_Refused, list[Refusal]]:
    rows: dict[_Refused, list[Refusal]] = {}
    for found in refusals:
        size = format_bytes(found.size_bytes) + (", no free inodes" if found.out_of_inodes else "")
        rows.setdefault(_Refused(found.key.path, size, _container(found), found.comm), []).append(found)
    return rows


def _refused(found: list[Refusal]) -> str:
    comm = found[0].comm or UNKNOWN
    if len(found) > _PIDS:
        return f"{comm} x{format_count(len(found))}"
    return f"{', '.join(str(pid) for pid in sorted(each.key.pid for each in found))} {comm}"


def _how_often(event: str, count: int, summary: Summary) -> str:
    return format_count(count) if event in summary.shown else UNKNOWN


def _remedy(refusals: Iterable[Refusal]) -> list[str]:
    sizes = {
        found.size_bytes
        for found in refusals
        if found.key.path == "/dev/shm" and found.size_bytes is not None and not found.out_of_inodes
    }
    if not sizes:
        return []
    said = " or ".join(map(format_bytes, sorted(sizes)))
    return list(
        wrap(
            f"/dev/shm is {said}: docker run --shm-size, or in Kubernetes an emptyDir with medium: Memory mounted "
            "at /dev/shm (its pages count against the memory limit)",
            _WIDTH - 2,
        )
    )


def _processes(summary: Summary) -> list[str]:
    rows = [["PID", "COMM", "CONTAINER", "MAPPED", "STILL MAPPED", "EVENT", "COUNT", "FAILED", "BYTES"]]
    for group in summary.process_groups:
        several = "" if group.processes == 1 else f" x{format_count(group.processes)}"
        who = [
            "" if group.pid is None else str(group.pid),
            f"{group.comm or UNKNOWN}{several}",
            _container(group),
            format_bytes(group.mapped_bytes),
            format_bytes(group.still_mapped_bytes),
        ]
        for event, totals in group.events.items():
            rows.append([*who, event, *_figures(totals)])
            who = [""] * len(who)
    return _list(rows, {0, 3, 4, 6, 7, 8}, summary.more_grouped_processes, "processes")


def _shared(summary: Summary) -> list[str]:
    rows = [["KIND", "NAME", "SIZE", "STATE", "CONTAINER", "CREATED BY"]] + [
        [
            found.key.kind,
            cut_middle(found.key.name, _NAME_WIDTH),
            format_bytes(found.length_bytes),
            _state(found),
            _container(found),
            _by(found),
        ]
        for found in summary.shared_memory
    ]
    table = _list(rows, {2}, summary.more_shared_memory, "pieces of shared memory")
    return [*_created(summary), *table] if table or any(summary.created.values()) else []


def _created(summary: Summary) -> list[str]:
    """How many of each kind; "none" only where everyone's creations of all kinds were traced."""
    some = [f"{format_count(count)} {kind}" for kind, count in summary.created.items() if count]
    untold = None in summary.created.values() or any(each.creation == "not_traced" for each in summary.shared_memory)
    return [] if untold and not some else [f"created: {', '.join(some) or 'none'}"]


def _advice(summary: Summary) -> list[str]:
    rows = [["ADVICE", "COUNT", "FAILED", "BYTES"]] + [
        [name, *_figures(totals)] for name, totals in summary.advice.items()
    ]
    return _list(rows, {1, 2, 3}, 0, "")


def _stacks(summary: Summary) -> list[str]:
    """Each with its frames below it, so the rows are aligned first."""
    heading, *rows = align(
        [
            ["EVENT", "COUNT", "FAILED", "BYTES"],
            *([found.stack.event, *_figures(found.totals)] for found in summary.stacks),
        ],
        {1, 2, 3},
    )
    lines = [heading] if rows else []
    for row, found in zip(rows, summary.stacks, strict=True):
        lines += [row, *(f"    {frame}" for frame in _frames(found))]
    return lines + ([f"and {format_count(summary.more_stacks)} more stacks"] if summary.more_stacks else [])


def _frames(found: StackTotals) -> Iterator[str]:
    frames = found.stack.frames
    for frame in frames[:_FRAMES]:
        yield cut_middle(frame, _WIDTH - 6)
    if len(frames) > _FRAMES:
        yield f"and {format_count(len(frames) - _FRAMES)} more frames"


def _list(rows: list[list[str]], right: set[int], more: int, what: str) -> list[str]:
    """Aligned rows below their heading, nothing for a heading alone, and how many were left out."""
    if len(rows) == 1:
        return []
    return align(rows, right) + ([f"and {format_count(more)} more {what}"] if more else [])


def _figures(totals: Totals) -> list[str]:
    return [format_count(totals.count), format_count(totals.failures), format_bytes(totals.length_bytes)]


def _state(found: SharedMemory) -> str:
    if found.linked is None:
        return UNKNOWN
    return "linked" if found.linked else "unlinked"


def _by(found: SharedMemory) -> str:
    if found.creation == "not_traced":
        return "not traced"
    return "before/outside trace" if found.pid is None else f"{found.pid} {found.comm or UNKNOWN}"


def _container(of: ProcessTotals | ProcessGroup | SharedMemory | Refusal | Kill) -> str:
    container_id = of.key.container_id if isinstance(of, SharedMemory | Refusal) else of.container_id
    name = of.container_name or (short_id(container_id) if container_id else UNKNOWN)
    return cut_middle(short_path(name), _CONTAINER_WIDTH)


def _totals(name: str, totals: Mapping[str, Totals]) -> list[Value]:
    return [{name: key, **_totals_fields(value)} for key, value in totals.items()]


def _totals_fields(totals: Totals) -> dict[str, Value]:
    return {"count": totals.count, "failures": totals.failures, "length_bytes": totals.length_bytes}


def _process_fields(process: ProcessTotals) -> dict[str, Value]:
    return {
        "pid": process.pid,
        "comm": process.comm,
        "container_id": process.container_id,
        "container_name": process.container_name,
        "mapped_bytes": process.mapped_bytes,
        "still_mapped_bytes": process.still_mapped_bytes,
        "events": _totals("event", process.events),
    }


def _shared_fields(found: SharedMemory) -> dict[str, Value]:
    return {
        "kind": found.key.kind,
        "name": found.key.name,
        "container_id": found.key.container_id,
        "container_name": found.container_name,
        "length_bytes": found.length_bytes,
        "pid": found.pid,
        "comm": found.comm,
        "creation": found.creation,
        "linked": found.linked,
    }


def _refusal_fields(found: Refusal, shown: frozenset[str]) -> dict[str, Value]:
    return {
        "path": found.key.path,
        "container_id": found.key.container_id,
        "container_name": found.container_name,
        "size_bytes": found.size_bytes,
        "used_bytes": found.used_bytes,
        "out_of_inodes": found.out_of_inodes,
        "shm_full": found.shm_full if "shm_full" in shown else None,
        "sigbus": found.sigbus if "sigbus" in shown else None,
        "pid": found.key.pid,
        "comm": found.comm,
    }


def _stack_fields(found: StackTotals) -> dict[str, Value]:
    return {"event": found.stack.event, **_totals_fields(found.totals), "stack": list(found.stack.frames)}


def _kill_fields(kill: Kill) -> dict[str, Value]:
    return {
        "time": format_time_utc(kill.time_ns),
        "pid": kill.pid,
        "comm": kill.comm,
        "container_id": kill.container_id,
        "container_name": kill.container_name,
        "oom_memcg": kill.oom_memcg,
    }
