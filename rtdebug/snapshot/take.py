"""take_snapshot(): everything about a container's memory, read from outside without changing it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rtdebug import __version__
from rtdebug.containers.model import Container
from rtdebug.errors import HostUnable, RtdebugError, TargetError
from rtdebug.host.cgroup import MemoryHierarchy, find_memory_hierarchy
from rtdebug.host.process import namespace_id
from rtdebug.snapshot.cgroups import read_cgroups
from rtdebug.snapshot.freeze import find_freezer, frozen
from rtdebug.snapshot.model import CgroupRecord, NetworkRecord, RuntimeRecord, Snapshot
from rtdebug.snapshot.network import NetworkQuestion
from rtdebug.snapshot.processes import Progress, Reading, is_single_process, members, read_processes
from rtdebug.snapshot.runtime import read_runtime
from rtdebug.snapshot.surroundings import collect_namespaces, read_host

_MOST_PIDS_NAMED = 10


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """What to read, and how."""

    with_environ: bool = False
    """Environment values: they hold passwords."""
    freeze: bool = False
    """Hold the container still meanwhile."""
    mappings: bool = True
    """Each process's mappings: most of the time that a snapshot takes."""
    network: bool = True
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
    with _held(container, options, proc) as is_frozen:
        return _take(container, hierarchy, options, proc, sys, progress, is_frozen)


@contextlib.contextmanager
def _held(container: Container, options: SnapshotOptions, proc: Path) -> Iterator[bool | None]:
    """Frozen if asked for. Gives None if not, else whether all of it stands still."""
    if not options.freeze:
        yield None
        return
    if is_single_process(container) or container.cgroup in (None, "/") or container.pid is None:
        raise TargetError("--freeze: this target is no container", "it takes a running one with a cgroup of its own")
    assert container.cgroup is not None
    with frozen(find_freezer(container.pid, container.cgroup, proc)) as stands:
        yield stands


def _take(
    container: Container,
    hierarchy: MemoryHierarchy,
    options: SnapshotOptions,
    proc: Path,
    sys: Path,
    progress: Progress | None,
    is_frozen: bool | None,
) -> Snapshot:
    time_ns, began = time.time_ns(), time.monotonic_ns()
    notes = ["not all of its processes could be frozen"] if is_frozen is False else []
    cgroups = _cgroups(container, hierarchy, proc, notes)
    wanted = _members(container, hierarchy, proc, notes)
    question = _ask_network(container, wanted, options, proc)
    reading = Reading(proc, options.with_environ, options.mappings)
    processes, vanished = read_processes(wanted, reading, progress)
    if vanished:
        named = ", ".join(map(str, vanished[:_MOST_PIDS_NAMED])) + (", ..." if len(vanished) > _MOST_PIDS_NAMED else "")
        notes.append(f"{len(vanished)} of {len(wanted)} processes exited while they were read: {named}")
    return Snapshot(
        version=__version__,
        time_ns=time_ns,
        took_ns=time.monotonic_ns() - began,
        frozen=bool(is_frozen),
        container=container,
        cgroup_version=hierarchy.version,
        runtime=read_runtime(container, options.with_environ) if options.runtime else RuntimeRecord(None, None),
        processes=processes,
        namespaces=collect_namespaces(processes, proc),
        cgroups=cgroups,
        network=_network(question, notes),
        host=read_host(proc, sys),
        notes=tuple(notes),
    )


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
    container: Container, wanted: tuple[int, ...], options: SnapshotOptions, proc: Path
) -> NetworkQuestion | None:
    """Asked of init; of a bare cgroup's first process, for it has none."""
    pid = container.pid or next(iter(wanted), None)
    if not options.network or pid is None or namespace_id(pid, "net", proc) is None:
        return None
    return NetworkQuestion(pid, proc)


def _network(question: NetworkQuestion | None, notes: list[str]) -> NetworkRecord | None:
    if question is None:
        return None
    try:
        return question.record()
    except RtdebugError as error:
        notes.append(error.message)
        return None
