"""Which tmpfs had no room, for whom, how often: the events shm_full and sigbus, added up."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, replace
from typing import NamedTuple

from rtdebug.tracing.line import EventLine
from rtdebug.tracing.totals import int_of, keep_largest

_KEPT = 1024


class RefusalKey(NamedTuple):
    """Which tmpfs, and who asked it."""

    path: str | None
    """`/dev/shm`; in another tmpfs the folder of the file, as the event tells it; None: its root, or not known."""
    container_id: str | None
    pid: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A tmpfs that had no room for one process."""

    key: RefusalKey
    container_name: str | None = None
    comm: str | None = None
    size_bytes: int | None = None
    """Of the tmpfs; None: it has no limit of its own, or nothing told."""
    used_bytes: int | None = None
    """The most of it that was in use at a refusal."""
    out_of_inodes: bool = False
    """It held as many files as it may, at least once."""
    shm_full: int = 0
    """Refusals that the event of this name told of."""
    sigbus: int = 0
    """Processes or threads that got a SIGBUS of it. The same page fault can count in `shm_full` too."""


class Refusals:
    """Adds up who was refused by which tmpfs; bounded."""

    def __init__(self) -> None:
        self.dropped = 0
        self._found: dict[RefusalKey, Refusal] = {}

    def apply(self, line: EventLine) -> None:
        """Take in a line; most are about something else."""
        fields = line.fields
        if line.event != "shm_full" and (line.event != "sigbus" or fields.get("reason") != "tmpfs_full"):
            return
        key = RefusalKey(_place(fields.get("path")), line.container_id, line.pid)
        if key not in self._found and len(self._found) >= _KEPT:
            self.dropped += keep_largest(self._found, _KEPT // 2, lambda _, found: refusal_rank(found))
        found = self._found.get(key) or Refusal(key)
        self._found[key] = replace(
            found,
            container_name=line.container_name or found.container_name,
            comm=line.comm or found.comm,
            size_bytes=_larger(found.size_bytes, int_of(fields.get("size_bytes"))),
            used_bytes=_larger(found.used_bytes, int_of(fields.get("used_bytes"))),
            out_of_inodes=found.out_of_inodes or (fields.get("free_inodes") == 0 and bool(fields.get("size_inodes"))),
            shm_full=found.shm_full + (line.event == "shm_full"),
            sigbus=found.sigbus + (line.event == "sigbus"),
        )

    def finish(self) -> list[Refusal]:
        """All of them, the most frequent first."""
        return sorted(self._found.values(), key=refusal_rank, reverse=True)


def refusal_rank(found: Refusal) -> tuple[int, int, str, int]:
    """By how often; equal ones in one order, whatever order they came in."""
    return found.shm_full, found.sigbus, found.key.path or "", found.key.pid


def _place(path: object) -> str | None:
    if not isinstance(path, str):
        return None
    path = posixpath.normpath(path)
    if path == "/dev/shm" or path.startswith("/dev/shm/"):
        return "/dev/shm"
    return posixpath.dirname(path) or None


def _larger(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)
