"""Facts of a kill that a trace saw, from the fields of its event line: the same verdicts for a log and for a watch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as fields_of
from typing import Any

from rtdebug.oom.facts import Facts, Process
from rtdebug.oom.record import Victim
from rtdebug.oom.tasks import TASKS_AT_MOST
from rtdebug.oom.usage import UsageByKind
from rtdebug.tracing.line import EventLine


def facts_of_line(line: EventLine) -> Facts:
    """The facts of an `oom_kill` line that OomReport.to_line() made."""
    fields: Mapping[str, Any] = line.fields
    tasks: list[Mapping[str, Any]] = fields["tasks"] or []
    kinds = fields["usage_by_kind"]
    return Facts(
        scope=fields["constraint"],
        usage_bytes=fields["usage_bytes"],
        limit_bytes=fields["limit_bytes"],
        counter=fields["limit_kind"],
        parts=UsageByKind(**kinds) if kinds else None,
        stat=fields["memory_stat"],
        processes=_processes(tasks) or _victim_alone(line),
        is_whole_table=bool(tasks) and len(tasks) < TASKS_AT_MOST,
        victims=(_victim(line),),
        order=fields["order"],
        gfp_mask=fields["gfp_mask"],
        oom_memcg=fields["oom_memcg"],
    )


def _victim(line: EventLine) -> Victim:
    names = {each.name for each in fields_of(Victim)} & line.fields.keys()
    known: dict[str, Any] = {name: line.fields[name] for name in names}
    return Victim(pid=line.pid, comm=line.comm, **known)


def _processes(tasks: list[Mapping[str, Any]]) -> tuple[Process, ...]:
    sizes = [(task, (task["rss_bytes"] or 0) + (task["swap_bytes"] or 0)) for task in tasks]
    return tuple(Process(task["pid"], task["comm"], size, size) for task, size in sizes)


def _victim_alone(line: EventLine) -> tuple[Process, ...]:
    victim = _victim(line)
    if victim.anon_rss_bytes is None:
        return ()
    size = victim.anon_rss_bytes + (victim.swap_bytes or 0)
    return (Process(victim.pid, victim.comm, size, size),)
