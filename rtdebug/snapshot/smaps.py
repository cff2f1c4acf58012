"""/proc/PID/smaps by the ten thousand: mappings that differ in their address alone are added up as they are read.

host.maps takes far longer for a mapping than the kernel takes to print it. So where there are many, the figures are
read as columns (columns.py); a text of any other form goes to host.maps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache

from rtdebug.host.maps import Mapping, MappingKind, MemoryUse, SmapsEntry, parse_smaps
from rtdebug.host.process_folder import ProcessFolder
from rtdebug.host.text import decode
from rtdebug.snapshot.model import MappingGroup

MOST_GROUPS = 100_000
"""Of a whole snapshot; further mappings are added up by kind. A container can map a million files."""
COLUMNS_FROM_BYTES = 512 << 10
"""So much text is read before numpy is loaded: that takes as long as parsing it the other way."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT_BYTES = 16 << 20

USE_FIELDS = tuple(field.name for field in fields(MemoryUse))
_NO_USE = MemoryUse()


@dataclass(slots=True)
class SmapsReader:
    """Reads the mappings of one process after the other."""

    room: int = MOST_GROUPS
    seen_bytes: int = 0

    def read(self, folder: ProcessFolder) -> tuple[MappingGroup, ...]:
        """The mappings of a process, those with most memory first. Raises OSError, MapsError."""
        return self.parse(folder.raw("smaps"))

    def parse(self, text: bytes) -> tuple[MappingGroup, ...]:
        """As read(), of the text. Raises MapsError."""
        self.seen_bytes += len(text)
        groups = None
        if self.seen_bytes > COLUMNS_FROM_BYTES:
            from rtdebug.snapshot.columns import groups_by_columns

            _keep_freed_memory()
            groups = groups_by_columns(text)
        if groups is None:
            groups = groups_by_lines(text)
        groups.sort(key=lambda group: -(group.use.rss_bytes or 0))
        kept = limited(groups, self.room)
        self.room = max(0, self.room - len(kept))
        return tuple(kept)


@cache
def _keep_freed_memory() -> None:
    """Texts come and go by the hundred kilobytes: glibc would give each back to the kernel, and get it anew."""
    with suppress(AttributeError):  # another libc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def groups_by_lines(text: bytes) -> list[MappingGroup]:
    """The groups of a text of any kernel's form. Raises MapsError."""
    members: dict[MappingGroup, list[SmapsEntry]] = {}
    for entry in parse_smaps(decode(text)):
        flags = None if entry.vm_flags is None else " ".join(entry.vm_flags)
        members.setdefault(group_of(entry.mapping, flags, entry.thp_eligible), []).append(entry)
    return [
        replace(
            group,
            count=len(entries),
            length_bytes=sum(entry.mapping.length_bytes for entry in entries),
            use=add_uses(entry.use for entry in entries),
        )
        for group, entries in members.items()
    ]


def group_of(mapping: Mapping, vm_flags: str | None, thp_eligible: bool | None) -> MappingGroup:
    """The group that a mapping belongs to, with nothing in it yet."""
    return MappingGroup(
        kind=mapping.kind,
        path=mapping.path,
        deleted=mapping.deleted,
        perms=mapping.perms,
        device=mapping.device,
        inode_id=mapping.inode_id,
        vm_flags=vm_flags,
        thp_eligible=thp_eligible,
        count=0,
        length_bytes=0,
        use=_NO_USE,
    )


def add_uses(uses: Iterable[MemoryUse]) -> MemoryUse:
    """The sum; what one of them does not know, it does not know either."""
    columns = zip(*([getattr(use, name) for name in USE_FIELDS] for use in uses), strict=True)
    sums = (None if None in column else sum(column) for column in columns)
    return MemoryUse(**dict(zip(USE_FIELDS, sums, strict=False)))


def limited(groups: Sequence[MappingGroup], room: int) -> list[MappingGroup]:
    """The first `room` groups, and one more for each kind that the rest is of."""
    by_kind: dict[MappingKind, list[MappingGroup]] = {}
    for group in groups[room:]:
        by_kind.setdefault(group.kind, []).append(group)
    return [*groups[:room], *(_rest(kind, members) for kind, members in by_kind.items())]


def _rest(kind: MappingKind, members: Sequence[MappingGroup]) -> MappingGroup:
    return MappingGroup(
        kind=kind,
        path="",
        deleted=False,
        perms="----",
        device=(0, 0),
        inode_id=0,
        vm_flags=None,
        thp_eligible=None,
        count=sum(group.count for group in members),
        length_bytes=sum(group.length_bytes for group in members),
        use=add_uses(group.use for group in members),
        is_rest=True,
    )
