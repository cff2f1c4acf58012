"""What a benchmark gives: figures, and the samples that they were made from, noise included."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Samples:
    """Values of one thing, measured in several rounds."""

    name: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one: a disturbed round does not move it."""
        return statistics.median(self.values)

    @property
    def least(self) -> float:
        """Of a time: what others on the machine take only adds to it."""
        return min(self.values)

    def __str__(self) -> str:
        if len(self.values) == 1:
            return number(self.median)
        return f"{number(self.median)} ({number(min(self.values))} to {number(max(self.values))})"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. Without a limit it is only reported."""

    name: str
    value: Samples
    unit: str
    """`x`: a ratio."""
    limit: float | None = None
    at_least: bool = False
    """The limit is a lower one."""

    @property
    def met(self) -> bool:
        """Whether the limit is kept; by the median, so that one disturbed round is no miss."""
        if self.limit is None:
            return True
        return self.value.median >= self.limit if self.at_least else self.value.median <= self.limit

    def __str__(self) -> str:
        if self.limit is None:
            verdict = ""
        else:
            sign = ">=" if self.at_least else "<="
            verdict = f"  {'ok' if self.met else 'MISSED'}: {sign} {number(self.limit)} {self.unit}"
        return f"{self.name:<58} {self.value} {self.unit}{verdict}"

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return asdict(self) | {"median": self.value.median, "met": self.met if self.limit is not None else None}


@dataclass(frozen=True, slots=True)
class Result:
    """What one benchmark found out."""

    figures: tuple[Figure, ...]
    samples: tuple[Samples, ...]
    """What the figures were computed from."""
    unit: str
    """Of the samples."""


def interleave(rounds: int, subjects: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Measure all subjects in every round, in changing order: a slow minute of the machine hits all of them."""
    values: dict[str, list[T]] = {name: [] for name in subjects}
    for index in range(rounds):
        order = list(subjects)[:: -1 if index % 2 else 1]
        for name in order:
            values[name].append(subjects[name]())
    return values


def sampled(rounds: int, subjects: Mapping[str, Callable[[], float]]) -> list[Samples]:
    """Measure one number of each subject, interleaved."""
    return [Samples(name, tuple(values)) for name, values in interleave(rounds, subjects).items()]


def ratio(name: str, above: Samples, below: Samples) -> Samples:
    """Return above / below, round by round."""
    return Samples(name, tuple(a / b for a, b in zip(above.values, below.values, strict=True)))


def ratio_of_least(name: str, above: Samples, below: Samples, base: Samples | None = None) -> Samples:
    """Return the ratio of the least times; of what exceeds the least of `base` when that is given."""
    without = base.least if base else 0.0
    return Samples(name, ((above.least - without) / (below.least - without),))


def number(value: float) -> str:
    """Three significant digits, thousands apart."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
