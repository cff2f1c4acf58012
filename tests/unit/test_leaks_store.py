"""The store of `rtdebug leaks record`: appended, rotated, killed, copied, damaged; and read in every state."""

from __future__ import annotations

import itertools
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rtdebug.errors import UsageProblem
from rtdebug.leaks.batch import gather
from rtdebug.leaks.segments import find_segments, parse_segment
from rtdebug.leaks.store import read_series, read_table
from rtdebug.leaks.streaming import Follower
from rtdebug.leaks.tables import CGROUPS, FIGURES, PROCESSES, SITES, TABLES, TEXTS
from rtdebug.leaks.writer import StoreWriter
from tests.conftest import ROOT

MIB = 1 << 20
START_NS = 1_700_000_000_000_000_000


def cgroup_row(second: int, anon_bytes: int | None = 7, host: str = "red", container: str = "c1") -> tuple:
    who = (START_NS + second * 10**9, host, container, None, "img:1", f"/{container}")
    figures = [anon_bytes if name == "anon_bytes" else None for name in FIGURES]
    return (*who, *figures)


def row_of(table: str) -> tuple:
    return tuple({"time_ns": 5, "host": "h"}.get(name) for name in TABLES[table])


def writer(folder: Path, host: str = "red", **options) -> StoreWriter:
    notices = options.pop("notices", [])
    return StoreWriter(folder, host, options.pop("keep_bytes", 1 << 30), notices.append, **options)


def anon(paths: list[Path]) -> list[int]:
    return read_series(paths).cgroups["anon_bytes"].tolist()


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    store = tmp_path / "a" / "store"
    with writer(store) as out:
        out.add("cgroups", [cgroup_row(1, 11), cgroup_row(2, None)])
        out.add("processes", [row_of("processes")])
        out.add("sites", [row_of("sites")])
    series = read_series([store])
    assert list(series.cgroups) == list(CGROUPS)
    assert list(series.processes) == list(PROCESSES)
    assert list(series.sites) == list(SITES)
    assert series.notes == ()
    first, second = series.cgroups.to_dict("records")
    assert (first["anon_bytes"], first["host"], first["image"]) == (11, "red", "img:1")
    assert second["anon_bytes"] != second["anon_bytes"], "null is NaN, not 0"
    assert {path.suffix for path in store.iterdir()} == {".parquet", ".lock"}


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    with writer(tmp_path / "store") as out:
        out.add("cgroups", [cgroup_row(1)])
        out.flush()
        assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "store").iterdir()} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "store").iterdir()} == {0o600}


def test_it_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    with writer(tmp_path, flush_s=0) as out:
        for second in range(5):
            out.add("cgroups", [cgroup_row(second, second)])
            assert anon([tmp_path]) == list(range(second + 1))
            assert [segment.is_stream for segment in find_segments([tmp_path])] == [True]


def test_a_row_waits_for_the_flush(tmp_path: Path) -> None:
    with writer(tmp_path, flush_s=3600) as out:
        out.add("cgroups", [cgroup_row(1)])
        assert list(find_segments([tmp_path])) == []


@pytest.mark.parametrize("cut_bytes", [1, 100, 700, 1500])
def test_a_stream_that_is_cut_short_is_read_up_to_the_last_whole_batch(tmp_path: Path, cut_bytes: int) -> None:
    out = writer(tmp_path, flush_s=0)
    for second in range(3):
        out.add("cgroups", [cgroup_row(second, second)])
        if second == 1:
            two_batches = next(find_segments([tmp_path])).path.stat().st_size
    path = next(find_segments([tmp_path])).path
    os.truncate(path, path.stat().st_size - cut_bytes)
    assert path.stat().st_size > two_batches
    assert anon([tmp_path]) == [0, 1]


def test_every_length_of_a_stream_can_be_read(tmp_path: Path) -> None:
    out = writer(tmp_path, flush_s=0)
    for second in range(2):
        out.add("cgroups", [cgroup_row(second, second)])
    segment = next(find_segments([tmp_path]))
    content = segment.path.read_bytes()
    copies = tmp_path / "copies"
    copies.mkdir()
    seen = set()
    for length in range(0, len(content) + 1, 97):
        copy = copies / segment.path.name
        copy.write_bytes(content[:length])
        seen.add(tuple(anon([copies])))
    assert seen == {(), (0,), (0, 1)} or seen == {(), (0,)}


def test_the_next_writer_seals_what_a_dead_one_left(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, pathlib\n"
        "from tests.unit.test_leaks_store import writer, cgroup_row\n"
        "out = writer(pathlib.Path(sys.argv[1]), flush_s=0)\n"
        "out.add('cgroups', [cgroup_row(1, 3)]); out.add('cgroups', [cgroup_row(2, 5)])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [segment.is_stream for segment in find_segments([tmp_path])] == [True]
    assert anon([tmp_path]) == [3, 5]
    with writer(tmp_path) as out:
        assert [segment.is_stream for segment in find_segments([tmp_path])] == [False]
        out.add("cgroups", [cgroup_row(3, 7)])
    assert anon([tmp_path]) == [3, 5, 7]


def test_a_segment_that_is_old_enough_is_sealed(tmp_path: Path) -> None:
    with writer(tmp_path, flush_s=0, segment_s=0.2) as out:
        out.add("cgroups", [cgroup_row(1, 1)])
        time.sleep(0.25)
        out.add("cgroups", [cgroup_row(2, 2)])
        out.add("cgroups", [cgroup_row(3, 3)])
        assert sorted(segment.is_stream for segment in find_segments([tmp_path])) == [False, True]
        assert anon([tmp_path]) == [1, 2, 3]


def test_a_segment_that_is_large_enough_is_sealed(tmp_path: Path) -> None:
    with writer(tmp_path, flush_s=0, segment_bytes=1) as out:
        for second in range(4):
            out.add("cgroups", [cgroup_row(second, second)])
        assert [segment.is_stream for segment in find_segments([tmp_path])] == [False] * 4
        assert out.size_bytes() == sum(path.stat().st_size for path in tmp_path.glob("*.parquet"))


def test_the_oldest_go_when_there_is_no_room(tmp_path: Path) -> None:
    with writer(tmp_path, flush_s=0, segment_bytes=1) as out:
        out.add("cgroups", [cgroup_row(0, 0)])
        one = out.size_bytes()
    other = tmp_path / "cgroups-blue-5-5.parquet"
    other.write_bytes(next(tmp_path.glob("*.parquet")).read_bytes())
    with writer(tmp_path, flush_s=0, segment_bytes=1, keep_bytes=int(3.5 * one)) as out:
        for second in range(1, 8):
            out.add("cgroups", [cgroup_row(second, second)])
        assert out.size_bytes() <= 3.5 * one
    assert other.exists(), "another host's is not ours to remove"
    other.unlink()
    assert anon([tmp_path]) == [5, 6, 7]


def test_hosts_can_be_copied_together(tmp_path: Path) -> None:
    for host in ("red", "blue/../green"):
        with writer(tmp_path / "of" / str(len(host)), host) as out:
            out.add("cgroups", [cgroup_row(1, len(host), host)])
    both = tmp_path / "both"
    both.mkdir()
    for path in (tmp_path / "of").rglob("*.parquet"):
        (both / path.name).write_bytes(path.read_bytes())
    frame = read_series([both]).cgroups
    assert dict(zip(frame["host"], frame["anon_bytes"], strict=True)) == {"red": 3, "blue/../green": 13}
    assert len(read_series([tmp_path / "of"]).cgroups) == 2, "folders below are looked through"


def test_a_second_writer_of_the_same_host_is_refused(tmp_path: Path) -> None:
    with writer(tmp_path):
        with pytest.raises(UsageProblem, match="another `rtdebug leaks record`"):
            writer(tmp_path)
        with writer(tmp_path, "blue"):
            pass
    with writer(tmp_path):
        pass


def test_a_store_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(UsageProblem, match="is not a folder"):
        writer(tmp_path / "x")


def test_a_disk_that_is_full_costs_its_rows_only(tmp_path: Path) -> None:
    code = (
        "import resource, sys, pathlib\n"
        "from tests.unit.test_leaks_store import writer, cgroup_row\n"
        "notices = []\n"
        "out = writer(pathlib.Path(sys.argv[1]), flush_s=0, notices=notices)\n"
        "out.add('cgroups', [cgroup_row(1, 1)])\n"
        "hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))\n"
        "out.add('cgroups', [cgroup_row(2, 2)]); out.add('cgroups', [cgroup_row(3, 3)])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))\n"
        "out.add('cgroups', [cgroup_row(4, 4)])\n"
        "out.close()\n"
        "print(out.lost_rows, *notices)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("2 cannot write to ")
    assert done.stdout.count("cannot write") == 1, "said once"
    assert anon([tmp_path]) == [1, 4]


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with writer(tmp_path) as out:
        out.add("cgroups", [cgroup_row(1, 1)])
    (tmp_path / "cgroups-red-17-17.parquet").write_bytes(b"PAR1 not really")
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / "secrets-red-17-17.parquet").write_bytes(b"a table of a later version")
    series = read_series([tmp_path])
    assert series.cgroups["anon_bytes"].tolist() == [1]
    assert [note.partition(": ")[0] for note in series.notes] == [str(tmp_path / "cgroups-red-17-17.parquet")]


def damaged(folder: Path) -> None:
    """Everything that can lie in a store beside segments, under names as theirs."""
    names = (f"cgroups-red-{number}-17" for number in itertools.count(17))
    (folder / f"{next(names)}.parquet").write_bytes(b"")
    (folder / f"{next(names)}.arrows").write_bytes(b"\xff" * 300)
    (folder / f"{next(names)}.parquet").symlink_to("/etc/passwd")
    (folder / f"{next(names)}.parquet").symlink_to(f"{next(names)}.parquet")
    (folder / f"{next(names)}.parquet").mkdir()
    os.mkfifo(folder / f"{next(names)}.arrows")
    os.mkfifo(folder / f"processes-{next(names)[8:]}.parquet")
    (folder / "loop").symlink_to(folder)
    (folder / "cgroups-\x1b[31m-17-17.parquet").write_bytes(b"x")
    for columns in ({"foo": [1]}, {"time_ns": ["a"], "host": [1], "anon_bytes": ["x"]}, {"time_ns": [None]}):
        pq.write_table(pa.table(columns), folder / f"{next(names)}.parquet")


@pytest.mark.parametrize("command", ["report", "watch", "compare"])
def test_whatever_lies_in_a_store(tmp_path: Path, command: str) -> None:
    """It is never waited for (a FIFO), never a crash, and what is whole is read all the same."""
    with writer(tmp_path) as out:
        out.add("cgroups", [cgroup_row(at * 10, (at + 1) * MIB) for at in range(50)])
    damaged(tmp_path)
    arguments = {"report": ["-o", "json"], "watch": ["--duration", "100ms"], "compare": [str(tmp_path), "-o", "json"]}
    done = subprocess.run(
        [sys.executable, "-m", "rtdebug", "leaks", command, str(tmp_path), *arguments[command]],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if command == "report":
        document = json.loads(done.stdout)
        assert any(series["kind"] == "anon" and series["samples"] == 50 for series in document["series"])
        assert len(document["notes"]) >= 4


def test_a_container_that_vanished_while_it_was_sampled(tmp_path: Path) -> None:
    """Its anon is null in one segment, and in another of the same store it is known of all: both count."""
    for first, gone in ((0, False), (50, True), (100, False)):
        rows = [cgroup_row(at * 10, (at + 1) * MIB) for at in range(first, first + 50)]
        if gone:
            rows.append(cgroup_row(first * 10, None, container="gone"))
        with writer(tmp_path) as out:
            out.add("cgroups", rows)
    items, _ = gather([tmp_path])
    (anon,) = [item for item in items if item.labels.kind == "anon"]
    assert anon.buckets.samples == 150
    follower = Follower([tmp_path])
    assert len(follower.poll()) == len(items)


def test_columns_that_a_file_lacks_are_null_and_new_ones_are_left_out(tmp_path: Path) -> None:
    table = pa.table({"time_ns": [1], "anon_bytes": [23], "from_the_future": [5]})
    pq.write_table(table, tmp_path / "cgroups-red-17-17.parquet")
    frame = read_series([tmp_path]).cgroups
    assert list(frame) == list(CGROUPS)
    assert frame["anon_bytes"].tolist() == [23]
    assert frame["usage_bytes"].isna().all()


def test_a_part_of_the_columns_and_of_the_time(tmp_path: Path) -> None:
    with writer(tmp_path) as out:
        out.add("cgroups", [cgroup_row(second, second) for second in (3, 1, 2, 4)])
    names = ("time_ns", "anon_bytes")
    bounds = {"since_ns": START_NS + 2 * 10**9, "until_ns": START_NS + 3 * 10**9}
    table, notes = read_table([tmp_path], "cgroups", names, **bounds)
    assert (table.column_names, table["anon_bytes"].to_pylist(), notes) == (list(names), [2, 3], ())


def test_there_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="there is no store"):
        read_series([tmp_path / "absent"])
    with pytest.raises(UsageProblem, match="nothing recorded there"):
        read_series([tmp_path])


def test_names_of_segments() -> None:
    segment = parse_segment(Path("/x/processes-web-1.prod-17-19.arrows"))
    assert segment is not None
    assert (segment.table, segment.host, segment.start_ns, segment.pid) == ("processes", "web-1.prod", 17, 19)
    assert segment.sealed_path == Path("/x/processes-web-1.prod-17-19.parquet")
    for name in ("sites-17-19.arrows", "else-h-17-19.arrows", "sites-h-17-19.arrows.tmp", "sites-h-x-19.parquet"):
        assert parse_segment(Path(name)) is None


def test_columns_of_text_are_columns() -> None:
    assert {name for table in TABLES.values() for name in table} >= TEXTS


def test_the_recorder_does_without_pandas(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from rtdebug.leaks.writer import StoreWriter\n"
        "from rtdebug.leaks.tables import TABLES\n"
        "with StoreWriter(pathlib.Path(sys.argv[1]), 'h', 1 << 20, print, flush_s=0) as out:\n"
        "    for table, columns in TABLES.items():\n"
        "        out.add(table, [tuple({'time_ns': 5, 'host': 'h\\u00e9'}.get(name) for name in columns)] * 3)\n"
        "print('pandas' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
    assert read_series([tmp_path]).cgroups["host"].tolist() == ["h\u00e9"] * 3


def test_batches_of_every_pattern_of_nulls(tmp_path: Path) -> None:
    values = [None, 1, None, -(2**62), 2**62, None, 0, 7, None, 11]
    with writer(tmp_path) as out:
        out.add("cgroups", [cgroup_row(second, value) for second, value in enumerate(values)])
    table, _ = read_table([tmp_path], "cgroups")
    assert table["anon_bytes"].to_pylist() == values
    assert table["container_name"].to_pylist() == [None] * 10
    assert table["cgroup"].to_pylist() == ["/c1"] * 10
    table.validate(full=True)
