"""Labelled series: every class that the verdicts must tell apart, in many sizes, with known truth.

The rules were tuned on the seeds of TUNING alone; figures are of HELD_OUT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rtdebug.leaks.series import Labels, Series

Floats = Any
"""Arrays: numpy's types make Any of arithmetic with floats anyway."""

MIB = 1 << 20
HOUR_S = 3600
BEGIN_S = 1_750_000_000
TUNING = range(60)
HELD_OUT = range(1000, 1100)

LEAK, NO_LEAK, SHORT = "leak", "no leak", "too short to tell"


@dataclass(frozen=True, slots=True)
class Case:
    """A series and what it is."""

    name: str
    truth: str
    series: Series


class World:
    """The random size, length and noise of one series."""

    def __init__(self, seed: int, name: str) -> None:
        self.random = np.random.default_rng([seed, *name.encode()])
        self.interval_s = int(self.random.choice([10, 10, 15, 30, 60]))
        self.hours = float(self.random.uniform(4, 48))
        self.base = float(10 ** self.random.uniform(1.3, 3.8)) * MIB  # 20 MiB to 6 GiB
        self.kind = "anon"
        self.restarts_s: tuple[float, ...] = ()

    def clock(self) -> Floats:
        """Seconds since the begin."""
        return np.arange(0, self.hours * HOUR_S, self.interval_s, dtype=float)

    def growth(self) -> float:
        """What a leak adds in all: 5 % to 4 times the base, and at least 24 MiB."""
        return max(24 * MIB, self.base * float(10 ** self.random.uniform(-1.3, 0.6)))

    def noise(self, count: int, deviation: float) -> Floats:
        """White noise, and a slower one of the same size that remembers about 5 samples."""
        from scipy.signal import lfilter

        slow: Floats = lfilter([np.sqrt(1 - 0.8**2)], [1, -0.8], self.random.standard_normal(count))
        return deviation * (self.random.standard_normal(count) + slow) / np.sqrt(2)


Shape = Callable[[World, "Floats"], "Floats"]


def _linear(world: World, t: Floats) -> Floats:
    growth = world.growth()
    return world.base + growth * t / t[-1] + world.noise(len(t), growth * world.random.uniform(0.002, 0.15))


def _onset(world: World, t: Floats) -> Floats:
    growth, begin = world.growth(), world.random.uniform(0.2, 0.55)
    rise = np.maximum(t / t[-1] - begin, 0) / (1 - begin)
    return world.base + growth * rise + world.noise(len(t), growth * world.random.uniform(0.002, 0.06))


def _staircase(world: World, t: Floats) -> Floats:
    growth, steps = world.growth(), int(world.random.integers(6, 40))
    at = (np.arange(steps) + world.random.uniform(0.2, 0.8, steps)) / steps
    size = world.random.uniform(0.5, 1.5, steps)
    height = np.concatenate([[0], np.cumsum(size / size.sum())])
    level = height[np.searchsorted(at, t / t[-1])]
    return world.base + growth * level + world.noise(len(t), growth * world.random.uniform(0.001, 0.02))


def _teeth(world: World, t: Floats) -> Floats:
    """0 to 1, with falls at irregular times."""
    cycles = int(np.exp(world.random.uniform(np.log(9), np.log(300))))
    length = world.random.uniform(0.75, 1.25, cycles + 2)
    edges = np.concatenate([[0], np.cumsum(length / length.sum())]) - world.random.uniform(0, 0.5) / cycles
    where = np.searchsorted(edges, t / t[-1], side="right") - 1
    where = np.clip(where, 0, len(edges) - 2)
    phase = (t / t[-1] - edges[where]) / (edges[where + 1] - edges[where])
    return np.clip(phase, 0, 1) * world.random.uniform(0.9, 1.1, len(edges))[where]


def _sawtooth_drift(world: World, t: Floats) -> Floats:
    growth = world.growth()
    amplitude = growth * world.random.uniform(0.2, 1.5)
    noise = world.noise(len(t), amplitude * world.random.uniform(0.005, 0.05))
    return world.base + growth * t / t[-1] + amplitude * _teeth(world, t) + noise


def _sawtooth(world: World, t: Floats) -> Floats:
    amplitude = world.base * world.random.uniform(0.1, 2)
    return world.base + amplitude * _teeth(world, t) + world.noise(len(t), amplitude * 0.03)


def _warm_up(world: World, t: Floats) -> Floats:
    growth, tau = world.growth(), t[-1] * world.random.uniform(0.01, 0.2)
    rise = growth * (1 - np.exp(-t / tau))
    return world.base + rise + world.noise(len(t), growth * world.random.uniform(0.0, 0.03))


def _cache(world: World, t: Floats) -> Floats:
    world.kind = "file"
    growth = world.base * world.random.uniform(1, 20)
    return world.base + np.minimum(growth * t / t[-1] * world.random.uniform(0.7, 3), growth)


def _tmpfs(world: World, t: Floats) -> Floats:
    world.kind = "shmem"
    growth, steps = world.growth(), int(world.random.integers(30, 400))
    at = np.sort(world.random.uniform(0, 1, steps))
    return world.base + growth * np.searchsorted(at, t / t[-1]) / steps


def _daily(world: World, t: Floats) -> Floats:
    world.hours = world.random.uniform(72, 240)
    t = world.clock()
    amplitude = world.base * world.random.uniform(0.05, 0.6)
    day = np.sin(2 * np.pi * (t / 86400 + world.random.uniform()))
    day = day + 0.3 * np.sin(4 * np.pi * t / 86400)
    return world.base + amplitude * (1 + day) / 2 + world.noise(len(t), amplitude * 0.05)


def _daily_leak(world: World, t: Floats) -> Floats:
    world.hours = world.random.uniform(144, 240)
    t = world.clock()
    growth = world.growth()
    amplitude = growth * world.random.uniform(0.2, 1)
    day = np.sin(2 * np.pi * (t / 86400 + world.random.uniform()))
    return world.base + growth * t / t[-1] + amplitude * (1 + day) / 2 + world.noise(len(t), amplitude * 0.05)


def _restart(world: World, t: Floats) -> Floats:
    """A run, a restart, another: each warms up and stays."""
    world.restarts_s = (float(t[-1] * world.random.uniform(0.2, 0.7)),)
    since = np.where(t < world.restarts_s[0], t, t - world.restarts_s[0])
    growth = world.base * world.random.uniform(0.3, 1)
    rise = growth * (1 - np.exp(-since / (t[-1] * world.random.uniform(0.005, 0.04))))
    if world.random.uniform() < 0.5:
        world.restarts_s = ()
    return world.base * 0.3 + rise + world.noise(len(t), growth * 0.02)


def _restart_leak(world: World, t: Floats) -> Floats:
    at = t[-1] * world.random.uniform(0.3, 0.6)
    growth = max(64 * MIB, world.base * world.random.uniform(0.3, 3))
    since = np.where(t < at, t, t - at)
    if world.random.uniform() < 0.5:
        world.restarts_s = (float(at),)
    return world.base + growth * since / t[-1] * 2 + world.noise(len(t), growth * 0.02)


def _noise(world: World, t: Floats) -> Floats:
    return world.base + world.noise(len(t), world.base * world.random.uniform(0.001, 0.2))


def _static(world: World, t: Floats) -> Floats:
    level = np.where(t < t[-1] * world.random.uniform(0.01, 0.2), 0.1, 1.0)
    return world.base * level + world.noise(len(t), world.base * 0.002)


def _periodic(world: World, t: Floats) -> Floats:
    period = t[-1] / np.exp(world.random.uniform(np.log(6), np.log(200)))
    on = (t / period + world.random.uniform()) % 1 < world.random.uniform(0.2, 0.8)
    return world.base * (1 + world.random.uniform(0.1, 1) * on) + world.noise(len(t), world.base * 0.01)


def _churn(world: World, t: Floats) -> Floats:
    count = len(t)
    busy = world.random.gamma(2, 1, count) * world.base * 0.2
    return world.base + busy


def _short(world: World, t: Floats) -> Floats:
    world.hours = world.random.uniform(0.01, 0.4)
    return _linear(world, world.clock()) if len(world.clock()) > 3 else world.base * np.ones(1)


CLASSES: dict[str, tuple[str, Shape]] = {
    "linear": (LEAK, _linear),
    "onset": (LEAK, _onset),
    "staircase": (LEAK, _staircase),
    "sawtooth with drift": (LEAK, _sawtooth_drift),
    "tmpfs growth": (LEAK, _tmpfs),
    "daily cycle with leak": (LEAK, _daily_leak),
    "restart with leak": (LEAK, _restart_leak),
    "sawtooth": (NO_LEAK, _sawtooth),
    "warm-up": (NO_LEAK, _warm_up),
    "cache growth": (NO_LEAK, _cache),
    "daily cycle": (NO_LEAK, _daily),
    "restart": (NO_LEAK, _restart),
    "noise": (NO_LEAK, _noise),
    "static preallocation": (NO_LEAK, _static),
    "periodic": (NO_LEAK, _periodic),
    "churn": (NO_LEAK, _churn),
    "short": (SHORT, _short),
}


def generate(name: str, seed: int) -> Case:
    """Make one series. Every third has gaps: a few samples missing here and there, and one long hole."""
    truth, shape = CLASSES[name]
    world = World(seed, name)
    value = np.maximum(shape(world, world.clock()), 4096).round()
    return Case(name, truth, _series(world, name, seed, value))


def _series(world: World, name: str, seed: int, value: Floats) -> Series:
    t = world.clock()[: len(value)]
    kept = np.ones(len(t), bool)
    if seed % 3 == 0:
        kept = world.random.uniform(size=len(t)) > 0.05
        hole = int(world.random.uniform(0.1, 0.8) * len(t))
        kept[hole : hole + len(t) // 12] = False
        kept[0] = True
    nanoseconds = ((BEGIN_S + t) * 1e9).astype(np.int64)
    restarts = tuple(int((BEGIN_S + at) * 1e9) for at in world.restarts_s)
    labels = Labels(f"{name}-{seed}", world.kind)
    return Series(labels, nanoseconds[kept], value[kept], restarts_ns=restarts)


def cases(seeds: range) -> Iterator[Case]:
    """Make all classes for all seeds."""
    for seed in seeds:
        for name in CLASSES:
            yield generate(name, seed)
