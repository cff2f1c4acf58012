"""All processes of a container: who belongs to it, and all of them read, on several processors where they are many."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.host.cgroup import MemoryHierarchy, pids_of
from rtdebug.host.child import Child
from rtdebug.host.descriptors import MountTable
from rtdebug.host.process import pids, read_stat
from rtdebug.snapshot.model import ProcessRecord
from rtdebug.snapshot.process import ProcessReader, read_boot_time_ns
from rtdebug.snapshot.smaps import COLUMNS_FROM_BYTES, MOST_GROUPS, SmapsReader

_MANY = 32
"""From so many processes on it pays to fork helpers."""
_MOST_HELPERS = 4

Progress = Callable[[int, int], None]
"""Called with how many processes are read, and how many there are."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What to read of each process."""

    proc: Path = Path("/proc")
    with_environ: bool = False
    with_mappings: bool = True


def is_single_process(container: Container) -> bool:
    """Whether the target is a process of the host (`pid:N`), whose cgroup holds others too."""
    return container.id.startswith("pid:")


def members(container: Container, hierarchy: MemoryHierarchy, proc: Path = Path("/proc")) -> tuple[int, ...]:
    """The pids of a container: all in its cgroup and below; for `pid:N` that process and its descendants."""
    if is_single_process(container) or container.cgroup in (None, "/"):
        return () if container.pid is None else _family(container.pid, proc)
    assert container.cgroup is not None
    return tuple(sorted(pids_of(hierarchy.path(container.cgroup))))


def read_processes(
    wanted: Sequence[int], reading: Reading, progress: Progress | None = None
) -> tuple[tuple[ProcessRecord, ...], tuple[int, ...]]:
    """The records of those that live to the end of their reading, and the pids of those that did not."""
    helpers = min(_MOST_HELPERS, len(os.sched_getaffinity(0)))
    if len(wanted) < _MANY or helpers < 2:
        records = _read_some(wanted, reading, SmapsReader(), progress)
    else:
        records = _read_with_helpers(wanted, reading, helpers, progress)
    found = {record.pid for record in records}
    return tuple(records), tuple(pid for pid in wanted if pid not in found)


def _read_with_helpers(
    wanted: Sequence[int], reading: Reading, helpers: int, progress: Progress | None
) -> list[ProcessRecord]:
    """Every helper takes its share; this process takes one too, and its progress stands for all."""
    import rtdebug.snapshot.columns  # noqa: F401 - once, before the helpers are forked

    shares = [wanted[index::helpers] for index in range(helpers)]
    room = MOST_GROUPS // helpers
    parts = [partial(_read_some, share, reading, SmapsReader(room, COLUMNS_FROM_BYTES)) for share in shares]
    children = [Child(part) for part in parts[1:]]
    scaled = None if progress is None else lambda done, _: progress(min(done * helpers, len(wanted)), len(wanted))
    records = parts[0](scaled)
    for child in children:
        records += child.result()
    return sorted(records, key=lambda record: record.pid)


def _read_some(
    wanted: Sequence[int], reading: Reading, smaps: SmapsReader, progress: Progress | None = None
) -> list[ProcessRecord]:
    reader = ProcessReader(
        smaps=smaps,
        mounts=MountTable(),
        proc=reading.proc,
        boot_time_ns=read_boot_time_ns(reading.proc),
        with_environ=reading.with_environ,
        with_mappings=reading.with_mappings,
    )
    records = []
    with _no_garbage_collection():
        for index, pid in enumerate(wanted):
            record = reader.read(pid)
            if record is not None:
                records.append(record)
            if progress is not None:
                progress(index + 1, len(wanted))
    return records


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Records hold no cycles: to look for some among ten thousands of objects takes a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _family(root: int, proc: Path) -> tuple[int, ...]:
    """`root` and its descendants."""
    children: dict[int, list[int]] = {}
    for stat in _stats(proc):
        children.setdefault(stat[1], []).append(stat[0])
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue += children.get(pid, ())
    return tuple(sorted(found))


def _stats(proc: Path) -> Iterable[tuple[int, int]]:
    for pid in pids(proc):
        stat = read_stat(pid, proc)
        if stat is not None:
            yield pid, stat.ppid
