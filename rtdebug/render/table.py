"""The live table of `trace` and `report`: one line per event, columns that stay where they are.

A line is TIME, EVENT, CONTAINER (only when there is more than one), PID, COMM and a DETAIL in words that
each kind of event has its own function for. No rich and no numpy: this runs in the tracing process.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from rtdebug.render.columns import wrap
from rtdebug.render.escape import display_width, escape
from rtdebug.render.terminal import Style, paint
from rtdebug.render.units import (
    format_address,
    format_bytes,
    format_count,
    format_time,
    format_value,
    short_id,
    short_path,
)
from rtdebug.tracing.line import EventLine, Value

if TYPE_CHECKING:
    from rtdebug.tracing.summary import Summary

Fields = Mapping[str, Value]
Block = Callable[[EventLine, int], str]
"""Draws several lines for an event: (line, width in columns) -> text that is already escaped."""

_CONTAINER_WIDTH, _NARROW_CONTAINER_WIDTH = 20, 12
_COMM_WIDTH, _NARROW_COMM_WIDTH = 15, 10  # TASK_COMM_LEN - 1
_NARROW = 100
"""Below so many columns there is no room for a container and all of a comm."""
_EVENT_WIDTH = 15  # process_madvise
_PID_WIDTH = 7  # PID_MAX_LIMIT is 4,194,304
_TIME_WIDTH = 12
_BLOCK_WIDTH = 80
_CONTINUED = " " * (_TIME_WIDTH + 2)
"""Before the further lines of an alarm: they begin below EVENT."""
_ALARMS = frozenset({"oom_kill", "sigbus", "shm_full"})
"""What the trace is for: never cut."""


@dataclass(frozen=True, slots=True)
class Columns:
    """How the table is laid out; fixed for a whole stream."""

    show_container: bool = False
    width: int | None = None
    """Columns of the terminal; None: a line is never cut or wrapped."""
    colour: bool = False


class TableRenderer:
    """Writes event lines as a table, and the summary below it. The heading comes with the first line.

    `blocks` draws what one line cannot hold (the report of an oom_kill) below the line of that event.
    """

    def __init__(self, out: TextIO, columns: Columns, blocks: Mapping[str, Block] | None = None) -> None:
        self._out = out
        self._columns = columns
        self._blocks = blocks or {}
        self._has_heading = False

    def line(self, line: EventLine) -> None:
        """Write one line."""
        self.lines((line,))

    def lines(self, lines: Iterable[EventLine]) -> None:
        """Write a batch of lines and flush."""
        rows = [row for line in lines for row in self._rows(line)]
        if rows and not self._has_heading:
            self._has_heading = True
            rows.insert(0, heading(self._columns))
        self._write(rows)

    def summary(self, summary: Summary) -> None:
        """Write the closing summary."""
        from rtdebug.render.summary import render_summary

        gap = [""] if self._has_heading else []
        self._write(gap + render_summary(summary, self._columns.colour))

    def _rows(self, line: EventLine) -> list[str]:
        rows = [*format_line(line, self._columns), *_stack(line.fields)]
        if block := self._blocks.get(line.event):
            rows += block(line, self._columns.width or _BLOCK_WIDTH).splitlines()
        return rows

    def _write(self, rows: list[str]) -> None:
        if rows:
            self._out.write("\n".join(rows) + "\n")
            self._out.flush()


def heading(columns: Columns) -> str:
    """The line of column titles."""
    titles = f"{_head('TIME', 'EVENT', 'CONTAINER', 'PID', 'COMM', columns)}  DETAIL"
    return paint(titles if columns.width is None else escape(titles, columns.width), Style.TITLE, columns.colour)


def format_line(line: EventLine, columns: Columns) -> list[str]:
    """One event on one line; an alarm on as many as it needs.

    Where the width does not suffice, the middle of a line is cut, not how the call ended.
    """
    head = _head(format_time(line.time_ns), line.event, container_label(line), str(line.pid), line.comm or "-", columns)
    words, outcome = _words(line.event, line.fields), _result(line.event, line.fields)
    if columns.width is None:
        rows = [f"{head}  {_joined(words, outcome)}"]
    elif line.event in _ALARMS:
        rows = list(_wrapped(head, _joined(words, outcome), columns.width))
    else:
        rows = [_cut(f"{head}  {words}", outcome, columns.width)]
    style = _style(line) if columns.colour else None
    return [paint(row, style, True) for row in rows] if style else rows


def container_label(line: EventLine) -> str:
    """Name of the container, else its short id, else its cgroup: as its owner knows it. Not escaped."""
    if line.container_name:
        return line.container_name
    if line.container_id:
        return short_id(line.container_id)
    return line.cgroup or "-"


def detail(event: str, fields: Fields) -> str:
    """What happened, in words: the event's own, then how often and with what result."""
    return _joined(_words(event, fields), _result(event, fields))


def _words(event: str, fields: Fields) -> str:
    return _joined(*_DETAILS.get(event, _generic)(fields))


def _result(event: str, fields: Fields) -> str:
    return _joined(*_outcome(event, fields))


def _joined(*parts: str) -> str:
    return " ".join(filter(None, parts))


def _head(time: str, event: str, container: str, pid: str, comm: str, columns: Columns) -> str:
    narrow = columns.show_container and columns.width is not None and columns.width < _NARROW
    cells = [time.ljust(_TIME_WIDTH), _cell(event, _EVENT_WIDTH)]
    if columns.show_container:
        cells.append(_cell(container, _NARROW_CONTAINER_WIDTH if narrow else _CONTAINER_WIDTH))
    return "  ".join([*cells, pid.rjust(_PID_WIDTH), _cell(comm, _NARROW_COMM_WIDTH if narrow else _COMM_WIDTH)])


def _cut(text: str, outcome: str, width: int) -> str:
    room = width - display_width(outcome) - 1
    return f"{escape(text, room)} {outcome}" if outcome and room > 0 else escape(text, width)


def _wrapped(head: str, words: str, width: int) -> Iterator[str]:
    """The words beside their head as far as they fit, and below it."""
    beside, below = width - display_width(head) - 2, max(1, width - len(_CONTINUED))
    if beside < 0:  # not even the head fits
        first, *rest = wrap(f"{head}  {words}", width)
        yield from (first, *(f"{_CONTINUED}{row}" for row in wrap(" ".join(rest), below)))
        return
    first, *rest = list(wrap(words, below, beside)) or [""]
    yield f"{head}  {first}".rstrip()
    yield from (f"{_CONTINUED}{row}" for row in rest)


def _cell(text: str, width: int) -> str:
    shown = escape(text, width)
    return shown + " " * (width - display_width(shown))


def _style(line: EventLine) -> Style | None:
    if line.event in _ALARMS:
        return Style.ALARM
    return Style.FAILED if line.fields.get("errno") or line.fields.get("failures") else None


def _stack(fields: Fields) -> list[str]:
    """The user stack, innermost frame first, below the line it belongs to."""
    frames = fields.get("stack")
    return [f"    {escape(str(frame))}" for frame in frames] if isinstance(frames, list) else []


# One function per event: its fields -> the parts of its detail. An empty part is left out.


def _shm_open(fields: Fields) -> Iterable[str]:
    yield _text(fields, "path")
    yield _text(fields, "flags")
    yield "created" if fields.get("created") else ""
    yield "" if fields.get("created") else _bytes(fields, "length_bytes")


def _shm_unlink(fields: Fields) -> Iterable[str]:
    yield _text(fields, "path")
    yield _bytes(fields, "length_bytes")


def _ftruncate(fields: Fields) -> Iterable[str]:
    yield _text(fields, "path")
    yield _bytes(fields, "length_bytes", "to ")


def _memfd_create(fields: Fields) -> Iterable[str]:
    yield _text(fields, "name") or _text(fields, "path")
    yield _text(fields, "flags")


def _shmget(fields: Fields) -> Iterable[str]:
    key = fields.get("key")
    yield "IPC_PRIVATE" if key == 0 else f"key {key & 0xFFFFFFFF:#010x}" if isinstance(key, int) else ""
    yield _bytes(fields, "length_bytes")
    yield _text(fields, "flags")
    yield _text(fields, "shm_id", "-> id ")


def _shmat(fields: Fields) -> Iterable[str]:
    yield _text(fields, "shm_id", "id ")
    yield _bytes(fields, "length_bytes")
    yield _text(fields, "flags")
    yield _at(fields)


def _shmctl(fields: Fields) -> Iterable[str]:
    yield _text(fields, "shm_id", "id ")
    yield _text(fields, "command")
    yield _bytes(fields, "length_bytes")


def _mmap(fields: Fields) -> Iterable[str]:
    yield _bytes(fields, "length_bytes")
    yield _text(fields, "prot")
    yield _text(fields, "flags")
    yield _text(fields, "path")
    yield _at(fields)


def _munmap(fields: Fields) -> Iterable[str]:
    yield _bytes(fields, "length_bytes")
    yield _at(fields)


def _mremap(fields: Fields) -> Iterable[str]:
    yield _bytes(fields, "old_length_bytes")
    yield _bytes(fields, "length_bytes", "to ")
    yield _text(fields, "flags")
    yield _at(fields)


def _brk(fields: Fields) -> Iterable[str]:
    change = fields.get("length_bytes")
    yield f"{'+' if change > 0 else ''}{format_bytes(change)}" if isinstance(change, int) else ""
    yield _at(fields, "to")


def _madvise(fields: Fields) -> Iterable[str]:
    yield _text(fields, "advice")
    yield _bytes(fields, "length_bytes")
    yield _at(fields)


def _process_madvise(fields: Fields) -> Iterable[str]:
    yield _text(fields, "advice")
    yield _bytes(fields, "length_bytes")
    yield _text(fields, "target_pid", "of pid ")


def _shm_full(fields: Fields) -> Iterable[str]:
    by_fault = bool(fields.get("by_fault"))
    yield _listed(
        _joined(_text(fields, "path", after=":"), _bytes(fields, "length_bytes", "no room for ") or "no room"),
        _used(fields, full=by_fault),
        "no free inodes" if fields.get("free_inodes") == 0 and fields.get("size_inodes") else "",
        "found by a page fault" if by_fault else _text(fields, "syscall", "in "),
    )


def _sigbus(fields: Fields) -> Iterable[str]:
    reason = fields.get("reason")
    yield _listed(
        _joined(
            f"{escape(reason.replace('_', ' '))}:" if isinstance(reason, str) and reason else "",
            _text(fields, "path"),
            _bytes(fields, "file_offset_bytes", "at "),
            _bytes(fields, "file_length_bytes", "of its "),
        ),
        _used(fields, full=reason == "tmpfs_full"),
        _joined(_text(fields, "signal_code"), _at(fields)),
    )


def _oom_kill(fields: Fields) -> Iterable[str]:
    memcg = fields.get("oom_memcg")
    yield _listed(
        _joined(_text(fields, "constraint"), f"limit of {escape(short_path(memcg))}" if isinstance(memcg, str) else ""),
        _share(fields, "usage_bytes", "limit_bytes"),
        _bytes(fields, "anon_rss_bytes", "anon "),
        _bytes(fields, "file_rss_bytes", "file "),
        _bytes(fields, "shmem_rss_bytes", "shmem "),
        _bytes(fields, "swap_bytes", "swap ") if fields.get("swap_bytes") else "",
        _joined(_text(fields, "trigger_pid", "triggered by "), _text(fields, "trigger_comm")),
    )


def _generic(fields: Fields) -> Iterable[str]:
    for key, value in fields.items():
        if value is not None and key not in _OUTCOME_KEYS:
            yield f"{escape(key)}={format_value(key, value)}"


_DETAILS: dict[str, Callable[[Fields], Iterable[str]]] = {
    "shm_open": _shm_open,
    "shm_unlink": _shm_unlink,
    "ftruncate": _ftruncate,
    "shmget": _shmget,
    "shmat": _shmat,
    "shmdt": _shmat,
    "shmctl": _shmctl,
    "memfd_create": _memfd_create,
    "mmap": _mmap,
    "munmap": _munmap,
    "mremap": _mremap,
    "brk": _brk,
    "madvise": _madvise,
    "process_madvise": _process_madvise,
    "shm_full": _shm_full,
    "sigbus": _sigbus,
    "oom_kill": _oom_kill,
}

_OUTCOME_KEYS = frozenset({"ret", "errno", "count", "failures", "aggregated", "stack", "stack_id"})


def _outcome(event: str, fields: Fields) -> Iterable[str]:
    """`x23` of an aggregated line, and `= ENOSPC` or `3 failed`."""
    count, failures, errno = fields.get("count"), fields.get("failures"), fields.get("errno")
    if isinstance(count, int):
        yield f"x{format_count(count)}"
    if isinstance(errno, str) and event not in _ALARMS:
        yield f"= {escape(errno)}"
    elif isinstance(failures, int) and failures > 0:
        yield f"({format_count(failures)} failed)"


def _text(fields: Fields, key: str, before: str = "", after: str = "") -> str:
    value = fields.get(key)
    shown = "" if value is None or value == "" or value == [] else format_value(key, value)
    return f"{before}{shown}{after}" if shown else ""


def _bytes(fields: Fields, key: str, before: str = "", after: str = "") -> str:
    value = fields.get(key)
    return f"{before}{format_bytes(value)}{after}" if isinstance(value, int) else ""


def _at(fields: Fields, before: str = "at") -> str:
    address = fields.get("address")
    return f"{before} {format_address(address)}" if isinstance(address, int) else ""


def _listed(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _share(fields: Fields, part_key: str, whole_key: str) -> str:
    part, whole = fields.get(part_key), fields.get(whole_key)
    if not isinstance(part, int):
        return ""
    return f"{format_bytes(part)}{f' of {format_bytes(whole)}' if isinstance(whole, int) else ''} used"


def _used(fields: Fields, full: bool) -> str:
    """How full a tmpfs is. `full`: it had no page left, whatever its counter says."""
    used, size = fields.get("used_bytes"), fields.get("size_bytes")
    if isinstance(used, int) and isinstance(size, int) and (full or size - used <= min(_lag_bytes(), size // 16)):
        return f"{format_bytes(size)} full"
    return _share(fields, "used_bytes", "size_bytes")


def _lag_bytes() -> int:
    """By how much the used blocks of a tmpfs may be behind: a batch of each CPU (lib/percpu_counter.c)."""
    cpus = os.cpu_count() or 1
    return max(32, 2 * cpus) * cpus * mmap.PAGESIZE
