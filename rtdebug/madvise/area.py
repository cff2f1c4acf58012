"""Memory of one kind, mapped for one run: aligned to a huge page, between guards, gone when it is closed."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rtdebug.madvise import syscalls
from rtdebug.madvise.plan import Case

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_READ_WRITE = syscalls.PROT_READ | syscalls.PROT_WRITE
_FILL = bytes(range(256)) * 4096
_ROOM_LEFT_BYTES = 1 << 20
"""What an experiment leaves free on a file system."""


@dataclass(frozen=True, slots=True)
class Area:
    """A mapping of this process."""

    address: int
    size_bytes: int

    @property
    def end(self) -> int:
        """The address behind it."""
        return self.address + self.size_bytes

    def words(self) -> NDArray[np.int64]:
        """Its 64-bit words; not to be touched once the area is unmapped."""
        import numpy as np

        ffi, _ = syscalls.libc()
        return np.frombuffer(ffi.buffer(ffi.cast("char *", self.address), self.size_bytes), dtype=np.int64)


class CannotMapError(Exception):
    """This kind of memory cannot be had here; the text says why."""


@contextlib.contextmanager
def mapped(case: Case, size_bytes: int, alignment_bytes: int, file: int | None = None) -> Iterator[Area]:
    """Map `case.memory`. `file` is what opened_file() gave, for memory `file`. Raises CannotMapError.

    The pages around it are reserved without access, so that the kernel merges it with no neighbour and
    /proc/self/smaps has it as entries of its own.
    """
    total = size_bytes + 2 * alignment_bytes
    flags = syscalls.MAP_PRIVATE | syscalls.MAP_ANONYMOUS | syscalls.MAP_NORESERVE
    reserved = syscalls.mmap(0, total, syscalls.PROT_NONE, flags)
    address = (reserved // alignment_bytes + 1) * alignment_bytes
    try:
        _map_at(address, size_bytes, case, file)
        yield Area(address, size_bytes)
    except OSError as error:
        raise CannotMapError(f"{case.memory}: {error.strerror} ({error.filename or 'mmap'})") from error
    finally:
        syscalls.munmap(reserved, total)


def _map_at(address: int, size_bytes: int, case: Case, file: int | None) -> None:
    fixed = syscalls.MAP_FIXED
    match case.memory:
        case "anon":
            syscalls.mmap(address, size_bytes, _READ_WRITE, fixed | syscalls.MAP_PRIVATE | syscalls.MAP_ANONYMOUS)
        case "shared-anon":
            syscalls.mmap(address, size_bytes, _READ_WRITE, fixed | syscalls.MAP_SHARED | syscalls.MAP_ANONYMOUS)
        case "sysv":
            syscalls.attach_sysv(size_bytes, address)
        case "memfd":
            _map_file(address, size_bytes, os.memfd_create("rtdebug-experiment", os.MFD_CLOEXEC))
        case "shm":
            _map_file(address, size_bytes, _unlinked_file(Path("/dev/shm"), size_bytes))
        case _:
            assert file is not None
            protection = syscalls.PROT_READ if case.file else _READ_WRITE
            syscalls.mmap(address, size_bytes, protection, fixed | syscalls.MAP_SHARED, file)


def _map_file(address: int, size_bytes: int, fd: int) -> None:
    """The mapping keeps the file: nothing of it is left when it goes."""
    try:
        os.ftruncate(fd, size_bytes)
        syscalls.mmap(address, size_bytes, _READ_WRITE, syscalls.MAP_FIXED | syscalls.MAP_SHARED, fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def opened_file(case: Case, size_bytes: int) -> Iterator[int]:
    """The file of memory `file`: the container's, only to be read, or a new one without a name.

    Raises CannotMapError.
    """
    try:
        fd = _existing_file(case.file, size_bytes) if case.file else _new_file(Path("/tmp"), size_bytes)
    except OSError as error:
        raise CannotMapError(f"file: {error.strerror} ({error.filename})") from error
    try:
        yield fd
    finally:
        os.close(fd)


def drop_cache(file: int) -> None:
    """Let the next reader find nothing of our own file in memory: posix_fadvise(2), which drops clean pages only."""
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def _existing_file(path: str, size_bytes: int) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_size >= size_bytes:
        return fd
    os.close(fd)
    what = f"only {status.st_size} bytes" if stat.S_ISREG(status.st_mode) else "no regular file"
    raise CannotMapError(f"file: {path} is {what}, the plan's size is {size_bytes}")


def _new_file(folder: Path, size_bytes: int) -> int:
    folder = folder if folder.is_dir() else Path("/")
    fd = _unlinked_file(folder, size_bytes)
    for _ in range(0, size_bytes, len(_FILL)):
        os.write(fd, _FILL)
    os.ftruncate(fd, size_bytes)
    os.fsync(fd)
    return fd


def _unlinked_file(folder: Path, size_bytes: int) -> int:
    """A file whose name is gone at once. Raises CannotMapError where it would not fit: touching it were a SIGBUS."""
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if room.f_blocks and free < size_bytes + _ROOM_LEFT_BYTES:
        raise CannotMapError(f"{folder} has only {free >> 20} MiB free, the plan's size is {size_bytes >> 20} MiB")
    path = folder / f"rtdebug-{secrets.token_hex(8)}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    path.unlink()
    return fd
