"""x86-64: the frame that rt_sigreturn(2) restores, and the chain of returns that leads to it.

Sources: arch/x86/include/uapi/asm/{sigcontext,ucontext}.h, arch/x86/kernel/signal_64.c (`rt_sigreturn`,
`restore_sigcontext`), arch/x86/kernel/fpu/signal.c (`check_xstate_in_sigframe`), the System V ABI (red zone).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from rtdebug.madvise.arch import Gadgets, Loan, ThreadState

AUDIT_ARCH = 0xC000003E
MADVISE = 28
RT_SIGRETURN = 15
REGISTERS_BYTES = 27 * 8
FPU_REGSETS: tuple[int, ...] = (0x202, 2)  # NT_X86_XSTATE; without XSAVE (before 2011) NT_PRFPREG, the FXSAVE image
FRAME_MOST_BYTES = 16 << 10
PATTERNS: Mapping[str, bytes] = {"syscall_ret": b"\x0f\x05\xc3", "pop_rax_ret": b"\x58\xc3"}
EINTR_AFTER_STOP = frozenset({232, 281, 441, 65, 220, 128, 208})
"""epoll_wait, epoll_pwait, epoll_pwait2, semop, semtimedop, rt_sigtimedwait, io_getevents."""

_USER_REGS_STRUCT = (
    "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss "
    "fs_base gs_base ds es fs gs"
)
_SIGCONTEXT = "r8 r9 r10 r11 r12 r13 r14 r15 rdi rsi rbp rbx rdx rax rcx rsp rip eflags"
_NAMES = _USER_REGS_STRUCT.split()
_IN_FRAME = _SIGCONTEXT.split()
_RED_ZONE_BYTES = 128
_CHAIN_BYTES = 16  # two words before the frame: pop_rax_ret, the number of rt_sigreturn
_FRAME_BYTES = 8 + 304 + 128  # struct rt_sigframe: return address, ucontext, siginfo
_UC_FP_XSTATE, _UC_SIGCONTEXT_SS, _UC_STRICT_RESTORE_SS = 1, 2, 4
_SW_BYTES = 464  # offset of struct _fpx_sw_bytes in an FXSAVE image
_MAGIC1, _MAGIC2 = 0x46505853, 0x46505845
_FXSAVE_BYTES, _HEADER_BYTES = 512, 64
_TILE_DATA, _TILE_DATA_OFFSET = 18, 2816
_EINTR = 4
_RESTARTED = frozenset({-512, -513, -514})  # ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND
_RESTARTED_BY_BLOCK = -516  # ERESTART_RESTARTBLOCK
_SYSCALL_BYTES = 2


def stack_pointer(registers: bytes) -> int:
    """`rsp`."""
    return _unpack(registers)["rsp"]


def instruction_pointer(registers: bytes) -> int:
    """`rip`."""
    return _unpack(registers)["rip"]


def result(registers: bytes) -> int:
    """`rax`, signed."""
    return _signed(_unpack(registers)["rax"])


def lend(state: ThreadState, gadgets: Gadgets, arguments: tuple[int, int, int]) -> Loan:
    """At `syscall; ret` with the call's registers; the stack leads on to rt_sigreturn, which restores all.

    From the lowest address: pop_rax_ret, 15, then struct rt_sigframe, whose return address is syscall_ret, then
    the XSAVE image, then the red zone of whatever runs there now.
    """
    registers = _unpack(state.registers)
    fpu = _fpu_for_frame(state.fpu)
    fpu_address = (registers["rsp"] - _RED_ZONE_BYTES - len(fpu)) & ~63
    address = (fpu_address - _FRAME_BYTES - _CHAIN_BYTES) & ~15
    chain = struct.pack("<3Q", gadgets["pop_rax_ret"], RT_SIGRETURN, gadgets["syscall_ret"])
    body = chain + _ucontext(_resumed(registers), fpu_address, state.signal_mask, len(fpu) > _FXSAVE_BYTES)
    frame = body.ljust(fpu_address - address, b"\0") + fpu
    names = ("rdi", "rsi", "rdx")
    call = dict(zip(names, arguments, strict=True)) | {
        "rax": MADVISE,
        "orig_rax": 2**64 - 1,  # not in a system call: the kernel restarts none
        "rip": gadgets["syscall_ret"],
        "rsp": address,
    }
    return Loan(address, frame, _pack(registers | call))


def _resumed(registers: dict[str, int]) -> dict[str, int]:
    """The registers with which an interrupted system call is called again, as the kernel would do on its own."""
    if _signed(registers["orig_rax"]) < 0:
        return registers
    code = _signed(registers["rax"])
    if code in _RESTARTED:
        return registers | {"rax": registers["orig_rax"], "rip": registers["rip"] - _SYSCALL_BYTES}
    if code == _RESTARTED_BY_BLOCK:  # rt_sigreturn forgets where that was; a signal handler gets the same
        return registers | {"rax": 2**64 - _EINTR}
    return registers


def _ucontext(registers: dict[str, int], fpu_address: int, signal_mask: int, has_xstate: bool) -> bytes:
    flags = _UC_SIGCONTEXT_SS | _UC_STRICT_RESTORE_SS | (_UC_FP_XSTATE if has_xstate else 0)
    # A zeroed stack_t is refused for its size, silently: the alternate signal stack stays what it is.
    head = struct.pack("<2Q", flags, 0) + bytes(24)
    general = struct.pack("<18Q", *(registers[name] for name in _IN_FRAME))
    segments = struct.pack("<4H", registers["cs"], 0, 0, registers["ss"])
    rest = struct.pack("<5Q", 0, 0, signal_mask, 0, fpu_address) + bytes(64)  # err, trapno, oldmask, cr2, fpstate
    return head + general + segments + rest + struct.pack("<Q", signal_mask)


def _fpu_for_frame(image: bytes) -> bytes:
    """The XSAVE image of ptrace with the marks that a signal frame has."""
    if len(image) < _FXSAVE_BYTES + _HEADER_BYTES:
        return image[:_FXSAVE_BYTES]
    (features,) = struct.unpack_from("<Q", image, _SW_BYTES)
    (in_use,) = struct.unpack_from("<Q", image, _FXSAVE_BYTES)
    size = len(image)
    if features >> _TILE_DATA & 1 and not in_use >> _TILE_DATA & 1:
        # AMX: a process without permission for it has a smaller frame, and the kernel takes no larger one
        features &= ~(1 << _TILE_DATA)
        size = min(size, _TILE_DATA_OFFSET)
    marks = struct.pack("<2IQI", _MAGIC1, size + 4, features, size).ljust(_FXSAVE_BYTES - _SW_BYTES, b"\0")
    return image[:_SW_BYTES] + marks + image[_FXSAVE_BYTES:size] + struct.pack("<I", _MAGIC2)


def _unpack(registers: bytes) -> dict[str, int]:
    return dict(zip(_NAMES, struct.unpack(f"<{len(_NAMES)}Q", registers), strict=True))


def _pack(registers: dict[str, int]) -> bytes:
    return struct.pack(f"<{len(_NAMES)}Q", *(registers[name] for name in _NAMES))


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
