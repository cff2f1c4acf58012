"""What a trace is asked for, and the form in which the programs read it."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

COMM_BYTES = 16

EVENTS = (
    "shm_open",
    "shm_unlink",
    "ftruncate",
    "shmget",
    "shmat",
    "shmdt",
    "shmctl",
    "memfd_create",
    "mmap",
    "munmap",
    "mremap",
    "brk",
    "madvise",
    "process_madvise",
    "shm_full",
    "sigbus",
    "oom_kill",
)
"""Every event a trace can show."""

AGGREGATED = frozenset({"mmap", "munmap", "mremap", "brk", "madvise", "process_madvise"})
"""Those that are added up in the kernel unless each one is asked for."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Filters and forms of a trace; all of them act in the kernel."""

    events: tuple[str, ...] = EVENTS
    pid: int | None = None
    """Only this process (host pid), not its children."""
    comm: str | None = None
    """Only threads of this name, as the kernel cuts it (15 bytes)."""
    min_bytes: int = 0
    """Only mmap, munmap, mremap, brk and madvise calls of at least this length."""
    every_call: bool = False
    stack: bool = False


def lost_events(lost: Mapping[str, int]) -> int:
    """Add up what a trace lost of what it shows; `lost` counts the records of processes and cgroups too."""
    return sum(count for event, count in lost.items() if event in EVENTS)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which processes the programs act on."""

    all: bool
    by_cgroup: bool
    memory_hierarchy_id: int


def pack_config(options: TraceOptions, scope: Filter, event_ids: Mapping[str, int]) -> bytes:
    """Return the entry of the map `config`: struct config of bpf/common.h."""
    events = sum(1 << event_ids[event] for event in options.events)
    comm = (options.comm or "").encode("utf-8", "surrogateescape")[: COMM_BYTES - 1].ljust(COMM_BYTES, b"\0")
    return struct.pack(
        "=QQ16sIIIIII",
        events,
        options.min_bytes,
        comm,
        scope.memory_hierarchy_id,
        scope.all,
        options.pid is not None,
        scope.by_cgroup,
        options.every_call,
        options.stack,
    )
