"""How much memory a container needs, as far as it was measured, and how well it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rtdebug.host.memcg import MemoryState

if TYPE_CHECKING:
    import pandas as pd

_NS_PER_S = 1_000_000_000
_SURE_AFTER_S = 24 * 3600.0
_SOME_AFTER_S = 3600.0
_UNEVICTABLE_KERNEL = ("slab_unreclaimable", "kernel_stack", "pagetables", "percpu", "sock")


@dataclass(frozen=True, slots=True)
class Demand:
    """What a container was seen to need. None: not known."""

    source: str
    """In words: where the figures come from."""
    observed_s: float
    """How long it was watched; 0: one look."""
    usage_bytes: int | None
    """All that is charged to it now, or at the end of the recording."""
    peak_bytes: int | None
    """The highest that usage has been, page cache included."""
    working_set_bytes: int | None
    """What it keeps in use: usage without inactive page cache, the highest seen; or what a probe found."""
    unreclaimable_bytes: int | None
    """What no reclaim can take: anon and shmem without swap, and the kernel's own; the highest seen."""
    probed: bool = False
    """The working set was found by taking memory away, not computed."""

    @property
    def margin(self) -> float:
        """The part added on top for what was not seen: less the longer one looked.

        One look may have missed every peak; a day has the daily ones in it.
        """
        if self.observed_s >= _SURE_AFTER_S:
            return 0.20
        if self.observed_s >= _SOME_AFTER_S:
            return 0.30
        return 0.50


def demand_now(memory: MemoryState, swap_free_bytes: int) -> Demand:
    """From the cgroup's files as they are. `swap_free_bytes`: the host's, for without swap anon cannot go."""
    return Demand(
        source="the cgroup's files now, its peak since it was made",
        observed_s=0.0,
        usage_bytes=memory.usage_bytes,
        peak_bytes=memory.peak_bytes,
        working_set_bytes=memory.working_set_bytes,
        unreclaimable_bytes=unreclaimable_bytes(memory, swap_free_bytes),
    )


def unreclaimable_bytes(memory: MemoryState, swap_free_bytes: int) -> int | None:
    """What no reclaim can take from the cgroup now.

    Anonymous memory and shmem go to swap only; mlock()ed pages do not even then. Of the kernel's memory v2 tells
    what is reclaimable (dentries, inodes); on v1 all of it is counted as not.
    """
    if memory.anon_bytes is None:
        return None
    swappable = memory.anon_bytes + (memory.least_shmem_bytes or 0)
    may_swap = swap_free_bytes > 0 and memory.swap_limit_bytes != 0
    pinned = memory.stat.get("unevictable" if memory.version == 2 else "total_unevictable", 0)
    left = max(min(pinned, swappable), swappable - swap_free_bytes) if may_swap else swappable
    return left + _kernel_unreclaimable(memory)


def demand_recorded(frame: pd.DataFrame, source: str) -> Demand | None:
    """From a recording of one container: the cgroup table of `rtdebug leaks record`; None if it is empty.

    The highest of each figure counts, for a limit must hold at the peak. Page cache that was in use cannot be told
    from idle one there; what is neither anon, shmem nor kernel counts as reclaimable.
    """
    if frame.empty:
        return None
    ordered = frame.sort_values("time_ns")
    usage = ordered["usage_bytes"].dropna()
    if usage.empty:
        return None
    needed = _sum_of(ordered, ("anon_bytes", "shmem_bytes", "slab_bytes", "kernel_stack_bytes", "page_tables_bytes"))
    return Demand(
        source=source,
        observed_s=float(ordered["time_ns"].iloc[-1] - ordered["time_ns"].iloc[0]) / _NS_PER_S,
        usage_bytes=int(usage.iloc[-1]),
        peak_bytes=int(usage.max()),
        working_set_bytes=needed,
        unreclaimable_bytes=needed,
    )


def probed(demand: Demand, working_set_bytes: int, source: str) -> Demand:
    """The same with the working set that a probe found."""
    return replace(demand, working_set_bytes=working_set_bytes, source=source, probed=True)


def _kernel_unreclaimable(memory: MemoryState) -> int:
    if memory.version == 1:
        return memory.kmem_usage_bytes or 0
    known = [memory.stat[key] for key in _UNEVICTABLE_KERNEL if key in memory.stat]
    return sum(known)


def _sum_of(frame: pd.DataFrame, columns: tuple[str, ...]) -> int | None:
    present = [column for column in columns if column in frame and frame[column].notna().any()]
    if "anon_bytes" not in present:
        return None
    highest = frame[present].sum(axis=1).max()
    return int(highest)


def swap_free(meminfo: Mapping[str, int]) -> int:
    """Bytes of swap the host has left."""
    return meminfo.get("SwapFree", 0)
