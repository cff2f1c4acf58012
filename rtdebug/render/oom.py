"""The block of an `oom_kill`, for a person at three in the morning: facts and figures, no advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rtdebug.render.block import (
    LABEL_COLUMNS,
    Fields,
    block,
    columns,
    labelled,
    list_of,
    number_of,
    short_ids,
    text_of,
)
from rtdebug.render.columns import wrap
from rtdebug.render.escape import escape
from rtdebug.render.oom_limited import (
    dominant_kind,
    neighbour,
    sibling_rows,
    small_part,
    stat_row,
    task_rows,
    usage_row,
)
from rtdebug.render.units import UNKNOWN, format_bytes, format_duration, format_time
from rtdebug.tracing.line import EventLine, Value

_BAR_COLUMNS = 24
_MARK = "  <- limit hit"
_COMMAND_ROWS = 2
_LEVELS_SHOWN = 6
_SPARKS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉"

_HELD = {
    "anon": "anon_rss_bytes",
    "file": "file_rss_bytes",
    "shmem": "shmem_rss_bytes",
    "swap": "swap_bytes",
}
_LIMIT_SOURCES = {
    "kernel_log": "said by the kernel log",
    "out_of_memory": "said by out_of_memory()",
    "at_limit": "inferred: it is the full one on the victim's path",
}
_OWNERS = {
    "container": "the container's own",
    "below": "below the container",
    "above": "above the container",
}
_CONSTRAINTS = {
    "global": "No cgroup limit was hit: the host itself was out of memory.",
    "cpuset": "No cgroup limit was hit: the memory nodes that the cpuset allows were full.",
    "mempolicy": "No cgroup limit was hit: the memory nodes that the memory policy allows were full.",
    "sysrq": "No cgroup limit was hit: somebody asked for the kill (SysRq f).",
}


def render_oom(line: EventLine, width: int = 80) -> str:
    """Draw the report of an `oom_kill` line, at most `width` columns wide, without a final newline.

    It takes what OomReport.to_fields gave, also from a file: a field of another type counts as unknown.
    """
    fields = line.fields
    rows = [
        f"OOM kill at {format_time(line.time_ns)}",
        *labelled("victim", _victim(line), width),
        *labelled("command", text_of(fields, "cmdline"), width, _COMMAND_ROWS),
        *labelled("container", _container(line), width),
        *labelled("cgroup", short_ids(line.cgroup) if line.cgroup else None, width),
        *labelled("limit", _limit(fields), width),
        *block("cgroups", _tree(fields, width - LABEL_COLUMNS - 2)),
        *labelled("usage", usage_row(fields), width),
        *block("siblings", sibling_rows(line, width - LABEL_COLUMNS - 2)),
        *block("processes", task_rows(line, width - LABEL_COLUMNS - 2)),
        *block("victim held", [*_held(fields), *wrap(_unheld(fields), width - LABEL_COLUMNS - 2)]),
        *labelled("triggered", _trigger(line), width),
        *labelled("memory.stat", stat_row(fields), width),
        *block("history", _history(fields, width - LABEL_COLUMNS - 2)),
        *(f"  {row}" for row in wrap(_fact(line), width - 2)),
    ]
    return "\n".join(escape(row, width) for row in rows)


def _victim(line: EventLine) -> str:
    fields = line.fields
    inside = f", {line.ns_pid} inside" if line.ns_pid not in (None, line.pid) else ""
    uid, adj = number_of(fields, "uid"), number_of(fields, "oom_score_adj")
    parts = [
        f"{line.comm or UNKNOWN} (pid {line.pid}{inside})",
        f"uid {uid}" if uid is not None else "",
        f"oom_score_adj {adj}" if adj is not None else "",
        "killed with its whole group (memory.oom.group)" if fields.get("oom_group") is True else "",
    ]
    return ", ".join(part for part in parts if part)


def _container(line: EventLine) -> str | None:
    init = {True: "its init process", False: "a worker, not its init process"}
    role = line.fields.get("victim_is_init")
    name = line.container_name or (short_ids(line.container_id) if line.container_id else None)
    identity = [line.runtime, line.container_id[:12] if line.container_id and line.container_name else None]
    known = " ".join(part for part in identity if part)
    if not name:
        return None
    parts = [
        f"{name} ({known})" if known else name,
        init[role] if isinstance(role, bool) else None,
        "in a cgroup below the container's" if line.fields.get("nested_cgroup") is True else None,
    ]
    return ", ".join(part for part in parts if part)


def _limit(fields: Fields) -> str:
    constraint, cgroup = text_of(fields, "constraint"), text_of(fields, "oom_memcg")
    if constraint in _CONSTRAINTS:
        return f"none: {constraint}"
    if cgroup is None and fields.get("limit_source") is None:
        return "not known which"
    failcnt = number_of(fields, "failcnt")
    kind = text_of(fields, "limit_kind") or "memory"
    parts = [
        f"{kind} of {short_ids(cgroup)}",
        _share(number_of(fields, "usage_bytes"), number_of(fields, "limit_bytes")),
        f"hit {failcnt} times" if failcnt else None,
        _OWNERS.get(text_of(fields, "limit_owner") or ""),
        _LIMIT_SOURCES.get(text_of(fields, "limit_source") or ""),
    ]
    return ", ".join(part for part in parts if part)


def _share(usage: int | None, limit: int | None) -> str | None:
    if usage is None and limit is None:
        return None
    return f"{format_bytes(usage)} of {format_bytes(limit)}" if limit is not None else f"{format_bytes(usage)} used"


def _tree(fields: Fields, width: int) -> Iterator[str]:
    """The levels from the root down, each with usage and limit; names are cut, figures never."""
    levels = _telling([level for level in list_of(fields, "memcg_levels") if isinstance(level, dict)], fields)
    levels.reverse()
    yield from columns(_level_names(levels), [_level_figures(level, fields) for level in levels], width)


def _telling(levels: list[dict[str, Value]], fields: Fields) -> list[dict[str, Value]]:
    """Of a deep path the victim's cgroup and those that have a limit, before others."""

    def rank(index: int) -> tuple[bool, bool, bool, int]:
        level = levels[index]
        return not _is_hit(level, fields), index > 0, number_of(level, "limit_bytes") is None, index

    kept = sorted(range(len(levels)), key=rank)[:_LEVELS_SHOWN]
    return [levels[index] for index in sorted(kept)]


def _level_names(levels: Sequence[Fields]) -> Iterator[str]:
    above = ""
    for depth, level in enumerate(levels):
        path = text_of(level, "cgroup")
        own = path[len(above) :] if path and above and path.startswith(above) else path
        name = escape(short_ids((own or "?").lstrip("/") or "/"))
        # below a deep path the drawing must leave room for the name
        yield name if depth == 0 else f"{'  ' * (min(depth, 6) - 1)}└ {name}"
        above = path.rstrip("/") + "/" if path else ""


def _level_figures(level: Fields, fields: Fields) -> str:
    usage, limit = number_of(level, "usage_bytes"), number_of(level, "limit_bytes")
    used = format_bytes(usage)
    if usage is None and limit is None:
        return f"{used:>9}"
    room = f" of {format_bytes(limit)}" if limit is not None else ", no limit"
    return f"{used:>9}{room}" + (_MARK if _is_hit(level, fields) else "")


def _is_hit(level: Fields, fields: Fields) -> bool:
    return text_of(level, "cgroup") is not None and level.get("cgroup") == fields.get("oom_memcg")


def _held(fields: Fields) -> Iterator[str]:
    """What the victim had: each kind with its share of RSS and swap together."""
    held = {kind: size for kind, key in _HELD.items() if (size := number_of(fields, key)) is not None and size > 0}
    total = sum(held.values())
    for kind, size in held.items():
        share = size / total
        yield f"{kind:<6}{format_bytes(size):>11}{share:>6.0%}  {_bar(share)}".rstrip()


def _unheld(fields: Fields) -> str:
    """The kinds of which it had nothing or that are not known, and what is no RSS."""
    sizes = {kind: number_of(fields, key) for kind, key in _HELD.items()}
    rest = {kind: size for kind, size in sizes.items() if size is None or size <= 0}
    more = {"page tables": number_of(fields, "page_table_bytes"), "mapped": number_of(fields, "total_vm_bytes")}
    known = {name: size for name, size in more.items() if size is not None}
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in (rest | known).items())


def _bar(share: float) -> str:
    eighths = round(min(1.0, max(0.0, share)) * _BAR_COLUMNS * 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _trigger(line: EventLine) -> str | None:
    fields = line.fields
    pid, tid = number_of(fields, "trigger_pid"), number_of(fields, "trigger_tid")
    comm, order = text_of(fields, "trigger_comm"), number_of(fields, "order")
    if pid is None and tid is None and comm is None:
        return None
    itself = pid == line.pid
    ids = [
        f"pid {pid}" if pid is not None and not itself else "",
        f"thread {tid}" if tid not in (None, pid) else "",
    ]
    known_ids = ", ".join(each for each in ids if each)
    who = "by the victim itself" if itself else f"by {comm or 'a process'}"
    who += f" ({known_ids})" if known_ids else ""
    pages = f"asking for {1 << order} page{'s' if order else ''}" if order is not None and 0 <= order < 32 else None
    parts = [who, pages, text_of(fields, "gfp_mask"), _cgroup_of_trigger(fields)]
    return ", ".join(part for part in parts if part)


def _cgroup_of_trigger(fields: Fields) -> str | None:
    cgroup = text_of(fields, "trigger_cgroup")
    return f"in {short_ids(cgroup)}" if cgroup else None


def _history(fields: Fields, width: int) -> Iterator[str]:
    samples = [
        (age, usage)
        for sample in list_of(fields, "history")
        if isinstance(sample, dict)
        and (age := number_of(sample, "age_ns")) is not None
        and (usage := number_of(sample, "usage_bytes")) is not None
    ]
    if len(samples) < 2:
        return
    usages = [usage for _, usage in samples]
    (first_ns, first), (last_ns, last) = samples[0], samples[-1]
    yield sparkline(usages, min(width, 60))
    end = f"{format_duration(last_ns)} before the kill" if last_ns > 0 else "the kill"
    way = f"{format_bytes(first)} -> {format_bytes(last)} in {format_duration(first_ns - last_ns)} up to {end}"
    yield from wrap(f"{way}, highest {format_bytes(max(usages))}", width)


def sparkline(values: Sequence[int], width: int) -> str:
    """One character per column, from 0 to the largest value; a column shows the largest of its values."""
    count = min(width, len(values))
    bounds = [index * len(values) // count for index in range(count + 1)]
    peaks = [max(values[start:end]) for start, end in pairwise(bounds)]
    top = max(max(peaks), 1)
    return "".join(_SPARKS[max(0, min(7, peak * 8 // top - (peak == top)))] for peak in peaks)


def _fact(line: EventLine) -> str:
    """What happened, in a few sentences, from the figures alone."""
    fields = line.fields
    constraint = text_of(fields, "constraint")
    held = {kind: number_of(fields, key) for kind, key in _HELD.items()}
    resident = [size for kind, size in held.items() if size is not None and kind != "swap"]
    if constraint in _CONSTRAINTS:
        start = _CONSTRAINTS[constraint]
    elif (limit := number_of(fields, "limit_bytes")) is not None:
        kind = "" if fields.get("limit_kind") in (None, "memory") else f"{text_of(fields, 'limit_kind')} "
        owner = short_ids(text_of(fields, "oom_memcg"))
        start = f"The {kind}limit of {format_bytes(limit)} of {owner} was reached."
    elif constraint == "memcg":
        start = "A cgroup's limit was reached."
    else:
        start = "Which limit was hit is not known."
    start += dominant_kind(fields)
    if not resident:
        return f"{start} What {_name(line.comm)} held is not known.{neighbour(line)}"
    total = sum(resident)
    most, size = max(((kind, held[kind] or 0) for kind in ("anon", "file", "shmem")), key=lambda item: item[1])
    share = f", {size / total:.0%} of it {most}" if total else ""
    part = small_part(fields, total)
    # file pages of its RSS may be charged elsewhere
    only = f"at most {part:.0%} of the usage: " if part is not None else ""
    return (
        f"{start} {_name(line.comm)} held {only}{format_bytes(total)} of RSS{share}{_swapped(held['swap'])}."
        f"{neighbour(line)}"
    )


def _swapped(size: int | None) -> str:
    return f", and {format_bytes(size)} of swap" if size else ""


def _name(comm: str | None) -> str:
    return escape(comm) if comm else "the victim"
