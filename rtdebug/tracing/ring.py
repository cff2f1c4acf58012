"""Reader of a BPF ring buffer, thousands of records at a time (DESIGN D4).

Every record of one ring has the same size, and a slot (the kernel's 8-byte header and the record) divides the
ring. So no record is split by the ring's end, the data area is mapped once instead of twice, and numpy sees
it as an array of slots. Layout and protocol: kernel/bpf/ringbuf.c.
"""

from __future__ import annotations

import mmap
import platform
import threading
from collections.abc import Callable, Iterator

import numpy as np

from rtdebug.errors import RtdebugError
from rtdebug.tracing.schema import Array

BUSY = 1 << 31
"""In `length`: reserved, not yet submitted (BPF_RINGBUF_BUSY_BIT)."""

DISCARD = 1 << 30
"""In `length`: given up by the program, holds nothing (BPF_RINGBUF_DISCARD_BIT)."""

BATCH_BYTES = 1 << 18
"""Slots handed on at once: few enough to stay in the CPU's cache from the look at the headers to the copy."""

_POSITION_MASK = (1 << 64) - 1


class Ring:
    """One BPF_MAP_TYPE_RINGBUF map with one record size.

    `size_bytes` is the map's max_entries, `slot` the dtype of a slot (`Schema.call_slot`, `.event_slot`). The
    file descriptor stays the caller's; it polls readable while records wait, except for those that the
    program submits with BPF_RB_NO_WAKEUP, so drain on a timer too. Any file with the map's layout will do
    (one page with the consumer's position, one with the producer's, then the data).

    Raises OSError when the map cannot be mapped, ValueError when the slot does not divide the ring.
    """

    def __init__(self, map_fd: int, size_bytes: int, slot: np.dtype[np.void]) -> None:
        if size_bytes % slot.itemsize:
            raise ValueError(f"{size_bytes} bytes hold no whole number of {slot.itemsize}-byte slots")
        self._fd = map_fd
        self._slot = slot
        self._payload_bytes = slot.itemsize - slot.fields["record"][1]  # type: ignore[index]
        self._fence = fence_for(platform.machine())
        page = mmap.PAGESIZE
        self._positions = mmap.mmap(map_fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._data = mmap.mmap(map_fd, page + size_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        self._consumer = np.frombuffer(self._positions, np.uint64, 1)
        self._producer = np.frombuffer(self._data, np.uint64, 1)
        self._slots: Array = np.frombuffer(self._data, slot, size_bytes // slot.itemsize, page)

    def fileno(self) -> int:
        """Return the map's file descriptor, to poll."""
        return self._fd

    def close(self) -> None:
        """Unmap the ring. Views handed out before must be gone."""
        del self._consumer, self._producer, self._slots
        self._positions.close()
        self._data.close()

    def waiting(self) -> int:
        """Count the slots reserved and not yet taken, submitted or not."""
        return self._waiting(int(self._consumer[0]))

    def views(self, limit: int | None = None) -> Iterator[Array]:
        """Give the submitted slots, oldest first, up to the first busy one, as views of the ring itself.

        A view is the program's memory again as soon as the next one is asked for: copy what shall stay.
        Discarded slots are among them (see `records`). At most `limit` slots. A slot is given back to
        the kernel only after the loop's body came to its end; if that raises, it is read again later.

        Raises RtdebugError when the ring holds a record of another size.
        """
        left = len(self._slots) if limit is None else limit
        while left > 0:
            # only we write the consumer's position, so no ordering is needed to read it
            consumer = int(self._consumer[0])
            waiting = self._waiting(consumer)
            start = consumer // self._slot.itemsize % len(self._slots)
            asked = min(waiting, left, len(self._slots) - start, max(BATCH_BYTES // self._slot.itemsize, 1))
            self._fence()  # the producer's position before the headers it covers
            count = self._submitted(self._slots["length"][start : start + asked])
            if not count:
                return
            self._fence()  # the headers before the records they speak of
            yield self._slots[start : start + count]
            self._fence()  # all reading before the kernel may write there again
            self._consumer[0] = (consumer + count * self._slot.itemsize) & _POSITION_MASK
            left -= count
            if count < asked:
                return

    def drain(self, limit: int | None = None) -> Array:
        """Take the submitted records, oldest first, and return a copy of them, discarded ones left out."""
        parts = [records(view).copy() for view in self.views(limit)]
        if not parts:
            return np.empty(0, self._slot["record"])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def drain_into(self, write: Callable[[Array], None], limit: int | None = None) -> int:
        """Hand the submitted slots to `write` without a copy and return how many there were.

        `write` gets whole slots with their headers, discarded ones among them: what a recording keeps.
        """
        count = 0
        for view in self.views(limit):
            write(view)
            count += len(view)
        return count

    def _waiting(self, consumer: int) -> int:
        waiting_bytes = (int(self._producer[0]) - consumer) & _POSITION_MASK
        if waiting_bytes > self._slots.nbytes or waiting_bytes % self._slot.itemsize:
            raise RtdebugError(
                f"the ring's positions make no sense ({waiting_bytes} bytes waiting of {self._slots.nbytes})",
                "another record size than this rtdebug's was written, or another reader uses the ring",
            )
        return waiting_bytes // self._slot.itemsize

    def _submitted(self, lengths: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> int:
        """Count the slots before the first busy one."""
        busy = lengths >= BUSY
        if busy.any():
            lengths = lengths[: int(busy.argmax())]
        foreign = (lengths & np.uint32(~DISCARD & 0xFFFF_FFFF)) != self._payload_bytes
        if foreign.any():
            raise RtdebugError(
                f"a record of {int(lengths[foreign][0]) & ~DISCARD} bytes lies in a ring of "
                f"{self._payload_bytes}-byte records",
                "the loaded programs and this rtdebug are not of one version",
            )
        return len(lengths)


def records(slots: Array) -> Array:
    """Return the records in `slots` without the discarded ones: a view when there are none of those."""
    discarded = (slots["length"] & np.uint32(DISCARD)) != 0
    return slots["record"][~discarded] if discarded.any() else slots["record"]


def fence_for(machine: str) -> Callable[[], object]:
    """Return what orders the memory accesses of this thread before the call against those after it.

    Needed for loads before loads and loads before stores, between us and the CPUs that produce. x86-64 keeps
    these orders by itself (TSO). Elsewhere Python has no fence, but a lock's release and acquire make one:
    what comes before cannot sink below the release, what comes after cannot rise above the acquire, and
    ARMv8 does not swap a release with a later acquire of this thread (both are RCsc: STLR/LDAR, or
    the L and A forms of the LSE atomics). The lock is never contended: two atomic operations a batch.
    """
    if machine in ("x86_64", "AMD64"):
        return _no_fence
    lock = threading.Lock()
    lock.acquire()

    def fence() -> None:
        lock.release()
        lock.acquire()

    return fence


def _no_fence() -> None:
    return None
