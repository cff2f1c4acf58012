"""arm64: the frame that rt_sigreturn(2) restores; the link register leads to it.

Sources: arch/arm64/include/uapi/asm/{sigcontext,ucontext,ptrace}.h, arch/arm64/kernel/signal.c (`rt_sigreturn`,
`restore_sigframe`, `do_signal`), arch/arm64/kernel/vdso/sigreturn.S.

The kernel has moved the program counter back to the `svc` before a tracer sees the thread, so a system call that was
interrupted is called anew with its own arguments: a relative sleep begins again.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from rtdebug.madvise.arch import Gadgets, Loan, ThreadState

AUDIT_ARCH = 0xC00000B7
MADVISE = 233
RT_SIGRETURN = 139
REGISTERS_BYTES = 34 * 8
FPU_REGSETS: tuple[int, ...] = (2,)  # NT_PRFPREG: struct user_fpsimd_state
FRAME_MOST_BYTES = 8 << 10
PATTERNS: Mapping[str, bytes] = {
    "svc_ret": bytes.fromhex("010000d4c0035fd6"),  # svc #0; ret
    "sigreturn": bytes.fromhex("681180d2010000d4"),  # mov x8, #139; svc #0: __kernel_rt_sigreturn of the vdso
}
EINTR_AFTER_STOP = frozenset({22, 441, 193, 192, 137, 4})
"""epoll_pwait, epoll_pwait2, semop, semtimedop, rt_sigtimedwait, io_getevents."""

_X8, _LR, _SP, _PC = 8, 30, 31, 32
_SIGINFO_BYTES = 128
_MCONTEXT_OFFSET = 176  # of struct ucontext: flags, link, stack_t, sigmask, room, aligned to 16
_RESERVED_OFFSET = 288  # of struct sigcontext: fault address, x0 to x30, sp, pc, pstate, aligned to 16
_RESERVED_BYTES = 4096
_FPSIMD_MAGIC, _FPSIMD_BYTES = 0x46508001, 528
_VECTORS_BYTES = 512


def stack_pointer(registers: bytes) -> int:
    """`sp`."""
    return _unpack(registers)[_SP]


def instruction_pointer(registers: bytes) -> int:
    """`pc`."""
    return _unpack(registers)[_PC]


def result(registers: bytes) -> int:
    """`x0`, signed."""
    value = _unpack(registers)[0]
    return value - 2**64 if value >= 2**63 else value


def lend(state: ThreadState, gadgets: Gadgets, arguments: tuple[int, int, int]) -> Loan:
    """At `svc; ret` with the call's registers, the link register at the vdso's sigreturn, sp at struct rt_sigframe."""
    registers = _unpack(state.registers)
    frame = bytes(_SIGINFO_BYTES) + _ucontext(registers, state)
    address = (registers[_SP] - len(frame)) & ~15  # AAPCS64 has no red zone
    call = list(registers)
    call[:3] = arguments
    call[_X8], call[_LR], call[_SP], call[_PC] = MADVISE, gadgets["sigreturn"], address, gadgets["svc_ret"]
    return Loan(address, frame, struct.pack("<34Q", *call))


def _ucontext(registers: tuple[int, ...], state: ThreadState) -> bytes:
    # A zeroed stack_t is refused for its size, silently: the alternate signal stack stays what it is.
    head = struct.pack("<2Q", 0, 0) + bytes(24) + struct.pack("<Q", state.signal_mask)
    context = struct.pack("<35Q", 0, *registers)  # fault address first
    vectors, status = state.fpu[:_VECTORS_BYTES], state.fpu[_VECTORS_BYTES : _VECTORS_BYTES + 8]  # fpsr, fpcr
    fpsimd = struct.pack("<2I", _FPSIMD_MAGIC, _FPSIMD_BYTES) + status + vectors
    reserved = fpsimd.ljust(_RESERVED_BYTES, b"\0")  # zeros end the list of records
    return head.ljust(_MCONTEXT_OFFSET, b"\0") + context.ljust(_RESERVED_OFFSET, b"\0") + reserved


def _unpack(registers: bytes) -> tuple[int, ...]:
    return struct.unpack("<34Q", registers)
