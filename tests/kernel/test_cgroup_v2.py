"""What only cgroup v2 has: group kills, memory.high, cgroups without the memory controller, clone3 into a cgroup."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel.tracing import Script, Trace, target
from tests.kernel.workload import MIB, Workload, memory_cgroup, memory_mount

V2 = memory_mount()[1] if os.geteuid() == 0 else False
pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not V2, reason="the memory controller is on cgroup v1 here (scripts/vm-test boots v2)"),
]
LIMIT = 24 * MIB


def events(cgroup: Path, file: str = "memory.events") -> dict[str, int]:
    """Return the counters of memory.events: the second witness."""
    return {name: int(value) for name, value in map(str.split, (cgroup / file).read_text().splitlines())}


def test_all_of_a_group_are_told_with_what_they_held() -> None:
    with memory_cgroup(LIMIT) as cgroup, ExitStack() as stack:
        (cgroup / "memory.oom.group").write_text("1")
        bystanders = [stack.enter_context(Workload("pause", cgroup=cgroup)) for _ in range(3)]
        greedy = stack.enter_context(Workload("oom", 64 * MIB, cgroup=cgroup))
        trace = stack.enter_context(Trace(target(cgroup), "--event", "oom_kill"))
        greedy.go()
        assert [each.finish().returncode for each in (greedy, *bystanders)] == [-signal.SIGKILL] * 4
        traced = trace.stop()
        counted = events(cgroup)
    # the first victim is one of the group, and counted again while it still has its memory (oom_kill_process())
    assert counted["oom_kill"] in (4, 5)
    assert counted.get("oom_group_kill", 1) == 1  # since v5.17
    reports = {report["pid"]: report for report in traced.of("oom_kill")}
    assert sorted(reports) == sorted(each.pid for each in (greedy, *bystanders))
    for pid, report in reports.items():
        assert report["oom_group"] is True
        assert (report["trigger_pid"], report["comm"]) == (greedy.pid, "oom" if pid == greedy.pid else "pause")
        assert (report["constraint"], report["oom_memcg"]) == ("memcg", f"/{cgroup.name}")
        assert report["total_vm_bytes"] > 0
        assert 0 < report["failcnt"] <= counted["max"]
    assert reports[greedy.pid]["anon_rss_bytes"] > LIMIT / 2
    assert all(reports[each.pid]["anon_rss_bytes"] < LIMIT / 10 for each in bystanders)


def test_a_group_above_the_limit_does_not_die() -> None:
    with memory_cgroup(8 * LIMIT) as parent, memory_cgroup(LIMIT, parent=parent) as cgroup:
        (parent / "memory.oom.group").write_text("1")
        with (
            Workload("pause", cgroup=cgroup) as bystander,
            Workload("oom", 64 * MIB, cgroup=cgroup) as greedy,
            Trace(target(parent), "--event", "oom_kill") as trace,
        ):
            greedy.go()
            assert greedy.finish().returncode == -signal.SIGKILL
            report = trace.wait_for("oom_kill", pid=greedy.pid)
            assert events(cgroup)["oom_kill"] == 1
            assert Path(f"/proc/{bystander.pid}/maps").read_text()  # a dead one has none
    assert trace.result.of("oom_kill") == [report]
    assert report["oom_memcg"] == f"/{parent.name}/{cgroup.name}"
    assert report["oom_group"] is False


def test_memory_high_slows_and_kills_nobody() -> None:
    with memory_cgroup(8 * LIMIT) as cgroup:
        # just passed, by the page tables: each page more would be a longer sleep
        (cgroup / "memory.high").write_text(str(17 * MIB))
        with Workload("oom", 17 * MIB, cgroup=cgroup) as workload, Trace(target(cgroup)) as trace:
            workload.go()
            assert workload.finish().returncode == 0
        counted = events(cgroup)
    assert counted["high"] > 0
    assert (counted["max"], counted["oom_kill"]) == (0, 0)
    assert trace.result.of("oom_kill") == []
    assert trace.result.summary is not None
    assert trace.result.summary["oom_kills"] == 0


CLONE_INTO = """
CLONE3, MADVISE, CLONE_INTO_CGROUP = 435, 28, 0x200000000
folder = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
# struct clone_args, include/uapi/linux/sched.h: flags first, then exit_signal, cgroup as the last
arguments = (ctypes.c_uint64 * 11)(CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, folder)
area = mmap.mmap(-1, 4096)
address = ctypes.addressof(ctypes.c_char.from_buffer(area))
child = call(CLONE3, ctypes.addressof(arguments), ctypes.sizeof(arguments))
if child == 0:
    for _ in range(23):
        call(MADVISE, address, 4096, 4)
    os._exit(0)
os.waitpid(child, 0)
say(child=child)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the script has the numbers of x86-64")
@pytest.mark.parametrize("controller", ["with the memory controller", "without the memory controller"])
def test_a_process_that_is_born_into_the_cgroup(controller: str) -> None:
    """clone3(CLONE_INTO_CGROUP): no move from one cgroup to another is ever seen."""
    with memory_cgroup(8 * LIMIT) as parent:
        if controller.startswith("with "):
            (parent / "cgroup.subtree_control").write_text("+memory")
        cgroup = parent / "rtdebug-born"
        cgroup.mkdir()
        try:
            with Script(CLONE_INTO, cgroup) as script, Trace(target(cgroup), "--every-call") as trace:
                script.go()
                child = script.hear()["child"]
                script.finish()
        finally:
            cgroup.rmdir()
    assert trace.result.count("madvise") == trace.result.count("madvise", pid=child) == 23
    assert {line["cgroup"] for line in trace.result.of("madvise")} == {f"/{parent.name}/{cgroup.name}"}


def test_a_kill_in_a_cgroup_without_the_memory_controller() -> None:
    """The limit is that of a cgroup above, and so is the memory cgroup of the process."""
    with memory_cgroup(LIMIT) as parent:
        inner = parent / "rtdebug-inner"
        inner.mkdir()
        try:
            with Workload("oom", 64 * MIB, cgroup=inner) as greedy, Trace(target(inner)) as trace:
                greedy.go()
                assert greedy.finish().returncode == -signal.SIGKILL
        finally:
            inner.rmdir()
    report = trace.result.one("oom_kill")
    assert (report["pid"], report["constraint"]) == (greedy.pid, "memcg")
    assert report["oom_memcg"] == f"/{parent.name}"
    assert report["limit_bytes"] == LIMIT
    assert report["limit_owner"] == "above"
