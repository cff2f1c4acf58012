"""A robust slope, with an interval that does not take memory for independent samples.

The slope is that of Theil and Sen: the median of the slopes of all pairs. Points of memory usage are not independent,
so there are two ways to a slope and its error, and the one that says more counts:

- Noise around a line that remembers: residuals are taken as AR(1), and n of them count for n (1 - r) / (1 + r)
  independent ones (Santer et al. 2000, doi 10.1029/1999JD901105), r corrected for the bias that a fitted line gives it.
- A walk that drifts, as by files written at random times: its steps are the sample, and their mean is tested.

A random walk without drift passes some times as often as the confidence says, which is why a verdict asks for more than
the interval; Mann-Kendall would call most of them a trend.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtdebug.leaks.series import Floats, Ints

_MOST_R = 0.98
_CLIP = 3.0
_USUAL = 0.99
_FEWEST_FOR_CURVES = 8
_TAUS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.7, 1.0, 1.5)


@dataclass(frozen=True, slots=True)
class Trend:
    """A line through points, per second."""

    slope: float
    level: float
    """Of the line at the first point."""
    error: float
    """Standard error of the slope."""
    freedom: float
    """Degrees of freedom that are left: may be below 1, when there is no interval."""
    noise: float
    """Robust standard deviation around the line."""

    def interval(self, level: float) -> tuple[float, float]:
        """Return the slope's interval at a confidence of `level`; infinite where nothing is known."""
        if self.freedom < 1:
            return -math.inf, math.inf
        reach = student(level, round(self.freedom, 1)) * self.error
        return self.slope - reach, self.slope + reach


@lru_cache(maxsize=4096)
def student(level: float, freedom: float) -> float:
    """Return the two-sided quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + level / 2))


@lru_cache(maxsize=64)
def _pairs(count: int) -> tuple[Ints, Ints]:
    import numpy as np

    return np.triu_indices(count, 1)


def theil_sen(x: Floats, y: Floats) -> float:
    """Return the median slope of all pairs of points; x ascending. O(n^2): for floors, not for samples."""
    import numpy as np

    first, second = _pairs(len(x))
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))


def fit(x: Floats, y: Floats) -> Trend:
    """Fit a line to at least 3 points, x ascending (seconds)."""
    import numpy as np

    slope = theil_sen(x, y)
    middle = float(np.median(y - slope * x))
    residual = y - slope * x - middle
    noise = 1.4826 * float(np.median(np.abs(residual)))
    spread = float(np.std(residual))
    noise = max(noise, spread / 2)
    kept = np.clip(residual, -_CLIP * noise, _CLIP * noise)
    line = Trend(slope, middle + slope * float(x[0]), *_error_around_line(x, kept), noise)
    walk = Trend(float((y[-1] - y[0]) / (x[-1] - x[0])), float(y[0]), *_error_of_walk(x, y), noise)
    return walk if _lowest(walk) > _lowest(line) else line


def lasting_slope(x: Floats, y: Floats, gain: float) -> float | None:
    """Return the slope that stays when what slows down is taken away; None where nothing is seen to slow down.

    Fits a line plus a rise that dies away (1 - exp(-t / tau)) to at least 8 points, x ascending, for several tau of
    the order of the whole time. It counts if it leaves less than `gain` of what the line alone leaves.
    """
    import numpy as np

    if len(x) < _FEWEST_FOR_CURVES:
        return None
    span = float(x[-1] - x[0])
    at = (x - x[0]) / span
    left, rises, slope = min((_with_a_decline(at, y, tau) for tau in _TAUS), key=lambda found: found[0])
    line = np.polynomial.polynomial.Polynomial.fit(at, y, 1)
    return slope / span if rises and left < gain * float(np.sum((y - line(at)) ** 2)) else None


def _with_a_decline(at: Floats, y: Floats, tau: float) -> tuple[float, bool, float]:
    """Return what is left, whether the dying part rises, and the slope of the line beside it."""
    import numpy as np

    columns = np.stack([np.ones(len(at)), 1 - np.exp(-at / tau), at], axis=1)
    found = np.linalg.lstsq(columns, y, rcond=None)[0]
    return float(np.sum((y - columns @ found) ** 2)), bool(found[1] > 0), float(found[2])


def _lowest(trend: Trend) -> float:
    return trend.interval(_USUAL)[0]


def _error_around_line(x: Floats, residual: Floats) -> tuple[float, float]:
    """Return the slope's standard error and its degrees of freedom, for AR(1) noise around a line."""
    import numpy as np

    count = len(x)
    r = _autocorrelation(residual)
    effective = _independent(count, r + (2 + 8 * r) / count)  # a walk, its line taken away, has r = 1 - 10 / n
    variance = float(np.mean(residual**2)) * count / max(effective - 2, 0.5)
    return math.sqrt(variance / float(np.sum((x - x.mean()) ** 2))), effective - 2


def _error_of_walk(x: Floats, y: Floats) -> tuple[float, float]:
    """The same for a walk of independent steps."""
    import numpy as np

    steps = np.diff(y) / np.diff(x)
    count = len(steps)
    r = _autocorrelation(steps)
    effective = _independent(count, r + (1 + 3 * r) / count)
    return float(np.std(steps, ddof=1)) / math.sqrt(effective), effective - 1


def _independent(count: int, r: float) -> float:
    """Return as how many independent samples `count` count whose correlation from one to the next is `r`."""
    r = min(max(r, 0.0), _MOST_R)
    return count * (1 - r) / (1 + r)


def _autocorrelation(values: Floats) -> float:
    centred = values - values.mean()
    power = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / power if power > 0 else 0.0
