"""CSV: a column of times, and columns of values, or a column of names beside them (long form)."""

from __future__ import annotations

import io
import re
import warnings
from typing import TYPE_CHECKING, Any

from rtdebug.errors import RtdebugError, UsageProblem
from rtdebug.leaks.foreign import Hints, kind_in_name
from rtdebug.leaks.quantities import PERCENT, factor_of, parse_times, parse_values, unit_in_name
from rtdebug.leaks.series import NS_PER_S, Labels, Series, clean

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from rtdebug.leaks.series import Floats, Ints

_TIME = re.compile(r"time|date|timestamp|ts|@timestamp", re.IGNORECASE)
_NUMBER = re.compile(r"|sample|index|n|step|unnamed: 0", re.IGNORECASE)
_LIMIT = re.compile(r"limit", re.IGNORECASE)
NO_TIMES = "no times in the file: dates mean nothing, only --interval counts"
BEGIN_NS = 1_000_000_000 * NS_PER_S
"""2001-09-09: where series without times begin. Only differences matter."""


def parse(text: str, name: str, hints: Hints) -> list[Series]:
    """Parse a CSV. Raises UsageProblem when times or units are missing and `hints` do not have them."""
    frame, notes = _frame(text, name)
    time_column = _time_column(frame)
    number_column = None if time_column else _number_column(frame)
    time_ns = _times(frame, time_column, number_column, name, hints)
    rest = [column for column in frame.columns if column not in (time_column, number_column)]
    parsed = {column: parse_values(frame[column]) for column in rest}
    values = [column for column in rest if _is_number(frame[column], parsed[column][0])]
    if not values:
        raise _no_numbers(frame, rest, name)
    texts = [column for column in rest if column not in values]
    limits = [column for column in values if _LIMIT.search(column)]
    usages = [column for column in values if column not in limits] or limits
    groups = _groups(frame, texts)
    limit_values = _in_unit(limits[0], *parsed[limits[0]], hints, name)[0] if limits and usages != limits else None
    found = []
    for column in usages:
        numbers, unit, more_notes = _in_unit(column, *parsed[column], hints, name)
        for group, rows in groups:
            label = " ".join(part for part in (group, column if len(usages) > 1 else "") if part)
            labels = Labels(label or name.removesuffix(".csv"), kind_in_name(column), unit)
            limit = _last(limit_values[rows]) if limit_values is not None else None
            series = clean(labels, time_ns[rows], numbers[rows], limit=limit)
            found.append(_with_notes(series, (*notes, *more_notes, *(() if time_column else (NO_TIMES,)))))
    return found


def _no_numbers(frame: pd.DataFrame, columns: list[str], name: str) -> UsageProblem:
    shown = next((f": '{value[:40]}' is none" for column in columns for value in frame[column].dropna().iloc[:1]), "")
    if re.search(r"\d,\d", shown):
        return UsageProblem(f"{name}: no column of numbers{shown}", "write 1234.5: a decimal point, and no other marks")
    return UsageProblem(
        f"{name}: no column of numbers{shown}", "give a CSV with a time and one or more columns of bytes"
    )


def _frame(text: str, name: str) -> tuple[pd.DataFrame, tuple[str, ...]]:
    import pandas as pd

    first = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=first.count)
    skipped: list[list[str]] = []

    def skip(row: list[str]) -> None:
        skipped.append(row)

    def read(**how: Any) -> pd.DataFrame:  # noqa: ANN401 - as pandas has it
        source = io.StringIO(text.replace("\0", ""))
        frame: pd.DataFrame = pd.read_csv(source, sep=delimiter, dtype=str, index_col=False, **how)
        return frame

    try:
        with warnings.catch_warnings():
            try:
                warnings.simplefilter("error", pd.errors.ParserWarning)
                frame = read(engine="c")  # ten times as fast, and says nothing of the rows that it leaves out
            except (ValueError, pd.errors.ParserWarning):
                warnings.simplefilter("ignore", pd.errors.ParserWarning)  # of rows that are longer than the header
                frame = read(engine="python", on_bad_lines=skip)
    except (ValueError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise RtdebugError(f"{name}: not readable as CSV: {error}") from error
    frame.columns = [str(column) for column in frame.columns]
    if not len(frame):
        raise UsageProblem(f"{name} has no rows", "a CSV needs a header and at least one row")
    notes = (f"{len(skipped)} rows with too many columns left out",) if skipped else ()
    return frame, notes


def _time_column(frame: pd.DataFrame) -> str | None:
    """By its name, else the first column that holds ISO times."""
    for column in frame.columns:
        if _TIME.fullmatch(column.strip()) or re.search(r"timestamp|_time$|^time", column, re.IGNORECASE):
            return str(column)
    head = frame.iloc[:20]
    for column in frame.columns:
        if head[column].astype(str).str.match(r"\d{4}-\d\d-\d\d").mean() > 0.5:
            return str(column)
    return None


def _number_column(frame: pd.DataFrame) -> str | None:
    """The column that numbers the samples."""
    return next((str(column) for column in frame.columns if _NUMBER.fullmatch(column.strip())), None)


def _times(frame: pd.DataFrame, time_column: str | None, number_column: str | None, name: str, hints: Hints) -> Ints:
    import numpy as np
    import pandas as pd

    if time_column:
        return parse_times(frame[time_column])
    if hints.interval_s is None:
        raise UsageProblem(f"{name}: there is no column of times", "say how far the samples are apart: --interval 10s")
    numbers = np.arange(len(frame), dtype=float)
    if number_column:
        numbers = pd.to_numeric(frame[number_column], errors="coerce").to_numpy(float)
    numbers = np.where(np.isfinite(numbers), numbers, -1e9 / hints.interval_s)
    return BEGIN_NS + (numbers * hints.interval_s * NS_PER_S).astype(np.int64)


def _is_number(text: pd.Series[str], numbers: Floats) -> bool:
    import numpy as np

    there = text.notna().to_numpy() & ~text.astype(str).str.strip().str.lower().isin(["", "nan", "null", "-"])
    return bool(np.count_nonzero(np.isfinite(numbers)) > 0.5 * np.count_nonzero(there)) or not there.any()


def _groups(frame: pd.DataFrame, texts: list[str]) -> list[tuple[str, NDArray[np.int64]]]:
    """Rows by what the columns of text say; all of them without one."""
    import numpy as np

    names = [column for column in texts if frame[column].nunique() < max(2, len(frame))]
    if not names:
        return [("", np.arange(len(frame)))]
    code = frame[names].fillna("-").groupby(names, sort=False).ngroup().to_numpy()
    order = np.argsort(code, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(code[order])) + 1)
    return [(" ".join(frame[names].iloc[part[0]].fillna("-")), part) for part in parts]


def _in_unit(
    column: str, numbers: Floats, units: pd.Series[str], hints: Hints, name: str
) -> tuple[Floats, str, tuple[str, ...]]:
    """Return numbers in bytes or percent, the unit's name, and notes."""
    import numpy as np

    present = {str(unit) for unit in units[np.isfinite(numbers)].unique()}
    default = hints.unit or unit_in_name(column)
    if present <= {""} and default is None and np.any(numbers[np.isfinite(numbers)] != 0):
        raise UsageProblem(
            f"{name}: column '{column}' has no unit, in its name or its values",
            "say what it is: --unit bytes, KiB, MiB, GiB or percent",
        )
    is_percent = units.eq("%").to_numpy() | (units.eq("").to_numpy() & (default == PERCENT))
    in_percent = np.count_nonzero(is_percent & np.isfinite(numbers)) * 2 > np.count_nonzero(np.isfinite(numbers))
    other = np.isfinite(numbers) & (is_percent != in_percent)
    notes: tuple[str, ...] = ()
    if other.any():
        notes = (f"{np.count_nonzero(other)} values in another unit left out",)
    if in_percent:
        return np.where(is_percent, numbers, np.nan), PERCENT, notes
    factors = {unit: factor_of(unit or (default or "") if default != PERCENT else "") for unit in present - {"%"}}
    scaled = np.round(numbers * units.map(factors).fillna(1).to_numpy(float))
    unknown = units.eq("").to_numpy() & (scaled != 0) & (default is None) & bool(present - {"", "%"})
    if bare := np.count_nonzero(unknown & np.isfinite(numbers)):
        notes += (f"{bare} values without a unit left out: the others have one",)
    return np.where(is_percent | unknown, np.nan, scaled), "bytes", notes


def _last(values: Floats) -> float | None:
    import numpy as np

    known = values[np.isfinite(values) & (values > 0)]
    return float(known[-1]) if len(known) else None


def _with_notes(series: Series, notes: tuple[str, ...]) -> Series:
    from dataclasses import replace

    return replace(series, notes=notes + series.notes) if notes else series
