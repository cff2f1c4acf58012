"""/dev/kmsg: the kernel log, one record per read(2).

Source: Documentation/ABI/testing/dev-kmsg, kernel/printk/printk.c (devkmsg_read, msg_add_ext_text).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from rtdebug.errors import HostUnable, RtdebugError

KMSG = Path("/dev/kmsg")
FACILITY_KERNEL = 0

_RECORD_BYTES = 16384  # the kernel's own buffer for one record is 8 KiB, and read(2) fails on a smaller one
_RECORDS_PER_READ = 4096  # a flood must not keep the caller's loop from its other descriptors
_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True)
class KmsgRecord:
    """One record of the kernel log."""

    sequence: int
    time_us: int
    """The kernel's local clock: microseconds since boot, without time asleep."""
    facility: int
    """0: the kernel itself. User space that writes to /dev/kmsg never gets 0."""
    level: int
    """0 (emergency) to 7 (debug), syslog(2)."""
    message: str
    """Unescaped: may hold newlines, control characters and, for bytes that are not UTF-8, lone surrogates."""
    caller: str | None = None
    """`T<tid>` or `C<cpu>` where the kernel has CONFIG_PRINTK_CALLER."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The continuation lines, such as SUBSYSTEM and DEVICE."""

    @property
    def from_kernel(self) -> bool:
        """False for what a process wrote to /dev/kmsg."""
        return self.facility == FACILITY_KERNEL


def _is_kernel_log(fd: int) -> bool:
    """Whether it is the device mem:kmsg (drivers/char/mem.c): /dev/null would poll readable for ever."""
    status = os.fstat(fd)
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(1, 11)


def parse_kmsg_record(raw: bytes) -> KmsgRecord:
    r"""Parse what one read(2) gave: `prefix,sequence,time_us,flags[,key=value];text\n KEY=value\n`.

    Raises RtdebugError when it has another form.
    """
    head, separator, rest = raw.partition(b";")
    text, *continuation = rest.removesuffix(b"\n").split(b"\n")
    parts = head.split(b",")
    try:
        prefix, sequence, time_us = (int(part) for part in parts[:3])
    except ValueError:
        separator = b""
    if not separator or len(parts) < 4:
        raise RtdebugError(
            f"not a record of the kernel log: {raw[:60]!r}",
            "see Documentation/ABI/testing/dev-kmsg in the kernel's source for the form expected",
        )
    extra = dict(_pairs(parts[4:]))
    return KmsgRecord(
        sequence=sequence,
        time_us=time_us,
        facility=prefix >> 3,
        level=prefix & 7,
        message=_unescape(text),
        caller=extra.get("caller"),
        fields=dict(_pairs(line[1:] for line in continuation if line.startswith(b" "))),
    )


def _pairs(items: Iterable[bytes]) -> list[tuple[str, str]]:
    found = []
    for item in items:
        key, equals, value = item.partition(b"=")
        if equals:
            found.append((_unescape(key), _unescape(value)))
    return found


def _unescape(text: bytes) -> str:
    r"""Undo the kernel's \xNN, once: a backslash comes as \x5c, so what is left is what was logged."""
    plain = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), text)
    return plain.decode("utf-8", "surrogateescape")


class KmsgReader:
    """Follows the kernel log without blocking; its descriptor can wait in epoll or select.

    A log that turned round before it was read counts in `lost`.
    """

    def __init__(self, fd: int, read: Callable[[int, int], bytes] = os.read) -> None:
        self._fd = fd
        self._read = read
        self._next_sequence: int | None = None
        self._overrun = False
        self.lost = 0
        """Records the kernel overwrote before they were read."""

    @classmethod
    def open(cls, path: Path = KMSG, *, from_start: bool = False) -> Self:
        """Open the log at its end, or at the oldest record it still holds.

        Raises HostUnable when this process may not read it or the host has none.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise HostUnable(
                f"cannot read the kernel log {path}: {error.strerror}",
                "run as root with CAP_SYSLOG (kernel.dmesg_restrict) and with /dev/kmsg in place; "
                "without it an OOM report lacks the kernel's own dump",
            ) from error
        if not _is_kernel_log(fd):
            os.close(fd)
            raise HostUnable(
                f"{path} is not the kernel log",
                "some containers have /dev/null in its place; run rtdebug on the host",
            )
        if not from_start:
            os.lseek(fd, 0, os.SEEK_END)
        return cls(fd)

    def fileno(self) -> int:
        """The descriptor; readable when there is a record, or when records were lost."""
        return self._fd

    def read(self) -> list[KmsgRecord]:
        """All records there are now (a flood is cut and goes on at the next call); empty when none."""
        records: list[KmsgRecord] = []
        while len(records) < _RECORDS_PER_READ:
            try:
                raw = self._read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                self._overrun = True  # the kernel moved us to the oldest record left
                continue
            if not raw:
                break
            record = parse_kmsg_record(raw)
            if self._overrun:
                self.lost += self._missed_before(record)
                self._overrun = False
            self._next_sequence = record.sequence + 1
            records.append(record)
        return records

    def _missed_before(self, record: KmsgRecord) -> int:
        """At least one was lost; how many, the sequence says if there was an earlier record."""
        return 1 if self._next_sequence is None else max(1, record.sequence - self._next_sequence)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
