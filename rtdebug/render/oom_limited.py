"""Rows of an OOM block about the cgroup whose limit was hit: what its usage is made of, and who holds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rtdebug.render.block import Fields, columns, list_of, number_of, short_ids, text_of
from rtdebug.render.escape import escape
from rtdebug.render.units import UNKNOWN, format_bytes, format_duration
from rtdebug.tracing.line import EventLine

_TASKS_SHOWN = 5
_SIBLINGS_SHOWN = 5
_SIBLINGS_READ = 20
"""A list of so many is cut: its sum says nothing."""
_TELLING_SHARE = 0.01
_NOT_BY_CHANCE = 0.05
"""The cgroups are not read at one instant."""
# usage_by_kind: the key, what it is called among others, and in the sentence
_KINDS = (
    ("anon_bytes", "anon", "anon"),
    ("shmem_bytes", "shared memory (tmpfs, /dev/shm: killing a process frees no file there)", "shared memory"),
    ("file_bytes", "page cache", "page cache"),
    ("kernel_bytes", "kernel", "kernel memory"),
    ("swap_bytes", "swap", "swap"),
    ("other_bytes", "not accounted", "not accounted for"),
)
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
_IN_USAGE = frozenset({*_STAT_ALWAYS, "kernel"})
_SOURCES = {
    "kernel_log": "the kernel's dump at the kill",
    "cgroup_files": "the cgroup's files, {age} after the kill",
    "last_sample": "the last sample, {age} before the kill",
}


def usage_row(fields: Fields) -> str | None:
    """What the limited cgroup's usage adds up to."""
    kinds = kinds_of(fields)
    total = sum(kinds.values())
    if not total:
        return None
    names = {key: name for key, name, _ in _KINDS}
    if _is_unknown(fields, "shmem_bytes"):
        names["file_bytes"] = "page cache with shared memory"
    if _is_unknown(fields, "kernel_bytes"):
        names["other_bytes"] = "not accounted (kernel memory is not known)"
    parts = [
        f"{format_bytes(size)} {names[key]}"
        for key, size in kinds.items()
        if size and (key != "other_bytes" or size > total * _TELLING_SHARE)
    ]
    is_exact = text_of(fields, "stat_source") == "kernel_log" or not _source(fields)
    of_all = "" if _is_unknown(fields, "other_bytes") else f"of {format_bytes(total)}: "
    return f"{of_all}{', '.join(parts)}{'' if is_exact else f' ({_source(fields)})'}"


def kinds_of(fields: Fields) -> dict[str, int]:
    """The known parts of usage_by_kind."""
    kinds = fields.get("usage_by_kind")
    if not isinstance(kinds, dict):
        return {}
    sizes = {key: number_of(kinds, key) for key, _, _ in _KINDS}
    return {key: size for key, size in sizes.items() if size is not None and size >= 0}


def _is_unknown(fields: Fields, kind: str) -> bool:
    return kind not in kinds_of(fields)


def stat_row(fields: Fields) -> str | None:
    """What memory.stat says beyond the usage row."""
    stat = fields.get("memory_stat")
    if not isinstance(stat, dict):
        return None
    summed = bool(kinds_of(fields)) and fields.get("stat_cgroup") == fields.get("oom_memcg")
    figures = [
        f"{key} {format_bytes(value)}"
        for key in _STAT_KEYS
        if (value := _stat_value(stat, key)) is not None and (value or key in _STAT_ALWAYS)
        if not (summed and key in _IN_USAGE)
    ]
    source, cgroup = _source(fields), text_of(fields, "stat_cgroup")
    where = f" ({source}{f', of {short_ids(cgroup)}' if cgroup else ''})" if source else ""
    return f"{', '.join(figures)}{where}" if figures else None


def _source(fields: Fields) -> str:
    """Where memory.stat is from."""
    age = format_duration(number_of(fields, "stat_age_ns"))
    return _SOURCES.get(text_of(fields, "stat_source") or "", "").format(age=age)


def _stat_value(stat: Fields, key: str) -> int | None:
    """v1 counts the cgroups below in total_x only."""
    total = number_of(stat, f"total_{key}")
    return number_of(stat, key) if total is None else total


def sibling_rows(line: EventLine, width: int) -> Iterator[str]:
    """The children of the limited cgroup, and what is in none of them."""
    siblings = [each for each in list_of(line.fields, "siblings") if isinstance(each, dict)]
    victims = [each for each in siblings if _is_of_victim(each, line)][:1]
    others = [each for each in siblings if each not in victims][: _SIBLINGS_SHOWN - len(victims)]
    shown = [each for each in siblings if each in victims or each in others]
    names = [_sibling_name(each, line.fields) for each in shown]
    figures = [
        f"{format_bytes(number_of(each, 'usage_bytes')):>9}{'  <- the victim' if _is_of_victim(each, line) else ''}"
        for each in shown
    ]
    rest = _in_no_child(siblings, line.fields)
    if rest is not None:
        names.append("itself, or left by removed cgroups")
        figures.append(f"{format_bytes(rest):>9}")
    yield from columns(names, figures, width)


def _in_no_child(siblings: Sequence[Fields], fields: Fields) -> int | None:
    usage, sizes = number_of(fields, "usage_bytes"), [number_of(each, "usage_bytes") for each in siblings]
    known = [size for size in sizes if size is not None]
    if usage is None or len(known) != len(sizes) or not 0 < len(sizes) < _SIBLINGS_READ:
        return None
    rest = usage - sum(known)
    return rest if text_of(fields, "limit_kind") == "memory" and rest > usage * _NOT_BY_CHANCE else None


def _sibling_name(sibling: Fields, fields: Fields) -> str:
    """Its container's name or id, with the cgroup where that says more."""
    cgroup, above = text_of(sibling, "cgroup") or "?", text_of(fields, "oom_memcg") or ""
    inner = short_ids(cgroup.removeprefix(above.rstrip("/") + "/"))
    name = text_of(sibling, "container_name")
    return inner if name is None or name in inner else f"{name} ({inner})"


def _is_of_victim(sibling: Fields, line: EventLine) -> bool:
    cgroup = text_of(sibling, "cgroup")
    return cgroup is not None and f"{line.cgroup}/".startswith(f"{cgroup}/")


def task_rows(line: EventLine, width: int) -> Iterator[str]:
    """The largest processes and the victim, when there are several."""
    tasks = [task for task in list_of(line.fields, "tasks") if isinstance(task, dict)]
    if len(tasks) < 2:
        return
    shown = tasks[:_TASKS_SHOWN] + [task for task in tasks[_TASKS_SHOWN:] if number_of(task, "pid") == line.pid]
    marks = ["", *("  <- killed" if number_of(task, "pid") == line.pid else "" for task in shown)]
    figures = ["  ".join(row) + mark for row, mark in zip(_task_table(shown), marks, strict=True)]
    yield from columns(["comm", *(text_of(task, "comm") or UNKNOWN for task in shown)], figures, width)


def _task_table(tasks: Sequence[Fields]) -> Iterator[tuple[str, ...]]:
    """A heading and a row for each, all cells of a column as wide; swap only where some is used."""
    cells = {
        "pid": [_cell(number_of(task, "pid")) for task in tasks],
        "RSS": [format_bytes(number_of(task, "rss_bytes")) for task in tasks],
        "swap": [format_bytes(number_of(task, "swap_bytes")) for task in tasks],
        "oom_score_adj": [_cell(number_of(task, "oom_score_adj")) for task in tasks],
    }
    if not any(number_of(task, "swap_bytes") for task in tasks):
        del cells["swap"]
    padded = []
    for name, values in cells.items():
        width = max(map(len, (name, *values)))
        padded.append([each.rjust(width) for each in (name, *values)])
    return zip(*padded, strict=True)


def _cell(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def dominant_kind(fields: Fields) -> str:
    """The kind that most of the limited cgroup's usage is of."""
    kinds = kinds_of(fields)
    total = sum(kinds.values())
    if not total or _is_unknown(fields, "other_bytes"):
        return ""
    key = max(kinds, key=lambda each: kinds[each])
    name = next(name for each, _, name in _KINDS if each == key)
    if key == "file_bytes" and _is_unknown(fields, "shmem_bytes"):
        name = "page cache with shared memory"
    return f" {kinds[key] / total:.0%} of the usage is {name}."


def small_part(fields: Fields, resident: int) -> float | None:
    """The victim's share of what the limit counts, when it is less than half."""
    usage, kind = number_of(fields, "usage_bytes"), text_of(fields, "limit_kind")
    if not usage or usage < 0 or kind not in ("memory", "memory+swap") or text_of(fields, "constraint") != "memcg":
        return None
    held = resident + (number_of(fields, "swap_bytes") or 0 if kind == "memory+swap" else 0)
    return held / usage if held < usage / 2 else None


def neighbour(line: EventLine) -> str:
    """The sibling that holds more than half, when that is not the victim's."""
    usage = number_of(line.fields, "usage_bytes") or 0
    for sibling in list_of(line.fields, "siblings"):
        if isinstance(sibling, dict) and not _is_of_victim(sibling, line):
            size = number_of(sibling, "usage_bytes") or 0
            if usage > 0 and size > usage / 2:
                name = escape(_sibling_name(sibling, line.fields))
                return f" The sibling {name} held {format_bytes(size)}, {size / usage:.0%}."
    return ""
