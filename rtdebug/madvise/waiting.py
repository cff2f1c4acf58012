"""Waiting, while somebody looks whether it shall go on."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_EVERY_S = 0.25


def wait(
    seconds: float,
    why_stop: Callable[[], str | None],
    on_wait: Callable[[int, int], None] = lambda _done, _total: None,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Wait so long, or until `why_stop` gives a reason: that one. `on_wait` is told seconds, done and all."""
    started = time.monotonic()
    while (left := seconds - (time.monotonic() - started)) > 0:
        sleep(min(left, LOOK_EVERY_S))
        if reason := why_stop():
            return reason
        on_wait(int(time.monotonic() - started), int(seconds))
    return None
