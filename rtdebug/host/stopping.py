"""Waiting that ends properly at Ctrl-C, SIGTERM and SIGHUP, by asking rather than by an exception."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Iterator

from rtdebug.host.signals import on_stop_signals

Wait = Callable[[float], bool]
"""Sleep so many seconds; True, at once, when the user wants to stop."""


@contextlib.contextmanager
def waiting() -> Iterator[Wait]:
    """Give a Wait that a signal to end cuts short. Within, such a signal does nothing else."""
    asked: list[bool] = []
    with on_stop_signals(lambda: asked.append(True)) as wake_fd:

        def wait(seconds: float) -> bool:
            end = time.monotonic() + seconds
            while not asked and (left := end - time.monotonic()) > 0:
                select.select([wake_fd], [], [], left)
            return bool(asked)

        yield wait
