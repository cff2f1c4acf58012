"""Ring against a synthetic map: a memory file with the layout of the kernel's ring buffer."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest

from rtdebug.errors import RtdebugError
from rtdebug.tracing import ring as ring_module
from rtdebug.tracing.ring import BUSY, DISCARD, Ring, fence_for, records
from rtdebug.tracing.schema import load_schema

PAGE = mmap.PAGESIZE
SLOT = load_schema().call_slot
PAYLOAD = SLOT.itemsize - 8


class Kernel:
    """The producer's side, as kernel/bpf/ringbuf.c does it."""

    def __init__(self, size_bytes: int, start: int = 0, slot: np.dtype[np.void] = SLOT) -> None:
        self.slot = slot
        self.size_bytes = size_bytes
        self.fd = os.memfd_create("ring")
        os.ftruncate(self.fd, 2 * PAGE + size_bytes)
        self.memory = mmap.mmap(self.fd, 2 * PAGE + size_bytes)
        self.consumer = np.frombuffer(self.memory, np.uint64, 1)
        self.producer = np.frombuffer(self.memory, np.uint64, 1, PAGE)
        self.slots = np.frombuffer(self.memory, slot, size_bytes // slot.itemsize, 2 * PAGE)
        self.consumer[0] = self.producer[0] = start
        self.next = 1

    def put(self, count: int = 1, flag: int = 0, length: int | None = None) -> None:
        for _ in range(count):
            position = int(self.producer[0])
            assert position + self.slot.itemsize - int(self.consumer[0]) <= self.size_bytes, "ring full"
            at = position // self.slot.itemsize % len(self.slots)
            self.slots["length"][at] = (self.slot.itemsize - 8 if length is None else length) | flag
            self.slots["record"]["address"][at] = self.next
            self.next += 1
            self.producer[0] = position + self.slot.itemsize

    def submit(self, number: int) -> None:
        """Submit the record that was put busy as the number-th."""
        self.slots["length"][(number - 1) % len(self.slots)] &= np.uint32(BUSY - 1)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel(PAGE)
    yield kernel
    os.close(kernel.fd)


def open_ring(kernel: Kernel) -> Ring:
    return Ring(kernel.fd, kernel.size_bytes, kernel.slot)


def addresses(array) -> list[int]:
    return array["address"].tolist()


def test_empty(kernel: Kernel) -> None:
    drained = open_ring(kernel).drain()
    assert len(drained) == 0
    assert drained.dtype == SLOT["record"]


def test_takes_what_is_submitted_once(kernel: Kernel) -> None:
    ring = open_ring(kernel)
    kernel.put(5)
    assert addresses(ring.drain()) == [1, 2, 3, 4, 5]
    assert kernel.consumer[0] == 5 * 64
    assert addresses(ring.drain()) == []


def test_stops_at_a_busy_record_and_goes_on_when_it_is_submitted(kernel: Kernel) -> None:
    ring = open_ring(kernel)
    kernel.put(2)
    kernel.put(1, BUSY)
    kernel.put(3)
    assert addresses(ring.drain()) == [1, 2]
    assert addresses(ring.drain()) == []
    kernel.submit(3)
    assert addresses(ring.drain()) == [3, 4, 5, 6]


def test_drops_discarded_records(kernel: Kernel) -> None:
    ring = open_ring(kernel)
    kernel.put(1, DISCARD)
    kernel.put(2)
    kernel.put(1, DISCARD)
    assert addresses(ring.drain()) == [2, 3]
    assert kernel.consumer[0] == kernel.producer[0]


def test_a_discarded_but_busy_record_is_busy(kernel: Kernel) -> None:
    kernel.put(1, BUSY | DISCARD)
    assert addresses(open_ring(kernel).drain()) == []
    assert kernel.consumer[0] == 0


def test_full_ring_and_wrap_around(kernel: Kernel) -> None:
    ring = open_ring(kernel)
    slots = PAGE // 64
    kernel.put(slots)
    assert addresses(ring.drain()) == list(range(1, slots + 1))
    kernel.put(slots - 3)
    ring.drain()
    kernel.put(slots)  # three before the end, the rest after it
    assert addresses(ring.drain()) == list(range(2 * slots - 2, 3 * slots - 2))


def test_limit(kernel: Kernel) -> None:
    ring = open_ring(kernel)
    kernel.put(7)
    assert addresses(ring.drain(limit=3)) == [1, 2, 3]
    assert addresses(ring.drain(limit=0)) == []
    assert addresses(ring.drain(limit=100)) == [4, 5, 6, 7]


def test_batches_are_bounded(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "BATCH_BYTES", 3 * 64)
    kernel.put(8)
    assert [len(view) for view in open_ring(kernel).views()] == [3, 3, 2]


def test_positions_grow_beyond_32_bits_and_wrap_at_64() -> None:
    for start in ((1 << 40) + 64 * 5, (1 << 64) - 64 * 4):
        kernel = Kernel(PAGE, start)
        ring = open_ring(kernel)
        with np.errstate(over="ignore"):
            for _ in range(4):
                at = int(kernel.producer[0]) // 64 % 64
                kernel.slots["length"][at] = PAYLOAD
                kernel.producer[0] += np.uint64(64)
        assert len(ring.drain()) == 4
        assert kernel.consumer[0] == kernel.producer[0] == (start + 256) % (1 << 64)
        os.close(kernel.fd)


@pytest.mark.parametrize("length", [0, 48, 64])
def test_foreign_record_size_is_an_error(kernel: Kernel, length: int) -> None:
    kernel.put(2)
    kernel.put(1, length=length)
    with pytest.raises(RtdebugError, match=f"record of {length} bytes"):
        open_ring(kernel).drain()


def test_positions_that_make_no_sense_are_an_error(kernel: Kernel) -> None:
    kernel.producer[0] = PAGE + 64
    with pytest.raises(RtdebugError, match="make no sense"):
        open_ring(kernel).drain()


def test_slot_must_divide_the_ring(kernel: Kernel) -> None:
    odd = np.dtype([("length", "u4"), ("page_offset", "u4"), ("record", "V60")])
    with pytest.raises(ValueError, match="no whole number"):
        Ring(kernel.fd, PAGE, odd)


def test_drain_into_gives_the_ring_itself_and_frees_it_afterwards(kernel: Kernel) -> None:
    ring = open_ring(kernel)
    kernel.put(3)
    kernel.put(1, DISCARD)
    seen = []

    def write(slots) -> None:
        assert not slots.flags.owndata
        assert kernel.consumer[0] == 0, "the kernel could overwrite what is being written"
        seen.append(slots.tobytes())

    assert ring.drain_into(write) == 4
    assert b"".join(seen) == kernel.slots[:4].tobytes()
    assert kernel.consumer[0] == 4 * 64


def test_a_failing_writer_loses_nothing(kernel: Kernel) -> None:
    ring = open_ring(kernel)
    kernel.put(2)

    def fail(_slots) -> None:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        ring.drain_into(fail)
    assert addresses(ring.drain()) == [1, 2]


def test_close_unmaps(kernel: Kernel) -> None:
    ring = open_ring(kernel)
    kernel.put(1)
    drained = ring.drain()
    ring.close()
    assert addresses(drained) == [1]
    assert ring.fileno() == kernel.fd


def test_records_is_a_view_without_discarded_ones(kernel: Kernel) -> None:
    kernel.put(2)
    assert records(kernel.slots[:2]).base is not None


def test_fence_only_where_the_machine_needs_one() -> None:
    assert fence_for("x86_64") is fence_for("AMD64")
    for machine in ("aarch64", "riscv64"):
        fence = fence_for(machine)
        assert fence is not fence_for("x86_64")
        fence()
        fence()  # never blocks


def test_ring_works_with_the_fence_of_arm64(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    kernel.put(3)
    assert addresses(open_ring(kernel).drain()) == [1, 2, 3]
