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
PROGRAM_PREFIX = "rtdebug_"

# bpf(2): numbers from include/uapi/asm-generic/unistd.h, arch/x86/entry/syscalls/syscall_64.tbl,
# include/uapi/linux/bpf.h
_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_BPF_PROG_GET_NEXT_ID, _BPF_PROG_GET_FD_BY_ID, _BPF_OBJ_GET_INFO_BY_FD = 11, 13, 15
_libc = ctypes.CDLL(None, use_errno=True)


def ours() -> frozenset[str]:
    """Return a line for each thing surely of this session: processes, and BPF objects they hold."""
    return frozenset([*_processes(), *_held_by_us()])


def snapshot() -> frozenset[str]:
    """Return also what may be of this session: unowned BPF programs, cgroups, mounts, shared memory."""
    return ours().union(_unheld_programs(), _cgroups(), _mounts(), _shared_memory())


def left_since(
    before: frozenset[str], look: Callable[[], frozenset[str]] = snapshot, patience_s: float = 3
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


def held_bpf(pid: int) -> dict[str, set[int]]:
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


def _bpf(command: int, *attribute: int) -> tuple[int, list[int]]:
    """Call bpf(2) with an attribute of 32-bit words; returns its result and the words afterwards."""
    words = (ctypes.c_uint32 * 4)(*attribute)
    return _libc.syscall(_SYS_BPF[platform.machine()], command, words, ctypes.sizeof(words)), list(words)


def programs() -> Iterator[tuple[int, str]]:
    """Yield id and name of every program on this host."""
    number = 0
    while True:
        result, words = _bpf(_BPF_PROG_GET_NEXT_ID, number)
        if result < 0:
            return
        number = words[1]
        fd, _ = _bpf(_BPF_PROG_GET_FD_BY_ID, number)
        if fd < 0:  # just unloaded
            continue
        info = ctypes.create_string_buffer(80)  # struct bpf_prog_info up to name[16], which is at 64
        address = ctypes.addressof(info)
        _bpf(_BPF_OBJ_GET_INFO_BY_FD, fd, len(info), address & 0xFFFFFFFF, address >> 32)
        os.close(fd)
        yield number, info.raw[64:].split(b"\0")[0].decode(errors="backslashreplace")


def _held_by_us() -> Iterator[str]:
    for pid in _pids():
        if pid == os.getpid() or _is_ours(pid):
            for kind, numbers in held_bpf(pid).items():
                yield from (f"BPF {kind} {number} held by pid {pid}" for number in numbers)


def _unheld_programs() -> Iterator[str]:
    """Yield rtdebug's programs of which no process holds a descriptor: those would stay attached for ever."""
    held = set[int]().union(*(held_bpf(pid)["prog"] for pid in _pids()))
    for number, name in programs():
        if name.startswith(PROGRAM_PREFIX) and number not in held:
            yield f"BPF prog {number} {name}, held by no process"


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
