"""`rtdebug madvise list` on a process with 50,000 mappings, against the kernel's own time to print its smaps."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figure import Figure, Result, ratio_of_least, sampled
from rtdebug.madvise.apply_plan import read_host
from rtdebug.madvise.candidates import find_candidates, read_process

MAPPINGS = 50_000
LARGE = 200
"""So many of them have enough resident to be looked at."""
_LARGE_BYTES = 4 << 20
_TOUCHED_BYTES = 16 << 10
_ROUNDS = 9
_MOST = 20


def measure() -> Result:
    """Read the file alone, and read and rank it."""
    host = read_host()
    with _many_mappings() as pid:
        path = Path(f"/proc/{pid}/smaps")

        def read_only() -> float:
            started = time.perf_counter()
            path.read_bytes()
            return time.perf_counter() - started

        def listed() -> float:
            started = time.perf_counter()
            found = find_candidates([read_process(pid)], host, _TOUCHED_BYTES, _MOST)
            assert found.mappings >= MAPPINGS
            return time.perf_counter() - started

        reading, listing = sampled(_ROUNDS, {"reading smaps": read_only, "list": listed})
    figure = Figure(f"list of {MAPPINGS:,} mappings / reading smaps", ratio_of_least("", listing, reading), "x", 1.5)
    return Result((figure,), (reading, listing), "s")


@contextmanager
def _many_mappings() -> Iterator[int]:
    """A process with so many mappings: pages of alternating rights, so that the kernel merges none, and some larger."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _map()
            os.write(told, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(told)
    try:
        if not os.read(ready, 1):
            raise RuntimeError(f"vm.max_map_count allows no {MAPPINGS:,} mappings")
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)


def _map() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for _ in range(LARGE):
        libc.mmap.restype = ctypes.c_void_p
        address = libc.mmap(None, _LARGE_BYTES, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        libc.mprotect(ctypes.c_void_p(address + _LARGE_BYTES - mmap.PAGESIZE), mmap.PAGESIZE, 1)
        ctypes.memset(address, 1, _TOUCHED_BYTES)
    count = MAPPINGS - LARGE * 2
    start = libc.mmap(None, count * mmap.PAGESIZE, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    for page in range(count):
        address = start + page * mmap.PAGESIZE
        ctypes.memset(address, 1, 1)
        if page % 2 and libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 1):
            raise OSError(ctypes.get_errno(), "mprotect")
