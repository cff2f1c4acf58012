"""Recordings: a trace in a file, to be looked at later, elsewhere, and without root (DESIGN D10).

The file is a row of chunks (chunks.py): START first, then what the kernel and user space said, in the order
in which it is to be decoded, END last. What a record needs to be understood lies before it.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rtdebug import __version__
from rtdebug.containers.model import Container
from rtdebug.errors import RtdebugError
from rtdebug.tracing.chunks import MAGIC, Buffer, Chunk, Kind, create, frame, open_chunks, write_all
from rtdebug.tracing.decode import Decoder
from rtdebug.tracing.entries import Entry, container_from
from rtdebug.tracing.fields import Host
from rtdebug.tracing.line import EventLine
from rtdebug.tracing.ring import records
from rtdebug.tracing.schema import Array, ByteOrder, Schema
from rtdebug.tracing.summary import SharedKey
from rtdebug.tracing.tally import tally

if TYPE_CHECKING:
    import pandas as pd

ENTRIES_BYTES = 1 << 18
"""A LINE chunk is closed when it has grown to this."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where, when and how a trace was made."""

    version: str
    """Of rtdebug."""
    command_line: tuple[str, ...]
    kernel_release: str
    machine: str
    """As `uname -m` says it."""
    hostname: str
    boot_id: str | None
    started_ns: int
    """Unix time."""
    clock_offset_ns: int
    """CLOCK_REALTIME minus CLOCK_MONOTONIC."""
    page_size_bytes: int
    byte_order: ByteOrder
    cgroup_version: int | None
    """Of the memory controller's hierarchy."""
    target: Container | None
    options: Mapping[str, Any]
    events_h: str
    """The text of bpf/events.h that the programs were compiled with."""


@dataclass(frozen=True, slots=True)
class End:
    """How a trace ended."""

    ended_ns: int
    """Unix time."""
    lost: Mapping[str, int]
    """Events lost, by name; empty when none was."""
    still_mapped: Mapping[int, int] | None = None
    """Bytes still mapped by host pid; None: nobody looked."""
    still_linked: Mapping[SharedKey, int | None] | None = None
    """Shared memory that exists at the end, with its size in bytes; None: nobody looked."""
    last_sizes: Mapping[SharedKey, int | None] | None = None
    """Its sizes as they were last seen before the container ended."""
    attached_ns: int | None = None
    """Unix time from when on the programs saw everything: compiling may have taken seconds before it."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which lines to give; the default is all."""

    events: frozenset[str] = frozenset()
    """Names of events; empty: all."""
    pid: int | None = None
    """tgid in the host's pid namespace."""

    @property
    def is_all(self) -> bool:
        """Tell whether every line is taken."""
        return not self.events and self.pid is None

    def shows(self, event: str) -> bool:
        """Tell whether events of this name can be among the lines."""
        return not self.events or event in self.events

    def takes(self, line: EventLine) -> bool:
        """Tell whether the line is one of them."""
        return self.shows(line.event) and self.pid in (None, line.pid)

    def of_calls(self, array: Array, schema: Schema) -> Array:
        """Return the records of the ring `calls` that become one of them."""
        if self.events:
            ids = [number for number, name in schema.event_names.items() if name in self.events]
            array = array[np.isin(array["event"], ids)]
        return array if self.pid is None else array[array["pid"] == self.pid]


def start_here(
    command_line: Iterable[str],
    schema: Schema,
    *,
    target: Container | None,
    cgroup_version: int | None,
    options: Mapping[str, Any],
    clock_offset_ns: int,
    proc: Path = Path("/proc"),
) -> Start:
    """Return the Start of a trace that begins now on this host, and takes the time from `clock_offset_ns`."""
    uname, boot_id = os.uname(), None
    with contextlib.suppress(OSError):
        boot_id = (proc / "sys/kernel/random/boot_id").read_text().strip()
    return Start(
        version=__version__,
        command_line=tuple(command_line),
        kernel_release=uname.release,
        machine=uname.machine,
        hostname=uname.nodename,
        boot_id=boot_id,
        started_ns=time.time_ns(),
        clock_offset_ns=clock_offset_ns,
        page_size_bytes=os.sysconf("SC_PAGE_SIZE"),
        byte_order=sys.byteorder,
        cgroup_version=cgroup_version,
        target=target,
        options=options,
        events_h=schema.text,
    )


class RecordingWriter:
    """Writes a recording while the trace runs. `end` and `close` finish it.

    Write what was drained in one round so: entries, events, and calls no younger than the events. A process
    event is submitted before the calls of that process, and then lies before them in the file too.

    An existing file is refused, as it may be the only record of an incident; with `force` it is replaced. The
    file is readable by its owner alone, for it holds command lines. When the disk is full or fails, the
    file is cut back to its last whole chunk, `on_stopped` is called once with the reason, and all
    further writing is left out: the trace goes on.

    Raises UsageProblem when the file exists, RtdebugError when it cannot be made.
    """

    def __init__(self, path: Path, start: Start, on_stopped: Callable[[str], object], *, force: bool = False) -> None:
        self.path = path
        self.stopped = False
        self._on_stopped = on_stopped
        self._fd = create(path, force)
        self._end_bytes = 0
        self._write(MAGIC)
        self._chunk(Kind.START, _json(asdict(start)))

    def calls(self, slots: Array) -> None:
        """Write slots of the ring `calls`, straight from where they lie."""
        self._chunk(Kind.CALLS, slots.view(np.uint8).data)

    def events(self, slots: Array) -> None:
        """Write slots of the ring `events`, straight from where they lie."""
        self._chunk(Kind.EVENTS, slots.view(np.uint8).data)

    def aggregates(self, time_ns: int, array: Array) -> None:
        """Write what the kernel added up since the last time (dtype `Schema.aggregate_record`)."""
        if len(array):
            self._chunk(Kind.AGGREGATES, struct.pack("<Q", time_ns) + array.tobytes())

    def entries(self, entries: Iterable[Entry]) -> None:
        """Write what user space found out."""
        pending: list[bytes] = []
        size = 0
        for entry in entries:
            pending.append(_json(entry))
            size += len(pending[-1])
            if size >= ENTRIES_BYTES:
                self._chunk(Kind.ENTRIES, b"\n".join(pending))
                pending, size = [], 0
        if pending:
            self._chunk(Kind.ENTRIES, b"\n".join(pending))

    def lost(self, lost: Mapping[str, int]) -> None:
        """Write how many events were lost so far, by name; once at the start, then when it changed."""
        self._chunk(Kind.LOST, _json(dict(lost)))

    def end(self, end: End) -> None:
        """Write how the trace ended."""
        mapped = end.still_mapped
        fields = {
            "ended_ns": end.ended_ns,
            "attached_ns": end.attached_ns,
            "lost": dict(end.lost),
            "still_mapped": None if mapped is None else list(mapped.items()),
            "still_linked": _shared_rows(end.still_linked),
            "last_sizes": _shared_rows(end.last_sizes),
        }
        self._chunk(Kind.END, _json(fields))

    def close(self) -> None:
        """Close the file. Without `end` before, it reads as one of a killed trace."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def discard(self) -> None:
        """Close the file and remove it: the trace never began."""
        self.close()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _chunk(self, kind: Kind, payload: Buffer) -> None:
        self._write(frame(kind, payload), payload)

    def _write(self, *parts: Buffer) -> None:
        if self.stopped or self._fd < 0:
            return
        try:
            self._end_bytes += write_all(self._fd, parts)
        except OSError as error:
            self.stopped = True
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end_bytes)
            self._on_stopped(f"{self.path}: {error.strerror}: the recording ends here")


@dataclass(slots=True)
class Recording:
    """A recording, read as a stream: nothing of it is kept in memory.

    `problem`, `end` and `lost` are known after the chunks (or lines) have been read to their end.
    """

    path: Path
    start: Start
    schema: Schema
    problem: str | None = None
    """Why reading stopped before the end; None: it did not."""
    end: End | None = None
    """None: the trace was killed, or still runs."""
    lost: Mapping[str, int] | None = None
    """Events lost, by name, as far as the recording says."""
    unknown_records: int = 0
    """Records of events that this rtdebug does not know."""
    last_ns: int = field(default=0)
    """Unix time of the latest line given."""

    @classmethod
    def open(cls, path: Path) -> Recording:
        """Open a recording and read its first chunk.

        Raises RtdebugError when it is none, is of a newer rtdebug, or breaks off within the first chunk.
        """
        chunk = next(open_chunks(path, _ignore), None)
        if chunk is None or chunk.kind is not Kind.START:
            raise RtdebugError(f"{path}: the recording breaks off in its beginning", "nothing is left of it")
        with _damage(path):
            start = _start_from(json.loads(chunk.payload))
        return cls(path, start, Schema.parse(start.events_h, start.byte_order))

    def chunks(self) -> Iterator[Chunk]:
        """Give the chunks after the first, up to the last whole one."""
        self.problem, self.end, self.lost = None, None, None
        for chunk in open_chunks(self.path, self._stop):
            with _damage(self.path):
                if chunk.kind is Kind.END:
                    self.end = _end_from(json.loads(chunk.payload))
                    self.lost = self.end.lost
                elif chunk.kind is Kind.LOST:
                    self.lost = json.loads(chunk.payload)
            if chunk.kind is not Kind.START:
                yield chunk

    def decoder(self) -> Decoder:
        """Return a Decoder as the trace had it at its start."""
        host = Host(self.start.machine, self.start.page_size_bytes)
        return Decoder(self.schema, host, self.start.clock_offset_ns)

    def lines(self, selection: Selection | None = None) -> Iterator[EventLine]:
        """Give the lines that the trace showed, in the same order.

        An oom_kill is given as the report that the trace made of it; as the kernel's record alone where the
        trace was killed before it could. Raises RtdebugError when a whole chunk makes no sense.
        """
        wanted = selection or Selection()
        for _, lines in self.decoded(self.decoder(), wanted):
            for line in lines:
                self.last_ns = max(self.last_ns, line.time_ns)
                yield line

    def totals(self, selection: Selection | None = None) -> Iterator[EventLine]:
        """Give lines that add up to the same summary as `lines`, with calls added up: faster by far."""
        wanted, decoder = selection or Selection(), self.decoder()
        for chunk, lines in self.decoded(decoder, wanted):
            if chunk is not None and chunk.kind is Kind.CALLS:
                lines = self._tally(decoder, self.calls_of(chunk, wanted))
            for line in lines:
                self.last_ns = max(self.last_ns, line.time_ns)
                yield line

    def _tally(self, decoder: Decoder, array: Array) -> Iterator[EventLine]:
        if len(array):
            counts, single = tally(array, self.schema)
            yield from decoder.aggregates(int(array["time_ns"].max()), counts)
            yield from decoder.calls(single)

    def decoded(self, decoder: Decoder, wanted: Selection) -> Iterator[tuple[Chunk | None, Iterator[EventLine]]]:
        """Give each chunk with its lines, which need not be taken from a chunk of calls; last None, with
        the kills that nobody made a report of.
        """
        kills = _Kills()
        for chunk in self.chunks():
            lines = self._decode(chunk, decoder, wanted)
            joined = kills.join(lines, from_user_space=chunk.kind is Kind.ENTRIES)
            yield chunk, _guarded(self.path, filter(wanted.takes, joined))
        yield None, filter(wanted.takes, kills.left())
        self.unknown_records = decoder.unknown_records

    def calls_of(self, chunk: Chunk, wanted: Selection) -> Array:
        """Return the records of a chunk of calls."""
        with _damage(self.path):
            array = records(np.frombuffer(chunk.payload, self.schema.call_slot))
            return wanted.of_calls(array, self.schema)

    def frames(self, selection: Selection | None = None) -> dict[str, pd.DataFrame]:
        """Return the recording as DataFrames by name of the event (frames.py); it must fit into memory."""
        from rtdebug.tracing.frames import frames  # pandas takes a second to import

        return frames(self, selection)

    def _decode(self, chunk: Chunk, decoder: Decoder, wanted: Selection) -> Iterator[EventLine]:
        if chunk.kind is Kind.CALLS:
            yield from decoder.calls(self.calls_of(chunk, wanted))
        elif chunk.kind is Kind.EVENTS:
            yield from decoder.events(records(np.frombuffer(chunk.payload, self.schema.event_slot)))
        elif chunk.kind is Kind.AGGREGATES:
            (time_ns,) = struct.unpack_from("<Q", chunk.payload)
            array = np.frombuffer(chunk.payload, self.schema.aggregate_record, offset=8)
            yield from decoder.aggregates(time_ns, array)
        elif chunk.kind is Kind.ENTRIES:
            for text in chunk.payload.split(b"\n"):
                if line := decoder.learn(json.loads(text)):
                    yield line

    def _stop(self, reason: str) -> None:
        self.problem = reason


class _Kills:
    """Holds an oom_kill of the kernel back until the report comes that user space joined to it."""

    def __init__(self) -> None:
        self._waiting: dict[int, EventLine] = {}

    def join(self, lines: Iterator[EventLine], *, from_user_space: bool) -> Iterator[EventLine]:
        for line in lines:
            if line.event != "oom_kill":
                yield line
            elif from_user_space:
                self._waiting.pop(line.pid, None)
                yield line
            else:
                self._waiting[line.pid] = line

    def left(self) -> Iterator[EventLine]:
        yield from self._waiting.values()


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Say of a chunk whose content makes no sense that the file is bad; whatever it was that fell over it."""
    wrong_value = (LookupError, TypeError, ValueError, AttributeError)
    nonsense = (*wrong_value, OverflowError, RecursionError, struct.error)
    try:
        yield
    except nonsense as error:
        detail = f"{type(error).__name__}: {error!s:.100}"
        message = f"{path} holds something that no trace writes ({detail})"
        raise RtdebugError(message, "the file is damaged") from error


def _guarded(path: Path, lines: Iterator[EventLine]) -> Iterator[EventLine]:
    with _damage(path):
        yield from lines


def _start_from(value: Mapping[str, Any]) -> Start:
    known = {name: value[name] for name in Start.__slots__}
    target, command_line = container_from(value["target"]), tuple(value["command_line"])
    start = Start(**known | {"target": target, "command_line": command_line})
    if start.byte_order not in ("little", "big") or not 0 < start.page_size_bytes <= 1 << 20:
        raise ValueError("no such machine")
    return start


def _end_from(value: Mapping[str, Any]) -> End:
    mapped = value["still_mapped"]
    return End(
        ended_ns=value["ended_ns"],
        attached_ns=value["attached_ns"],
        lost=value["lost"],
        still_mapped=None if mapped is None else dict(mapped),
        still_linked=_shared_from(value["still_linked"]),
        last_sizes=_shared_from(value["last_sizes"]),
    )


def _shared_rows(shared: Mapping[SharedKey, int | None] | None) -> list[list[Any]] | None:
    return None if shared is None else [[*key, size] for key, size in shared.items()]


def _shared_from(rows: list[list[Any]] | None) -> dict[SharedKey, int | None] | None:
    return None if rows is None else {SharedKey(*key): size for *key, size in rows}


def _json(value: Any) -> bytes:  # noqa: ANN401 - whatever JSON can hold
    return json.dumps(value, separators=(",", ":")).encode()


def _ignore(_reason: str) -> None:
    return None
