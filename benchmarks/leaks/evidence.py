"""The figures of the verdicts: precision, recall and time to a verdict, on seeds that the rules were not tuned on.

What is known of the classes differs: those of `generator` and `stress` led the rules, some of `blind` did after its
first run, those of `fresh` did not.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.figure import Figure, Result, Samples
from benchmarks.leaks import blind, fresh, generator, stress
from benchmarks.leaks.generator import Case
from benchmarks.leaks.quality import Quality
from rtdebug.leaks.series import Series
from rtdebug.leaks.verdict import LEAK, judge_series

ROUNDS = 5
_STEPS = 40


def measure() -> Result:
    """Judge the held-out parts of the generators, in rounds of other seeds, so that the noise is seen."""
    figures: list[Figure] = []
    samples: list[Samples] = []
    no_limits = (None, None)
    for name, module, limits in (
        ("generator", generator, (0.98, 0.95)),
        ("stress", stress, no_limits),
        ("blind", blind, no_limits),
        ("fresh", fresh, no_limits),
    ):
        rounds = [_quality(module.cases(seeds)) for seeds in _split(generator.HELD_OUT)]
        precision = Samples(f"{name} precision", tuple(each.precision for each in rounds))
        recall = Samples(f"{name} recall", tuple(each.recall for each in rounds))
        alarms = Samples(f"{name} false alarms", tuple(float(each.false_alarms) for each in rounds))
        figures += [
            Figure(f"{name}: precision", precision, "", limits[0], at_least=True),
            Figure(f"{name}: recall", recall, "", limits[1], at_least=True),
            Figure(f"{name}: false alarms in {rounds[0].negatives} series that do not leak", alarms, "", None),
        ]
        samples += _by_class(name, rounds)
    hours = Samples("time to verdict", tuple(_hours_to_verdict(seed) for seed in range(2000, 2000 + 3 * ROUNDS)))
    figures.append(Figure("hours until a linear leak is called one", hours, "h"))
    return Result(tuple(figures), tuple(samples), "called a leak")


def _split(seeds: range) -> list[range]:
    size = len(seeds) // ROUNDS
    return [seeds[at * size : (at + 1) * size] for at in range(ROUNDS)]


def _quality(cases: Iterable[Case]) -> Quality:
    quality = Quality()
    for case in cases:
        quality.add(case)
    return quality


def _by_class(name: str, rounds: list[Quality]) -> list[Samples]:
    """The share that is called a leak, of each class."""
    found = []
    for each in rounds[0].counts:
        shares = tuple(quality.counts[each][LEAK] / sum(quality.counts[each].values()) for quality in rounds)
        found.append(Samples(f"{name}: {each} ({rounds[0].truths[each]})", shares))
    return found


def _hours_to_verdict(seed: int) -> float:
    """How much of a leak has to be seen: judged again and again while it grows, as `leaks watch` does."""
    case = generator.generate("linear", seed)
    series = case.series
    span_s = float(series.time_ns[-1] - series.time_ns[0]) / 1e9
    for step in range(1, _STEPS + 1):
        seen = len(series.value) * step // _STEPS
        part = Series(series.labels, series.time_ns[:seen], series.value[:seen])
        if judge_series(part).verdict.verdict == LEAK:
            return span_s / 3600 * step / _STEPS
    return float("inf")
