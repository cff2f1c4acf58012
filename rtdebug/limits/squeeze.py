"""Taking memory from a container in steps, in the way its kernel offers, and never by killing.

v2 has memory.reclaim (Linux 5.19) for what is taken once, and memory.high for a ceiling that is held. v1 has neither:
memory.force_empty takes all there is at once, and its soft limit acts only when the whole host is short. So there the
hard limit is lowered for a moment, with the OOM killer off (memory.oom_control), and put back at once: the kernel
reclaims down to the limit before it sets it, and refuses it (EBUSY) when it cannot. What is taken is page cache and,
with swap, anonymous memory; never more than the kernel can give.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import HostUnable, RtdebugError
from rtdebug.host.text import parse_int, read_text
from rtdebug.host.watchdog import Watchdog
from rtdebug.limits.settings import Level

_REFUSED = frozenset({errno.EAGAIN, errno.EBUSY, errno.EINTR})
"""It took less than was asked for: no failure."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Squeeze:
    """The way this cgroup's memory is taken."""

    path: Path
    way: str
    """`memory.reclaim`, `memory.high` or `memory.limit_in_bytes`: what is written."""
    original: tuple[tuple[str, str], ...]
    """What the files held that are changed, in the order in which they are put back."""

    def take(self, count_bytes: int) -> None:
        """Take up to so much, now. Raises RtdebugError if the cgroup has vanished or may not be written."""
        if self.way == "memory.reclaim":
            _write(self.path / self.way, str(count_bytes))
            return
        usage = _usage(self.path)
        if usage is None:
            raise RtdebugError(f"{self.path} has vanished", "the container has ended")
        self.lower_to(max(usage - count_bytes, _PAGE_BYTES))
        self.put_back()

    def lower_to(self, ceiling_bytes: int) -> None:
        """Set the ceiling: on v2 it is held until put_back(); on v1 do not leave it, call put_back() at once."""
        if self.way == "memory.limit_in_bytes":
            _write(self.path / "memory.oom_control", "1")
        _write(self.path / self.way, str(ceiling_bytes))

    def put_back(self) -> None:
        """What the files held before. A cgroup that is gone needs nothing."""
        for file, text in self.original:
            with contextlib.suppress(FileNotFoundError, RtdebugError):
                _write(self.path / file, text)

    @property
    def holds(self) -> bool:
        """Whether a ceiling can be held (v2)."""
        return self.way != "memory.limit_in_bytes"


@contextlib.contextmanager
def squeezing(level: Level, *, hold: bool = False) -> Iterator[Squeeze]:
    """The way for this cgroup; afterwards, also if we are killed, its files are as they were.

    `hold`: a ceiling that stays is wanted, memory.high where there is one.
    Raises HostUnable if there is no way.
    """
    squeeze = _way(level, hold)
    with Watchdog(squeeze.put_back):
        yield squeeze


def _way(level: Level, hold: bool) -> Squeeze:
    path = level.path
    if level.version == 2:
        if (path / "memory.reclaim").exists() and not hold:
            return Squeeze(path, "memory.reclaim", ())
        high = read_text(path / "memory.high")
        if high is not None:
            return Squeeze(path, "memory.high", (("memory.high", high.strip()),))
    limit = read_text(path / "memory.limit_in_bytes")
    if limit is not None and level.memory.oom_kill_disable is not None:
        killing = str(int(level.memory.oom_kill_disable))
        return Squeeze(
            path,
            "memory.limit_in_bytes",
            (("memory.limit_in_bytes", limit.strip()), ("memory.oom_control", killing)),
        )
    raise HostUnable(
        f"{level.cgroup} has no file to take memory by",
        "this needs memory.reclaim or memory.high (v2), or memory.oom_control (v1); the root cgroup has none",
    )


def _usage(path: Path) -> int | None:
    for name in ("memory.current", "memory.usage_in_bytes"):
        usage = parse_int(read_text(path / name))
        if usage is not None:
            return usage
    return None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except FileNotFoundError:
        raise RtdebugError(f"{path} has vanished", "the container has ended") from None
    except OSError as error:
        if error.errno not in _REFUSED:
            raise RtdebugError(f"{path} does not take {text}: {error.strerror}", "this needs root") from None
