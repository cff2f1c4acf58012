"""A release that leaks, beside the one before it."""

import numpy as np
import pandas as pd
import pytest

from rtdebug.leaks.batch import gather
from rtdebug.leaks.compare import FASTER, ONLY_BASE, ONLY_NEW, SAME, SLOWER, UNKNOWN, compare, compare_sites
from rtdebug.leaks.rules import DEFAULT
from rtdebug.leaks.site_growth import site_growth
from rtdebug.render.leaks_compare import compare_table
from tests.unit.leak_series import BEGIN_S, MIB, cgroup_rows, leaking, process_rows, steady, write_segment

COUNT = 2400


def recording(folder, **containers):
    write_segment(folder, "cgroups", cgroup_rows(containers), BEGIN_S)
    for name, value in containers.items():
        write_segment(folder, "processes", process_rows(name, value), BEGIN_S + hash(name) % 1000)
    items, notes = gather([folder])
    assert not notes
    return items


def changes(base, new):
    return {(each.name, each.kind): each for each in compare(base, new, DEFAULT)}


def test_a_release_that_leaks(tmp_path):
    base = recording(tmp_path / "base", web=leaking(COUNT, growth=20 * MIB))
    new = recording(tmp_path / "new", web2=leaking(COUNT, growth=220 * MIB, seed=2))
    found = changes(base, new)
    anon = found["", "anon"]  # one container on each side, whatever its name
    hours = COUNT / 360
    assert anon.change == FASTER
    assert anon.difference_per_hour == pytest.approx(200 * MIB / hours, rel=0.05)
    assert anon.interval[0] < 200 * MIB / hours < anon.interval[1]
    assert found["python3", "rss_anon"].change == FASTER
    assert found["", "file"].change == SAME
    assert next(iter(compare(base, new, DEFAULT))).change == FASTER
    assert changes(new, base)["", "anon"].change == SLOWER


def test_the_same_twice(tmp_path):
    base = recording(tmp_path / "base", web=leaking(COUNT), db=steady(COUNT))
    new = recording(tmp_path / "new", web=leaking(COUNT, seed=5), db=steady(COUNT, seed=6))
    assert {change.change for change in compare(base, new, DEFAULT)} == {SAME}


def test_a_service_that_is_new_and_one_too_short(tmp_path):
    base = recording(tmp_path / "base", web=leaking(COUNT), db=steady(COUNT)[:60])
    assert len(base) > 0
    new = recording(tmp_path / "new", web=leaking(COUNT), db=steady(COUNT), cache=steady(COUNT))
    found = changes(base, new)
    assert found["cache", "anon"].change == ONLY_NEW
    assert found["db", "anon"].change == UNKNOWN  # it is in both: never "only in new"
    assert changes(new, base)["db", "anon"].change == UNKNOWN


def test_one_that_lived_shortly_hides_no_other(tmp_path):
    base = recording(tmp_path / "base", web=leaking(COUNT, growth=20 * MIB), job=steady(COUNT)[:12])
    new = recording(tmp_path / "new", web=leaking(COUNT, growth=220 * MIB, seed=2), job=steady(COUNT)[:12])
    assert changes(base, new)["web", "anon"].change == FASTER


def test_sites_that_were_not_recorded_are_not_known(tmp_path, capsys):
    leak = sites({"leak\nmain": MIB / 4})
    for change, base, new in ((ONLY_NEW, [], leak), (ONLY_BASE, leak, [])):
        (found,) = compare_sites(base, new, 4 * MIB)
        assert (found.change, found.difference_per_hour) == (change, None)
        assert found.base is None or found.new is None
    text = compare_table([], compare_sites([], leak, 4 * MIB), ())
    assert "BASE was recorded without allocation sites" in text
    assert "grows faster" not in text.replace("Nothing grows faster", "").replace("anything grows faster", "")


def test_what_cannot_be_told_is_counted_not_listed(tmp_path):
    base = recording(tmp_path / "base", **{f"c{number}": steady(60) for number in range(40)})
    text = compare_table(compare(base, base, DEFAULT), [], ())
    assert len(text.splitlines()) < 5
    assert "Too short to tell" in text
    assert "--min-span" in text


def sites(slopes, count=50):
    rows = [
        {
            "time_ns": (BEGIN_S + at * 60) * 10**9,
            "host": "h",
            "container_id": "c",
            "identity": "app-1",
            "pid": 7,
            "kind": "malloc",
            "stack": stack,
            "live_bytes": int(MIB + slope * at),
        }
        for stack, slope in slopes.items()
        for at in range(count)
    ]
    return site_growth(pd.DataFrame(rows))


def test_sites_grow():
    found = sites({"leak\nmain": MIB, "cache\nmain": 0})
    assert [site.stack for site in found] == ["leak\nmain", "cache\nmain"]
    assert found[0].growth_per_hour == pytest.approx(60 * MIB, rel=0.05)
    assert found[0].live_bytes == MIB * 50
    assert site_growth(pd.DataFrame()) == []


def test_a_site_is_said_only_when_it_changes():
    rows = pd.DataFrame(
        {
            "time_ns": np.array([BEGIN_S, BEGIN_S + 10, BEGIN_S + 6000]) * 10**9,
            "host": "h",
            "container_id": "c",
            "identity": "a",
            "pid": 7,
            "kind": "mmap",
            "stack": ["one", "two", "two"],
            "live_bytes": [5 * MIB, MIB, 9 * MIB],
        }
    )
    still = {site.stack: site for site in site_growth(rows)}["one"]
    assert still.growth_per_hour == 0
    assert still.live_bytes == 5 * MIB


def test_sites_of_two_recordings():
    found = compare_sites(sites({"a": 0, "b": MIB}), sites({"a": MIB, "b": MIB, "new": MIB}), MIB)
    assert {change.stack: change.change for change in found} == {"a": FASTER, "b": SAME, "new": FASTER}
