"""The verdict on one series, with its reason in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rtdebug.leaks import reason, shape
from rtdebug.leaks.buckets import Buckets
from rtdebug.leaks.changepoints import Resets, at_times, find_resets, pieces
from rtdebug.leaks.envelope import DAY_S
from rtdebug.leaks.growth import HOUR_S, Found, Growth, find_growth, rises_throughout
from rtdebug.leaks.rules import DEFAULT, Rules
from rtdebug.leaks.series import Labels

if TYPE_CHECKING:
    from rtdebug.leaks.series import Series

LEAK = "leak"
SUSPECT = "suspect"
NO_LEAK = "no leak"
TOO_SHORT = "too short to tell"
VERDICTS = (LEAK, SUSPECT, TOO_SHORT, NO_LEAK)
"""From what wants to be looked at first."""

_RECLAIMABLE = frozenset({"file", "rss_file"})
_PARTLY = frozenset({"slab", "kernel"})
NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of one series. Growth is that of the floor, in the unit of the series."""

    labels: Labels
    verdict: str
    shape: str
    reason: str
    growth_per_hour: float | None = None
    interval: tuple[float, float] | None = None
    """Of the growth, at a confidence of `Rules.level_leak`."""
    confidence: str | None = None
    """high, medium or low; None: nothing to be sure of."""
    since_ns: int | None = None
    """Unix time from which on the growth was seen."""
    time_to_limit_s: float | None = None
    last: float | None = None
    limit: float | None = None
    grown: float | None = None
    """Of what is too short to tell: from its first to its last value, where that is growth that counts. No trend."""
    cycle_s: float | None = None
    change_points_ns: tuple[int, ...] = ()
    samples: int = 0
    span_s: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict with what it was made from, for drawing."""

    verdict: Verdict
    buckets: Buckets | None = field(repr=False, default=None)
    growth: Growth | None = field(repr=False, default=None)
    """Of the last run."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known beside the values."""

    limit: float | None = None
    room: float | None = None
    """What is left up to the limit; None: limit - last value."""
    restarts_ns: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def judge_series(series: Series, rules: Rules = DEFAULT) -> Judged:
    """Judge a whole series."""
    from rtdebug.leaks.buckets import bucketed

    facts = Facts(series.limit, None, series.restarts_ns, series.notes)
    if not len(series.value):
        return judge(series.labels, None, facts, rules)
    return judge(series.labels, bucketed(series.time_ns, series.value), facts, rules)


def judge(labels: Labels, buckets: Buckets | None, facts: Facts, rules: Rules = DEFAULT) -> Judged:
    """Judge a series that was put into buckets; None: no sample was usable."""
    if buckets is None:
        return Judged(Verdict(labels, TOO_SHORT, shape.UNKNOWN, reason.nothing(), notes=facts.notes))
    return _Judge(labels, buckets, facts, rules).judged()


class _Judge:
    """One series on its way to a verdict."""

    def __init__(self, labels: Labels, buckets: Buckets, facts: Facts, rules: Rules) -> None:
        self._labels, self._buckets, self._facts, self._rules = labels, buckets, facts, rules
        time_s = buckets.time_s
        self._span_s = float(time_s[-1] - time_s[0])
        level = float(buckets.mean.mean())
        self._smallest = rules.least_growth(labels.kind, labels.unit, level)
        self._last = float(buckets.mean[-1])
        self._notes = facts.notes + reason.gaps(buckets, rules)

    def judged(self) -> Judged:
        buckets, rules = self._buckets, self._rules
        if pinned := self._pinned_at_limit():
            return pinned
        if buckets.samples < rules.fewest_samples or self._span_s < rules.shortest_span_s:
            return self._too_short()
        if float(buckets.high.max() - buckets.low.min()) < self._rules.flat_growth_share * self._smallest:
            return Judged(self._verdict(NO_LEAK, shape.FLAT, reason.flat()), buckets)  # most series: at once
        resets = find_resets(buckets.mean, self._smallest, rules)
        known = at_times(buckets, self._facts.restarts_ns)
        guessed = () if known or len(resets) > rules.most_restarts else resets.index
        runs = pieces(buckets, known or guessed)
        growths = [self._growth(run) for run in runs]
        return self._from_runs(runs, growths, resets, bool(known))

    def _growth(self, run: Buckets) -> Growth | None:
        """None where the run is too short."""
        span_s = float(run.time_s[-1] - run.time_s[0])
        if span_s < self._rules.shortest_span_s * 0.5 or len(run) < self._rules.fewest_samples // 2:
            return None
        return find_growth(run, self._smallest, self._rules)

    def _from_runs(self, runs: list[Buckets], growths: list[Growth | None], resets: Resets, known: bool) -> Judged:
        last, growth = runs[-1], growths[-1]
        earlier = [each for each in growths[:-1] if each]
        leaked_before = sum(each.found is Found.LEAK for each in earlier)
        cuts = tuple(int(run.time_s[0] * NS_PER_S) for run in runs[1:])
        rising = sum(rises_throughout(run, self._smallest, self._rules) for run in runs)
        if rising >= max(self._rules.fewest_short_runs, len(runs) - 1) and (growth is None or not growth.found):
            found = self._verdict(SUSPECT, shape.RESTART, reason.rises_after_each(rising), change_points_ns=cuts)
            return Judged(found, self._buckets, growth)
        if growth is None:
            if not earlier:
                return self._too_short()
            if leaked_before:
                grown = next(each for each in reversed(growths) if each and each.found is Found.LEAK)
                verdict = LEAK if known and leaked_before >= 2 else SUSPECT
                return self._growing(verdict, shape.RESTART, grown, cuts, reason.leaked_before(leaked_before))
            return self._resting(shape.RESTART, earlier[-1], cuts, resets)
        if growth.undecided and self._labels.kind not in _RECLAIMABLE:
            text = reason.too_few_cycles(growth, self._rules.fewest_days)
            found = self._verdict(
                TOO_SHORT, shape.UNKNOWN, text, cycle_s=growth.envelope.cycle_s, change_points_ns=cuts
            )
            return Judged(found, self._buckets, growth)
        if growth.found is Found.NONE:
            if leaked_before and known:
                grown = next(each for each in reversed(growths) if each and each.found is Found.LEAK)
                return self._growing(SUSPECT, shape.RESTART, grown, cuts, reason.leaked_before(leaked_before))
            resting = shape.resting_shape(last, growth.envelope.cycle_s, self._smallest, self._rules)
            if cuts and resting in (shape.FLAT, shape.CHURN, shape.UNKNOWN):
                resting = shape.RESTART
            if len(resets) > self._rules.most_restarts and resets.lopsided:
                resting = shape.SAWTOOTH
            return self._resting(resting, growth, cuts, resets)
        name = shape.growing_shape(last, growth, self._labels.kind, self._smallest, self._rules)
        verdict, doubt = (LEAK, "") if growth.found is Found.LEAK else (SUSPECT, growth.why_not)
        if cuts and not known and self._may_be_collections(resets):
            verdict, doubt = SUSPECT, reason.same_height(len(resets))
        if self._labels.kind in _RECLAIMABLE:
            return self._resting(shape.CACHE, growth, cuts, resets)
        if self._labels.kind in _PARTLY and verdict == LEAK:
            verdict, doubt = SUSPECT, reason.kernel_objects()
        return self._growing(verdict, name, growth, cuts, doubt)

    def _may_be_collections(self, resets: Resets) -> bool:
        """Two or more falls from one height that is not the limit's: a collector that waits for a threshold."""
        heights = resets.heights
        if len(heights) < 2:
            return False
        if self._falls_at_limit(resets):
            return False
        return max(heights) - min(heights) < self._rules.same_height * max(heights)

    def _falls_at_limit(self, resets: Resets) -> int:
        """How many falls begin within two buckets of the limit."""
        limit, high = self._facts.limit, self._buckets.high
        if not limit:
            return 0
        near = self._rules.fell_at_limit * limit
        return sum(float(high[max(0, at - 3) : at].max()) >= near for at in resets.index)

    def _falls_from_limit(self) -> int:
        """How often it is at the limit and deep below it in one of the next two buckets: at least so often it fell."""
        limit, found, since = self._facts.limit, 0, 3
        if not limit or self._labels.kind != "usage":
            return 0
        deep = (1 - self._rules.fall_share) * limit
        for high, low in zip(self._buckets.high.tolist(), self._buckets.low.tolist(), strict=True):
            since += 1
            if since <= 2 and low <= deep:
                found, since = found + 1, 3
            if high >= self._rules.at_limit * limit:
                since = 0
        return found

    def _touches_limit(self) -> int:
        """How many buckets are at the limit; 0 where most are: so it is meant to be, a cache perhaps."""
        if not self._facts.limit or self._labels.kind != "usage":
            return 0
        count = int((self._buckets.high >= self._rules.at_limit * self._facts.limit).sum())
        return count if count <= len(self._buckets) / 2 else 0

    def _pinned_at_limit(self) -> Judged | None:
        limit = self._facts.limit
        if not limit or self._labels.kind != "usage" or len(self._buckets) < 3:
            return None
        high = self._buckets.high
        at_limit = high >= self._rules.at_limit * limit
        pinned = len(high) - 1 - max((int(i) for i in (~at_limit).nonzero()[0]), default=-1)
        if pinned < 3 or pinned > len(high) // 2:  # for most of the time: so it is meant to be, a cache perhaps
            return None
        begin = len(high) - pinned
        resets = find_resets(self._buckets.mean, self._smallest, self._rules).index
        known = at_times(self._buckets, self._facts.restarts_ns)
        cuts = [cut for cut in known or resets if cut < begin]
        start = cuts[-1] if cuts else 0
        growing_s = float(self._buckets.time_s[begin] - self._buckets.time_s[start])
        text = reason.pinned(float(self._buckets.mean[start]), limit, growing_s, pinned)
        times = tuple(int(self._buckets.time_s[cut] * NS_PER_S) for cut in cuts)
        found = self._verdict(SUSPECT, shape.AT_LIMIT, text, time_to_limit_s=0.0, change_points_ns=times)
        return Judged(found, self._buckets)

    def _too_short(self) -> Judged:
        grown = self._last - float(self._buckets.mean[0])
        counts = grown >= self._smallest and self._labels.kind not in _RECLAIMABLE
        text = reason.too_short(self._buckets, self._span_s, self._rules, self._facts.limit)
        if counts:
            text += reason.so_far(grown, self._labels.unit, self._room(), self._span_s)
        return Judged(self._verdict(TOO_SHORT, shape.UNKNOWN, text, grown=grown if counts else None), self._buckets)

    def _resting(self, name: str, growth: Growth, cuts: tuple[int, ...], resets: Resets) -> Judged:
        if touches := self._touches_limit():
            text = reason.touched_limit(touches, name)
            found = self._verdict(SUSPECT, name, text, time_to_limit_s=None, change_points_ns=cuts, **_rates(growth))
            return Judged(found, self._buckets, growth)
        text = reason.resting(name, growth, len(resets), self._labels.unit)
        nameless = self._labels.container_id is None and not self._facts.restarts_ns
        if nameless and len(resets) > self._rules.most_restarts and resets.lopsided:
            text += reason.may_be_restarts()
        verdict = self._verdict(
            NO_LEAK, name, text, cycle_s=growth.envelope.cycle_s, change_points_ns=cuts, **_rates(growth)
        )
        return Judged(verdict, self._buckets, growth)

    def _growing(self, verdict: str, name: str, growth: Growth, cuts: tuple[int, ...], doubt: str) -> Judged:
        begin_s = float(growth.envelope.time_s[growth.begin]) - growth.envelope.window_s / 2
        part_of_day = self._span_s < 2 * DAY_S
        text = reason.growing(name, growth, self._labels, doubt, part_of_day)
        confidence = "low" if verdict == SUSPECT else "medium" if part_of_day else "high"
        rates = _rates(growth)
        result = self._verdict(
            verdict,
            name,
            text,
            confidence=confidence,
            since_ns=int(begin_s * NS_PER_S),
            time_to_limit_s=self._time_to_limit(growth),
            cycle_s=growth.envelope.cycle_s,
            change_points_ns=cuts,
            **rates,
        )
        return Judged(result, self._buckets, growth)

    def _time_to_limit(self, growth: Growth) -> float | None:
        if not growth.trend or growth.trend.slope <= 0:
            return None
        room = self._room()
        return None if room is None else room / growth.trend.slope

    def _room(self) -> float | None:
        """What is left up to the limit."""
        room = self._facts.room
        if room is None and self._facts.limit is not None:
            room = self._facts.limit - self._last
        return None if room is None else max(room, 0.0)

    def _verdict(self, verdict: str, name: str, text: str, **more: object) -> Verdict:
        if falls := self._falls_from_limit():
            text += reason.fell_from_limit(falls)
        return Verdict(
            self._labels,
            verdict,
            name,
            text,
            last=self._last,
            limit=self._facts.limit,
            samples=self._buckets.samples,
            span_s=self._span_s,
            notes=self._notes,
            **more,  # type: ignore[arg-type]
        )


def _rates(growth: Growth) -> dict[str, object]:
    if growth.trend is None:
        return {}
    low, high = growth.trend.interval(DEFAULT.level_leak)
    interval = (low * HOUR_S, high * HOUR_S) if low > float("-inf") else None
    return {"growth_per_hour": growth.trend.slope * HOUR_S, "interval": interval}
