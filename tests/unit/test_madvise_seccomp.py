from __future__ import annotations

import struct

import pytest

from rtdebug.madvise.seccomp import SystemCall, objection, run_filter

ALLOW, LOG, ERRNO, KILL, TRAP, NOTIFY = 0x7FFF0000, 0x7FFC0000, 0x00050001, 0x80000000, 0x00030000, 0x7FC00000
CALL = SystemCall(28, 0xC000003E, 0x7F0000401002, (0x1_0000_2000, 4096, 14))


def program(*lines: tuple[int, int, int, int]) -> bytes:
    return b"".join(struct.pack("<HBBI", *line) for line in lines)


def returns(action: int) -> bytes:
    return program((0x06, 0, 0, action))


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ([ALLOW], None),
        ([LOG, ALLOW], None),
        ([], None),
        ([ALLOW, ERRNO], "fails it with an error"),
        ([ERRNO, KILL, ALLOW], "kills the process"),
        ([0, ERRNO], "kills the thread"),
        ([TRAP], "sends SIGSYS"),
        ([NOTIFY], "asks a supervisor"),
        ([0x12340000], "kills the process"),
    ],
)
def test_of_several_filters_the_strictest_counts(actions: list[int], words: str | None) -> None:
    assert objection(map(returns, actions), CALL) == words


def words(call: SystemCall = CALL) -> tuple[int, ...]:
    return struct.unpack("<16I", call.pack())


@pytest.mark.parametrize(
    ("offset", "value"), [(0, 28), (4, 0xC000003E), (8, 0x00401002), (12, 0x7F00), (16, 0x2000), (20, 1), (32, 14)]
)
def test_what_a_filter_sees(offset: int, value: int) -> None:
    assert run_filter(program((0x20, 0, 0, offset), (0x16, 0, 0, 0)), words()) == value


def test_a_filter_by_number_and_argument() -> None:
    # allow madvise with advice 14 alone, as libseccomp writes it
    text = program(
        (0x20, 0, 0, 4), (0x15, 0, 4, 0xC000003E),
        (0x20, 0, 0, 0), (0x15, 0, 2, 28),
        (0x20, 0, 0, 32), (0x15, 1, 0, 14),
        (0x06, 0, 0, KILL), (0x06, 0, 0, ALLOW),
    )  # fmt: skip
    assert objection([text], CALL) is None
    assert objection([text], SystemCall(28, 0xC000003E, 0, (0, 0, 15))) == "kills the process"
    assert objection([text], SystemCall(28, 0x40000003, 0, (0, 0, 14))) == "kills the process"


@pytest.mark.parametrize(
    ("code", "operand", "result"),
    [
        (0x04, 5, 33), (0x14, 29, 2**32 - 1), (0x24, 2, 56), (0x34, 5, 5), (0x34, 0, 0), (0x44, 3, 31), (0x54, 24, 24),
        (0x64, 1, 56), (0x74, 2, 7), (0x84, 0, 2**32 - 28), (0xA4, 1, 29), (0x94, 5, 3),
    ],
)  # fmt: skip
def test_arithmetic(code: int, operand: int, result: int) -> None:
    text = program((0x20, 0, 0, 0), (code, 0, 0, operand), (0x16, 0, 0, 0))
    assert run_filter(text, words()) == result


def test_memory_index_register_and_length() -> None:
    text = program(
        (0x01, 0, 0, 7), (0x03, 0, 0, 2), (0x60, 0, 0, 2),  # X = 7, M[2] = X, A = M[2]
        (0x07, 0, 0, 0), (0x80, 0, 0, 0), (0x0C, 0, 0, 0),  # X = A, A = length, A += X
        (0x02, 0, 0, 3), (0x61, 0, 0, 3), (0x87, 0, 0, 0),  # M[3] = A, X = M[3], A = X
        (0x05, 0, 0, 1), (0x06, 0, 0, 1), (0x16, 0, 0, 0),  # jump over one
    )  # fmt: skip
    assert run_filter(text, words()) == 64 + 7


@pytest.mark.parametrize(
    "text", [b"", program((0x20, 0, 0, 64)), program((0xFFFF, 0, 0, 0)), program((0x15, 200, 200, 0))]
)
def test_what_is_no_program_is_said_to_be_none(text: bytes) -> None:
    with pytest.raises(ValueError, match="not a program"):
        run_filter(text, words())
