"""Who and what is traced: each filter with a case that sees it and one that does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.runtime_fixtures import Runc, call, make_rootfs
from tests.kernel.tracing import PAGE, Script, Trace, Traced, run_traced, script_traced, target, wait_until
from tests.kernel.workload import MIB, Workload, build, memory_cgroup, plain_cgroup

pytestmark = pytest.mark.kernel

X86 = os.uname().machine == "x86_64"
ADVISE = f"""
import mmap
area = mmap.mmap(-1, mmap.PAGESIZE)
address = ctypes.addressof(ctypes.c_char.from_buffer(area))
def advise(count, advice=4, length=mmap.PAGESIZE):
    for _ in range(count):
        call({28 if X86 else 233}, address, length, advice)
"""


@pytest.fixture
def cgroup() -> Iterator[Path]:
    with memory_cgroup(limit_bytes=256 * MIB) as folder:
        yield folder


@pytest.fixture
def other() -> Iterator[Path]:
    with memory_cgroup(limit_bytes=256 * MIB) as folder:
        yield folder


# --- options ---


@pytest.mark.parametrize("every_call", [False, True])
def test_event(cgroup: Path, every_call: bool) -> None:
    options = ["--every-call"] if every_call else []
    traced, _, _ = run_traced(cgroup, ["--event", "munmap", *options], "mmap", 7, PAGE)
    assert traced.count("munmap") == 7
    assert {event["event"] for event in traced.events} == {"munmap"}


def test_several_events(cgroup: Path) -> None:
    traced, _, _ = run_traced(cgroup, ["--event", "shm_open", "--event", "shm_unlink"], "shm_posix", 3, PAGE)
    assert [event["event"] for event in traced.events] == ["shm_open"] * 3 + ["shm_unlink"] * 3


def test_an_event_that_does_not_come_gives_no_line(cgroup: Path) -> None:
    traced, _, _ = run_traced(cgroup, ["--event", "oom_kill"], "madvise", 7, "MADV_DONTDUMP")
    assert traced.events == ()
    assert traced.summary is not None
    assert traced.summary["events"] == 0


def test_pid(cgroup: Path) -> None:
    with (
        Workload("madvise", 7, "MADV_DONTDUMP", cgroup=cgroup) as one,
        Workload("madvise", 11, "MADV_DONTDUMP", cgroup=cgroup) as another,
        Trace(target(cgroup), "--pid", one.pid) as trace,
    ):
        for workload in (one, another):
            workload.go()
            workload.finish()
    assert trace.result.count("madvise") == trace.result.count("madvise", pid=one.pid) == 7


def test_pid_does_not_mean_its_children(cgroup: Path) -> None:
    with (
        Workload("fork_exec", 3, 1, 7, cgroup=cgroup) as workload,
        Trace(target(cgroup), "--pid", workload.pid) as trace,
    ):
        workload.go()
        workload.finish()
    assert not trace.result.of("madvise")
    assert {event["pid"] for event in trace.result.events} <= {workload.pid}


def test_pid_that_is_not_in_the_container(cgroup: Path, other: Path) -> None:
    with Workload("pause", cgroup=other) as outside:
        command = ["trace", target(cgroup), "--pid", str(outside.pid)]
        done = call_rtdebug(*command)
    assert done.returncode == 4
    assert f"process {outside.pid} is not in" in done.stderr
    assert done.stdout == ""


def call_rtdebug(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rtdebug", *arguments], capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize(("comm", "count"), [("madvise", 23), ("madvis", 0), ("madvise2", 0)])
def test_comm(cgroup: Path, comm: str, count: int) -> None:
    traced, _, _ = run_traced(cgroup, ["--comm", comm], "madvise", 23, "MADV_DONTDUMP")
    assert traced.count("madvise") == count


def test_comm_is_the_threads_and_is_cut_as_the_kernel_cuts_it(cgroup: Path) -> None:
    text = (
        ADVISE
        + """
import threading
def named(name, count):
    _libc.prctl(15, name)
    advise(count, 17)  # not 4: with that libc gives back the stack of a thread that ends
for name, count in ((b"a-name-beyond-15-bytes", 5), (b"a-name-beyond-1", 3), (b"a-name-beyond-", 7), (b"another", 11)):
    thread = threading.Thread(target=named, args=(name, count))
    thread.start()
    thread.join()
say(done=True)
"""
    )
    options = ["--event", "madvise", "--comm", "a-name-beyond-15-bytes"]
    traced, _, _ = script_traced(text, cgroup, *options)
    assert traced.count("madvise", advice="MADV_DODUMP") == 8


def test_min_bytes(cgroup: Path) -> None:
    for least, count in ((3 * PAGE, 13), (3 * PAGE + 1, 0)):
        traced, _, _ = run_traced(cgroup, ["--min-bytes", least, "--event", "madvise"], "madvise", 13, 4, 3 * PAGE)
        assert traced.count("madvise") == count


def test_min_bytes_of_a_heap_that_shrinks(cgroup: Path) -> None:
    options = ["--min-bytes", 2 * PAGE, "--every-call", "--event", "brk"]
    traced, _, _ = run_traced(cgroup, options, "mmap", 5, 2 * PAGE, "brk")
    assert [line["length_bytes"] for line in traced.of("brk")] == [2 * PAGE] * 5 + [-2 * PAGE] * 5


# --- the target ---


def run_both(cgroup: Path, other: Path, *arguments: object) -> tuple[Traced, int, int]:
    """Run the same calls in two cgroups, 7 in one and 11 in the other."""
    with (
        Workload("madvise", 7, "MADV_DONTDUMP", cgroup=cgroup) as one,
        Workload("madvise", 11, "MADV_DONTDUMP", cgroup=other) as bystander,
        Trace(*arguments) as trace,
    ):
        for workload in (one, bystander):
            workload.go()
            workload.finish()
    return trace.result, one.pid, bystander.pid


def test_a_bystander_is_not_seen(cgroup: Path, other: Path) -> None:
    traced, pid, _ = run_both(cgroup, other, target(cgroup))
    assert traced.count("madvise") == 7
    assert {event["pid"] for event in traced.events} == {pid}


def test_all_sees_both(cgroup: Path, other: Path) -> None:
    traced, pid, bystander = run_both(cgroup, other, "--all", "--comm", "madvise")
    assert traced.count("madvise", pid=pid, cgroup=f"/{cgroup.name}") == 7
    assert traced.count("madvise", pid=bystander, cgroup=f"/{other.name}") == 11


def test_two_traces_at_once_each_see_their_own(cgroup: Path, other: Path) -> None:
    with (
        Workload("madvise", 7, "MADV_DONTDUMP", cgroup=cgroup) as one,
        Workload("madvise", 11, "MADV_DONTDUMP", cgroup=other) as two,
        Trace(target(cgroup)) as first,
        Trace(target(other)) as second,
    ):
        for workload in (one, two):
            workload.go()
            workload.finish()
    assert first.result.count("madvise") == first.result.count("madvise", pid=one.pid) == 7
    assert second.result.count("madvise") == second.result.count("madvise", pid=two.pid) == 11


def test_pid_as_a_target_follows_its_descendants_only(cgroup: Path) -> None:
    with (
        Workload("fork_exec", 3, 5, 7, cgroup=cgroup) as one,
        Workload("madvise", 11, "MADV_DONTDUMP", cgroup=cgroup) as bystander,
        Trace(f"pid:{one.pid}", "--event", "madvise", "--every-call") as trace,
    ):
        bystander.go()
        bystander.finish()
        one.go()
        one.finish()
    assert len(trace.result.of("madvise", length_bytes=PAGE)) == 105
    assert not trace.result.of("madvise", pid=bystander.pid)


# --- who is followed ---


@pytest.mark.parametrize("every_call", [False, True])
def test_forks_execs_and_threads(cgroup: Path, every_call: bool) -> None:
    options = ["--event", "madvise", *(["--every-call"] if every_call else [])]
    with Workload("fork_exec", 3, 5, 7, cgroup=cgroup) as workload, Trace(target(cgroup), *options) as trace:
        workload.go()
        done = workload.finish()
    children = {int(step.values["pid"]) for step in done.steps if step.name == "child"}
    lines = trace.result.of("madvise", advice="MADV_DONTNEED")
    assert {line["pid"] for line in lines} == children
    if every_call:
        own = [line for line in lines if line["length_bytes"] == PAGE]
        assert len({line["tid"] for line in own}) == 15
        assert len(own) == 105
    else:  # libc may give back the stacks of the 15 threads, too
        assert sum(line["count"] for line in lines) in (105, 105 + 15)


def test_a_program_started_in_the_container_has_its_name(cgroup: Path) -> None:
    text = f"os.execv({str(build('madvise'))!r}, ['madvise', '23', 'MADV_DONTDUMP'])"
    with Script(text, cgroup=cgroup) as script, Trace(target(cgroup)) as trace:
        script.go()
        script.finish()
    assert trace.result.count("madvise", comm="madvise", pid=script.pid, advice="MADV_DONTDUMP") == 23


def test_a_daemon_is_followed(cgroup: Path) -> None:
    text = (
        ADVISE
        + """
read_fd, write_fd = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while os.getppid() != 1 and os.getppid() == os.getsid(0):
            time.sleep(0.001)
        advise(13, 17)
        os.write(write_fd, str(os.getpid()).encode())
        os._exit(0)
    os._exit(0)
os.wait()
say(daemon=int(os.read(read_fd, 20)))
"""
    )
    traced, said, pid = script_traced(text, cgroup, "--event", "madvise")
    assert said["daemon"] != pid
    assert traced.count("madvise", pid=said["daemon"], advice="MADV_DODUMP") == 13


def test_a_process_that_enters_and_one_that_leaves(cgroup: Path, other: Path) -> None:
    text = (
        ADVISE
        + """
for count in (7, 11, 13):
    advise(count)
    say(done=count)
    wait()
"""
    )
    with Script(text, cgroup=other) as script, Trace(target(cgroup), "--event", "madvise", "--every-call") as trace:
        script.go()
        script.hear()
        (cgroup / "cgroup.procs").write_text(str(script.pid))
        script.go()
        script.hear()
        (other / "cgroup.procs").write_text(str(script.pid))
        script.go()
        script.hear()
        script.go()
        script.finish()
    lines = trace.result.of("madvise", pid=script.pid)
    assert len(lines) == 11
    assert {line["cgroup"] for line in lines} == {f"/{cgroup.name}"}
    assert {line["comm"] for line in lines} == {Path(sys.executable).name[:15]}


def test_a_child_of_one_that_left_is_not_followed(cgroup: Path, other: Path) -> None:
    text = (
        ADVISE
        + """
say(ready=True)
wait()
if os.fork() == 0:
    advise(7)
    os._exit(0)
os.wait()
say(done=True)
"""
    )
    with Script(text, cgroup=cgroup) as script, Trace(target(cgroup), "--event", "madvise") as trace:
        script.go()
        script.hear()
        (other / "cgroup.procs").write_text(str(script.pid))
        script.go()
        script.hear()
        script.finish()
    assert not trace.result.of("madvise")


def test_cgroups_made_within_after_the_start(cgroup: Path) -> None:
    with (
        Trace(target(cgroup), "--event", "madvise") as trace,
        plain_cgroup(cgroup) as nested,
        plain_cgroup(nested) as deeper,
    ):
        with Workload("madvise", 7, "MADV_DONTDUMP", cgroup=nested) as one:
            one.go()
            one.finish()
        with Workload("madvise", 11, "MADV_DONTDUMP", cgroup=deeper) as two:
            two.go()
            two.finish()
    assert trace.result.count("madvise", pid=one.pid, cgroup=f"/{cgroup.name}/{nested.name}") == 7
    assert trace.result.count("madvise", pid=two.pid, cgroup=f"/{cgroup.name}/{nested.name}/{deeper.name}") == 11


def test_cgroups_made_within_before_the_start(cgroup: Path) -> None:
    with (
        plain_cgroup(cgroup) as nested,
        Workload("madvise", 7, "MADV_DONTDUMP", cgroup=nested) as workload,
        Trace(target(cgroup)) as trace,
    ):
        workload.go()
        workload.finish()
    assert trace.result.count("madvise", cgroup=f"/{cgroup.name}/{nested.name}") == 7


def test_a_trace_of_a_nested_cgroup_does_not_see_its_parent(cgroup: Path) -> None:
    with plain_cgroup(cgroup) as nested:
        traced, pid, _ = run_both(nested, cgroup, target(nested))
    assert traced.count("madvise") == traced.count("madvise", pid=pid) == 7


def test_a_move_into_a_nested_cgroup_goes_on(cgroup: Path) -> None:
    text = ADVISE + "advise(7)\nsay(done=True)\nwait()\nadvise(11)\nsay(done=True)\n"
    with (
        plain_cgroup(cgroup) as nested,
        Script(text, cgroup=cgroup) as script,
        Trace(target(cgroup), "--event", "madvise", "--every-call") as trace,
    ):
        script.go()
        script.hear()
        (nested / "cgroup.procs").write_text(str(script.pid))
        script.go()
        script.hear()
        script.finish()
    assert trace.result.count("madvise", pid=script.pid) == 18


def test_the_trace_ends_when_the_cgroup_is_removed() -> None:
    with memory_cgroup(64 * MIB) as folder:
        trace = Trace(target(folder))
        trace.__enter__()
        try:
            with Workload("madvise", 7, "MADV_DONTDUMP", cgroup=folder) as workload:
                workload.go()
                workload.finish()
            wait_until(lambda: not (folder / "cgroup.procs").read_text(), "the workload to be reaped")
            folder.rmdir()
            traced = trace.finish()
            folder.mkdir()  # for memory_cgroup to remove
        finally:
            trace.__exit__(None)
    assert traced.returncode == 0
    assert traced.count("madvise") == 7
    assert traced.summary is not None


# --- 32-bit programs ---

COMPAT = r"""
static int call(int number, int a, int b, int c)
{
	int ret;
	__asm__ volatile("int $0x80" : "=a"(ret) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
	return ret;
}

void _start(void)
{
	char byte;

	call(4, 1, (int)"ready\n", 6);
	call(3, 0, (int)&byte, 1);
	for (int i = 0; i < 23; i++) {
		call(28, -1, 0, 0);     /* fstat; madvise of a 64-bit program */
		call(9, 0, 0, 0);       /* link; mmap */
		call(12, 0, 0, 0);      /* chdir; brk */
		call(25, 0, 0, 0);      /* stime; mremap */
		call(257, 0, 0, 0);     /* remap_file_pages; openat */
	}
	call(11, (int)PROGRAM, (int)(char *[]){ PROGRAM, "7", "MADV_DONTDUMP", 0 }, 0);   /* execve; munmap */
	call(1, 9, 0, 0);
}
"""


@pytest.mark.skipif(not X86, reason="x86 only")
@pytest.mark.parametrize("entering", ["by exec", "at the start"])
def test_a_32_bit_program_is_not_misread(cgroup: Path, tmp_path: Path, entering: str) -> None:
    source, program = tmp_path / "compat.c", tmp_path / "compat"
    source.write_text(COMPAT.replace("PROGRAM", f'"{build("madvise")}"'))
    flags = ["-m32", "-O1", "-nostdlib", "-static", "-ffreestanding", "-fno-pic", "-no-pie", "-fno-stack-protector"]
    subprocess.run(["gcc", *flags, "-o", program, source], check=True)
    text = f"os.execv({str(program)!r}, ['compat'])"
    with Script(text, cgroup=cgroup) as script:
        if entering == "at the start":
            script.go()
            assert next(script.lines()) == "ready\n"
        with Trace(target(cgroup), "--every-call") as trace:
            if entering == "by exec":
                script.go()
                assert next(script.lines()) == "ready\n"
            notice = trace.wait_for_notice("32-bit")
            script.go()
            assert script.finish() == 0
    assert f"process {script.pid} runs a 32-bit program" in notice
    # the 64-bit program that it becomes in the end is decoded again
    assert trace.result.count("madvise", advice="MADV_DONTDUMP") == 7
    assert not trace.result.of("munmap", comm="compat")
    assert not [event for event in trace.result.events if event["comm"] == "compat"]


# --- containers ---


@pytest.fixture
def runc(tmp_path: Path) -> Iterator[Runc]:
    rootfs = make_rootfs(tmp_path / "rootfs")
    for name in ("madvise", "shm_posix", "oom"):
        (rootfs / "bin" / name).write_bytes(build(name).read_bytes())
        (rootfs / "bin" / name).chmod(0o755)
    os.mkfifo(rootfs / "gate")
    containers = Runc(tmp_path, rootfs)
    try:
        yield containers
    finally:
        containers.close()


def test_a_container_and_what_enters_it(runc: Runc) -> None:
    script = "read x </gate; madvise 23 MADV_DONTDUMP; sleep 100 & wait"
    box = runc.start(f"rtdebug-filters-{os.getpid()}", script=script)
    with Trace(f"runc:{box.id}") as trace:
        (runc.rootfs / "gate").write_text("\n")
        trace.wait_for("madvise", advice="MADV_DONTDUMP")
        call("runc", "exec", box.id, "/bin/madvise", "11", "MADV_DODUMP")
        call("runc", "exec", box.id, "/bin/shm_posix", "3", "8192", "unlink", "box")
        traced = trace.stop()
    assert traced.count("madvise", advice="MADV_DONTDUMP") == 23
    assert traced.count("madvise", advice="MADV_DODUMP") == 11
    opened = traced.of("shm_open")
    assert [line["path"].rpartition("-")[2] for line in opened] == ["0", "1", "2"]
    identities = {(e["container_id"], e["runtime"], e["cgroup"]) for e in traced.events}
    assert identities == {(box.id, "runc", f"/{box.id}")}
    # the pid as the container sees it: small, where the host's is not
    assert {line["ns_pid"] for line in opened} < set(range(2, 100))
    assert opened[0]["path"] == f"/dev/shm/box-{opened[0]['ns_pid']}-0"
    # runc's own calls on its way in are not the container's
    assert not [event for event in traced.events if str(event["comm"]).startswith("runc")]


def test_the_trace_ends_with_its_container(runc: Runc) -> None:
    box = runc.start(f"rtdebug-filters-{os.getpid()}-end", script="read x </gate; madvise 7 MADV_DONTDUMP")
    with Trace(box.id) as trace:
        (runc.rootfs / "gate").write_text("\n")
        traced = trace.finish()
    assert traced.returncode == 0
    assert traced.count("madvise", advice="MADV_DONTDUMP") == 7
    assert traced.summary is not None
    assert traced.summary["lost_events"] == 0


def test_the_same_in_another_container_is_not_seen(runc: Runc) -> None:
    boxes = [
        runc.start(f"rtdebug-filters-{os.getpid()}-{number}", script="sleep 100 & wait") for number in range(2)
    ]
    with Trace(boxes[0].id) as trace:
        call("runc", "exec", boxes[1].id, "/bin/madvise", "11", "MADV_DODUMP")
        call("runc", "exec", boxes[0].id, "/bin/madvise", "7", "MADV_DODUMP")
        traced = trace.stop()
    assert traced.count("madvise") == traced.count("madvise", advice="MADV_DODUMP") == 7


def test_a_container_killed_in_the_middle(runc: Runc) -> None:
    box = runc.start(f"rtdebug-filters-{os.getpid()}-kill", script="read x </gate; madvise 7 MADV_DONTDUMP; sleep 100")
    with Trace(box.id) as trace:
        (runc.rootfs / "gate").write_text("\n")
        trace.wait_for("madvise")
        os.kill(box.pid, signal.SIGKILL)
        traced = trace.finish()
    assert (traced.returncode, traced.count("madvise", advice="MADV_DONTDUMP")) == (0, 7)
    assert traced.summary is not None
