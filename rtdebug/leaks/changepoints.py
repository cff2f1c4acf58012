"""Where a series starts anew: falls that are too deep for noise, which are restarts or collections of garbage."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from rtdebug.leaks.buckets import Buckets

if TYPE_CHECKING:
    from rtdebug.leaks.rules import Rules
    from rtdebug.leaks.series import Floats

NS_PER_S = 1_000_000_000
_SPIKE = 3


@dataclass(frozen=True, slots=True)
class Resets:
    """Falls of a series."""

    index: tuple[int, ...]
    """The first bucket after each."""
    heights: tuple[float, ...]
    """The value from which it fell."""
    rises: int
    """How often it rises as suddenly by as much."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def lopsided(self) -> bool:
        """Sudden falls after slow rises, as of a collector or a restart; not noise, nor work that comes and goes."""
        return self.rises <= len(self.index) / 3


def without_spikes(value: Floats) -> Floats:
    """Return the series without peaks of less than three buckets (a morphological opening)."""
    from scipy.ndimage import grey_opening

    opened: Floats = grey_opening(value, _SPIKE) if len(value) > _SPIKE else value
    return opened


def find_resets(value: Floats, smallest: float, rules: Rules) -> Resets:
    """Find falls by `rules.fall_share` of the whole range, and by at least half of `smallest`, within two buckets."""
    import numpy as np

    if len(value) < 8:
        return Resets((), (), 0)
    raw, value = value, without_spikes(value)
    lowest, highest = np.quantile(value, (0.02, 0.98))
    needed = max(rules.fall_share * float(highest - lowest), smallest / 2)
    falls = _sudden(value, needed)
    heights = tuple(float(raw[max(0, at - 4) : at].max()) for at in falls)
    return Resets(falls, heights, len(_sudden(-value, needed)))


def _sudden(value: Floats, needed: float) -> tuple[int, ...]:
    """Where the value has fallen by at least `needed` since one or two buckets before."""
    import numpy as np

    before = np.maximum(value[:-1], np.append(value[0], value[:-2]))
    found: list[int] = []
    for at in (np.flatnonzero(before - value[1:] >= needed) + 1).tolist():
        if found and at - found[-1] <= 2:  # one fall that took two buckets
            found[-1] = at
        else:
            found.append(at)
    return tuple(found)


def at_times(buckets: Buckets, times_ns: tuple[int, ...]) -> tuple[int, ...]:
    """Return the first bucket after each time; times outside are left out, and those that share a bucket joined."""
    import numpy as np

    cuts = np.searchsorted(buckets.time_s, np.array(sorted(times_ns), dtype=float) / NS_PER_S)
    return tuple(sorted({int(cut) for cut in cuts if 0 < cut < len(buckets)}))


def pieces(buckets: Buckets, cuts: tuple[int, ...]) -> list[Buckets]:
    """Cut buckets before each index."""
    edges = [0, *cuts, len(buckets)]
    return [
        Buckets(
            buckets.level,
            buckets.index[begin:end],
            buckets.low[begin:end],
            buckets.high[begin:end],
            buckets.total[begin:end],
            buckets.count[begin:end],
        )
        for begin, end in pairwise(edges)
        if end > begin
    ]
