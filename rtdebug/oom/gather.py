"""The OOM episodes of all the places that somebody names, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rtdebug.containers.owners import OwnerOf
from rtdebug.oom.episode import OomEpisode, make_episode
from rtdebug.oom.record import OomRecord
from rtdebug.oom.select import Selection
from rtdebug.oom.sources import (
    Progress,
    read_file,
    read_journal,
    read_ring_buffer,
    read_stream,
    read_userspace_kills,
)
from rtdebug.oom.userspace import UserspaceKill
from rtdebug.tracing.clock import clock_offset_ns

STANDARD_INPUT = Path("-")
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look: files; else the journal; else this host's ring buffer."""

    files: Sequence[Path] = ()
    journal: bool = False

    @property
    def are_this_host(self) -> bool:
        """Its containers may be known here."""
        return not self.files

    def __str__(self) -> str:
        if self.files:
            return ", ".join("standard input" if file == STANDARD_INPUT else str(file) for file in self.files)
        return "the journal" if self.journal else "this host's ring buffer"


def gather(
    places: Places, selection: Selection, owner: OwnerOf | None = None, progress: Progress | None = None
) -> Iterator[OomEpisode]:
    """The episodes that `selection` wants, in the order in which they are read.

    `owner` knows the containers of this host. Raises UsageProblem, HostUnable and RtdebugError as the sources do.
    """
    return selection.of(_all(places, selection, owner, progress))


def _all(
    places: Places, selection: Selection, owner: OwnerOf | None, progress: Progress | None
) -> Iterator[OomEpisode]:
    if places.journal:
        since, until = (None if ns is None else ns / _NS for ns in (selection.since_ns, selection.until_ns))
        yield from _episodes(read_journal(since, until), owner=owner)
    elif not places.files:
        yield from _episodes(read_ring_buffer(), clock=clock_offset_ns, owner=owner)
    for file in places.files:
        if file == STANDARD_INPUT:
            with open(0, "rb", closefd=False) as stdin:
                yield from _episodes(read_stream(stdin), file="-")
        else:
            yield from _episodes(read_file(file, progress), file=str(file))


def _episodes(
    records: Iterable[OomRecord],
    file: str | None = None,
    clock: Callable[[], int] | None = None,
    owner: OwnerOf | None = None,
) -> Iterator[OomEpisode]:
    offset_ns = clock() if clock else None
    return (make_episode(record, file, offset_ns, owner) for record in records)


def gather_userspace(places: Places) -> list[UserspaceKill]:
    """Kills by killers in user space, in files that can be read twice: perhaps the kernel was not the one."""
    files = [file for file in places.files if file != STANDARD_INPUT and file.is_file()]
    return [kill for file in files for kill in read_userspace_kills(file)]
