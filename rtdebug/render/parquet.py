"""Parquet: a folder with one file for each kind of event, `madvise.parquet`, written as a stream.

One file each, because then a column has one type and no holes: pandas, DuckDB or Arrow read exact integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtdebug.errors import HostUnable, RtdebugError, UsageProblem

if TYPE_CHECKING:
    import pandas as pd


def require_pyarrow() -> None:
    """Raise HostUnable when pyarrow is not there."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise HostUnable(
            "Parquet needs pyarrow, which is not installed",
            "pip install 'rtdebug[parquet]', or use -o json",
        ) from error


def write_parquet(folder: Path, batches: Iterable[tuple[str, pd.DataFrame]]) -> dict[str, int]:
    """Write batches of rows, each with the name of its event, and return the rows written by name.

    The folder must be new or empty; a new one nobody else may enter, for rows hold command lines. Raises
    UsageProblem when it is neither, RtdebugError when it cannot be written, HostUnable without pyarrow.
    """
    require_pyarrow()
    _make(folder)
    rows: dict[str, int] = {}
    writers: dict[str, _Writer] = {}
    try:
        with ExitStack() as stack:
            for name, frame in batches:
                if name not in writers:
                    writers[name] = _Writer(folder / f"{name}.parquet", frame)
                    stack.callback(writers[name].close)
                writers[name].write(frame)
                rows[name] = rows.get(name, 0) + len(frame)
    except OSError as error:
        message = f"cannot write {folder}: {error.strerror or error}"
        raise RtdebugError(message, "the files in it are not whole") from error
    return rows


class _Writer:
    """One file. Its columns and types are those of the first batch; only the categories may differ."""

    def __init__(self, path: Path, first: pd.DataFrame) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.Schema.from_pandas(first, preserve_index=False)
        # the width of the indices follows the number of categories, which grows with the batches
        name = pa.dictionary(pa.int32(), pa.large_string())
        fields = [field.with_type(name) if pa.types.is_dictionary(field.type) else field for field in schema]
        self._schema: Any = pa.schema(fields, schema.metadata)
        self._table: Any = pa.Table
        self._file: Any = pq.ParquetWriter(path, self._schema)

    def write(self, frame: pd.DataFrame) -> None:
        self._file.write_table(self._table.from_pandas(frame, schema=self._schema, preserve_index=False))

    def close(self) -> None:
        self._file.close()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageProblem(f"{folder} is not empty", "give the name of a new folder")
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageProblem(f"{folder} exists and is no folder", "give the name of a new folder") from error
    except OSError as error:
        raise RtdebugError(f"cannot make {folder}: {error.strerror}", "give a folder of yours") from error
