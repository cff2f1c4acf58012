"""Segments: the files of a store, and what their names say.

`TABLE-HOST-NANOSECONDS-PID.arrows` is being written: an Arrow IPC stream, whole up to its last batch whatever happens
to its writer. Once closed it becomes `.parquet` of the same name, a tenth of the size. Files of many hosts can lie in
one folder: no two have the same name.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtdebug.leaks.tables import TABLES, TEXTS

STREAM, SEALED = ".arrows", ".parquet"
_NAME = re.compile(
    r"(?P<table>[a-z]+)-(?P<host>.+)-(?P<start_ns>\d{1,19})-(?P<pid>\d{1,10})\.(?:arrows|parquet)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a store."""

    path: Path
    table: str
    host: str
    start_ns: int
    pid: int

    @property
    def is_stream(self) -> bool:
        """Whether it is, or was when its writer died, still being written."""
        return self.path.suffix == STREAM

    @property
    def sealed_path(self) -> Path:
        """Where it lies once it is closed."""
        return self.path.with_suffix(SEALED)


def parse_segment(path: Path) -> Segment | None:
    """What the name of a file says; None if it is no segment of a table that we know."""
    match = _NAME.fullmatch(path.name)
    if match is None or match["table"] not in TABLES:
        return None
    return Segment(path, match["table"], match["host"], int(match["start_ns"]), int(match["pid"]))


def host_in_name(host: str) -> str:
    """A host's name as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.]", "_", host)[:64] or "host"


def find_segments(paths: Iterable[Path]) -> Iterator[Segment]:
    """The segments that `paths` are, or that lie in these folders or below; the oldest first, each once."""
    found: dict[Path, Segment] = {}
    for path in paths:
        for file in path.rglob("*") if path.is_dir() else (path,):
            segment = parse_segment(file)
            if segment is not None and _may_be_read(file):
                stem = file.with_suffix("")
                if stem not in found or found[stem].is_stream:  # sealed a moment ago: both are there
                    found[stem] = segment
    yield from sorted(found.values(), key=lambda segment: (segment.start_ns, segment.path))


def _may_be_read(file: Path) -> bool:
    """Not a FIFO, a device or a folder: opening one may never end. One that is gone was sealed a moment ago."""
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except OSError:
        return not file.is_symlink()


def arrow_schema(table: str) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The pyarrow.Schema of a table."""
    import pyarrow as pa

    kinds = {True: pa.string(), False: pa.int64()}
    return pa.schema([(name, kinds[name in TEXTS]) for name in TABLES[table]])
