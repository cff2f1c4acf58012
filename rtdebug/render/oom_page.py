"""One OOM episode of a log on one page, for a person: what happened, whose it was, on which figures that rests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rtdebug.oom.episode import OomEpisode
from rtdebug.oom.log_usage import counter_of
from rtdebug.oom.record import MemoryCounter, OomRecord, Selected, Victim
from rtdebug.oom.schema import episode_fields, killed_of
from rtdebug.render.block import LABEL_COLUMNS, block, columns, labelled, short_ids
from rtdebug.render.columns import wrap
from rtdebug.render.escape import escape
from rtdebug.render.oom_limited import stat_row, usage_row
from rtdebug.render.oom_verdict import fill
from rtdebug.render.units import UNKNOWN, format_bytes, format_count, short_id
from rtdebug.tracing.line import Value

_KILLED_SHOWN = 5
_PROCESSES_SHOWN = 5
_ZONES = {
    "utc": "",
    "local": " (the zone is not in the log)",
    "printed": " (as printed: no year or zone)",
    "boot": " (seconds since boot)",
}
_LEVELS = {
    "container": "the container's own",
    "pod": "the pod's",
    "node": "of all pods of the node",
    "lxc": "the LXC container's",
    "below": "of a cgroup below the container",
    "service": "the service's",
    "session": "the session's",
}
_SCOPES = {
    "memcg": "a cgroup's limit",
    "global": "the whole host, no cgroup's limit",
    "cpuset": "the memory nodes of a cpuset, no cgroup's limit",
    "mempolicy": "the memory nodes of a memory policy, no cgroup's limit",
    "sysrq": "asked for by hand, no limit",
}


def oom_page(episode: OomEpisode, width: int = 80) -> str:
    """Draw it, at most `width` columns wide, without a final newline."""
    record, room = episode.record, width - LABEL_COLUMNS - 2
    fields = {
        **episode_fields(episode),
        "stat_source": "kernel_log",
        "stat_cgroup": record.oom_memcg,
    }
    rows = [
        *wrap(_title(episode), width),
        *labelled("verdict", f"{episode.verdict.kind}: {_said(episode)}", width),
        *labelled("to do", episode.verdict.advice, width),
        *block("note", _notes(episode, room)),
        *block("killed", _killed(episode, room)),
        *labelled("outcome", _outcome(record), width),
        *labelled("whose", _owner(episode), width),
        *labelled("cgroup", short_ids(record.task_memcg) if record.task_memcg else None, width),
        *labelled("short of", _limit(episode), width),
        *block("counters", _counters(record)),
        *labelled("usage", _usage(fields), width),
        *labelled("memory.stat", stat_row(fields), width),
        *block("processes", _processes(episode, room)),
        *labelled("host", _host(episode), width),
        *labelled("triggered", _trigger(episode), width),
        *labelled("cpuset", _cpuset(episode), width),
        *labelled("not in log", ", ".join(record.missing), width),
    ]
    return "\n".join(escape(row, width) for row in rows)


def _title(episode: OomEpisode) -> str:
    when, record = episode.when, episode.record
    time = f" at {when.text}{_ZONES[when.kind]}" if when.text and when.kind else ", time not in the log"
    host = f" on {record.machine}" if record.machine else ""
    incomplete = "" if record.complete else ", incomplete"
    return f"OOM kill{time}{host}{incomplete}"


def _said(episode: OomEpisode) -> str:
    return fill(episode.verdict.text, episode.verdict.evidence)


def _notes(episode: OomEpisode, width: int) -> Iterator[str]:
    for note in episode.verdict.notes:
        yield from wrap(fill(note.text, note.evidence), width)


def _killed(episode: OomEpisode, width: int) -> Iterator[str]:
    record = episode.record
    killed = killed_of(record)
    if not killed:
        yield _nobody(record)
    for victim in killed[:_KILLED_SHOWN]:
        yield from wrap(_victim(record, victim), width)
    if len(killed) > _KILLED_SHOWN:
        yield f"and {len(killed) - _KILLED_SHOWN} more"


def _nobody(record: OomRecord) -> str:
    if record.panicked:
        return "nobody: the kernel panicked"
    return "nobody: no process could be killed" if record.no_killable_process else "not in the log"


def _victim(record: OomRecord, victim: Victim) -> str:
    held = {
        "anon": victim.anon_rss_bytes,
        "file": victim.file_rss_bytes,
        "shmem": victim.shmem_rss_bytes,
        "swap": record.swap_bytes(victim),
        "page tables": victim.page_table_bytes,
    }
    sizes = ", ".join(f"{format_bytes(size)} {kind}" for kind, size in held.items() if size)
    parts = [
        f"{victim.comm or UNKNOWN} (pid {victim.pid})",
        f"uid {victim.uid}" if victim.uid is not None else "",
        f"oom_score_adj {victim.oom_score_adj}" if victim.oom_score_adj is not None else "",
        f"held {sizes}" if sizes else ("" if any(size is None for size in held.values()) else "held nothing"),
    ]
    return ", ".join(part for part in parts if part)


def _outcome(record: OomRecord) -> str:
    selected, pids = record.selected, {victim.pid for victim in record.victims}
    reaped = [each.pid for each in record.reaped if each.pid not in pids]
    sacrificed = selected is not None and bool(pids) and selected.pid not in pids
    parts = [
        f"with its whole group {short_ids(record.group_memcg)} (memory.oom.group)" if record.group_memcg else "",
        _sacrificed(selected) if selected and sacrificed else "",
        f"{len(record.skipped_pids)} were exiting already" if record.skipped_pids else "",
        f"{len(reaped)} more processes reaped whose kill is not in the log" if reaped else "",
        f"{record.suppressed_dumps} dumps before this one suppressed by the kernel" if record.suppressed_dumps else "",
    ]
    return "; ".join(part for part in parts if part)


def _sacrificed(selected: Selected) -> str:
    who = f"{selected.comm or UNKNOWN} (pid {selected.pid}, score {selected.score})"
    return f"{who} was chosen; a child or another thread of it was killed"


def _owner(episode: OomEpisode) -> str:
    path, container = episode.victim_path, episode.container
    if path is None:
        return ""
    inner = short_id(path.container_id) if path.container_id else None
    runtime = path.runtime or (container.runtime if container else None)
    parts = [
        container.name if container and container.name else None,
        " ".join(part for part in (runtime, inner) if part) if inner else None,
        f"inside {short_id(path.outer_container_id)}" if path.outer_container_id else None,
        f"LXC {path.lxc_name}" if path.lxc_name else None,
        f"pod {path.pod_uid} ({path.qos})" if path.pod_uid else None,
        f"image {container.image}" if container and container.image else None,
        f"unit {episode.unit}" if episode.unit and not inner else None,
        f"of user {episode.owner_uid}" if episode.owner_uid is not None else None,
    ]
    return ", ".join(part for part in parts if part) or "no container"


def _limit(episode: OomEpisode) -> str:
    record = episode.record
    if record.constraint is None:
        return "not in the log"
    if record.constraint != "memcg":
        return _SCOPES[record.constraint]
    counter = counter_of(record)
    figures = f"{format_bytes(counter.usage_bytes)} of {_room(counter)}" if counter else None
    parts = [
        f"{record.limiting_counter or 'memory'} of {short_ids(record.oom_memcg)}",
        _LEVELS.get(episode.limit_level or ""),
        figures,
        f"hit {format_count(counter.failcnt)} times" if counter and counter.failcnt else None,
    ]
    return ", ".join(part for part in parts if part)


def _room(counter: MemoryCounter) -> str:
    return "no limit" if counter.limit_bytes is None else format_bytes(counter.limit_bytes)


def _counters(record: OomRecord) -> Iterator[str]:
    """All of them, where there is more than one with a limit."""
    named = {"memory": record.memory, "memory+swap": record.memory_swap, "kmem": record.kmem, "swap": record.swap}
    known = {name: counter for name, counter in named.items() if counter is not None}
    if sum(not counter.unlimited for counter in known.values()) < 2:
        return
    for name, counter in known.items():
        mark = "  <- no room" if name == record.limiting_counter else ""
        yield f"{name:<12}{format_bytes(counter.usage_bytes):>10} of {_room(counter)}{mark}"


def _usage(fields: dict[str, Value]) -> str | None:
    return usage_row(fields) if fields.get("usage_by_kind") else None


def _processes(episode: OomEpisode, width: int) -> Iterable[str]:
    """The largest, by anon memory and swap together."""
    processes = episode.facts.processes
    if len(processes) < 2 or not episode.record.tasks:
        return []
    killed = {victim.pid for victim in killed_of(episode.record)}
    shown = [*processes[:_PROCESSES_SHOWN], *(each for each in processes[_PROCESSES_SHOWN:] if each.pid in killed)]
    names = [f"{each.comm or UNKNOWN} ({each.pid})" for each in shown[: 2 * _PROCESSES_SHOWN]]
    figures = [
        (format_bytes(each.size_bytes) if each.size_bytes is not None else f"{each.size:,} pages").rjust(11)
        + ("  <- killed" if each.pid in killed else "")
        for each in shown[: 2 * _PROCESSES_SHOWN]
    ]
    rest = len(processes) - len(names)
    return [*columns(names, figures, width), *([f"and {rest} more"] if rest > 0 else [])]


def _host(episode: OomEpisode) -> str:
    facts, host = episode.facts, episode.record.host
    if host is None:
        return ""
    free = facts.free_bytes
    parts = [
        f"{format_bytes(free)} free" if free is not None else "",
        f"of {format_bytes(host.ram_pages * facts.page_size_bytes)}"
        if host.ram_pages and facts.page_size_bytes
        else "",
        f"({facts.free_share:.0%})" if facts.free_share is not None else "",
    ]
    swap = (
        f", swap {format_bytes(host.swap_free_bytes)} free of {format_bytes(host.swap_total_bytes)}"
        if host.swap_total_bytes
        else ", no swap"
        if host.swap_total_bytes == 0
        else ""
    )
    return (" ".join(part for part in parts if part) + swap).removeprefix(", ")


def _trigger(episode: OomEpisode) -> str:
    trigger = episode.record.trigger
    if trigger is None:
        return ""
    order = trigger.order
    pages = f"asking for {1 << order} page{'s' if order else ''}" if order is not None and 0 <= order < 32 else ""
    parts = [
        f"by {trigger.comm or UNKNOWN}" + (f" (pid {trigger.tid})" if trigger.tid is not None else ""),
        pages,
        trigger.gfp_mask or "",
    ]
    return ", ".join(part for part in parts if part)


def _cpuset(episode: OomEpisode) -> str:
    """Only where it is of another than the victim's container."""
    other = episode.cpuset_container_id
    if other is None or (episode.victim_path and episode.victim_path.container_id == other):
        return ""
    return f"the asking process is of container {short_id(other)}"
