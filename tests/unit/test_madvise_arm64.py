"""The arm64 frame, run: QEMU's rt_sigreturn, which reads the frame as Linux does, restores every register from it."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from rtdebug.madvise import arch_aarch64
from rtdebug.madvise.arch import ThreadState

STACK_TOP = 0x1001_0000
TEXT = 0x40_0000
# Each part at an address of its own, so that the frame can name it before the program is linked.
CALL, SIGRETURN, RESUMED = TEXT + 0x4000, TEXT + 0x4100, TEXT + 0x4200

_PROGRAM = """
.global _start
_start:
    mov x0, #0x10000000     /* mmap(0x10000000, 0x10000, PROT_READ|PROT_WRITE, MAP_FIXED|MAP_ANONYMOUS|MAP_PRIVATE) */
    mov x1, #0x10000
    mov x2, #3
    mov x3, #0x32
    mov x4, #-1
    mov x5, #0
    mov x8, #222
    svc #0
    ldr x0, ={address}
    ldr x1, =frame
    ldr x2, ={length}
1:  ldrb w3, [x1], #1
    strb w3, [x0], #1
    subs x2, x2, #1
    b.ne 1b
    movi v7.16b, #0xff
    /* what PTRACE_SETREGSET would set */
    ldr x0, ={x0}
    ldr x1, ={x1}
    ldr x2, ={x2}
    ldr x8, ={x8}
    ldr x30, ={x30}
    ldr x16, ={sp}
    mov sp, x16
    ldr x16, ={pc}
    br x16
.ltorg
.org 0x4000                 /* CALL */
    svc #0
    ret
.org 0x4100                 /* SIGRETURN, as in the vdso */
    mov x8, #139
    svc #0
    b wrong
.org 0x4200                 /* RESUMED: is everything what it was? */
    mov x16, sp
    ldr x17, ={expected_sp}
    cmp x16, x17
    b.ne wrong
{checks}
    umov x16, v7.d[1]
    ldr x17, ={vector}
    cmp x16, x17
    b.ne wrong
    mov x0, #0
    b exit
wrong:
    mov x0, #1
exit:
    mov x8, #93
    svc #0
.ltorg
.data
frame: .incbin "{frame}"
"""


def missing(tool: str) -> bool:
    return shutil.which(tool) is None and not os.environ.get("CI")


@pytest.mark.skipif(
    missing("qemu-aarch64") or missing("aarch64-linux-gnu-as"), reason="no emulator of arm64: scripts/setup --test"
)
def test_a_borrowed_thread_restores_itself(tmp_path: Path) -> None:
    registers = [0x1111_0000_0000 + number for number in range(34)]
    registers[31], registers[32], registers[33] = STACK_TOP, RESUMED, 0
    vectors = struct.pack("<64Q", *range(0x5555_0000, 0x5555_0000 + 64))
    state = ThreadState(struct.pack("<34Q", *registers), vectors + bytes(16), signal_mask=0)
    gadgets = {"svc_ret": CALL, "sigreturn": SIGRETURN}
    loan = arch_aarch64.lend(state, gadgets, (0x1000_0000, 4096, 0))
    call = struct.unpack("<34Q", loan.registers)
    (tmp_path / "frame").write_bytes(loan.frame)
    checked = [number for number in range(31) if number not in (16, 17)]
    checks = "\n".join(
        f"    ldr x17, ={registers[number]}\n    cmp x{number}, x17\n    b.ne wrong" for number in checked
    )
    text = _PROGRAM.format(
        address=loan.address, length=len(loan.frame), x0=call[0], x1=call[1], x2=call[2], x8=call[8], x30=call[30],
        sp=call[31], pc=call[32], expected_sp=STACK_TOP, checks=checks, vector=0x5555_0000 + 15,
        frame=tmp_path / "frame",
    )  # fmt: skip
    (tmp_path / "program.s").write_text(text)
    program = tmp_path / "program"
    subprocess.run(["aarch64-linux-gnu-as", "-o", tmp_path / "program.o", tmp_path / "program.s"], check=True)
    subprocess.run(["aarch64-linux-gnu-ld", f"-Ttext={TEXT:#x}", "-o", program, tmp_path / "program.o"], check=True)
    assert subprocess.run(["qemu-aarch64", program], timeout=60).returncode == 0
    for pattern in arch_aarch64.PATTERNS.values():
        assert pattern in program.read_bytes()
