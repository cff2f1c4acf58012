"""The closing summary of `trace` and `report`: as text for people, and as the last JSON line.

The JSON object, all lists the largest first and bounded:

    time, event ("summary"), duration_ns, events, events_per_second, failures,
    lost_events, oom_kills, sigbus, shm_full            counts; lost_events is null when not known
    event_totals        [{event, count, failures, length_bytes}]
    advice              [{advice, count, failures, length_bytes}]
    processes           [{pid, comm, container_id, container_name, mapped_bytes, still_mapped_bytes,
                          events: [{event, count, failures, length_bytes}]}]
    more_processes      how many are not listed
    shm_created         {posix, sysv, memfd}: how many
    shared_memory       [{kind, name, container_id, container_name, length_bytes, pid, comm, linked}]
                        pid and comm: who created it, null if it was there before; linked: null for a memfd
    more_shared_memory
    killed              [{time, pid, comm, container_id, container_name, oom_memcg}]
"""

from __future__ import annotations

from collections.abc import Mapping

from rtdebug.render.columns import align
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
)
from rtdebug.tracing.line import Value
from rtdebug.tracing.summary import Kill, ProcessTotals, SharedMemory, Summary, Totals

_LOUD = {"oom_kill": "OOM kills", "sigbus": "SIGBUS", "shm_full": "shared memory full"}


def summary_fields(summary: Summary) -> dict[str, Value]:
    """The summary as one JSON object, see the module's text."""
    return {
        "time": format_time_utc(summary.ended_ns),
        "event": "summary",
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
        "shm_created": {kind: summary.created.get(kind, 0) for kind in ("posix", "sysv", "memfd")},
        "shared_memory": [_shared_fields(found) for found in summary.shared_memory],
        "more_shared_memory": summary.more_shared_memory,
        "killed": [_kill_fields(kill) for kill in summary.oom_kills],
    }


def render_summary(summary: Summary, colour: bool = False) -> list[str]:
    """The summary as lines of text, safe for a terminal; what did not happen has no section."""
    sections = (
        ("OOM kills", _kills(summary)),
        ("Processes", _processes(summary)),
        ("Shared memory", _shared(summary)),
        ("Advice", _advice(summary)),
    )
    lines = _overview(summary, colour)
    for title, body in sections:
        if body:
            lines += ["", paint(title, Style.TITLE, colour), *(f"  {line}" for line in body)]
    return lines


def _overview(summary: Summary, colour: bool) -> list[str]:
    lost = summary.lost_events
    loss = "losses not known" if lost is None else f"{format_count(lost)} lost"
    loud = [
        f"{words} {format_count(count)}"
        for event, words in _LOUD.items()
        if (count := summary.count_of(event))
    ]
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
            kill.oom_memcg or UNKNOWN,
        ]
        for kill in summary.oom_kills
    ]
    return _list(rows, {1}, summary.more_oom_kills, "kills")


def _processes(summary: Summary) -> list[str]:
    rows = [["PID", "COMM", "CONTAINER", "MAPPED", "STILL MAPPED", "EVENT", "COUNT", "FAILED", "BYTES"]]
    for process in summary.processes:
        who = [
            str(process.pid),
            process.comm or UNKNOWN,
            _container(process),
            format_bytes(process.mapped_bytes),
            format_bytes(process.still_mapped_bytes),
        ]
        for event, totals in process.events.items():
            rows.append([*who, event, *_figures(totals)])
            who = [""] * len(who)
    return _list(rows, {0, 3, 4, 6, 7, 8}, summary.more_processes, "processes")


def _shared(summary: Summary) -> list[str]:
    rows = [["KIND", "NAME", "SIZE", "STATE", "CONTAINER", "CREATED BY"]] + [
        [
            found.key.kind,
            found.key.name,
            format_bytes(found.length_bytes),
            _state(found),
            _container(found),
            _by(found),
        ]
        for found in summary.shared_memory
    ]
    counts = ", ".join(f"{format_count(count)} {kind}" for kind, count in summary.created.items())
    table = _list(rows, {2}, summary.more_shared_memory, "pieces of shared memory")
    return [f"created: {counts or 'none'}", *table] if table or counts else []


def _advice(summary: Summary) -> list[str]:
    rows = [["ADVICE", "COUNT", "FAILED", "BYTES"]] + [
        [name, *_figures(totals)] for name, totals in summary.advice.items()
    ]
    return _list(rows, {1, 2, 3}, 0, "")


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
    return "before the trace" if found.pid is None else f"{found.pid} {found.comm or UNKNOWN}"


def _container(of: ProcessTotals | SharedMemory | Kill) -> str:
    container_id = of.key.container_id if isinstance(of, SharedMemory) else of.container_id
    return of.container_name or (short_id(container_id) if container_id else UNKNOWN)


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
        "linked": found.linked,
    }


def _kill_fields(kill: Kill) -> dict[str, Value]:
    return {
        "time": format_time_utc(kill.time_ns),
        "pid": kill.pid,
        "comm": kill.comm,
        "container_id": kill.container_id,
        "container_name": kill.container_name,
        "oom_memcg": kill.oom_memcg,
    }
