"""OOM kills in small cgroups of our own: the report against the kernel's own log and the cgroup's files."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from tests.kernel.runtime_fixtures import Runc, make_rootfs
from tests.kernel.tracing import Event, Script, Trace, Traced, no_kernel_log, small_shm, target
from tests.kernel.workload import MIB, Workload, build, memory_cgroup, memory_mount, write_uncached

pytestmark = pytest.mark.kernel

LIMIT = 24 * MIB
V2 = memory_mount()[1] if os.geteuid() == 0 else False
KILLED = re.compile(
    r"Killed process (?P<pid>\d+) \((?P<comm>.*)\) total-vm:(?P<total_vm>\d+)kB, anon-rss:(?P<anon_rss>\d+)kB, "
    r"file-rss:(?P<file_rss>\d+)kB, shmem-rss:(?P<shmem_rss>\d+)kB, UID:(?P<uid>\d+) "
    r"pgtables:(?P<page_table>\d+)kB oom_score_adj:(?P<oom_score_adj>-?\d+)"
)
CHOSEN = re.compile(
    r"oom-kill:constraint=(?P<constraint>\w+),.*oom_memcg=(?P<oom_memcg>[^,]*),task_memcg=(?P<task_memcg>[^,]*),"
    r"task=.*,pid=(?P<pid>\d+),"
)


@dataclass(frozen=True, slots=True)
class Kill:
    """What the kernel logged of one victim, read here without rtdebug."""

    killed: dict[str, str]
    chosen: dict[str, str] | None
    """None: the kernel limits how many dumps it writes; the kill lines come always."""


class KernelLog:
    """The kernel log from now on."""

    def __enter__(self) -> Self:
        self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self._fd, 0, os.SEEK_END)
        self._text = ""
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def kill_of(self, pid: int) -> Kill:
        """Wait for the kill line of a process."""
        deadline = time.monotonic() + 10
        while True:
            self._read()
            killed = [match for match in KILLED.finditer(self._text) if int(match["pid"]) == pid]
            if killed:
                chosen = [match for match in CHOSEN.finditer(self._text) if int(match["pid"]) == pid]
                return Kill(killed[0].groupdict(), chosen[0].groupdict() if chosen else None)
            assert time.monotonic() < deadline, f"the kernel logged no kill of {pid}"
            time.sleep(0.01)

    def _read(self) -> None:
        while True:
            try:
                self._text += os.read(self._fd, 8192).decode(errors="replace")
            except BlockingIOError:
                return
            except BrokenPipeError:  # overwritten before it was read
                continue


@pytest.fixture
def cgroup() -> Iterator[Path]:
    with memory_cgroup(LIMIT) as folder:
        yield folder


@pytest.fixture
def log() -> Iterator[KernelLog]:
    with KernelLog() as opened:
        yield opened


@pytest.fixture
def full_log(log: KernelLog) -> KernelLog:
    """The kernel log at a time when the next kill is dumped whole: of ten kills in 5 s the rest is left out
    (DEFAULT_RATELIMIT_INTERVAL and _BURST, mm/oom_kill.c), and the tests before this one killed."""
    time.sleep(5.5)
    return log


def kill_count(cgroup: Path) -> int:
    """Return oom_kill of memory.events (v2) or memory.oom_control (v1)."""
    text = (cgroup / ("memory.events" if V2 else "memory.oom_control")).read_text()
    return int(dict(line.split() for line in text.splitlines())["oom_kill"])


def times_at_limit(cgroup: Path) -> int:
    """Return how often the limit was hit."""
    if not V2:
        return int((cgroup / "memory.failcnt").read_text())
    return int(dict(line.split() for line in (cgroup / "memory.events").read_text().splitlines())["max"])


def check(report: Event, kill: Kill, cgroup: Path, limited: Path) -> None:
    """Compare a report with the kernel's log and the files of the cgroup that had the limit."""
    mount = memory_mount()[0]
    killed = kill.killed
    assert (report["comm"], report["uid"]) == (killed["comm"], int(killed["uid"]))
    assert report["oom_score_adj"] == int(killed["oom_score_adj"])
    for name in ("total_vm", "anon_rss", "file_rss", "shmem_rss", "page_table"):
        assert report[f"{name}_bytes"] == int(killed[name]) * 1024, name
    assert report["cgroup"] == f"/{cgroup.relative_to(mount)}"
    assert report["constraint"] == "memcg"
    assert report["oom_memcg"] == f"/{limited.relative_to(mount)}"
    assert report["limit_kind"] == "memory"
    assert report["limit_bytes"] == LIMIT
    assert LIMIT - 256 * 1024 <= report["usage_bytes"] <= LIMIT
    assert 0 < report["failcnt"] <= times_at_limit(limited)
    levels = {level["cgroup"]: level for level in report["memcg_levels"]}
    assert levels[report["oom_memcg"]]["limit_bytes"] == LIMIT
    assert [level["cgroup"] for level in report["memcg_levels"]][-1] == "/"
    assert report["memory_stat"]
    if kill.chosen is not None:
        assert report["limit_source"] == "kernel_log"
        assert kill.chosen["constraint"] == "CONSTRAINT_MEMCG"
        assert report["oom_memcg"] == kill.chosen["oom_memcg"]
        assert report["cgroup"] == kill.chosen["task_memcg"]
        assert (report["stat_source"], report["stat_cgroup"]) == ("kernel_log", kill.chosen["oom_memcg"])


def test_a_worker_is_killed_and_the_trace_goes_on(cgroup: Path, log: KernelLog) -> None:
    with (
        Workload("oom", 64 * MIB, "anon", "worker", cgroup=cgroup) as first,
        Workload("madvise", 23, "MADV_DONTDUMP", cgroup=cgroup) as later,
        Trace(target(cgroup)) as trace,
    ):
        first.go()
        done = first.finish()
        worker = int(done.step("worker").values["pid"])
        report = trace.wait_for("oom_kill")
        later.go()
        later.finish()
        assert kill_count(cgroup) == 1
        check(report, log.kill_of(worker), cgroup, cgroup)
    assert done.step("worker").values["signal"] == str(signal.SIGKILL.value)
    assert (report["pid"], report["tid"], report["ns_pid"]) == (worker, worker, worker)
    assert (report["trigger_pid"], report["trigger_comm"]) == (worker, "oom")
    assert report["cmdline"] == f"{build('oom')} {64 * MIB} anon worker"
    assert (report["victim_is_init"], report["nested_cgroup"], report["oom_group"]) == (False, False, False)
    assert (report["limit_owner"], report["swap_bytes"]) == ("container", 0)
    assert report["anon_rss_bytes"] > LIMIT / 2
    assert trace.result.of("oom_kill") == [report]
    assert trace.result.count("madvise", pid=later.pid) == 23
    summary = trace.result.summary
    assert summary is not None
    assert summary["oom_kills"] == 1
    assert [(kill["pid"], kill["comm"], kill["oom_memcg"]) for kill in summary["killed"]] == [
        (worker, "oom", f"/{cgroup.name}")
    ]


@pytest.mark.parametrize("owner", ["parent", "own"])
def test_in_a_nested_cgroup(log: KernelLog, owner: str) -> None:
    outer, inner = (LIMIT, 128 * MIB) if owner == "parent" else (128 * MIB, LIMIT)
    with memory_cgroup(outer) as parent, memory_cgroup(inner, parent=parent) as nested:
        traced, _, pid = run_in(nested, target(parent))
        report = traced.one("oom_kill", pid=pid)
        check(report, log.kill_of(pid), nested, parent if owner == "parent" else nested)
    assert report["nested_cgroup"] is True
    assert report["limit_owner"] == ("container" if owner == "parent" else "below")


def run_in(cgroup: Path, *arguments: object) -> tuple[Traced, tuple[str, ...], int]:
    """Have a process killed in a cgroup while something is traced; return what was said, and the process."""
    with Workload("oom", 64 * MIB, cgroup=cgroup) as workload, Trace(*arguments) as trace:
        workload.go()
        assert workload.finish().returncode == -signal.SIGKILL
    return trace.result, trace.result.stderr, workload.pid


def test_the_limit_of_a_cgroup_above_the_target(log: KernelLog) -> None:
    with memory_cgroup(LIMIT) as parent, memory_cgroup(128 * MIB, parent=parent) as nested:
        traced, _, pid = run_in(nested, target(nested))
        report = traced.one("oom_kill")
        check(report, log.kill_of(pid), nested, parent)
    assert (report["limit_owner"], report["nested_cgroup"]) == ("above", False)


def test_several_victims_at_once(cgroup: Path, log: KernelLog) -> None:
    with ExitStack() as stack:
        victims = [stack.enter_context(Workload("oom", 64 * MIB, cgroup=cgroup)) for _ in range(5)]
        trace = stack.enter_context(Trace(target(cgroup), "--event", "oom_kill"))
        for victim in victims:
            victim.go()
            assert victim.finish().returncode == -signal.SIGKILL
        assert kill_count(cgroup) == 5
        for victim in victims:
            check(trace.wait_for("oom_kill", pid=victim.pid), log.kill_of(victim.pid), cgroup, cgroup)
        traced = trace.stop()
    assert sorted(line["pid"] for line in traced.events) == sorted(victim.pid for victim in victims)
    assert traced.summary is not None
    assert traced.summary["oom_kills"] == 5


def test_the_trigger_is_not_always_the_victim(cgroup: Path, log: KernelLog) -> None:
    """A large process that does nothing is killed for a small one that asks for a page."""
    fill = """
with open("/proc/self/oom_score_adj", "w") as file:
    file.write("997")
kept = bytearray(b"x") * (13 << 20)
say(filled=True)
wait()
"""
    ask = """
kept = [b"x" * (1 << 20) for _ in range(11)]
say(done=True)
"""
    with (
        Script(fill, cgroup=cgroup) as large,
        Script(ask, cgroup=cgroup) as small,
        Trace(target(cgroup), "--event", "oom_kill") as trace,
    ):
        large.go()
        large.hear()
        small.go()
        # The first kill. On rare occasions the small one is next: exit_mmap() lets others look for another victim
        # (MMF_OOM_SKIP) before tlb_finish_mmu() has given the pages back.
        report = trace.wait_for("oom_kill")
        check(report, log.kill_of(large.pid), cgroup, cgroup)
    assert (report["pid"], report["trigger_pid"]) == (large.pid, small.pid)
    assert report["trigger_cgroup"] == f"/{cgroup.name}"


def test_shared_memory_fills_the_limit(cgroup: Path, log: KernelLog) -> None:
    with Workload("oom", 64 * MIB, "shm", cgroup=cgroup) as workload, Trace(target(cgroup)) as trace:
        workload.go()
        assert workload.finish().returncode == -signal.SIGKILL
    report = trace.result.one("oom_kill")
    check(report, log.kill_of(workload.pid), cgroup, cgroup)
    assert report["shmem_rss_bytes"] > LIMIT * 0.8
    assert report["anon_rss_bytes"] < LIMIT * 0.1
    assert stat_of(report, "shmem") > LIMIT * 0.8


def stat_of(report: Event, name: str) -> int:
    """Return an entry of memory.stat, that of the whole tree on v1."""
    stat: dict[str, int] = report["memory_stat"]
    return stat.get(f"total_{name}", stat.get(name, -1))


def test_a_file_in_dev_shm_that_nobody_maps(cgroup: Path, full_log: KernelLog) -> None:
    """What filled the limit is in no process: the victim is small, memory.stat tells."""
    text = """
with open("/dev/shm/filler", "wb") as file:
    for _ in range(15):
        file.write(bytes(1 << 20))
kept = []
while True:
    kept.append(b"x" * (1 << 20))
"""
    with Script(text, cgroup=cgroup, wrap=small_shm("64m")) as script, Trace(target(cgroup)) as trace:
        script.go()
        assert script.finish() == -signal.SIGKILL
    report = trace.result.one("oom_kill")
    check(report, full_log.kill_of(script.pid), cgroup, cgroup)
    assert report["shmem_rss_bytes"] < MIB
    assert stat_of(report, "shmem") >= 15 * MIB * 0.98  # counted per CPU, added up in batches
    kinds = kinds_of(report)
    assert 15 * MIB * 0.98 <= kinds["shmem_bytes"] < 16 * MIB
    assert 5 * MIB < kinds["anon_bytes"] < 9 * MIB


def kinds_of(report: Event) -> dict[str, int]:
    """Return what the usage is made of: it must add up to it, and the kernel's own files name all but little."""
    kinds = {name: size for name, size in report["usage_by_kind"].items() if size is not None}
    assert abs(sum(kinds.values()) - report["usage_bytes"]) <= report["usage_bytes"] / 50
    assert kinds["other_bytes"] <= report["usage_bytes"] / 20
    return kinds


def test_a_neighbour_holds_the_memory(full_log: KernelLog) -> None:
    """What a sibling cgroup has is named, by its usage and by its process."""
    fill = "kept = bytearray(b'x') * (15 << 20)\nsay(filled=True)\nwait()\n"
    with (
        memory_cgroup(LIMIT) as parent,
        memory_cgroup(128 * MIB, parent=parent) as nested,
        memory_cgroup(128 * MIB, parent=parent) as other,
        Script(fill, cgroup=other) as large,
        Workload("oom", 64 * MIB, cgroup=nested) as small,
        Trace(target(nested), "--event", "oom_kill") as trace,
    ):
        large.go()
        large.hear()
        Path(f"/proc/{small.pid}/oom_score_adj").write_text("997")  # else the large one is killed
        small.go()
        assert small.finish().returncode == -signal.SIGKILL
        report = trace.wait_for("oom_kill")
        usage = int((other / ("memory.current" if V2 else "memory.usage_in_bytes")).read_text())
        check(report, full_log.kill_of(small.pid), nested, parent)
    siblings = {each["cgroup"]: each for each in report["siblings"]}
    mount = memory_mount()[0]
    assert set(siblings) == {f"/{each.relative_to(mount)}" for each in (nested, other)}
    assert abs(siblings[f"/{other.relative_to(mount)}"]["usage_bytes"] - usage) < MIB
    levels = {level["cgroup"]: level["usage_bytes"] for level in report["memcg_levels"]}
    assert siblings[report["cgroup"]]["usage_bytes"] == levels[report["cgroup"]]
    assert siblings[report["cgroup"]]["usage_bytes"] < LIMIT / 2
    assert report["history"][-1] == {"age_ns": 0, "usage_bytes": levels[report["cgroup"]]}
    assert 15 * MIB < kinds_of(report)["anon_bytes"] <= LIMIT
    if report["limit_source"] == "kernel_log":
        tasks = {task["pid"]: task for task in report["tasks"]}
        assert [task["pid"] for task in report["tasks"]] == [large.pid, small.pid]
        assert tasks[large.pid]["rss_bytes"] > 15 * MIB
        assert (tasks[large.pid]["oom_score_adj"], tasks[small.pid]["oom_score_adj"]) == (0, 997)


def test_page_cache_that_cannot_be_given_back(cgroup: Path, full_log: KernelLog, tmp_path: Path) -> None:
    write_uncached(tmp_path / "file", 13 * MIB)
    text = f"""
with open({str(tmp_path / "file")!r}, "r+b") as file:
    area = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED)  # mlock would copy private pages
assert _libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(area))), len(area)) == 0
kept = []
while True:
    kept.append(b"x" * (1 << 20))
"""
    with Script(text, cgroup=cgroup) as script, Trace(target(cgroup)) as trace:
        script.go()
        assert script.finish() == -signal.SIGKILL
    report = trace.result.one("oom_kill")
    check(report, full_log.kill_of(script.pid), cgroup, cgroup)
    assert kinds_of(report)["file_bytes"] > 12 * MIB
    assert report["file_rss_bytes"] + report["anon_rss_bytes"] > 13 * MIB
    assert report["shmem_rss_bytes"] < MIB


@pytest.mark.skipif(V2, reason="memory+swap is a limit of cgroup v1")
def test_the_limit_of_memory_and_swap(cgroup: Path, log: KernelLog) -> None:
    memsw = cgroup / "memory.memsw.limit_in_bytes"
    if not memsw.exists():
        pytest.skip("this kernel does not count swap")
    memsw.write_text(str(LIMIT))  # the same as the limit of memory: this one is hit first
    traced, _, pid = run_in(cgroup, target(cgroup))
    report = traced.one("oom_kill", pid=pid)
    assert log.kill_of(pid)
    assert times_at_limit(cgroup) == 0
    assert report["oom_memcg"] == f"/{cgroup.name}"
    assert report["limit_bytes"] == LIMIT
    if report["limit_source"] == "kernel_log":
        assert report["limit_kind"] == "memory+swap"
        # 6.18 counts only what memory refused, and says 0 here
        assert report["failcnt"] <= int((cgroup / "memory.memsw.failcnt").read_text())


# --- who is told of it ---


def test_a_kill_elsewhere_is_not_told(cgroup: Path) -> None:
    with memory_cgroup(64 * MIB) as other:
        traced, _, _ = run_in(cgroup, target(other))
    assert traced.events == ()


def test_a_kill_elsewhere_is_told_with_all(cgroup: Path, log: KernelLog) -> None:
    traced, _, pid = run_in(cgroup, "--all", "--event", "oom_kill")
    check(traced.one("oom_kill", pid=pid), log.kill_of(pid), cgroup, cgroup)


def test_a_kill_is_not_told_when_other_events_are_asked_for(cgroup: Path) -> None:
    traced, _, _ = run_in(cgroup, target(cgroup), "--event", "shm_open")
    assert traced.events == ()


def test_comm_means_the_victim(cgroup: Path) -> None:
    for comm, count in (("oom", 1), ("pause", 0)):
        traced, _, _ = run_in(cgroup, target(cgroup), "--comm", comm, "--event", "oom_kill")
        assert traced.count("oom_kill") == count


def test_without_the_kernel_log(cgroup: Path) -> None:
    with Workload("oom", 64 * MIB, cgroup=cgroup) as workload, Trace(target(cgroup), wrap=no_kernel_log()) as trace:
        notice = trace.wait_for_notice("kernel log")
        workload.go()
        assert workload.finish().returncode == -signal.SIGKILL
        report = trace.wait_for("oom_kill", pid=workload.pid)
        assert 0 < report["failcnt"] <= times_at_limit(cgroup)
    assert notice.startswith("rtdebug: cannot read the kernel log")
    assert report["constraint"] == "memcg"
    assert (report["oom_memcg"], report["limit_bytes"]) == (f"/{cgroup.name}", LIMIT)
    # where the kernel takes a program on out_of_memory(), that one says what the log would
    sources = {"at_limit": (None, None), "out_of_memory": ("0xcc0", 0)}
    assert (report["gfp_mask"], report["order"]) == sources[report["limit_source"]]
    assert report["anon_rss_bytes"] > LIMIT / 2
    assert report["stat_source"] in ("cgroup_files", "last_sample")
    assert report["memory_stat"]


# --- containers ---


@pytest.fixture
def runc(tmp_path: Path) -> Iterator[Runc]:
    rootfs = make_rootfs(tmp_path / "rootfs")
    (rootfs / "bin/oom").write_bytes(build("oom").read_bytes())
    (rootfs / "bin/oom").chmod(0o755)
    os.mkfifo(rootfs / "gate")
    containers = Runc(tmp_path, rootfs)
    try:
        yield containers
    finally:
        containers.close()


def test_the_containers_init_is_killed_and_the_trace_ends(runc: Runc, log: KernelLog) -> None:
    script = f"read x </gate; exec /bin/oom {64 * MIB}"
    box = runc.start(f"rtdebug-oom-{os.getpid()}", memory_bytes=LIMIT, script=script)
    with Trace(box.id) as trace:
        (runc.rootfs / "gate").write_text("\n")
        traced = trace.finish()
    report = traced.one("oom_kill")
    killed = log.kill_of(box.pid)
    assert traced.returncode == 0
    assert traced.summary is not None
    assert traced.summary["oom_kills"] == 1
    assert (report["pid"], report["ns_pid"], report["comm"]) == (box.pid, 1, "oom")
    assert (report["container_id"], report["runtime"]) == (box.id, "runc")
    assert (report["victim_is_init"], report["limit_owner"]) == (True, "container")
    assert report["anon_rss_bytes"] == int(killed.killed["anon_rss"]) * 1024
    assert (report["limit_bytes"], report["oom_memcg"]) == (LIMIT, f"/{box.id}")
    assert report["cmdline"] == f"/bin/oom {64 * MIB}"
    assert report["memory_stat"]


def test_a_worker_of_a_container_is_killed_and_the_container_lives(runc: Runc, log: KernelLog) -> None:
    script = f"read x </gate; /bin/oom {64 * MIB}; sleep 100 & wait"
    box = runc.start(f"rtdebug-oom-{os.getpid()}-worker", memory_bytes=LIMIT, script=script)
    with Trace(box.id) as trace:
        (runc.rootfs / "gate").write_text("\n")
        report = trace.wait_for("oom_kill")
        assert Path(f"/proc/{box.pid}").exists()
        assert (report["victim_is_init"], report["container_id"]) == (False, box.id)
        assert report["ns_pid"] not in (1, report["pid"])
        folder = memory_mount()[0] / box.id
        check(report, log.kill_of(report["pid"]), folder, folder)
        trace.stop()
    assert trace.result.returncode == 0
