"""The lower envelope: what a series falls back to. A leak raises it; a garbage collector, a load or a day does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rtdebug.leaks.buckets import Buckets

if TYPE_CHECKING:
    from rtdebug.leaks.rules import Rules
    from rtdebug.leaks.series import Floats

DAY_S = 86_400.0
_GRID = 512


@dataclass(frozen=True, slots=True)
class Envelope:
    """Floors of windows that are each at least one cycle long. The last window ends with the series."""

    time_s: Floats
    floor: Floats
    window_s: float
    cycle_s: float | None
    """The longest cycle found: the windows are that long. None: no cycle."""

    def __len__(self) -> int:
        return len(self.time_s)


def envelope(buckets: Buckets, rules: Rules) -> Envelope:
    """Take floors in up to `rules.windows` windows, then in longer ones for as long as the floors have a cycle."""
    span_s = float(buckets.time_s[-1] - buckets.time_s[0]) + buckets.width_s
    cycle_s = cycle(buckets.time_s, buckets.mean, rules)
    found = _floors(buckets, max(span_s / rules.windows, cycle_s or 0.0), rules)
    while len(found[0]) >= 2 * rules.fewest_days and (longer := cycle(*found, rules)):
        if longer <= (cycle_s or 0.0) * 1.2:
            break
        cycle_s = longer
        found = _floors(buckets, cycle_s, rules)
    time_s, floor = found
    return Envelope(time_s, floor, max(span_s / rules.windows, cycle_s or 0.0), cycle_s)


def _floors(buckets: Buckets, window_s: float, rules: Rules) -> tuple[Floats, Floats]:
    """Windows are laid from the end backwards; what is left at the beginning, less than one, is not used."""
    import numpy as np

    time_s = buckets.time_s
    end = float(time_s[-1]) + buckets.width_s / 2
    count = max(1, int((end - float(time_s[0]) + buckets.width_s / 2) / window_s + 1e-6))
    edges = end - window_s * np.arange(count, -1, -1)
    cuts = np.searchsorted(time_s, edges)
    times, floors, counts = [], [], []
    for index in range(count):
        low = buckets.low[cuts[index] : cuts[index + 1]]
        if len(low):
            seen = int(buckets.count[cuts[index] : cuts[index + 1]].sum())
            rank = int(rules.floor_quantile * (len(low) - 1))
            floors.append(float(np.partition(low, rank)[rank]))
            times.append((edges[index] + edges[index + 1]) / 2)
            counts.append(seen)
    # a window that is mostly a gap does not hold its whole cycle: its floor may be the peak
    full = np.array(counts) >= rules.least_coverage * float(np.median(counts))
    return np.array(times)[full], np.array(floors)[full]


def cycle(time_s: Floats, value: Floats, rules: Rules) -> float | None:
    """Return the period (s) of the strongest repetition once the line through all is taken away; None without one.

    By autocorrelation on a regular grid: at least four periods must be there, or two of a day. Ups and downs that are
    small beside the line do not matter, and are None too.
    """
    import numpy as np

    if len(time_s) < 12 or (span_s := float(time_s[-1] - time_s[0])) <= 0:
        return None
    count = min(_GRID, len(time_s))
    grid = np.linspace(float(time_s[0]), float(time_s[-1]), count)
    y = np.interp(grid, time_s, value)
    x = grid - grid.mean()
    y = y - y.mean()
    line = x * float(x @ y) / float(x @ x)
    y = y - line
    swing = float(np.quantile(y, 0.95) - np.quantile(y, 0.05))
    if abs(float(line[-1] - line[0])) > rules.negligible_cycle * swing:
        return None
    power = float(y @ y)
    if power <= 1e-9 * max(1.0, float(value.max()) ** 2):
        return None
    transformed = np.fft.rfft(y, 2 * count)
    lagged = np.fft.irfft(np.abs(transformed) ** 2)[: count // 2 + 1]
    lags = np.arange(len(lagged))
    correlation = lagged / power * count / (count - lags)  # by the number of pairs
    step_s = span_s / (count - 1)
    day = DAY_S / step_s
    longest = count // 4
    if longest < day <= count / 2 + 1:
        longest = min(int(day * 1.1), count // 2)
    below = np.flatnonzero(correlation[: longest + 1] < 0)
    if not len(below):
        return None
    inner = np.arange(max(int(below[0]), 2), longest)
    if len(inner) < 1:
        return None
    peaks = inner[(correlation[inner] >= correlation[inner - 1]) & (correlation[inner] >= correlation[inner + 1])]
    if not len(peaks) or (best := float(correlation[peaks].max())) < rules.cycle_strength:
        return None
    first = int(peaks[np.flatnonzero(correlation[peaks] >= 0.85 * best)[0]])
    return first * step_s
