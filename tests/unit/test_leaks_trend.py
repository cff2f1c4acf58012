"""The slope and its interval, on noise that remembers."""

import numpy as np
import pytest

from rtdebug.leaks.trend import fit

X = np.arange(48.0)


def walk(random):
    return np.cumsum(random.normal(size=48))


def remembering(random, r=0.8):
    value = np.zeros(48)
    for at in range(1, 48):
        value[at] = r * value[at - 1] + random.normal()
    return value


def test_a_line_without_noise():
    trend = fit(X, 5 + 3 * X)
    assert trend.slope == pytest.approx(3)
    assert trend.interval(0.99) == pytest.approx((3, 3))


def test_one_wrong_point_does_not_matter():
    y = 5 + 3 * X
    y[20] = 1e6
    assert fit(X, y).slope == pytest.approx(3, rel=0.01)


def test_constant_values():
    trend = fit(X, np.full(48, 7.0))
    assert trend.slope == 0
    assert trend.interval(0.99) == (0, 0)


@pytest.mark.parametrize("make", [walk, remembering, lambda random: random.normal(size=48)])
def test_no_trend_is_seldom_called_one(make):
    random = np.random.default_rng(3)
    rounds = 400
    called = sum(fit(X, make(random)).interval(0.98)[0] > 0 for _ in range(rounds))
    assert called <= 0.05 * rounds  # one side of 98 % is 1 %; two ways are tried, and a walk is the worst


@pytest.mark.parametrize("make", [remembering, lambda random: random.normal(size=48)])
def test_a_clear_trend_is_found(make):
    random = np.random.default_rng(5)
    found = sum(fit(X, make(random) + X).interval(0.99)[0] > 0 for _ in range(100))
    assert found >= 95


def test_a_walk_that_only_rises_is_a_trend():
    random = np.random.default_rng(7)
    assert fit(X, np.cumsum(random.exponential(size=48))).interval(0.99)[0] > 0
