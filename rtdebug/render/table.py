"""The live table of `trace` and `report`: one line per event, columns that stay where they are.

A line is TIME, EVENT, CONTAINER (only when there is more than one), PID, COMM and a DETAIL in words that
each kind of event has its own function for. No rich and no numpy: this runs in the tracing process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from rtdebug.render.escape import display_width, escape
from rtdebug.render.terminal import Style, paint
from rtdebug.render.units import format_address, format_bytes, format_count, format_time, format_value, short_id
from rtdebug.tracing.line import EventLine, Value

if TYPE_CHECKING:
    from rtdebug.tracing.summary import Summary

Fields = Mapping[str, Value]
Block = Callable[[EventLine, int], str]
"""Draws several lines for an event: (line, width in columns) -> text that is already escaped."""

_CONTAINER_WIDTH = 20
_COMM_WIDTH = 15  # TASK_COMM_LEN - 1
_EVENT_WIDTH = 15  # process_madvise
_PID_WIDTH = 7  # PID_MAX_LIMIT is 4,194,304
_TIME_WIDTH = 12
_BLOCK_WIDTH = 80
_ALARMS = frozenset({"oom_kill", "sigbus", "shm_full"})


@dataclass(frozen=True, slots=True)
class Columns:
    """How the table is laid out; fixed for a whole stream."""

    show_container: bool = False
    width: int | None = None
    """Columns of the terminal; None: a line is never cut."""
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
        rows = [format_line(line, self._columns), *_stack(line.fields)]
        if block := self._blocks.get(line.event):
            rows += block(line, self._columns.width or _BLOCK_WIDTH).splitlines()
        return rows

    def _write(self, rows: list[str]) -> None:
        if rows:
            self._out.write("\n".join(rows) + "\n")
            self._out.flush()


def heading(columns: Columns) -> str:
    """The line of column titles."""
    titles = _layout("TIME", "EVENT", "CONTAINER", "PID", "COMM", "DETAIL", columns)
    return paint(titles, Style.TITLE, columns.colour)


def format_line(line: EventLine, columns: Columns) -> str:
    """One event on one line."""
    text = _layout(
        format_time(line.time_ns),
        line.event,
        container_label(line),
        str(line.pid),
        line.comm or "-",
        detail(line.event, line.fields),
        columns,
    )
    return paint(text, style, True) if columns.colour and (style := _style(line)) else text


def container_label(line: EventLine) -> str:
    """Name of the container, else its short id, else its cgroup: as its owner knows it. Not escaped."""
    if line.container_name:
        return line.container_name
    if line.container_id:
        return short_id(line.container_id)
    return line.cgroup or "-"


def detail(event: str, fields: Fields) -> str:
    """What happened, in words: the event's own, then how often and with what result."""
    describe = _DETAILS.get(event, _generic)
    return " ".join(part for part in (*describe(fields), *_outcome(event, fields)) if part)


def _layout(time: str, event: str, container: str, pid: str, comm: str, words: str, columns: Columns) -> str:
    cells = [time.ljust(_TIME_WIDTH), _cell(event, _EVENT_WIDTH)]
    if columns.show_container:
        cells.append(_cell(container, _CONTAINER_WIDTH))
    cells += [pid.rjust(_PID_WIDTH), _cell(comm, _COMM_WIDTH), words]
    text = "  ".join(cells)
    # every part is escaped by now, and escaping twice changes nothing: this only cuts
    return text if columns.width is None else escape(text, columns.width)


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
    yield _text(fields, "path")
    yield "in a page fault:" if fields.get("by_fault") else _text(fields, "syscall", "in ", ":")
    yield _bytes(fields, "length_bytes", "no room for ", ",")
    yield _share(fields, "used_bytes", "size_bytes", "used")
    yield _inodes(fields)
    yield _reason(fields)


def _sigbus(fields: Fields) -> Iterable[str]:
    yield _text(fields, "signal_code")
    yield _at(fields)
    yield _text(fields, "path", "in ")
    yield _bytes(fields, "file_offset_bytes", "at ")
    yield _bytes(fields, "file_length_bytes", "of its ")
    yield _share(fields, "used_bytes", "size_bytes", "used on the tmpfs", "- ")
    yield _reason(fields)


def _oom_kill(fields: Fields) -> Iterable[str]:
    yield _text(fields, "constraint")
    yield _text(fields, "oom_memcg", "limit of ")
    yield _share(fields, "usage_bytes", "limit_bytes", "used")
    yield _bytes(fields, "anon_rss_bytes", "anon ")
    yield _bytes(fields, "file_rss_bytes", "file ")
    yield _bytes(fields, "shmem_rss_bytes", "shmem ")
    yield _bytes(fields, "swap_bytes", "swap ") if fields.get("swap_bytes") else ""
    yield _text(fields, "trigger_pid", "triggered by ")
    yield _text(fields, "trigger_comm")


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


def _share(fields: Fields, part_key: str, whole_key: str, words: str, before: str = "") -> str:
    part, whole = fields.get(part_key), fields.get(whole_key)
    if not isinstance(part, int):
        return ""
    of = f" of {format_bytes(whole)}" if isinstance(whole, int) else ""
    return f"{before}{format_bytes(part)}{of} {words}"


def _inodes(fields: Fields) -> str:
    """A tmpfs can also be full of files."""
    return "no free inodes" if fields.get("free_inodes") == 0 and fields.get("size_inodes") else ""


def _reason(fields: Fields) -> str:
    reason = fields.get("reason")
    return f"({escape(reason.replace('_', ' '))})" if isinstance(reason, str) else ""
