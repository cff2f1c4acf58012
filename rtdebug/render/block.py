"""Blocks of labelled rows, and fields of an event line taken as what they should be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rtdebug.render.columns import wrap
from rtdebug.render.escape import display_width, escape
from rtdebug.render.units import short_path
from rtdebug.tracing.line import Value

Fields = Mapping[str, Value]

LABEL_COLUMNS = 12


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
    return short_path(path) if path else "a cgroup"
