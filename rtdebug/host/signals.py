"""The signals that end a long run properly: SIGINT, SIGTERM and SIGHUP."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_stop_signals(stop: Callable[[], object]) -> Iterator[int]:
    """Call `stop` for each of them, inside the block; a SIGHUP that is ignored (nohup) stays so.

    `stop` may raise KeyboardInterrupt to end at once. Yields a descriptor that they wake.
    """
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop()

    for number in before:
        signal.signal(number, on_signal)
    wakeup_before = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    try:
        yield read_fd
    finally:
        signal.set_wakeup_fd(wakeup_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read_fd)
        os.close(write_fd)
