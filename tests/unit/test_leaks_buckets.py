"""Buckets: at once, in parts in any order, and of many series together are the same numbers."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rtdebug.leaks import grid
from rtdebug.leaks.buckets import MOST, bucketed, level_for, merged

BEGIN = 1_760_000_000


def same(one, other):
    assert one.level == other.level
    for name in ("index", "low", "high", "total", "count"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


def test_a_bucket_holds_its_samples():
    time_ns = np.array([BEGIN, BEGIN + 1, BEGIN + 5000]) * 10**9
    buckets = bucketed(time_ns, np.array([5.0, 3.0, 9.0]))
    assert buckets.width_s == 8
    assert buckets.low.tolist() == [3, 9]
    assert buckets.high.tolist() == [5, 9]
    assert buckets.mean.tolist() == [4, 9]
    assert buckets.count.tolist() == [2, 1]


def test_a_day_at_10_s_fits():
    level = level_for(BEGIN, BEGIN + 86_400)
    assert (86_400 >> level) < MOST <= (86_400 >> (level - 1))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 2**40)), min_size=1, max_size=200),
    st.lists(st.integers(0, 200), max_size=5),
    st.randoms(),
)
def test_parts_are_joined_without_loss(samples, cuts, shuffle):
    shuffle.shuffle(samples)
    time_ns = np.array([(BEGIN + at) * 10**9 for at, _ in samples])
    value = np.array([float(each) for _, each in samples])
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(samples)), len(samples)]
    parts = [bucketed(time_ns[a:b], value[a:b], 16) for a, b in itertools.pairwise(edges) if b > a]
    shuffle.shuffle(parts)
    same(merged(parts, 16), bucketed(time_ns, value, 16))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 3000), st.integers(0, 2**32), st.integers(1, 4))
def test_many_series_together(series, count, seed, pieces):
    random = np.random.default_rng(seed)
    code = random.integers(0, series, count)
    seconds = BEGIN + np.sort(random.integers(0, 10 ** int(random.integers(1, 7)), count))
    value = random.integers(0, 2**40, count).astype(float)
    value[random.uniform(size=count) < 0.1] = np.nan
    grids = [
        grid.grids_of(code[part], seconds[part], {"anon": value[part]}, np.zeros(series, np.int64))["anon"]
        for part in np.array_split(np.arange(count), pieces)
    ]
    found = dict(grid.split(grid.merged(grids, [np.arange(series)] * pieces, series)))
    for number in range(series):
        own = (code == number) & np.isfinite(value)
        if own.any():
            same(found.pop(number), bucketed(seconds[own] * 10**9, value[own]))
    assert not found
