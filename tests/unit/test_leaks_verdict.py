"""Verdicts: of each shape, of what survives its excuses, and of input that nothing can be said about."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.leaks import generator, stress
from benchmarks.leaks.quality import measure_quality
from rtdebug.leaks import shape
from rtdebug.leaks.rules import DEFAULT
from rtdebug.leaks.series import EARLIEST_NS, Labels, Series, clean
from rtdebug.leaks.verdict import LEAK, NO_LEAK, SUSPECT, TOO_SHORT, judge_series
from tests.unit.leak_series import BEGIN_S, INTERVAL_S, MIB, leaking, noise, series, steady

HOUR = 3600 // INTERVAL_S
NOW_NS = (BEGIN_S + 10**7) * 10**9


def verdict_of(value, **more):
    return judge_series(series(value, **more)).verdict


def sawtooth(count=4000, teeth=40):
    return 100 * MIB + 80 * MIB * (np.arange(count) * teeth / count % 1) + noise(count, MIB)


def test_a_leak():
    verdict = verdict_of(leaking(), limit=1000.0 * MIB)
    assert (verdict.verdict, verdict.shape) == (LEAK, shape.LINEAR)
    true_rate = 300 * MIB * 3600 / (4000 * INTERVAL_S)
    assert verdict.growth_per_hour == pytest.approx(true_rate, rel=0.02)
    assert verdict.interval[0] < true_rate < verdict.interval[1]
    assert verdict.time_to_limit_s == pytest.approx(600 * MIB / true_rate * 3600, rel=0.05)
    assert verdict.confidence == "medium"
    assert abs(verdict.since_ns - BEGIN_S * 10**9) < 3600 * 10**9
    assert "steadily" in verdict.reason


def test_a_leak_since_a_deploy():
    value = np.concatenate([steady(3000), steady(3000) + np.arange(3000) * MIB / 10])
    verdict = verdict_of(value)
    assert verdict.verdict == LEAK
    assert abs(verdict.since_ns / 1e9 - BEGIN_S - 3000 * INTERVAL_S) < 3 * 3600
    assert verdict.growth_per_hour == pytest.approx(HOUR * MIB / 10, rel=0.1)


def test_a_staircase():
    count = 6000
    verdict = verdict_of(100 * MIB + 16 * MIB * (np.arange(count) // 400) + noise(count, MIB / 20))
    assert (verdict.verdict, verdict.shape) == (LEAK, shape.STAIRCASE)


def test_a_sawtooth():
    assert (verdict_of(sawtooth()).verdict, verdict_of(sawtooth()).shape) == (NO_LEAK, shape.SAWTOOTH)


def test_a_sawtooth_whose_floor_rises():
    verdict = verdict_of(sawtooth() + np.arange(4000) * 60 * MIB / 4000)
    assert (verdict.verdict, verdict.shape) == (LEAK, shape.SAWTOOTH_DRIFT)


def test_warm_up():
    verdict = verdict_of(100 * MIB * (2 - np.exp(-np.arange(4000) / 300)) + noise(4000, MIB))
    assert (verdict.verdict, verdict.shape) == (NO_LEAK, shape.WARM_UP)


def test_page_cache_is_no_leak():
    verdict = verdict_of(leaking(), kind="file")
    assert (verdict.verdict, verdict.shape) == (NO_LEAK, shape.CACHE)
    assert "takes it back" in verdict.reason


def test_slab_is_at_most_suspect():
    assert verdict_of(leaking(), kind="slab").verdict == SUSPECT


def test_tmpfs():
    verdict = verdict_of(leaking(), kind="shmem")
    assert (verdict.verdict, verdict.shape) == (LEAK, shape.TMPFS)


def days(count_days, growth=0.0):
    t = np.arange(0, count_days * 86_400, 60)
    cycle = 200 * MIB * (1 + np.sin(2 * np.pi * t / 86_400))
    return 300 * MIB + cycle + growth * t / t[-1] + noise(len(t), 3 * MIB)


def test_a_daily_cycle():
    verdict = verdict_of(days(5), interval_s=60)
    assert (verdict.verdict, verdict.shape) == (NO_LEAK, shape.DAILY)
    assert verdict.cycle_s == pytest.approx(86_400, rel=0.05)


def test_a_slow_leak_below_a_daily_cycle():
    verdict = verdict_of(days(7, growth=150 * MIB), interval_s=60)
    assert verdict.verdict == LEAK
    assert verdict.growth_per_hour == pytest.approx(150 * MIB / 7 / 24, rel=0.15)


def test_three_days_are_too_short_for_a_leak_below_a_daily_cycle():
    assert verdict_of(days(3), interval_s=60).verdict == NO_LEAK
    verdict = verdict_of(days(3, growth=150 * MIB), interval_s=60)
    assert verdict.verdict == TOO_SHORT
    assert "it takes 4" in verdict.reason


def test_healthy_patterns_have_names():
    step = np.where(np.arange(4000) % 180 < 90, 300 * MIB, 100 * MIB) + noise(4000, MIB)
    training = verdict_of(step)
    assert (training.verdict, training.shape) == (NO_LEAK, shape.PERIODIC)
    assert training.cycle_s == pytest.approx(180 * INTERVAL_S, rel=0.1)
    static = np.where(np.arange(4000) < 200, 20 * MIB, 800 * MIB) + noise(4000, MIB / 10)
    assert verdict_of(static).shape == shape.STATIC
    assert verdict_of(100 * MIB + np.abs(noise(4000, 60 * MIB))).shape == shape.CHURN
    assert verdict_of(steady(base=4000 * MIB)).shape == shape.FLAT


def test_a_restart_that_is_known():
    value = np.concatenate([leaking(3000), leaking(3000)])
    restart = (BEGIN_S + 3000 * INTERVAL_S) * 10**9
    verdict = verdict_of(value, restarts_ns=(restart,))
    assert verdict.verdict == LEAK
    assert len(verdict.change_points_ns) == 1
    assert abs(verdict.change_points_ns[0] - restart) < 200 * 10**9


def test_falls_from_one_height_may_be_a_collector():
    value = np.concatenate([leaking(1500, seed=seed) for seed in range(3)])
    verdict = verdict_of(value)
    assert verdict.verdict == SUSPECT
    assert "collector" in verdict.reason


def test_pinned_at_its_limit():
    value = np.concatenate([np.linspace(100, 256, 30), np.full(10, 256)]) * MIB
    verdict = verdict_of(value, kind="usage", limit=256.0 * MIB)
    assert (verdict.verdict, verdict.shape) == (SUSPECT, shape.AT_LIMIT)
    assert verdict.time_to_limit_s == 0


@pytest.mark.parametrize("count", [1, 2, 5, 39])
def test_too_few_samples(count):
    verdict = verdict_of(leaking(count))
    assert verdict.verdict == TOO_SHORT
    assert verdict.growth_per_hour is None
    assert f"{count} sample" in verdict.reason


def test_the_floor_in_time_is_a_parameter():
    value = leaking(600, growth=200 * MIB)
    fast = series(value, interval_s=1)
    assert judge_series(fast).verdict.verdict == TOO_SHORT
    assert judge_series(fast, DEFAULT.with_floors(120, None)).verdict.verdict == LEAK


def test_the_floor_in_bytes_is_a_parameter():
    value = leaking(growth=3 * MIB) - noise(4000, 2 * MIB) * 0.99
    assert verdict_of(value).verdict == NO_LEAK
    small = series(value)
    assert judge_series(small, DEFAULT.with_floors(None, MIB)).verdict.verdict == LEAK


@pytest.mark.parametrize("constants", [1.5, 2, 2.5])
@pytest.mark.parametrize("growth", [60 * MIB, 600 * MIB])
def test_a_warm_up_that_is_not_over_is_no_leak(constants, growth):
    """However steady its last part is: the whole slows down."""
    at = np.arange(4000) / 4000
    verdict = verdict_of(200 * MIB + growth * (1 - np.exp(-constants * at)) + noise(4000, growth / 100))
    assert (verdict.verdict, "slows down" in verdict.reason) == (SUSPECT, True)


@pytest.mark.parametrize("warm_up", [30 * MIB, 100 * MIB, 300 * MIB])
def test_a_leak_after_a_warm_up(warm_up):
    at = np.arange(4000) / 4000
    value = 200 * MIB + warm_up * (1 - np.exp(-at / 0.03)) + 200 * MIB * at + noise(4000, 2 * MIB)
    assert verdict_of(value).verdict == LEAK


@pytest.mark.parametrize("bursts", [10, 20, 40])
def test_a_leak_in_bursts_never_falls(bursts):
    random = np.random.default_rng(bursts)
    steps = np.zeros(4000)
    steps[random.integers(50, 3950, bursts)] = random.uniform(5, 15, bursts) * MIB
    assert verdict_of(200 * MIB + np.cumsum(steps) + noise(4000, MIB)).verdict == LEAK


def test_three_deploys_that_need_more_are_no_leak():
    steps = np.zeros(4000)
    steps[[900, 1900, 3000]] = 40 * MIB
    assert verdict_of(200 * MIB + np.cumsum(steps) + noise(4000, MIB)).verdict != LEAK


def test_falls_in_a_file_may_be_restarts():
    """A collector and a crash loop look the same there; a store knows its restarts."""
    teeth = 100 * MIB + 300 * MIB * ((np.arange(4000) / 4000 * 9.3) % 1) + noise(4000, MIB)
    verdict = verdict_of(teeth)
    assert (verdict.verdict, "if its falls are restarts" in verdict.reason) == (NO_LEAK, True)
    made = series(teeth)
    stored = replace(made, labels=replace(made.labels, container_id="c1"))
    assert "restarts" not in judge_series(stored).verdict.reason


def test_nothing_and_zeros():
    empty = Series(Labels("x"), np.zeros(0, np.int64), np.zeros(0))
    assert judge_series(empty).verdict.verdict == TOO_SHORT
    assert verdict_of(np.zeros(4000)).verdict == NO_LEAK


def test_what_cannot_be_is_left_out_and_said():
    t = (BEGIN_S + np.arange(4000) * INTERVAL_S) * 10**9
    value = leaking()
    value[5], value[6], value[7] = np.nan, -1.0, np.inf
    t[8], t[9] = EARLIEST_NS - 1, NOW_NS * 2
    found = clean(Labels("x"), t, value, now_ns=NOW_NS)
    assert len(found.value) == 3995
    assert "2 of 4000 values are missing" in found.notes
    assert "1 negative values left out" in found.notes
    assert any("before 2000 or in the future" in note for note in found.notes)
    assert judge_series(found).verdict.verdict == LEAK


def test_the_clock_goes_back():
    t = (BEGIN_S + np.arange(4000) * INTERVAL_S) * 10**9
    t[2000:] -= 3600 * 10**9
    found = clean(Labels("x"), t, leaking(), now_ns=NOW_NS)
    assert any("clock went back" in note for note in found.notes)
    assert np.all(np.diff(found.time_ns) >= 0)
    assert judge_series(found).verdict.verdict in (LEAK, SUSPECT)


def test_gaps_are_said_and_not_filled():
    whole = series(leaking())
    kept = np.ones(4000, bool)
    kept[1000:1900] = False
    verdict = judge_series(Series(whole.labels, whole.time_ns[kept], whole.value[kept])).verdict
    assert verdict.verdict == LEAK
    assert verdict.samples == 3100
    assert any("gap" in note for note in verdict.notes)


def test_a_counter_that_is_reset_is_a_change_point():
    value = np.concatenate([300 * MIB + noise(2000, MIB), 40 * MIB + noise(2000, MIB)])
    verdict = verdict_of(value)
    assert verdict.verdict == NO_LEAK
    assert len(verdict.change_points_ns) == 1


def test_thousands_of_series_of_one_sample():
    for number in range(2000):
        assert verdict_of([float(number)]).verdict == TOO_SHORT


def test_quality_on_other_seeds_than_the_rules_were_tuned_on():
    quality = measure_quality(generator.cases(range(5000, 5008)))
    assert quality.precision >= 0.98
    assert quality.recall >= 0.95


def test_quality_on_series_of_another_make():
    quality = measure_quality(stress.cases(range(5000, 5005)))
    assert quality.precision >= 0.96
    assert quality.recall >= 0.9
