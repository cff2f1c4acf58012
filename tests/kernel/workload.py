"""Builds and runs the C programs of tests/workloads: known steps in known (prime) numbers.

    with memory_cgroup(limit_bytes=32 * MIB) as cgroup:
        result = run("oom", 64 * MIB, cgroup=cgroup)
    assert result.returncode == -signal.SIGKILL

A workload waits at its gate until told to go, so that a tracer can attach and a cgroup can be joined first.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024
UNCOUNTED_BYTES = 32 * mmap.PAGESIZE * (os.cpu_count() or 1)
"""memory.stat of older kernels adds up in batches of so many pages for each CPU (MEMCG_CHARGE_BATCH)."""
SOURCES = Path(__file__).parent.parent / "workloads"
COMPILE = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-static"]
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a workload: `madvise count=23 advice=4` -> name "madvise", values {"count": "23", ...}."""

    name: str
    values: dict[str, str]


@dataclass(frozen=True, slots=True)
class Result:
    """How a workload ended. `returncode` is as in subprocess: -9 is killed by SIGKILL."""

    pid: int
    returncode: int
    steps: tuple[Step, ...]
    stderr: str

    def step(self, name: str) -> Step:
        """Return the only step of that name."""
        (step,) = [step for step in self.steps if step.name == name]
        return step


def parse_steps(text: str) -> tuple[Step, ...]:
    """Parse what a workload printed. A last line without newline was cut by its death and is left out."""
    steps = []
    for line in text.split("\n")[:-1]:
        name, *pairs = line.split()
        steps.append(Step(name, dict(pair.split("=", 1) for pair in pairs if "=" in pair)))
    return tuple(steps)


def build(name: str) -> Path:
    """Compile tests/workloads/NAME.c, statically, so that it runs in a container without libraries.

    The result lies in the user's cache under a hash of all sources: made once, also by two runs at once.
    """
    text = b"".join(path.read_bytes() for path in [SOURCES / f"{name}.c", *sorted(SOURCES.glob("*.h"))])
    key = hashlib.sha256(text + " ".join(COMPILE).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rtdebug" / "workloads"
    program = folder / f"{name}-{key}" / name
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(f".{os.getpid()}")
        subprocess.run([*COMPILE, "-o", unfinished, SOURCES / f"{name}.c"], check=True)
        unfinished.replace(program)
    return program


class Workload:
    """A started workload that waits at its gate. `go()` opens it, `finish()` waits for the end.

    In a `with` block it is killed at the end if it still lives.
    """

    def __init__(self, name: str, *arguments: object, cgroup: Path | None = None) -> None:
        command = [str(build(name)), *map(str, arguments)]
        environment = {**os.environ, "WORKLOAD_WAIT": "1"}
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
        )
        self.pid = self._process.pid
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text(str(self.pid))

    def go(self) -> None:
        """Open the gate."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def finish(self, timeout_s: float = 60) -> Result:
        """Wait for the end. Raises subprocess.TimeoutExpired."""
        stdout, stderr = self._process.communicate(timeout=timeout_s)
        return Result(self.pid, self._process.returncode, parse_steps(stdout), stderr)

    def __enter__(self) -> Workload:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def run(name: str, *arguments: object, cgroup: Path | None = None, timeout_s: float = 60) -> Result:
    """Run a workload from begin to end, in `cgroup` (a folder of the memory controller) if given."""
    with Workload(name, *arguments, cgroup=cgroup) as workload:
        workload.go()
        return workload.finish(timeout_s)


def memory_mount() -> tuple[Path, bool]:
    """Return the memory controller's mount point, and whether it is cgroup v2."""
    v2 = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, after = line.split(" - ", 1)
        mount_point, (kind, _, options) = Path(before.split()[4]), after.split()
        if kind == "cgroup" and "memory" in options.split(","):
            return mount_point, False
        if kind == "cgroup2" and "memory" in (mount_point / "cgroup.controllers").read_text().split():
            v2 = mount_point
    assert v2 is not None, "the memory controller is not mounted"
    return v2, True


def write_uncached(path: Path, size_bytes: int) -> None:
    """Write a file of which no page is cached: the cgroup that reads it pays for them, and for nothing else.

    A cgroup that writes it pays twice where the disk is a loop device over a tmpfs, as in the lab.
    """
    with path.open("wb") as file:
        file.write(b"x" * size_bytes)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def kill_count(cgroup: Path) -> int:
    """Return oom_kill of memory.events (v2) or memory.oom_control (v1)."""
    file = cgroup / "memory.events"
    text = (file if file.exists() else cgroup / "memory.oom_control").read_text()
    return int(dict(line.split() for line in text.splitlines())["oom_kill"])


@contextmanager
def plain_cgroup(parent: Path | None = None) -> Iterator[Path]:
    """Make a cgroup without a limit; what still runs in it at the end is killed.

    On v2 only the children of such a one may have processes beside its own: cgroup-v2.rst, "No Internal Process".
    """
    cgroup = (parent or memory_mount()[0]) / f"rtdebug-test-{os.getpid()}-{next(_numbers)}"
    cgroup.mkdir()
    try:
        yield cgroup
    finally:
        _remove(cgroup)


@contextmanager
def memory_cgroup(limit_bytes: int, parent: Path | None = None) -> Iterator[Path]:
    """Make a cgroup with a memory limit and next to no swap; what still runs in it at the end is killed."""
    _, v2 = memory_mount()
    if parent is not None and v2:
        (parent / "cgroup.subtree_control").write_text("+memory")
    with plain_cgroup(parent) as cgroup:
        (cgroup / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(str(limit_bytes))
        # v1 charges memory+swap first: with equal limits that one is hit, and memory.failcnt stays 0
        swap_file, swap_bytes = (
            ("memory.swap.max", 0) if v2 else ("memory.memsw.limit_in_bytes", limit_bytes + MIB)
        )
        if (cgroup / swap_file).exists():
            (cgroup / swap_file).write_text(str(swap_bytes))
        yield cgroup


def _remove(cgroup: Path, patience_s: float = 5) -> None:
    for pid in (cgroup / "cgroup.procs").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return cgroup.rmdir()
        except OSError:  # EBUSY until the last process is reaped
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
