"""Series and stores for the tests of `rtdebug leaks`: made here, of values that are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rtdebug.leaks.segments import arrow_schema
from rtdebug.leaks.series import Labels, Series

MIB = 1 << 20
BEGIN_S = 1_760_000_000
INTERVAL_S = 10


def series(value, name="web", kind="anon", interval_s=INTERVAL_S, **more):
    """A series of values, the first at BEGIN_S."""
    value = np.asarray(value, dtype=float)
    times = (BEGIN_S + np.arange(len(value)) * interval_s) * 1_000_000_000
    return Series(Labels(name, kind), times.astype(np.int64), value, **more)


def noise(count, deviation, seed=1):
    return np.random.default_rng(seed).normal(0, deviation, count)


def leaking(count=4000, base=100 * MIB, growth=300 * MIB, seed=1):
    return base + growth * np.arange(count) / count + noise(count, 2 * MIB, seed)


def steady(count=4000, base=100 * MIB, seed=1):
    return base + noise(count, 2 * MIB, seed)


def write_segment(folder: Path, table: str, rows: list[dict], start_s: int, host="h1") -> Path:
    """A closed segment of a store; columns that rows do not have are null."""
    folder.mkdir(parents=True, exist_ok=True)
    schema = arrow_schema(table)
    columns = {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in schema}
    path = folder / f"{table}-{host}-{start_s * 10**9}-7.parquet"
    pq.write_table(pa.table(columns, schema=schema), path)
    return path


def cgroup_rows(containers: dict[str, np.ndarray], begin=0, end=None, host="h1", **more):
    """Rows as the recorder writes them: all containers at each time. Values are anon_bytes."""
    count = max(map(len, containers.values()))
    return [
        {
            "time_ns": (BEGIN_S + at * INTERVAL_S) * 10**9,
            "host": host,
            "container_id": name * 4,
            "container_name": name,
            "image": f"registry.example/{name}:1.0",
            "usage_bytes": int(values[at]) + 7 * MIB,
            "anon_bytes": int(values[at]),
            "file_bytes": 6 * MIB,
            "shmem_bytes": 0,
            "swap_bytes": None,
            **more,
        }
        for at in range(begin, count if end is None else end)
        for name, values in containers.items()
        if at < len(values)
    ]


def process_rows(container: str, values, comm="python3", start_ns=1, host="h1", **more):
    return [
        {
            "time_ns": (BEGIN_S + at * INTERVAL_S) * 10**9,
            "host": host,
            "container_id": container * 4,
            "identity": f"{comm}-1",
            "pid": 41,
            "start_time_ns": start_ns if not callable(start_ns) else start_ns(at),
            "comm": comm,
            "rss_anon_bytes": int(value),
            "rss_shmem_bytes": 0,
            "threads": 3,
            "fds": 11,
            **more,
        }
        for at, value in enumerate(values)
    ]


def same_verdicts(one, other):
    """Compare verdicts by everything in them."""
    key = str
    assert sorted(key(each.verdict) for each in one) == sorted(key(each.verdict) for each in other)
