"""Messages between rtdebug's own processes: the length, then the pickled value. Never used with anybody else."""

from __future__ import annotations

import os
import pickle
import select
import struct
from typing import Any

_HEAD = struct.Struct("=Q")
_CHUNK_BYTES = 1 << 20


def send(fd: int, message: object) -> None:
    """Write one message; waits for room. Raises BrokenPipeError when nobody reads."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    rest = memoryview(_HEAD.pack(len(content)) + content)
    while rest:
        rest = rest[os.write(fd, rest) :]


class Receiver:
    """The reading end of a pipe of messages; it is closed by close()."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_open = True
        """Somebody may still write."""
        self._content = bytearray()

    def fileno(self) -> int:
        """Of the pipe, for poll(2)."""
        return self.fd

    def receive(self, timeout_s: float | None = 0.0) -> list[Any]:
        """The messages that are there; waits so long for the first bytes, None: for ever. Empty: none, or the end."""
        while self.is_open and select.select([self.fd], [], [], timeout_s)[0]:
            chunk = os.read(self.fd, _CHUNK_BYTES)
            self.is_open = bool(chunk)
            self._content += chunk
            if messages := self._take():
                return messages
        return []

    def close(self) -> None:
        """Close the pipe."""
        self.is_open = False
        os.close(self.fd)

    def _take(self) -> list[Any]:
        messages, at = [], 0
        while len(self._content) - at >= _HEAD.size:
            (length,) = _HEAD.unpack_from(self._content, at)
            if len(self._content) - at - _HEAD.size < length:
                break
            at += _HEAD.size
            messages.append(pickle.loads(memoryview(self._content)[at : at + length]))
            at += length
        del self._content[:at]
        return messages
