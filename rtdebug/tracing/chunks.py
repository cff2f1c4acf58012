"""Chunks: the framing of a recording.

A file is MAGIC, then chunks. A chunk is a header of 12 bytes (kind, length of the payload, CRC-32 of kind,
length and payload; little endian) and the payload:

    STRT  JSON: where, when and how the trace was made, and the text of events.h. Always the first.
    CALL  slots of the ring `calls` as they were, with the kernel's record headers
    EVNT  slots of the ring `events`
    AGGR  u64 time (CLOCK_MONOTONIC), then counts added up by the kernel since the last one
    LINE  JSON, one entry a line: what user space found out (entries.py)
    LOST  JSON: events lost so far, by name
    END.  JSON: how the trace ended. Always the last.

Chunks are only ever added, so a file cut off by kill -9 or a full disk is read up to its last whole chunk.
Kinds a reader does not know are skipped.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rtdebug.errors import RtdebugError, UsageProblem

Buffer = bytes | memoryview
"""Bytes, maybe where they lie."""

MAGIC = b"RTDEBUG\x01"
"""The last byte is the version of the framing."""

MAX_PAYLOAD_BYTES = 1 << 26
"""No writer makes a larger chunk; a reader believes none."""

_HEADER = struct.Struct("<4sII")
_UNCHECKED = struct.Struct("<4sI")


class Kind(Enum):
    """Kinds of chunks."""

    START = b"STRT"
    CALLS = b"CALL"
    EVENTS = b"EVNT"
    AGGREGATES = b"AGGR"
    ENTRIES = b"LINE"
    LOST = b"LOST"
    END = b"END."


class Chunk(NamedTuple):
    """One chunk of a recording, its checksum verified."""

    kind: Kind
    payload: bytes


def frame(kind: Kind, payload: Buffer) -> bytes:
    """Return the header of a chunk. Raises ValueError when the payload is too large for one."""
    size = len(payload)
    if size > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a chunk of {size} bytes is too large")
    return _HEADER.pack(kind.value, size, _checksum(kind.value, payload))


def create(path: Path, force: bool) -> int:
    """Make the file of a recording, readable by its owner alone, and return its descriptor.

    An existing file is refused; with `force` it is removed, so that one who reads it, or a link, is not hurt.
    Raises UsageProblem when there is one, RtdebugError when the file cannot be made.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        if force and path.is_file():
            path.unlink()  # not O_TRUNC: a link, or a file that others have open, stays as it is
        return os.open(path, flags, 0o600)
    except FileExistsError as error:
        raise UsageProblem(f"{path} exists", "give another name, or --force to replace the file") from error
    except OSError as error:
        hint = "give a file in a folder you can write to"
        raise RtdebugError(f"cannot write {path}: {error.strerror}", hint) from error


def write_all(fd: int, parts: tuple[Buffer, ...]) -> int:
    """Write the parts, one after the other, and return their length. Raises OSError."""
    left = [memoryview(part) for part in parts if len(part)]
    total = sum(map(len, left))
    while left:  # a disk that is nearly full takes some of it before it says so
        written = os.writev(fd, left)
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left:
            left[0] = left[0][written:]
    return total


_HINTS = {
    errno.EACCES: "sudo chown it, or read it as root",
    errno.ENOENT: "a recording is made by `rtdebug trace TARGET --record FILE`",
}


def open_chunks(path: Path, stop: Callable[[str], object]) -> Iterator[Chunk]:
    """Give the chunks of a recording, the first too, their checksums verified.

    Where the file breaks off or is damaged, `stop` is told why and no more chunks come. Raises RtdebugError
    when the file cannot be read or is no recording.
    """
    with _open(path) as file:
        yield from _read_chunks(file, stop)


def _open(path: Path) -> BinaryIO:
    """Open a recording and skip its magic."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not hang us
    except OSError as error:
        hint = _HINTS.get(error.errno or 0, "")
        raise RtdebugError(f"cannot read {path}: {error.strerror}", hint) from error
    magic = b""
    if stat.S_ISREG(os.fstat(fd).st_mode):
        file = os.fdopen(fd, "rb")
        magic = file.read(len(MAGIC))
        if magic == MAGIC:
            return file
        file.close()
    else:
        os.close(fd)
    hint = "recordings are made by rtdebug trace --record FILE"
    if magic[:-1] == MAGIC[:-1]:
        hint = "it was made by a newer rtdebug: read it with that version or a later one"
    raise RtdebugError(f"{path} is not a recording that this rtdebug can read", hint)


def _read_chunks(file: BinaryIO, stop: Callable[[str], object]) -> Iterator[Chunk]:
    kinds = {kind.value: kind for kind in Kind}
    offset = file.tell()
    while header := file.read(_HEADER.size):
        if len(header) < _HEADER.size:
            stop(f"it breaks off at byte {offset}")
            return
        name, size, crc = _HEADER.unpack(header)
        payload = file.read(size) if size <= MAX_PAYLOAD_BYTES else b""
        if size <= MAX_PAYLOAD_BYTES and len(payload) < size:
            stop(f"it breaks off at byte {offset}")
            return
        if size > MAX_PAYLOAD_BYTES or _checksum(name, payload) != crc:
            stop(f"it is damaged at byte {offset}")
            return
        offset += _HEADER.size + size
        if kind := kinds.get(name):
            yield Chunk(kind, payload)


def _checksum(name: bytes, payload: Buffer) -> int:
    return zlib.crc32(payload, zlib.crc32(_UNCHECKED.pack(name, len(payload))))
