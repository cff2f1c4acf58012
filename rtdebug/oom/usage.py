"""UsageByKind: the usage of a memory cgroup, added up by what it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rtdebug.host.memcg import least_shmem_bytes

_KERNEL_PARTS = ("kernel_stack", "pagetables", "percpu", "slab")


@dataclass(frozen=True, slots=True)
class UsageByKind:
    """Parts of one counter's usage; together they are all of it. None: not known."""

    anon_bytes: int | None = None
    shmem_bytes: int | None = None
    """tmpfs (also /dev/shm), memfd, SysV and shared anonymous memory; of old v1 kernels what their lists give away."""
    file_bytes: int | None = None
    """Page cache without shmem; with it where shmem_bytes is None (old v1 does not tell them apart)."""
    kernel_bytes: int | None = None
    """Slab, stacks, page tables, ..., and on v2 socket buffers."""
    swap_bytes: int | None = None
    """Only of a counter that counts swap: v1's memory+swap."""
    other_bytes: int | None = None
    """What the kernel counts and does not name; None: the usage itself is not known."""


def usage_by_kind(
    stat: Mapping[str, int], usage_bytes: int | None, kmem_bytes: int | None = None, swap_bytes: int | None = None
) -> UsageByKind:
    """Add up memory.stat of either version, against the usage (memory.current, memory.usage_in_bytes).

    `kmem_bytes` is v1's own counter: its memory.stat has no kernel memory. `swap_bytes` is what a counter of
    memory+swap has beside that usage. Documentation/admin-guide/cgroup-v1/memory.rst, cgroup-v2.rst.
    """
    anon, shmem = _first(stat, "anon", "total_rss", "rss"), least_shmem_bytes(stat)
    file = _file_bytes(stat, shmem)
    kernel = _kernel_bytes(stat, kmem_bytes)
    known = [part for part in (anon, shmem, file, kernel) if part is not None]
    # counted apart and in batches per CPU: the sum may be a little more than the usage
    other = max(0, usage_bytes - sum(known)) if usage_bytes is not None and known else None
    return UsageByKind(anon, shmem, file, kernel, swap_bytes, other)


def _file_bytes(stat: Mapping[str, int], shmem: int | None) -> int | None:
    """Page cache proper: `file` and `cache` hold shmem too.

    And the swap cache, where it is counted: Linux kernel commit b6038942480e ("mm: memcg: add swapcache stat for
    memcg v2") (in v5.12). Of it, what is mapped is anon already.
    """
    cache = _first(stat, "file", "total_cache", "cache")
    if cache is None:
        return None
    return max(0, cache - (shmem or 0) - (_first(stat, "total_swapcached", "swapcached") or 0))


def _kernel_bytes(stat: Mapping[str, int], kmem_bytes: int | None) -> int | None:
    parts = [stat[key] for key in _KERNEL_PARTS if key in stat]
    kernel = stat.get("kernel", kmem_bytes)  # v2 since 5.18
    if kernel is None:
        kernel = sum(parts) if parts else None
    # v1 counts sockets apart (memory.kmem.tcp), and prints 0 here
    return None if kernel is None else kernel + stat.get("sock", 0)


def _first(stat: Mapping[str, int], *keys: str) -> int | None:
    return next((stat[key] for key in keys if key in stat), None)
