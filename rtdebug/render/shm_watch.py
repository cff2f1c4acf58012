"""`rtdebug shm --watch`: a block that is drawn again on a terminal, lines elsewhere, JSON lines for programs."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol, TextIO

from rtdebug.render.columns import align, wrap
from rtdebug.render.escape import escape
from rtdebug.render.jsonl import JsonRenderer, encode_object, format_time_utc
from rtdebug.render.shm import limit_text, mount_fields, object_fields, objects_text
from rtdebug.render.table import Columns, format_line
from rtdebug.render.terminal import terminal_width, use_colour
from rtdebug.render.units import format_bytes, format_duration, format_time, short_path
from rtdebug.shm.advice import Advice, MountPeak, times
from rtdebug.shm.watch import Watch
from rtdebug.tracing.line import EventLine, Value

_LAST_EVENTS = 8
_TOP_OBJECTS = 8
_WIDTH = 100


class WatchView(Protocol):
    """What shows a watch."""

    def lines(self, lines: Sequence[EventLine]) -> None:
        """Learn from events and show them."""

    def refresh(self) -> None:
        """Show the sizes."""

    def summary(self) -> None:
        """Show peaks and advice."""


def watch_view(watch: Watch, output: str) -> WatchView:
    """The view for `-o json`, for a terminal, or for a file or pipe."""
    if output == "json":
        return JsonWatch(watch)
    width = terminal_width(sys.stdout)
    return LineWatch(watch) if width is None else ScreenWatch(watch, width)


class JsonWatch:
    """Lines: the trace's events, `shm_sample` once a second, `shm_summary` at the end."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._events = JsonRenderer(sys.stdout.buffer)

    def lines(self, lines: Sequence[EventLine]) -> None:
        """Write the events."""
        _learn(self._watch, lines)
        self._events.lines(lines)

    def refresh(self) -> None:
        """Write the sizes."""
        self._write("shm_sample", {"mounts": [_peak_fields(peak) for peak in self._watch.peaks]})

    def summary(self) -> None:
        """Write peaks, advice and objects."""
        report = self._watch.report
        self._write(
            "shm_summary",
            {
                "watched_ns": int(self._watch.watched_s * 1e9),
                "mounts": [_peak_fields(peak) for peak in self._watch.peaks],
                "objects": [object_fields(each, report.time_ns) for each in self._watch.objects],
                "advice": [_advice_fields(advice) for advice in self._watch.advice()],
            },
        )

    def _write(self, event: str, fields: dict[str, Value]) -> None:
        container = self._watch.report.container
        head: dict[str, Value] = {
            "time": format_time_utc(time.time_ns()),
            "event": event,
            "container_id": container.id,
            "container_name": container.name,
        }
        sys.stdout.buffer.write((encode_object(head | fields) + "\n").encode("ascii"))
        sys.stdout.buffer.flush()


class LineWatch:
    """A line for each tmpfs that changed, and one for each event."""

    def __init__(self, watch: Watch, out: TextIO | None = None) -> None:
        self._watch = watch
        self._out = out or sys.stdout
        self._told: dict[str, int | None] = {}

    def lines(self, lines: Sequence[EventLine]) -> None:
        """Write the events."""
        _learn(self._watch, lines)
        self._write(row for line in lines for row in format_line(line, Columns()))

    def refresh(self) -> None:
        """Write what changed."""
        now = format_time(time.time_ns())
        changed = [
            peak for peak in self._watch.peaks if self._told.get(peak.mount.path, -1) != peak.mount.used_bytes
        ]
        self._told.update({peak.mount.path: peak.mount.used_bytes for peak in changed})
        self._write(f"{now}  {_peak_text(peak)}" for peak in changed if _is_worth_watching(peak))

    def summary(self) -> None:
        """Write peaks and advice."""
        self._write(_summary(self._watch, _WIDTH))

    def _write(self, rows: Iterator[str]) -> None:
        text = "".join(f"{row}\n" for row in rows)
        self._out.write(text)
        self._out.flush()


class ScreenWatch:
    """A block of the terminal that is drawn again at each refresh."""

    def __init__(self, watch: Watch, width: int) -> None:
        self._watch = watch
        self._width = width
        self._columns = Columns(width=width, colour=use_colour(sys.stdout, os.environ))
        self._last: deque[str] = deque(maxlen=_LAST_EVENTS)
        self._drawn = 0

    def lines(self, lines: Sequence[EventLine]) -> None:
        """Keep the events for the next refresh."""
        _learn(self._watch, lines)
        for line in lines:
            self._last += format_line(line, self._columns)

    def refresh(self) -> None:
        """Draw the block again, in place of the last."""
        rows = [*self._block()]
        up = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
        sys.stdout.write(up + "".join(f"{row}\n" for row in rows))
        sys.stdout.flush()
        self._drawn = len(rows)

    def summary(self) -> None:
        """Write peaks and advice below the block."""
        sys.stdout.write("".join(f"{row}\n" for row in ["", *_summary(self._watch, self._width)]))
        sys.stdout.flush()

    def _block(self) -> Iterator[str]:
        report = self._watch.report
        yield escape(f"{format_time(time.time_ns())[:8]}  {report.container.name or report.container.id}", self._width)
        shown = [peak for peak in self._watch.peaks if _is_worth_watching(peak)]
        header = ("TMPFS", "SIZE", "USED", "PEAK", "LEFT", "FULL", "LIMITED FIRST BY")
        rows = align([header, *map(_peak_row, shown)], right={1, 2, 3, 4, 5})
        rows += ["", *objects_text([*self._watch.objects][:_TOP_OBJECTS], time.time_ns())]
        yield from (escape(row, self._width) for row in rows)
        yield f"objects: {len(report.objects)}, orphans: {len(report.orphans)} ({format_bytes(report.orphan_bytes)})"
        yield from ["", *self._last] if self._last else ()


def _learn(watch: Watch, lines: Sequence[EventLine]) -> None:
    for line in lines:
        watch.add(line)


def _is_worth_watching(peak: MountPeak) -> bool:
    return bool(peak.peak_bytes or peak.times_full or peak.mount.is_dev_shm)


def _peak_row(peak: MountPeak) -> tuple[str, ...]:
    mount = peak.mount
    sizes = (mount.size_bytes, mount.used_bytes, peak.peak_bytes, mount.left_bytes)
    return (mount.path, *map(format_bytes, sizes), f"{peak.times_full}x", limit_text(mount.limit))


def _peak_text(peak: MountPeak) -> str:
    mount = peak.mount
    return escape(
        f"{mount.path}: {format_bytes(mount.used_bytes)} of {format_bytes(mount.size_bytes)}, peak "
        f"{format_bytes(peak.peak_bytes)}, {format_bytes(mount.left_bytes)} left to {limit_text(mount.limit)}"
    )


def _summary(watch: Watch, width: int) -> Iterator[str]:
    yield f"Watched for {format_duration(int(watch.watched_s * 1e9))}."
    for peak in filter(_is_worth_watching, watch.peaks):
        full = f", full {times(peak.times_full)}" if peak.times_full else ""
        size = format_bytes(peak.mount.size_bytes)
        yield escape(f"{peak.mount.path}: peak {format_bytes(peak.peak_bytes)} of {size}{full}")
    for advice in watch.advice():
        yield ""
        yield escape(f"{advice.path}: {_advised(advice)}")
        for reason in advice.reasons:
            for index, row in enumerate(wrap(short_path(reason), width - 4)):
                yield f"  {'- ' if index == 0 else '  '}{row}"
        yield from (f"  {escape(change)}" for change in advice.change)


def _advised(advice: Advice) -> str:
    size = format_bytes(advice.size_bytes)
    return f"nothing seen asks for more than {size}" if advice.enough else f"recommended size: {size}"


def _peak_fields(peak: MountPeak) -> dict[str, Value]:
    return {
        **mount_fields(peak.mount),
        "peak_bytes": peak.peak_bytes,
        "demand_bytes": peak.demand_bytes,
        "times_full": peak.times_full,
    }


def _advice_fields(advice: Advice) -> dict[str, Value]:
    return {
        "path": advice.path,
        "size_bytes": advice.size_bytes,
        "enough": advice.enough,
        "reasons": [*advice.reasons],
        "change": [*advice.change],
    }
