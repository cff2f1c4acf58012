"""Ending long work properly at Ctrl-C, SIGTERM and SIGHUP, by asking rather than by an exception."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_EVERY_S = 0.1

Wait = Callable[[float], bool]
"""Sleep so many seconds; True, at once, when the user wants to stop."""


@contextlib.contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
    """Within, a signal to end only sets what the given function says. SIGHUP under nohup stays ignored."""
    asked = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield lambda: asked
    finally:
        for number in ours:
            signal.signal(number, before[number])


@contextlib.contextmanager
def waiting() -> Iterator[Wait]:
    """Give a Wait that a signal to end cuts short."""
    with stop_requested() as stopped:

        def wait(seconds: float) -> bool:
            end = time.monotonic() + seconds
            while not stopped() and (left := end - time.monotonic()) > 0:
                time.sleep(min(left, _LOOK_EVERY_S))
            return stopped()

        yield wait
