"""The shape of a series in one word, from what was found in it. Healthy patterns have names too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rtdebug.leaks.buckets import Buckets
from rtdebug.leaks.changepoints import find_resets, without_spikes
from rtdebug.leaks.envelope import DAY_S

if TYPE_CHECKING:
    from rtdebug.leaks.growth import Growth
    from rtdebug.leaks.rules import Rules

FLAT = "flat"
LINEAR = "linear"
STAIRCASE = "staircase"
SAWTOOTH_DRIFT = "sawtooth with drift"
SAWTOOTH = "sawtooth"
WARM_UP = "warm-up"
PLATEAU = "plateau"
CACHE = "cache growth"
TMPFS = "tmpfs growth"
DAILY = "daily cycle"
RESTART = "restart"
STATIC = "static preallocation"
PERIODIC = "periodic"
CHURN = "churn"
STEP = "step"
SPIKES = "spikes"
AT_LIMIT = "at the limit"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Outline:
    """Figures of a run that tell its shape, in the unit of the series."""

    level: float
    range: float
    """Of the means, without the outermost 2 % on each side."""
    inside: float
    """Median range within a bucket: ups and downs too quick to be seen."""
    peaks: float
    """How far the highest sample is above the 98 % quantile of the means."""
    early: float
    """Rise from the first 2 % to the middle."""
    late: float
    """Rise from the middle to the last tenth."""
    largest_step: float
    """Of the series without spikes."""
    usual_step: float
    """Nine of ten are smaller."""
    step_at: float
    """Where it is: 0 begin, 1 end."""


def outline(run: Buckets) -> Outline:
    """Measure a run."""
    import numpy as np

    mean = run.mean
    level = float(np.median(mean))
    least, most = np.quantile(mean, (0.02, 0.98))
    tenth = max(1, len(mean) // 10)
    middle = mean[len(mean) // 2 - tenth // 2 : len(mean) // 2 + tenth // 2 + 1]
    first = mean[: max(1, len(mean) // 50)]
    early, half, late = (float(np.median(part)) for part in (first, middle, mean[-tenth:]))
    smooth = without_spikes(mean)
    steps = smooth[2:] - smooth[:-2] if len(smooth) > 2 else np.zeros(1)
    at = int(np.argmax(np.abs(steps)))
    return Outline(
        level,
        float(most - least),
        float(np.median(run.high - run.low)),
        float(run.high.max() - most),
        half - early,
        late - half,
        float(steps[at]),
        float(np.quantile(np.abs(steps), 0.9)),
        at / len(steps),
    )


def growing_shape(run: Buckets, growth: Growth, kind: str, smallest: float, rules: Rules) -> str:
    """Name the shape of a run that grows."""
    if kind in ("shmem", "rss_shmem"):
        return TMPFS
    if _is_staircase(growth):
        return STAIRCASE
    slope = growth.trend.slope if growth.trend else 0.0
    around = find_resets(run.mean - slope * (run.time_s - run.time_s[0]), 2 * smallest, rules)
    return SAWTOOTH_DRIFT if len(around) >= 3 and around.lopsided else LINEAR


def resting_shape(run: Buckets, cycle_s: float | None, smallest: float, rules: Rules) -> str:
    """Name the shape of a run that does not grow."""
    seen = outline(run)
    still = max(rules.flat_share * seen.level, rules.flat_growth_share * smallest)
    if seen.range < still:
        if seen.inside > still:
            return CHURN
        return SPIKES if seen.peaks > 2 * still else FLAT
    if cycle_s:
        return DAILY if abs(cycle_s - DAY_S) < 0.2 * DAY_S else PERIODIC
    if abs(seen.largest_step) > max(0.6 * seen.range, 4 * seen.usual_step):
        return STATIC if seen.largest_step > 0 and seen.step_at < 0.35 else STEP
    if seen.early > 0.4 * seen.range and abs(seen.late) < 0.5 * seen.early:
        return WARM_UP
    if seen.late > 0.5 * seen.range:
        return UNKNOWN
    return CHURN


def _is_staircase(growth: Growth) -> bool:
    """Few windows make the growth, and in most is little."""
    import numpy as np

    floor = growth.envelope.floor[growth.begin :]
    if len(floor) < 12:
        return False
    steps = np.diff(floor)
    largest = np.sort(steps)[-(len(steps) // 4) :]
    rise = float(floor[-1] - floor[0])
    return bool(largest.sum() >= 0.75 * rise and np.median(np.abs(steps)) <= 0.3 * rise / len(steps))
