"""What the columns of a table are: of what, whose, in which unit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rtdebug.errors import UsageProblem
from rtdebug.leaks.foreign.names import OWNERS, kind_in_name, names_memory
from rtdebug.leaks.foreign.quantities import PERCENT, factor_of, unit_in_name

if TYPE_CHECKING:
    import pandas as pd

    from rtdebug.leaks.foreign.hints import Hints
    from rtdebug.leaks.series import Floats


@dataclass(frozen=True, slots=True)
class Scaled:
    """The numbers of a column, in one unit."""

    numbers: Floats
    unit: str
    """`bytes` or PERCENT."""
    notes: tuple[str, ...] = ()


def of_memory(columns: list[str]) -> tuple[list[str], list[str]]:
    """Divide columns. Where none is named after memory, or after a unit of it, they are named after their owners.

    So are they with dashes or labels: `api-7d9f-x2x4m`, `{pod="memory-api-0"}`.
    """
    if sum("-" in metric or "=" in metric for metric in map(metric_of, columns)) * 2 > len(columns):
        return columns, []
    says = {column: names_memory(metric_of(column)) for column in columns}
    units = {column for column in columns if unit_in_name(metric_of(column)) not in (None, PERCENT)}
    if any(says.values()):  # beside those that are named after memory, a unit is not enough: wal_bytes
        units = {column for column in units if kind_in_name(metric_of(column)) != "usage"}
    held = [column for column in columns if says[column] or (says[column] is None and column in units)]
    return (held, [column for column in columns if column not in held]) if held else (columns, [])


def metric_of(column: str) -> str:
    """Return the name of a metric with its labels, as Grafana heads a column, without them; else the column's name."""
    named = re.search(r'^(\w+)\{|__name__="(\w+)"', column)
    return (named[1] or named[2]) if named else column


def owner_of(column: str) -> str:
    """Return the labels that tell whose a column is; else the column's name."""
    labels = dict(re.findall(r'(\w+)="([^"]*)"', column))
    told = [labels[key] for key in OWNERS if key in labels] or [labels[key] for key in labels if key != "__name__"]
    return "/".join(dict.fromkeys(told)) or column


def scale(column: str, numbers: Floats, units: pd.Series[str], hints: Hints, name: str) -> Scaled:
    """Return numbers in bytes or percent. Raises UsageProblem when neither they nor the column's name have a unit."""
    import numpy as np

    present = {str(unit) for unit in units[np.isfinite(numbers)].unique()}
    named = unit_in_name(metric_of(column))
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
        return Scaled(np.where(is_percent, numbers, np.nan), PERCENT, notes)
    factors = {unit: factor_of(unit or (default or "") if default != PERCENT else "") for unit in present - {"%"}}
    scaled = np.round(numbers * units.map(factors).fillna(1).to_numpy(float))
    unknown = units.eq("").to_numpy() & (scaled != 0) & (default is None) & bool(present - {"", "%"})
    if bare := np.count_nonzero(unknown & np.isfinite(numbers)):
        notes += (f"{bare} values without a unit left out: the others have one",)
    return Scaled(np.where(is_percent | unknown, np.nan, scaled), "bytes", notes)


def is_cut(numbers: Floats) -> bool:
    """Whether the last number lacks digits by all those before: its line has no end."""
    import numpy as np

    known = numbers[np.isfinite(numbers)]
    return len(known) > 2 and bool(numbers[-1] < 0.2 * known[:-1].min())
