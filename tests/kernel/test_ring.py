"""Ring against the kernel's own ring buffer: a small program, assembled by hand, is the producer."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import select
import struct
from collections.abc import Iterator

import pytest

from rtdebug.host import bpf
from rtdebug.tracing.recording import Recording, RecordingWriter
from rtdebug.tracing.ring import Ring
from rtdebug.tracing.schema import load_schema
from tests.unit.records import start

pytestmark = pytest.mark.kernel

SCHEMA = load_schema()
SIZE = mmap.PAGESIZE
SLOTS = SIZE // 64
PROG_TEST_RUN = 10
NO_WAKEUP, FORCE_WAKEUP = 1, 2
MADVISE = SCHEMA.event_ids["madvise"]


def instruction(code: int, dst: int = 0, src: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    return struct.pack("=BBhi", code, dst | src << 4, offset, immediate)


def map_address(map_fd: int) -> bytes:
    return instruction(0x18, 1, 1, 0, map_fd) + instruction(0)  # r1 = map, BPF_PSEUDO_MAP_FD


CALL, EXIT = 0x85, instruction(0x95)


def submit(map_fd: int, wakeup: int = NO_WAKEUP) -> bytes:
    """bpf_ringbuf_output of a call_event with its time and event set; returns what the helper does."""
    frame = [instruction(0x7A, 10, 0, -offset, 0) for offset in range(8, 57, 8)]  # zero 56 bytes
    return b"".join(
        [
            *frame,
            instruction(CALL, immediate=5),  # bpf_ktime_get_ns
            instruction(0x7B, 10, 0, -56),  # time_ns
            instruction(0x6A, 10, 0, -4, MADVISE),  # event
            map_address(map_fd),
            instruction(0xBF, 2, 10),
            instruction(0x07, 2, immediate=-56),
            instruction(0xB7, 3, immediate=56),
            instruction(0xB7, 4, immediate=wakeup),
            instruction(CALL, immediate=130),  # bpf_ringbuf_output
            EXIT,
        ]
    )


def discard(map_fd: int) -> bytes:
    """bpf_ringbuf_reserve, then bpf_ringbuf_discard."""
    return b"".join(
        [
            map_address(map_fd),
            instruction(0xB7, 2, immediate=56),
            instruction(0xB7, 3, immediate=0),
            instruction(CALL, immediate=131),  # bpf_ringbuf_reserve
            instruction(0x55, 0, 0, 1, 0),  # if r0 != 0 skip the exit
            EXIT,
            instruction(0xBF, 1, 0),
            instruction(0xB7, 2, immediate=NO_WAKEUP),
            instruction(CALL, immediate=133),  # bpf_ringbuf_discard
            instruction(0xB7, 0, immediate=0),
            EXIT,
        ]
    )


def run(program_fd: int) -> int:
    """Run a program once and return what it returned (BPF_PROG_TEST_RUN)."""
    attributes = ctypes.create_string_buffer(struct.pack("II", program_fd, 0), 152)
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 321, "aarch64": 280}[platform.machine()]
    if libc.syscall(number, PROG_TEST_RUN, attributes, ctypes.sizeof(attributes)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return struct.unpack_from("i", attributes.raw, 4)[0]


class Producer:
    """A ring buffer map with programs that write to it."""

    def __init__(self) -> None:
        self.map_fd = bpf.create_map(bpf.MAP_TYPE_RINGBUF, 0, 0, SIZE, 0, "test_ring")
        self.programs: list[int] = []
        self.submit = self.load(submit(self.map_fd))
        self.submit_loudly = self.load(submit(self.map_fd, FORCE_WAKEUP))
        self.discard = self.load(discard(self.map_fd))

    def load(self, code: bytes) -> int:
        self.programs.append(bpf.load_program(bpf.PROG_TYPE_RAW_TRACEPOINT, code, "test_ring"))
        return self.programs[-1]

    def close(self) -> None:
        for fd in (*self.programs, self.map_fd):
            os.close(fd)


@pytest.fixture
def producer() -> Iterator[Producer]:
    producer = Producer()
    yield producer
    producer.close()


@pytest.fixture
def ring(producer: Producer) -> Iterator[Ring]:
    ring = Ring(producer.map_fd, SIZE, SCHEMA.call_slot)
    yield ring
    ring.close()


def test_every_record_is_read_once_and_in_order(producer: Producer, ring: Ring) -> None:
    seen: list[int] = []
    for _ in range(20):  # 460 records through 64 slots
        for number in range(23):
            assert run(producer.submit) == 0
            if number % 7 == 0:
                run(producer.discard)
        array = ring.drain()
        assert len(array) == 23
        assert set(array["event"].tolist()) == {MADVISE}
        seen += array["time_ns"].tolist()
    assert seen == sorted(set(seen))
    assert len(ring.drain()) == 0


def test_a_full_ring_refuses_and_is_free_again_after_draining(producer: Producer, ring: Ring) -> None:
    results = [run(producer.submit) for _ in range(SLOTS + 5)]
    taken = results.count(0)
    assert taken in (SLOTS - 1, SLOTS)  # older kernels keep one byte free, which costs a slot
    assert set(results[taken:]) == {-errno.EAGAIN}
    assert len(ring.drain()) == taken
    assert run(producer.submit) == 0
    assert len(ring.drain()) == 1


def test_the_map_polls_readable_only_when_woken(producer: Producer, ring: Ring) -> None:
    poll = select.epoll()
    poll.register(ring.fileno(), select.EPOLLIN | select.EPOLLET)
    poll.poll(0)
    run(producer.submit)
    assert poll.poll(0.05) == []
    run(producer.submit_loudly)
    assert poll.poll(2) == [(ring.fileno(), select.EPOLLIN)]
    assert len(ring.drain()) == 2
    poll.close()


def test_from_the_ring_into_a_recording(producer: Producer, ring: Ring, tmp_path) -> None:
    writer = RecordingWriter(tmp_path / "a", start(clock_offset_ns=0), pytest.fail)
    for _ in range(5):
        for _ in range(23):
            run(producer.submit)
        run(producer.discard)
        assert ring.drain_into(writer.calls) == 24
    writer.close()
    lines = list(Recording.open(tmp_path / "a").lines())
    assert [line.event for line in lines] == ["madvise"] * 115


def test_another_reader_cannot_write_the_data(producer: Producer) -> None:
    with pytest.raises(PermissionError):
        mmap.mmap(producer.map_fd, SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=2 * SIZE)
