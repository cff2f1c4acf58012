"""Departures: when a figure leaves its usual band, is usual again, or has found a new level. One for each episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rtdebug.leaks.baseline import Band, Key

OUTSIDE, USUAL_AGAIN, NEW_LEVEL = "outside", "usual again", "new level"
_CALM_RUN = 6
"""Values inside, one after the other, before it is usual again: one at the edge of its band would flap."""


@dataclass(frozen=True, slots=True)
class Departure:
    """What became of one figure of one container."""

    state: str
    """OUTSIDE, USUAL_AGAIN or NEW_LEVEL."""
    key: Key
    time_ns: int
    """Unix time of the value, as all times here."""
    band: Band
    since_ns: int
    """When it was first seen outside."""
    until_ns: int
    """When it was last seen outside."""
    furthest: Band
    """Of the value since then that was the furthest from what was usual."""


@dataclass(slots=True)
class _Episode:
    """A figure is outside, or was a moment ago."""

    since_ns: int
    until_ns: int
    furthest: Band
    calm: int = 0
    """Values inside up to now, one after the other."""


@dataclass(slots=True)
class Departures:
    """Takes the bands of each sample."""

    _episodes: dict[Key, _Episode] = field(default_factory=dict)
    _shifts: dict[Key, int] = field(default_factory=dict)
    _bands: Mapping[Key, Band] = field(default_factory=dict)
    _time_ns: int = 0

    def add(self, bands: Mapping[Key, Band], time_ns: int) -> Iterator[Departure]:
        """Give what changed; figures that are not there any more are forgotten."""
        self._bands, self._time_ns = bands, time_ns
        self._episodes = {key: each for key, each in self._episodes.items() if key in bands}
        for key, band in bands.items():
            state = self._change(key, band)
            if state is not None:
                yield self._departure(state, key)
            if state in (USUAL_AGAIN, NEW_LEVEL):
                self._episodes.pop(key, None)
        self._shifts = {key: band.shifts for key, band in bands.items()}

    def outside(self) -> Iterator[Departure]:
        """Give what is outside now, as of the last sample."""
        for key in self._episodes:
            if self._bands[key].is_outside:
                yield self._departure(OUTSIDE, key)

    def _departure(self, state: str, key: Key) -> Departure:
        band = self._bands[key]
        episode = self._episodes.get(key) or _Episode(self._time_ns, self._time_ns, band)
        return Departure(state, key, self._time_ns, band, episode.since_ns, episode.until_ns, episode.furthest)

    def _change(self, key: Key, band: Band) -> str | None:
        episode = self._episodes.get(key)
        if band.shifts > self._shifts.get(key, band.shifts):
            return NEW_LEVEL
        if episode is None:
            if not band.is_outside:
                return None
            self._episodes[key] = _Episode(self._time_ns, self._time_ns, band)
            return OUTSIDE
        if not band.is_outside:
            episode.calm += 1
            return USUAL_AGAIN if episode.calm >= _CALM_RUN else None
        episode.calm, episode.until_ns = 0, self._time_ns
        if abs(band.deviation) > abs(episode.furthest.deviation):
            episode.furthest = band
        return None
