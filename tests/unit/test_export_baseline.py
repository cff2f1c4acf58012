"""Baselines: quiet until the window is filled, robust, and a new level becomes the usual one."""

from __future__ import annotations

import random

import pytest

from rtdebug.leaks.baseline import Band, Baselines, Method

KEY = ("web", "anon_bytes")
MIB = 1 << 20


def fed(baselines: Baselines, values: list[float], start_s: float = 0.0) -> list[Band | None]:
    return [baselines.add({KEY: value}, start_s + 10 * at).get(KEY) for at, value in enumerate(values)]


def noise(level: float, count: int, seed: int = 1) -> list[float]:
    source = random.Random(seed)
    return [level + source.gauss(0, 2 * MIB) for _ in range(count)]


def test_nothing_is_said_until_the_window_is_filled() -> None:
    bands = fed(Baselines(180), [*noise(500 * MIB, 179), 5000 * MIB, 500 * MIB])
    assert bands[:180] == [None] * 180
    assert bands[180] is not None and not bands[180].is_outside


@pytest.mark.parametrize("method", ["mad", "2sigma", "2.5sigma"])
def test_a_peak_is_outside_and_the_usual_is_not(method: Method) -> None:
    baselines = Baselines(180, method)
    fed(baselines, noise(500 * MIB, 180))
    usual = [band.is_outside for band in fed(baselines, noise(500 * MIB, 300, 2)) if band]
    assert sum(usual) == 0
    (peak,) = fed(baselines, [600 * MIB])
    assert peak is not None and peak.is_outside and peak.deviation > 1
    (drop,) = fed(baselines, [400 * MIB])
    assert drop is not None and drop.is_outside and drop.deviation < -1


def test_a_new_level_becomes_the_usual_one_and_that_is_shown() -> None:
    baselines = Baselines(180)
    fed(baselines, noise(500 * MIB, 180))
    bands = [band for band in fed(baselines, noise(800 * MIB, 200, 3), start_s=10_000) if band]
    outside = [band.is_outside for band in bands]
    assert all(outside[:85]) and not any(outside[95:])  # half of the window
    assert bands[50].shifts == 0
    assert bands[-1].shifts == 1
    assert bands[-1].shifted_s == pytest.approx(10_000 + 900, abs=60)


def test_with_mean_and_deviation_it_takes_a_seventh_of_the_window() -> None:
    baselines = Baselines(180, "2.5sigma")
    fed(baselines, noise(500 * MIB, 180))
    outside = [band.is_outside for band in fed(baselines, noise(800 * MIB, 200, 3)) if band]
    assert 15 < sum(outside) < 40


def test_a_single_peak_is_no_shift() -> None:
    baselines = Baselines(60)
    fed(baselines, noise(500 * MIB, 60))
    bands = fed(baselines, [*[900 * MIB] * 3, *noise(500 * MIB, 30)])
    assert bands[-1] is not None and bands[-1].shifts == 0


def test_a_flat_line_may_move_a_little() -> None:
    baselines = Baselines(30, least_half_width={"anon_bytes": 4 * MIB})
    fed(baselines, [MIB] * 30)
    (little,) = fed(baselines, [4 * MIB])
    (much,) = fed(baselines, [40 * MIB])
    assert little is not None and not little.is_outside
    assert much is not None and much.is_outside


def test_who_has_gone_begins_again_and_the_place_is_used_again() -> None:
    baselines = Baselines(10)
    for at in range(20):
        baselines.add({("a", "x"): 5.0, ("b", "x"): 7.0}, at)
    assert set(baselines.add({("b", "x"): 7.0}, 20)) == {("b", "x")}
    bands = [baselines.add({("a", "x"): 9.0, ("b", "x"): 7.0}, 21 + at) for at in range(11)]
    assert all(set(each) == {("b", "x")} for each in bands[:10])
    assert bands[10]["a", "x"].centre == 9.0


def test_many_figures_grow_the_table() -> None:
    baselines = Baselines(10)
    for at in range(11):
        bands = baselines.add({(str(number), "x"): float(number) for number in range(2000)}, at)
    assert len(bands) == 2000
    assert bands["1999", "x"].centre == 1999.0 and not bands["1999", "x"].is_outside
