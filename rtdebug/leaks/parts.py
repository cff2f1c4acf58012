"""What one segment of a store says of the series in it: buckets for each kind of memory, and what is known beside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rtdebug.leaks.grid import Grid, grids_of, merged
from rtdebug.leaks.segments import Segment
from rtdebug.leaks.series import EARLIEST_NS, NS_PER_S
from rtdebug.leaks.store import read_segment, row_groups

if TYPE_CHECKING:
    from rtdebug.leaks.series import Floats, Ints

Key = tuple[str | None, ...]
"""host, container_id, and for a process its identity."""

CGROUP_KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "anon": (("anon_bytes", "swap_bytes"), ()),
    "file": (("file_bytes",), ("shmem_bytes",)),
    "shmem": (("shmem_bytes",), ()),
    "slab": (("slab_bytes",), ()),
    "kernel": (("kernel_bytes",), ()),
    "kernel_stack": (("kernel_stack_bytes",), ()),
    "page_tables": (("page_tables_bytes",), ()),
    "sock": (("sock_bytes",), ()),
    "usage": (("usage_bytes",), ()),
}
"""Columns that are added and those that are subtracted. What is swapped out is anonymous memory that was not given
back; file_bytes has the shared memory in it. A column that is null counts only if it is the first."""
PROCESS_KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "rss_anon": (("rss_anon_bytes", "swap_bytes"), ()),
    "rss_shmem": (("rss_shmem_bytes",), ()),
    "threads": (("threads",), ()),
    "fds": (("fds",), ()),
}
_BESIDE = ("container_name", "image", "cgroup", "limit_bytes", "usage_bytes", "file_bytes", "comm", "pid")
_MOST_STARTS = 64


@dataclass(slots=True)
class Beside:
    """What is known of one series beside its values: the newest of each column."""

    time_ns: int
    values: dict[str, Any] = field(default_factory=dict)
    starts_ns: set[int] = field(default_factory=set)
    """Starts of the oldest process, one for each restart."""
    left_out: int = 0
    """Samples whose time cannot be."""


@dataclass(frozen=True, slots=True)
class Part:
    """One segment."""

    table: str
    keys: tuple[Key, ...]
    grids: Mapping[str, Grid]
    """By kind; series are indices of `keys`."""
    beside: tuple[Beside, ...]
    notes: tuple[str, ...] = ()
    rows: int = 0
    """Rows of the segment that were read."""


@dataclass(frozen=True, slots=True)
class Presence:
    """Which series are in a segment, and when it begins and ends: enough to know how wide buckets will be at least."""

    keys: frozenset[Key]
    first_ns: int
    last_ns: int


def read_presence(segment: Segment, latest_ns: int) -> Presence:
    """Look which series a segment has: quick, for all but the times is read as dictionaries."""
    import numpy as np

    table, _ = read_segment(segment, ["time_ns", *_key_columns(segment)])
    keys, _ = _codes(table, _key_columns(segment))
    time_ns = _numbers(table, "time_ns")
    time_ns = time_ns[(time_ns >= EARLIEST_NS) & (time_ns <= latest_ns)]
    if not len(time_ns):
        return Presence(frozenset(), 0, 0)
    return Presence(frozenset(keys), int(np.min(time_ns)), int(np.max(time_ns)))


def _key_columns(segment: Segment) -> tuple[str, ...]:
    return ("host", "container_id", *(("identity",) if segment.table == "processes" else ()))


def read_part(segment: Segment, latest_ns: int, least_levels: Mapping[Key, int], after: int = 0) -> Part:
    """Read a segment of cgroups or processes; samples later than `latest_ns` are left out, and counted.

    `least_levels`: what buckets of a series will be joined to anyway, so that there are few from the beginning.
    `after`: rows at the beginning that have been read before.
    """
    # processes of one identity are added up by their time, which may lie across two row groups
    groups = row_groups(segment) if segment.table == "cgroups" else 1
    parts = []
    for group in range(groups):
        table, notes = read_segment(segment, _columns(segment), group if groups > 1 else None)
        skipped = min(after, table.num_rows)
        after -= skipped
        parts.append(_part_of(segment, table.slice(skipped), notes, latest_ns, least_levels))
    return parts[0] if len(parts) == 1 else join_parts(parts)


def _columns(segment: Segment) -> list[str]:
    needed = {name for plus, minus in _kinds(segment).values() for name in (*plus, *minus)}
    return ["time_ns", *_key_columns(segment), *sorted(needed | set(_BESIDE)), "start_time_ns"]


def _kinds(segment: Segment) -> Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    return CGROUP_KINDS if segment.table == "cgroups" else PROCESS_KINDS


def _part_of(
    segment: Segment,
    table: Any,  # noqa: ANN401 - pyarrow has no types
    notes: tuple[str, ...],
    latest_ns: int,
    least_levels: Mapping[Key, int],
) -> Part:
    import numpy as np

    kinds = _kinds(segment)
    identity = segment.table == "processes"
    keys, code = _codes(table, _key_columns(segment))
    time_ns = np.nan_to_num(_numbers(table, "time_ns")).astype(np.int64)  # one without a time is left out as of 1970
    order = np.argsort(time_ns, kind="stable") if np.any(time_ns[1:] < time_ns[:-1]) else None
    beside = _beside(table, code, time_ns, order, len(keys))
    good = (time_ns >= EARLIEST_NS) & (time_ns <= latest_ns)
    for wrong in code[~good].tolist():
        beside[wrong].left_out += 1
    least = np.array([least_levels.get(key, 0) for key in keys], dtype=np.int64)
    if not identity and table.column("anon_bytes").null_count == 0:
        kinds = {kind: columns for kind, columns in kinds.items() if kind != "usage"}  # its kinds say more
    values = {kind: _combined(table, plus, minus)[good] for kind, (plus, minus) in kinds.items()}
    if identity:
        grids = {
            kind: grids_of(*_summed(code[good], time_ns[good], value, kind), least)[kind]
            for kind, value in values.items()
        }
    else:
        grids = grids_of(code[good], time_ns[good] // NS_PER_S, values, least)
    if identity:
        _note_starts(table, code, time_ns, beside)
    return Part(segment.table, keys, grids, tuple(beside), notes, table.num_rows)


def join_parts(parts: Sequence[Part]) -> Part:
    """Put parts of one table together: the same as if they had been one segment."""
    import numpy as np

    keys = tuple(dict.fromkeys(key for part in parts for key in part.keys))
    numbers = {key: number for number, key in enumerate(keys)}
    codes = [np.array([numbers[key] for key in part.keys], dtype=np.int64) for part in parts]
    beside: dict[Key, Beside] = {}
    for part in parts:
        for key, each in zip(part.keys, part.beside, strict=True):
            beside[key] = _newer(beside[key], each) if key in beside else each
    kinds = dict.fromkeys(kind for part in parts for kind in part.grids)
    grids = {}
    for kind in kinds:  # `usage` is not in all: where anon is known of every row, it is not needed
        having = [(part.grids[kind], code) for part, code in zip(parts, codes, strict=True) if kind in part.grids]
        grids[kind] = merged([grid for grid, _ in having], [code for _, code in having], len(keys))
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    table = parts[0].table if parts else ""
    return Part(table, keys, grids, tuple(beside[key] for key in keys), notes, sum(part.rows for part in parts))


def _newer(one: Beside, other: Beside) -> Beside:
    newest = one if one.time_ns >= other.time_ns else other
    return Beside(newest.time_ns, newest.values, one.starts_ns | other.starts_ns, one.left_out + other.left_out)


def _codes(table: Any, names: tuple[str, ...]) -> tuple[tuple[Key, ...], Ints]:  # noqa: ANN401 - pyarrow has no types
    """Return the different keys, and the number of each row's."""
    import numpy as np

    joined, dictionaries = np.zeros(table.num_rows, np.int64), []
    for name in names:
        column = table.column(name).combine_chunks()
        values = [*column.dictionary.to_pylist(), None]
        dictionaries.append(values)
        indices = column.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
        joined = joined * len(values) + indices.astype(np.int64)
    # all combinations are few beside the rows: counting is quicker than sorting
    size = math.prod(map(len, dictionaries))
    if size <= 4 * len(joined) + 1024:
        there = np.zeros(size, np.int64)
        there[joined] = 1
        different = np.flatnonzero(there)
        code = (np.cumsum(there) - 1)[joined]
    else:
        different, code = np.unique(joined, return_inverse=True)
    keys = []
    for number in different.tolist():
        parts: list[str | None] = []
        for values in reversed(dictionaries):
            number, at = divmod(number, len(values))
            parts.append(values[at])
        keys.append(tuple(reversed(parts)))
    return tuple(keys), code


def _numbers(table: Any, name: str) -> Floats:  # noqa: ANN401
    """Return a column of whole numbers; where one is null, all are floats, and that is NaN."""
    import numpy as np

    column = table.column(name)
    numbers = column.to_numpy()
    return numbers if column.null_count == 0 else numbers.astype(np.float64)  # type: ignore[no-any-return]


def _combined(table: Any, plus: tuple[str, ...], minus: tuple[str, ...]) -> Floats:  # noqa: ANN401
    import numpy as np

    value = _numbers(table, plus[0]).astype(np.float64)
    for sign, names in ((1, plus[1:]), (-1, minus)):
        for name in names:
            if table.column(name).null_count < table.num_rows:
                value = value + sign * np.nan_to_num(_numbers(table, name).astype(np.float64))
    return np.where(value < 0, 0.0, value)  # shmem and file are read one after the other


def _summed(code: Ints, time_ns: Ints, value: Floats, kind: str) -> tuple[Ints, Ints, dict[str, Floats]]:
    """Add the processes of one identity that were sampled together; return codes, seconds and sums."""
    import numpy as np

    known = np.isfinite(value)
    code, time_ns, value = code[known], time_ns[known], value[known]
    order = np.lexsort((time_ns, code))
    code, time_ns, value = code[order], time_ns[order], value[order]
    if not len(code):
        return code, time_ns, {kind: value}
    starts = np.flatnonzero(np.append(True, (code[1:] != code[:-1]) | (time_ns[1:] != time_ns[:-1])))
    return code[starts], time_ns[starts] // NS_PER_S, {kind: np.add.reduceat(value, starts)}


def _beside(table: Any, code: Ints, time_ns: Ints, order: Ints | None, series: int) -> list[Beside]:  # noqa: ANN401
    import numpy as np

    last = np.zeros(series, np.int64)
    rows = np.arange(len(code)) if order is None else order
    last[code[rows]] = rows  # the last assignment stays
    names = [name for name in _BESIDE if name in table.schema.names]
    taken = table.select(names).take(last).to_pylist() if series else []
    return [Beside(int(time_ns[row]), values) for row, values in zip(last.tolist(), taken, strict=True)]


def _note_starts(table: Any, code: Ints, time_ns: Ints, beside: list[Beside]) -> None:  # noqa: ANN401
    """For each series the starts of its oldest process, of every sample: where it changes, all were replaced."""
    import numpy as np

    start = _numbers(table, "start_time_ns").astype(np.float64)
    known = np.isfinite(start)
    code, time_ns, start = code[known], time_ns[known], start[known]
    if not len(code):
        return
    order = np.lexsort((start, time_ns, code))
    code, time_ns, start = code[order], time_ns[order], start[order]
    first = np.append(True, (code[1:] != code[:-1]) | (time_ns[1:] != time_ns[:-1]))
    code, start = code[first], start[first]
    new = np.append(True, (code[1:] != code[:-1]) | (start[1:] != start[:-1]))
    for series, at in zip(code[new].tolist(), start[new].tolist(), strict=True):
        if len(beside[series].starts_ns) < _MOST_STARTS:
            beside[series].starts_ns.add(int(at))
