"""JSON that is no export of a tool: a list of objects, or one on each line, is a table."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence

_PROMETHEUS = frozenset({"metric", "data", "status", "result"})
_DEEPEST = 4
"""What is deeper is not a figure of a sample."""


def documents(text: str) -> list[object]:
    """Return the JSON documents of a text, without the last one if it is cut short. Raises ValueError without one."""
    decoder, begin, at = json.JSONDecoder(), re.compile(r"\S"), 0
    found: list[object] = []
    while rest := begin.search(text, at):
        try:
            value, at = decoder.raw_decode(text, rest.start())
        except ValueError:
            if not found:
                raise
            break
        found.append(value)
    return found


def is_table(found: Sequence[object]) -> bool:
    """Whether documents are the rows of a table: objects, none of them a series of Prometheus or an answer of it."""
    return bool(found) and all(isinstance(each, dict) and not _PROMETHEUS & set(each) for each in found)


def rows_in(document: object) -> object:
    """Return the only list of objects in a document, as of CloudWatch's `{"Datapoints": [...]}`; else the document."""
    if not isinstance(document, dict) or _PROMETHEUS & set(document):
        return document
    lists = [each for each in document.values() if isinstance(each, list) and each and isinstance(each[0], dict)]
    return lists[0] if len(lists) == 1 else document


def as_csv(rows: Sequence[object]) -> str:
    """Return rows as a CSV; what is in an object is a column of its own: `memory.rss`."""
    flat = [dict(flattened(row)) for row in rows]
    written = io.StringIO()
    writer = csv.DictWriter(written, list(dict.fromkeys(key for row in flat for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return written.getvalue()


def flattened(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Give what is in an object by its keys: `memory.rss`. Lists are left out."""
    if isinstance(value, dict):
        if key.count(".") < _DEEPEST:
            for name, each in value.items():
                yield from flattened(each, f"{key}.{name}".lstrip("."))
    elif not isinstance(value, list):
        yield key, value
