"""The tables of a store: what each column is called, in the order in which rows are written.

A figure that the kernel does not give is null. Times are Unix time; bytes are bytes; counters count from the cgroup's
or the process's beginning.
"""

from __future__ import annotations

from collections.abc import Mapping

FIGURES = (
    "usage_bytes",
    "anon_bytes",
    "file_bytes",
    "shmem_bytes",
    "kernel_bytes",
    "slab_bytes",
    "kernel_stack_bytes",
    "page_tables_bytes",
    "sock_bytes",
    "swap_bytes",
    "limit_bytes",
    "refaults",
    "faults",
    "major_faults",
    "events_low",
    "events_high",
    "events_max",
    "events_oom",
    "events_oom_kill",
    "psi_some_us",
    "psi_full_us",
    "processes",
    "threads",
)
"""What one sample of a memory cgroup holds, its descendants included."""

_CONTAINER = ("time_ns", "host", "container_id", "container_name", "image", "cgroup")

CGROUPS = (*_CONTAINER, *FIGURES)
"""A row for each container and sample. file_bytes includes shmem_bytes; kernel_bytes includes slab, stacks and page
tables; limit_bytes is the lowest of its own and those above; events_max is v1's failcnt."""

PROCESSES = (
    "time_ns",
    "host",
    "container_id",
    "identity",
    "pid",
    "start_time_ns",
    "comm",
    "command",
    "rss_anon_bytes",
    "rss_file_bytes",
    "rss_shmem_bytes",
    "swap_bytes",
    "page_tables_bytes",
    "pss_bytes",
    "pss_anon_bytes",
    "pss_file_bytes",
    "pss_shmem_bytes",
    "threads",
    "fds",
)
"""A row for each process of a container and sample; the pss_ columns are of one sample in many."""

SITES = (
    "time_ns",
    "host",
    "container_id",
    "identity",
    "pid",
    "kind",
    "stack",
    "live_bytes",
    "allocated_bytes",
    "freed_bytes",
    "allocations",
    "frees",
    "unpaired",
)
"""A row for each allocation site that changed since the last sample; figures count from when it was first watched.
`kind` is mmap, brk, fault or malloc. `stack` has a line for each frame, the innermost first; null: what could not be
paired, of the whole process."""

TABLES: Mapping[str, tuple[str, ...]] = {"cgroups": CGROUPS, "processes": PROCESSES, "sites": SITES}

TEXTS = frozenset({"host", "container_id", "container_name", "image", "cgroup", "identity", "comm", "command"}) | {
    "kind",
    "stack",
}
"""Columns of text; all others are whole numbers."""

Row = tuple[str | int | None, ...]
"""One row, in the order of its table's columns."""
