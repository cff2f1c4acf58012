"""One thread under ptrace(2), seized: it is not stopped by that, and runs on when its tracer ends, however it ends.

Stops are waited for with a deadline: a thread in uninterruptible sleep (state D) stops when it wakes, or never.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import signal
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rtdebug.madvise.syscalls import libc, syscall

_SYS_PTRACE = {"x86_64": 101, "aarch64": 117}
_CONT, _DETACH, _SYSCALL = 7, 17, 24
_GETREGSET, _SETREGSET, _SEIZE, _INTERRUPT = 0x4204, 0x4205, 0x4206, 0x4207
_GETSIGMASK, _SETSIGMASK, _SECCOMP_GET_FILTER = 0x420A, 0x420B, 0x420C
_GET_RSEQ_CONFIGURATION, _GET_SYSCALL_USER_DISPATCH_CONFIG = 0x420F, 0x4211
# Without it a tracer's death at a system call's stop would send the thread a SIGTRAP.
_O_TRACESYSGOOD = 1
_WALL = 0x40000000
_EVENT_STOP = 128
_NT_PRSTATUS = 1
_MOST_REGSET_BYTES = 1 << 14  # with AMX it is 11 KiB
_MOST_INSTRUCTIONS = 4096
_SIGMASK_BYTES = 8
_RSEQ_CS_OFFSET = 8  # in struct rseq
_LOOK_EVERY_S = 0.01
"""Also without SIGCHLD, which another thread of ours may have taken (numpy's libraries start some)."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a thread stopped, or ended."""

    signal: int
    """0: it has ended."""
    is_event: bool
    """PTRACE_EVENT_STOP: asked for, or together with its process, then `signal` is SIGSTOP or the like."""
    is_syscall: bool

    @property
    def has_ended(self) -> bool:
        """It will not stop again."""
        return self.signal == 0

    @property
    def is_group_stop(self) -> bool:
        """The whole process is stopped."""
        return self.is_event and self.signal != signal.SIGTRAP


@dataclass(frozen=True, slots=True)
class Rseq:
    """Where a thread's struct rseq is, rseq(2)."""

    address: int

    @property
    def section_address(self) -> int:
        """Where the pointer to its critical section is."""
        return self.address + _RSEQ_CS_OFFSET


class Tracee:
    """A thread that we have seized. SIGCHLD must be blocked, so that a stop ends the waiting."""

    def __init__(self, tid: int) -> None:
        """Raises OSError: EPERM if it is traced already, or may not be."""
        self.tid = tid
        _ptrace(_SEIZE, tid, 0, _O_TRACESYSGOOD)

    def interrupt(self) -> None:
        """Have it stop before it next runs in user mode."""
        _ptrace(_INTERRUPT, self.tid)

    def resume(self, with_signal: int = 0) -> None:
        """Let it run to the next stop."""
        _ptrace(_CONT, self.tid, 0, with_signal)

    def resume_to_syscall(self, with_signal: int = 0) -> None:
        """Let it run to the begin or the end of a system call."""
        _ptrace(_SYSCALL, self.tid, 0, with_signal)

    def detach(self) -> None:
        """Let it run on alone."""
        _ptrace(_DETACH, self.tid)

    def wait(self, timeout_s: float) -> Stop | None:
        """The next stop; None if there is none in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            found, status = os.waitpid(self.tid, os.WNOHANG | _WALL)
            if found:
                return _parse(status)
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            signal.sigtimedwait([signal.SIGCHLD], min(left, _LOOK_EVERY_S))

    def registers(self) -> bytes:
        """NT_PRSTATUS."""
        return self._regset(_NT_PRSTATUS)

    def set_registers(self, registers: bytes) -> None:
        """Set NT_PRSTATUS, all of it in one step."""
        _ptrace_regset(_SETREGSET, self.tid, _NT_PRSTATUS, bytearray(registers))

    def regset(self, kinds: Sequence[int]) -> bytes:
        """The first of these sets of registers that the processor has."""
        *others, last = kinds
        for kind in others:
            try:
                return self._regset(kind)
            except OSError as error:
                if error.errno != errno.ENODEV:
                    raise
        return self._regset(last)

    def _regset(self, kind: int) -> bytes:
        buffer = bytearray(_MOST_REGSET_BYTES)
        length = _ptrace_regset(_GETREGSET, self.tid, kind, buffer)
        return bytes(buffer[:length])

    def signal_mask(self) -> int:
        """The blocked signals, as they are when no system call has put others in their place for its time."""
        buffer = bytearray(_SIGMASK_BYTES)
        _ptrace_buffer(_GETSIGMASK, self.tid, _SIGMASK_BYTES, buffer)
        return int.from_bytes(buffer, "little")

    def set_signal_mask(self, mask: int) -> None:
        """Block these signals."""
        _ptrace_buffer(_SETSIGMASK, self.tid, _SIGMASK_BYTES, bytearray(mask.to_bytes(_SIGMASK_BYTES, "little")))

    def seccomp_filters(self) -> list[bytes]:
        """Its filters as arrays of struct sock_filter.

        Raises OSError: EACCES without CAP_SYS_ADMIN, EIO for a kernel without CONFIG_CHECKPOINT_RESTORE.
        """
        filters: list[bytes] = []
        buffer = bytearray(_MOST_INSTRUCTIONS * 8)
        while True:
            try:
                length = _ptrace_buffer(_SECCOMP_GET_FILTER, self.tid, len(filters), buffer)
            except FileNotFoundError:  # there are no more
                return filters
            filters.append(bytes(buffer[: length * 8]))

    def rseq(self) -> Rseq | None:
        """None if it has none, or the kernel does not tell (before 5.13)."""
        buffer = bytearray(24)  # struct ptrace_rseq_configuration
        try:
            _ptrace_buffer(_GET_RSEQ_CONFIGURATION, self.tid, len(buffer), buffer)
        except OSError:
            return None
        (address,) = struct.unpack_from("<Q", buffer)
        return Rseq(address) if address else None

    def dispatches_syscalls(self) -> bool:
        """Whether its system calls become signals (PR_SET_SYSCALL_USER_DISPATCH); before 6.4 not known: False."""
        buffer = bytearray(32)  # struct ptrace_sud_config
        try:
            _ptrace_buffer(_GET_SYSCALL_USER_DISPATCH_CONFIG, self.tid, len(buffer), buffer)
        except OSError:
            return False
        return any(buffer[:8])


def prepare() -> None:
    """Load what is needed now, and try it on a thread that is none, so that it takes no time while one waits."""
    with contextlib.suppress(OSError):
        _ptrace_regset(_GETREGSET, 0, _NT_PRSTATUS, bytearray(8))


def _ptrace(request: int, tid: int, address: int = 0, data: int = 0) -> int:
    return syscall(_SYS_PTRACE[platform.machine()], request, tid, address, data)


def _ptrace_buffer(request: int, tid: int, address: int, buffer: bytearray) -> int:
    ffi, _ = libc()
    return _ptrace(request, tid, address, int(ffi.cast("uintptr_t", ffi.from_buffer(buffer))))


def _ptrace_regset(request: int, tid: int, kind: int, buffer: bytearray) -> int:
    """The regset is in `buffer`, a struct iovec tells where; its length."""
    ffi, _ = libc()
    vector = bytearray(struct.pack("QQ", int(ffi.cast("uintptr_t", ffi.from_buffer(buffer))), len(buffer)))
    _ptrace_buffer(request, tid, kind, vector)
    return int(struct.unpack("QQ", vector)[1])


def _parse(status: int) -> Stop:
    if not os.WIFSTOPPED(status):
        return Stop(0, is_event=False, is_syscall=False)
    number = os.WSTOPSIG(status)
    is_syscall = number == signal.SIGTRAP | 0x80
    return Stop(number & 0x7F, is_event=status >> 16 == _EVENT_STOP, is_syscall=is_syscall)
