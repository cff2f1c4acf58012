"""process_madvise(2), Linux 5.10: COLD, PAGEOUT, WILLNEED and COLLAPSE (6.1) on the memory of another process.

The range is advised in steps, so that somebody can look between them whether it hurts.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass

from rtdebug.errors import HostUnable, RtdebugError, TargetError
from rtdebug.madvise.advice import Advice, Way
from rtdebug.madvise.syscalls import libc, madvise, syscall

_SYS_PROCESS_MADVISE = 440  # one number on every architecture but alpha
STEP_BYTES = 32 << 20
"""A multiple of the huge page on x86-64 and arm64 with 4 KiB pages. Collapsing so much takes some 10 ms."""
_PIECE_BYTES = 2 << 20
"""What is refused is tried again in pieces of this size: the kernel gives up a whole step for one part of it."""

_NOT_HERE = frozenset({errno.EAGAIN, errno.EBUSY, errno.EINVAL, errno.ENOMEM})
"""COLLAPSE: this part could not be done, another may."""


@dataclass(frozen=True, slots=True)
class Advised:
    """What came of it."""

    advised_bytes: int
    """So much the kernel took the advice for; it does not say what it did with it."""
    refused_bytes: int
    """So much it refused."""
    error: str | None
    """The last refusal, as `EINVAL`."""
    stopped: str | None
    """Why it was stopped before its end; None: it was not."""


def process_madvise(pidfd: int, address: int, length_bytes: int, advice: int) -> int:
    """process_madvise(2) on one range; the number of bytes advised, which may be less. Raises OSError."""
    ffi, _ = libc()
    vector = ffi.from_buffer(struct.pack("QQ", address, length_bytes))
    return syscall(_SYS_PROCESS_MADVISE, pidfd, vector, 1, advice, 0)


def is_taken(advice: Advice) -> bool:
    """Whether this kernel has it, and takes it in the way it would be given: asked with no memory at all."""
    try:
        madvise(0, 0, advice.number)
        if advice.way is Way.PROCESS_MADVISE:
            pidfd = os.pidfd_open(os.getpid())
            try:
                syscall(_SYS_PROCESS_MADVISE, pidfd, libc()[0].NULL, 0, advice.number, 0)
            finally:
                os.close(pidfd)
    except OSError as error:
        return error.errno != errno.EINVAL  # anything else is for the real call to say
    return True


def advise_range(
    pid: int, start: int, end: int, advice: Advice, should_stop: Callable[[], str | None] = lambda: None
) -> Advised:
    """Give advice on all of a range, step by step.

    `should_stop` is asked before each step; what it returns ends it. Raises TargetError if the process has ended,
    HostUnable if the kernel or the rights do not do, RtdebugError if the advice is refused for all of the range.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise _gone(pid) from None
    advised = refused = 0
    error = stopped = None
    try:
        position = in_pieces_until = start
        while position < end and (stopped := should_stop()) is None:
            step = _PIECE_BYTES if position < in_pieces_until else STEP_BYTES
            length = min(step - position % step, end - position)
            try:
                done = process_madvise(pidfd, position, length, advice.number) or length
                advised += done
            except OSError as failure:
                error = _refusal(failure, pid, advice)
                if length > _PIECE_BYTES:
                    in_pieces_until = position + length
                    continue
                done = length
                refused += done
            position += done
    finally:
        os.close(pidfd)
    if refused and not advised and stopped is None:
        raise RtdebugError(f"{advice.name} on process {pid} failed: {error}", _why(error or "", advice))
    return Advised(advised, refused, error if refused else None, stopped)


def _refusal(failure: OSError, pid: int, advice: Advice) -> str:
    """The name of an error that another part of the range need not have; raises what no part can pass."""
    name = errno.errorcode.get(failure.errno or 0, str(failure.errno))
    if failure.errno == errno.ESRCH:
        raise _gone(pid) from None
    if failure.errno == errno.ENOSYS:
        raise HostUnable("this kernel has no process_madvise(2)", "it is in Linux 5.10 and newer") from None
    if failure.errno == errno.EPERM:
        raise HostUnable(
            f"may not advise process {pid}", "run as root: CAP_SYS_PTRACE and CAP_SYS_NICE are needed"
        ) from None
    if failure.errno not in _NOT_HERE:
        raise RtdebugError(f"{advice.name} on process {pid} failed: {name}", _why(name, advice)) from None
    return name


def _why(error: str, advice: Advice) -> str:
    if error == "EINVAL" and advice.name == "MADV_COLLAPSE":
        return "it needs an aligned huge page in memory that may have one"
    if error == "EINVAL":
        return "not for this kind of memory (locked, hugetlb, device)"
    if error == "ENOMEM":
        return "no huge page is free, or the range is no longer mapped"
    if error in ("EAGAIN", "EBUSY"):
        return "its pages are in use by the kernel right now: try again"
    return "see process_madvise(2)"


def _gone(pid: int) -> TargetError:
    return TargetError(f"process {pid} has exited", "rtdebug madvise list TARGET shows what there is now")
