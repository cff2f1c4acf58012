"""A recording says what the trace said: made as root, read by anybody, whole up to where it breaks off."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from rtdebug.cli import run as run_here
from rtdebug.tracing.recording import Recording, Selection
from tests.kernel.test_trace_robust import AS_NOBODY, NOBODY
from tests.kernel.tracer import Ended, Trace, environment, rtdebug, wait_until
from tests.kernel.workload import MIB, Workload, memory_cgroup, run

pytestmark = pytest.mark.kernel
ANY = Selection()


@pytest.fixture
def cgroup() -> Iterator[Path]:
    with memory_cgroup(limit_bytes=256 * MIB) as folder:
        yield folder


def some_of_everything(cgroup: Path) -> None:
    run("madvise", 23, "MADV_HUGEPAGE", cgroup=cgroup)
    run("madvise", 7, "999", cgroup=cgroup)
    run("mmap", 11, 65536, cgroup=cgroup)
    run("shm_posix", 3, 65536, "unlink", cgroup=cgroup)
    run("shm_sysv", 3, 65536, cgroup=cgroup)
    run("memfd", 3, 65536, cgroup=cgroup)
    run("fork_exec", 5, 2, 3, cgroup=cgroup)


def report_as_nobody(file: Path, folder: Path, *arguments: object) -> Ended:
    """Without root, without bcc, in another folder, and on a copy: as on a colleague's machine."""
    copy = folder / "copy of it"
    shutil.copy(file, copy)
    os.chown(copy, NOBODY, NOBODY)
    folder.chmod(0o755)
    done = subprocess.run(
        [*AS_NOBODY, sys.executable, "-m", "rtdebug", "report", copy, *map(str, arguments)],
        env=environment(RTDEBUG_BCC="/nonexistent"), cwd="/", capture_output=True, timeout=60,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr.decode())


@pytest.mark.parametrize("output", ["table", "json"])
def test_report_shows_what_the_trace_showed(cgroup, output, tmp_path) -> None:
    file = tmp_path / "recording"
    with Trace(f"cgroup:{cgroup}", "-o", output, "--record", file) as trace:
        some_of_everything(cgroup)
        ended = trace.stop()
    assert ended.returncode == 0
    report = report_as_nobody(file, tmp_path, "-o", output)
    assert (report.returncode, report.stderr) == (0, "")
    assert report.stdout == ended.stdout
    assert len(report.stdout.splitlines()) > 30


@pytest.mark.parametrize("output", ["table", "json"])
def test_report_of_an_oom_kill(output, tmp_path) -> None:
    file = tmp_path / "recording"
    with (
        memory_cgroup(limit_bytes=16 * MIB) as cgroup,
        Trace(f"cgroup:{cgroup}", "-o", output, "--record", file) as trace,
    ):
        killed = run("oom", 64 * MIB, cgroup=cgroup)
        assert killed.returncode == -signal.SIGKILL
        trace.wait_for_output("oom_kill")
        ended = trace.stop()
    report = report_as_nobody(file, tmp_path, "-o", output)
    assert (report.returncode, report.stderr) == (0, "")
    assert report.stdout == ended.stdout


@pytest.mark.parametrize("every_call", [False, True])
def test_each_call_is_in_the_recording(cgroup, every_call, tmp_path) -> None:
    """With --every-call it is the recording alone that has each one; both count them all."""
    file = tmp_path / "recording"
    options = ["--every-call"] if every_call else []
    with Trace(f"cgroup:{cgroup}", "-o", "json", "--record", file, *options) as trace:
        some_of_everything(cgroup)
        ended = trace.stop()
    report = report_as_nobody(file, tmp_path, "-o", "json")
    assert report.summary == ended.summary
    # those of the workloads are of one page, those that glibc makes for its threads are larger
    lines = report.events("madvise")
    assert sum(line.get("count", 1) for line in lines) == report.total("madvise")["count"] >= 60
    assert report.total("madvise")["failures"] == 7
    if every_call:
        assert len([line for line in lines if line["length_bytes"] == 4096]) == 60
        assert ended.events("madvise", "mmap", "munmap", "brk") == []
        live = [line for line in ended.lines if line["event"] != "summary"]
        rare = {line["event"] for line in live}
        assert live == report.events(*rare)
    else:
        assert report.stdout == ended.stdout


def test_a_selection_and_the_summary_alone(cgroup, tmp_path) -> None:
    file = tmp_path / "recording"
    with Trace(f"cgroup:{cgroup}", "--record", file, "--every-call") as trace:
        some_of_everything(cgroup)
        trace.stop()
    whole = rtdebug("report", file, "-o", "json")
    alone = rtdebug("report", file, "-o", "json", "--summary-only")
    assert alone.lines == [whole.summary]
    pid = whole.events("memfd_create")[0]["pid"]
    chosen = rtdebug("report", file, "-o", "json", "--pid", pid, "--event", "memfd_create")
    assert chosen.events("memfd_create") == whole.events("memfd_create")
    assert {line["event"] for line in chosen.lines} == {"memfd_create", "summary"}


def test_parquet_holds_what_the_lines_say(cgroup, tmp_path) -> None:
    file = tmp_path / "recording"
    with Trace(f"cgroup:{cgroup}", "--record", file, "--every-call") as trace:
        some_of_everything(cgroup)
        trace.stop()
    assert rtdebug("report", file, "-o", "parquet", "--output-file", tmp_path / "parquet").returncode == 0
    whole = rtdebug("report", file, "-o", "json")
    frames = {path.stem: pd.read_parquet(path) for path in (tmp_path / "parquet").iterdir()}
    assert frames.keys() == {line["event"] for line in whole.lines} - {"summary"}
    for event, frame in frames.items():
        lines = whole.events(event)
        assert len(frame) == len(lines)
        assert frame["pid"].tolist() == [line["pid"] for line in lines]
        assert [pd.Timestamp(line["time"]) for line in lines] == frame["time"].tolist()
    madvise = frames["madvise"]
    assert madvise["length_bytes"].tolist() == [line["length_bytes"] for line in whole.events("madvise")]
    assert madvise["advice"].tolist() == [line["advice"] for line in whole.events("madvise")]
    assert stat.S_IMODE((tmp_path / "parquet").stat().st_mode) == 0o700


def test_the_file_is_private(cgroup, tmp_path) -> None:
    file = tmp_path / "recording"
    with Trace(f"cgroup:{cgroup}", "--record", file, umask=0) as trace:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        trace.stop()
    done = subprocess.run(
        ["setpriv", f"--reuid={NOBODY}", "--clear-groups", "cat", file], capture_output=True, text=True
    )
    assert "Permission denied" in done.stderr


# --- storms ---


def test_a_storm_at_full_speed_is_recorded_whole(cgroup, tmp_path) -> None:
    file = tmp_path / "recording"
    with Trace(f"cgroup:{cgroup}", "-o", "json", "--every-call", "--record", file) as trace:
        storm = run("storm", "madvise", "3s", cgroup=cgroup)
        ended = trace.stop()
    made = int(storm.step("madvise").values["count"])
    assert made > 500_000
    assert ended.summary["lost_events"] == 0
    assert ended.total("madvise")["count"] == made
    assert recorded_calls(file) == made
    assert rtdebug("report", file, "-o", "json", "--summary-only").summary == ended.summary


def recorded_calls(file: Path) -> int:
    """Count them in the file itself, not in a summary."""
    recording = Recording.open(file)
    madvise = recording.schema.event_ids["madvise"]
    return sum(
        int((recording.calls_of(chunk, ANY)["event"] == madvise).sum())
        for chunk in recording.chunks()
        if chunk.kind.name == "CALLS"
    )


def test_what_is_lost_is_counted_to_the_last_call(cgroup, tmp_path) -> None:
    """The tracer sleeps through a storm that is larger than the ring: made = recorded + lost."""
    file = tmp_path / "recording"
    with Trace(f"cgroup:{cgroup}", "-o", "json", "--every-call", "--record", file) as trace:
        trace.process.send_signal(signal.SIGSTOP)
        storm = run("storm", "madvise", 300_007, cgroup=cgroup)
        trace.process.send_signal(signal.SIGCONT)
        trace.wait_for("events lost")
        ended = trace.stop()
    lost = ended.summary["lost_events"]
    assert storm.step("madvise").values["count"] == "300007"
    assert lost > 0
    assert ended.total("madvise")["count"] + lost == 300_007
    assert f"{lost} events lost, {lost} in all ({lost} madvise)" in ended.stderr
    assert recorded_calls(file) == 300_007 - lost
    report = rtdebug("report", file, "-o", "json", "--summary-only")
    assert report.summary == ended.summary
    assert f"{lost:,} lost" in rtdebug("report", file, "--summary-only").stdout.decode()


def test_kill_9_in_a_storm_leaves_what_was_written(cgroup, tmp_path) -> None:
    file = tmp_path / "recording"
    with (
        Trace(f"cgroup:{cgroup}", "--every-call", "--record", file) as trace,
        Workload("storm", "madvise", "60s", cgroup=cgroup) as storm,
    ):
        storm.go()
        wait_until(lambda: file.stat().st_size > 16 * MIB, "16 MiB are recorded")
        trace.stop(signal.SIGKILL)
        size_bytes = file.stat().st_size
    report = rtdebug("report", file, "-o", "json", "--summary-only")
    assert report.returncode == 0
    assert "has no end: the trace was killed" in report.stderr or "breaks off" in report.stderr
    calls = report.total("madvise")["count"]
    # all but the last batch, which is at most as large as the ring
    assert size_bytes - 64 * calls < 9 * MIB
    assert calls == recorded_calls(file)


# --- disks ---


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    disk = folder / "rtdebug-small-disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "rtdebug-test", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_full_disk_ends_the_recording_and_not_the_trace(cgroup, tmp_path) -> None:
    with small_disk(tmp_path, MIB) as disk:
        file = disk / "recording"
        with Trace(f"cgroup:{cgroup}", "-o", "json", "--every-call", "--record", file) as trace:
            storm = run("storm", "madvise", 300_007, cgroup=cgroup)
            trace.wait_for("No space left on device: the recording ends here")
            run("memfd", 3, 65536, cgroup=cgroup)
            ended = trace.stop()
        assert ended.returncode == 0
        assert ended.stderr.count("No space left on device") == 1
        assert "Recorded to" not in ended.stderr
        assert storm.returncode == 0
        assert ended.total("madvise")["count"] + ended.summary["lost_events"] == 300_007
        assert len(ended.events("memfd_create")) == 3
        report = rtdebug("report", file, "-o", "json", "--summary-only")
        assert report.returncode == 0
        assert "its disk was full" in report.stderr
        calls = report.total("madvise")["count"]
        assert 0 < 64 * calls < MIB
        assert calls == recorded_calls(file)


def test_a_disk_that_is_full_from_the_start(cgroup, tmp_path) -> None:
    with small_disk(tmp_path, MIB) as disk:
        (disk / "ballast").write_bytes(bytes(MIB))
        with Trace(f"cgroup:{cgroup}", "-o", "json", "--record", disk / "recording") as trace:
            run("madvise", 23, "MADV_HUGEPAGE", cgroup=cgroup)
            ended = trace.stop()
        assert ended.returncode == 0
        assert ended.stderr.count("No space left on device") == 1
        assert ended.total("madvise")["count"] == 23
        report = rtdebug("report", disk / "recording")
    assert report.returncode == 1
    assert "Traceback" not in report.stderr


def test_a_file_size_limit_is_a_full_disk(cgroup, tmp_path) -> None:
    file = tmp_path / "recording"
    with Trace(
        f"cgroup:{cgroup}", "-o", "json", "--every-call", "--record", file,
        preexec_fn=lambda: __import__("resource").setrlimit(__import__("resource").RLIMIT_FSIZE, (MIB, MIB)),
    ) as trace:  # fmt: skip
        run("storm", "madvise", 300_007, cgroup=cgroup)
        trace.wait_for("the recording ends here")
        ended = trace.stop()
    assert ended.returncode == 0
    assert rtdebug("report", file, "-o", "json", "--summary-only").total("madvise")["count"] > 0


# --- damaged files ---


@pytest.mark.full_speed
def test_a_real_recording_cut_anywhere(cgroup, tmp_path, capfd) -> None:
    """Every position of the first 20 kB and others at random: shown up to there, or said to be none."""
    file = tmp_path / "recording"
    with Trace(f"cgroup:{cgroup}", "--record", file, "--every-call") as trace:
        some_of_everything(cgroup)
        trace.stop()
    content = file.read_bytes()
    part = tmp_path / "part"
    places = sorted({*range(20_000), *random.Random(23).sample(range(len(content)), 300)})
    counts = []
    with part.open("w+b") as out:
        for place in places:
            out.seek(0)
            out.truncate(place)
            os.pwrite(out.fileno(), content[:place], 0)
            if place <= 20_000 and place % 97 and place not in (0, 1, 7, 8, 9):
                status, count = quick_look(part)
            else:
                status, count = run_here(["report", str(part), "-o", "json"]), 0
                said = capfd.readouterr()
                assert "internal error" not in said.err
                assert "Traceback" not in said.err
                assert said.err != ""
            assert status in (0, 1)
            counts.append(count)


def quick_look(path: Path) -> tuple[int, int]:
    """As the command does it, without printing."""
    from rtdebug.errors import RtdebugError

    try:
        return 0, sum(1 for _ in Recording.open(path).lines())
    except RtdebugError as error:
        return error.exit_code, 0


def test_a_real_recording_with_flipped_bits(cgroup, tmp_path, capfd) -> None:
    file = tmp_path / "recording"
    with Trace(f"cgroup:{cgroup}", "--record", file, "--every-call") as trace:
        some_of_everything(cgroup)
        trace.stop()
    content = file.read_bytes()
    dice = random.Random(23)
    for place in dice.sample(range(len(content)), 300):
        damaged = bytearray(content)
        damaged[place] ^= 1 << dice.randrange(8)
        file.write_bytes(damaged)
        status = run_here(["report", str(file), "--summary-only"])
        said = capfd.readouterr()
        assert status in (0, 1)
        assert said.err != ""  # it is noticed wherever it is
        assert "internal error" not in said.err


def test_what_is_no_recording(tmp_path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    (tmp_path / "link to nothing").symlink_to("nothing")
    foreign = [sys.executable, "/proc/self/environ", "/dev/zero", "/dev/null", "/proc/kcore", "/sys/kernel/btf/vmlinux"]
    for path in [*foreign, "/", "/nothing\x1b[31m", tmp_path, *tmp_path.iterdir()]:
        ended = rtdebug("report", path, timeout_s=10)
        assert ended.returncode == 1, path
        assert ended.stderr.startswith("rtdebug: ")
        assert "Traceback" not in ended.stderr
        assert "\x1b" not in ended.stderr
