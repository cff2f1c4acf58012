"""Rows of cells as aligned columns: for what is known as a whole (a summary, the doctor's list)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rtdebug.render.escape import display_width, escape

_GAP = "  "


def align(rows: Sequence[Sequence[str]], right: Collection[int] = (), limit: int = 40) -> list[str]:
    """One line per row; columns whose index is in `right` are flush right.

    Every cell is escaped, and cut to `limit` columns except the last of its row.
    """
    cells = [[*(escape(cell, limit) for cell in row[:-1]), *map(escape, row[-1:])] for row in rows]
    widths = [
        max(display_width(row[index]) for row in cells if index < len(row))
        for index in range(max(map(len, cells), default=0))
    ]
    return [
        _GAP.join(_pad(cell, widths[index], index in right) for index, cell in enumerate(row)).rstrip()
        for row in cells
    ]


def _pad(cell: str, width: int, right: bool) -> str:
    space = " " * (width - display_width(cell))
    return space + cell if right else cell + space
