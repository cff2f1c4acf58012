"""`rtdebug leaks record`: CPU time of a pass over a thousand containers, and what --malloc adds to malloc and free."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.calls import Caller, caller
from benchmarks.figure import Figure, Result, Samples, ratio, sampled
from benchmarks.tracers import bpftrace
from rtdebug.containers.model import Container
from rtdebug.host.cgroup import find_memory_hierarchy
from rtdebug.leaks.process_sample import ProcessReader
from rtdebug.leaks.recorder import SiteSource
from rtdebug.leaks.sample import Sample, Sampler
from rtdebug.leaks.selection import Selection
from rtdebug.leaks.sites import SiteWatcher
from rtdebug.leaks.writer import StoreWriter

CONTAINERS = 1000
PASSES = 7
ROUNDS = 5
PAIRS = 200_000
_LIBC = "/lib/*/libc.so.6"


def measure() -> Result:
    """Containers: a real cgroup each, with a process. malloc: 64 to 1,087 bytes, freed at once, nothing else."""
    first, *later = _passes()
    with caller("malloc") as process:
        plain, sampled_pairs, empty = sampled(
            ROUNDS,
            {
                "malloc and free": lambda: process.ns_per_call("malloc", PAIRS * 20),
                "malloc and free, --malloc": lambda: _sampled_ns(process),
                "malloc and free, empty probes of bpftrace": lambda: _bpftrace_ns(process),
            },
        )
    pass_s = Samples("a pass", tuple(later))
    added = Samples("--malloc", tuple(a - b for a, b in zip(sampled_pairs.values, plain.values, strict=True)))
    added_empty = Samples("bpftrace", tuple(a - b for a, b in zip(empty.values, plain.values, strict=True)))
    return Result(
        (
            Figure("CPU time of a sample of 1,000 containers", pass_s, "s", 1.0),
            Figure("CPU time of the first sample", Samples("first", (first,)), "s", 1.0),
            Figure("--malloc: added to a pair of malloc and free", added, "ns"),
            Figure("the same / three empty probes of bpftrace", ratio("empty", added, added_empty), "x", 1.2),
        ),
        (plain, sampled_pairs, empty),
        "ns",
    )


def _passes() -> list[float]:
    hierarchy = find_memory_hierarchy()
    with _containers() as containers, TemporaryDirectory(prefix="rtdebug-bench-") as store:
        sampler = Sampler(hierarchy, "bench")
        selection = Selection(hierarchy, containers, (), ())
        with StoreWriter(Path(store), "bench", 1 << 30, print) as writer:
            return [_pass_s(selection, sampler, writer) for _ in range(PASSES)]


def _pass_s(selection: Selection, sampler: Sampler, writer: StoreWriter) -> float:
    began = time.process_time()
    sample = sampler.sample(selection.containers())
    writer.add("cgroups", sample.cgroups)
    writer.add("processes", sample.processes)
    writer.flush()
    assert len(sample.cgroups) >= CONTAINERS <= len(sample.processes), "not all were sampled"
    return time.process_time() - began


@contextmanager
def _containers() -> Iterator[list[Container]]:
    """A thousand cgroups with a sleeping process each, named as docker names them."""
    hierarchy = find_memory_hierarchy()
    top = hierarchy.path(f"/rtdebug-bench-{os.getpid()}-many")
    top.mkdir()
    containers = []
    sleepers: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(CONTAINERS):
            name = f"{number:064x}"
            folder = top / name
            folder.mkdir()
            sleepers.append(subprocess.Popen(["sleep", "1000"]))
            (folder / "cgroup.procs").write_text(str(sleepers[-1].pid))
            cgroup = f"/{top.name}/{name}"
            containers.append(Container(name, f"c{number}", "docker", sleepers[-1].pid, "running", cgroup))
        yield containers
    finally:
        for sleeper in sleepers:
            sleeper.kill()
        for sleeper in sleepers:
            sleeper.wait()
        for folder in sorted(top.iterdir()):
            if folder.is_dir():
                _remove(folder)
        _remove(top)


def _remove(folder: Path) -> None:
    for _ in range(100):
        try:
            return folder.rmdir()
        except OSError:  # EBUSY until the kernel has let go of its last process
            time.sleep(0.02)
    return folder.rmdir()


def _sampled_ns(process: Caller) -> float:
    found = ProcessReader().read(process.pid)
    assert found is not None
    container = Container("bench", None, None, process.pid, "running", None)
    with SiteWatcher("bench", print, stacks=False, malloc=True) as watcher:
        source: SiteSource = watcher
        source.watch(Sample(0, [], [], {process.pid: (container, found.known)}))
        return process.ns_per_call("malloc", PAIRS)


def _bpftrace_ns(process: Caller) -> float:
    libc = next(Path("/").glob(_LIBC.lstrip("/")))
    places = (f"uprobe:{libc}:malloc", f"uretprobe:{libc}:malloc", f"uprobe:{libc}:free")
    with bpftrace(" ".join(f"{place} /pid == {process.pid}/ {{ @ = 1; }}" for place in places)):
        return process.ns_per_call("malloc", PAIRS)
