"""What programs write to their own log when shared memory fails them: they know what they asked for.

The wordings are those of PostgreSQL (src/backend/storage/ipc/dsm_impl.c), NCCL (src/misc/shmutils.cc), PyTorch
(torch/utils/data/_utils/signal_handling.py, c10 and aten MapAllocator), Python, glibc and the kubelet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

AppEvent = Literal["no_space", "bus_error", "evicted"]

_LONGEST_LINE = 4096


@dataclass(frozen=True, slots=True)
class AppMessage:
    """One line of a program's log that speaks of shared memory."""

    app: str | None
    """`postgresql`, `nccl`, `pytorch`; None: a wording that many have."""
    event: AppEvent
    request_bytes: int | None
    """What was asked for; None: it does not say."""
    pid: int | None
    """As the container counts."""
    text: str


_PATTERNS: tuple[tuple[str | None, AppEvent, re.Pattern[str]], ...] = (
    (
        "postgresql",
        "no_space",
        re.compile(r"could not resize shared memory segment(?: \"[^\"]*\")? to (?P<bytes>\d+) bytes"),
    ),
    ("nccl", "no_space", re.compile(r"Error while creating shared memory segment \S+ \(size (?P<bytes>\d+)\)")),
    ("nccl", "no_space", re.compile(r"failed to extend /dev/shm/\S+ to (?P<bytes>\d+) bytes")),
    ("nccl", "no_space", re.compile(r"NCCL .*posix_fallocate failed ?: No space left on device")),
    ("pytorch", "bus_error", re.compile(r"DataLoader worker \(pid(?:\(s\))? (?P<pid>\d+)[^)]*\) .{0,20}signal: Bus")),
    ("pytorch", "bus_error", re.compile(r"bus error encountered in worker\. .{0,40}insufficient shared")),
    ("pytorch", "no_space", re.compile(r"unable to (?:write to|open|resize) (?:shared memory )?file </torch_\w+>")),
    ("pytorch", "no_space", re.compile(r"unable to mmap (?P<bytes>\d+) bytes from file </torch_\w+>")),
    (None, "evicted", re.compile(r"Usage of EmptyDir volume \"[^\"]*\" exceeds the limit \"[^\"]*\"")),
    (None, "no_space", re.compile(r"(?:/dev/shm|shm_open|shared memory).{0,200}No space left on device")),
    (None, "bus_error", re.compile(r"\bBus error\b|\bSIGBUS\b")),
)


WORDS = (
    *(b"shared memory", b"/torch_", b"/dev/shm", b"shm_open", b"NCCL", b"EmptyDir volume"),
    *(b"DataLoader worker", b"Bus error", b"bus error", b"SIGBUS"),
)
"""No line that a pattern finds is without one of them: the rest of a large log is skipped fast."""


def read_app_log(lines: Iterable[str]) -> Iterator[AppMessage]:
    """The lines that speak of shared memory, one message for each; the rest is skipped."""
    for line in lines:
        message = _message(line[:_LONGEST_LINE].rstrip("\r\n"))
        if message is not None:
            yield message


def _message(line: str) -> AppMessage | None:
    for app, event, pattern in _PATTERNS:
        match = pattern.search(line)
        if match:
            groups = match.groupdict()
            return AppMessage(app, event, _number(groups.get("bytes")), _number(groups.get("pid")), line)
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text and len(text) < 20 else None
