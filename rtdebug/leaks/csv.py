"""CSV: a column of times, and columns of values, or a column of names beside them (long form)."""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rtdebug.errors import RtdebugError, UsageProblem
from rtdebug.leaks.foreign import Hints, kind_in_name, names_limit, names_memory, words_in
from rtdebug.leaks.quantities import BEGIN_NS, PERCENT, factor_of, parse_times, parse_values, unit_in_name
from rtdebug.leaks.series import NS_PER_S, Labels, Series, clean

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from rtdebug.leaks.series import Floats, Ints

    _Scaled = tuple[Floats, str, tuple[str, ...]]
    """Numbers, their unit, and notes."""

_ID = r"[0-9a-f]{12}|[0-9a-f]{64}"
_TIME = re.compile(r"time|date|timestamp|@timestamp|ts(?:_\w+)?|utc|epoch\w*|unix\w*", re.IGNORECASE)
_NAMED_TIME = re.compile(r"timestamp|_time$|^time|datetime", re.IGNORECASE)
_FROM_START = re.compile(r"elapsed.*|uptime.*|t|t_\w+|secs?|seconds|minutes|hours|days", re.IGNORECASE)
_NUMBER = re.compile(r"|sample|index|n|step|unnamed: 0", re.IGNORECASE)
_DATE = r"\W*(?:\d{4}[-/]\d\d?[-/]\d\d?|\d{1,2}[./]\d{1,2}[./]\d{2,4}|[A-Z][a-z]{2},? +\w+ +\w+)"
_CLOCK = r"\W*\d{1,2}:\d\d(?::\d\d)?"
_SIZE = r"[\d.]+ ?(?:[kKMGT]i?)?B"
_PAIR = rf"\s*({_SIZE})\s*/\s*({_SIZE})\s*"
OWNERS = ("namespace", "pod", "pod_name", "container", "container_name")
"""Labels of Prometheus that tell whose memory it is."""
_MISSING = r"(?i:[-\s/]*|nan|null|none|n/a)"
_UNIT = r"\s*(?:[kKMGT]i?[bB]?|[bB]|%)\s*"
_WHO = re.compile(
    r"names?|containers?|pod|image|process|comm|command|service|id|instance|host|node|namespace|app", re.IGNORECASE
)
_MOST_COLUMNS = 20_000
NO_TIMES = "no times in the file: dates mean nothing, only --interval counts"


def parse(text: str, name: str, hints: Hints) -> list[Series]:
    """Parse a CSV. Raises UsageProblem when times or units are missing and `hints` do not have them."""
    import numpy as np

    frame, notes = _frame(text, name)
    time_column = _time_column(frame)
    number_column = None if time_column else _number_column(frame)
    rest = [column for column in frame.columns if column not in (time_column, number_column)]
    parsed = {column: parse_values(frame[column]) for column in rest}
    values = [column for column in rest if _is_number(frame[column], parsed[column][0])]
    if not values:
        raise _no_numbers(frame, rest, name)
    texts = [column for column in rest if column not in values]
    limits = [column for column in values if names_limit(_metric(column))]
    usages, others = _of_memory([column for column in values if column not in limits] or limits)
    if others:
        notes += (f"columns that are not of memory that is held left out: {', '.join(others)}",)
    groups = _groups(frame, texts)
    time_ns, wrong = _times(frame, time_column, number_column, groups, name, hints)
    notes += (wrong,) if wrong else ()
    limit_values = _in_unit(limits[0], *parsed[limits[0]], hints, name)[0] if limits and usages != limits else None
    scaled: dict[str, _Scaled] = {}
    without: UsageProblem | None = None
    for column in usages:
        try:
            scaled[column] = _in_unit(column, *parsed[column], hints, name)
            if not text.endswith("\n") and _is_cut(scaled[column][0]):
                scaled[column][0][-1] = np.nan
                notes += ("the last line is cut short: its number is left out",)
        except UsageProblem as problem:
            without = without or problem
            notes += (f"column {column} left out: it has no unit, in its name or its values",)
    if without and not scaled:
        raise without
    if len({unit for _, unit, _ in scaled.values()}) > 1:  # percent of what is there in bytes too
        scaled = {column: found for column, found in scaled.items() if found[1] != PERCENT}
    if limit_values is None and (limit_column := _limit_without_a_name(scaled, groups)):
        limit_values = scaled.pop(limit_column)[0]
        notes += (f"{limit_column} is taken as the limit: it is constant, and nothing is above it",)
    hosts = host_memory(_last(limit_values[group.rows]) for group in groups) if limit_values is not None else None
    found = []
    for column, (numbers, unit, more_notes) in scaled.items():
        for group in groups:
            rows, starts = group.rows, tuple(time_ns[group.lives].tolist())
            label = " ".join(part for part in (group.name, _owner(column) if len(scaled) > 1 else "") if part)
            labels = Labels(label or name.removesuffix(".csv"), kind_in_name(_metric(column)), unit)
            limit = _last(limit_values[rows]) if limit_values is not None else None
            limit = None if limit == hosts else limit
            series = clean(labels, time_ns[rows], numbers[rows], limit=limit, restarts_ns=starts)
            found.append(_with_notes(series, (*notes, *more_notes)))
    return found


def _of_memory(columns: list[str]) -> tuple[list[str], list[str]]:
    """Divide columns. Where none is named after memory, or after a unit of it, they are named after their owners.

    So are they with dashes or labels: `api-7d9f-x2x4m`, `{pod="memory-api-0"}`.
    """
    if sum("-" in metric or "=" in metric for metric in map(_metric, columns)) * 2 > len(columns):
        return columns, []
    says = {column: names_memory(_metric(column)) for column in columns}
    units = {column for column in columns if unit_in_name(_metric(column)) not in (None, PERCENT)}
    if any(says.values()):  # beside those that are named after memory, a unit is not enough: wal_bytes
        units = {column for column in units if kind_in_name(_metric(column)) != "usage"}
    held = [column for column in columns if says[column] or (says[column] is None and column in units)]
    return (held, [column for column in columns if column not in held]) if held else (columns, [])


def _metric(column: str) -> str:
    """Return the name of a metric with its labels, as Grafana heads a column, without them; else the column's name."""
    named = re.search(r'^(\w+)\{|__name__="(\w+)"', column)
    return (named[1] or named[2]) if named else column


def _owner(column: str) -> str:
    """Return the labels that tell whose a column is; else the column's name."""
    labels = dict(re.findall(r'(\w+)="([^"]*)"', column))
    told = [labels[key] for key in OWNERS if key in labels] or [labels[key] for key in labels if key != "__name__"]
    return "/".join(dict.fromkeys(told)) or column


def _no_numbers(frame: pd.DataFrame, columns: list[str], name: str) -> UsageProblem:
    shown = next((f": '{value[:40]}' is none" for column in columns for value in frame[column].dropna().iloc[:1]), "")
    if re.search(r"\d,\d", shown):
        return UsageProblem(f"{name}: no column of numbers{shown}", "write 1234.5: a decimal point, and no other marks")
    return UsageProblem(
        f"{name}: no column of numbers{shown}", "give a CSV with a time and one or more columns of bytes"
    )


def _frame(text: str, name: str) -> tuple[pd.DataFrame, tuple[str, ...]]:
    import pandas as pd

    text = _plain(text)
    first = text.split("\n", 1)[0]
    delimiter = max(",;\t|", key=first.count)
    if delimiter not in first and re.search(r"\S {2,}\S", first):
        delimiter = "\t"
        text = re.sub(r"^ +| +$", "", re.sub(r"(?<=\S) {2,}(?=\S)", "\t", text), flags=re.MULTILINE)
        first = text.split("\n", 1)[0]
    if first.count(delimiter) > _MOST_COLUMNS:
        raise UsageProblem(f"{name}: its first line has {first.count(delimiter)} columns", "give a CSV with fewer")
    header = None if _is_row(first.split(delimiter)) else 0
    skipped: list[list[str]] = []

    def skip(row: list[str]) -> None:
        skipped.append(row)

    def read(**how: Any) -> pd.DataFrame:  # noqa: ANN401 - as pandas has it
        source = io.StringIO(text.replace("\0", ""))
        frame: pd.DataFrame = pd.read_csv(source, sep=delimiter, header=header, dtype=str, index_col=False, **how)
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
    frame.columns = [f"column {at + 1}" if header is None else str(each).strip() for at, each in enumerate(frame)]
    if not len(frame):
        raise UsageProblem(f"{name} has no rows", "a CSV needs a header and at least one row")
    notes = (f"{len(skipped)} rows with too many columns left out",) if skipped else ()
    return _joined(frame), notes


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
        if last and _all(cells, _UNIT) and _all(columns[last], r"[\d.eE+-]+"):
            columns[last] = columns[last] + cells
        elif date and _all(cells, _CLOCK + r"\S*(?: [AaPp][Mm])?"):
            columns[date] = columns[date] + " " + cells
            date = None
        elif _all(cells, _PAIR):
            parts = cells.str.extract(_PAIR)
            last = str(column).split("/")[0].strip()
            columns |= {last: parts[0], f"{last} limit": parts[1]}
        else:
            last = str(column)
            columns[last] = frame[column]
            date = last if _all(cells, _DATE) else date
    return type(frame)(columns)


def _all(cells: pd.Series[str], pattern: str) -> bool:
    """Whether all cells that hold something are of a pattern."""
    for part in (cells.iloc[:100], cells):  # most are told apart by the first ones
        there = part[part.notna() & ~part.str.fullmatch(_MISSING).fillna(value=True)]
        if not len(there) or not there.str.fullmatch(pattern).all():
            return False
    return True


def _time_column(frame: pd.DataFrame) -> str | None:
    """By its name, else the first column that holds dates or times of day, else one that counts from a start."""
    head = frame.iloc[:50]
    for column in frame.columns:
        if _TIME.fullmatch(column) or _NAMED_TIME.search(column):
            return str(column)
    for column in frame.columns:
        if head[column].astype(str).str.match(rf"{_DATE}|{_CLOCK}").mean() > 0.5:
            return str(column)
    for column in frame.columns:
        if _FROM_START.fullmatch(column):
            return str(column)
    first = str(frame.columns[0])
    is_unix = first == "column 1" and _all(head[first], r"1\d{9}(?:\.\d+|\d{3}|\d{6}|\d{9})?")
    return first if is_unix else None


def _number_column(frame: pd.DataFrame) -> str | None:
    """The column that numbers the samples."""
    return next((str(column) for column in frame.columns if _NUMBER.fullmatch(column.strip())), None)


def _times(
    frame: pd.DataFrame,
    time_column: str | None,
    number_column: str | None,
    groups: list[_Group],
    name: str,
    hints: Hints,
) -> tuple[Ints, str | None]:
    import numpy as np
    import pandas as pd

    if time_column:
        return parse_times(frame[time_column], time_column)
    if hints.interval_s is None:
        raise UsageProblem(f"{name}: there is no column of times", "say how far the samples are apart: --interval 10s")
    numbers = np.zeros(len(frame))
    for group in groups:
        numbers[group.rows] = np.arange(len(group.rows))
    if number_column:
        numbers = pd.to_numeric(frame[number_column], errors="coerce").to_numpy(float)
    seconds = np.nan_to_num(numbers * hints.interval_s, nan=-1e9)
    return BEGIN_NS + (np.clip(seconds, -1e9, 8e9) * NS_PER_S).astype(np.int64), NO_TIMES


def _is_number(text: pd.Series[str], numbers: Floats) -> bool:
    import numpy as np

    there = text.notna().to_numpy() & ~text.astype(str).str.fullmatch(_MISSING).to_numpy()
    return bool(np.count_nonzero(np.isfinite(numbers)) > 0.5 * np.count_nonzero(there)) or not there.any()


@dataclass(frozen=True, slots=True)
class _Group:
    """The rows of one container."""

    name: str
    rows: NDArray[np.int64]
    lives: NDArray[np.int64]
    """The first row of each of its ids but the first: it was restarted."""


def _groups(frame: pd.DataFrame, texts: list[str]) -> list[_Group]:
    """Rows by what the columns of text say; all of them without one."""
    import numpy as np

    ids = [column for column in texts if "id" in words_in(column) or _all(frame[column].str.strip(), _ID)]
    others = [column for column in texts if column not in ids]
    who = [column for column in others if any(map(_WHO.fullmatch, words_in(column)))]
    names = who or [column for column in others if frame[column].nunique() < max(2, len(frame))] or ids
    none = np.zeros(0, np.int64)
    if not names:
        return [_Group("", np.arange(len(frame)), none)]
    found = []
    named, marked = frame[names].fillna("-"), frame[ids]
    for rows in _alike(named):
        name = " ".join(named.iloc[rows[0]])
        lives = [rows[part] for part in _alike(marked.iloc[rows])] if ids and names is not ids else [rows]
        if all(before[-1] < after[0] for before, after in pairwise(lives)):
            found.append(_Group(name, rows, np.array([life[0] for life in lives[1:]], np.int64)))
        else:  # several at a time: only their ids tell them apart
            found += [_Group(f"{name} {marked.iloc[life[0], 0]}", life, none) for life in lives]
    return found


def _alike(frame: pd.DataFrame) -> list[NDArray[np.int64]]:
    """Give the rows that are alike, in the order of the first of them."""
    import numpy as np

    code = frame.fillna("-").groupby(list(frame.columns), sort=False).ngroup().to_numpy()
    order = np.argsort(code, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(code[order])) + 1)


def _limit_without_a_name(scaled: dict[str, _Scaled], groups: list[_Group]) -> str | None:
    """Return the last of the columns of a file without a header, if it is constant and no other is ever above it."""
    import numpy as np

    *others, last = scaled
    limit = scaled[last][0]
    if not others or not re.fullmatch(r"column \d+", last) or PERCENT in {unit for _, unit, _ in scaled.values()}:
        return None
    constant = all(len(np.unique(limit[group.rows])) == 1 for group in groups)
    below = all(bool(np.all(np.nan_to_num(scaled[column][0]) <= limit)) for column in others)
    return last if constant and below and np.nan_to_num(limit).min() > 0 else None


def _in_unit(
    column: str, numbers: Floats, units: pd.Series[str], hints: Hints, name: str
) -> _Scaled:
    """Return numbers in bytes or percent, the unit's name, and notes."""
    import numpy as np

    present = {str(unit) for unit in units[np.isfinite(numbers)].unique()}
    named = unit_in_name(_metric(column))
    default = named if named and (named == PERCENT or hints.unit == PERCENT) else hints.unit or named
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


def host_memory(limits: Iterable[float | None]) -> float | None:
    """Return what is the memory of the host, of the limits of containers: it is shown for those that have none.

    So it is the largest one and that of several. The kernel keeps a part of the host's memory back, so it is no round
    number; limits that people set are.
    """
    shown = [limit for limit in limits if limit]
    largest = max(shown, default=0.0)
    rounding = 2e-4 * largest if largest < 4 << 30 else 0  # four digits are shown: 1500m is 1.465GiB
    is_round = any(abs(largest - round(largest / unit) * unit) <= rounding for unit in (50 << 20, 64 << 20, 10**8))
    return None if is_round or shown.count(largest) < 2 else largest


def _is_cut(numbers: Floats) -> bool:
    """Whether the last number lacks digits by all those before: its line has no end."""
    import numpy as np

    known = numbers[np.isfinite(numbers)]
    return len(known) > 2 and bool(numbers[-1] < 0.2 * known[:-1].min())


def _last(values: Floats) -> float | None:
    import numpy as np

    known = values[np.isfinite(values) & (values > 0)]
    return float(known[-1]) if len(known) else None


def _with_notes(series: Series, notes: tuple[str, ...]) -> Series:
    from dataclasses import replace

    return replace(series, notes=notes + series.notes) if notes else series
