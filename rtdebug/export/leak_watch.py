"""Leak verdicts of running containers, from samples that the exporter keeps in memory: those of `rtdebug leaks`.

Of each container at most 512 samples are kept: when they are full every other one goes, and from then on samples come
at half the rate, until they cover a week. So its memory is bounded, and a verdict rests on all of that time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rtdebug.containers.model import Container
from rtdebug.export.background import Background
from rtdebug.export.model import KINDS, Leak, Reading

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MOST_SAMPLES = 512
_LONGEST_STEP_S = 7 * 86400 / _MOST_SAMPLES
_PAUSE_S = 300.0
_PATIENCE_S = 3600.0
_S_PER_HOUR = 3600
_NS_PER_S = 1_000_000_000

Verdicts = dict[str, dict[str, Leak]]
"""By container and kind."""


class History:
    """Samples of one container: seconds, and a row of values for each."""

    def __init__(self, columns: int, step_s: float = 0.0) -> None:
        import numpy as np

        self._seconds: NDArray[np.int64] = np.zeros(16, np.int64)
        self._values: NDArray[np.float32] = np.zeros((16, columns), np.float32)
        self._count = 0
        self._step_s = step_s

    def add(self, second: int, row: list[float]) -> None:
        """Add a sample, if it is time for one."""
        if self._count and second - self._seconds[self._count - 1] < self._step_s:
            return
        if self._count == len(self._seconds):
            self._make_room()
        self._seconds[self._count], self._values[self._count] = second, row
        self._count += 1

    def column(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return seconds and values."""
        import numpy as np

        return self._seconds[: self._count].copy(), self._values[: self._count, index].astype(np.float64)

    def _make_room(self) -> None:
        import numpy as np

        if self._count < _MOST_SAMPLES:
            self._seconds = np.concatenate([self._seconds, np.zeros_like(self._seconds)])
            self._values = np.concatenate([self._values, np.zeros_like(self._values)])
            return
        span_s = float(self._seconds[-1] - self._seconds[0])
        if span_s < _MOST_SAMPLES * _LONGEST_STEP_S:
            kept = slice(0, None, 2)
            self._step_s = 2 * span_s / _MOST_SAMPLES * 0.99
        else:
            kept = slice(_MOST_SAMPLES // 8, None)
        seconds, values = self._seconds[kept].copy(), self._values[kept].copy()
        self._count = len(seconds)
        self._seconds[: self._count], self._values[: self._count] = seconds, values


@dataclass(slots=True)
class _Watched:
    container: Container
    history: History
    limit_bytes: int | None = None


class LeakWatch:
    """Collects samples; verdicts are made in a helper process from time to time."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic, pause_s: float = _PAUSE_S) -> None:
        self._watched: dict[str, _Watched] = {}
        self._judging: Background[Verdicts] = Background(_PATIENCE_S, pause_s, now_s=now_s)
        self._verdicts: Verdicts = {}

    def add(self, time_s: float, readings: Mapping[str, tuple[Container, Reading]]) -> None:
        """Take a sample of each container, by its place; those that are not there are forgotten."""
        self._watched = {key: watched for key, watched in self._watched.items() if key in readings}
        for key, (container, reading) in readings.items():
            watched = self._watched.get(key)
            if watched is None or watched.container.id != container.id:
                watched = self._watched[key] = _Watched(container, History(len(KINDS)))
            watched.container, watched.limit_bytes = container, reading.figures.get("limit_bytes")
            watched.history.add(int(time_s), _row(reading))
        verdicts = self._judging.poll()
        if verdicts is not None:
            self._verdicts = verdicts
        if self._judging.may_ask():
            self._judging.ask(lambda: judge_all(self._watched))

    def verdicts(self, key: str) -> Mapping[str, Leak]:
        """The last verdicts on a container, by kind; empty before the first."""
        return self._verdicts.get(key, {}) if key in self._watched else {}

    def close(self) -> None:
        """End a judgement that runs."""
        self._judging.close()


def _row(reading: Reading) -> list[float]:
    """What is swapped out is anonymous memory that was not given back. Not known: -1."""
    row = [float(reading.kinds.get(kind, -1)) for kind in KINDS]
    if row[0] >= 0:
        row[0] += reading.figures.get("swap_bytes", 0)
    return row


def judge_all(watched: Mapping[str, _Watched], nice: int = 19) -> Verdicts:
    """Judge each kind of each container; call it in a helper process, for it takes its time."""
    os.nice(nice)
    return {key: judge_one(each) for key, each in watched.items()}


def judge_one(watched: _Watched) -> dict[str, Leak]:
    """The verdicts on one container; a kind on which there is none yet is absent."""
    from rtdebug.leaks.series import Labels, Series
    from rtdebug.leaks.verdict import LEAK, NO_LEAK, SUSPECT, judge_series

    levels = {NO_LEAK: 0, SUSPECT: 1, LEAK: 2}
    found: dict[str, Leak] = {}
    for index, kind in enumerate(KINDS):
        seconds, values = watched.history.column(index)
        known = values >= 0
        if not known.any() or values.max() <= 0:
            continue
        labels = Labels(watched.container.name or watched.container.id, kind)
        series = Series(labels, seconds[known] * _NS_PER_S, values[known], watched.limit_bytes)
        verdict = judge_series(series).verdict
        if verdict.verdict in levels:
            growth = None if verdict.growth_per_hour is None else verdict.growth_per_hour / _S_PER_HOUR
            found[kind] = Leak(levels[verdict.verdict], growth)
    return found
