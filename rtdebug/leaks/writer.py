"""StoreWriter: appends rows to a store of segments, rotates them, seals them, and removes the oldest.

What was flushed is in the file system: kill -9 loses the rows since the last flush, half a minute at most. The next
writer on this host seals what a dead one left open.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rtdebug.errors import RtdebugError, UsageProblem
from rtdebug.leaks.arrow import record_batch
from rtdebug.leaks.segments import SEALED, STREAM, arrow_schema, find_segments, host_in_name, parse_segment
from rtdebug.leaks.store import iter_stream
from rtdebug.leaks.tables import TABLES, Row

FLUSH_S = 30.0
"""Rows wait so long at most before they are written: a batch has a price of its own, about 5 KB."""
FLUSH_ROWS = 50_000
SEGMENT_S = 3600.0
SEGMENT_BYTES = 32 << 20
ROW_GROUP_ROWS = 1 << 17


class StoreWriter:
    """Writes the tables of one host. Use it as a context manager: leaving it seals everything.

    `keep_bytes` bounds what this host has in the store; the oldest segments go first. `notice` is told what the user
    should know. Raises UsageProblem when another writer of this host is at work there, or `folder` is no folder;
    RtdebugError when it cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        host: str,
        keep_bytes: int,
        notice: Callable[[str], object],
        *,
        flush_s: float = FLUSH_S,
        segment_s: float = SEGMENT_S,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._folder = folder
        self._host = host_in_name(host)
        self._keep_bytes = keep_bytes
        self._notice = notice
        self._flush_s = flush_s
        self._segment_s = segment_s
        self._segment_bytes = segment_bytes
        self._rows: dict[str, list[Row]] = {table: [] for table in TABLES}
        self._streams: dict[str, _Stream] = {}
        self._flushed_s = time.monotonic()
        self._failing = False
        self._sealed_bytes = 0
        self.lost_rows = 0
        """Rows that could not be written."""
        self._lock: int | None = _lock(folder, self._host)
        self._seal_leftovers()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, table: str, rows: Sequence[Row]) -> None:
        """Take rows; they are written at the next flush, which is done here when it is time."""
        self._rows[table] += rows
        full = sum(map(len, self._rows.values())) >= FLUSH_ROWS
        if full or time.monotonic() - self._flushed_s >= self._flush_s:
            self.flush()

    def flush(self) -> None:
        """Write what waits. A disk that is full costs these rows and a notice, not the recording."""
        self._flushed_s = time.monotonic()
        for table, rows in self._rows.items():
            if rows:
                self._rows[table] = []
                self._write(table, rows)

    def close(self) -> None:
        """Write what waits and seal all segments. May be called twice."""
        if self._lock is None:
            return
        self.flush()
        for table in list(self._streams):
            self._rotate(table)
        lock, self._lock = self._lock, None
        os.close(lock)

    def size_bytes(self) -> int:
        """What this host has in the store now."""
        return self._sealed_bytes + sum(stream.size_bytes for stream in self._streams.values())

    def _write(self, table: str, rows: list[Row]) -> None:
        try:
            if table not in self._streams:
                self._streams[table] = _Stream(self._folder, table, self._host)
            stream = self._streams[table]
            stream.write(rows)
            if stream.size_bytes >= self._segment_bytes or stream.age_s >= self._segment_s:
                self._rotate(table)
            self._failing = False
        except OSError as error:
            self.lost_rows += len(rows)
            self._give_up(table)
            if not self._failing:
                self._notice(
                    f"cannot write to {self._folder}: {error.strerror or error}; samples are lost until it can be"
                )
            self._failing = True

    def _give_up(self, table: str) -> None:
        """Close a stream that could not be written; the next rows begin another."""
        stream = self._streams.pop(table, None)
        if stream is not None:
            stream.close()
            if not stream.size_bytes:
                stream.path.unlink(missing_ok=True)

    def _rotate(self, table: str) -> None:
        stream = self._streams.pop(table)
        stream.close()
        self._seal(stream.path)
        self._remove_oldest()

    def _seal_leftovers(self) -> None:
        for segment in find_segments([self._folder]):
            if segment.is_stream and segment.host == self._host and segment.path.parent == self._folder:
                self._seal(segment.path)
        for unfinished in self._folder.glob(f"*-{self._host}-*.parquet.tmp"):
            unfinished.unlink(missing_ok=True)
        self._remove_oldest()

    def _seal(self, path: Path) -> None:
        """A stream stays a stream where there is no room for the other: it can be read as well."""
        with contextlib.suppress(OSError):
            seal(path)

    def _own_files(self) -> list[tuple[Path, int]]:
        files = []
        for segment in find_segments([self._folder]):
            if segment.host == self._host and segment.path.parent == self._folder:
                with contextlib.suppress(OSError):
                    files.append((segment.path, segment.path.stat().st_size))
        return files

    def _remove_oldest(self) -> None:
        files = self._own_files()
        excess = sum(size for _, size in files) - self._keep_bytes
        for path, size in files:
            if excess <= 0:
                break
            if path.suffix != STREAM:
                path.unlink(missing_ok=True)
                excess -= size
        open_bytes = sum(stream.size_bytes for stream in self._streams.values())
        self._sealed_bytes = max(0, excess + self._keep_bytes - open_bytes)


class _Stream:
    """A segment that is being written: batches, each in the file system once write() returns."""

    def __init__(self, folder: Path, table: str, host: str) -> None:
        import pyarrow as pa

        self.path = folder / f"{table}-{host}-{time.time_ns()}-{os.getpid()}{STREAM}"
        self._began_s = time.monotonic()
        self._schema = arrow_schema(table)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._waiting = _Waiting()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._waiting, "w"), self._schema, options=options)
        self.size_bytes = 0

    @property
    def age_s(self) -> float:
        """Since it was begun."""
        return time.monotonic() - self._began_s

    def write(self, rows: list[Row]) -> None:
        """Append one batch, whole or not at all. Raises OSError; then no more can be written."""
        self._writer.write_batch(record_batch(rows, self._schema))
        content = memoryview(self._waiting.take())
        written = 0
        try:
            while written < len(content):
                written += os.write(self._fd, content[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.size_bytes)
            raise
        self.size_bytes += written

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class _Waiting(io.RawIOBase):
    """What Arrow has written and we have not: a batch goes to the file whole."""

    def __init__(self) -> None:
        super().__init__()
        self._content = bytearray()
        self._taken = 0

    def writable(self) -> bool:
        """It is for writing."""
        return True

    def write(self, content: Any) -> int:  # noqa: ANN401 - a buffer
        """Keep it."""
        self._content += content
        return len(content)

    def tell(self) -> int:
        """Where the next byte will be in the file."""
        return self._taken + len(self._content)

    def take(self) -> bytes:
        """What came since the last time."""
        content = bytes(self._content)
        self._taken += len(content)
        self._content.clear()
        return content


def seal(path: Path) -> None:
    """Turn a closed stream into Parquet of the same name; one without a row is removed. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    segment = parse_segment(path)
    if segment is None:
        return
    unfinished = path.with_suffix(SEALED + ".tmp")
    schema = arrow_schema(segment.table)
    rows = 0
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for group in _groups(iter_stream(path)):
                writer.write_table(pa.Table.from_batches(group, schema))
                rows += sum(batch.num_rows for batch in group)
        if rows:
            unfinished.replace(segment.sealed_path)
        path.unlink()
    finally:
        unfinished.unlink(missing_ok=True)


def _groups(batches: Iterable[Any]) -> Iterator[list[Any]]:
    """Batches joined to row groups: a reader then skips what it does not ask for."""
    group: list[Any] = []
    for batch in batches:
        group.append(batch)
        if sum(member.num_rows for member in group) >= ROW_GROUP_ROWS:
            yield group
            group = []
    if group:
        yield group


def _lock(folder: Path, host: str) -> int:
    """Make the folder, which nobody else may enter (rows hold command lines), and be its only writer of this host."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(folder / f".{host}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageProblem(f"--store {folder} is not a folder", "give one that is, or a new one") from error
    except OSError as error:
        raise RtdebugError(
            f"cannot make the store {folder}: {error.strerror}", "give another place with --store DIR"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise UsageProblem(
            f"another `rtdebug leaks record` of this host writes to {folder}",
            "one is enough; for another selection give another --store",
        ) from error
    return fd
