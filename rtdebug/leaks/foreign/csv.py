"""CSV: a column of times, and columns of values, or a column of names beside them (long form)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rtdebug.errors import UsageProblem
from rtdebug.leaks.foreign.columns import Scaled, is_cut, metric_of, of_memory, owner_of, scale
from rtdebug.leaks.foreign.frame import is_number, number_column, read_frame, time_column
from rtdebug.leaks.foreign.groups import Group, group_rows
from rtdebug.leaks.foreign.limits import host_memory, last_limit, limit_of, limit_without_a_name
from rtdebug.leaks.foreign.names import kind_in_name, names_limit
from rtdebug.leaks.foreign.quantities import BEGIN_NS, NO_TIMES, PERCENT, parse_times, parse_values
from rtdebug.leaks.series import NS_PER_S, Labels, Series, clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from rtdebug.leaks.foreign.hints import Hints
    from rtdebug.leaks.series import Floats, Ints

_Notes = tuple[str, ...]
_MOST_NAMED = 12


@dataclass(frozen=True, slots=True)
class _Table:
    """A table, and what its columns are."""

    name: str
    frame: pd.DataFrame
    time: str | None
    number: str | None
    """Of samples, where there are no times."""
    texts: list[str]
    usages: list[str]
    limits: list[str]
    parsed: dict[str, tuple[Floats, pd.Series[str]]]
    """Numbers and their units, of each column but those of times."""

    def scale(self, column: str, hints: Hints) -> Scaled:
        return scale(column, *self.parsed[column], hints, self.name)


def parse(text: str, name: str, hints: Hints) -> list[Series]:
    """Parse a CSV. Raises UsageProblem when times or units are missing and `hints` do not have them."""
    table, notes = _table(text, name)
    groups = group_rows(table.frame, table.texts, table.time)
    time_ns, more = _times(table, groups, hints)
    notes += more
    scaled, more = _usages(table, is_whole=text.endswith("\n"), hints=hints)
    notes += more
    unnamed = None if table.limits else limit_without_a_name(scaled, groups)
    of_all = scaled.pop(unnamed).numbers if unnamed else None
    if unnamed:
        notes += (f"{unnamed} is taken as the limit: it is constant, and nothing is above it",)
    found = []
    for column, values in scaled.items():
        own = limit_of(column, table.limits) if table.usages != table.limits else None
        limits = of_all if own is None else table.scale(own, hints).numbers
        owner = owner_of(column) if len(scaled) > 1 else ""
        kind = kind_in_name(metric_of(column))
        for group, limit in zip(groups, _limits(limits, groups), strict=True):
            label = " ".join(part for part in (group.name, owner) if part) or name.removesuffix(".csv")
            starts_ns = tuple(time_ns[group.lives].tolist())
            rows = group.rows
            labels = Labels(label, kind, values.unit)
            series = clean(labels, time_ns[rows], values.numbers[rows], limit=limit, restarts_ns=starts_ns)
            found.append(replace(series, notes=notes + values.notes + series.notes))
    return found


def _table(text: str, name: str) -> tuple[_Table, _Notes]:
    """Read the text, and tell its columns apart. Raises UsageProblem when none has numbers."""
    frame, notes = read_frame(text, name)
    time = time_column(frame)
    number = None if time else number_column(frame)
    rest = [column for column in frame.columns if column not in (time, number)]
    parsed = {column: parse_values(frame[column]) for column in rest}
    values = [column for column in rest if is_number(frame[column], parsed[column][0])]
    if not values:
        raise _no_numbers(frame, rest, name)
    texts = [column for column in rest if column not in values]
    limits = [column for column in values if names_limit(metric_of(column))]
    usages, others = of_memory([column for column in values if column not in limits] or limits)
    if others:
        some = ", ".join(others[:_MOST_NAMED]) + (", ..." if len(others) > _MOST_NAMED else "")
        notes += (f"columns that are not of memory that is held left out: {some}",)
    return _Table(name, frame, time, number, texts, usages, limits, parsed), notes


def _no_numbers(frame: pd.DataFrame, columns: list[str], name: str) -> UsageProblem:
    shown = next((f": '{value[:40]}' is none" for column in columns for value in frame[column].dropna().iloc[:1]), "")
    hint = "give a CSV with a time and one or more columns of bytes"
    if re.search(r"\d,\d", shown):
        hint = "write 1234.5: a decimal point, and no other marks"
    return UsageProblem(f"{name}: no column of numbers{shown}", hint)


def _times(table: _Table, groups: list[Group], hints: Hints) -> tuple[Ints, _Notes]:
    """When each row is. Raises UsageProblem when neither the table nor the user says it."""
    import numpy as np
    import pandas as pd

    if table.time:
        time_ns, wrong = parse_times(table.frame[table.time], table.time)
        return time_ns, (wrong,) if wrong else ()
    if hints.interval_s is None:
        hint = "say how far the samples are apart: --interval 10s"
        raise UsageProblem(f"{table.name}: there is no column of times", hint)
    numbers = np.zeros(len(table.frame))
    for group in groups:
        numbers[group.rows] = np.arange(len(group.rows))
    if table.number:
        numbers = pd.to_numeric(table.frame[table.number], errors="coerce").to_numpy(float)
    seconds = np.nan_to_num(numbers * hints.interval_s, nan=-1e9)
    return BEGIN_NS + (np.clip(seconds, -1e9, 8e9) * NS_PER_S).astype(np.int64), (NO_TIMES,)


def _usages(table: _Table, is_whole: bool, hints: Hints) -> tuple[dict[str, Scaled], _Notes]:
    """Give the usages in bytes, else in percent. Raises UsageProblem when none has a unit."""
    import numpy as np

    scaled: dict[str, Scaled] = {}
    notes: _Notes = ()
    without: UsageProblem | None = None
    for column in table.usages:
        try:
            scaled[column] = table.scale(column, hints)
        except UsageProblem as problem:
            without = without or problem
            notes += (f"column {column} left out: it has no unit, in its name or its values",)
            continue
        if not is_whole and is_cut(scaled[column].numbers):
            scaled[column].numbers[-1] = np.nan
            notes += ("the last line is cut short: its number is left out",)
    if without and not scaled:
        raise without
    if len({each.unit for each in scaled.values()}) > 1:  # percent of what is there in bytes too
        scaled = {column: each for column, each in scaled.items() if each.unit != PERCENT}
    return scaled, notes


def _limits(limits: Floats | None, groups: list[Group]) -> Iterator[float | None]:
    """Give the limit of each container, by the values of the column of limits."""
    shown = [None if limits is None else last_limit(limits[group.rows]) for group in groups]
    hosts = host_memory(shown)
    yield from (None if limit == hosts else limit for limit in shown)
