"""`rtdebug export`: a scrape of 1,000 and of 10,000 containers, and the pass over them.

Containers are faked as folders with the files of cgroup v2, and read by the real code. A cgroupfs is slower by what the
kernel adds up for memory.stat, so 200 real cgroups are read beside as many faked ones.
"""

from __future__ import annotations

import gzip
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.figure import Figure, Result, Samples, ratio, sampled
from rtdebug.containers.model import Container
from rtdebug.export.counters import Counters
from rtdebug.export.exporter import Exporter
from rtdebug.export.reading import MemoryReader
from rtdebug.export.server import Server, listen
from rtdebug.export.web_config import WebConfig
from rtdebug.host.cgroup import MemoryHierarchy, find_memory_hierarchy
from rtdebug.leaks.baseline import Baselines
from rtdebug.render.metrics import MetricsPage
from tests.kernel.workload import MIB, memory_cgroup
from tests.unit.export_things import full_state, snapshot, v1_cgroup, v2_cgroup

ROUNDS = 5
_REAL = 200


def measure() -> Result:
    """The limit of the issue is a second for a scrape of 1,000 containers."""
    few, many = (_scrapes(count) for count in (1_000, 10_000))
    passes = [_passes(count) for count in (1_000, 10_000)]
    real, faked = _real_cgroups()
    return Result(
        (
            Figure("a scrape of 1,000 containers", few, "s", 1.0),
            Figure("a scrape of 10,000 containers", many, "s"),
            Figure("scrape of 10,000 / of 1,000", ratio("scrape", many, few), "x"),
            Figure("a pass over 1,000 containers, with baselines", passes[0], "s", 5.0),
            Figure("a pass over 10,000 containers, with baselines", passes[1], "s"),
            Figure("reading real cgroups / faked ones", ratio("reading", real, faked), "x"),
        ),
        (few, many, *passes, real, faked),
        "s",
    )


def _box(number: int) -> Container:
    name = f"{number:064x}"
    return Container(name, f"web-{number}", "docker", None, "running", f"/docker/{name}", image="web:1")


def _scrapes(count: int) -> Samples:
    """With every metric there is, compressed as Prometheus asks for it, after a new page each time."""
    state = full_state(_box(0))
    page = MetricsPage().page(snapshot(tuple(replace(state, container=_box(number)) for number in range(count))))
    server = Server(listen("127.0.0.1:0"), WebConfig(), 600)

    def scrape() -> float:
        server.publish(page)
        time.sleep(1)
        request = urllib.request.Request(server.url, headers={"Accept-Encoding": "gzip"})
        started = time.perf_counter()
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
        took = time.perf_counter() - started
        assert gzip.decompress(content) == page
        return took

    try:
        return sampled(ROUNDS, {f"scrape of {count}": scrape})[0]
    finally:
        server.close()


def _passes(count: int) -> Samples:
    with TemporaryDirectory(prefix="rtdebug-export-") as folder:
        boxes = [_box(number) for number in range(count)]
        for box in boxes:
            v2_cgroup(Path(f"{folder}{box.cgroup}"))
        exporter = Exporter(
            MemoryHierarchy(2, Path(folder)), lambda: boxes, Counters(100), None, baselines=Baselines(180)
        )
        metrics = MetricsPage()

        def look() -> float:
            started = time.perf_counter()
            metrics.page(exporter.look())
            return time.perf_counter() - started

        look()
        try:
            return sampled(ROUNDS, {f"pass over {count}": look})[0]
        finally:
            exporter.close()


def _real_cgroups() -> tuple[Samples, Samples]:
    hierarchy = find_memory_hierarchy()
    with _real(_REAL) as real, TemporaryDirectory(prefix="rtdebug-export-") as folder:
        make = v1_cgroup if hierarchy.version == 1 else v2_cgroup
        faked = [f"/{make(Path(folder) / str(number)).name}" for number in range(_REAL)]
        paths = [hierarchy.cgroup(path) or "/" for path in real]
        trees = {"real": (hierarchy, paths), "faked": (MemoryHierarchy(hierarchy.version, Path(folder)), faked)}
        found = sampled(ROUNDS, {name: lambda tree=tree: _read(*tree) for name, tree in trees.items()})  # type: ignore[misc]
    return found[0], found[1]


def _read(hierarchy: MemoryHierarchy, cgroups: list[str]) -> float:
    reader = MemoryReader(hierarchy)
    started = time.perf_counter()
    assert all(reader.read(cgroup) for cgroup in cgroups)
    return time.perf_counter() - started


@contextmanager
def _real(count: int) -> Iterator[list[Path]]:
    with ExitStack() as stack:
        yield [stack.enter_context(memory_cgroup(MIB)) for _ in range(count)]
