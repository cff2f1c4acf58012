"""Whether a process can be made to call madvise itself, asked before it is touched."""

from __future__ import annotations

import os
from pathlib import Path

from rtdebug.errors import HostUnable, RtdebugError, TargetError
from rtdebug.host.maps import Mapping, MappingKind
from rtdebug.host.process import read_comm, read_stat
from rtdebug.host.text import parse_int, read_text

_SECCOMP_STRICT = "1"
_MALLOC_HEAP_BYTES = 64 << 20
"""Heaps of glibc's malloc begin at multiples of it; so do those of Go."""


class CannotInject(RtdebugError):
    """The process cannot be made to make a system call."""


def parse_status(text: str) -> dict[str, str]:
    """The `Key:\tvalue` lines of /proc/PID/status."""
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.split("\n"))}


def thp_disabled(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether it has prctl(PR_SET_THP_DISABLE), which takes huge pages from it; False where the kernel does not say."""
    return parse_status(read_text(proc / str(pid) / "status") or "").get("THP_enabled") == "0"


def check_process(pid: int, proc: Path = Path("/proc")) -> None:
    """Refuse a process that is none, is another's, or is such that it might not survive.

    Raises TargetError for a process that has ended or has no memory, CannotInject, HostUnable.
    """
    stat = read_stat(pid, proc)
    status = parse_status(read_text(proc / str(pid) / "status") or "")
    if stat is None or not status or stat.state in "ZX":
        raise TargetError(f"process {pid} has exited", "rtdebug madvise list TARGET shows what there is now")
    if "VmSize" not in status:
        raise TargetError(f"process {pid} ({stat.comm!r}) is a thread of the kernel", "it has no memory to advise on")
    if pid == os.getpid():
        raise CannotInject("that is rtdebug itself", "give the pid of a process of the container")
    _check_tracer(pid, status.get("TracerPid", "0"), proc)
    if stat.state == "T":
        raise CannotInject(f"process {pid} is stopped", f"let it run first: kill -CONT {pid}")
    if status.get("Seccomp") == _SECCOMP_STRICT:
        raise CannotInject(
            f"process {pid} is in seccomp's strict mode: madvise would kill it",
            "COLD, PAGEOUT, WILLNEED and COLLAPSE need nothing from the process",
        )
    if "shstk" in status.get("x86_Thread_features", "").split():
        raise CannotInject(
            f"process {pid} has a shadow stack, which forbids the way rtdebug would take",
            "COLD, PAGEOUT, WILLNEED and COLLAPSE need nothing from the process",
        )
    _check_yama(proc)


def stacks(mappings: list[Mapping]) -> list[Mapping]:
    """Mappings that are stacks of threads for sure, with nothing of the program's below what is in use.

    The kernel's own [stack], and memory right above a guard. Not the stacks of goroutines and other coroutines: those
    are pieces of a heap, and what lies below them may be somebody's.
    """
    found = []
    guard_end = None
    for mapping in mappings:
        is_plain = mapping.kind in (MappingKind.ANON, MappingKind.ANON_NAME) and mapping.perms == "rw-p"
        guarded = is_plain and guard_end == mapping.start and mapping.start % _MALLOC_HEAP_BYTES != 0
        if guarded or mapping.kind is MappingKind.STACK:
            found.append(mapping)
        guard_end = mapping.end if mapping.perms == "---p" else None
    return found


def _check_tracer(pid: int, tracer: str, proc: Path) -> None:
    tracer_pid = parse_int(tracer)
    if tracer_pid:
        comm = read_comm(tracer_pid, proc)
        raise CannotInject(
            f"process {pid} is traced already, by process {tracer_pid} ({comm!r})",
            "only one can at a time: end that debugger, or its strace, first",
        )


def _check_yama(proc: Path) -> None:
    if read_text(proc / "sys/kernel/yama/ptrace_scope") == "3\n":
        raise HostUnable(
            "this host forbids ptrace(2)",
            "kernel.yama.ptrace_scope is 3, which only a reboot can change; "
            "COLD, PAGEOUT, WILLNEED and COLLAPSE work without it",
        )
