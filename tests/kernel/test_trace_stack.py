"""--stack: who called, by function names of the program's own file, wherever that lies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.tracing import Event, Trace, target
from tests.kernel.workload import MIB, memory_cgroup

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the program makes its calls in x86-64 assembly"),
]

# Every call is made in the function itself: libc's wrappers have no frame pointers.
SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static inline __attribute__((always_inline)) long call(long number, long a, long b, long c, long d)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = -1, r9 __asm__("r9") = 0;
	long ret;

	__asm__ volatile("syscall"
		: "=a"(ret)
		: "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
		: "rcx", "r11", "memory");
	return ret;
}

static char *memory;

NOINLINE void stack_advise(void)
{
	call(SYS_madvise, (long)memory, 4096, MADV_DODUMP, 0);
	__asm__ volatile("");
}

NOINLINE void stack_left(void)
{
	stack_advise();
	__asm__ volatile("");
}

NOINLINE void stack_right(void)
{
	stack_advise();
	__asm__ volatile("");
}

NOINLINE void stack_map(void)
{
	call(SYS_mmap, 0, 12288, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS);
	__asm__ volatile("");
}

NOINLINE void stack_open(void)
{
	call(SYS_openat, AT_FDCWD, (long)"/dev/shm/rtdebug-stack", O_RDWR, 0);
	__asm__ volatile("");
}

int main(void)
{
	char byte;

	memory = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	write(1, "ready\n", 6);
	read(0, &byte, 1);
	for (int i = 0; i < 7; i++)
		stack_left();
	for (int i = 0; i < 11; i++)
		stack_right();
	stack_map();
	stack_open();
	write(1, "done\n", 5);
	read(0, &byte, 1);
	return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stack")
    (folder / "stack.c").write_text(SOURCE)
    flags = ["-O0", "-fno-omit-frame-pointer", "-static", "-w"]
    subprocess.run(["gcc", *flags, "-o", folder / "stacked", folder / "stack.c"], check=True)
    return folder / "stacked"


@pytest.fixture
def cgroup() -> Iterator[Path]:
    with memory_cgroup(limit_bytes=256 * MIB) as folder:
        yield folder


class Program:
    """The program at its gate, in a cgroup."""

    def __init__(self, command: list[Any], cgroup: Path) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.pid = self._process.pid
        self.hear(b"ready\n")
        (cgroup / "cgroup.procs").write_text(str(self.pid))

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    def hear(self, line: bytes) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == line

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def functions(event: Event) -> list[str]:
    """Return the function names of a stack, as far as main."""
    names = [frame.partition("+")[0] for frame in event["stack"]]
    return names[: names.index("main") + 1] if "main" in names else names


def run(command: list[Any], cgroup: Path, *options: str) -> Trace:
    with Program(command, cgroup) as running, Trace(target(cgroup), "--stack", *options) as trace:
        running.go()
        running.hear(b"done\n")
        trace.stop()
    return trace


LEFT = ["stack_advise", "stack_left", "main"]
RIGHT = ["stack_advise", "stack_right", "main"]


def test_calls_are_added_up_by_stack(program: Path, cgroup: Path) -> None:
    traced = run([program], cgroup).result
    assert {tuple(functions(line)): line["count"] for line in traced.of("madvise")} == {
        tuple(LEFT): 7,
        tuple(RIGHT): 11,
    }
    assert [functions(line) for line in traced.of("mmap", length_bytes=12288)] == [["stack_map", "main"]]
    assert [functions(line) for line in traced.of("shm_open")] == [["stack_open", "main"]]


def test_each_call_has_its_stack(program: Path, cgroup: Path) -> None:
    traced = run([program], cgroup, "--every-call", "--event", "madvise").result
    assert [functions(line) for line in traced.events] == [LEFT] * 7 + [RIGHT] * 11


def test_a_program_that_only_its_own_mount_namespace_has(program: Path, cgroup: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    mount = f"mount -t tmpfs -o size=8m rtdebug-test-stack {inner}"
    script = f"{mount} && cp {program} {inner}/hidden && exec {inner}/hidden"
    traced = run(["unshare", "--mount", "sh", "-c", script], cgroup, "--event", "madvise").result
    assert not list(inner.iterdir())
    assert sorted(functions(line) for line in traced.events) == [LEFT, RIGHT]


def test_a_program_whose_file_is_gone(program: Path, cgroup: Path, tmp_path: Path) -> None:
    copy = tmp_path / "removed"
    copy.write_bytes(program.read_bytes())
    copy.chmod(0o755)
    with Program([copy], cgroup) as running, Trace(target(cgroup), "--stack", "--event", "madvise") as trace:
        copy.unlink()
        running.go()
        running.hear(b"done\n")
        trace.stop()
    assert sorted(functions(line) for line in trace.result.events) == [LEFT, RIGHT]


def test_without_the_option_there_is_no_stack(program: Path, cgroup: Path) -> None:
    with Program([program], cgroup) as running, Trace(target(cgroup)) as trace:
        running.go()
        running.hear(b"done\n")
        trace.stop()
    assert trace.result.events
    assert not [line for line in trace.result.events if "stack" in line]


def test_a_process_that_has_ended_before_its_stacks_are_read(program: Path, cgroup: Path) -> None:
    """Its memory map is gone: what is not known is not guessed, and nothing breaks."""
    with Program([program], cgroup) as running, Trace(target(cgroup), "--stack", "--event", "madvise") as trace:
        running.go()
        running.hear(b"done\n")
        running.go()
        trace.stop()
    traced = trace.result
    assert traced.returncode == 0
    assert traced.count("madvise") == 18
    for line in traced.events:
        assert functions(line) in (LEFT, RIGHT) or all(frame.startswith("[unknown]") for frame in line["stack"])


def test_a_recording_keeps_the_stacks(program: Path, cgroup: Path, tmp_path: Path) -> None:
    recording = tmp_path / "stacks.rtd"
    run([program], cgroup, "--record", str(recording))
    command = [sys.executable, "-m", "rtdebug", "report", str(recording), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = {(line["event"], *functions(line)) for line in lines if line.get("stack")}
    assert {("madvise", *LEFT), ("madvise", *RIGHT), ("shm_open", "stack_open", "main")} <= found
