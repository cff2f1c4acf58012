"""What a hit of a uprobe costs on this machine: 0.3 us on bare metal, 1 us and more in a virtual machine."""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass
from pathlib import Path

from rtdebug.host import bpf
from rtdebug.host.trials import open_libc, place_in_libc

_CALLS = 2000


@dataclass(frozen=True, slots=True)
class UprobeCost:
    """CPU time of the probed process for each hit."""

    entry_ns: float
    return_ns: float
    """More, for a call whose return is probed too."""

    def of(self, entries: int, returns: int) -> int:
        """Nanoseconds for so many hits."""
        return round(entries * self.entry_ns + returns * self.return_ns)


def measure_cost(entry_program: int, return_program: int) -> UprobeCost:
    """Probe this process's own malloc and call it. Takes a few hundredths of a second. Raises BpfError."""
    path, offset = place_in_libc("malloc")
    plain_ns = _pair_ns()
    entry = bpf.open_uprobe(entry_program, Path(path), offset, os.getpid(), at_return=False)
    try:
        entry_ns = _pair_ns()
        second = bpf.open_uprobe(return_program, Path(path), offset, os.getpid(), at_return=True)
        try:
            both_ns = _pair_ns()
        finally:
            os.close(second)
    finally:
        os.close(entry)
    return UprobeCost(max(0.0, entry_ns - plain_ns), max(0.0, both_ns - entry_ns))


def _pair_ns() -> float:
    """CPU time of one malloc and its free, the best of three."""
    libc = open_libc()
    malloc, free = libc.malloc, libc.free
    malloc.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    times = []
    for _ in range(3):
        began_ns = time.thread_time_ns()
        for _ in range(_CALLS):
            free(malloc(1))
        times.append((time.thread_time_ns() - began_ns) / _CALLS)
    return min(times)
