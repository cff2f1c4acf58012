"""How long a thread stands still while it calls madvise for `rtdebug madvise apply`."""

from __future__ import annotations

import mmap
import os
import signal

from benchmarks.figure import Figure, Result, Samples
from rtdebug.host.maps import read_maps
from rtdebug.madvise.advice import ADVICE
from rtdebug.madvise.inject import call_madvise

_TIMES = 101
_NS_PER_MS = 1e6


def measure() -> Result:
    """Borrow the only thread of a process that computes, many times."""
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                sum(range(1000))
        finally:
            os._exit(1)
    try:
        heap = next(mapping for mapping in read_maps(pid) if mapping.path == "[heap]")
        advice = ADVICE["MADV_DODUMP"].number
        times = [call_madvise(pid, (heap.start, mmap.PAGESIZE, advice)).stopped_ns / _NS_PER_MS for _ in range(_TIMES)]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    stood_still = Samples("one call", tuple(times))
    return Result((Figure("a borrowed thread stands still for", stood_still, "ms", 1.0),), (stood_still,), "ms")
