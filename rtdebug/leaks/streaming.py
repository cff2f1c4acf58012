"""Follow stores that are being written: the verdicts at every moment are those of a batch run over what there is.

Nothing is approximated: buckets of what is new are joined to those that there are, which is exact (buckets.py), and
then judged by the same function. Memory is bounded by the number of series, not by time.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rtdebug.leaks.baseline_watch import BaselineWatch, Unusual
from rtdebug.leaks.batch import items_of
from rtdebug.leaks.parts import Part, join_parts, read_part
from rtdebug.leaks.rules import DEFAULT, Rules
from rtdebug.leaks.series import Labels
from rtdebug.leaks.store import segments_of
from rtdebug.leaks.unread import Unread
from rtdebug.leaks.verdict import LEAK, SUSPECT, Judged, judge

_DAY_NS = 86_400_000_000_000


@dataclass(slots=True)
class Follower:
    """Reads stores again and again. `poll()` returns all verdicts, `changes()` those that are new."""

    paths: Sequence[Path]
    rules: Rules = DEFAULT
    _parts: dict[str, Part] = field(default_factory=dict)
    _unread: Unread = field(default_factory=Unread)
    _told: dict[Labels, tuple[str, str]] = field(default_factory=dict)

    def poll(self) -> list[Judged]:
        """Read what is new, and judge everything."""
        latest_ns = time.time_ns() + _DAY_NS
        for segment, after in self._unread.segments(self.paths, ("cgroups", "processes")):
            part = read_part(segment, latest_ns, {}, after)
            self._unread.took(segment, part.rows)
            if part.rows:
                known = self._parts.get(segment.table)
                self._parts[segment.table] = join_parts([known, part] if known else [part])
        items = items_of(list(self._parts.values()))
        return [judge(item.labels, item.buckets, item.facts, self.rules) for item in items]

    def changes(self) -> Iterator[Judged]:
        """Poll, and give the series whose verdict is another than the last time; at first all."""
        yield from self.changed(self.poll())

    def changed(self, polled: Sequence[Judged]) -> Iterator[Judged]:
        """Give those of `polled` whose verdict is another than the last time."""
        for judged in polled:
            verdict = judged.verdict
            key = _lasting(verdict.labels)
            now = (verdict.verdict, verdict.shape if verdict.verdict != "too short to tell" else "")
            if self._told.get(key) != now:
                self._told[key] = now
                yield judged


def watch(
    paths: Sequence[Path],
    rules: Rules,
    every_s: float,
    duration_s: float | None,
    stopped: Callable[[], bool],
    wake_fd: int,
    first: Callable[[Sequence[Judged]], None] = lambda _judged: None,
    reader_fd: int | None = None,
    baselines: BaselineWatch | None = None,
) -> Iterator[Judged | Unusual]:
    """Give what leaks or is suspect, then each change of a verdict, until `stopped` or for `duration_s`.

    With `baselines` also what is outside its usual band, then each change of that. `wake_fd` is readable when `stopped`
    may have changed; `first` is given all verdicts of the first look. It ends when who reads `reader_fd` is gone,
    though there is nothing to write. Raises UsageProblem when there is no store.
    """
    segments_of(paths)
    follower = Follower(paths, rules)
    poller = select.poll()
    poller.register(wake_fd, select.POLLIN)
    if reader_fd is not None:
        poller.register(reader_fd, 0)  # no event but that the other end was closed
    end = None if duration_s is None else time.monotonic() + duration_s
    is_first = True
    while not stopped():
        polled = follower.poll()
        unusual = baselines.poll(time.time_ns()) if baselines is not None else []
        if is_first:
            first(polled)
        for judged in follower.changed(polled):
            if not is_first or judged.verdict.verdict in (LEAK, SUSPECT):
                yield judged
        yield from unusual
        is_first = False
        left = every_s if end is None else min(every_s, end - time.monotonic())
        if left <= 0:
            return
        if any(fd == reader_fd for fd, _ in poller.poll(left * 1000)):
            return


def _lasting(labels: Labels) -> Labels:
    """Labels without what changes while a series goes on."""
    return Labels("", labels.kind, labels.unit, labels.container_id, host=labels.host, process=labels.process)
