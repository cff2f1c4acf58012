"""What differs between processors when a thread is borrowed for a system call: see inject.py for the method.

An architecture is a module (arch_x86_64, arch_aarch64) with the functions of `Architecture`.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rtdebug.errors import HostUnable


@dataclass(frozen=True, slots=True)
class ThreadState:
    """All of a stopped thread that a system call or a signal frame touches, as ptrace(2) gives it."""

    registers: bytes
    """NT_PRSTATUS."""
    fpu: bytes
    """The first of the regsets `FPU_REGSETS` that there is."""
    signal_mask: int


@dataclass(frozen=True, slots=True)
class Loan:
    """What makes a thread do one system call and then restore itself, with or without a tracer."""

    address: int
    """Where `frame` is to be written: below the part of the stack that is in use."""
    frame: bytes
    registers: bytes
    """Setting these is the one step that commits it."""


Gadgets = Mapping[str, int]
"""Addresses of the byte sequences in `PATTERNS`, by their names."""


class Architecture(Protocol):
    """The functions and constants of a module arch_*."""

    AUDIT_ARCH: int
    """What seccomp calls it, include/uapi/linux/audit.h."""
    MADVISE: int
    RT_SIGRETURN: int
    REGISTERS_BYTES: int
    """Length of NT_PRSTATUS; a 32-bit process has less."""
    FPU_REGSETS: tuple[int, ...]
    """Of ptrace(2), the best first: not every processor has it."""
    FRAME_MOST_BYTES: int
    """No frame with its distance from the stack pointer is larger."""
    PATTERNS: Mapping[str, bytes]
    """Machine code that is looked for in what the process has mapped executable."""
    EINTR_AFTER_STOP: frozenset[int]
    """System calls that fail with EINTR when their thread is stopped and continued, signal(7)."""

    def stack_pointer(self, registers: bytes) -> int:
        """Of NT_PRSTATUS."""
        ...

    def instruction_pointer(self, registers: bytes) -> int:
        """Of NT_PRSTATUS."""
        ...

    def result(self, registers: bytes) -> int:
        """What the system call returned: negative for an error."""
        ...

    def lend(self, state: ThreadState, gadgets: Gadgets, arguments: tuple[int, int, int]) -> Loan:
        """Build the frame and the registers for madvise(*arguments)."""
        ...


def architecture(machine: str | None = None) -> Architecture:
    """The module of this machine. Raises HostUnable for one that is not supported."""
    from rtdebug.madvise import arch_aarch64, arch_x86_64

    known: dict[str, Architecture] = {"x86_64": arch_x86_64, "aarch64": arch_aarch64}
    name = machine or platform.machine()
    if name not in known:
        raise HostUnable(
            f"a process on {name} cannot be made to call madvise",
            "COLD, PAGEOUT, WILLNEED and COLLAPSE work on every machine",
        )
    return known[name]
