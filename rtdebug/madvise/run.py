"""One run: what it was, and what was measured. The raw result of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one case with one advice. None: not known, or the step did not happen.

    Steps: map; advice, if its moment is before; populate (touch each page once); advice, if after; access; unmap.
    """

    case: int
    """Its index in the plan."""
    memory: str
    access: str
    mode: str
    size_bytes: int
    advice: str
    """`none` is the baseline."""
    moment: str
    round: int
    """Counts from 0, warm-up included."""
    warm_up: bool
    position: int
    """Which run of all it was: the order is shuffled."""
    errno: str | None = None
    """What madvise(2) answered, if it refused."""
    advice_ns: int | None = None
    populate_ns: int | None = None
    access_ns: int | None = None
    total_ns: int | None = None
    """All of the three."""
    cpu_ns: int | None = None
    """User and system time of the three: what others on the host took is not in it."""
    populate_minor_faults: int | None = None
    populate_major_faults: int | None = None
    access_minor_faults: int | None = None
    access_major_faults: int | None = None
    access_dtlb_misses: int | None = None
    populated_rss_bytes: int | None = None
    rss_bytes: int | None = None
    """After populating and advice, before the accesses: what the memory costs."""
    accessed_rss_bytes: int | None = None
    populated_thp_bytes: int | None = None
    thp_bytes: int | None = None
    """Huge pages in it at the same moment as rss_bytes."""
    lazyfree_bytes: int | None = None
    swap_bytes: int | None = None
    mapped_usage_bytes: int | None = None
    """Usage of the cgroup before anything was touched."""
    usage_bytes: int | None = None
    """And at the moment of rss_bytes."""
    returned_bytes: int | None = None
    """By how much the cgroup's usage fell by the advice; only where it was given after populating."""
    return_ns: int | None = None
    """From the beginning of madvise(2) until nearly all of that had come back."""
    pressure_us: int | None = None
    """Memory stall during the run."""
    stat: Mapping[str, int] = field(default_factory=dict)
    """What changed in the cgroup's memory.stat from mapping to rss_bytes."""
    vmstat: Mapping[str, int] = field(default_factory=dict)
    """What changed in the host's vmstat meanwhile."""


_NAMES = frozenset(each.name for each in fields(Run))


def run_from(values: Mapping[str, Any]) -> Run:
    """A run as the experiment process sent it."""
    return Run(**{key: value for key, value in values.items() if key in _NAMES})
