"""Two recordings of one service, before and after a release: which kinds of memory and which sites grow faster now.

A known-good baseline is the best there is to judge a trend by (Matias et al., ISSREW 2016): what grows in both is load
or warm-up, what grows in one alone is the release.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rtdebug.leaks.batch import Item
from rtdebug.leaks.envelope import envelope
from rtdebug.leaks.rules import Rules
from rtdebug.leaks.site_growth import SiteGrowth
from rtdebug.leaks.trend import fit

FASTER = "grows faster"
SLOWER = "grows slower"
SAME = "no difference"
UNKNOWN = "cannot tell"
ONLY_NEW = "only in new"
ONLY_BASE = "only in base"
CHANGES = (FASTER, ONLY_NEW, SLOWER, UNKNOWN, SAME, ONLY_BASE)
"""From what wants to be looked at first."""
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Rate:
    """Growth per hour of the floor, with half the width of its interval (99.6 %)."""

    growth: float
    reach: float


@dataclass(frozen=True, slots=True)
class Change:
    """One kind of memory, or one allocation site, of one service in both recordings."""

    name: str
    kind: str
    unit: str
    stack: str | None
    base: Rate | None
    new: Rate | None
    change: str
    difference_per_hour: float | None = None
    interval: tuple[float, float] | None = None


_STILL = Rate(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Service:
    """One kind of memory of one service in one recording."""

    rate: Rate | None
    """None: too short to tell."""
    span_s: float
    """Of the longest of its containers."""


def compare(base: Sequence[Item], new: Sequence[Item], rules: Rules) -> list[Change]:
    """Compare two recordings; what grows faster now comes first.

    Containers are paired by name, processes by executable. With one container on each side those are the pair,
    whatever their names.
    """
    alone = len({_container(item) for item in base}) == 1 == len({_container(item) for item in new})
    before, after = _by_service(base, alone, rules), _by_service(new, alone, rules)
    changes = []
    for key in dict.fromkeys((*before, *after)):
        name, kind, unit = key
        old, now = before.get(key), after.get(key)
        span_h = min(each.span_s for each in (old, now) if each) / _HOUR_S
        counts = rules.least_growth(kind, unit, 0.0) / max(span_h, 1e-9)
        change = _change((name, kind, unit, None), old.rate if old else None, now.rate if now else None, counts)
        if old and now and (old.rate is None or now.rate is None):  # it is in both, and too short in one
            change = replace(change, change=UNKNOWN)
        changes.append(change)
    return sorted(changes, key=_order)


def compare_sites(base: Iterable[SiteGrowth], new: Iterable[SiteGrowth], counts: float) -> list[Change]:
    """Compare allocation sites by their stacks. `counts`: bytes per hour below which a difference is none."""
    before, after = _by_stack(base), _by_stack(new)
    watched_before, watched_after = ({kind == "malloc" for kind, _ in found} for found in (before, after))
    changes = []
    for key in dict.fromkeys((*before, *after)):
        kind, stack = key
        # a site that is not there holds nothing and does not grow: that is known where such sites were recorded at all
        old = before.get(key, _STILL if (kind == "malloc") in watched_before else None)
        now = after.get(key, _STILL if (kind == "malloc") in watched_after else None)
        changes.append(_change(("", kind, "bytes", stack), old, now, counts))
    return sorted(changes, key=_order)


def _order(change: Change) -> tuple[int, bool, float]:
    return CHANGES.index(change.change), change.unit != "bytes", -abs(change.difference_per_hour or 0.0)


def _container(item: Item) -> tuple[str | None, str | None, str]:
    labels = item.labels
    return labels.host, labels.container_id, "" if labels.container_id else labels.name


def _by_service(items: Sequence[Item], alone: bool, rules: Rules) -> dict[tuple[str, str, str], _Service]:
    rates: dict[tuple[str, str, str], list[Rate]] = {}
    spans_s: dict[tuple[str, str, str], float] = {}
    for item in items:
        labels = item.labels
        name = "" if alone else labels.name
        if labels.process is not None:
            name = f"{name} {labels.executable or labels.process}".strip()
        rate = rate_of(item, rules)
        key = name, labels.kind, labels.unit
        spans_s[key] = max(spans_s.get(key, 0.0), _span_s(item))
        found = rates.setdefault(key, [])
        if rate is not None:
            found.append(rate)
    return {key: _Service(_together(found), spans_s[key]) for key, found in rates.items()}


def rate_of(item: Item, rules: Rules) -> Rate | None:
    """Return how fast the floor of a whole series grows; None where that cannot be told."""
    if item.buckets.samples < rules.fewest_samples or _span_s(item) < rules.shortest_span_s:
        return None
    floors = envelope(item.buckets, rules)
    if len(floors) < 4:
        return None
    trend = fit(floors.time_s, floors.floor)
    low, high = trend.interval(rules.level_leak)
    return Rate(trend.slope * _HOUR_S, (high - low) / 2 * _HOUR_S) if math.isfinite(low) else None


def _span_s(item: Item) -> float:
    return float(item.buckets.time_s[-1] - item.buckets.time_s[0])


def _together(rates: Sequence[Rate]) -> Rate | None:
    """Return the mean of several containers of one service."""
    if not rates:
        return None
    count = len(rates)
    reach = math.sqrt(sum(rate.reach**2 for rate in rates)) / count
    return Rate(sum(rate.growth for rate in rates) / count, reach)


def _by_stack(sites: Iterable[SiteGrowth]) -> dict[tuple[str, str | None], Rate]:
    found: dict[tuple[str, str | None], Rate] = {}
    for site in sites:
        reach = (site.interval[1] - site.interval[0]) / 2 if site.interval else abs(site.growth_per_hour)
        old = found.get((site.kind, site.stack), Rate(0.0, 0.0))
        found[site.kind, site.stack] = Rate(old.growth + site.growth_per_hour, math.hypot(old.reach, reach))
    return found


def _change(what: tuple[str, str, str, str | None], base: Rate | None, new: Rate | None, counts: float) -> Change:
    if base is None or new is None:
        change = UNKNOWN if base is new else ONLY_NEW if base is None else ONLY_BASE
        return Change(*what, base, new, change)
    difference = new.growth - base.growth
    reach = math.hypot(base.reach, new.reach)
    interval = (difference - reach, difference + reach)
    if interval[0] > 0 and difference >= counts:
        change = FASTER
    elif interval[1] < 0 and difference <= -counts:
        change = SLOWER
    else:
        change = UNKNOWN if reach > 4 * counts and reach > abs(difference) else SAME
    return Change(*what, base, new, change, difference, interval)
