"""A snapshot of 200 processes with 50,000 mappings, beside `cat` of the same smaps; and its memory."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.figure import Figure, Result, Samples, interleave, ratio_of_least, sampled
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
    """In one process, with what it imports loaded: `rtdebug snapshot` adds the start of Python, shown by itself.

    The reference is what a person does without rtdebug: a loop of the shell with `cat` of each smaps. One cat of all
    of them, which needs no processes started, is the least that anything can take, and is shown too.
    """
    with _crowd() as cgroup:
        taken: dict[str, list[tuple[float, float]]] = interleave(
            ROUNDS,
            {
                "cat of each": lambda: in_child(lambda: _timed(lambda: _cat_each(cgroup))),
                "one cat of all": lambda: in_child(lambda: _timed(lambda: _cat_all(cgroup))),
                "take_snapshot()": lambda: in_child(lambda: _take(cgroup)),
                "rtdebug snapshot": lambda: in_child(lambda: _timed(lambda: _command(cgroup))),
            },
        )
        memory = sampled(3, {"peak": lambda: in_child(lambda: _command(cgroup)) / _MB})[0]
    time, cpu = ({name: _column(name, pairs, index) for name, pairs in taken.items()} for index in (0, 1))
    each, all_, take, command = taken
    return Result(
        (
            Figure("take_snapshot() / cat of each smaps", ratio_of_least("time", time[take], time[each]), "x", 1.5),
            Figure("the same in CPU time", ratio_of_least("cpu", cpu[take], cpu[each]), "x"),
            Figure("take_snapshot() / one cat of all", ratio_of_least("time", time[take], time[all_]), "x"),
            Figure("the same in CPU time", ratio_of_least("cpu", cpu[take], cpu[all_]), "x"),
            Figure("rtdebug snapshot / cat of each", ratio_of_least("time", time[command], time[each]), "x"),
            Figure("memory of rtdebug snapshot, its largest process", memory, "MB", 100),
        ),
        (*time.values(), *(replace(each, name=f"{each.name}, CPU") for each in cpu.values())),
        "s",
    )


def _column(name: str, pairs: list[tuple[float, float]], index: int) -> Samples:
    return Samples(name, tuple(pair[index] for pair in pairs))


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


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds that pass, and seconds of all processors, children included. In a child, so that nothing adds to it."""
    started, used = time.perf_counter(), _cpu_seconds()
    work()
    return time.perf_counter() - started, _cpu_seconds() - used


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _cat_each(cgroup: Path) -> None:
    loop = 'for pid in "$@"; do cat "/proc/$pid/smaps"; done >/dev/null'
    subprocess.run(["sh", "-c", loop, "sh", *map(str, pids_of(cgroup))], check=True)


def _cat_all(cgroup: Path) -> None:
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


def _command(cgroup: Path) -> int:
    """The largest resident memory, of it or of its children. To be called in a child: it counts all that this had."""
    target = f"cgroup:{find_memory_hierarchy().cgroup(cgroup)}"
    with TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "rtdebug", "snapshot", target, "--file", f"{folder}/a.tar.gz"]
        subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
