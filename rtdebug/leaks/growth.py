"""Does the lower envelope of one run (from one restart to the next) rise, and does it go on?"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from rtdebug.leaks.buckets import Buckets
from rtdebug.leaks.envelope import DAY_S, Envelope, envelope
from rtdebug.leaks.trend import Trend, fit, lasting_slope, theil_sen

if TYPE_CHECKING:
    from rtdebug.leaks.rules import Rules
    from rtdebug.leaks.series import Floats

HOUR_S = 3600.0
_SLOWS_DOWN = "the rise slows down, as of a warm-up that is not over"
_UNEVEN = "it comes in a few large moves, which may be chance"


class Found(IntEnum):
    """How sure growth is."""

    NONE = 0
    SUSPECT = 1
    LEAK = 2


@dataclass(frozen=True, slots=True)
class Growth:
    """What was found in one run."""

    found: Found
    envelope: Envelope
    trend: Trend | None
    """Of the part that was judged. None: too few windows for a line."""
    begin: int
    """First window of that part."""
    span_s: float
    """Length of that part."""
    why_not: str = ""
    """What keeps it from being a leak, in words."""
    undecided: bool = False
    """It rose from cycle to cycle, and there are too few cycles to say more."""

    @property
    def rise(self) -> float:
        """Growth of the floor over the part, in the unit of the series."""
        return self.trend.slope * self.span_s if self.trend else 0.0


def find_growth(run: Buckets, smallest: float, rules: Rules) -> Growth:
    """Judge a run: the longest of its parts, all ending now, that is a leak; else the one that is a suspicion."""
    floors = envelope(run, rules)
    best: Growth | None = None
    for share in rules.suffixes:
        begin = round(len(floors) * (1 - share))
        growth = _judge(floors, begin, smallest, rules)
        if growth.found is Found.LEAK:
            return growth
        if best is None or growth.found > best.found:
            best = growth
    assert best is not None
    return best


def rises_throughout(run: Buckets, smallest: float, rules: Rules) -> bool:
    """Whether a run too short for a line is higher in each third than in the one before, and much higher in the end."""
    import numpy as np

    if len(run) < 6:
        return False
    first, middle, last = (float(np.median(part)) for part in np.array_split(run.mean, 3))
    enough = last - first >= max(smallest, rules.short_run_rise * first)
    return enough and min(middle - first, last - middle) >= smallest / 4


def _judge(floors: Envelope, begin: int, smallest: float, rules: Rules) -> Growth:
    time_s, floor = floors.time_s[begin:], floors.floor[begin:]
    if len(floor) < 4:
        rose = len(floor) >= 2 and float(floor[-1] - floor[0]) >= smallest
        return Growth(Found.NONE, floors, None, begin, 0.0, "there are too few cycles to compare", rose)
    trend = fit(time_s, floor)
    span_s = float(time_s[-1] - time_s[0]) + floors.window_s

    def found(what: Found, why_not: str) -> Growth:
        return Growth(what, floors, trend, begin, span_s, why_not)

    if trend.slope * span_s < smallest:
        return found(Found.NONE, "the floor does not rise by what counts")
    if trend.interval(rules.level_suspect)[0] <= 0:
        return found(Found.NONE, "the rise is within the noise")
    if begin and not _is_record(floors, begin, trend.slope * span_s, rules):
        return found(Found.NONE, "the rise is within what was seen before")
    steps = _rounds(time_s, floor, rules)
    if steps[-1] <= rules.least_round * max(steps):
        return found(Found.NONE, "the rise has stopped")
    if span_s < rules.shortest_span_s:
        return found(Found.SUSPECT, "the rise is too short to be sure")
    if trend.interval(rules.level_leak)[0] <= 0 and not _climbs(floor, rules):
        uneven = trend.slope * span_s > rules.plain_rise * trend.noise
        return found(Found.SUSPECT, _UNEVEN if uneven else "the rise is hardly beyond the noise")
    if min(steps) <= rules.least_round * sum(steps) / len(steps):
        return found(Found.SUSPECT, "the floor does not rise in every part of the time")
    slower = begin >= 4 and theil_sen(floors.time_s[:begin], floors.floor[:begin]) * rules.deceleration > trend.slope
    if slower or steps[-1] < rules.deceleration * max(steps[:-1]):
        return found(Found.SUSPECT, _SLOWS_DOWN)
    if _steps(floor) < rules.fewest_steps and len(floor) > 2 * rules.fewest_steps:
        return found(Found.SUSPECT, "it rose in a few steps only, as by deploys, and hardly between them")
    fewest = rules.fewest_days if (floors.cycle_s or 0) > DAY_S * 0.8 else rules.fewest_windows
    if len(floor) < fewest:
        return found(Found.SUSPECT, "there are too few cycles to be sure")
    lasting = lasting_slope(floors.time_s, floors.floor, rules.curve_gain)
    if lasting is not None and lasting < rules.deceleration * trend.slope:
        return found(Found.SUSPECT, _SLOWS_DOWN)
    return found(Found.LEAK, "")


def _climbs(floor: Floats, rules: Rules) -> bool:
    """Whether it hardly ever falls, and rises in many steps: noise that remembers does not do that."""
    import numpy as np

    steps = np.diff(floor)
    ups, downs = float(steps[steps > 0].sum()), float(-steps[steps < 0].sum())
    return downs <= rules.climb_falls * ups and _steps(floor) >= rules.climb_steps


def _steps(floor: Floats) -> float:
    """Return how many equal steps the rises of the floor make up for."""
    import numpy as np

    steps = np.diff(floor)
    ups = steps[steps > 0]
    return float(ups.sum() ** 2 / (ups**2).sum()) if len(ups) else 0.0


def _is_record(floors: Envelope, begin: int, rise: float, rules: Rules) -> bool:
    """Whether the end is well above all that was before the part, not just above its beginning."""
    return float(floors.floor[-3:].min()) - float(floors.floor[:begin].max()) >= rules.record * rise


def _rounds(time_s: Floats, floor: Floats, rules: Rules) -> list[float]:
    """Return by how much the floor rises from each round (part of the time) to the next, by their medians."""
    import numpy as np

    rounds = min(rules.rounds, len(floor) // 2) if len(floor) >= 2 * 3 else 3
    parts = np.array_split(np.arange(len(floor)), rounds)
    middles = [float(np.median(floor[part])) for part in parts]
    return [after - before for before, after in itertools.pairwise(middles)]
