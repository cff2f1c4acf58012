"""Buckets of many series at once: what a worker makes of a part of a store, and how parts are put together.

The same numbers as `buckets.bucketed` gives for each series, by a few calls of numpy for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from rtdebug.leaks.buckets import MOST, Buckets

if TYPE_CHECKING:
    from rtdebug.leaks.series import Floats, Ints


@dataclass(frozen=True, slots=True)
class Grid:
    """Buckets of series 0, 1, ...; sorted by series, then by index."""

    level: Ints
    """Of each series."""
    code: Ints
    """Series of each bucket."""
    index: Ints
    low: Floats
    high: Floats
    total: Floats
    count: Ints


def grids_of(code: Ints, seconds: Ints, values: Mapping[str, Floats], least: Ints) -> dict[str, Grid]:
    """Put samples of many series into buckets, for several columns of values; NaN is no sample.

    `least`: a level for each series, below which it needs no buckets.
    """
    import numpy as np

    series = len(least)

    narrow = code.astype(np.uint16) if series < 1 << 16 else code  # 16 bits: a radix sort
    order = np.argsort(narrow, kind="stable")
    code, seconds = code[order], seconds[order]
    level = np.maximum(_levels(code, seconds, seconds, series), least)
    index = seconds >> level[code]
    starts = _starts(code, index)
    if starts is None:  # the clock went back
        return {name: _grid_of(code, seconds, value[order], least) for name, value in values.items()}
    counts = np.diff(np.append(starts, len(code)))
    found = {}
    for name, value in values.items():
        value = value[order]
        if np.isfinite(value).all():
            low, high = np.minimum.reduceat(value, starts), np.maximum.reduceat(value, starts)
            found[name] = Grid(level, code[starts], index[starts], low, high, np.add.reduceat(value, starts), counts)
        else:
            found[name] = _grid_of(code, seconds, value, least)
    return found


def _grid_of(code: Ints, seconds: Ints, value: Floats, least: Ints) -> Grid:
    """For a column with holes: its series may be shorter; `code` ascending."""
    import numpy as np

    known = np.isfinite(value)
    code, seconds, value = code[known], seconds[known], value[known]
    level = _levels(code, seconds, seconds, len(least))
    return _joined(level, code, seconds >> level[code], (value, value, value), np.ones(len(value), np.int64))


def merged(grids: Sequence[Grid], codes: Sequence[Ints], series: int) -> Grid:
    """Join grids; `codes` has for each the series of the result that its own series are."""
    import numpy as np

    if not grids:
        empty, floats = np.zeros(0, np.int64), np.zeros(0)
        return Grid(np.zeros(series, np.int64), empty, empty, floats, floats, floats, empty)
    code = np.concatenate([to[grid.code] for grid, to in zip(grids, codes, strict=True)])
    own = np.concatenate([grid.level[grid.code] for grid in grids])
    index = np.concatenate([grid.index for grid in grids])
    figures = [np.concatenate([getattr(grid, name) for grid in grids]) for name in ("low", "high", "total")]
    count = np.concatenate([grid.count for grid in grids])
    order = np.lexsort((index << own, code))
    code, own, index = code[order], own[order], index[order]
    level = _levels(code, index << own, index << own, series)
    np.maximum.at(level, code, own)
    low, high, total = (figure[order] for figure in figures)
    return _joined(level, code, index >> (level[code] - own), (low, high, total), count[order])


def split(grid: Grid) -> Iterator[tuple[int, Buckets]]:
    """Give the series that have samples, with their buckets."""
    import numpy as np

    cuts = np.flatnonzero(grid.code[1:] != grid.code[:-1]) + 1
    edges = [0, *cuts.tolist(), len(grid.code)] if len(grid.code) else []
    for begin, end in pairwise(edges):
        code = int(grid.code[begin])
        part = slice(begin, end)
        yield (
            code,
            Buckets(
                int(grid.level[code]),
                grid.index[part],
                grid.low[part],
                grid.high[part],
                grid.total[part],
                grid.count[part],
            ),
        )


def _levels(code: Ints, first_s: Ints, last_s: Ints, series: int) -> Ints:
    """Return the level of each series, as `buckets.level_for` does; `code` ascending."""
    import numpy as np

    level = np.zeros(series, np.int64)
    if not len(code):
        return level
    starts = np.flatnonzero(np.append(True, code[1:] != code[:-1]))
    present = code[starts]
    least, most = np.minimum.reduceat(first_s, starts), np.maximum.reduceat(last_s, starts)
    found = np.zeros(len(present), np.int64)
    while np.any(wide := (most >> found) - (least >> found) >= MOST):
        found[wide] += 1
    level[present] = found
    return level


def _starts(code: Ints, index: Ints) -> Ints | None:
    """Where a new bucket begins; None if they are not in order. `code` ascending and not empty, or nothing begins."""
    import numpy as np

    same = code[1:] == code[:-1]
    if np.any(same & (index[1:] < index[:-1])):
        return None
    return np.flatnonzero(np.append(np.full(min(1, len(code)), True), ~same | (index[1:] != index[:-1])))


def _joined(level: Ints, code: Ints, index: Ints, figures: tuple[Floats, Floats, Floats], count: Ints) -> Grid:
    import numpy as np

    low, high, total = figures
    if not len(code):
        return Grid(level, code, index, low, high, total, count)
    starts = _starts(code, index)
    if starts is None:
        order = np.lexsort((index, code))
        code, index, count = code[order], index[order], count[order]
        low, high, total = low[order], high[order], total[order]
        starts = _starts(code, index)
    assert starts is not None
    return Grid(
        level,
        code[starts],
        index[starts],
        np.minimum.reduceat(low, starts),
        np.maximum.reduceat(high, starts),
        np.add.reduceat(total, starts),
        np.add.reduceat(count, starts),
    )
