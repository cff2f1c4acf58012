"""Work in a forked child, for its result alone: the modules and memory it needed go when it ends.

The tracing process has 45 MB in all. What asking the runtimes needs (HTTP with OpenSSL behind it, threads) would stay
in it for ever; in a child it costs nothing.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
from collections.abc import Callable
from typing import Generic, TypeVar

from rtdebug.errors import RtdebugError

T = TypeVar("T")


class Child(Generic[T]):
    """A forked child that calls `function`. `result()` waits for it; poll `fileno()` or `is_done()` before."""

    def __init__(self, function: Callable[[], T]) -> None:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            _answer(function, write_fd)
        os.close(write_fd)
        self._fd = read_fd

    def is_done(self) -> bool:
        """Say whether result() would not wait long."""
        return bool(select.select([self._fd], [], [], 0)[0])

    def result(self) -> T:
        """Return what the function returned, or raise the RtdebugError that it raised.

        A child that died, or failed in any other way, is an RtdebugError too.
        """
        with os.fdopen(self._fd, "rb") as pipe:
            content = pipe.read()
        os.waitpid(self._pid, 0)
        if not content:
            raise RtdebugError("a helper process of rtdebug died", "perhaps this host has no memory left")
        value, error = pickle.loads(content)
        if error is not None:
            kind, message, hint = error
            raise kind(message, hint)
        result: T = value
        return result


def in_child(function: Callable[[], T]) -> T:
    """Call `function` in a child and return its result. Raises RtdebugError as `Child.result()` does."""
    return Child(function).result()


def _answer(function: Callable[[], T], fd: int) -> None:
    """Never returns."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        try:
            content = pickle.dumps((function(), None))
        except RtdebugError as error:
            content = pickle.dumps((None, (type(error), error.message, error.hint)))
        except Exception as error:
            content = pickle.dumps(
                (None, (RtdebugError, f"{type(error).__name__}: {error}", "this is a bug in rtdebug"))
            )
        with os.fdopen(fd, "wb") as pipe:
            pipe.write(content)
    finally:
        os._exit(0)
