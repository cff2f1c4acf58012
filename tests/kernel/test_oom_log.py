"""A real OOM kill in a small cgroup of our own, read back from the kernel log."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rtdebug.host.kmsg import KmsgReader
from rtdebug.oom.dressing import LogLine
from rtdebug.oom.kernel_log import OomLogReader
from rtdebug.oom.kill import OomKill
from rtdebug.oom.live import OomJoiner
from rtdebug.oom.report import Surroundings

pytestmark = pytest.mark.kernel

LIMIT_BYTES = 23 << 20
HOG = """
import os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
kept = []
while True:
    kept.append(bytearray(os.urandom(4096)) * 64)
"""


def memory_root():
    """Where the memory controller is mounted: v1, or v2."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ")
        kind, _, options = right.split(" ", 2)
        point = Path(left.split()[4])
        if kind == "cgroup" and "memory" in options.split(","):
            return point, "memory.limit_in_bytes", "memory.failcnt"
        if kind == "cgroup2" and "memory" in (point / "cgroup.subtree_control").read_text().split():
            return point, "memory.max", None
    pytest.fail("the memory controller is not mounted")


@pytest.fixture
def small_cgroup():
    root, limit_file, failcnt_file = memory_root()
    path = root / f"rtdebug-oomlog-{os.getpid()}"
    path.mkdir()
    try:
        (path / limit_file).write_text(str(LIMIT_BYTES))
        swap = path / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        yield path, failcnt_file
    finally:
        deadline = time.monotonic() + 5
        while True:
            try:
                path.rmdir()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def failcnt_of(path, failcnt_file):
    if failcnt_file:
        return int((path / failcnt_file).read_text())
    return int(dict(line.split() for line in (path / "memory.events").read_text().splitlines())["max"])


def oom_kills_of(path):
    events = path / "memory.events"
    text = (events if events.exists() else path / "memory.oom_control").read_text()
    return int(dict(line.split() for line in text.splitlines())["oom_kill"])


def run_hog(path):
    process = subprocess.Popen([sys.executable, "-c", HOG, str(path / "cgroup.procs")])
    assert process.wait(timeout=60) == -signal.SIGKILL
    return process.pid


def read_until(reader, wanted, timeout_s=10):
    """All records up to the first whose message `wanted` accepts."""
    records, deadline = [], time.monotonic() + timeout_s
    with select.epoll() as epoll:
        epoll.register(reader.fileno(), select.EPOLLIN)
        while time.monotonic() < deadline:
            epoll.poll(0.2)
            records += reader.read()
            if any(wanted(record.message) for record in records):
                return records
    pytest.fail("the kernel log does not hold the kill")


def test_the_log_says_what_the_cgroup_and_the_process_say(small_cgroup):
    path, failcnt_file = small_cgroup
    with KmsgReader.open() as reader:
        pid = run_hog(path)
        records = read_until(reader, lambda message: f"Killed process {pid} " in message)
        assert reader.lost == 0
    log = OomLogReader()
    for record in records:
        if record.from_kernel:
            log.feed(LogLine(record.message, record.time_us * 1000, caller=record.caller))
    (oom,) = [found for found in log.flush() if found.victim(pid)]
    name = f"/{path.name}"
    assert oom.complete, oom.missing
    assert oom.constraint == "memcg"
    assert (oom.oom_memcg, oom.task_memcg) == (name, name)
    assert oom.memory.limit_bytes == LIMIT_BYTES
    assert LIMIT_BYTES - (1 << 20) <= oom.memory.usage_bytes <= LIMIT_BYTES
    # the dying task went on hitting the limit after the dump
    assert 0 < oom.memory.failcnt <= failcnt_of(path, failcnt_file)
    assert oom_kills_of(path) == len(oom.victims) == 1
    assert oom.limiting_counter == "memory"
    assert (oom.trigger.tid, oom.trigger.order) == (pid, 0)
    victim = oom.victim(pid)
    assert victim.comm == oom.trigger.comm
    assert victim.uid == os.getuid()
    assert victim.anon_rss_bytes >= LIMIT_BYTES // 2
    assert oom.page_size_bytes == os.sysconf("SC_PAGE_SIZE")
    assert oom.task(pid).total_vm_pages * oom.page_size_bytes == victim.total_vm_bytes
    anon = oom.memory_stat.get("anon", oom.memory_stat.get("total_rss"))
    assert LIMIT_BYTES // 2 <= anon <= LIMIT_BYTES
    uptime_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    assert uptime_ns - 60_000_000_000 < oom.time_ns <= uptime_ns


def test_live_join_with_the_real_log(small_cgroup):
    path, _ = small_cgroup
    joiner, reports = OomJoiner(), []
    with KmsgReader.open() as reader:
        pid = run_hog(path)
        records = read_until(reader, lambda message: f"Killed process {pid} " in message)
    start_ns = time.monotonic_ns()
    reports += joiner.add_kill(OomKill(time_ns=start_ns, pid=pid, tid=pid), Surroundings(), start_ns)
    for record in records:
        reports += joiner.add_message(record, start_ns)
    assert reports == []
    (report,) = joiner.advance(joiner.due_ns)
    assert (report.pid, report.oom_memcg, report.limit_source) == (pid, f"/{path.name}", "kernel_log")
    assert report.limit_bytes == LIMIT_BYTES
    assert report.stat_source == "kernel_log"


def test_reads_from_the_start_and_counts_nothing_lost():
    with KmsgReader.open(from_start=True) as reader:
        records = reader.read()
        assert records
        assert [record.sequence for record in records] == sorted({record.sequence for record in records})
        assert any(record.from_kernel for record in records)
