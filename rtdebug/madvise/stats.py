"""What the runs say: medians, and how each advice differs from the baseline, or that it does not.

An effect is the change of the median, as a share of the baseline's: -0.3 is 30 % less. Its interval (95 %) comes from
the bootstrap (Efron and Tibshirani 1993, percentiles of resampled medians). It counts as a difference if three things
agree: the interval does not hold 0; the Mann-Whitney U test says so, with Holm's correction for all comparisons of the
experiment (Scandinavian Journal of Statistics 6, 1979); and it is at least 3 %, more than the experiment's overhead.
It counts as none if the interval leaves room for at most 10 % either way. All else is unclear: that nothing could be
told on a busy host does not mean that nothing is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rtdebug.madvise.plan import BASELINE, Plan
from rtdebug.madvise.run import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

COMPARED = ("total_ns", "cpu_ns", "populate_ns", "access_ns", "rss_bytes")
"""What is compared with the baseline."""
TOLD = ("advice_ns", "thp_bytes", "lazyfree_bytes", "usage_bytes", "returned_bytes", "return_ns")
TOLD_TOO = ("populate_minor_faults", "access_minor_faults", "access_major_faults", "access_dtlb_misses", "pressure_us")
"""What has a median only."""

SMALLEST_EFFECT = 0.03
LARGEST_NONE = 0.1
LESS, MORE, SAME, UNCLEAR, TOO_FEW = "less", "more", "no difference", "unclear", "too few runs"
CONFIDENCE = 0.95
_RESAMPLES = 2000

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Effect:
    """How one sample differs from another."""

    change: float | None
    """Of the median, relative; None: the baseline's is 0."""
    interval: Interval | None
    p: float
    """Of the Mann-Whitney U test, two-sided."""
    least_p: float
    """The smallest that so few runs can give."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One measure of one advice in one case, over all counted runs."""

    case: int
    memory: str
    advice: str
    measure: str
    runs: int
    median: float
    interval: Interval
    """Of the median, 95 %."""
    effect: Effect | None = None
    """None: the baseline itself, or a measure that is not compared."""
    verdict: str | None = None
    """`less`, `more`, `no difference`, `unclear`, or `too few runs` to tell."""

    @property
    def is_difference(self) -> bool:
        """Whether it is less or more than the baseline."""
        return self.verdict in (LESS, MORE)


def findings(runs: Iterable[Run], plan: Plan) -> tuple[Finding, ...]:
    """Everything that was measured, in the order of the plan; warm-up must be left out before."""
    by_advice: dict[tuple[int, str], list[Run]] = {}
    for run in runs:
        by_advice.setdefault((run.case, run.advice), []).append(run)
    found = [
        finding
        for index, case in enumerate(plan.cases)
        for advice in (BASELINE, *case.advice)
        for finding in _of_advice(by_advice.get((index, advice), []), by_advice.get((index, BASELINE), []), plan.seed)
    ]
    return tuple(_judged(found))


def values_of(runs: Iterable[Run], measure: str) -> list[float]:
    """What was measured, without what is not known."""
    values = (getattr(run, measure) for run in runs)
    return [float(value) for value in values if value is not None]


def compare(base: Sequence[float], other: Sequence[float], seed: int = 1) -> Effect:
    """How `other` differs from `base`; both hold at least one value."""
    import numpy as np

    below, above = _resampled(base, seed), _resampled(other, seed + 1)
    middle = float(np.median(base))
    least_p = 2 / math.comb(len(base) + len(other), len(base))
    if middle == 0 or not below.all():
        return Effect(None, None, _test(base, other), least_p)
    return Effect(float(np.median(other)) / middle - 1, _percentiles(above / below - 1), _test(base, other), least_p)


def median_interval(values: Sequence[float], seed: int = 1) -> Interval:
    """The bootstrap's interval of the median."""
    return _percentiles(_resampled(values, seed))


def holm(values: Sequence[float]) -> list[float]:
    """p values corrected for their number, in the same order."""
    corrected = [0.0] * len(values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=lambda index: values[index])):
        largest = max(largest, min(1.0, values[index] * (len(values) - rank)))
        corrected[index] = largest
    return corrected


def _of_advice(runs: Sequence[Run], baseline: Sequence[Run], seed: int) -> Iterator[Finding]:
    import statistics

    for measure in (*COMPARED, *TOLD, *TOLD_TOO):
        values, base = values_of(runs, measure), values_of(baseline, measure)
        if not values:
            continue
        compared = base and measure in COMPARED and runs[0].advice != BASELINE
        yield Finding(
            case=runs[0].case,
            memory=runs[0].memory,
            advice=runs[0].advice,
            measure=measure,
            runs=len(values),
            median=statistics.median(values),
            interval=median_interval(values, seed),
            effect=compare(base, values, seed) if compared else None,
        )


def _judged(found: Sequence[Finding]) -> Iterator[Finding]:
    compared = [finding.effect for finding in found if finding.effect is not None]
    corrected = iter(holm([effect.p for effect in compared]))
    for finding in found:
        if finding.effect is None:
            yield finding
        else:
            yield replace(finding, verdict=_verdict(finding.effect, next(corrected), len(compared)))


def _verdict(effect: Effect, p: float, comparisons: int) -> str:
    alpha = 1 - CONFIDENCE
    if effect.least_p * comparisons >= alpha:
        return TOO_FEW
    if effect.change is None or effect.interval is None:
        return MORE if p < alpha else SAME
    low, high = effect.interval
    if p < alpha and (low > 0 or high < 0) and abs(effect.change) >= SMALLEST_EFFECT:
        return LESS if effect.change < 0 else MORE
    return SAME if low >= -LARGEST_NONE and high <= LARGEST_NONE else UNCLEAR


def _test(base: Sequence[float], other: Sequence[float]) -> float:
    from scipy.stats import mannwhitneyu

    if len({*base, *other}) == 1:
        return 1.0
    return float(mannwhitneyu(base, other).pvalue)


def _resampled(values: Sequence[float], seed: int) -> NDArray[np.float64]:
    """Medians of samples drawn from the sample."""
    import numpy as np

    drawn = np.random.default_rng(seed).choice(np.asarray(values, dtype=np.float64), (_RESAMPLES, len(values)))
    medians: NDArray[np.float64] = np.median(drawn, axis=1)
    return medians


def _percentiles(values: NDArray[np.float64]) -> Interval:
    import numpy as np

    tail = (1 - CONFIDENCE) / 2 * 100
    low, high = np.percentile(values, (tail, 100 - tail))
    return float(low), float(high)
