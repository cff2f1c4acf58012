"""Blocks of labelled rows, and fields of an event line taken as what they should be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rtdebug.render.escape import display_width, escape
from rtdebug.tracing.line import Value

Fields = Mapping[str, Value]

LABEL_COLUMNS = 12

_LONG_ID = re.compile(r"(?<![0-9a-f])([0-9a-f]{12})[0-9a-f]{52}(?![0-9a-f])")
_BREAK = re.compile(r" (?!(?:[KMGTPE]i)?B\b)")  # not between a figure and its unit


def labelled(label: str, text: str | None, width: int, at_most: int | None = None) -> Iterator[str]:
    """Give `text` as the rows of a label; none without text. What `at_most` rows cannot hold ends in "…"."""
    rows = list(wrap(text, width - LABEL_COLUMNS - 2)) if text else []
    if at_most is not None and len(rows) > at_most:
        rows[at_most - 1 :] = [escape(f"{rows[at_most - 1]} …", width - LABEL_COLUMNS - 2)]
    yield from block(label, rows)


def block(label: str, rows: Iterable[str]) -> Iterator[str]:
    """Give rows with the label before the first."""
    for index, row in enumerate(rows):
        yield f"  {label if index == 0 else '':<{LABEL_COLUMNS}}{row}"


def wrap(text: str, width: int) -> Iterator[str]:
    """Lines of at most `width` columns, broken between words, or inside one that is longer."""
    row = ""
    for word in _BREAK.split(escape(text)):
        candidate = f"{row} {word}" if row else word
        if display_width(candidate) <= width:
            row = candidate
            continue
        if row:
            yield row
        *full, row = _pieces(word, width)
        yield from full
    if row:
        yield row


def _pieces(word: str, width: int) -> list[str]:
    pieces = [""]
    for character in word:
        if pieces[-1] and display_width(pieces[-1] + character) > width:
            pieces.append("")
        pieces[-1] += character
    return pieces


def number_of(fields: Fields, key: str) -> int | None:
    """A number; None if it is something else."""
    value = fields.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text_of(fields: Fields, key: str) -> str | None:
    """A text that is not empty; None if it is something else."""
    value = fields.get(key)
    return value if isinstance(value, str) and value else None


def list_of(fields: Fields, key: str) -> list[Value]:
    """A list; an empty one if it is something else."""
    value = fields.get(key)
    return value if isinstance(value, list) else []


def columns(names: Iterable[str], figures: Sequence[str], width: int) -> Iterator[str]:
    """Rows of a name and its figures: names are cut, figures never."""
    safe = [escape(name) for name in names]
    room = max(8, width - max((display_width(each) for each in figures), default=0) - 2)
    column = min(room, max((display_width(name) for name in safe), default=0))
    for name, figure in zip(safe, figures, strict=True):
        shown = escape(name, column)
        yield f"{shown}{' ' * (column - display_width(shown))}  {figure}"


def short_ids(path: str | None) -> str:
    """A path for people: container ids as runtimes shorten them. The JSON form has it whole."""
    return _LONG_ID.sub(r"\1", path) if path else "a cgroup"
