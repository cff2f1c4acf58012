"""Frames that restore a borrowed thread: checked against the kernel's own headers and layouts."""

from __future__ import annotations

import ctypes
import platform
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from rtdebug.errors import HostUnable
from rtdebug.madvise import arch_aarch64, arch_x86_64
from rtdebug.madvise.arch import ThreadState, architecture

X86 = {name: number * 0x1111 + 1 for number, name in enumerate(arch_x86_64._NAMES)} | {"cs": 0x33, "ss": 0x2B}
XSAVE_BYTES = 832
FEATURES = 0b111


def x86_state(**changed: int) -> ThreadState:
    registers = X86 | {"rsp": 0x7FFF00012345, "orig_rax": 2**64 - 1} | changed
    image = bytearray(XSAVE_BYTES)
    struct.pack_into("<Q", image, 464, FEATURES)
    struct.pack_into("<Q", image, 512, FEATURES)
    return ThreadState(arch_x86_64._pack(registers), bytes(image), signal_mask=0x0123456789ABCDEF)


GADGETS = {"syscall_ret": 0x401000, "pop_rax_ret": 0x402000}


def in_frame(frame: bytes) -> dict[str, int]:
    """The registers of struct sigcontext, which begins 40 bytes into struct ucontext."""
    values = struct.unpack_from("<18Q", frame, 16 + 8 + 40)
    return dict(zip(arch_x86_64._IN_FRAME, values, strict=True))


def test_x86_the_call_and_the_way_back() -> None:
    loan = arch_x86_64.lend(x86_state(), GADGETS, (0x7000, 0x2000, 14))
    registers = arch_x86_64._unpack(loan.registers)
    assert [registers[name] for name in ("rax", "rdi", "rsi", "rdx")] == [28, 0x7000, 0x2000, 14]
    assert registers["rip"] == GADGETS["syscall_ret"]
    assert registers["orig_rax"] == 2**64 - 1
    # `ret` pops pop_rax_ret, that pops 15, its `ret` pops syscall_ret: rt_sigreturn looks 8 bytes below rsp
    assert registers["rsp"] == loan.address
    assert struct.unpack_from("<3Q", loan.frame) == (GADGETS["pop_rax_ret"], 15, GADGETS["syscall_ret"])
    unchanged = set(X86) - {"rax", "rdi", "rsi", "rdx", "rip", "rsp", "orig_rax"}
    assert {name: registers[name] for name in unchanged} == {name: X86[name] for name in unchanged}


def test_x86_without_xsave_the_frame_has_the_fxsave_image_and_says_so() -> None:
    image = bytes(range(256)) * 2
    state = ThreadState(x86_state().registers, image, signal_mask=0)
    loan = arch_x86_64.lend(state, GADGETS, (0, 0, 0))
    assert loan.frame.endswith(image)
    assert struct.unpack_from("<Q", loan.frame, 24) == (0b110,)  # no UC_FP_XSTATE
    assert struct.unpack_from("<Q", arch_x86_64.lend(x86_state(), GADGETS, (0, 0, 0)).frame, 24) == (0b111,)


def test_x86_the_frame_holds_all_registers_and_the_mask_below_the_red_zone() -> None:
    loan = arch_x86_64.lend(x86_state(), GADGETS, (0, 0, 0))
    expected = X86 | {"rsp": 0x7FFF00012345}
    assert in_frame(loan.frame) == {name: expected[name] for name in arch_x86_64._IN_FRAME}
    assert struct.unpack_from("<Q", loan.frame, 16 + 8 + 296) == (0x0123456789ABCDEF,)
    assert loan.address + len(loan.frame) <= expected["rsp"] - 128
    assert len(loan.frame) < arch_x86_64.FRAME_MOST_BYTES


def test_x86_the_fpu_image_is_aligned_and_marked() -> None:
    loan = arch_x86_64.lend(x86_state(), GADGETS, (0, 0, 0))
    (address,) = struct.unpack_from("<Q", loan.frame, 16 + 8 + 40 + 184)
    assert address % 64 == 0
    image = loan.frame[address - loan.address :]
    magic, extended, features, size = struct.unpack_from("<2IQI", image, 464)
    assert (magic, extended, features, size) == (0x46505853, XSAVE_BYTES + 4, FEATURES, XSAVE_BYTES)
    assert struct.unpack_from("<I", image, XSAVE_BYTES) == (0x46505845,)


def test_x86_tile_data_that_is_not_in_use_is_left_out() -> None:
    image = bytearray(11008)
    struct.pack_into("<Q", image, 464, FEATURES | 3 << 17)
    struct.pack_into("<Q", image, 512, FEATURES)
    frame = arch_x86_64._fpu_for_frame(bytes(image))
    assert len(frame) == 2816 + 4
    assert struct.unpack_from("<Q", frame, 472) == (FEATURES | 1 << 17,)
    struct.pack_into("<Q", image, 512, FEATURES | 3 << 17)
    assert len(arch_x86_64._fpu_for_frame(bytes(image))) == 11008 + 4


@pytest.mark.parametrize(
    ("code", "rax", "rip_change"),
    [(-512, 35, -2), (-513, 35, -2), (-514, 35, -2), (-516, 2**64 - 4, 0), (-4, 2**64 - 4, 0), (7, 7, 0)],
)
def test_x86_a_call_that_was_interrupted_is_called_again(code: int, rax: int, rip_change: int) -> None:
    state = x86_state(orig_rax=35, rax=code % 2**64, rip=0x5000)
    frame = in_frame(arch_x86_64.lend(state, GADGETS, (0, 0, 0)).frame)
    assert (frame["rax"], frame["rip"]) == (rax, 0x5000 + rip_change)


def test_x86_a_thread_that_was_in_no_call_keeps_what_looks_like_an_error() -> None:
    state = x86_state(rax=-512 % 2**64, rip=0x5000)
    frame = in_frame(arch_x86_64.lend(state, GADGETS, (0, 0, 0)).frame)
    assert (frame["rax"], frame["rip"]) == (-512 % 2**64, 0x5000)


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("gcc"), reason="compiles with this machine's headers"
)
def test_x86_offsets_are_those_of_the_headers(tmp_path: Path) -> None:
    source = tmp_path / "offsets.c"
    source.write_text(
        "#include <asm/ucontext.h>\n#include <asm/sigcontext.h>\n#include <stddef.h>\n#include <stdio.h>\n"
        "#include <signal.h>\n"
        'int main(void) { printf("%zu %zu %zu %zu %zu", sizeof(struct sigcontext), '
        "offsetof(struct sigcontext, rip), offsetof(struct sigcontext, cs), offsetof(struct sigcontext, fpstate), "
        "offsetof(struct _fpx_sw_bytes, xstate_size)); }\n"
    )
    text = source.read_text().replace("#include <asm/ucontext.h>\n", "").replace("#include <signal.h>\n", "")
    source.write_text(text)
    subprocess.run(["gcc", "-o", tmp_path / "offsets", source], check=True)
    said = subprocess.run([tmp_path / "offsets"], capture_output=True, text=True, check=True).stdout
    size, rip, cs, fpstate, xstate_size = map(int, said.split())
    assert size == 256
    assert rip == 8 * arch_x86_64._IN_FRAME.index("rip")
    assert (cs, fpstate) == (144, 184)
    assert xstate_size == struct.calcsize("<2IQ")


ARM = tuple(number * 0x1111 + 1 for number in range(34))
ARM_GADGETS = {"svc_ret": 0x401000, "sigreturn": 0x402000}


class Sigcontext(ctypes.Structure):
    """arch/arm64/include/uapi/asm/sigcontext.h"""

    _fields_ = (
        ("fault_address", ctypes.c_uint64),
        ("regs", ctypes.c_uint64 * 31),
        ("sp", ctypes.c_uint64),
        ("pc", ctypes.c_uint64),
        ("pstate", ctypes.c_uint64),
        ("padding", ctypes.c_uint64),  # __reserved is aligned to 16
        ("reserved", ctypes.c_uint8 * 4096),
    )


class Frame(ctypes.Structure):
    """struct rt_sigframe: siginfo, then struct ucontext, whose mcontext is aligned to 16."""

    _fields_ = (
        ("info", ctypes.c_uint8 * 128),
        ("flags", ctypes.c_uint64),
        ("link", ctypes.c_uint64),
        ("stack", ctypes.c_uint64 * 3),
        ("sigmask", ctypes.c_uint64),
        ("unused", ctypes.c_uint8 * 120),
        ("padding", ctypes.c_uint64),
        ("context", Sigcontext),
    )


def test_arm64_the_call_and_the_way_back() -> None:
    registers = list(ARM)
    registers[31] = 0x7FFF00012348
    vectors, status = bytes(range(256)) * 2, struct.pack("<4I", 0x11, 0x22, 0, 0)
    state = ThreadState(struct.pack("<34Q", *registers), vectors + status, signal_mask=0xABC)
    loan = arch_aarch64.lend(state, ARM_GADGETS, (0x7000, 0x2000, 14))
    assert loan.address % 16 == 0
    assert loan.address + len(loan.frame) <= registers[31]
    assert len(loan.frame) < arch_aarch64.FRAME_MOST_BYTES
    set_to = struct.unpack("<34Q", loan.registers)
    assert set_to[:3] == (0x7000, 0x2000, 14)
    assert (set_to[8], set_to[30], set_to[31], set_to[32]) == (233, 0x402000, loan.address, 0x401000)
    assert set_to[9:30] == ARM[9:30]
    assert set_to[33] == ARM[33]
    frame = Frame.from_buffer_copy(loan.frame)
    assert frame.sigmask == 0xABC
    assert tuple(frame.context.regs) == ARM[:31]
    assert (frame.context.sp, frame.context.pc, frame.context.pstate) == (0x7FFF00012348, ARM[32], ARM[33])
    magic, size, fpsr, fpcr = struct.unpack_from("<4I", bytes(frame.context.reserved))
    assert (magic, size, fpsr, fpcr) == (0x46508001, 528, 0x11, 0x22)
    assert bytes(frame.context.reserved)[16:528] == vectors
    assert bytes(frame.context.reserved)[528:536] == bytes(8)


def test_arm64_reads_its_registers() -> None:
    registers = struct.pack("<34Q", 2**64 - 22, *ARM[1:])
    assert arch_aarch64.result(registers) == -22
    assert arch_aarch64.stack_pointer(registers) == ARM[31]
    assert arch_aarch64.instruction_pointer(registers) == ARM[32]


def test_another_machine_is_refused_with_what_works_there() -> None:
    assert architecture("aarch64") is arch_aarch64
    with pytest.raises(HostUnable) as caught:
        architecture("riscv64")
    assert "COLD" in caught.value.hint
