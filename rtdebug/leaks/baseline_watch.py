"""Follow stores for values outside their usual band.

Values are judged in the order in which they were recorded, so what a store has fills the windows at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from rtdebug.leaks.baseline import BASELINE_RATES, Baselines, Key, Method, baselines_of
from rtdebug.leaks.departures import Departure, Departures
from rtdebug.leaks.segments import Segment
from rtdebug.leaks.series import EARLIEST_NS, NS_PER_S, Labels
from rtdebug.leaks.store import read_segment
from rtdebug.leaks.unread import Unread

_SIZES = ("usage_bytes", "anon_bytes", "file_bytes", "shmem_bytes", "kernel_bytes")
_TEXTS = ("host", "container_id", "container_name", "image", "cgroup")
_HISTORY = 1.25
"""Windows that are read of what was there before: one to fill them, and a part to see since when a value is outside."""
_STEPS, _LEAST_STEPS = 9, 3
"""Times between samples by whose median the interval is known."""
_OTHER_PACE = 2.0
"""An interval that is so many times longer or shorter is another: the window is not the time it was to be any more."""

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Unusual:
    """A departure of one figure, and whose it is."""

    labels: Labels
    """`kind` and `unit` are those of the figure: bytes, or `per second`."""
    departure: Departure


@dataclass(slots=True)
class _Recorder:
    """Baselines of what one recorder writes: all containers of a host, sampled together."""

    method: Method
    window_s: float
    since_ns: int
    """What was recorded before that is left out."""
    figures: int = 0
    """Of the last sample."""
    filled: int = 0
    """Those of them whose window is filled."""
    _rows: dict[str, Row] = field(default_factory=dict)
    """Of the last sample, by container."""
    _departures: Departures = field(default_factory=Departures)
    _baselines: Baselines | None = None
    _interval_s: float = 0.0
    _times_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_STEPS + 1))

    def add(self, time_ns: int, rows: Sequence[Row]) -> list[Unusual]:
        """Take the rows of one sample; return what changed."""
        passed_s = (time_ns - self._times_ns[-1]) / NS_PER_S if self._times_ns else 0.0
        if passed_s > self.window_s:  # what was usual then says nothing now
            self._baselines = None
            self._times_ns.clear()
        self._times_ns.append(time_ns)
        self._keep_pace()
        before, self._rows = self._rows, {str(row["container_id"] or row["cgroup"]): row for row in rows}
        values = {
            (who, figure): value
            for who, row in self._rows.items()
            for figure, value in _figures(row, before.get(who), passed_s)
        }
        bands = {} if self._baselines is None else self._baselines.add(values, time_ns / NS_PER_S)
        self.figures, self.filled = len(values), len(bands)
        return self._labelled(self._departures.add(bands, time_ns))

    def outside(self) -> list[Unusual]:
        """What is outside at the last sample."""
        return self._labelled(self._departures.outside())

    def _labelled(self, departures: Iterable[Departure]) -> list[Unusual]:
        return [Unusual(_labels(each.key, self._rows[each.key[0]]), each) for each in departures]

    def _keep_pace(self) -> None:
        """Begin the windows as soon as the interval is known, and anew when it has become another."""
        steps = [(later - sooner) / NS_PER_S for sooner, later in pairwise(self._times_ns) if later > sooner]
        if len(steps) < _LEAST_STEPS:
            return
        interval_s = median(steps)
        if self._baselines is None or not 1 / _OTHER_PACE <= interval_s / self._interval_s <= _OTHER_PACE:
            self._interval_s = interval_s
            self._baselines = baselines_of(self.method, self.window_s, interval_s)


class BaselineWatch:
    """Reads stores again and again. `method` and `window_s` as in baseline.py."""

    def __init__(self, paths: Sequence[Path], method: Method, window_s: float) -> None:
        self._paths = paths
        self._method = method
        self._window_s = window_s
        self._unread = Unread()
        self._recorders: dict[tuple[Path, str], _Recorder] = {}

    @property
    def filled(self) -> tuple[int, int]:
        """How many figures have a band, and how many there are, as of the last look."""
        recorders = self._recorders.values()
        return sum(each.filled for each in recorders), sum(each.figures for each in recorders)

    def poll(self, now_ns: int) -> list[Unusual]:
        """Read what is new, and give what changed; of a recorder that is seen first, what is outside now.

        `now_ns`: Unix time. Of what was recorded before the first look, one and a quarter windows are read.
        """
        since_ns = now_ns - int(_HISTORY * self._window_s * NS_PER_S)
        found: list[Unusual] = []
        for place, segments in self._by_recorder().items():
            is_first = place not in self._recorders
            recorder = self._recorders.setdefault(place, _Recorder(self._method, self._window_s, since_ns))
            told = [each for sample in self._samples(segments, recorder.since_ns) for each in recorder.add(*sample)]
            found += recorder.outside() if is_first else told
        return found

    def _by_recorder(self) -> dict[tuple[Path, str], list[tuple[Segment, int]]]:
        found: dict[tuple[Path, str], list[tuple[Segment, int]]] = {}
        for segment, after in self._unread.segments(self._paths, ("cgroups",)):
            found.setdefault((segment.path.parent, segment.host), []).append((segment, after))
        return found

    def _samples(
        self, segments: Sequence[tuple[Segment, int]], since_ns: int
    ) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Give the rows that were sampled together, with their time."""
        ends_ns = [segment.start_ns for segment, _ in segments[1:]]
        for (segment, after), end_ns in zip(segments, [*ends_ns, since_ns], strict=True):
            if end_ns < since_ns:
                continue
            table, _ = read_segment(segment, ("time_ns", *_TEXTS, *_SIZES, *BASELINE_RATES))
            self._unread.took(segment, table.num_rows - after)
            yield from _together(table.slice(after), since_ns)


def _together(table: Any, since_ns: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:  # noqa: ANN401
    """Split a table where the time changes; what cannot be read as a time is left out."""
    import numpy as np

    time_ns = table.column("time_ns").fill_null(0).to_numpy()
    cuts = [0, *(np.flatnonzero(np.diff(time_ns)) + 1).tolist(), len(time_ns)] if len(time_ns) else []
    for begin, end in pairwise(cuts):
        if time_ns[begin] >= max(since_ns, EARLIEST_NS):
            yield int(time_ns[begin]), table.slice(begin, end - begin).to_pylist()


def _figures(row: Row, before: Row | None, passed_s: float) -> Iterator[tuple[str, float]]:
    """Give the figures that have a baseline, as far as they are known; a rate needs the sample before."""
    for name in _SIZES:
        if row[name] is not None:
            # the page cache has the shared memory in it
            yield name, float(max(0, row[name] - ((row["shmem_bytes"] or 0) if name == "file_bytes" else 0)))
    for name in BASELINE_RATES:
        if before is not None and passed_s > 0 and None not in (before[name], row[name]):
            yield f"{name}_per_second", max(0, row[name] - before[name]) / passed_s


def _labels(key: Key, row: Row) -> Labels:
    who, figure = key
    kind, unit = figure.removesuffix("_bytes"), "bytes"
    if kind == figure:
        kind, unit = figure.removesuffix("_per_second"), "per second"
    return Labels(
        row["container_name"] or who,
        kind,
        unit,
        container_id=row["container_id"],
        image=row["image"],
        host=row["host"],
    )
