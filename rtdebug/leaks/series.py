"""A series: one kind of memory of one container or process over time, cleaned, with what was cleaned said."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

NS_PER_S = 1_000_000_000
EARLIEST_NS = 946_684_800 * NS_PER_S
"""2000-01-01: what claims to be older comes from a clock that was not set."""
_TOMORROW_NS = 86_400 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Labels:
    """Whose memory, and which kind. None is not known."""

    name: str
    """Container, or what the file calls the column."""
    kind: str = "usage"
    """anon, file, shmem, slab, kernel_stack, page_tables, sock, swap, rss_anon, ...; usage: all kinds together."""
    unit: str = "bytes"
    """bytes, count or percent."""
    container_id: str | None = None
    image: str | None = None
    host: str | None = None
    process: str | None = None
    """Identity of a process across restarts; None: the series is that of the cgroup."""
    pid: int | None = None
    executable: str | None = None
    stack: str | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Values at times, ascending, without holes in either array."""

    labels: Labels
    time_ns: Ints
    """Unix time."""
    value: Floats
    """In the labels' unit."""
    limit: float | None = None
    """Of the cgroup, the same unit. None: no limit, or not known."""
    restarts_ns: tuple[int, ...] = ()
    """Known starts of the process or container; those that must be guessed are not here."""
    notes: tuple[str, ...] = field(default=())
    """What was wrong with the input, in words."""


def clean(labels: Labels, time_ns: Ints, value: Floats, *, now_ns: int | None = None, **more: object) -> Series:
    """Return the series of what was read: in order, without what cannot be, and with notes that say so.

    Left out are values that are missing, infinite or negative, and times before 2000 or after tomorrow (`now_ns`:
    what is now). Nothing is filled in.
    """
    import numpy as np

    latest_ns = (time.time_ns() if now_ns is None else now_ns) + _TOMORROW_NS
    notes: list[str] = []
    good = np.isfinite(value) & (value >= 0)
    if missing := int(np.count_nonzero(~np.isfinite(value))):
        notes.append(f"{missing} of {len(value)} values are missing")
    if negative := int(np.count_nonzero(value < 0)):
        notes.append(f"{negative} negative values left out")
    plausible = (time_ns >= EARLIEST_NS) & (time_ns <= latest_ns)
    if wrong := int(np.count_nonzero(good & ~plausible)):
        notes.append(f"{wrong} samples left out: their time is before 2000 or in the future")
    time_ns, value = time_ns[good & plausible], value[good & plausible]
    steps = np.diff(time_ns)
    if back := int(np.count_nonzero(steps < 0)):
        notes.append(f"the clock went back {back} times: samples are taken in the order of their times")
        order = np.argsort(time_ns, kind="stable")
        time_ns, value = time_ns[order], value[order]
        steps = np.diff(time_ns)
    if twice := int(np.count_nonzero(steps == 0)):
        notes.append(f"{twice} samples at a time that has one already: all of them count")
    return Series(labels, time_ns, value, notes=tuple(notes), **more)  # type: ignore[arg-type]
