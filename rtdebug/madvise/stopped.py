"""What is looked at when a thread has been stopped and not changed yet: may it be borrowed, here and now?"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import HostUnable
from rtdebug.host.maps import Mapping
from rtdebug.host.text import read_text
from rtdebug.madvise.arch import Architecture, Gadgets
from rtdebug.madvise.seccomp import SystemCall, objection
from rtdebug.madvise.tracee import Tracee


class Unfit(Exception):
    """This thread will not do; the text says why."""


class UnfitNow(Unfit):
    """Not where it is now; it is not touched yet, and in a moment it will be elsewhere."""


@dataclass(frozen=True, slots=True)
class Process:
    """What must be known of a process before a thread of it is stopped."""

    pid: int
    start_ticks: int
    machine: Architecture
    gadgets: Gadgets
    stacks: tuple[Mapping, ...]
    proc: Path


def check_stack(process: Process, stack_pointer: int) -> None:
    """There must be room for the frame, on memory that is a stack and nothing else."""
    lowest = stack_pointer - process.machine.FRAME_MOST_BYTES
    if not any(stack.start <= lowest and stack_pointer <= stack.end for stack in process.stacks):
        raise UnfitNow("it runs on a stack that may be a part of something else (a coroutine's), or is nearly full")


def check_code(process: Process, memory_fd: int) -> None:
    """The machine code must be where it was found."""
    for name, pattern in process.machine.PATTERNS.items():
        if os.pread(memory_fd, len(pattern), process.gadgets[name]) != pattern:
            raise Unfit("the program was replaced (execve) meanwhile")


def check_thread(tracee: Tracee, process: Process, memory_fd: int, registers: bytes) -> None:
    """In a restartable sequence it must be let go and stopped elsewhere: it counts on not being interrupted."""
    if tracee.dispatches_syscalls():
        raise Unfit("its system calls are dispatched to itself (PR_SET_SYSCALL_USER_DISPATCH)")
    rseq = tracee.rseq()
    section = _words(memory_fd, rseq.section_address, 1)[0] if rseq else 0
    if section:
        _, start, length = _words(memory_fd, section, 3)  # struct rseq_cs
        if 0 <= process.machine.instruction_pointer(registers) - start < length:
            raise UnfitNow("it is in a restartable sequence")


def _words(memory_fd: int, address: int, count: int) -> tuple[int, ...]:
    try:
        return struct.unpack(f"<{count}Q", os.pread(memory_fd, 8 * count, address))
    except (OSError, OverflowError, struct.error):
        raise UnfitNow("its struct rseq cannot be read") from None


def check_seccomp(tracee: Tracee, process: Process, arguments: tuple[int, int, int]) -> None:
    """Its filters must let both system calls through. Raises HostUnable if they cannot be read."""
    status = read_text(process.proc / f"{process.pid}/task/{tracee.tid}/status") or ""
    if "\nSeccomp:\t2" not in status:
        return
    try:
        filters = tracee.seccomp_filters()
    except OSError as error:
        raise HostUnable(
            f"process {process.pid} has a seccomp filter that cannot be read: {error.strerror}",
            "so it is not known what it does to madvise; reading it needs CAP_SYS_ADMIN, no seccomp filter on rtdebug\n"
            "itself, and a kernel with CONFIG_CHECKPOINT_RESTORE",
        ) from None
    machine = process.machine
    for name, number, values in (("madvise", machine.MADVISE, arguments), ("rt_sigreturn", machine.RT_SIGRETURN, ())):
        call = SystemCall(number, machine.AUDIT_ARCH, min(process.gadgets.values()), values)
        if verdict := objection(filters, call):
            raise Unfit(f"its seccomp filter {verdict} when it calls {name}")
