"""The process that is traced: it makes calls when told to, in a cgroup of its own, on a CPU of its own."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from rtdebug.host.cgroup import find_memory_hierarchy

CALLER_CPU = min(os.sched_getaffinity(0))
BATCHES = 7

_folder = TemporaryDirectory(prefix="rtdebug-bench-")


class Caller:
    """A running benchmarks/calls.c."""

    def __init__(self, process: subprocess.Popen[str], cgroup: str) -> None:
        self._process = process
        self.pid = process.pid
        self.target = f"cgroup:{cgroup}"
        """As `rtdebug trace` takes it."""

    def make(self, call: str, count: int) -> float:
        """Make `count` calls and return the nanoseconds of CPU time that one took."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{call} {count}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline()) / count

    def ns_per_call(self, call: str, count: int, pause_s: float = 0) -> float:
        """Return the least nanoseconds per call of several batches: what interrupts add is not ours."""
        least = float("inf")
        for _ in range(BATCHES):
            least = min(least, self.make(call, count // BATCHES))
            time.sleep(pause_s)
        return least


@contextmanager
def caller(name: str = "caller") -> Iterator[Caller]:
    """Start one in the cgroup rtdebug-bench-<pid>-<name>."""
    hierarchy = find_memory_hierarchy()
    cgroup = f"/rtdebug-bench-{os.getpid()}-{name}"
    folder = hierarchy.path(cgroup)
    folder.mkdir()
    # a session of its own, as a container has: with sched_autogroup the tracer would share its weight
    process = subprocess.Popen(
        [_program()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        (folder / "cgroup.procs").write_text(str(process.pid))
        os.sched_setaffinity(process.pid, {CALLER_CPU})
        yield Caller(process, cgroup)
    finally:
        process.kill()
        process.communicate()
        _remove(folder)


@cache
def _program() -> Path:
    program = Path(_folder.name) / "calls"
    subprocess.run(["gcc", "-O2", "-o", program, Path(__file__).with_suffix(".c")], check=True)
    return program


def _remove(folder: Path) -> None:
    for _ in range(50):
        try:
            return folder.rmdir()
        except OSError:  # EBUSY until the kernel has let go of its last process
            time.sleep(0.02)
    return folder.rmdir()
