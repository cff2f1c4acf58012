"""Precision and recall of the verdicts, in all and by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.leaks.generator import LEAK, Case
from rtdebug.leaks.rules import DEFAULT, Rules
from rtdebug.leaks.verdict import judge_series


@dataclass(slots=True)
class Quality:
    """Counts of verdicts by class."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    truths: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def add(self, case: Case, rules: Rules = DEFAULT) -> None:
        """Judge a case and count it."""
        verdict = judge_series(case.series, rules).verdict
        self.truths[case.name] = case.truth
        self.counts.setdefault(case.name, Counter())[verdict.verdict] += 1
        self.shapes.setdefault(case.name, Counter())[verdict.shape] += 1
        if (verdict.verdict == LEAK) != (case.truth == LEAK):
            self.wrong.append(f"{case.series.labels.name}: {verdict.verdict} ({verdict.shape}): {verdict.reason}")

    def _sum(self, truth_is_leak: bool, verdict: str | None = None) -> int:
        return sum(
            count
            for name, counter in self.counts.items()
            if (self.truths[name] == LEAK) == truth_is_leak
            for found, count in counter.items()
            if verdict in (None, found)
        )

    @property
    def precision(self) -> float:
        """Leaks among those called a leak."""
        hits, alarms = self._sum(True, LEAK), self._sum(False, LEAK)
        return hits / (hits + alarms) if hits + alarms else 1.0

    @property
    def recall(self) -> float:
        """Called a leak among the leaks."""
        return self._sum(True, LEAK) / max(1, self._sum(True))

    @property
    def false_alarms(self) -> int:
        """Called a leak that are none."""
        return self._sum(False, LEAK)

    @property
    def negatives(self) -> int:
        """Series that do not leak, or are too short to tell."""
        return self._sum(False)

    def lines(self) -> list[str]:
        """Give a row for each class."""
        rows = []
        for name, counter in self.counts.items():
            total = sum(counter.values())
            shares = ", ".join(f"{found} {100 * count / total:.0f} %" for found, count in counter.most_common())
            shapes = ", ".join(f"{each} {count}" for each, count in self.shapes[name].most_common(3))
            rows.append(f"  {name:<24}{self.truths[name]:<20}{shares:<50}{shapes}")
        return rows


def measure_quality(cases: Iterable[Case]) -> Quality:
    """Judge all cases."""
    quality = Quality()
    for case in cases:
        quality.add(case)
    return quality
