"""Text in columns: aligned rows for what is known as a whole (a summary, the doctor's list), and wrapping."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from rtdebug.render.escape import display_width, escape

_GAP = "  "
_BREAK = re.compile(r" (?!(?:[KMGTPE]i)?B\b)")  # not between a figure and its unit


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
        _GAP.join(_pad(cell, widths[index], index in right) for index, cell in enumerate(row)).rstrip() for row in cells
    ]


def _pad(cell: str, width: int, right: bool) -> str:
    space = " " * (width - display_width(cell))
    return space + cell if right else cell + space


def wrap(text: str, width: int, first: int | None = None) -> Iterator[str]:
    """Lines of at most `width` columns, broken between words, or inside one that is longer. Escaped.

    `first`: columns of the first line where it has fewer; it is empty if not even one word fits there.
    """
    room = width if first is None else min(first, width)
    row = ""
    for word in _BREAK.split(escape(text)):
        candidate = f"{row} {word}" if row else word
        if display_width(candidate) <= room:
            row = candidate
            continue
        if row or room < width:
            yield row
        room = width
        *full, row = _pieces(word, width)
        yield from full
    if row:
        yield row


def cut_middle(text: str, limit: int, end: int | None = None) -> str:
    """`text` escaped, at most `limit` columns wide, with its beginning and its end: of a path both matter.

    `end`: columns that the end may have; None: half of them.
    """
    shown = escape(text)
    if display_width(shown) <= limit:
        return shown
    room = (limit - 1) // 2 if end is None else end
    start = len(shown)
    while start > 0 and (width := display_width(shown[start - 1])) <= room:
        start, room = start - 1, room - width
    return escape(shown, limit - display_width(shown[start:])) + shown[start:]


def _pieces(word: str, width: int) -> list[str]:
    pieces = [""]
    for character in word:
        if pieces[-1] and display_width(pieces[-1] + character) > width:
            pieces.append("")
        pieces[-1] += character
    return pieces
