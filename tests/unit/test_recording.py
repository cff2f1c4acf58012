"""Recordings: what is written is read, also after a cut at any byte, a full disk, and from other machines."""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rtdebug.errors import RtdebugError, UsageProblem
from rtdebug.tracing import frames as frames_module
from rtdebug.tracing.chunks import MAGIC, MAX_PAYLOAD_BYTES, Kind, frame
from rtdebug.tracing.entries import line_entry, place_entry, process_entry, stack_entry
from rtdebug.tracing.frames import frame_batches, lines_frame
from rtdebug.tracing.line import EventLine
from rtdebug.tracing.processes import Place, Process
from rtdebug.tracing.recording import (
    End,
    Recording,
    RecordingWriter,
    Selection,
    start_here,
)
from rtdebug.tracing.schema import Schema
from rtdebug.tracing.summary import SharedKey, SummaryBuilder
from tests.unit.records import BOX, OFFSET_NS, SCHEMA, call, counted, cut, event, slots, start

KILL = EventLine(
    OFFSET_NS + 9_000, "oom_kill", BOX.id, "web", "docker", "/x", 4177, 7, 4177, "worker", {"uid": 0}
)
END = End(OFFSET_NS + 20_000, {"madvise": 3}, {4177: 4096}, {SharedKey("posix", BOX.id, "/dev/shm/a"): None})


def never(reason: str) -> None:
    raise AssertionError(reason)


def write(path: Path, *, end: End | None = END) -> None:
    """A small recording with every kind of chunk."""
    writer = RecordingWriter(path, start(), never)
    writer.lost({})
    worker = Process(4177, 7, "worker", memcg_id=31)
    writer.entries([place_entry(31, Place("/docker/c0ffee", BOX)), process_entry(worker)])
    files = [event("shm_open", name=b"a", created=1), event("shm_unlink", name=b"b")]
    writer.events(slots(np.concatenate(files)))
    writer.calls(slots(np.concatenate([call("madvise", advice=a) for a in (4, 5, 14)]), discarded=(1,)))
    writer.aggregates(7_000, counted("munmap", count=23, length_bytes=23 * 4096))
    writer.events(slots(event("oom_kill", time_ns=9_000)))
    writer.entries([line_entry(KILL)])
    if end is not None:
        writer.lost({"madvise": 3})
        writer.end(end)
    writer.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.rec"
    write(path)
    return path


def names(recording: Recording, selection: Selection | None = None) -> list[str]:
    return [line.event for line in recording.lines(selection)]


ALL = ["shm_open", "shm_unlink", "madvise", "madvise", "munmap", "oom_kill"]


def test_what_is_written_is_read(path: Path) -> None:
    recording = Recording.open(path)
    assert recording.start == start()
    lines = list(recording.lines())
    assert [line.event for line in lines] == ALL
    assert {line.container_name for line in lines} == {"web"}
    assert [line.fields["advice"] for line in lines[2:4]] == ["MADV_DONTNEED", "MADV_HUGEPAGE"]
    assert lines[4].fields["count"] == 23
    assert lines[5] == KILL, "the report that user space made, not the kernel's record as well"
    assert (recording.problem, recording.end, recording.lost) == (None, END, {"madvise": 3})
    assert recording.last_ns == OFFSET_NS + 9_000
    assert names(recording) == ALL, "it can be read again"


def test_selection(path: Path) -> None:
    recording = Recording.open(path)
    two = Selection(frozenset({"madvise", "shm_open"}))
    assert names(recording, two) == ["shm_open", "madvise", "madvise"]
    assert names(recording, Selection(frozenset({"oom_kill"}))) == ["oom_kill"]
    assert names(recording, Selection(pid=4178)) == []
    assert names(recording, Selection(pid=4177)) == ALL


def test_a_kill_without_its_report_is_given_as_the_kernel_said_it(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "a", start(), never)
    writer.events(slots(event("oom_kill", anon_pages=5)))
    writer.close()
    (line,) = Recording.open(tmp_path / "a").lines()
    assert line.fields["anon_rss_bytes"] == 5 * 4096


def test_a_cut_at_any_byte_leaves_the_whole_chunks(path: Path, tmp_path: Path) -> None:
    whole, short = path.read_bytes(), tmp_path / "short"
    before = -1
    first_end = len(MAGIC) + len(frame(Kind.START, b"")) + int.from_bytes(whole[12:16], "little")
    for size in range(len(whole)):
        short.write_bytes(whole[:size])
        if size < first_end:
            with pytest.raises(RtdebugError):
                Recording.open(short)
            continue
        recording = Recording.open(short)
        seen = names(recording)
        assert len(seen) >= before
        before = len(seen)
        assert set(seen) <= set(ALL)
        assert recording.end is None
    assert before == len(ALL)


def test_a_cut_is_told_with_its_place(path: Path) -> None:
    size = path.stat().st_size
    cut(path, size - 3)
    recording = Recording.open(path)
    assert names(recording) == ALL
    assert recording.problem is not None
    assert "breaks off at byte" in recording.problem
    assert recording.lost == {"madvise": 3}


def test_a_killed_trace_has_no_end_and_no_problem(tmp_path: Path) -> None:
    write(tmp_path / "a", end=None)
    recording = Recording.open(tmp_path / "a")
    assert names(recording) == ALL
    assert (recording.problem, recording.end, recording.lost) == (None, None, {})


def test_a_flipped_bit_stops_the_reading(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    at = raw.rindex(b"CALL") + 40
    raw[at] ^= 1
    path.write_bytes(raw)
    recording = Recording.open(path)
    assert names(recording) == ["shm_open", "shm_unlink"]
    assert "damaged at byte" in str(recording.problem)


def test_a_length_from_hell_is_not_believed(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"CALL" + (MAX_PAYLOAD_BYTES + 1).to_bytes(4, "little") + bytes(4))
    recording = Recording.open(path)
    assert names(recording) == ALL
    assert "damaged" in str(recording.problem)


def test_kinds_of_a_newer_version_are_skipped(path: Path) -> None:
    head = struct.pack("<4sI", b"NEW!", 6)
    with path.open("ab") as file:
        file.write(head + zlib.crc32(b"future", zlib.crc32(head)).to_bytes(4, "little") + b"future")
    recording = Recording.open(path)
    assert names(recording) == ALL
    assert recording.problem is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a recording"),
        (b"RTD", "not a recording"),
        (b"\x7fELF" + bytes(100), "not a recording"),
        (MAGIC[:-1] + b"\x09", "not a recording"),
        (MAGIC, "breaks off"),
        (MAGIC + frame(Kind.LOST, b"{}") + b"{}", "breaks off"),
        (MAGIC + frame(Kind.START, b"{}") + b"{}", "no trace writes"),
        (MAGIC + frame(Kind.START, b"[1]") + b"[1]", "no trace writes"),
        (MAGIC + frame(Kind.START, b"\xff") + b"\xff", "no trace writes"),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(RtdebugError, match=words) as caught:
        Recording.open(tmp_path / "x")
    assert caught.value.hint


def test_a_newer_framing_is_named_so(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(MAGIC[:-1] + b"\x09")
    with pytest.raises(RtdebugError) as caught:
        Recording.open(tmp_path / "x")
    assert "newer rtdebug" in caught.value.hint


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("missing", ".", "fifo"):
        with pytest.raises(RtdebugError):
            Recording.open(tmp_path / name)


@pytest.mark.parametrize(
    "payload",
    [b"{", b'{"process": 5}', b'{"line": {"fields": 3}}', b'{"stack": {"pid": 1}}', b"3", b"[" * 10**5],
)
def test_whole_chunks_of_nonsense_are_an_error(path: Path, payload: bytes) -> None:
    with path.open("ab") as file:
        file.write(frame(Kind.ENTRIES, payload) + payload)
    with pytest.raises(RtdebugError, match="no trace writes"):
        list(Recording.open(path).lines())


@pytest.mark.parametrize("kind", [Kind.CALLS, Kind.EVENTS, Kind.AGGREGATES, Kind.END, Kind.LOST])
def test_chunks_of_no_whole_record_are_an_error(path: Path, kind: Kind) -> None:
    with path.open("ab") as file:
        file.write(frame(kind, b"[]x") + b"[]x")
    with pytest.raises(RtdebugError, match="no trace writes"):
        list(Recording.open(path).lines())


def test_a_recording_of_another_machine_is_read(tmp_path: Path) -> None:
    schema = Schema.parse(SCHEMA.text, "big")
    writer = RecordingWriter(tmp_path / "a", start(byte_order="big", machine="s390x"), never)
    native = slots(call("madvise", advice=9, length_bytes=12345))
    writer.calls(native.astype(schema.call_slot))
    writer.close()
    (line,) = Recording.open(tmp_path / "a").lines()
    assert (line.fields["advice"], line.fields["length_bytes"], line.pid) == ("MADV_REMOVE", 12345, 4177)


def test_an_old_recording_is_read_with_its_own_layout(tmp_path: Path) -> None:
    text = SCHEMA.text.replace("EVENT_MADVISE = 5", "EVENT_MADVISE = 9")
    writer = RecordingWriter(tmp_path / "a", start(events_h=text), never)
    record = call("madvise", advice=9)
    record["event"] = 9
    writer.calls(slots(record))
    writer.close()
    assert names(Recording.open(tmp_path / "a")) == ["madvise"]


# Writing


def test_the_file_is_private_and_never_overwritten(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageProblem, match="exists") as caught:
        RecordingWriter(path, start(), never)
    assert "--force" in caught.value.hint
    assert names(Recording.open(path)) == ALL


def test_force_replaces_the_file_but_not_what_a_link_points_to(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(UsageProblem):
        RecordingWriter(link, start(), never)
    RecordingWriter(link, start(), never, force=True).close()
    assert names(Recording.open(path)) == ALL
    assert names(Recording.open(link)) == []
    assert not link.is_symlink()


def test_a_file_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RtdebugError, match="cannot write"):
        RecordingWriter(tmp_path / "no" / "folder", start(), never)


FULL_DISK = """
import sys
from pathlib import Path
import numpy as np
from rtdebug.tracing.recording import RecordingWriter
from tests.unit.records import call, slots, start
reasons = []
writer = RecordingWriter(Path(sys.argv[1]), start(), reasons.append)
chunk = slots(np.concatenate([call("madvise")] * 100))
for _ in range(20):
    writer.calls(chunk)
writer.lost({})
writer.close()
print(len(reasons), writer.stopped, reasons[0])
"""


def test_a_full_disk_keeps_what_was_written(tmp_path: Path) -> None:
    """A file size limit stands for the full disk: the kernel writes a part, then refuses."""
    path = tmp_path / "a"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, path], capture_output=True, text=True, check=True, preexec_fn=limit
    )
    assert done.stdout.startswith("1 True ")
    assert "File too large" in done.stdout
    recording = Recording.open(path)
    count = len(names(recording))
    assert count > 0
    assert count % 100 == 0
    assert recording.problem is None, "cut back to the last whole chunk"
    assert 50_000 - path.stat().st_size <= 6412


def test_a_chunk_too_large_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="too large"):
        frame(Kind.CALLS, bytes(MAX_PAYLOAD_BYTES + 1))


def test_many_entries_make_several_chunks(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "a", start(), never)
    writer.entries(stack_entry(1, number, ["x" * 1000]) for number in range(1000))
    writer.close()
    chunks = list(Recording.open(tmp_path / "a").chunks())
    assert len(chunks) > 2
    assert sum(len(chunk.payload.split(b"\n")) for chunk in chunks) == 1000


def test_start_here_describes_this_host(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("b007\n")
    given = {"target": BOX, "cgroup_version": 1, "options": {}, "clock_offset_ns": 7}
    here = start_here(["x"], SCHEMA, **given, proc=tmp_path)
    assert (here.boot_id, here.page_size_bytes) == ("b007", os.sysconf("SC_PAGE_SIZE"))
    assert here.machine == os.uname().machine
    assert here.clock_offset_ns == 7
    assert start_here([], SCHEMA, **given, proc=Path("/none")).boot_id is None


# Summaries and frames


def test_totals_add_up_to_the_same_summary(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    array = np.concatenate([random_calls(rng, name, 300) for name in CALLS])
    rng.shuffle(array)
    writer = RecordingWriter(tmp_path / "a", start(), never)
    writer.calls(slots(array, discarded=(3, 5)))
    writer.events(slots(event("shm_open", name=b"x", created=1)))
    writer.close()
    recording = Recording.open(tmp_path / "a")
    for selection in (Selection(), Selection(pid=4001), Selection(frozenset({"mmap", "brk"}))):
        one_by_one, added_up = SummaryBuilder(), SummaryBuilder()
        for line in recording.lines(selection):
            one_by_one.add(line)
        fewer = list(recording.totals(selection))
        for line in fewer:
            added_up.add(line)
        assert added_up.finish(0, 1, 0) == one_by_one.finish(0, 1, 0)
        assert 0 < len(fewer) < len(list(recording.lines(selection)))


CALLS = ("mmap", "munmap", "mremap", "brk", "madvise", "process_madvise")


def random_calls(rng: np.random.Generator, name: str, count: int) -> np.ndarray:
    array = np.concatenate([call(name)] * count)
    array["time_ns"] = rng.integers(1, 10_000, count)
    array["address"] = rng.integers(0, 1 << 47, count) * rng.integers(0, 2, count)
    array["length_bytes"] = rng.integers(0, 1 << 40, count)
    good, bad = rng.integers(0, 1 << 40, count), -rng.integers(1, 5, count)
    array["ret"] = np.where(rng.random(count) < 0.3, bad, good)
    array["pid"] = rng.integers(4000, 4003, count)
    array["flags"] = rng.choice([1, 2, 0x22, 0x8022, 0x4_0022, 0xFFFF_FFFF], count)
    array["prot"] = rng.integers(0, 4, count)
    array["advice"] = rng.integers(0, 30, count)
    array["old_length_pages"] = rng.integers(0, 1000, count)
    array["stack_id"] = rng.integers(-1, 2, count)
    return array


def write_random(path: Path) -> None:
    rng = np.random.default_rng(11)
    writer = RecordingWriter(path, start(), never)
    writer.entries(
        [
            place_entry(31, Place("/docker/c0ffee", replace(BOX, name="w\udcff\x1b"))),
            process_entry(Process(4000, 7, "first", memcg_id=31)),
            process_entry(Process(4000, 7, "second", memcg_id=31), since_ns=5_000),
            process_entry(Process(4001, None, "bare")),
            stack_entry(4000, 0, ["main+0x1 (app)", "_start+0x2a (app)"]),
        ]
    )
    for name in CALLS:
        writer.calls(slots(random_calls(rng, name, 50)))
        writer.calls(slots(random_calls(rng, name, 40), discarded=(0,)))
    huge = call("madvise", length_bytes=(1 << 64) - 1, address=(1 << 64) - 4096, ret=-22)
    writer.calls(slots(huge))
    writer.events(slots(np.concatenate([event("sigbus"), event("sigbus", tmpfs=1, size_pages=4)])))
    writer.events(slots(event("shm_open", name=b"\xff\x1b", created=1)))
    writer.aggregates(7_000, counted("madvise", count=23, length_bytes=23 * 4096))
    writer.entries([line_entry(replace(KILL, fields={"memcg_levels": [{"cgroup": "/x"}], "uid": 0}))])
    writer.end(END)
    writer.close()


def test_frames_hold_what_the_lines_say(tmp_path: Path) -> None:
    """The frames of calls are computed from the records at once: the lines are the second witness."""
    write_random(tmp_path / "a")
    recording = Recording.open(tmp_path / "a")
    frames = recording.frames()
    by_name: dict[str, list[EventLine]] = {}
    for line in recording.lines():
        name = f"{line.event}_aggregated" if "count" in line.fields else line.event
        by_name.setdefault(name, []).append(line)
    assert set(frames) == set(by_name) == {*CALLS, "sigbus", "shm_open", "madvise_aggregated", "oom_kill"}
    for name, lines in by_name.items():
        pd.testing.assert_frame_equal(frames[name], lines_frame(lines), check_categorical=False)
        kinds = frames[name].dtypes
        assert not [key for key in kinds.index if kinds[key].kind == "f"], "an integer became a float"


def test_frames_are_exact(tmp_path: Path) -> None:
    write_random(tmp_path / "a")
    frames = Recording.open(tmp_path / "a").frames()
    last = frames["madvise"].iloc[-1]
    assert (last["length_bytes"], last["address"]) == ((1 << 64) - 1, (1 << 64) - 4096)
    assert (last["ret"], last["errno"]) == (-22, "EINVAL")
    assert last["time"] == pd.Timestamp(OFFSET_NS + 5_000, unit="ns", tz="UTC")
    assert isinstance(frames["madvise"]["advice"].dtype, pd.CategoricalDtype)
    assert frames["shm_open"]["path"][0] == "/dev/shm/\\xff\x1b"
    assert json.loads(frames["oom_kill"]["memcg_levels"][0]) == [{"cgroup": "/x"}]
    first = frames["mmap"][frames["mmap"]["comm"] == "first"]["time"]
    assert first.max() < pd.Timestamp(OFFSET_NS + 5_000, unit="ns", tz="UTC")
    assert frames["mmap"]["stack"].dropna().unique().tolist() == ['["main+0x1 (app)","_start+0x2a (app)"]']


def test_frames_of_a_selection(tmp_path: Path) -> None:
    write_random(tmp_path / "a")
    frames = Recording.open(tmp_path / "a").frames(Selection(frozenset({"mmap", "oom_kill"}), 4000))
    assert list(frames) == ["mmap"]
    assert set(frames["mmap"]["pid"]) == {4000}


def test_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "LINES_AT_ONCE", 4)
    writer = RecordingWriter(tmp_path / "a", start(), never)
    writer.events(slots(np.concatenate([event("shm_open", name=b"%d" % number) for number in range(10)])))
    writer.close()
    batches = list(frame_batches(Recording.open(tmp_path / "a")))
    assert [len(batch) for _, batch in batches] == [4, 4, 2]
    joined = Recording.open(tmp_path / "a").frames()["shm_open"]
    assert joined["path"].tolist() == [f"/dev/shm/{number}" for number in range(10)]
    assert list(joined.index) == list(range(10))


def test_a_trace_that_never_began_leaves_no_file(tmp_path):
    writer = RecordingWriter(tmp_path / "a", start(), never)
    writer.discard()
    writer.lost({})  # whatever comes after is nothing
    assert list(tmp_path.iterdir()) == []


def test_totals_keep_the_stacks_apart(tmp_path: Path) -> None:
    named = [stack_entry(4177, number, [f"f{number} (a.out)"]) for number in (0, 1)]
    made = [call("mmap", length_bytes=4096 * (abs(number) + 1), stack_id=number) for number in (0, 1, 1, -1, -14)]
    writer = RecordingWriter(tmp_path / "a", start(), never)
    writer.entries(named)
    writer.calls(slots(np.concatenate(made)))
    writer.close()
    recording = Recording.open(tmp_path / "a")
    found = []
    for lines in (recording.lines(), recording.totals()):
        builder = SummaryBuilder()
        for line in lines:
            builder.add(line)
        found.append(builder.finish(0, 1, 0))
    assert found[0] == found[1]
    assert [(each.stack.frames, each.totals.count, each.totals.length_bytes) for each in found[0].stacks] == [
        (("f1 (a.out)",), 2, 16384),
        (("f0 (a.out)",), 1, 4096),
    ]
