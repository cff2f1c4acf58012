"""take_snapshot(): everything about a container's memory, read from outside without changing it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from rtdebug import __version__
from rtdebug.containers.model import Container
from rtdebug.errors import HostUnable, RtdebugError, TargetError
from rtdebug.host.cgroup import MemoryHierarchy, find_memory_hierarchy
from rtdebug.host.process import namespace_id
from rtdebug.snapshot.cgroups import read_cgroups
from rtdebug.snapshot.freeze import Freezer, find_freezer, frozen
from rtdebug.snapshot.inside import look_inside
from rtdebug.snapshot.model import CgroupRecord, InsideRecord, ProcessRecord, RuntimeRecord, SharedMemory, Snapshot
from rtdebug.snapshot.network import NetworkQuestion
from rtdebug.snapshot.processes import Progress, Reading, is_single_process, members, read_processes
from rtdebug.snapshot.runtime import read_runtime
from rtdebug.snapshot.shared import SharedMemoryQuestion
from rtdebug.snapshot.surroundings import collect_namespaces, read_host

_MOST_PIDS_NAMED = 10


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Question(Protocol[T_co]):
    """Something a forked child finds out."""

    def answer(self) -> T_co:
        """Wait for it. Raises RtdebugError."""


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """What to read, and how."""

    with_environ: bool = False
    """Environment values: they hold passwords."""
    freeze: bool = False
    """Hold the container still meanwhile."""
    inside: bool = False
    """Start a helper in the container that finds out what only a process inside can."""
    mappings: bool = True
    """Each process's mappings: most of the time that a snapshot takes."""
    network: bool = True
    shm: bool = True
    """Shared memory, and who uses it: asks all processes of the host."""
    runtime: bool = True
    """Ask runc or crun for the state: a process to start."""


def take_snapshot(
    container: Container,
    hierarchy: MemoryHierarchy | None = None,
    options: SnapshotOptions | None = None,
    proc: Path = Path("/proc"),
    sys: Path = Path("/sys"),
    progress: Progress | None = None,
) -> Snapshot:
    """The container as it is now. What vanishes meanwhile is missing, and said in `notes`.

    Raises HostUnable without a memory controller; with `freeze` also what find_freezer() and frozen() raise.
    """
    options = options or SnapshotOptions()
    hierarchy = hierarchy or find_memory_hierarchy(proc)
    time_ns, began = time.time_ns(), time.monotonic_ns()
    notes: list[str] = []
    # Before it is frozen: runc would call it paused; and loading what asks the network takes a while.
    network = _ask_network(container, hierarchy, options, proc)
    runtime = read_runtime(container, options.with_environ) if options.runtime else RuntimeRecord(None, None)
    with _held(container, options, proc) as freezer:
        held_from_ns = time.monotonic_ns()
        seen = _look(container, hierarchy, options, proc, progress, notes)
        stands = freezer is not None and freezer.is_frozen()
    frozen_ns = time.monotonic_ns() - held_from_ns if freezer is not None else None
    if freezer is not None and not stands:
        notes.append("not all of its processes could be frozen, or not until all was read")
    inside = _inside(container, notes) if options.inside else None
    answered = _answer(network, notes)
    return Snapshot(
        version=__version__,
        time_ns=time_ns,
        frozen=stands,
        frozen_ns=frozen_ns,
        container=container,
        cgroup_version=hierarchy.version,
        runtime=runtime,
        processes=seen.processes,
        namespaces=collect_namespaces(seen.processes, proc),
        cgroups=seen.cgroups,
        network=answered,
        shared=seen.shared,
        host=read_host(proc, sys),
        notes=tuple(notes),
        took_ns=time.monotonic_ns() - began,
        inside=inside,
    )


def _inside(container: Container, notes: list[str]) -> InsideRecord | None:
    """Last, for its helper is charged to the container. What it could not find out is no reason to lose the rest."""
    try:
        return look_inside(container)
    except RtdebugError as error:
        notes.append(f"{error.message} ({error.hint})" if error.hint else error.message)
        return None


@dataclass(frozen=True, slots=True)
class _Seen:
    """What changes from one moment to the next."""

    cgroups: tuple[CgroupRecord, ...]
    processes: tuple[ProcessRecord, ...]
    shared: SharedMemory | None


@contextlib.contextmanager
def _held(container: Container, options: SnapshotOptions, proc: Path) -> Iterator[Freezer | None]:
    """Frozen if asked for; gives what holds it."""
    if not options.freeze:
        yield None
        return
    if is_single_process(container) or container.cgroup in (None, "/") or container.pid is None:
        raise TargetError("--freeze: this target is no container", "it takes a running one with a cgroup of its own")
    assert container.cgroup is not None
    freezer = find_freezer(container.pid, container.cgroup, proc)
    with frozen(freezer):
        yield freezer


def _look(
    container: Container,
    hierarchy: MemoryHierarchy,
    options: SnapshotOptions,
    proc: Path,
    progress: Progress | None,
    notes: list[str],
) -> _Seen:
    cgroups = _cgroups(container, hierarchy, proc, notes)
    wanted = _members(container, hierarchy, proc, notes)
    shared = SharedMemoryQuestion(container, hierarchy, proc) if options.shm and wanted else None
    processes, vanished = read_processes(wanted, Reading(proc, options.with_environ, options.mappings), progress)
    if vanished:
        named = ", ".join(map(str, vanished[:_MOST_PIDS_NAMED])) + (", ..." if len(vanished) > _MOST_PIDS_NAMED else "")
        notes.append(f"{len(vanished)} of {len(wanted)} processes exited while they were read: {named}")
    return _Seen(cgroups, processes, _answer(shared, notes))


def _cgroups(
    container: Container, hierarchy: MemoryHierarchy, proc: Path, notes: list[str]
) -> tuple[CgroupRecord, ...]:
    records = tuple(read_cgroups(container, hierarchy, proc))
    if not records or records[0].memory is None:
        notes.append("its memory cgroup is gone, or out of sight")
    return records


def _members(container: Container, hierarchy: MemoryHierarchy, proc: Path, notes: list[str]) -> tuple[int, ...]:
    try:
        found = members(container, hierarchy, proc)
    except (HostUnable, OSError) as error:
        notes.append(f"its processes could not be listed: {error}")
        return ()
    if not found:
        notes.append("it has no process any more")
    return found


def _ask_network(
    container: Container, hierarchy: MemoryHierarchy, options: SnapshotOptions, proc: Path
) -> NetworkQuestion | None:
    """Asked of init; of a bare cgroup's first process, for it has none."""
    pid = container.pid or next(iter(_members(container, hierarchy, proc, [])), None)
    if not options.network or pid is None or namespace_id(pid, "net", proc) is None:
        return None
    return NetworkQuestion(pid, proc)


def _answer(question: Question[T] | None, notes: list[str]) -> T | None:
    if question is None:
        return None
    try:
        return question.answer()
    except RtdebugError as error:
        notes.append(error.message)
        return None
