"""A series in at most MOST buckets of equal time: least, largest, total and count of each.

All verdicts are made from buckets. They can be merged without loss, so that a series judged while it grows, one read
at once and one put together from the parts of many workers are the same numbers. A bucket's width is a power of two
of seconds, and buckets begin at multiples of it in Unix time, so that nobody has to agree on where to begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtdebug.leaks.series import Floats, Ints

MOST = 1024
"""A day at 10 s is 675 buckets of 128 s; a week is 591 of 17 min."""
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets that hold samples, ascending."""

    level: int
    """A bucket is 2**level seconds wide."""
    index: Ints
    """Unix seconds >> level."""
    low: Floats
    high: Floats
    total: Floats
    """Sum of the values: exact for whole bytes, up to 2**53."""
    count: Ints

    def __len__(self) -> int:
        return len(self.index)

    @property
    def width_s(self) -> int:
        """Width of a bucket."""
        return 1 << self.level

    @property
    def time_s(self) -> Floats:
        """Unix time of the buckets' middles."""
        middles: Floats = (self.index.astype(float) + 0.5) * self.width_s
        return middles

    @property
    def mean(self) -> Floats:
        """Mean value of each bucket."""
        means: Floats = self.total / self.count
        return means

    @property
    def samples(self) -> int:
        """How many samples went in."""
        return int(self.count.sum())


def level_for(first_s: int, last_s: int, most: int = MOST) -> int:
    """Return the level at which the time from first to last, both included, is at most `most` buckets."""
    level = 0
    while (last_s >> level) - (first_s >> level) >= most:
        level += 1
    return level


def bucketed(time_ns: Ints, value: Floats, most: int = MOST) -> Buckets:
    """Put samples, in any order, into buckets. `time_ns` must not be empty."""
    import numpy as np

    seconds = time_ns // _NS_PER_S
    level = level_for(int(seconds.min()), int(seconds.max()), most)
    ones = np.ones(len(value), np.int64)
    return _joined(level, seconds >> level, value, value, value, ones)


def coarsened(buckets: Buckets, level: int) -> Buckets:
    """Return the same at a higher level (or the same one)."""
    shift = level - buckets.level
    if not shift:
        return buckets
    return _joined(level, buckets.index >> shift, buckets.low, buckets.high, buckets.total, buckets.count)


def merged(parts: list[Buckets], most: int = MOST) -> Buckets:
    """Join buckets of one series, of any levels and in any order: the same as if all samples had come at once."""
    import numpy as np

    level = max(part.level for part in parts)
    level = max(
        level,
        level_for(
            min(int(part.index[0]) << part.level for part in parts),
            max(int(part.index[-1]) << part.level for part in parts),
            most,
        ),
    )
    same = [coarsened(part, level) for part in parts]
    return _joined(
        level,
        np.concatenate([part.index for part in same]),
        np.concatenate([part.low for part in same]),
        np.concatenate([part.high for part in same]),
        np.concatenate([part.total for part in same]),
        np.concatenate([part.count for part in same]),
    )


def _joined(level: int, index: Ints, low: Floats, high: Floats, total: Floats, count: Ints) -> Buckets:
    import numpy as np

    if np.any(index[1:] < index[:-1]):
        order = np.argsort(index, kind="stable")
        index, low, high, total, count = index[order], low[order], high[order], total[order], count[order]
    starts = np.flatnonzero(np.append(True, index[1:] != index[:-1]))
    return Buckets(
        level,
        index[starts],
        np.minimum.reduceat(low, starts),
        np.maximum.reduceat(high, starts),
        np.add.reduceat(total, starts),
        np.add.reduceat(count, starts),
    )
