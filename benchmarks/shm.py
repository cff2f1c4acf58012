"""What a look at who uses shared memory costs: `rtdebug shm` visits every process of the host."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from benchmarks.figure import Figure, Result, ratio, sampled
from rtdebug.host.fds import read_file_uses
from rtdebug.host.process import pids

ROUNDS = 15
_FILES, _DESCRIPTORS = 100, 900
"""Below the usual limit of 1,024 descriptors."""
_MOST_TIMES_THE_KERNEL = 4


def measure() -> Result:
    """Compare a process with many descriptors of one tmpfs to stat(2) of each alone; and take the whole host."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="rtdebug-benchmark-") as folder, ExitStack() as stack:
        for number in range(_DESCRIPTORS):
            stack.enter_context((Path(folder) / str(number % _FILES)).open("w"))
        device = Path(folder).stat().st_dev

        def look() -> float:
            started = time.perf_counter()
            found = read_file_uses([os.getpid()], frozenset({device}))
            assert len(found.by_key) == _FILES
            return time.perf_counter() - started

        def host() -> float:
            started = time.perf_counter()
            read_file_uses(pids(), frozenset({device}))
            return time.perf_counter() - started

        seen, alone, everybody = sampled(
            ROUNDS, {f"who uses {_DESCRIPTORS} descriptors": look, "stat(2) of each": _stat_each, "of the host": host}
        )
    count = len(list(pids()))
    return Result(
        (
            Figure(
                "who uses a tmpfs: against stat(2) of each descriptor",
                ratio("looked through / stat(2) alone", seen, alone),
                "x",
                _MOST_TIMES_THE_KERNEL,
            ),
            Figure(f"who uses a tmpfs: all {count} processes of this host", everybody, "s"),
        ),
        (seen, alone, everybody),
        "s",
    )


def _stat_each() -> float:
    started = time.perf_counter()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - as cheap as it can be
        with suppress(OSError):
            os.stat(f"/proc/self/fd/{name}")  # noqa: PTH116
    return time.perf_counter() - started
