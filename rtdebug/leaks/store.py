"""Read a store: series of cgroups, of processes and of allocation sites, of one host or of many.

A store can be read while it is written, after its writer was killed, and in copies: of a stream that is cut short, what
is whole is read. What cannot be read is said in `notes`, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtdebug.errors import UsageProblem
from rtdebug.leaks.segments import Segment, arrow_schema, find_segments
from rtdebug.leaks.tables import TABLES, TEXTS

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_STORE = Path("/var/lib/rtdebug/leaks")


@dataclass(frozen=True, slots=True)
class Series:
    """What a store holds, as long frames in order of time. Columns: tables.py. A null is NaN in columns of numbers."""

    cgroups: pd.DataFrame
    processes: pd.DataFrame
    sites: pd.DataFrame
    notes: tuple[str, ...]
    """What could not be read, and why. Not escaped."""


def read_series(
    paths: Iterable[Path] = (DEFAULT_STORE,), *, since_ns: int | None = None, until_ns: int | None = None
) -> Series:
    """Read stores: folders, looked through to the bottom, or single segments.

    `since_ns` and `until_ns` (Unix time) bound the rows. Raises UsageProblem when there is no such path, or nothing of
    ours in them.
    """
    paths = tuple(paths)
    notes: list[str] = []
    frames = {}
    for table in TABLES:
        read, new_notes = read_table(paths, table, since_ns=since_ns, until_ns=until_ns)
        frames[table] = read.to_pandas(strings_to_categorical=True)
        notes += new_notes
    return Series(frames["cgroups"], frames["processes"], frames["sites"], tuple(notes))


def read_table(
    paths: Iterable[Path],
    table: str,
    columns: Sequence[str] | None = None,
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
) -> tuple[Any, tuple[str, ...]]:
    """One table as a pyarrow.Table in order of time, only with `columns` if given, and notes on what could not be read.

    Raises UsageProblem as read_series() does.
    """
    import pyarrow as pa

    schema = arrow_schema(table)
    names = [name for name in TABLES[table] if columns is None or name in columns]
    tables = [pa.table([pa.array([], schema.field(name).type) for name in names], names)]
    notes: list[str] = []
    for segment in segments_of(paths):
        if segment.table == table:
            tables += _read_segment(segment, names, notes)
    joined = pa.concat_tables(tables)
    if "time_ns" in names:
        joined = _between(joined, since_ns, until_ns).sort_by("time_ns")
    return joined, tuple(notes)


def row_groups(segment: Segment) -> int:
    """In how many pieces a segment can be read: the row groups of a sealed one; else, or if it cannot be read, 1."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if segment.is_stream and segment.path.exists():
        return 1
    try:
        return max(1, int(pq.read_metadata(segment.sealed_path).num_row_groups))
    except (OSError, pa.ArrowException):
        return 1


def read_segment(segment: Segment, columns: Sequence[str], group: int | None = None) -> tuple[Any, tuple[str, ...]]:
    """One segment as a pyarrow.Table, in the order in which it was written, and notes on what could not be read.

    Of `columns`, those that its table has. Texts are dictionaries, as they are in the file: much quicker for many rows.
    `group`: only this one of its row_groups(), for a day of many containers is too much for one piece.
    """
    import pyarrow as pa

    schema = pa.schema(
        [
            (field.name, pa.dictionary(pa.int32(), pa.string()) if field.name in TEXTS else field.type)
            for field in arrow_schema(segment.table)
        ]
    )
    names = [name for name in TABLES[segment.table] if name in columns]
    notes: list[str] = []
    empty = pa.table([pa.array([], schema.field(name).type) for name in names], names)
    read = pa.concat_tables([empty, *_read_segment(segment, names, notes, schema, group)])
    return read.unify_dictionaries(), tuple(notes)


def segments_of(paths: Iterable[Path]) -> list[Segment]:
    """The segments of stores, the oldest first. Raises UsageProblem."""
    paths = tuple(paths)
    for path in paths:
        if not path.exists():
            raise UsageProblem(f"there is no store {path}", "make one with `rtdebug leaks record`")
    found = list(find_segments(paths))
    if not found:
        names = ", ".join(map(str, paths))
        raise UsageProblem(f"{names}: nothing recorded there", "make a store with `rtdebug leaks record`")
    return found


def iter_stream(path: Path) -> Iterator[Any]:
    """The record batches of a stream, up to the last one that is whole. Raises OSError."""
    import pyarrow as pa

    with path.open("rb") as file:
        try:
            with pa.ipc.open_stream(file) as reader:
                while True:
                    yield reader.read_next_batch()
        except StopIteration:
            return
        except (pa.ArrowInvalid, pa.ArrowSerializationError, EOFError):
            return  # cut short by the death of its writer, or being written right now
        except OSError as error:
            if error.errno is not None:
                raise
            return  # Arrow's own, without a number: a message is not whole


def _read_segment(
    segment: Segment,
    names: list[str],
    notes: list[str],
    schema: Any = None,  # noqa: ANN401
    group: int | None = None,
) -> list[Any]:
    """`schema`: the types wanted; None: those of the table. `group`: of a sealed segment; None: all of them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    coded = [] if schema is None else [name for name in names if name in TEXTS]
    schema = schema or arrow_schema(segment.table)
    try:
        if segment.is_stream and segment.path.exists():
            return [_conformed(pa.Table.from_batches([batch]), names, schema) for batch in iter_stream(segment.path)]
        there = pq.read_schema(segment.sealed_path).names
        read = pq.ParquetFile(segment.sealed_path, read_dictionary=[name for name in coded if name in there])
        present = [name for name in names if name in there]
        found = read.read(columns=present) if group is None else read.read_row_group(group, columns=present)
        return [_conformed(found, names, schema)]
    except FileNotFoundError:
        return []  # the writer has just removed it, being the oldest
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        notes.append(f"{segment.path}: cannot be read: {reason}")
        return []


def _conformed(read: Any, names: list[str], schema: Any) -> Any:  # noqa: ANN401
    """With all columns asked for: one that an older version did not write is null."""
    import pyarrow as pa

    rows = read.num_rows
    columns = [
        read.column(name).cast(schema.field(name).type)
        if name in read.schema.names
        else pa.chunked_array([pa.nulls(rows, schema.field(name).type)])
        for name in names
    ]
    return pa.table(columns, names)


def _between(table: Any, since_ns: int | None, until_ns: int | None) -> Any:  # noqa: ANN401
    import pyarrow.compute as pc

    if since_ns is not None:
        table = table.filter(pc.greater_equal(table["time_ns"], since_ns))
    if until_ns is not None:
        table = table.filter(pc.less_equal(table["time_ns"], until_ns))
    return table
