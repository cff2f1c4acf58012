"""The block of an `oom_kill`, for a person at three in the morning: facts and figures, no advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from rtdebug.render.columns import wrap
from rtdebug.render.escape import display_width, escape
from rtdebug.render.units import UNKNOWN, format_bytes, format_duration, format_time, short_path
from rtdebug.tracing.line import EventLine, Value

Fields = Mapping[str, Value]

_LABEL_COLUMNS = 12
_BAR_COLUMNS = 24
_MARK = "  <- limit hit"
_SPARKS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉"

_HELD = {
    "anon": "anon_rss_bytes",
    "file": "file_rss_bytes",
    "shmem": "shmem_rss_bytes",
    "swap": "swap_bytes",
}
# memory.stat in the order that explains a kill; v1's names beside v2's
_STAT_KEYS = (
    *("anon", "rss", "file", "cache", "shmem", "kernel", "kernel_stack", "pagetables", "sock", "slab"),
    *(
        "slab_unreclaimable",
        "swap",
        "swapcached",
        "zswap",
        "file_dirty",
        "dirty",
        "file_writeback",
        "writeback",
    ),
    *("inactive_file", "unevictable", "anon_thp", "rss_huge"),
)
_STAT_ALWAYS = ("anon", "rss", "file", "cache", "shmem")
_SOURCES = {
    "kernel_log": "the kernel's dump at the kill",
    "cgroup_files": "the cgroup's files, {age} after the kill",
    "last_sample": "the last sample, {age} before the kill",
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
}


def render_oom(line: EventLine, width: int = 80) -> str:
    """Draw the report of an `oom_kill` line, at most `width` columns wide, without a final newline.

    It takes what OomReport.to_fields gave, also from a file: a field of another type counts as unknown.
    """
    fields = line.fields
    rows = [
        f"OOM kill at {format_time(line.time_ns)}",
        *_labelled("victim", _victim(line), width),
        *_labelled("command", _text(fields, "cmdline"), width),
        *_labelled("container", _container(line), width),
        *_labelled("cgroup", line.cgroup, width),
        *_labelled("limit", _limit(fields), width),
        *_block("cgroups", _tree(fields, width - _LABEL_COLUMNS - 2)),
        *_block("victim held", _held(fields)),
        *_labelled("triggered", _trigger(line), width),
        *_labelled("memory.stat", _stat(fields), width),
        *_block("history", _history(fields, width - _LABEL_COLUMNS - 2)),
        *(f"  {row}" for row in wrap(_fact(line), width - 2)),
    ]
    return "\n".join(escape(row, width) for row in rows)


def _victim(line: EventLine) -> str:
    fields = line.fields
    inside = f", {line.ns_pid} inside" if line.ns_pid not in (None, line.pid) else ""
    uid, adj = _number(fields, "uid"), _number(fields, "oom_score_adj")
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
    name = line.container_name or line.container_id
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
    constraint, cgroup = _text(fields, "constraint"), _text(fields, "oom_memcg")
    if constraint in _CONSTRAINTS:
        return f"none: {constraint}"
    if cgroup is None and fields.get("limit_source") is None:
        return "not known which"
    failcnt = _number(fields, "failcnt")
    kind = _text(fields, "limit_kind") or "memory"
    parts = [
        f"{kind} of {_short(cgroup)}",
        _share(_number(fields, "usage_bytes"), _number(fields, "limit_bytes")),
        f"hit {failcnt} times" if failcnt else None,
        _OWNERS.get(_text(fields, "limit_owner") or ""),
        _LIMIT_SOURCES.get(_text(fields, "limit_source") or ""),
    ]
    return ", ".join(part for part in parts if part)


def _share(usage: int | None, limit: int | None) -> str | None:
    if usage is None and limit is None:
        return None
    return (
        f"{format_bytes(usage)} of {format_bytes(limit)}"
        if limit is not None
        else f"{format_bytes(usage)} used"
    )


def _tree(fields: Fields, width: int) -> Iterator[str]:
    """The levels from the root down, each with usage and limit; names are cut, figures never."""
    levels = [level for level in reversed(_list(fields, "memcg_levels")) if isinstance(level, dict)]
    figures = [_level_figures(level, fields) for level in levels]
    names = list(_level_names(levels))
    room = max(16, width - max((display_width(each) for each in figures), default=0) - 2)
    column = min(room, max((display_width(name) for name in names), default=0))
    for name, figure in zip(names, figures, strict=True):
        shown = escape(name, column)
        yield f"{shown}{' ' * (column - display_width(shown))}  {figure}"


def _level_names(levels: Sequence[Fields]) -> Iterator[str]:
    above = ""
    for depth, level in enumerate(levels):
        path = _text(level, "cgroup")
        own = path[len(above) :] if path and above and path.startswith(above) else path
        name = escape(_short((own or "?").lstrip("/") or "/"))
        # below a deep path the drawing must leave room for the name
        yield name if depth == 0 else f"{'  ' * (min(depth, 6) - 1)}└ {name}"
        above = path.rstrip("/") + "/" if path else ""


def _level_figures(level: Fields, fields: Fields) -> str:
    usage, limit = _number(level, "usage_bytes"), _number(level, "limit_bytes")
    used = format_bytes(usage)
    hit = _text(level, "cgroup") is not None and level.get("cgroup") == fields.get("oom_memcg")
    if usage is None and limit is None:
        return f"{used:>9}"
    text = f"{used:>9} of {format_bytes(limit)}" if limit is not None else f"{used:>9}, no limit"
    return text + (_MARK if hit else "")


def _held(fields: Fields) -> Iterator[str]:
    """What the victim had: each kind with its share of RSS and swap together."""
    held = {kind: _number(fields, key) for kind, key in _HELD.items()}
    total = sum(size for size in held.values() if size is not None)
    for kind, size in held.items():
        if size is None:
            yield f"{kind:<6}{UNKNOWN:>11}"
        else:
            share = size / total if total else 0.0
            yield f"{kind:<6}{format_bytes(size):>11}{share:>6.0%}  {_bar(share)}".rstrip()
    tables, mapped = _number(fields, "page_table_bytes"), _number(fields, "total_vm_bytes")
    if tables is not None or mapped is not None:
        yield f"page tables {format_bytes(tables)}, mapped {format_bytes(mapped)}"


def _bar(share: float) -> str:
    eighths = round(min(1.0, max(0.0, share)) * _BAR_COLUMNS * 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _trigger(line: EventLine) -> str | None:
    fields = line.fields
    pid, tid = _number(fields, "trigger_pid"), _number(fields, "trigger_tid")
    comm, order = _text(fields, "trigger_comm"), _number(fields, "order")
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
    pages = (
        f"asking for {1 << order} page{'s' if order else ''}"
        if order is not None and 0 <= order < 32
        else None
    )
    parts = [who, pages, _text(fields, "gfp_mask"), _cgroup_of_trigger(fields)]
    return ", ".join(part for part in parts if part)


def _cgroup_of_trigger(fields: Fields) -> str | None:
    cgroup = _text(fields, "trigger_cgroup")
    return f"in {_short(cgroup)}" if cgroup else None


def _stat(fields: Fields) -> str | None:
    stat = fields.get("memory_stat")
    if not isinstance(stat, dict):
        return None
    figures = [
        f"{key} {format_bytes(value)}"
        for key in _STAT_KEYS
        if (value := _stat_value(stat, key)) is not None and (value or key in _STAT_ALWAYS)
    ]
    source = _SOURCES.get(_text(fields, "stat_source") or "", "").format(
        age=format_duration(_number(fields, "stat_age_ns"))
    )
    cgroup = _text(fields, "stat_cgroup")
    where = f" ({source}{f', of {_short(cgroup)}' if cgroup else ''})" if source else ""
    return f"{', '.join(figures)}{where}" if figures else None


def _stat_value(stat: Fields, key: str) -> int | None:
    """v1 counts the cgroups below in total_x only."""
    total = _number(stat, f"total_{key}")
    return _number(stat, key) if total is None else total


def _history(fields: Fields, width: int) -> Iterator[str]:
    samples = [
        (age, usage)
        for sample in _list(fields, "history")
        if isinstance(sample, dict)
        and (age := _number(sample, "age_ns")) is not None
        and (usage := _number(sample, "usage_bytes")) is not None
    ]
    if len(samples) < 2:
        return
    usages = [usage for _, usage in samples]
    (first_ns, first), (last_ns, last) = samples[0], samples[-1]
    yield sparkline(usages, min(width, 60))
    yield (
        f"{format_bytes(first)} to {format_bytes(last)} in {format_duration(first_ns - last_ns)}, "
        f"the last {format_duration(last_ns)} before the kill"
    )
    if min(usages) < min(first, last) or max(usages) > max(first, last):
        yield f"between {format_bytes(min(usages))} and {format_bytes(max(usages))}"


def sparkline(values: Sequence[int], width: int) -> str:
    """One character per column, from 0 to the largest value; a column shows the largest of its values."""
    columns = min(width, len(values))
    bounds = [index * len(values) // columns for index in range(columns + 1)]
    peaks = [max(values[start:end]) for start, end in pairwise(bounds)]
    top = max(max(peaks), 1)
    return "".join(_SPARKS[max(0, min(7, peak * 8 // top - (peak == top)))] for peak in peaks)


def _fact(line: EventLine) -> str:
    """One sentence that says what happened, from the figures alone."""
    fields = line.fields
    constraint = _text(fields, "constraint")
    held = {kind: _number(fields, key) for kind, key in _HELD.items()}
    resident = [size for kind, size in held.items() if size is not None and kind != "swap"]
    if constraint in _CONSTRAINTS:
        start = _CONSTRAINTS[constraint]
    elif (limit := _number(fields, "limit_bytes")) is not None:
        kind = "" if fields.get("limit_kind") in (None, "memory") else f"{_text(fields, 'limit_kind')} "
        owner = _short(_text(fields, "oom_memcg"))
        start = f"The {kind}limit of {format_bytes(limit)} of {owner} was reached."
    elif constraint == "memcg":
        start = "A cgroup's limit was reached."
    else:
        start = "Which limit was hit is not known."
    if not resident:
        return f"{start} What {_name(line.comm)} held is not known."
    total = sum(resident)
    most, size = max(
        ((kind, held[kind] or 0) for kind in ("anon", "file", "shmem")), key=lambda item: item[1]
    )
    share = f", {size / total:.0%} of it {most}" if total else ""
    return f"{start} {_name(line.comm)} held {format_bytes(total)} of RSS{share}{_swapped(held['swap'])}."


def _swapped(size: int | None) -> str:
    return f", and {format_bytes(size)} of swap" if size else ""


def _name(comm: str | None) -> str:
    return escape(comm) if comm else "the victim"


def _short(path: str | None) -> str:
    """A path for a sentence. The line `cgroup` has it whole."""
    return short_path(path) if path else "a cgroup"


def _labelled(label: str, text: str | None, width: int) -> Iterator[str]:
    if text:
        yield from _block(label, wrap(text, width - _LABEL_COLUMNS - 2))


def _block(label: str, rows: Iterable[str]) -> Iterator[str]:
    for index, row in enumerate(rows):
        yield f"  {label if index == 0 else '':<{_LABEL_COLUMNS}}{row}"


def _number(fields: Fields, key: str) -> int | None:
    value = fields.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(fields: Fields, key: str) -> str | None:
    value = fields.get(key)
    return value if isinstance(value, str) and value else None


def _list(fields: Fields, key: str) -> list[Value]:
    value = fields.get(key)
    return value if isinstance(value, list) else []
