"""Judge everything that is in stores and files: parts are read by workers, put together, and judged by workers.

A worker is a process of this machine or one of a Dask cluster: `concurrent.futures` is all that is needed of either,
and the result is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtdebug.errors import UsageProblem
from rtdebug.leaks.buckets import Buckets, level_for
from rtdebug.leaks.foreign.hints import Hints
from rtdebug.leaks.foreign.reader import read_foreign
from rtdebug.leaks.grid import split
from rtdebug.leaks.parts import Beside, Key, Part, Presence, join_parts, read_part, read_presence
from rtdebug.leaks.rules import DEFAULT, Rules
from rtdebug.leaks.segments import parse_segment
from rtdebug.leaks.series import NS_PER_S, Labels, Series
from rtdebug.leaks.site_growth import SiteGrowth, read_sites
from rtdebug.leaks.verdict import Facts, Judged, judge, judge_series

if TYPE_CHECKING:
    from rtdebug.leaks.segments import Segment

_DAY_NS = 86_400_000_000_000
_BLOCK = 256
_SAME_START_NS = 2_000_000_000
_UNLIMITED = 1 << 60
"""v1 says PAGE_COUNTER_MAX where there is no limit."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Analysis:
    """All verdicts, and what could not be read."""

    judged: tuple[Judged, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """A series that waits for its verdict."""

    labels: Labels
    buckets: Buckets
    facts: Facts


def analyse(
    paths: Sequence[Path],
    rules: Rules = DEFAULT,
    hints: Hints | None = None,
    executor: Executor | None = None,
    progress: Progress = lambda _text: None,
) -> Analysis:
    """Judge the series of stores (folders or segments) and of foreign files. Raises what reading them raises."""
    for path in paths:
        if not path.exists():
            raise UsageProblem(f"there is no {path}", "record a store with `rtdebug leaks record`, or name a file")
    stores = [path for path in paths if path.is_dir() or parse_segment(path)]
    files = [path for path in paths if path not in stores]
    judged: list[Judged] = []
    notes: tuple[str, ...] = ()
    for path in files:
        progress(f"reading {path.name}")
        series = read_foreign(path, hints or Hints())
        judged += _mapped(executor, _judge_all, [(block, rules) for block in _blocks(series)])
    if stores or not files:
        items, notes = gather(stores, executor, progress)
        progress(f"judging {len(items)} series")
        judged += _mapped(executor, _judge_items, [(block, rules) for block in _blocks(items)])
    return Analysis(tuple(judged), notes)


def sites_of(paths: Sequence[Path]) -> list[SiteGrowth]:
    """Read the allocation sites of those paths that are stores; the fastest first."""
    stores = [path for path in paths if path.is_dir() or parse_segment(path)]
    return read_sites(stores) if stores else []


def gather(
    paths: Iterable[Path], executor: Executor | None = None, progress: Progress = lambda _text: None
) -> tuple[list[Item], tuple[str, ...]]:
    """Read stores and return all series in buckets, with notes on what could not be read. Raises UsageProblem."""
    from rtdebug.leaks.store import segments_of

    latest_ns = time.time_ns() + _DAY_NS
    segments = [segment for segment in segments_of(paths) if segment.table in ("cgroups", "processes")]
    progress(f"reading {len(segments)} segments")
    found = list(_map(executor, _look, [(segment, latest_ns) for segment in segments]))
    levels = least_levels(found)
    tasks = [
        (segment, latest_ns, {key: levels[key] for key in presence.keys})
        for segment, presence in zip(segments, found, strict=True)
    ]
    parts = list(_map(executor, _read, tasks))
    return items_of(parts), tuple(dict.fromkeys(note for part in parts for note in part.notes))


def items_of(parts: Sequence[Part]) -> list[Item]:
    """Put parts together: one item for each series and kind that has values which are not all zero."""
    items: list[Item] = []
    cgroups = join_parts([part for part in parts if part.table == "cgroups"])
    processes = join_parts([part for part in parts if part.table == "processes"])
    owners = dict(zip(cgroups.keys, cgroups.beside, strict=True))
    starts: dict[Key, set[int]] = {}
    for key, beside in zip(processes.keys, processes.beside, strict=True):
        starts.setdefault(key[:2], set()).update(beside.starts_ns)
    # all together where the parts are not known: v1 does not tell the kinds of kernel memory apart
    detail = {"usage": "anon", "kernel": "slab"}
    known = {kind: set(cgroups.grids[part].code.tolist()) for kind, part in detail.items() if part in cgroups.grids}
    for kind, grid in cgroups.grids.items():
        for code, buckets in split(grid):
            if code in known.get(kind, ()):
                continue
            key, beside = cgroups.keys[code], cgroups.beside[code]
            items.append(Item(_labels(key, kind, beside, None), buckets, _facts(beside, _restarts(starts.get(key)))))
    for kind, grid in processes.grids.items():
        for code, buckets in split(grid):
            key, beside = processes.keys[code], processes.beside[code]
            labels = _labels(key, kind, owners.get(key[:2], beside), beside)
            items.append(Item(labels, buckets, Facts(restarts_ns=_restarts(beside.starts_ns))))
    return [item for item in items if item.buckets.high.max() > 0]


def least_levels(found: Sequence[Presence]) -> dict[Key, int]:
    """Return for each series a level that it will have at least, from the segments that it is in."""
    first: dict[Key, int] = {}
    last: dict[Key, int] = {}
    for presence in found:
        for key in presence.keys:
            first[key] = min(first.get(key, presence.last_ns), presence.last_ns)
            last[key] = max(last.get(key, presence.first_ns), presence.first_ns)
    levels = {(first[key], last[key]): 0 for key in first}
    for begin, end in levels:
        levels[begin, end] = level_for(begin // NS_PER_S, end // NS_PER_S) if end > begin else 0
    return {key: levels[first[key], last[key]] for key in first}


def _labels(key: Key, kind: str, container: Beside, process: Beside | None) -> Labels:
    values = container.values
    return Labels(
        values.get("container_name") or key[1] or "?",
        kind,
        "count" if kind in ("threads", "fds") else "bytes",
        container_id=key[1],
        image=values.get("image"),
        host=key[0],
        process=key[2] if process else None,
        pid=process.values.get("pid") if process else None,
        executable=process.values.get("comm") if process else None,
    )


def _facts(beside: Beside, restarts: tuple[int, ...]) -> Facts:
    limit, usage, file = (beside.values.get(name) for name in ("limit_bytes", "usage_bytes", "file_bytes"))
    if limit is not None and limit >= _UNLIMITED:
        limit = None
    room = None
    if limit is not None and usage is not None:
        room = float(limit - max(usage - (file or 0), 0))  # page cache makes room when it must
    notes: tuple[str, ...] = ()
    if beside.left_out:
        notes = (f"{beside.left_out} samples left out: their time is before 2000 or in the future",)
    return Facts(limit, room, restarts, notes)


def _restarts(starts: set[int] | None) -> tuple[int, ...]:
    """All starts but the first. Two that are nearer than the clock was set by are one."""
    kept: list[int] = []
    for start in sorted(starts or ()):
        if not kept or start - kept[-1] > _SAME_START_NS:
            kept.append(start)
    return tuple(kept[1:])


def _look(task: tuple[Segment, int]) -> Presence:
    return read_presence(*task)


def _read(task: tuple[Segment, int, dict[Key, int]]) -> Part:
    return read_part(*task)


def _judge_items(task: tuple[Sequence[Item], Rules]) -> list[Judged]:
    items, rules = task
    return [judge(item.labels, item.buckets, item.facts, rules) for item in items]


def _judge_all(task: tuple[Sequence[Series], Rules]) -> list[Judged]:
    series, rules = task
    return [judge_series(each, rules) for each in series]


def _blocks(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(items), _BLOCK):
        yield items[begin : begin + _BLOCK]


def _mapped(executor: Executor | None, function: Callable[[Any], list[Judged]], tasks: list[Any]) -> list[Judged]:
    return [judged for block in _map(executor, function, tasks) for judged in block]


def _map(executor: Executor | None, function: Callable[[Any], Any], tasks: list[Any]) -> Iterable[Any]:
    """In this process where workers would not pay."""
    return map(function, tasks) if executor is None or len(tasks) < 2 else executor.map(function, tasks)
