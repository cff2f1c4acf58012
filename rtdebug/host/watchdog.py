"""Undoing what must not outlive us, also when we are killed: a forked child that waits for our end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable

from rtdebug.errors import RtdebugError

_ENDED, _FAILED = 0, 1
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTSTP)


class Watchdog:
    """Calls `undo` when close() is called, or when this process ends in whatever way: once, in a child. `longest_s`:
    after so long at the latest.

    The child has a session of its own and ignores the signals of a terminal, so that what ends us does not end it.
    `undo` must neither need threads nor print; what it raises makes close() raise.
    """

    def __init__(self, undo: Callable[[], None], longest_s: float | None = None) -> None:
        # The pipe alone would not do: other children of ours hold copies of its writing end.
        us = os.pidfd_open(os.getpid())  # Linux 5.3
        read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC)
        ready_fd, tell_fd = os.pipe2(os.O_CLOEXEC)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)  # none may reach the child before it ignores them
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._write_fd)
            _wait_and_undo(undo, us, read_fd, tell_fd, longest_s)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for fd in (read_fd, us, tell_fd):
            os.close(fd)
        os.read(ready_fd, 1)  # it has a session of its own now: what kills our process group leaves it
        os.close(ready_fd)

    def close(self) -> None:
        """Undo now. Raises RtdebugError if that failed."""
        if self._pid == 0:
            return
        os.close(self._write_fd)
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        if status != _ENDED:
            raise RtdebugError("what was changed could not be put back", "the files named before may need it by hand")

    def __enter__(self) -> Watchdog:
        """The watchdog waits from its construction on."""
        return self

    def __exit__(self, *_: object) -> None:
        """Undo."""
        self.close()


def _wait_and_undo(
    undo: Callable[[], None], us: int, read_fd: int, tell_fd: int, longest_s: float | None
) -> None:
    """Never returns."""
    status = _FAILED
    try:
        os.setsid()
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        _leave_streams()
        os.write(tell_fd, b"1")
        select.select([us, read_fd], [], [], longest_s)
        undo()
        status = _ENDED
    finally:
        os._exit(status)


def _leave_streams() -> None:
    """Else whoever reads our output waits for the watchdog too."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
