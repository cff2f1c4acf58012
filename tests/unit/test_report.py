"""`rtdebug report`: every form of output, and every kind of file it may be given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rtdebug.cli import run
from rtdebug.errors import HostUnable
from rtdebug.render import parquet
from rtdebug.tracing.entries import place_entry, process_entry
from rtdebug.tracing.options import EVENTS
from rtdebug.tracing.processes import Place, Process
from rtdebug.tracing.recording import End, RecordingWriter
from rtdebug.tracing.summary import SharedKey
from tests.unit.records import BOX, OFFSET_NS, call, cut, event, slots, start

HOSTILE = b"a\x1b[2J\n\xff"


def write(path: Path, *, ended: bool = True) -> None:
    writer = RecordingWriter(path, start(), pytest.fail)
    writer.lost({})
    worker = Process(4177, 7, "worker", memcg_id=31)
    writer.entries([place_entry(31, Place("/docker/c0ffee", BOX)), process_entry(worker)])
    writer.events(slots(event("shm_open", name=HOSTILE, flags=0o102, created=1, inode_id=5)))
    advised = [call("madvise", advice=4, length_bytes=4096)] * 23 + [call("madvise", advice=14, ret=-22)]
    writer.calls(slots(np.concatenate(advised)))
    writer.calls(slots(call("mmap", pid=4200, tid=4200, length_bytes=8192, flags=0x22, prot=3)))
    if ended:
        linked = {SharedKey("posix", BOX.id, "/dev/shm/old"): 65536}
        writer.end(End(OFFSET_NS + 1_000_001_000, {"madvise": 5, "mmap": 2}, {4177: 12288}, linked))
    writer.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "a.rec")
    return tmp_path / "a.rec"


def report(capsys: pytest.CaptureFixture[str], *args: str | Path, code: int = 0) -> tuple[str, str]:
    assert run(["report", *map(str, args)]) == code, capsys.readouterr().err
    return capsys.readouterr()


def objects(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_table(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = report(capsys, path)
    assert "MADV_DONTNEED" in out
    assert "26 events in 1" in out
    assert "7 lost" in out
    assert "\x1b" not in out
    assert r"/dev/shm/a\x1b[2J\n\xff" in out
    assert err == ""


def test_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = report(capsys, path, "-o", "json")
    *lines, summary = objects(out)
    assert [line["event"] for line in lines] == ["shm_open"] + ["madvise"] * 24 + ["mmap"]
    assert lines[1] == {
        "time": "2023-11-14T22:13:20.000005000Z",
        "event": "madvise",
        "container_id": BOX.id,
        "container_name": "web",
        "runtime": "docker",
        "cgroup": "/docker/c0ffee",
        "pid": 4177,
        "ns_pid": 7,
        "tid": 4178,
        "comm": "worker",
        "address": 0,
        "length_bytes": 4096,
        "advice": "MADV_DONTNEED",
        "ret": 0,
        "errno": None,
    }
    assert lines[24]["errno"] == "EINVAL"
    assert lines[25]["comm"] is None
    assert (summary["event"], summary["events"], summary["lost_events"]) == ("summary", 26, 7)
    assert summary["duration_ns"] == 1_000_000_000
    assert err == ""


def test_summary_only_says_the_same_as_the_whole(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = objects(report(capsys, path, "-o", "json")[0])[-1]
    (alone,) = objects(report(capsys, path, "-o", "json", "--summary-only")[0])
    assert alone == whole
    assert "MADV_HUGEPAGE" in report(capsys, path, "--summary-only")[0]


def test_what_was_left_at_the_end(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = objects(report(capsys, path, "-o", "json")[0])[-1]
    worker = next(process for process in summary["processes"] if process["pid"] == 4177)
    assert worker["still_mapped_bytes"] == 12288
    assert len(summary["shared_memory"]) == 2
    selected = objects(report(capsys, path, "-o", "json", "--pid", "4200")[0])[-1]
    assert selected["shared_memory"] == [], "what other processes left is not theirs"


def test_selection(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = report(capsys, path, "-o", "json", "--event", "mmap", "--event", "shm_open")
    assert [line["event"] for line in objects(out)] == ["shm_open", "mmap", "summary"]
    out, _ = report(capsys, path, "-o", "json", "--pid", "4200")
    assert [line["event"] for line in objects(out)] == ["mmap", "summary"]
    out, _ = report(capsys, path, "-o", "json", "--pid", "1")
    assert [line["event"] for line in objects(out)] == ["summary"]


def test_an_oom_kill_is_drawn_as_the_trace_drew_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = RecordingWriter(tmp_path / "a", start(), pytest.fail)
    writer.events(slots(event("oom_kill", anon_pages=512, constraint=3)))
    writer.end(End(OFFSET_NS + 2_000, {}))
    writer.close()
    out, _ = report(capsys, tmp_path / "a", "--event", "oom_kill")
    assert "oom_kill" in out
    assert len(out.splitlines()) > 10
    assert "2 MiB" in out or "2.0 MiB" in out


def test_parquet(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    folder = tmp_path / "out"
    _, err = report(capsys, path, "-o", "parquet", "--output-file", folder)
    assert "26 rows in 3 files" in err
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(file.name for file in folder.iterdir()) == [
        "madvise.parquet",
        "mmap.parquet",
        "shm_open.parquet",
    ]
    frame = pd.read_parquet(folder / "madvise.parquet")
    assert frame["advice"].value_counts().to_dict() == {"MADV_DONTNEED": 23, "MADV_HUGEPAGE": 1}
    assert str(frame["length_bytes"].dtype) == "UInt64"
    assert frame["time"][0] == pd.Timestamp(OFFSET_NS + 5_000, unit="ns", tz="UTC")
    assert pd.read_parquet(folder / "shm_open.parquet")["path"][0] == "/dev/shm/a\x1b[2J\n\\xff"


def test_parquet_of_several_batches_keeps_its_types(tmp_path: Path) -> None:
    """Each batch has categories of its own, and the first may lack values that a later one has."""
    pytest.importorskip("pyarrow")
    from rtdebug.tracing.recording import Recording

    writer = RecordingWriter(tmp_path / "a", start(), pytest.fail)
    writer.calls(slots(call("mmap", ret=-12, flags=2)))
    writer.calls(slots(np.concatenate([call("mmap", address=flags, flags=flags) for flags in range(200)])))
    writer.close()
    recording = Recording.open(tmp_path / "a")
    from rtdebug.tracing.frames import frame_batches

    assert parquet.write_parquet(tmp_path / "out", frame_batches(recording)) == {"mmap": 201}
    read = pd.read_parquet(tmp_path / "out" / "mmap.parquet")
    pd.testing.assert_frame_equal(read, recording.frames()["mmap"], check_categorical=False)
    assert list(read.dtypes.map(str)) == list(recording.frames()["mmap"].dtypes.map(str))


def test_parquet_wants_a_new_folder(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    _, err = report(capsys, path, "-o", "parquet", "--output-file", tmp_path, code=2)
    assert "is not empty" in err
    _, err = report(capsys, path, "-o", "parquet", "--output-file", path, code=2)
    assert "is no folder" in err
    _, err = report(capsys, path, "-o", "parquet", "--output-file", tmp_path / "no" / "such", code=1)
    assert "cannot make" in err


def test_without_pyarrow_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(HostUnable) as caught:
        parquet.require_pyarrow()
    assert "pip install" in caught.value.hint


@pytest.mark.parametrize(
    "args",
    ["-o parquet", "--output-file x", "-o json --output-file x", "-o parquet --output-file x --summary-only"],
)
def test_options_that_do_not_go_together(path: Path, args: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = report(capsys, path, *args.split(), code=2)
    assert "hint:" in err


def test_a_truncated_recording_is_shown_and_said_so(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut(path, path.stat().st_size - 3)
    out, err = report(capsys, path, "-o", "json")
    *lines, summary = objects(out)
    assert len(lines) == 26
    assert summary["lost_events"] == 0
    assert "breaks off at byte" in err
    assert "what comes before is shown" in err


def test_a_killed_trace_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "k.rec", ended=False)
    _, err = report(capsys, tmp_path / "k.rec")
    assert "k.rec has no end" in err


def test_records_of_unknown_kinds_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = RecordingWriter(tmp_path / "a", start(), pytest.fail)
    record = call("mmap")
    record["event"] = 15
    writer.calls(slots(np.concatenate([record, record])))
    writer.end(End(OFFSET_NS + 2_000, {}))
    writer.close()
    for more in ([], ["--summary-only"]):
        _, err = report(capsys, tmp_path / "a", *more)
        assert "2 records are of kinds" in err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("foreign", b"\x7fELF....", "is not a recording"),
        ("empty", b"", "is not a recording"),
        ("none", None, "cannot read"),
    ],
)
def test_foreign_files(
    tmp_path: Path, name: str, content: bytes | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    out, err = report(capsys, tmp_path / name, code=1)
    assert words in err
    assert out == ""
    assert "Traceback" not in err


def test_a_hostile_file_name_is_made_safe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = tmp_path / "\x1b[31mx\n"
    write(name, ended=False)
    _, err = report(capsys, name)
    assert "\x1b" not in err
    assert err.count("\n") == 1


def test_a_reader_that_goes_away_is_no_error(path: Path) -> None:
    read, written = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "rtdebug", "report", str(path), "-o", "json"]
    done = subprocess.run(command, stdout=written, stderr=subprocess.PIPE, check=False)
    os.close(written)
    assert (done.returncode, done.stderr) == (0, b"")


def test_report_needs_neither_pandas_nor_cffi_to_say_how_it_is_used() -> None:
    code = (
        "import sys; from rtdebug.cli import run; run(['report', '--help'])\n"
        "assert not {'pandas', 'numpy', 'cffi', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("options", "args", "traced", "creation"),
    [
        pytest.param({}, [], len(EVENTS), "not_seen", id="all was recorded"),
        pytest.param({"events": ["sigbus", "mmap"]}, [], 2, "not_traced", id="recorded without creations"),
        pytest.param({"pid": 4177}, [], len(EVENTS), "not_traced", id="recorded of one process"),
        pytest.param({"comm": "worker"}, [], len(EVENTS), "not_traced", id="recorded of one comm"),
        pytest.param({}, ["--event", "mmap"], 1, None, id="mmap is selected"),
        pytest.param({"events": ["mmap", "brk"]}, ["--event", "mmap", "--event", "sigbus"], 1, None, id="of both"),
    ],
)
def test_the_summary_says_nothing_of_what_was_not_recorded(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, object],
    args: list[str],
    traced: int,
    creation: str | None,
) -> None:
    writer = RecordingWriter(tmp_path / "a", start(options=options), pytest.fail)
    linked = {SharedKey("posix", BOX.id, "/dev/shm/old"): 65536}
    writer.end(End(OFFSET_NS + 1_000_001_000, {}, {}, linked))
    writer.close()
    out, _ = report(capsys, tmp_path / "a", "-o", "json", *args)
    (summary,) = objects(out)
    assert len(summary["traced_events"]) == traced
    assert [found["creation"] for found in summary["shared_memory"]] == ([creation] if creation else [])
