"""Allocation sites of a store: how fast what they hold grows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rtdebug.leaks.rules import DEFAULT
from rtdebug.leaks.trend import fit

if TYPE_CHECKING:
    import pandas as pd

_POINTS = 24
_HOUR_S = 3600.0
_SITE = ["host", "container_id", "identity", "kind", "stack"]


@dataclass(frozen=True, slots=True)
class SiteGrowth:
    """One place in a program where memory is taken."""

    host: str | None
    container_id: str | None
    identity: str | None
    kind: str
    """mmap, brk, fault or malloc."""
    stack: str | None
    """A line for each frame, the innermost first. None: what could not be paired."""
    live_bytes: float
    growth_per_hour: float
    interval: tuple[float, float] | None


def read_sites(paths: Iterable[Path]) -> list[SiteGrowth]:
    """Read the sites of stores, the fastest first. Empty when none were recorded."""
    from rtdebug.leaks.store import read_table

    table, _ = read_table(tuple(paths), "sites", ["time_ns", *_SITE, "pid", "live_bytes"])
    return site_growth(table.to_pandas(strings_to_categorical=False))


def site_growth(sites: pd.DataFrame) -> list[SiteGrowth]:
    """Fit a line to each site; a row says what the site holds until its next row. Fastest first."""
    import numpy as np

    if len(sites):
        # of page faults it is not known what is held, and of what could not be paired not where
        sites = sites[sites["live_bytes"].notna() & sites["stack"].notna()]
    if not len(sites):
        return []
    end_ns = int(sites["time_ns"].max())
    grown = []
    for key, rows in sites.groupby(_SITE, dropna=False, sort=False):
        # processes of one identity hold what they hold together
        held = rows.pivot_table(index="time_ns", columns="pid", values="live_bytes", aggfunc="last", dropna=False)
        total = held.ffill().fillna(0).sum(axis=1)
        at = total.index.to_numpy(float)
        grid = np.linspace(at[0], max(end_ns, at[0] + 1), _POINTS)
        values = total.to_numpy(float)[np.searchsorted(at, grid, side="right") - 1]
        trend = fit(grid / 1e9, values)
        low, high = trend.interval(DEFAULT.level_leak)
        interval = (low * _HOUR_S, high * _HOUR_S) if np.isfinite(low) else None
        texts = [None if not isinstance(part, str) else part for part in key]
        grown.append(
            SiteGrowth(
                texts[0], texts[1], texts[2], texts[3] or "?", texts[4], float(values[-1]),
                trend.slope * _HOUR_S, interval,
            )
        )  # fmt: skip
    return sorted(grown, key=lambda site: -site.growth_per_hour)
