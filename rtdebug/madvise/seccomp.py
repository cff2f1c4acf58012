"""Would a seccomp filter let a system call through? Its classic BPF is run here, before the kernel runs it.

Sources: seccomp(2), include/uapi/linux/{seccomp,filter}.h, kernel/seccomp.c (`seccomp_check_filter`: which
instructions there are).
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

_ALLOW, _LOG = 0x7FFF0000, 0x7FFC0000
_ACTIONS = {
    0x80000000: "kills the process",
    0x00000000: "kills the thread",
    0x00030000: "sends SIGSYS",
    0x00050000: "fails it with an error",
    0x7FC00000: "asks a supervisor",
    0x7FF00000: "asks a tracer",
}
_MASK = 0xFFFFFFFF
_WORDS = 16
_INSTRUCTION = struct.Struct("<HBBI")  # struct sock_filter

_LD, _LDX, _ST, _STX, _ALU, _JMP, _RET = range(7)
_X = 0x08
_ARITHMETIC: dict[int, Callable[[int, int], int]] = {
    0x00: operator.add,
    0x10: operator.sub,
    0x20: operator.mul,
    0x30: lambda a, b: a // b if b else 0,
    0x40: operator.or_,
    0x50: operator.and_,
    0x60: lambda a, b: a << min(b, 32),
    0x70: lambda a, b: a >> min(b, 32),
    0x80: lambda a, _: -a,
    0x90: lambda a, b: a % b if b else 0,
    0xA0: operator.xor,
}
_COMPARE: dict[int, Callable[[int, int], bool]] = {
    0x10: operator.eq,
    0x20: operator.gt,
    0x30: operator.ge,
    0x40: lambda a, b: bool(a & b),
}


@dataclass(frozen=True, slots=True)
class SystemCall:
    """What a filter sees: struct seccomp_data."""

    number: int
    audit_arch: int
    instruction_pointer: int
    arguments: tuple[int, ...] = ()

    def pack(self) -> bytes:
        """As the kernel lays it out; missing arguments are 0."""
        six = (*self.arguments, 0, 0, 0, 0, 0, 0)[:6]
        return struct.pack("<iIQ6Q", self.number, self.audit_arch, self.instruction_pointer, *six)


def objection(filters: Iterable[bytes], call: SystemCall) -> str | None:
    """What these filters do to `call`, in words; None if all of them let it through.

    Each filter is an array of struct sock_filter. Of several the strictest counts. Raises ValueError for a program
    that the kernel would not have accepted.
    """
    data = struct.unpack(f"<{_WORDS}I", call.pack())
    verdicts = [run_filter(program, data) & 0xFFFF0000 for program in filters]
    strictest = min(verdicts, key=lambda action: action - 2**32 if action >= 2**31 else action, default=_ALLOW)
    return None if strictest in (_ALLOW, _LOG) else _ACTIONS.get(strictest, "kills the process")


def run_filter(program: bytes, data: Sequence[int]) -> int:
    """The value that the program returns for the words of a struct seccomp_data."""
    instructions = list(_INSTRUCTION.iter_unpack(program))
    a = x = position = 0
    memory = [0] * _WORDS
    try:
        while True:  # jumps lead forward only
            code, if_true, if_false, k = instructions[position]
            position += 1
            kind, mode, source = code & 7, code & 0xE0, x if code & _X else k
            if kind == _RET:
                return a if code & 0x18 == 0x10 else k
            if kind in (_LD, _LDX):
                value = _load(mode, k, data, memory)
                a, x = (value, x) if kind == _LD else (a, value)
            elif kind in (_ST, _STX):
                memory[k] = a if kind == _ST else x
            elif kind == _ALU:
                a = _ARITHMETIC[code & 0xF0](a, source) & _MASK
            elif kind == _JMP:
                operation = code & 0xF0
                position += k if operation == 0 else if_true if _COMPARE[operation](a, source) else if_false
            else:  # BPF_MISC: TAX, TXA
                a, x = (x, x) if code & 0x80 else (a, a)
    except (IndexError, KeyError):
        raise ValueError("not a program of seccomp") from None


def _load(mode: int, k: int, data: Sequence[int], memory: Sequence[int]) -> int:
    match mode:
        case 0x00:
            return k
        case 0x20:
            return data[k // 4]
        case 0x60:
            return memory[k]
        case 0x80:
            return len(data) * 4
    raise KeyError(mode)
