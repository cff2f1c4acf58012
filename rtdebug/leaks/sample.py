"""One pass over all containers: rows for the tables `cgroups` and `processes`."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.host.cgroup import MemoryHierarchy, nearest_memory_cgroup
from rtdebug.host.text import valid_utf8
from rtdebug.leaks.cgroup_sample import Limits, read_figures
from rtdebug.leaks.process_sample import Known, ProcessFigures, ProcessReader, take_pss
from rtdebug.leaks.quick import read_bytes, status_of
from rtdebug.leaks.tables import FIGURES, Row
from rtdebug.tracing.scope import descendants

MAX_PROCESSES = 4096
"""Processes of one container that get rows; all are counted."""
MAX_DEPTH = 16
"""Cgroups below a container's own that are looked into."""
_PAGE_TABLES = FIGURES.index("page_tables_bytes")
_PSS_NONE: tuple[int | None, ...] = (None, None, None, None)


@dataclass(frozen=True, slots=True)
class Sample:
    """The rows of one pass, in the order of tables.CGROUPS and tables.PROCESSES."""

    time_ns: int
    cgroups: list[Row]
    processes: list[Row]
    pids: dict[int, tuple[Container, Known]]
    """Whose each process is, and who it is: another object after an exec, or when the pid has a new owner."""


class Sampler:
    """Samples containers pass after pass. `pss_share` of the interval may go into smaps_rollup."""

    def __init__(
        self, hierarchy: MemoryHierarchy, host: str, interval_s: float = 10.0, proc: Path = Path("/proc")
    ) -> None:
        self._hierarchy = hierarchy
        self._host = valid_utf8(host)
        self._reader = ProcessReader(proc)
        self._pss_budget_ns = int(interval_s * 1e9 * 0.02)
        self._folders: dict[str, str | None] = {}

    def sample(self, containers: Sequence[Container]) -> Sample:
        """Sample those that still run; a container that has gone has no row."""
        time_ns = time.time_ns()
        limits = Limits(self._hierarchy.version, str(self._hierarchy.mount_point))
        cgroups_of = {each.cgroup for each in containers if each.cgroup and not is_process(each)}
        folders = {cgroup: self._folder(cgroup) for cgroup in cgroups_of}
        own = {folder for folder in folders.values() if folder}
        pids: dict[int, tuple[Container, Known]] = {}
        cgroups: list[Row] = []
        figures: dict[int, ProcessFigures] = {}
        for container in containers:
            folder = None if is_process(container) else folders.get(container.cgroup or "")
            memory = read_figures(folder, self._hierarchy.version, limits) if folder else None
            if memory is None:
                self._folders.pop(container.cgroup or "", None)
            members = self._members(container, folder if memory else None, own)
            found = {pid: process for pid in members[:MAX_PROCESSES] if (process := self._reader.read(pid))}
            figures |= found
            pids |= {pid: (container, process.known) for pid, process in found.items()}
            if memory is not None:
                cgroups.append(self._cgroup_row(time_ns, container, memory, len(members), found.values()))
        pss = take_pss(self._reader, figures, self._pss_budget_ns)
        self._reader.forget_all_but(figures)
        processes = [
            self._process_row(time_ns, pids[pid][0], pid, found, pss.get(pid, _PSS_NONE))
            for pid, found in figures.items()
        ]
        return Sample(time_ns, cgroups, processes, pids)

    def _members(self, container: Container, folder: str | None, others: set[str]) -> list[int]:
        if folder is not None:
            return _pids_below(folder, others)
        # a bare process is a guest in its cgroup: itself and its children are meant, and no cgroup
        return sorted(descendants(container.pid)) if container.pid and is_process(container) else []

    def _cgroup_row(
        self,
        time_ns: int,
        container: Container,
        memory: tuple[int | None, ...],
        members: int,
        processes: Collection[ProcessFigures],
    ) -> Row:
        if self._hierarchy.version == 1:
            memory = _with_page_tables(memory, processes)
        threads = sum(process.threads or 0 for process in processes) if members <= MAX_PROCESSES else None
        who = (container.id, container.name, container.image, container.cgroup)
        texts = (None if text is None else valid_utf8(text) for text in who)
        return (time_ns, self._host, *texts, *memory, members, threads)

    def _process_row(
        self, time_ns: int, container: Container, pid: int, found: ProcessFigures, pss: tuple[int | None, ...]
    ) -> Row:
        known = found.known
        return (
            time_ns,
            self._host,
            valid_utf8(container.id),
            known.identity,
            pid,
            known.start_time_ns,
            known.comm,
            known.command,
            found.rss_anon_bytes,
            found.rss_file_bytes,
            found.rss_shmem_bytes,
            found.swap_bytes,
            found.page_tables_bytes,
            *pss,
            found.threads,
            found.fds,
        )

    def _folder(self, cgroup: str) -> str | None:
        """The folder of a cgroup, or of the nearest above it that counts memory."""
        if cgroup not in self._folders:
            counted = nearest_memory_cgroup(self._hierarchy, cgroup)
            self._folders[cgroup] = str(self._hierarchy.path(counted)) if counted == cgroup else None
        return self._folders[cgroup]


def is_process(container: Container) -> bool:
    """Whether a target is a process that is in no container."""
    return container.id.startswith("pid:")


def _with_page_tables(memory: tuple[int | None, ...], processes: Iterable[ProcessFigures]) -> tuple[int | None, ...]:
    """v1 does not count page tables: those of its processes are (VmPTE)."""
    page_tables_bytes = sum(process.page_tables_bytes or 0 for process in processes)
    return (*memory[:_PAGE_TABLES], page_tables_bytes, *memory[_PAGE_TABLES + 1 :])


def _pids_below(folder: str, others: set[str]) -> list[int]:
    """Processes of a cgroup and those below it, but for the cgroups of other containers."""
    pids: list[int] = []
    for path in _cgroups_below(folder, others, MAX_DEPTH):
        pids += [pid for pid in map(int, (read_bytes(f"{path}/cgroup.procs") or b"").split()) if pid]
    return pids


def _cgroups_below(folder: str, others: set[str], depth: int) -> Iterator[str]:
    yield folder
    status = status_of(folder)
    if depth == 0 or status is None or status.st_nlink <= 2:  # kernfs: two, and one for each folder below
        return
    try:
        with os.scandir(folder) as entries:
            below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for path in below:
        if path not in others:
            yield from _cgroups_below(path, others, depth - 1)
