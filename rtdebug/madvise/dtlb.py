"""Loads of this process that miss the data TLB, where the processor's counters can be had: perf_event_open(2)."""

from __future__ import annotations

import os
import struct

from rtdebug.madvise import syscalls

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_DTLB_READ_MISSES = 3 | 0 << 8 | 1 << 16
"""PERF_COUNT_HW_CACHE_DTLB, _OP_READ, _RESULT_MISS of include/uapi/linux/perf_event.h."""
_PERF_TYPE_HW_CACHE = 3
_INHERIT = 1 << 1
_EXCLUDE_KERNEL_AND_HYPERVISOR = 1 << 5 | 1 << 6


class DtlbCounter:
    """Counts from its construction on, in user mode only, this process and those that it forks."""

    def __init__(self) -> None:
        self._fd = _open()

    def read(self) -> int | None:
        """So many so far; None: no such counter here, as in most virtual machines."""
        if self._fd is None:
            return None
        raw = os.read(self._fd, 8)
        return int(struct.unpack("=Q", raw)[0]) if len(raw) == 8 else None


def _open() -> int | None:
    """perf_event_open(2); None where there is no such counter, or it is not ours to use."""
    number = _PERF_EVENT_OPEN.get(os.uname().machine)
    if number is None:
        return None
    ffi, _ = syscalls.libc()
    attribute = struct.pack(
        "=IIQQQQQ", _PERF_TYPE_HW_CACHE, 64, _DTLB_READ_MISSES, 0, 0, 0, _INHERIT | _EXCLUDE_KERNEL_AND_HYPERVISOR
    ).ljust(64, b"\0")
    try:
        return syscalls.syscall(number, ffi.from_buffer("char[]", attribute), 0, -1, -1, 8)
    except OSError:
        return None
