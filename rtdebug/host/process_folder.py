"""/proc/PID held open: all that is read through it is of one process, even if its pid is given to another meanwhile.

The kernel ties the folder to the process, not to the number (fs/proc/base.c: proc_pid_make_inode): once the process has
been reaped, its files cannot be opened any more. It is also faster than to look up the whole path each time.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import TracebackType

from rtdebug.host.process import PROC
from rtdebug.host.text import NOT_THERE, decode

_NAMESPACE = re.compile(r"\w+:\[(\d+)\]")


class ProcessFolder:
    """The folder of one process, until it is closed: use it in a `with` block."""

    def __init__(self, pid: int | str, proc: Path = PROC) -> None:
        """Raises OSError: there is no such process."""
        self.pid = pid
        self._fd = os.open(f"{proc}/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> ProcessFolder:
        """Nothing further is opened."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        os.close(self._fd)

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """A descriptor of `name` in it. Raises OSError."""
        return os.open(name, flags | os.O_CLOEXEC, dir_fd=self._fd)

    def raw(self, name: str, limit_bytes: int = -1) -> bytes:
        """The bytes of a file in it, of one that the process fills the first ones. Raises OSError."""
        with os.fdopen(self.open(name), "rb", buffering=0) as file:
            return file.read(limit_bytes) if limit_bytes >= 0 else file.readall()

    def text(self, name: str, limit_bytes: int = -1) -> str | None:
        """As host.text.read_text(): None if it does not exist, has vanished or may not be read."""
        try:
            return decode(self.raw(name, limit_bytes))
        except OSError as error:
            if error.errno in NOT_THERE:
                return None
            raise

    def link(self, name: str) -> str | None:
        """Where a link leads; None as for text()."""
        try:
            return os.readlink(name, dir_fd=self._fd)
        except OSError:
            return None

    def namespace_id(self, kind: str) -> int | None:
        """Inode number of a namespace (`mnt`, `pid`, ...); None as for text()."""
        match = _NAMESPACE.fullmatch(self.link(f"ns/{kind}") or "")
        return int(match[1]) if match else None
