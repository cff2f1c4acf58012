"""What a test run can leave behind on a host: BPF objects, processes, cgroups, mounts, shared memory.

`snapshot()` before, `snapshot()` after: the difference is what was left. Processes are known by an
environment variable that all descendants inherit, so other people's processes are never taken for ours.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

MARK = "RTDEBUG_TEST_SESSION"
# A session inside another one (a test that runs pytest) has a mark of its own.
SESSION = uuid.uuid4().hex
PREFIX = "rtdebug-"

# bpf(2): numbers from include/uapi/asm-generic/unistd.h, arch/x86/entry/syscalls/syscall_64.tbl,
# include/uapi/linux/bpf.h
_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_BPF_PROG_GET_NEXT_ID = 11
_libc = ctypes.CDLL(None, use_errno=True)


def ours() -> frozenset[str]:
    """Return a line for each thing surely of this session: processes, and BPF objects they hold."""
    return frozenset([*_processes(), *_held_by_us()])


def snapshot() -> frozenset[str]:
    """Return also what may be of this session: unowned BPF programs, cgroups, mounts, shared memory."""
    return ours().union(_unheld_programs(), _cgroups(), _mounts(), _shared_memory())


def left_since(
    before: frozenset[str], look: Callable[[], frozenset[str]] = snapshot, patience_s: float = 5
) -> list[str]:
    """Return what is there now and was not before. What is just being taken down gets some time."""
    deadline = time.monotonic() + patience_s
    while left := sorted(look() - before):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return left


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _is_ours(pid: int) -> bool:
    try:
        return f"{MARK}={SESSION}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or a zombie
        return False


def _processes() -> Iterator[str]:
    for pid in _pids():
        if pid != os.getpid() and _is_ours(pid):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            if command:  # none: it has just ended
                yield f"process {pid}: {command[:100].decode(errors='backslashreplace')}"


def _held_bpf(pid: int) -> dict[str, set[int]]:
    """Return the ids of the BPF objects a process holds descriptors of, by kind."""
    held: dict[str, set[int]] = {"prog": set(), "map": set(), "link": set()}
    for fdinfo in Path(f"/proc/{pid}/fdinfo").glob("*"):
        try:
            text = fdinfo.read_text()
        except OSError:
            continue
        for kind, number in re.findall(r"^(prog|map|link)_id:\s*(\d+)", text, re.MULTILINE):
            held[kind].add(int(number))
    return held


def _program_ids() -> Iterator[int]:
    attribute = (ctypes.c_uint32 * 3)()
    call = [_SYS_BPF[platform.machine()], _BPF_PROG_GET_NEXT_ID, attribute, ctypes.sizeof(attribute)]
    while _libc.syscall(*call) == 0:
        attribute[0] = attribute[1]
        yield attribute[0]


def _held_by_us() -> Iterator[str]:
    for pid in _pids():
        if pid == os.getpid() or _is_ours(pid):
            for kind, numbers in _held_bpf(pid).items():
                yield from (f"BPF {kind} {number} held by pid {pid}" for number in numbers)


def _unheld_programs() -> Iterator[str]:
    """Yield the programs of which no process holds a descriptor: those would stay attached for ever."""
    held = set[int]().union(*(_held_bpf(pid)["prog"] for pid in _pids()))
    return (f"BPF prog {number}, held by no process" for number in _program_ids() if number not in held)


def _cgroups() -> Iterator[str]:
    for folder, names, _ in os.walk("/sys/fs/cgroup"):
        yield from (f"cgroup {folder}/{name}" for name in names if name.startswith(PREFIX))


def _mounts() -> Iterator[str]:
    lines = Path("/proc/self/mountinfo").read_text(errors="backslashreplace").splitlines()
    return (f"mount {line.split()[4]}" for line in lines if PREFIX in line)


def _shared_memory() -> Iterator[str]:
    yield from (f"shared memory {path}" for path in Path("/dev/shm").glob(f"{PREFIX}*"))
    for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
        key, number = line.split()[:2]
        yield f"System V segment {number}, key {key}"
