"""Small text files of the kernel and of runtimes: read without loss, None where there is nothing to read."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

NOT_THERE = frozenset(
    {
        errno.ENOENT,  # not on this kernel, or gone
        errno.ENOTDIR,
        errno.ESRCH,  # the process exited between open() and read()
        errno.EINVAL,  # mountinfo of a process that has exited (fs/proc_namespace.c: mounts_open_common)
        errno.ENODEV,  # the cgroup was removed between open() and read()
        errno.EOPNOTSUPP,  # *.pressure with psi=0; cgroup.procs of a threaded cgroup
        errno.EACCES,
        errno.EPERM,
        errno.ELOOP,  # read_regular() met a symbolic link
    }
)
"""What says that there is nothing to read; all else is an error of this host, or of ours."""


def read_text(path: Path) -> str | None:
    """Text of a file of /proc, /sys or cgroupfs; None if it does not exist, has vanished or may not be read.

    Bytes that are not UTF-8 become lone surrogates (PEP 383): names can be turned back into their bytes.
    Raises OSError for everything else (EMFILE, EIO, ...).
    """
    try:
        return decode(path.read_bytes())
    except OSError as error:
        if error.errno in NOT_THERE:
            return None
        raise


def read_regular(path: Path, limit_bytes: int = 16 << 20) -> str | None:
    """Text of an ordinary file that somebody else may have put there.

    None if it is absent, larger than `limit_bytes`, a symbolic link, or not a regular file: a FIFO would hang
    the reader, a link would lead it elsewhere.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in NOT_THERE or error.errno == errno.ENXIO:
            return None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit_bytes:
            return None
        with os.fdopen(fd, "rb", closefd=False) as file:
            return decode(file.read(limit_bytes))
    finally:
        os.close(fd)


def file_mode(path: Path) -> int | None:
    """The st_mode of what `path` leads to; None if there is nothing, or we may not look."""
    try:
        return path.stat().st_mode
    except OSError:
        return None


def is_dir(path: Path) -> bool:
    """Whether `path` is a folder that we may reach."""
    return stat.S_ISDIR(file_mode(path) or 0)


def is_socket(path: Path) -> bool:
    """Whether `path` is a socket that we may reach."""
    return stat.S_ISSOCK(file_mode(path) or 0)


def decode(raw: bytes) -> str:
    """Bytes of the kernel as text, without loss (PEP 383)."""
    return raw.decode("utf-8", "surrogateescape")


def valid_utf8(text: str) -> str:
    """Text for files that hold valid UTF-8 only (Parquet, Arrow): what came of other bytes is written as `\\xff`."""
    if text.isascii():
        return text
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        raw = text.encode("utf-8", "backslashreplace")
    return raw.decode("utf-8", "backslashreplace")


def parse_int(text: str | None) -> int | None:
    """The decimal number that is the whole text; None if it is none, or there is no text."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def parse_keyed(text: str) -> dict[str, int]:
    """`key value` lines ("flat keyed" in Documentation/admin-guide/cgroup-v2.rst), unknown keys included.

    A line that is cut short or is no such pair is left out.
    """
    pairs = (line.split() for line in text.split("\n"))
    return {pair[0]: value for pair in pairs if len(pair) == 2 and (value := parse_int(pair[1])) is not None}
