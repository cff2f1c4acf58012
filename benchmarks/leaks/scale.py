"""How long a day of 10,000 containers takes: 86.4 million samples, read from a store and judged."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.figure import Figure, Result, Samples
from rtdebug.host.child import in_child
from rtdebug.leaks.batch import analyse
from rtdebug.leaks.segments import arrow_schema
from rtdebug.leaks.workers import workers

CONTAINERS = int(os.environ.get("RTDEBUG_BENCH_CONTAINERS", "10000"))
SAMPLES = 8640
INTERVAL_S = 10
PER_SEGMENT = 360
BEGIN_S = 1_760_000_000
MIB = 1 << 20
LEAKING = 20
"""One of so many."""


def measure() -> Result:
    """Make the store, then read and judge it with a process for each CPU."""
    folder = Path(tempfile.mkdtemp(prefix="rtdebug-scale-"))
    try:
        in_child(partial(_make, folder))  # what making it takes must be neither here nor in the workers
        Path("/proc/self/clear_refs").write_text("5")
        begin, cpu = time.monotonic(), _cpu_s()
        with workers(2) as executor:
            analysis = analyse([folder], executor=executor)
            pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid)]
            peak_gib = sum(map(_peak_kib, pids)) / 2**20
        wall_s, cpu_s = time.monotonic() - begin, _cpu_s() - cpu
    finally:
        shutil.rmtree(folder)
    verdicts = Counter(each.verdict.verdict for each in analysis.judged if each.verdict.labels.kind == "anon")
    assert sum(verdicts.values()) == CONTAINERS, verdicts
    figures = (
        Figure("time", Samples("time", (wall_s,)), "s"),
        Figure("CPU time of both processes, halved: on two idle cores", Samples("cpu", (cpu_s / 2,)), "s", 60),
        Figure("memory of all three processes, each at its peak", Samples("memory", (peak_gib,)), "GiB", 4),
        Figure("called a leak, of those that do", Samples("found", (verdicts["leak"] * LEAKING / CONTAINERS,)), "x"),
    )
    return Result(figures, (), "s")


def _peak_kib(pid: int) -> int:
    """The most that a process has had resident."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0])


def _cpu_s() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _make(folder: Path) -> None:
    """Write segments as the recorder does: an hour each, all containers at each time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(7)
    base = random.uniform(20, 2000, CONTAINERS) * MIB
    growth = np.where(np.arange(CONTAINERS) % LEAKING == 0, random.uniform(100, 900, CONTAINERS) * MIB, 0)
    schema = arrow_schema("cgroups")
    names = pa.array([f"container-{number}" for number in range(CONTAINERS)])
    ids = pa.array([f"{number:064x}" for number in range(CONTAINERS)])
    for first in range(0, SAMPLES, PER_SEGMENT):
        at = np.repeat(np.arange(first, first + PER_SEGMENT), CONTAINERS)
        who = np.tile(np.arange(CONTAINERS, dtype=np.int32), PER_SEGMENT)
        noise = random.standard_normal(len(at)) * 0.01
        anon = (base[who] * (1 + noise) + growth[who] * at / SAMPLES).astype(np.int64)
        columns = {
            "time_ns": pa.array((BEGIN_S + at * INTERVAL_S) * 10**9),
            "host": pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(at), np.int32)), pa.array(["h"])),
            "container_id": pa.DictionaryArray.from_arrays(pa.array(who), ids),
            "container_name": pa.DictionaryArray.from_arrays(pa.array(who), names),
            "usage_bytes": pa.array(anon + MIB),
            "anon_bytes": pa.array(anon),
        }
        arrays = {
            field.name: columns.get(field.name, pa.nulls(len(at), field.type)).cast(field.type) for field in schema
        }
        name = f"cgroups-h-{(BEGIN_S + first * INTERVAL_S) * 10**9}-1.parquet"
        pq.write_table(pa.table(arrays, schema=schema), folder / name, compression="zstd")
