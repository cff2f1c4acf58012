"""Which memory cgroup pays for the pages of a file: asked of the kernel, page by page.

A page that is in memory already is mapped for a moment; pagemap tells its frame, and kpagecgroup the cgroup that was
charged when it was first touched. No page is brought in, none is written, and the file's access time stays.
Needs CAP_SYS_ADMIN.

Sources: Documentation/admin-guide/mm/pagemap.rst, mincore(2), mmap(2) MAP_POPULATE, lseek(2) SEEK_DATA.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MAP_FIXED = 0x10
_FRAME = (1 << 55) - 1
_PRESENT = 1 << 63
_MAP_FAILED = ctypes.c_void_p(-1).value
_ENTRY_BYTES = 8
_SAMPLES = 4


class PageOwners:
    """Open files of /proc that answer; close() it. `available` is False where this kernel, or our rights, do not do."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._fds: list[int] = []
        with suppress(OSError):
            for path in (proc / "self" / "pagemap", proc / "kpagecgroup"):
                self._fds.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        self.available = len(self._fds) == 2

    def close(self) -> None:
        """Close the files."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self.available = False

    def cgroup_ids(self, fd: int) -> frozenset[int]:
        """The ids (inode numbers) of the cgroups that pay for up to four pages spread over a file.

        A removed cgroup's pages count for its nearest ancestor that is left. Empty: no page in memory, or not told.
        """
        if not self.available:
            return frozenset()
        found = set[int]()
        with suppress(OSError):
            for offset in set(_data_offsets(fd)):
                with _mapped(fd, offset) as address:
                    found.add(self._owner(address))
        return frozenset(found - {0})

    def _owner(self, address: int) -> int:
        pagemap, kpagecgroup = self._fds
        entry = _entry(pagemap, address // mmap.PAGESIZE)
        return _entry(kpagecgroup, entry & _FRAME) if entry & _PRESENT and entry & _FRAME else 0


def _data_offsets(fd: int) -> Iterator[int]:
    """Offsets of pages that exist: the first at or behind each quarter of the file."""
    size = os.fstat(fd).st_size
    for index in range(_SAMPLES):
        with suppress(OSError):  # ENXIO: no data from here on
            start = size * index // _SAMPLES // mmap.PAGESIZE * mmap.PAGESIZE
            yield os.lseek(fd, start, os.SEEK_DATA) // mmap.PAGESIZE * mmap.PAGESIZE


@contextmanager
def _mapped(fd: int, offset: int) -> Iterator[int]:
    """One page of a file, mapped and in our page table. Raises OSError if it is not in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    length = ctypes.c_size_t(mmap.PAGESIZE)

    def map_at(address: int | None, flags: int) -> int:
        found: int | None = libc.mmap(
            ctypes.c_void_p(address), length, mmap.PROT_READ, mmap.MAP_SHARED | flags, fd, ctypes.c_int64(offset)
        )
        if found is None or found == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), "mmap")
        return found

    address = map_at(None, 0)
    start = ctypes.c_void_p(address)
    try:
        resident = ctypes.create_string_buffer(1)
        if libc.mincore(start, length, resident) != 0 or not resident.raw[0] & 1:
            raise OSError("not in memory")
        # into our page table without a touch, which would be a SIGBUS if the file was cut meanwhile
        map_at(address, _MAP_FIXED | mmap.MAP_POPULATE)
        yield address
    finally:
        libc.munmap(start, length)


def _entry(fd: int, index: int) -> int:
    return int.from_bytes(os.pread(fd, _ENTRY_BYTES, index * _ENTRY_BYTES), "little")
