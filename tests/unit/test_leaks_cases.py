"""The series of real reports, with the conclusions that people drew from them."""

import pytest

from rtdebug.leaks.foreign.hints import Hints
from rtdebug.leaks.foreign.reader import read_foreign
from rtdebug.leaks.verdict import LEAK, NO_LEAK, SUSPECT, TOO_SHORT, judge_series

MIB = 1 << 20


def verdicts(cases, pattern, unit=None, interval_s=None):
    (path,) = cases.glob(pattern)
    return {series.labels.name: judge_series(series).verdict for series in read_foreign(path, Hints(unit, interval_s))}


def only(cases, pattern, **hints):
    (verdict,) = verdicts(cases, pattern, **hints).values()
    return verdict


def test_pinned_at_the_limit(cases):
    verdict = only(cases, "073-*.test2-node.csv")
    assert verdict.samples == 13
    assert verdict.limit == 512 * MIB
    assert (verdict.verdict, verdict.shape) == (SUSPECT, "at the limit")
    assert "6 points" in verdict.reason
    assert "OOM kill is likely" in verdict.reason


def test_an_end_far_below_the_limit_is_no_evidence(cases):
    verdict = only(cases, "073-*.test4-node.csv")
    assert verdict.verdict == TOO_SHORT
    assert "21 % of the limit" in verdict.reason
    assert "OOM" not in verdict.reason


def test_growth_with_restarts(cases):
    verdict = only(cases, "075-*.csv")
    assert verdict.samples == 182
    assert (verdict.verdict, verdict.shape) == (SUSPECT, "restart")
    assert verdict.change_points_ns


@pytest.mark.parametrize("name", ["test1", "test3"])
def test_warm_up_then_constant(cases, name):
    verdict = only(cases, f"076-*.{name}-node.every10.csv")
    assert verdict.verdict == NO_LEAK
    assert verdict.shape in ("warm-up", "flat")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("test1", {NO_LEAK, SUSPECT}),  # a small drift, noise of the same size
        ("test2", {LEAK}),  # a reset, and the same again
        ("test3", {LEAK}),
        ("test4", {LEAK}),
        ("test5", {NO_LEAK, SUSPECT}),  # it flattens
        ("test6", {NO_LEAK, SUSPECT}),  # three regimes, the last within what was seen before
        ("test7", {LEAK}),
    ],
)
def test_percent_without_times(cases, name, expected):
    verdict = only(cases, f"078-*.{name}.csv", unit="percent", interval_s=60)
    assert verdict.labels.unit == "percent"
    assert verdict.verdict in expected


def test_where_leaks_begin(cases):
    reset = only(cases, "078-*.test2.csv", unit="percent", interval_s=60)
    begin_ns = 1_000_000_000 * 10**9
    assert reset.change_points_ns[0] == pytest.approx(begin_ns + 500 * 60 * 10**9, abs=5 * 60 * 10**9)
    onset = only(cases, "078-*.test4.csv", unit="percent", interval_s=60)
    assert 100 <= (onset.since_ns - begin_ns) / 60e9 <= 250


def test_docker_stats_of_six_containers(cases):
    found = verdicts(cases, "079-*.every20.csv", interval_s=30)
    assert {name: verdict.verdict for name, verdict in found.items()} == {
        "nginx": NO_LEAK,
        "app_worker": NO_LEAK,
        "app_scheduler": NO_LEAK,
        "app": NO_LEAK,
        "opt_engine": NO_LEAK,
        "redis": LEAK,
    }
    assert "data that grows, or a leak" in found["redis"].reason


def test_the_table_of_docker_stats(cases):
    found = verdicts(cases, "079-*.raw-head.txt", interval_s=10)
    assert set(found) == {"nginx", "app_worker", "app_scheduler", "app", "opt_engine", "redis"}
    assert found["redis"].last == pytest.approx(1.949 * 2**30, rel=0.001)
    assert all(verdict.limit is None for verdict in found.values())  # the host's memory is no limit
    assert all(verdict.verdict == TOO_SHORT for verdict in found.values())


@pytest.mark.parametrize("host", ["m_1935", "m_1939"])
def test_unusual_hosts_do_not_leak(cases, host):
    verdict = only(cases, f"080-*.{host}.csv")
    assert verdict.verdict == NO_LEAK
    assert any("gap" in note for note in verdict.notes)
