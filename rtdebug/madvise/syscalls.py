"""libc through cffi: the calls that Python has no function for. Each raises OSError as os.* would."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

PROT_NONE, PROT_READ, PROT_WRITE = 0, 1, 2
MAP_SHARED, MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS, MAP_NORESERVE = 0x01, 0x02, 0x10, 0x20, 0x4000
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_THP_DISABLE = 1, 4, 24, 38, 41
SHM_REMAP = 0o40000
IPC_PRIVATE, IPC_RMID, IPC_CREAT = 0, 0, 0o1000

_DECLARATIONS = """
void *mmap(void *address, size_t length, int protection, int flags, int fd, long offset);
int munmap(void *address, size_t length);
int madvise(void *address, size_t length, int advice);
int setns(int fd, int kinds);
int prctl(int option, unsigned long, unsigned long, unsigned long, unsigned long);
int shmget(int key, size_t size, int flags);
void *shmat(int id, const void *address, int flags);
int shmctl(int id, int command, void *buffer);
long syscall(long number, ...);
"""


@lru_cache(maxsize=1)
def libc() -> tuple[Any, Any]:
    """cffi's FFI and the library; imported at the first call, for it is not needed to say --help."""
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(_DECLARATIONS)
    return ffi, ffi.dlopen(None)


def mmap(address: int, length_bytes: int, protection: int, flags: int, fd: int = -1) -> int:
    """mmap(2): the address."""
    ffi, library = libc()
    pointer = library.mmap(ffi.cast("void *", address), length_bytes, protection, flags, fd, 0)
    return _address(pointer, "mmap")


def munmap(address: int, length_bytes: int) -> None:
    """munmap(2); also detaches a System V segment."""
    ffi, library = libc()
    _check(library.munmap(ffi.cast("void *", address), length_bytes), "munmap")


def madvise(address: int, length_bytes: int, advice: int) -> None:
    """madvise(2) on this process."""
    ffi, library = libc()
    _check(library.madvise(ffi.cast("void *", address), length_bytes, advice), "madvise")


def setns(fd: int, kinds: int) -> None:
    """setns(2) with the pidfd of a process whose namespaces of these kinds are joined at once (Linux 5.8)."""
    _check(libc()[1].setns(fd, kinds), "setns")


def prctl(option: int, value: int = 0) -> None:
    """prctl(2) with one argument."""
    _check(libc()[1].prctl(option, value, 0, 0, 0), "prctl")


def attach_sysv(length_bytes: int, address: int) -> None:
    """Make a System V segment and attach it at `address`, over what is mapped there; it goes with its last user.

    shmget(2), shmat(2) and shmctl(IPC_RMID) in one breath: a process killed later leaves nothing behind.
    """
    ffi, library = libc()
    segment = _check(library.shmget(IPC_PRIVATE, length_bytes, IPC_CREAT | 0o600), "shmget")
    try:
        _address(library.shmat(segment, ffi.cast("void *", address), SHM_REMAP), "shmat")
    finally:
        library.shmctl(segment, IPC_RMID, ffi.NULL)


def syscall(number: int, *arguments: Any) -> int:  # noqa: ANN401 - cffi has no types
    """A system call that libc has no function for; integers are passed as long."""
    ffi, library = libc()
    passed = [ffi.cast("long", argument) if isinstance(argument, int) else argument for argument in arguments]
    return _check(library.syscall(number, *passed), "syscall")


def _check(result: int, name: str) -> int:
    if result == -1:
        raise _error(name)
    return result


def _address(pointer: Any, name: str) -> int:  # noqa: ANN401 - cffi has no types
    ffi, _ = libc()
    address = int(ffi.cast("uintptr_t", pointer))
    if address == int(ffi.cast("uintptr_t", -1)):
        raise _error(name)
    return address


def _error(name: str) -> OSError:
    number = libc()[0].errno
    return OSError(number, os.strerror(number), name)
