"""Wall time: what CLOCK_REALTIME is at a kernel time stamp, which is CLOCK_MONOTONIC."""

from __future__ import annotations

import time

STEP_NS = 10_000_000
"""By so much the offset moves before it is taken anew: a step, a suspend, or 20 s of the fastest slewing."""


def clock_offset_ns() -> int:
    """Return CLOCK_REALTIME minus CLOCK_MONOTONIC, now.

    The closest of a few pairs of readings is taken: a thread can be switched out between two.
    """
    readings = []
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        readings.append((after - before, wall - (before + after) // 2))
    return min(readings)[1]
