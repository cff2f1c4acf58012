"""`rtdebug leaks watch` and what is usual: quiet until the window is filled, one line for an episode."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from rtdebug.cli import run
from rtdebug.leaks.baseline_watch import BaselineWatch
from rtdebug.leaks.departures import NEW_LEVEL, OUTSIDE, USUAL_AGAIN
from rtdebug.leaks.tables import CGROUPS
from rtdebug.leaks.writer import StoreWriter
from rtdebug.render.leaks_watch import news_line, news_object
from tests.unit.leak_series import BEGIN_S, INTERVAL_S, MIB, cgroup_rows, steady, write_segment

WINDOW = 60
WINDOW_S = WINDOW * INTERVAL_S


class Store:
    """A store that grows, and a watch that looks after each piece as if it were then."""

    def __init__(self, folder, method="mad", window_s=WINDOW_S):
        self.folder = folder
        self.watch = BaselineWatch([folder], method, window_s)
        self.at = 0

    def add(self, rows, count):
        begin_s = BEGIN_S + self.at * INTERVAL_S
        rows = [row | {"time_ns": row["time_ns"] + self.at * INTERVAL_S * 10**9} for row in rows]
        for host in {row["host"] for row in rows}:
            write_segment(self.folder, "cgroups", [row for row in rows if row["host"] == host], begin_s, host)
        self.at += count

    def look(self):
        return self.watch.poll((BEGIN_S + self.at * INTERVAL_S) * 10**9)

    def feed(self, values, name="web", **more):
        self.add(cgroup_rows({name: np.asarray(values, float)}, **more), len(values))
        return self.look()


def states(found, kind="anon"):
    return [each.departure.state for each in found if each.labels.kind == kind]


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def filled(store):
    assert store.feed(steady(WINDOW + 3, 500 * MIB)) == []
    return store


def test_nothing_is_said_until_the_window_is_filled(store):
    assert store.feed([*steady(WINDOW - 1, 500 * MIB), 3000 * MIB]) == []
    assert store.watch.filled == (0, 4)
    assert store.feed(steady(4, 500 * MIB)) == []
    assert store.watch.filled == (4, 4)
    assert states(store.feed([3000 * MIB])) == [OUTSIDE]


def test_an_episode_is_told_when_it_begins_and_when_it_is_over(filled):
    (anon, usage) = sorted(filled.feed([600 * MIB]), key=lambda each: each.labels.kind)
    assert (anon.labels.kind, usage.labels.kind) == ("anon", "usage")
    assert (anon.labels.name, anon.labels.unit, anon.labels.host) == ("web", "bytes", "h1")
    assert anon.departure.band.value == 600 * MIB
    assert filled.feed([700 * MIB, 650 * MIB, 501 * MIB, 640 * MIB]) == [], "once"
    assert filled.feed(steady(5, 500 * MIB)) == [], "not yet"
    again = [each for each in filled.feed(steady(5, 500 * MIB, 2)) if each.labels.kind == "anon"]
    assert states(again) == [USUAL_AGAIN]
    assert again[0].departure.furthest.value == 700 * MIB
    assert again[0].departure.until_ns - again[0].departure.since_ns == 4 * INTERVAL_S * 10**9
    assert "; it was outside for 40.0 s, 700 MiB at the furthest" in news_line(again[0], 0)


def test_a_new_level_becomes_the_usual_one_and_that_is_told(filled):
    assert states(filled.feed(steady(WINDOW // 4, 800 * MIB))) == [OUTSIDE]
    (shift,) = [each for each in filled.feed(steady(WINDOW, 800 * MIB)) if each.labels.kind == "anon"]
    assert shift.departure.state == NEW_LEVEL
    assert 0.4 * WINDOW < (shift.departure.time_ns - shift.departure.since_ns) / 1e9 / INTERVAL_S < 0.6 * WINDOW
    assert shift.departure.furthest.centre == pytest.approx(500 * MIB, rel=0.02)
    assert " is usual now, after " in news_line(shift, 0)
    assert states(filled.feed(steady(WINDOW, 800 * MIB))) == []
    assert states(filled.feed([500 * MIB])) == [OUTSIDE], "what was usual is not any more"


def test_by_mean_and_deviation_a_level_is_usual_sooner(tmp_path):
    store = Store(tmp_path / "store", "2.5sigma")
    store.feed(steady(WINDOW + 3, 500 * MIB))
    found = states(store.feed(steady(WINDOW // 3, 800 * MIB)))
    assert found == [OUTSIDE, NEW_LEVEL]


def test_noise_is_usual(filled):
    assert [filled.feed(steady(WINDOW, 500 * MIB, seed)) for seed in range(2, 12)] == [[]] * 10


def test_what_was_recorded_before_is_not_told_but_what_is_so_now(store):
    """The first look: a peak that is over is no news, one that goes on is, with its beginning."""
    history = [*steady(WINDOW + 3, 500 * MIB), 900 * MIB, *steady(12, 500 * MIB)]
    values = {"over": np.array(history), "now": np.array([*history[:-4], *[700 * MIB] * 4])}
    store.add(cgroup_rows(values), len(history))
    (anon,) = [each for each in store.look() if each.labels.kind == "anon"]
    assert (anon.labels.name, anon.departure.state) == ("now", OUTSIDE)
    assert anon.departure.time_ns - anon.departure.since_ns == 3 * INTERVAL_S * 10**9
    assert "outside for 30.0 s, 700 MiB at the furthest" in news_line(anon, 0)


def test_only_what_is_near_is_read_at_first(store):
    for _ in range(4):
        store.add(cgroup_rows({"web": steady(WINDOW, 100 * MIB)}), WINDOW)
    store.feed(steady(2 * WINDOW, 500 * MIB))
    assert states(store.feed([520 * MIB])) == []
    assert states(store.feed([100 * MIB])) == [OUTSIDE]


def test_rates_of_counters(store):
    at = np.arange(WINDOW + 5)
    rows = [
        row | {"refaults": int(5000 + 20 * number), "major_faults": None}
        for number, row in zip(at, cgroup_rows({"web": steady(len(at))}), strict=True)
    ]
    store.add(rows, len(at))
    assert store.look() == []
    store.add([row | {"refaults": 30_000} for row in cgroup_rows({"web": steady(1)})], 1)
    (found,) = store.look()
    assert (found.labels.kind, found.labels.unit) == ("refaults", "per second")
    assert found.departure.band.value == pytest.approx((30_000 - 5000 - 20 * (WINDOW + 4)) / INTERVAL_S)
    assert "refaults: 2,372/s, usual is 0/s to 12/s" in news_line(found, 0)


def test_hosts_do_not_disturb_each_other(store):
    values = {"web": steady(WINDOW + 3, 500 * MIB)}
    store.add([*cgroup_rows(values, host="h1"), *cgroup_rows(values, host="h2")], WINDOW + 3)
    store.look()
    store.add([*cgroup_rows({"web": [500 * MIB]}), *cgroup_rows({"web": [900 * MIB]}, host="h2")], 1)
    assert {each.labels.host for each in store.look()} == {"h2"}


def test_after_a_long_silence_it_begins_anew(filled):
    filled.at += 2 * WINDOW
    assert filled.feed([900 * MIB] * (WINDOW // 2)) == []
    assert filled.watch.filled == (0, 4)


def test_another_interval_begins_anew(filled):
    """Else a window of samples at 1 s would be usual after a minute."""
    rows = cgroup_rows({"web": steady(WINDOW, 900 * MIB)})
    began_ns = rows[0]["time_ns"]
    filled.add([row | {"time_ns": began_ns + number * 10**9} for number, row in enumerate(rows)], WINDOW // 10)
    filled.look()
    assert filled.watch.filled == (0, 4)


def test_who_has_gone_is_forgotten(filled):
    filled.feed([900 * MIB])
    assert filled.feed(steady(3), name="other") == []
    assert filled.feed([100 * MIB]) == []


def test_rows_without_a_time_or_a_container_break_nothing(filled):
    (row,) = cgroup_rows({"web": [900 * MIB]})
    nobody = {"container_id": None, "container_name": None}
    filled.add([row | nobody, row | nobody | {"cgroup": "/x"}, row], 1)
    write_segment(filled.folder, "cgroups", [{"host": "h1", "container_id": "z", "anon_bytes": 5}], BEGIN_S + 1)
    assert states(filled.look()) == [OUTSIDE]


def test_names_are_escaped(store):
    name = "we\x1b[31mb\n"
    store.feed(steady(WINDOW + 3, 500 * MIB), name)
    (anon,) = [each for each in store.feed([900 * MIB], name) if each.labels.kind == "anon"]
    assert "\x1b" not in news_line(anon, 0) and "\n" not in news_line(anon, 0)
    assert news_object(anon, 0)["name"] == name


def live_rows(values, end_s):
    rows = cgroup_rows({"web": np.asarray(values, float)})
    begin_s = end_s - len(rows)
    return [row | {"time_ns": int((begin_s + number) * 1e9)} for number, row in enumerate(rows)]


@pytest.mark.parametrize(("baseline", "told"), [((), 2), (("--baseline", "2sigma"), 2), (("--baseline", "off"), 0)])
def test_the_command(tmp_path, capsys, baseline, told):
    now_s = time.time()
    write_segment(tmp_path, "cgroups", live_rows([*steady(66, 500 * MIB), 900 * MIB], now_s), int(now_s) - 70)
    arguments = ["leaks", "watch", str(tmp_path), "--window", "60s", "--duration", "100ms", *baseline]
    assert run([*arguments, "-o", "json"]) == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines() if '"baseline"' in line]
    assert len(lines) == told
    assert ("known of all 4 figures" in err) == bool(told)
    assert {line["kind"] for line in lines} == ({"anon", "usage"} if told else set())
    assert run(arguments) == 0
    assert capsys.readouterr().out.count("outside  ") == told


def test_a_store_that_is_being_written(tmp_path, capsys):
    now_s = time.time()
    with StoreWriter(tmp_path, "red", 1 << 30, print, flush_s=0) as out:
        watch = BaselineWatch([tmp_path], "mad", 30)
        for row in live_rows([*steady(33, 500 * MIB), 900 * MIB], now_s):
            out.add("cgroups", [tuple(row.get(name) for name in CGROUPS)])
            found = watch.poll(int(now_s * 1e9))
        assert states(found) == [OUTSIDE]
    assert watch.poll(int(now_s * 1e9)) == [], "sealed, but nothing new"


def test_an_unknown_way(tmp_path, capsys):
    assert run(["leaks", "watch", str(tmp_path), "--baseline", "mean"]) == 2
    assert "2.5sigma" in capsys.readouterr().err
