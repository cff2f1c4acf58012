"""JSON from runtimes, taken apart without trust: a value of the wrong type counts as not said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rtdebug.errors import RtdebugError

Record = Mapping[str, Any]


def parse_records(text: str | bytes, key: str, source: str) -> tuple[Record, ...]:
    """A JSON list (or null) of objects that have a text under `key`; other items are left out.

    Raises RtdebugError, naming `source`, if the text is something else.
    """
    try:
        value = json.loads(text)
    except ValueError:
        raise RtdebugError(f"{source} answered with something that is not JSON") from None
    if value is None:
        return ()
    if not isinstance(value, list):
        raise RtdebugError(f"{source} answered with something that is not a list")
    return tuple(item for item in value if isinstance(item, dict) and as_text(item.get(key)) is not None)


def parse_object(text: str | bytes) -> Record:
    """A JSON object. Raises ValueError if the text is something else."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def as_text(value: object) -> str | None:
    """The value if it is text and not empty."""
    return value if isinstance(value, str) and value else None


def as_int(value: object) -> int | None:
    """The value if it is a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_pid(value: object) -> int | None:
    """The value if it can be a process: runtimes write 0 for none."""
    pid = as_int(value)
    return pid if pid is not None and pid > 0 else None


def as_object(value: object) -> Record:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def first_text(value: object) -> str | None:
    """The first item if the value is a list that begins with text."""
    return as_text(value[0]) if isinstance(value, list) and value else None
