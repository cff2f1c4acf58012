"""`rtdebug trace` in bad company: what it says, how it exits, and that nothing of it stays attached.

Every test is followed by the search for leftovers of conftest.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.tracer import Ended, Trace, environment, loaded_programs, rtdebug, shell, wait_until
from tests.kernel.workload import MIB, Workload, memory_cgroup, run

pytestmark = pytest.mark.kernel

NOBODY = 65534
# The interpreter may lie in root's home: reading is all that this nobody may do more than others.
AS_NOBODY = [
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search",
    "--bounding-set=-all,+dac_read_search", "env", "HOME=/nonexistent",
]  # fmt: skip
# Before Linux 5.11 BPF memory counts against RLIMIT_MEMLOCK, which this one may raise.
NO_FILES = "-all,+sys_resource"
RTDEBUG = [sys.executable, "-m", "rtdebug"]


@pytest.fixture
def cgroup() -> Iterator[Path]:
    with memory_cgroup(limit_bytes=256 * MIB) as folder:
        yield folder


@pytest.fixture
def empty_cache(tmp_path) -> dict[str, str]:
    return {"RTDEBUG_CACHE": str(tmp_path / "cache")}


def fails(ended: Ended, status: int, *words: str) -> None:
    """One message and a hint, the status of the contract, never a traceback."""
    assert ended.returncode == status, ended.stderr
    assert ended.stdout == b""
    assert "Traceback" not in ended.stderr
    assert "internal error" not in ended.stderr
    errors = [line for line in ended.stderr.splitlines() if line.startswith("rtdebug: ")]
    assert errors, ended.stderr
    assert "\nhint: " in ended.stderr
    for word in words:
        assert word in ended.stderr, ended.stderr


def as_command(command: list[str], *arguments: object, **more: str) -> Ended:
    done = subprocess.run(
        [*command, *RTDEBUG, *map(str, arguments)], env=environment(**more), capture_output=True, timeout=60
    )
    return Ended(done.returncode, done.stdout, done.stderr.decode())


# --- what the host lacks ---


@pytest.mark.parametrize("target", ["--all", "pid:1", "no-such-container"])
def test_not_root(target) -> None:
    ended = as_command(AS_NOBODY, "trace", target, "--duration", "1s")
    fails(ended, 3)
    assert ended.stderr == "rtdebug: tracing needs root\nhint: run as root (sudo rtdebug ...)\n"


def test_not_root_and_no_bcc_are_told_at_once() -> None:
    ended = as_command(AS_NOBODY, "trace", "--all", "--duration", "1s", RTDEBUG_BCC="/nonexistent")
    also = "needs root; also missing: bcc\nhint: run as root (sudo rtdebug ...)"
    fails(ended, 3, also, "bcc: apt-get install python3-bpfcc")


@pytest.mark.parametrize("dropped", ["bpf", "perfmon"])
def test_root_without_a_capability(dropped) -> None:
    kept = "perfmon" if dropped == "bpf" else "bpf"
    inside = ["setpriv", f"--bounding-set={NO_FILES},+{kept}", "--inh-caps=-all"]
    ended = as_command(inside, "trace", "--all")
    fails(ended, 3, f"tracing needs CAP_{dropped.upper()}\n", "docker run --privileged")
    assert "boot" not in ended.stderr  # no other kernel is needed


@pytest.mark.parametrize("command", [["ps"], ["trace", "pid:{pid}", "--duration", "100ms"]])
def test_capabilities_without_those_over_files(command) -> None:
    """Root that may not enter the folders of runtimes: less is known, nothing breaks."""
    inside = ["setpriv", f"--bounding-set={NO_FILES},+bpf,+perfmon", "--inh-caps=-all"]
    ended = as_command(inside, *(word.format(pid=os.getpid()) for word in command))
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr


def test_no_bcc_and_nothing_compiled(empty_cache) -> None:
    fails(rtdebug("trace", "--all", env=environment(RTDEBUG_BCC="/nonexistent", **empty_cache)), 3, "bcc: apt-get")


LIBBPF = "$(realpath $(ldconfig -p | sed -n 's/.*libbpf.so.1 .*=> //p'))"
HIDE = {
    "no BTF": ("mount --bind $(mktemp -d) /sys/kernel/btf", "kernel_types: "),
    "no libbpf": (f"for file in {LIBBPF}; do mount --bind /dev/null $file; done", "libbpf"),
}


@pytest.mark.parametrize(("hide", "word"), HIDE.values(), ids=HIDE)
def test_what_compiling_needs_is_missing(hide, word, tmp_path, empty_cache) -> None:
    inside = ["unshare", "--mount", "sh", "-c", f'export TMPDIR={tmp_path}; {hide}; exec "$@"', "sh"]
    fails(as_command(inside, "trace", "--all", "--duration", "1s", **empty_cache), 3, word)


def test_tracefs_is_not_needed(empty_cache) -> None:
    """Here neither tracefs nor debugfs is mounted for it; it compiles, loads and attaches without them."""
    inside = ["unshare", "--mount", "sh", "-c", 'umount -aft tracefs,debugfs; exec "$@"', "sh"]
    ended = as_command(inside, "trace", "--all", "--event", "oom_kill", "--duration", "100ms", **empty_cache)
    assert ended.returncode == 0, ended.stderr
    assert "Tracing " in ended.stderr


@pytest.mark.parametrize("cache", ["/dev/null", "/proc", "/sys/kernel/btf/vmlinux"])
def test_a_cache_that_cannot_be_written(cache) -> None:
    env = environment(RTDEBUG_CACHE=cache)
    ended = rtdebug("trace", "--all", "--event", "oom_kill", "--duration", "100ms", env=env)
    assert ended.returncode == 0, ended.stderr


def test_a_damaged_cache_is_made_again(tmp_path, empty_cache) -> None:
    arguments = ("trace", "--all", "--event", "oom_kill", "--duration", "100ms")
    assert rtdebug(*arguments, env=environment(**empty_cache)).returncode == 0
    (program,) = (tmp_path / "cache").iterdir()
    content = program.read_bytes()
    for damaged in (b"", content[: len(content) // 2], b"[]", os.urandom(1000)):
        program.write_bytes(damaged)
        ended = rtdebug(*arguments, env=environment(**empty_cache))
        assert ended.returncode == 0, ended.stderr
    assert program.read_bytes() == content


def test_two_first_runs_at_once_fill_one_cache(tmp_path, empty_cache) -> None:
    env = environment(**empty_cache)
    with (
        Trace("--all", "--event", "oom_kill", env=env, attached=False) as one,
        Trace("--all", "--event", "oom_kill", env=env, attached=False) as two,
    ):
        for trace in (one, two):
            trace.wait_for("Tracing ")
        assert [one.stop().returncode, two.stop().returncode] == [0, 0]
    assert len(list((tmp_path / "cache").iterdir())) == 1


# --- what the user gets wrong ---


WRONG = {
    "no target": (["trace"], 2, "give one TARGET"),
    "target and --all": (["trace", "web", "--all"], 2, "give one TARGET"),
    "--follow and --all": (["trace", "--all", "--follow"], 2, "--follow"),
    "empty target": (["trace", ""], 2, "names nothing"),
    "no such container": (["trace", "no-such-container"], 4, "no container 'no-such-container'"),
    "hostile name": (["trace", "x\x1b[31m\n\u202e\udcff"], 4, r"\x1b[31m\n"),
    "no such runtime": (["trace", "docker:no-such-container"], 4, "no container"),
    "no such pod": (["trace", "pod/default/no-such-pod"], 4, "pod"),
    "no such cgroup": (["trace", "cgroup:/no-such-cgroup"], 4, "no memory cgroup"),
    "cgroup with ..": (["trace", "cgroup:/../../etc"], 2, "without '..'"),
    "no such process": (["trace", "pid:4194305"], 4, "no process 4194305"),
    "pid 0": (["trace", "pid:0"], 2, "not a process id"),
    "pid is text": (["trace", "pid:x"], 2, "not a process id"),
    "--pid of nobody": (["trace", "--all", "--pid", "4194305"], 4, "no process 4194305"),
    "--pid elsewhere": (["trace", "cgroup:{cgroup}", "--pid", "1"], 4, "process 1 is not in"),
    "no duration": (["trace", "--all", "--duration", "soon"], 2, "no duration"),
    "no time": (["trace", "--all", "--duration", "0"], 2, "no duration"),
    "endless duration": (["trace", "--all", "--duration", "9" * 400], 2, "out of range"),
    "no interval": (["trace", "--all", "--interval", "0.0000001s"], 2, "out of range"),
    "no size": (["trace", "--all", "--min-bytes", "many"], 2, "no size"),
    "size of nothing": (["trace", "--all", "--min-bytes", "99999999T"], 2, "more than any machine has"),
    "no such event": (["trace", "--all", "--event", "oom"], 2, "'oom'"),
    "no such runc root": (["trace", "x", "--runc-root", "/no-such-root"], 2, "--runc-root"),
    "--record into nothing": (["trace", "--all", "--record", "/no-such-folder/x"], 1, "cannot write /no-such-folder/x"),
    "--record onto a folder": (["trace", "--all", "--record", "/tmp"], 2, "/tmp"),
    "--record onto a file": (["trace", "--all", "--record", "{file}"], 2, "--force"),
    "--record onto a device": (["trace", "--all", "--record", "/dev/full", "--force"], 2, "/dev/full"),
    "--record in /proc": (["trace", "--all", "--record", "/proc/x"], 1, "cannot write /proc/x"),
}


@pytest.mark.parametrize(("command", "status", "word"), WRONG.values(), ids=WRONG)
def test_wrong_use(command, status, word, cgroup, tmp_path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    command = [os.fsencode(part.format(cgroup=cgroup, file=file)) for part in command]
    done = subprocess.run([*RTDEBUG, *command], env=environment(), capture_output=True, timeout=30)
    fails(Ended(done.returncode, done.stdout, done.stderr.decode()), status, word)
    assert b"\x1b" not in done.stderr
    assert file.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failed_start_leaves_no_recording(tmp_path, empty_cache) -> None:
    env = environment(RTDEBUG_BCC="/nonexistent", **empty_cache)
    fails(rtdebug("trace", "--all", "--record", tmp_path / "recording", env=env), 3, "bcc")
    assert not (tmp_path / "recording").exists()


# --- who is traced ends or vanishes ---


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_the_summary(cgroup, number) -> None:
    with Trace(f"cgroup:{cgroup}", "-o", "json") as trace:
        run("madvise", 23, "MADV_HUGEPAGE", cgroup=cgroup)
        ended = trace.stop(number)
    assert ended.returncode == 0, ended.stderr
    assert ended.total("madvise")["count"] == 23
    assert ended.summary["lost_events"] == 0


def test_a_reader_that_goes_away_ends_a_trace_that_says_nothing(cgroup) -> None:
    reading, writing = os.pipe()
    with Trace(f"cgroup:{cgroup}", "--event", "oom_kill", stdout=writing) as trace:
        os.close(writing)
        os.close(reading)
        ended = trace.wait(10)
    assert ended.returncode == 0, ended.stderr


def test_a_second_signal_does_not_wait(cgroup) -> None:
    with Trace(f"cgroup:{cgroup}") as trace:
        trace.process.send_signal(signal.SIGINT)
        trace.process.send_signal(signal.SIGINT)
        ended = trace.wait(5)
    assert ended.returncode in (0, 130)
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("delay_ms", range(0, 300, 43))
def test_a_signal_at_any_time_while_it_starts(cgroup, delay_ms, tmp_path) -> None:
    file = tmp_path / "recording"
    with Trace(f"cgroup:{cgroup}", "--record", file, attached=False) as trace:
        time.sleep(delay_ms / 1000)
        ended = trace.stop(signal.SIGTERM)
    assert ended.returncode in (0, 130, -signal.SIGTERM)
    assert "Traceback" not in ended.stderr
    assert "internal error" not in ended.stderr
    assert file.exists() is (ended.returncode == 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_compiles(number, tmp_path, empty_cache) -> None:
    """The terminal sends it to the compiler too."""
    env = environment(TMPDIR=str(tmp_path), **empty_cache)
    with Trace("--all", "--record", tmp_path / "recording", attached=False, start_new_session=True, env=env) as trace:
        wait_until(lambda: list(tmp_path.glob("rtdebug-shim-*/*")), "the compiler is at work")
        os.killpg(trace.pid, number)
        ended = trace.wait()
    assert (ended.returncode, ended.stderr) == (130, "")
    assert list(tmp_path.iterdir()) == []


def test_a_kill_while_it_compiles(tmp_path, empty_cache) -> None:
    """The compiler outlives it by a second, and cleans up."""
    env = environment(TMPDIR=str(tmp_path), **empty_cache)
    with Trace("--all", attached=False, env=env) as trace:
        wait_until(lambda: list(tmp_path.glob("rtdebug-shim-*/*")), "the compiler is at work")
        trace.stop(signal.SIGKILL)
    wait_until(lambda: not list(tmp_path.iterdir()), "the compiler's folder is removed")


@pytest.mark.parametrize("busy", [False, True])
def test_sigkill_leaves_nothing_in_the_kernel(cgroup, busy) -> None:
    with (
        Trace(f"cgroup:{cgroup}", "--every-call", "-o", "json") as trace,
        Workload("storm", "madvise", "2s", cgroup=cgroup) as storm,
    ):
        programs = trace.programs()
        assert programs <= loaded_programs()
        assert len(programs) >= 10
        if busy:
            storm.go()
            trace.wait_for_output("MADV_DONTNEED")
        trace.stop(signal.SIGKILL)
    wait_until(lambda: not programs & loaded_programs(), "the programs are gone")


def test_a_process_target_ends_the_trace(cgroup) -> None:
    with Workload("madvise", 23, "MADV_HUGEPAGE") as workload, Trace(f"pid:{workload.pid}", "-o", "json") as trace:
        workload.go()
        workload.finish()
        ended = trace.wait()
    assert ended.returncode == 0
    assert ended.total("madvise")["count"] == 23


def test_a_cgroup_removed_ends_the_trace() -> None:
    with memory_cgroup(limit_bytes=256 * MIB) as cgroup:
        trace = Trace(f"cgroup:{cgroup}", "-o", "json")
        run("madvise", 23, "MADV_HUGEPAGE", cgroup=cgroup)
    with trace:
        ended = trace.wait()
    assert ended.returncode == 0
    assert ended.total("madvise")["count"] == 23


def test_a_killed_process_is_counted_up_to_its_end(cgroup) -> None:
    with Trace(f"cgroup:{cgroup}", "-o", "json") as trace, Workload("storm", "madvise", "60s", cgroup=cgroup) as storm:
        storm.go()
        trace.wait_for_output("MADV_DONTNEED")
        os.kill(storm.pid, signal.SIGKILL)
        storm.finish()
        ended = trace.stop()
    assert ended.returncode == 0
    shown = sum(line["count"] for line in ended.events("madvise"))
    assert ended.total("madvise")["count"] == shown > 0


def test_two_traces_at_once_are_both_exact(cgroup) -> None:
    with (
        Trace(f"cgroup:{cgroup}", "-o", "json") as one,
        Trace(f"cgroup:{cgroup}", "-o", "json", "--every-call") as two,
        Trace("--all", "--comm", "madvise", "-o", "json") as three,
    ):
        run("madvise", 10007, "MADV_HUGEPAGE", cgroup=cgroup)
        ended = [trace.stop() for trace in (one, two, three)]
    assert [end.total("madvise")["count"] for end in ended] == [10007] * 3
    assert len(ended[1].events("madvise")) == 10007
    assert [end.summary["lost_events"] for end in ended] == [0, 0, 0]


# --- where it writes to ---


def test_a_reader_that_goes_away_ends_it_quietly(cgroup) -> None:
    script = '$rtdebug trace "cgroup:$1" -o json --every-call > >(head -n 1) & wait $!; echo "status $?"'
    process = subprocess.Popen(
        ["bash", "-c", "rtdebug='" + " ".join(RTDEBUG) + "'\n" + script, "bash", cgroup],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stderr is not None
        while "Tracing " not in process.stderr.readline():
            assert process.poll() is None
        run("madvise", 10007, "MADV_HUGEPAGE", cgroup=cgroup)
        stdout, stderr = process.communicate(timeout=20)
    assert "status 0" in stdout
    assert stderr == ""
    json.loads(stdout.splitlines()[0])


def test_a_reader_that_goes_away_does_not_end_the_recording_unfinished(cgroup, tmp_path) -> None:
    file = tmp_path / "recording"
    read_fd, write_fd = os.pipe()
    with Trace(f"cgroup:{cgroup}", "-o", "json", "--interval", "50ms", "--record", file, stdout=write_fd) as trace:
        os.close(write_fd)
        run("madvise", 23, "MADV_HUGEPAGE", cgroup=cgroup)
        os.close(read_fd)  # that ends it
        ended = trace.wait()
    assert ended.returncode == 0
    assert "rror" not in ended.stderr
    report = rtdebug("report", file, "-o", "json")
    assert report.total("madvise")["count"] == 23
    assert report.stderr == ""  # finished: it has its end


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_full_disk_below_standard_output(cgroup, output, tmp_path) -> None:
    file = tmp_path / "recording"
    with (
        Path("/dev/full").open("wb") as full,
        Trace(f"cgroup:{cgroup}", "-o", output, "--interval", "50ms", "--record", file, stdout=full) as trace,
    ):
        run("madvise", 23, "MADV_HUGEPAGE", cgroup=cgroup)
        ended = trace.wait()
    assert ended.returncode == 1
    assert "cannot write the output: No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr
    report = rtdebug("report", file, "-o", "json")
    assert report.total("madvise")["count"] == 23
    assert report.stderr == ""


@pytest.mark.parametrize("output", ["table", "json"])
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_descriptors(cgroup, output, closed, tmp_path) -> None:
    """A service manager or a cron job may start it so; no descriptor of ours may be taken for the missing one."""
    file = tmp_path / "recording"
    script = f'$rtdebug trace "cgroup:$1" -o {output} --duration 300ms --record "$2" {closed}; echo "status $?"'
    ended = shell(script, cgroup, file)
    assert ended.stdout.endswith(b"status 0\n"), ended.stderr
    assert "Traceback" not in ended.stderr
    report = rtdebug("report", file, "-o", "json")
    assert (report.returncode, report.stderr) == (0, "")


@pytest.mark.parametrize(
    "env",
    [
        {"TERM": "dumb"},
        {"TERM": ""},
        {"LC_ALL": "C"},
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONUNBUFFERED": "1"},
        {"PYTHONUNBUFFERED": ""},
    ],
    ids=str,
)
def test_poor_environments(cgroup, env) -> None:
    with Trace(f"cgroup:{cgroup}", env=environment(**env), start_new_session=True) as trace:
        run("madvise", 23, "MADV_HUGEPAGE", cgroup=cgroup)
        ended = trace.stop()
    assert ended.returncode == 0
    assert b"MADV_HUGEPAGE 92 KiB x23" in ended.stdout
    assert b"\x1b" not in ended.stdout


def test_hardly_any_environment() -> None:
    done = subprocess.run(
        ["env", "-i", f"PYTHONPATH={environment()['PYTHONPATH']}", *RTDEBUG, "trace", "--all", "--event", "oom_kill",
         "--duration", "100ms"], capture_output=True, timeout=30
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
