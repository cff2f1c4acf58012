"""The two system calls that Python does not have, through cffi on libc: ptrace(2) and process_madvise(2)."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

_SYS_PROCESS_MADVISE = 440  # one number on every architecture but alpha
_DECLARATIONS = """
long ptrace(long request, int pid, uintptr_t address, uintptr_t data);
long syscall(long number, ...);
struct iovec { uintptr_t iov_base; size_t iov_len; };
"""


@cache
def _libc() -> tuple[Any, Any]:
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(_DECLARATIONS)
    return ffi, ffi.dlopen(None)


def load() -> None:
    """Load what is needed now, so that it takes no time later, while somebody waits."""
    _libc()


def ptrace(request: int, tid: int, address: int = 0, data: int = 0) -> int:
    """ptrace(2) with numbers. Raises OSError."""
    ffi, libc = _libc()
    return _checked(ffi, libc.ptrace(request, tid, address, data))


def ptrace_buffer(request: int, tid: int, address: int, buffer: bytearray) -> int:
    """ptrace(2) whose data is a buffer. Raises OSError."""
    ffi, libc = _libc()
    pointer = int(ffi.cast("uintptr_t", ffi.from_buffer(buffer)))
    return _checked(ffi, libc.ptrace(request, tid, address, pointer))


def ptrace_vector(request: int, tid: int, kind: int, buffer: bytearray) -> int:
    """ptrace(2) whose data is a struct iovec of `buffer`, for regset `kind`; gives its length. Raises OSError."""
    ffi, libc = _libc()
    pointer = int(ffi.cast("uintptr_t", ffi.from_buffer(buffer)))
    vector = ffi.new("struct iovec *", (pointer, len(buffer)))
    _checked(ffi, libc.ptrace(request, tid, kind, int(ffi.cast("uintptr_t", vector))))
    return int(vector.iov_len)


def process_madvise(pidfd: int, address: int, length_bytes: int, advice: int) -> int:
    """process_madvise(2) on one range; the number of bytes advised, which may be less. Raises OSError."""
    ffi, libc = _libc()
    vector = ffi.new("struct iovec *", (address, length_bytes))
    arguments = ("int", pidfd), ("struct iovec *", vector), ("size_t", 1), ("int", advice), ("unsigned int", 0)
    values = [ffi.cast(kind, value) for kind, value in arguments]
    return _checked(ffi, libc.syscall(_SYS_PROCESS_MADVISE, *values))


def _checked(ffi: Any, result: int) -> int:  # noqa: ANN401 - cffi has no types
    if result < 0:
        raise OSError(ffi.errno, os.strerror(ffi.errno))
    return int(result)
