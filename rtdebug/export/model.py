"""What the exporter knows at one moment: a Snapshot, of which the metrics are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rtdebug.containers.model import Container
from rtdebug.export.counters import Counts
from rtdebug.host.inside import TmpfsUsage
from rtdebug.leaks.baseline import Band

KINDS = ("anon", "file", "shmem", "slab", "kernel_stack", "page_tables", "sock", "kernel")
"""Kinds of memory, disjoint: `file` is without shmem, `kernel` what slab, stacks and page tables leave of it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a container's memory cgroup. What the kernel does not say is absent."""

    figures: Mapping[str, int]
    """By the names of leaks.tables.FIGURES, and `thp_fault_alloc`, `thp_collapse_alloc`."""
    kinds: Mapping[str, int]
    """Bytes by KINDS."""
    thp: Mapping[str, int]
    """Bytes in huge pages: anon, file, shmem."""


@dataclass(frozen=True, slots=True)
class Orphans:
    """Shared memory that nobody uses any more, in what is the container's own."""

    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Leak:
    """The verdict on one kind of memory."""

    level: int
    """0 no leak, 1 suspect, 2 leak."""
    growth_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class State:
    """All that is known of one running container."""

    container: Container
    reading: Reading
    shm: TmpfsUsage | None = None
    orphans: Orphans | None = None
    is_stuck: bool = False
    """Its file systems do not answer: shm and orphans are not known."""
    leaks: Mapping[str, Leak] = field(default_factory=dict)
    """By kind; those on which there is a verdict."""
    bands: Mapping[str, Band] = field(default_factory=dict)
    """By figure; those whose window is filled."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole host."""

    time_s: float
    """Unix time."""
    pass_s: float
    """How long the pass over all containers took."""
    interval_s: float
    states: tuple[State, ...]
    left_out: int
    """Containers beyond the most that are read."""
    counts: Counts
    trace_up: bool
    trace_lost: int
    """Events that were lost, since the exporter began."""
