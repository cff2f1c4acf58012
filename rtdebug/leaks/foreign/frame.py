"""A text as a table of cells: delimiters, headers, units in cells of their own, dates and times in two."""

from __future__ import annotations

import io
import re
import warnings
from typing import TYPE_CHECKING, Any

from rtdebug.errors import RtdebugError, UsageProblem

if TYPE_CHECKING:
    import pandas as pd

    from rtdebug.leaks.series import Floats

_TIME = re.compile(r"time|date|timestamp|@timestamp|ts(?:_\w+)?|utc|epoch_\w+|unix\w*", re.IGNORECASE)
_NAMED_TIME = re.compile(r"timestamp|_time$|^time|datetime", re.IGNORECASE)
_FROM_START = re.compile(r"elapsed.*|uptime.*|t|t_\w+|secs?|seconds|minutes|hours|days", re.IGNORECASE)
_NUMBER = re.compile(r"|sample|index|n|step|unnamed: 0", re.IGNORECASE)
_DATE = r"\W*(?:\d{4}[-/]\d\d?[-/]\d\d?|\d{1,2}[./]\d{1,2}[./]\d{2,4}(?![.\d])|[A-Z][a-z]{2},? +\w+ +\w+)"
_CLOCK = r"\W*\d{1,2}:\d\d(?::\d\d)?"
_SIZE = r"[\d.]+ ?(?:[kKMGT]i?)?B"
_PAIR = rf"\s*({_SIZE})\s*/\s*({_SIZE})\s*"
_MISSING = r"(?i:[-\s/]*|nan|null|none|n/a)"
_UNIT = r"\s*(?:[kKMGT]i?[bB]?|[bB]|%)\s*"
_UNIT_WORDS = {"Percent": "%", "Bytes": "B", "Kilobytes": "kB", "Megabytes": "MB", "Gigabytes": "GB"}
"""As CloudWatch has them."""
_MOST_COLUMNS = 20_000


def read_frame(text: str, name: str) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return the cells of a CSV or a table as they are written, and what was left out.

    Raises UsageProblem without a row, RtdebugError when it is no table.
    """
    text, delimiter = _delimited(_plain(text))
    first = text.split("\n", 1)[0]
    if first.count(delimiter) > _MOST_COLUMNS:
        raise UsageProblem(f"{name}: its first line has {first.count(delimiter)} columns", "give a CSV with fewer")
    header = None if _is_row(first.split(delimiter)) else 0
    try:
        frame, skipped = _read(text.replace("\0", ""), delimiter, header)
    except ValueError as error:  # of it are pandas' errors too
        raise RtdebugError(f"{name}: not readable as CSV: {error}") from error
    frame.columns = [f"column {at + 1}" if header is None else str(each).strip() for at, each in enumerate(frame)]
    if not len(frame):
        raise UsageProblem(f"{name} has no rows", "a CSV needs a header and at least one row")
    notes = (f"{skipped} rows with too many columns left out",) if skipped else ()
    return _joined(frame), notes


def _delimited(text: str) -> tuple[str, str]:
    """Return the text and what divides its cells; columns that blanks divide get tabs."""
    first = text.split("\n", 1)[0]
    delimiter = max(",;\t|", key=first.count)
    if delimiter in first or not re.search(r"\S {2,}\S", first):
        return text, delimiter
    return re.sub(r"^ +| +$", "", re.sub(r"(?<=\S) {2,}(?=\S)", "\t", text), flags=re.MULTILINE), "\t"


def _read(text: str, delimiter: str, header: int | None) -> tuple[pd.DataFrame, int]:
    """Return the cells, and how many rows were longer than the first. Raises ValueError."""
    import pandas as pd

    def read(**how: Any) -> pd.DataFrame:  # noqa: ANN401 - as pandas has it
        source = io.StringIO(text)
        frame: pd.DataFrame = pd.read_csv(source, sep=delimiter, header=header, dtype=str, index_col=False, **how)
        return frame

    skipped: list[list[str]] = []
    with warnings.catch_warnings():
        try:
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return read(engine="c"), 0  # ten times as fast, and says nothing of the rows that it leaves out
        except (ValueError, pd.errors.ParserWarning):
            warnings.simplefilter("ignore", pd.errors.ParserWarning)  # of rows that are longer than the header
            return read(engine="python", on_bad_lines=skipped.append), len(skipped)


def _plain(text: str) -> str:
    """Take away what stands around the cells: Excel's `sep=`, the frame of a Markdown table, a comment mark."""
    text = re.sub(r"\A(?:\s*sep=.\s*\n)?\s*(?:# ?)?", "", text)
    if text.startswith("|"):
        lines = (line.strip().strip("|") for line in text.splitlines() if line.lstrip().startswith("|"))
        text = "\n".join(line for line in lines if not re.fullmatch(r"[\s|:-]*", line))
    return text


def _is_row(cells: list[str]) -> bool:
    """Whether a first line is no header: it has a date, a time, a size or a fraction, or nothing but numbers."""
    cells = [cell.strip().strip('"') for cell in cells]
    value = re.compile(rf"{_DATE}.*\d|{_CLOCK}.*|\d+\.\d+ ?%?|{_SIZE}|{_PAIR}")
    return any(value.fullmatch(cell) for cell in cells) or all(re.fullmatch(r"\d+", cell) for cell in cells)


def _joined(frame: pd.DataFrame) -> pd.DataFrame:
    """Join a unit to the number before it, and a time to its date; divide `5MiB / 1GiB` in usage and limit."""
    columns: dict[str, pd.Series[str]] = {}
    last, date = "", None
    for column in frame.columns:
        cells = frame[column].str.strip()
        cells = cells.where(~cells.isin(_UNIT_WORDS), cells.map(_UNIT_WORDS))
        if last and all_cells(cells, _UNIT) and all_cells(columns[last], r"[\d.eE+-]+"):
            columns[last] = columns[last] + cells
        elif date and all_cells(cells, _CLOCK + r"\S*(?: [AaPp][Mm])?"):
            columns[date] = columns[date] + " " + cells
            date = None
        elif all_cells(cells, _PAIR):
            parts = cells.str.extract(_PAIR)
            last = str(column).split("/")[0].strip()
            columns |= {last: parts[0], f"{last} limit": parts[1]}
        else:
            last = str(column)
            columns[last] = frame[column]
            date = last if all_cells(cells, _DATE) else date
    return type(frame)(columns)


def all_cells(cells: pd.Series[str], pattern: str) -> bool:
    """Whether all cells that hold something are of a pattern."""
    for part in (cells.iloc[:100], cells):  # most are told apart by the first ones
        there = part[part.notna() & ~part.str.fullmatch(_MISSING).fillna(value=True)]
        if not len(there) or not there.str.fullmatch(pattern).all():
            return False
    return True


def time_column(frame: pd.DataFrame) -> str | None:
    """By its name, else the first column that holds dates or times of day, else one that counts from a start."""
    head = frame.iloc[:50]
    for named in (_TIME.fullmatch, _NAMED_TIME.search):
        for column in frame.columns:
            if named(column):
                return str(column)
    for column in frame.columns:
        if head[column].astype(str).str.match(rf"{_DATE}|{_CLOCK}").mean() > 0.5:
            return str(column)
    for column in frame.columns:
        if _FROM_START.fullmatch(column):
            return str(column)
    first = str(frame.columns[0])
    is_unix = first == "column 1" and all_cells(head[first], r"1\d{9}(?:\.\d+|\d{3}|\d{6}|\d{9})?")
    return first if is_unix else None


def number_column(frame: pd.DataFrame) -> str | None:
    """The column that numbers the samples."""
    return next((str(column) for column in frame.columns if _NUMBER.fullmatch(column.strip())), None)


def is_number(text: pd.Series[str], numbers: Floats) -> bool:
    """Whether a column is one of numbers: more than half of what is there can be read as such."""
    import numpy as np

    there = text.notna().to_numpy() & ~text.astype(str).str.fullmatch(_MISSING).to_numpy()
    return bool(np.count_nonzero(np.isfinite(numbers)) > 0.5 * np.count_nonzero(there)) or not there.any()
