"""`rtdebug madvise list` and `apply` as their user runs them, on real containers and processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rtdebug.errors import TargetError
from rtdebug.host.maps import read_smaps
from rtdebug.host.thp import read_thp
from rtdebug.madvise.advice import find_advice
from rtdebug.madvise.apply_plan import make_plan, read_host
from rtdebug.madvise.guard import Guard, GuardLimits, watch
from tests.conftest import ROOT
from tests.kernel.runtime_fixtures import Docker, wait_for
from tests.kernel.test_inject import Target
from tests.kernel.workload import MIB, memory_cgroup

pytestmark = pytest.mark.kernel

LENGTH = 16 * MIB
COLLAPSES = read_host().collapses
needs_collapse = pytest.mark.skipif(not COLLAPSES, reason="this kernel has no MADV_COLLAPSE (6.1)")


def rtdebug(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=60)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "rtdebug", "madvise", *map(str, arguments)]


def try_to_apply(target: Target, advice: str, *more: str) -> subprocess.CompletedProcess[str]:
    where = (f"pid:{target.pid}", "--pid", target.pid, "--mapping", hex(target.address))
    return rtdebug("apply", *where, "--advice", advice, "-o", "json", *more)


def apply(target: Target, advice: str, *more: str) -> dict[str, Any]:
    done = try_to_apply(target, advice, *more)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def flags(target: Target) -> tuple[str, ...]:
    return target.entry().vm_flags or ()


@needs_collapse
def test_collapse_makes_huge_pages_and_says_so() -> None:
    thp = read_thp()
    assert thp and thp.pmd_size_bytes
    with Target("borrowed", 1, LENGTH) as target:
        found = apply(target, "COLLAPSE")
        assert found["way"] == "process_madvise"
        assert found["applied"]["took_effect"] is True
        assert found["applied"]["before"]["huge_bytes"] == 0
        huge = target.entry().use.anonhugepages_bytes
        assert huge and huge >= LENGTH - 2 * thp.pmd_size_bytes
        assert found["applied"]["after"]["huge_bytes"] == huge


def test_what_this_kernel_does_not_take_is_refused_with_the_version_that_does() -> None:
    not_taken = read_host().not_taken
    assert not_taken.isdisjoint({"MADV_COLD", "MADV_PAGEOUT", "MADV_DONTNEED", "MADV_DONTDUMP"}), "all since 5.10"
    if not not_taken:
        pytest.skip("this kernel has all advice")
    with Target("borrowed", 1, LENGTH) as target:
        arguments = ["apply", f"pid:{target.pid}", "--pid", target.pid, "--mapping", hex(target.address)]
        for advice in (find_advice(name) for name in not_taken):
            refused = rtdebug(*arguments, "--advice", advice.name)
            assert refused.returncode == 3
            assert f"this kernel takes no {advice.name}" in refused.stderr
            assert f"Linux {advice.since} and newer" in refused.stderr
        listed = json.loads(rtdebug("list", f"pid:{target.pid}", "--least", "4k", "-o", "json").stdout)
        assert not_taken.isdisjoint({each["advice"] for each in listed["mappings"]})
        assert target.end().values["wrong"] == "0"


def test_cold_ages_it() -> None:
    with Target("borrowed", 1, LENGTH) as target:
        found = apply(target, "madv_cold")
        assert found["applied"]["took_effect"] is True
        assert found["applied"]["after"]["referenced_bytes"] < LENGTH // 2


def test_hugepage_is_given_by_the_process_itself_and_taken_back() -> None:
    thp = read_thp()
    assert thp
    with Target("borrowed", 4, LENGTH) as target:
        if thp.enabled == "always":  # NOHUGEPAGE is another state than no advice then
            refused = try_to_apply(target, "HUGEPAGE", "--for", "500ms")
            assert (refused.returncode, "MADV_HUGEPAGE cannot be undone here" in refused.stderr) == (2, True)
            apply(target, "NOHUGEPAGE")
        found = apply(target, "HUGEPAGE", "--for", "500ms")
        assert (found["way"], found["undo"]) == ("inject", "MADV_NOHUGEPAGE")
        assert "hg" in found["applied"]["after"]["vm_flags"]
        assert found["applied"]["thread_stopped_ns"] > 0
        assert found["taken_back"]["reason"] == "the time is over"
        assert found["taken_back"]["took_effect"] is True
        assert "hg" not in flags(target)
        assert target.end().values["wrong"] == "0"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_is_taken_back_when_rtdebug_is_ended(number: signal.Signals) -> None:
    with Target("borrowed", 1, LENGTH) as target:
        arguments = ["apply", f"pid:{target.pid}", "--pid", target.pid, "--mapping", hex(target.address)]
        ours = subprocess.Popen(
            command(*arguments, "--advice", "DONTDUMP", "--for", "60s"), cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        try:
            wait_for(lambda: "dd" in flags(target), "the advice")
            ours.send_signal(number)
            said, _ = ours.communicate(timeout=10)
            wait_for(lambda: "dd" not in flags(target), "the advice to be taken back")
        finally:
            ours.kill()
            ours.wait()
        if number != signal.SIGKILL:
            assert ours.returncode == 0
            assert "interrupted: MADV_DODUMP took effect" in said
        assert target.end().values["wrong"] == "0"


def test_it_ends_with_the_process() -> None:
    with Target("borrowed", 1, LENGTH) as target:
        arguments = ["apply", f"pid:{target.pid}", "--pid", target.pid, "--mapping", hex(target.address)]
        ours = subprocess.Popen(
            command(*arguments, "--advice", "DONTDUMP", "--for", "60s"), cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        wait_for(lambda: "dd" in flags(target), "the advice")
        target.end()
        said, _ = ours.communicate(timeout=10)
        assert ours.returncode == 0
        assert "the process has ended" in said


def test_a_dry_run_changes_nothing() -> None:
    with Target("borrowed", 1, LENGTH) as target:
        before = flags(target)
        for advice in ("HUGEPAGE", "COLD", *(["COLLAPSE"] if COLLAPSES else [])):
            found = apply(target, advice, "--dry-run")
            assert found["applied"] is None
        assert flags(target) == before
        assert target.entry().use.anonhugepages_bytes == 0


def test_data_are_destroyed_only_when_somebody_says_so() -> None:
    with Target("borrowed", 1, LENGTH) as target:
        arguments = ["apply", f"pid:{target.pid}", "--pid", target.pid, "--advice", "DONTNEED", "--mapping"]
        refused = rtdebug(*arguments, hex(target.address))
        assert refused.returncode == 2
        assert "--destroy-data" in refused.stderr
        assert target.entry().use.rss_bytes == LENGTH
        stack = rtdebug(*arguments, "stack", "--destroy-data")
        assert stack.returncode == 2
        assert "would crash" in stack.stderr
        found = apply(target, "DONTNEED", "--destroy-data")
        assert found["applied"]["took_effect"] is True
        assert target.entry().use.rss_bytes == 0


def test_a_container_of_docker_with_its_seccomp_filter(docker: Docker) -> None:
    box = docker.start("rtdebug-madvise")
    assert "Seccomp:\t2" in Path(f"/proc/{box.pid}/status").read_text()
    arguments = ["apply", "rtdebug-madvise", "--pid", box.pid, "--mapping", "heap", "--advice", "DONTDUMP"]
    done = rtdebug(*arguments)
    assert done.returncode == 0, done.stderr
    assert "MADV_DONTDUMP took effect" in done.stdout
    heap = next(entry for entry in read_smaps(box.pid) if entry.mapping.path == "[heap]")
    assert "dd" in (heap.vm_flags or ())
    other = rtdebug("apply", "rtdebug-madvise", "--pid", os.getpid(), "--mapping", "heap", "--advice", "DONTDUMP")
    assert other.returncode == 4
    listed = rtdebug("list", "rtdebug-madvise", "--least", "4k", "-o", "json")
    assert {each["pid"] for each in json.loads(listed.stdout)["mappings"]} >= {box.pid}


def test_list_finds_what_huge_pages_would_help_and_what_is_idle() -> None:
    thp = read_thp()
    assert thp
    with memory_cgroup(256 * MIB) as cgroup, Target("borrowed", 1, 64 * MIB) as target:
        (cgroup / "cgroup.procs").write_text(str(target.pid))
        path = "/" + str(cgroup).rpartition("/")[2]
        done = rtdebug("list", f"cgroup:{path}", "--idle", "300ms", "-o", "json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        best = found["mappings"][0]
        assert (best["pid"], best["start_address"]) == (target.pid, target.entry().mapping.start)
        assert best["rss_bytes"] == 64 * MIB
        assert best["idle_bytes"] >= 63 * MIB
        if thp.enabled == "madvise":
            assert best["advice"] == "MADV_HUGEPAGE"
            assert best["why"] == "enabled=madvise, and MADV_HUGEPAGE is not set"
            assert best["gain_bytes"] >= 62 * MIB
        assert found["total"]["mappings"] == len(read_smaps(target.pid))
        if not COLLAPSES:
            return
        apply(target, "COLLAPSE")
        again = json.loads(rtdebug("list", f"cgroup:{path}", "-o", "json").stdout)["mappings"][0]
        assert again["gain_bytes"] < best["gain_bytes"]
        assert again["huge_bytes"] >= 60 * MIB


def test_the_guard_sees_a_container_come_near_its_limit() -> None:
    with memory_cgroup(64 * MIB) as cgroup:
        ready, grow = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(grow)
                os.read(ready, 1)
                held = bytearray(b"x") * (60 * MIB)
                time.sleep(60)
                del held
            finally:
                os._exit(0)
        try:
            os.close(ready)
            (cgroup / "cgroup.procs").write_text(str(pid))
            watched = watch(pid)
            assert watched
            guard = Guard(watched, GuardLimits(limit_hits=1 << 40))
            assert guard.check() is None
            os.write(grow, b"x")
            reason = wait_for(guard.check, "the guard")
            assert reason == "the container came within 10% of its memory limit"
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(grow)
        assert guard.check() == "the process has ended"


@needs_collapse
def test_collapse_of_what_may_have_no_huge_pages_names_the_reason() -> None:
    with Target("borrowed", 1, LENGTH) as target:
        apply(target, "NOHUGEPAGE")
        where = ["apply", f"pid:{target.pid}", "--pid", target.pid, "--mapping", hex(target.address)]
        refused = rtdebug(*where, "--advice", "COLLAPSE")
        assert refused.returncode == 2
        assert "MADV_NOHUGEPAGE is set" in refused.stderr
        assert "MADV_HUGEPAGE takes that back" in refused.stderr
        apply(target, "HUGEPAGE")
        assert apply(target, "COLLAPSE")["applied"]["took_effect"] is True


def test_a_guard_that_objects_ends_it_before_its_time() -> None:
    """The process leaves its room below the limit while the advice is given for a minute."""
    with memory_cgroup(128 * MIB) as cgroup, Target("borrowed", 1, 16 * MIB) as target:
        (cgroup / "cgroup.procs").write_text(str(target.pid))
        where = [f"pid:{target.pid}", "--pid", target.pid, "--mapping", hex(target.address), "--advice", "DONTDUMP"]
        ours = subprocess.Popen(command("apply", *where, "--for", "60s"), cwd=ROOT, stdout=subprocess.PIPE, text=True)
        wait_for(lambda: "dd" in flags(target), "the advice")
        code = f"import time; held = bytearray(b'x') * {118 * MIB}; print('held', flush=True); time.sleep(60)"
        hog = subprocess.Popen(
            [sys.executable, "-c", code], preexec_fn=lambda: (cgroup / "cgroup.procs").write_text(str(os.getpid()))
        )
        try:
            said, _ = ours.communicate(timeout=30)
            assert ours.returncode == 0
            assert "the container came within 10% of its memory limit: MADV_DODUMP took effect" in said
            assert "dd" not in flags(target)
        finally:
            hog.kill()
            hog.wait()


@needs_collapse
def test_a_part_that_cannot_be_collapsed_does_not_keep_the_rest_from_it() -> None:
    """A heap has parts that were never touched: there is nothing to collapse, and the kernel gives up a whole call."""
    code = """
import ctypes, mmap, sys
area = mmap.mmap(-1, 66 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
first = -(-ctypes.addressof(ctypes.c_char.from_buffer(area)) >> 21) << 21
offset = first - ctypes.addressof(ctypes.c_char.from_buffer(area))
for page in range(offset, offset + (64 << 20), 4096):
    if not 40 << 20 <= page - offset < 42 << 20:
        area[page] = 1
print(first, flush=True)
sys.stdin.read()
print(sum(area[offset:offset + (64 << 20):4096]))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = int(process.stdout.readline())
        where = [f"pid:{process.pid}", "--pid", process.pid, "--mapping", hex(address), "--advice", "COLLAPSE"]
        done = rtdebug("apply", *where, "-o", "json")
        assert done.returncode == 0, done.stderr
        applied = json.loads(done.stdout)["applied"]
        assert applied["after"]["huge_bytes"] == 62 * MIB
        assert applied["errno"] == "EINVAL" and 2 * MIB <= applied["refused_bytes"] <= 6 * MIB, "and the two ends"
        said, _ = process.communicate(timeout=10)
        assert int(said) == (62 << 20) // 4096
    finally:
        process.kill()
        process.communicate()


def test_a_zombie_is_said_to_have_exited() -> None:
    process = subprocess.Popen(["true"])
    try:
        wait_for(lambda: ") Z " in Path(f"/proc/{process.pid}/stat").read_text(), "its end")
        for advice in ("COLD", "HUGEPAGE"):
            with pytest.raises(TargetError, match="has exited"):
                make_plan(process.pid, "heap", find_advice(advice), undo=False, destroy=False, host=read_host())
    finally:
        process.wait()
