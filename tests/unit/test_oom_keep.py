"""Keeping reports: whole or not at all, for root alone, the last few, and nothing of anybody else's removed."""

from __future__ import annotations

import json

import pytest

from rtdebug.errors import RtdebugError
from rtdebug.keep import Keeper, keep_report, prune
from rtdebug.oom.kill import OomKill
from rtdebug.oom.report import build_report
from rtdebug.render.oom_watch import watch_json, watch_text

T0 = 1_767_225_600 * 10**9


def line(second, pid=7001):
    kill = OomKill(time_ns=0, pid=pid, tid=pid, comm="a\x1b[31m/../b", anon_rss_bytes=5 << 20)
    return build_report(kill).to_line(T0 + second * 10**9)


def texts(each):
    return watch_json(each), watch_text(each)


def test_a_report_is_whole_and_private(tmp_path):
    assert keep_report(tmp_path, 5, line(1), texts(line(1))) is None
    (folder,) = tmp_path.iterdir()
    assert folder.name == "oom-20260101T000001.000000000Z-7001"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in folder.iterdir()) == ["oom.json", "oom.txt"]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
    assert json.loads((folder / "oom.json").read_text())["pid"] == 7001
    text = (folder / "oom.txt").read_text()
    assert "No snapshot" in text
    assert "\x1b" not in text


def test_the_oldest_go_and_what_is_not_ours_stays(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "oom-20250101T000000.000000000Z-1x").mkdir()
    (folder / "oom-20250101T000000.000000000Z-1").symlink_to(outside)
    for second in range(5):
        keep_report(folder, 3, line(second), texts(line(second)))
    prune(folder, 2)
    names = sorted(path.name for path in folder.iterdir())
    assert [name for name in names if "20260101" in name] == [
        "oom-20260101T000003.000000000Z-7001",
        "oom-20260101T000004.000000000Z-7001",
    ]
    assert {"notes.txt", "oom-20250101T000000.000000000Z-1x"} <= set(names)
    assert outside.is_dir()


def test_a_keeper_works_beside_and_tells_what_failed(tmp_path):
    said = []
    keeper = Keeper(tmp_path / "a" / "b", 10, texts, said.append)
    for second in range(6):
        keeper.keep(line(second))
    keeper.close()
    assert len(list((tmp_path / "a" / "b").iterdir())) == 6
    assert said == []


def test_what_a_killed_keeper_left_is_removed(tmp_path):
    (tmp_path / ".oom-20260101T000003.000000000Z-7001.999").mkdir()
    (tmp_path / ".hidden").mkdir()
    Keeper(tmp_path, 10, texts, print).close()
    assert [path.name for path in tmp_path.iterdir()] == [".hidden"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RtdebugError) as caught:
        Keeper(tmp_path / "file" / "x", 10, texts, print)
    assert "--keep-dir" in caught.value.hint
