"""A snapshot of 200 processes with 50,000 mappings, beside `cat` of the same smaps; and its memory."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.figure import Figure, Result, ratio_of_least, sampled
from rtdebug.host.cgroup import find_memory_hierarchy, pids_of
from rtdebug.host.child import in_child
from tests.kernel.workload import MIB, Workload, memory_cgroup

ROUNDS = 5
PROCESSES = 200
MAPPINGS = 250
"""Of each; with its program, stack and libraries about 50,000 in all."""
_LIMIT_BYTES = 2048 * MIB
_MB = 1_000_000


def measure() -> Result:
    """In one process, with what it imports loaded: `rtdebug snapshot` adds the start of Python, shown by itself."""
    with _crowd() as cgroup:
        taken = sampled(
            ROUNDS,
            {
                "cat smaps": lambda: in_child(lambda: _timed(lambda: _cat(cgroup))[0]),
                "take_snapshot()": lambda: in_child(lambda: _take(cgroup)[0]),
                "cat smaps, CPU": lambda: in_child(lambda: _timed(lambda: _cat(cgroup))[1]),
                "take_snapshot(), CPU": lambda: in_child(lambda: _take(cgroup)[1]),
                "rtdebug snapshot": lambda: _command(cgroup)[0],
            },
        )
        memory = sampled(3, {"peak": lambda: _command(cgroup)[1] / _MB})[0]
    cat, take, cat_cpu, take_cpu, command = taken
    return Result(
        (
            Figure("take_snapshot() / cat of the same smaps", ratio_of_least("take", take, cat), "x", 1.5),
            Figure("CPU time of take_snapshot() / of cat", ratio_of_least("cpu", take_cpu, cat_cpu), "x"),
            Figure("rtdebug snapshot, start and file included / cat", ratio_of_least("command", command, cat), "x"),
            Figure("memory of rtdebug snapshot, its largest process", memory, "MB", 100),
        ),
        tuple(taken),
        "s",
    )


@contextmanager
def _crowd() -> Iterator[Path]:
    with (
        TemporaryDirectory() as folder,
        memory_cgroup(_LIMIT_BYTES) as cgroup,
        Workload("mappings", PROCESSES, MAPPINGS, Path(folder) / "file", cgroup=cgroup) as crowd,
    ):
        crowd.go()
        deadline = time.monotonic() + 60
        while _mappings(cgroup) < PROCESSES * MAPPINGS and time.monotonic() < deadline:
            time.sleep(0.2)
        yield cgroup


def _mappings(cgroup: Path) -> int:
    return sum(Path(f"/proc/{pid}/maps").read_bytes().count(b"\n") for pid in pids_of(cgroup))


def _timed(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds that pass, and seconds of all processors, children included. In a child, so that nothing adds to it."""
    started, used = time.perf_counter(), _cpu_seconds()
    work()
    return time.perf_counter() - started, _cpu_seconds() - used


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _cat(cgroup: Path) -> None:
    files = [f"/proc/{pid}/smaps" for pid in pids_of(cgroup)]
    subprocess.run(["cat", *files], stdout=subprocess.DEVNULL, check=True)


def _take(cgroup: Path) -> tuple[float, float]:
    import numpy  # noqa: F401 - loaded before the clock starts
    import pyroute2  # noqa: F401

    from rtdebug.containers.model import Container
    from rtdebug.snapshot.take import take_snapshot

    hierarchy = find_memory_hierarchy()
    path = hierarchy.cgroup(cgroup)
    assert path is not None
    container = Container(path, None, None, None, "running", path)
    snapshots = []
    figures = _timed(lambda: snapshots.append(take_snapshot(container, hierarchy)))
    mappings = sum(process.mapping_count or 0 for process in snapshots[0].processes)
    assert mappings >= PROCESSES * MAPPINGS, mappings
    return figures


def _command(cgroup: Path) -> tuple[float, int]:
    """Seconds, and the largest resident memory of it and of its children."""
    target = f"cgroup:{find_memory_hierarchy().cgroup(cgroup)}"
    with TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "rtdebug", "snapshot", target, "--file", f"{folder}/a.tar.gz"]
        started = time.perf_counter()
        peak = in_child(lambda: _run(argv))
        return time.perf_counter() - started, peak


def _run(argv: list[str]) -> int:
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
