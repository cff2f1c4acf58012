"""A fourth make, written after blind.py had led to changes, and run once: nothing was changed on it.

Classes that none of the others have, of the same `Service`. Once one of them leads to a change, its figures are no
longer what docs/leaks.md says they are: write a fifth.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.leaks import blind
from benchmarks.leaks.blind import DAY_S, HOUR_S, MIB, Floats, Service, Shape
from benchmarks.leaks.generator import LEAK, NO_LEAK, SHORT, Case


def _forgotten_sessions(service: Service) -> Floats:
    """Sessions end after a while, but for one in some that is never forgotten."""
    load = service.load()
    life = max(1, int(service.between(0.2, 2) * HOUR_S / service.step_s))
    total = np.cumsum(load)
    alive = total - np.concatenate([np.zeros(life), total[:-life]])
    lost = service.lost()
    return service.base + 0.3 * lost * alive / alive.max() + lost * total / total[-1] + service.hum(lost * 0.01)


def _cache_and_leak(service: Service) -> Floats:
    """A cache fills in the first fifth of the time, above a leak that goes on."""
    lost = service.lost()
    tau = service.t[-1] * service.random.uniform(0.01, 0.05)
    cache = lost * service.random.uniform(0.2, 1.5) * (1 - np.exp(-service.t / tau))
    return service.base + cache + lost * service.t / service.t[-1] + service.hum(lost * 0.02)


def _since_a_release(service: Service) -> Floats:
    """Leaks since a restart in the middle, which is known."""
    begin = float(service.random.uniform(0.3, 0.6) * service.t[-1])
    service.restarts_s = [begin]
    lost = service.lost()
    rise = np.maximum(service.t - begin, 0) / (service.t[-1] - begin)
    warm = 1 - 0.5 * np.exp(-service.ages(np.array([begin])) / 600)
    return service.base * warm + lost * rise + service.hum(lost * 0.015)


def _threads(service: Service) -> Floats:
    """Stacks of threads that do not end, in their equal pieces."""
    count = int(service.random.integers(60, 600))
    at = np.searchsorted(service.moments(count), service.t, side="right")
    return service.base + max(32 * MIB / count, 256 * 1024) * at + service.hum(MIB)


def _campaign(service: Service) -> Floats:
    """Load that grows for a day or two, and goes again before the end."""
    middle = service.random.uniform(0.35, 0.6) * service.t[-1]
    width = service.random.uniform(0.1, 0.16) * service.t[-1]
    hump = np.exp(-(((service.t - middle) / width) ** 2))
    return service.base * (1 + service.random.uniform(0.3, 1.5) * hump) + service.hum(service.base * 0.01)


def _cron(service: Service) -> Floats:
    """A short job each hour, with now and then a large one."""
    phase = service.t % HOUR_S
    sizes = service.random.lognormal(0, 0.6, int(service.t[-1] // HOUR_S) + 1)
    busy = phase < service.random.uniform(60, 900)
    return service.base * (1 + 0.3 * busy * sizes[(service.t // HOUR_S).astype(int)]) + service.hum(
        service.base * 0.005
    )


def _arenas(service: Service) -> Floats:
    """Arenas of an allocator: one more at each new height of the load, and never fewer; soon no more."""
    load = service.load() + 0.3 * service.random.standard_normal(len(service.t))
    return service.base * (1 + 0.05 * np.maximum.accumulate(np.floor(load * 3))) + service.hum(service.base * 0.004)


def _ring(service: Service) -> Floats:
    """A ring of messages, full soon, that is never smaller again."""
    full = service.random.uniform(0.05, 0.2) * service.t[-1]
    size = service.base * service.random.uniform(0.3, 2)
    return service.base + size * np.minimum(service.t / full, 1) + service.hum(service.base * 0.006)


def _slower_and_slower(service: Service) -> Floats:
    """A table that fills as keys repeat: by the square root at first, then by the logarithm; not over."""
    x = service.t / service.t[-1]
    rise = np.log1p(x * service.between(15, 80))
    return service.base * (1 + service.random.uniform(0.1, 0.4) * rise) + service.hum(service.base * 0.004)


def _compaction(service: Service) -> Floats:
    """Fills by load, and is compacted once a day to the same."""
    phase = (service.t + service.random.uniform(0, DAY_S)) % DAY_S / DAY_S
    return service.base * (1 + service.random.uniform(0.3, 1) * phase**0.8) + service.hum(service.base * 0.01)


CLASSES: dict[str, tuple[str, str, tuple[float, float], Shape]] = {
    "forgotten sessions": (LEAK, "anon", (4.2, 7), _forgotten_sessions),
    "cache and leak": (LEAK, "anon", (1, 4), _cache_and_leak),
    "since a release": (LEAK, "anon", (1, 4), _since_a_release),
    "threads": (LEAK, "anon", (0.5, 3), _threads),
    "campaign": (NO_LEAK, "anon", (2, 5), _campaign),
    "hourly job": (NO_LEAK, "anon", (1, 4), _cron),
    "arenas": (NO_LEAK, "anon", (2, 6), _arenas),
    "ring": (NO_LEAK, "anon", (0.8, 4), _ring),
    "slower and slower": (SHORT, "anon", (0.5, 2), _slower_and_slower),
    "compaction": (NO_LEAK, "anon", (3, 7), _compaction),
}


def cases(seeds: range) -> Iterator[Case]:
    """Make all classes for all seeds."""
    for seed in seeds:
        for name, made in CLASSES.items():
            yield blind.made(name, seed, *made)
