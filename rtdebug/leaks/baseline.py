"""What is usual: a sliding window for each figure of each container, and whether the newest value is outside of it.

Robust by default: the band is the median and a number of scaled median absolute deviations (Leys et al. 2013, doi
10.1016/j.jesp.2013.03.013), which an outlier does not widen. With mean and standard deviation it does: a value that
stays outside hides itself after a seventh of the window, where the median takes half of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Method = Literal["mad", "2sigma", "2.5sigma"]
METHODS: Mapping[Method, float] = {"mad": 3.5, "2sigma": 2.0, "2.5sigma": 2.5}
"""Half the width of the band, in (robust) standard deviations. 3.5: Iglewicz and Hoaglin, How to Detect and Handle
Outliers (1993)."""
_MAD_TO_SIGMA = 1.4826
"""For normally distributed values."""
_LEAST_SHARE = 0.05
"""The band is at least as wide on each side as this share of the centre: a flat line has no deviation at all."""
_SHIFT_RUN = 6
"""A level is a new one if so many values in a row were outside before it became usual; fewer are a peak."""
_FIRST_ROWS = 256
_LEAST_WINDOW = 10
"""Values: of fewer there is no median worth its name."""

MIB = 1 << 20
BASELINE_BYTES = ("anon", "file", "shmem", "kernel")
BASELINE_RATES = ("major_faults", "refaults")
LEAST_HALF_WIDTH: Mapping[str, float] = {
    "usage_bytes": 8 * MIB,
    "shm_used_bytes": 4 * MIB,
    **{f"{kind}_bytes": 4 * MIB for kind in BASELINE_BYTES},
    **{f"{figure}_per_second": 10.0 for figure in BASELINE_RATES},
}
"""Floors of the bands: less is nobody's incident, however flat the line was."""

Key = tuple[str, str]
"""Whose it is, and the figure."""


def method_of(name: str) -> Method:
    """The method of that name. Raises KeyError."""
    return {str(method): method for method in METHODS}[name]


def baselines_of(method: Method, window_s: float, interval_s: float) -> Baselines:
    """Windows of that time, of values at this interval."""
    return Baselines(max(_LEAST_WINDOW, round(window_s / interval_s)), method, LEAST_HALF_WIDTH)


@dataclass(frozen=True, slots=True)
class Band:
    """The newest value of one figure beside what is usual."""

    value: float
    centre: float
    half_width: float
    shifts: int
    """How often a value that had stayed outside became the new normal."""
    shifted_s: float | None
    """Unix time of the last such shift."""

    @property
    def deviation(self) -> float:
        """How far it is from the centre, in half widths of the band: beyond 1 or -1 it is outside."""
        return (self.value - self.centre) / self.half_width

    @property
    def is_outside(self) -> bool:
        """Whether it is unusual."""
        return abs(self.deviation) > 1


@dataclass(slots=True)
class _Row:
    """One figure's place in the windows, and what became of its values."""

    index: int
    seen: int = 0
    run: int = 0
    """Values outside, one after the other up to now."""
    centre: float = 0.0
    half_width: float = 0.0
    """Of the band that the first of them was outside of."""
    shifts: int = 0
    shifted_s: float | None = None


class Baselines:
    """Windows of `window` values. `least_half_width` gives a floor for the bands of a figure (in its unit)."""

    def __init__(
        self, window: int = 180, method: Method = "mad", least_half_width: Mapping[str, float] | None = None
    ) -> None:
        self._window = window
        self._method = method
        self._least = least_half_width or {}
        self._rows: dict[Key, _Row] = {}
        self._free: list[int] = []
        self._values: NDArray[np.float32] | None = None

    def add(self, values: Mapping[Key, float], time_s: float) -> dict[Key, Band]:
        """Judge these values by what was before them, then add them; keys that are not there are forgotten.

        Returns bands for the figures whose window is filled.
        """
        self._forget_all_but(values)
        for key in values:
            if key not in self._rows:
                self._rows[key] = _Row(self._place())
        filled = [key for key in values if self._rows[key].seen >= self._window]
        bands = {
            key: self._judge(key, values[key], centre, half_width, time_s)
            for key, (centre, half_width) in zip(filled, self._bands(filled), strict=True)
        }
        windows = self._values
        for key, value in values.items():
            row = self._rows[key]
            assert windows is not None
            windows[row.index, row.seen % self._window] = value
            row.seen += 1
        return bands

    def _judge(self, key: Key, value: float, centre: float, half_width: float, time_s: float) -> Band:
        row = self._rows[key]
        if abs(value - centre) > half_width:
            if row.run == 0:
                row.centre, row.half_width = centre, half_width
            row.run += 1
        else:
            if row.run >= _SHIFT_RUN and abs(value - row.centre) > row.half_width:
                row.shifts, row.shifted_s = row.shifts + 1, time_s
            row.run = 0
        return Band(value, centre, half_width, row.shifts, row.shifted_s)

    def _bands(self, keys: list[Key]) -> list[tuple[float, float]]:
        """Centre and half width of each."""
        import numpy as np

        if not keys or self._values is None:
            return []
        windows = self._values[[self._rows[key].index for key in keys]].astype(np.float64)
        if self._method == "mad":
            centre = np.median(windows, axis=1)
            sigma = _MAD_TO_SIGMA * np.median(np.abs(windows - centre[:, None]), axis=1)
        else:
            centre, sigma = windows.mean(axis=1), windows.std(axis=1, ddof=1)
        floor = np.array([self._least.get(figure, 0.0) for _, figure in keys])
        least = np.maximum(floor, _LEAST_SHARE * np.abs(centre))
        half_width = np.maximum(METHODS[self._method] * sigma, np.maximum(least, 1e-9))
        return list(zip(centre.tolist(), half_width.tolist(), strict=True))

    def _place(self) -> int:
        import numpy as np

        if not self._free:
            old = self._values
            have = 0 if old is None else len(old)
            self._values = np.zeros((max(_FIRST_ROWS, 2 * have), self._window), np.float32)
            if old is not None:
                self._values[:have] = old
            self._free = list(range(len(self._values) - 1, have - 1, -1))
        return self._free.pop()

    def _forget_all_but(self, values: Mapping[Key, float]) -> None:
        for key in [key for key in self._rows if key not in values]:
            self._free.append(self._rows.pop(key).index)
