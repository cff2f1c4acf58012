"""Which rows of a store that grows were not read yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rtdebug.leaks.segments import Segment, find_segments


@dataclass(slots=True)
class Unread:
    """What one reader has read so far."""

    _rows: dict[Path, int] = field(default_factory=dict)
    """Rows of each segment that were read, by its path without suffix: it changes when the segment is closed."""
    _closed: set[Path] = field(default_factory=set)
    """Those that nothing is added to any more."""

    def segments(self, paths: Iterable[Path], tables: Collection[str]) -> Iterator[tuple[Segment, int]]:
        """Give the segments of these tables that may have more, the oldest first, and the rows read of each."""
        for segment in find_segments(paths):
            stem = segment.path.with_suffix("")
            if segment.table in tables and stem not in self._closed:
                yield segment, self._rows.get(stem, 0)

    def took(self, segment: Segment, rows: int) -> None:
        """So many more rows were read: all that there were."""
        stem = segment.path.with_suffix("")
        self._rows[stem] = self._rows.get(stem, 0) + rows
        if not segment.is_stream and segment.path.exists():
            self._closed.add(stem)
