r"""Event lines as JSON lines: one object per line, with the keys of the command-line contract in its order.

The output is ASCII: everything else is written as `\uXXXX`. So a line never breaks in two (U+2028, NEL),
nothing reaches a terminal raw (C1 controls, bidi overrides, DEL), and any JSON reader takes it.

Text that was not UTF-8 cannot be said in JSON: a lone `\udcNN` is refused by many readers. There the
string holds U+FFFD for every such byte, and a key `<key>_hex` beside it holds all its bytes in hexadecimal,
so nothing is lost. For a list of strings `<key>_hex` is a list, null where the item needed none. NaN and
infinities, which JSON does not have, are null.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO

from rtdebug.render.escape import escape
from rtdebug.tracing.line import EventLine, Value

if TYPE_CHECKING:
    from rtdebug.tracing.summary import Summary

_NS_PER_S = 1_000_000_000
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode


class JsonRenderer:
    """Writes event lines and the summary as JSON lines to a binary stream, flushed after each batch.

    A reader that went away is a BrokenPipeError for the caller.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def line(self, line: EventLine) -> None:
        """Write one line."""
        self.lines((line,))

    def lines(self, lines: Iterable[EventLine]) -> None:
        """Write a batch of lines."""
        self._write("".join([encode_event(line) + "\n" for line in lines]))

    def summary(self, summary: Summary) -> None:
        """Write the summary, the last line of a stream: `"event": "summary"`."""
        from rtdebug.render.summary import summary_fields

        self._write(encode_object(summary_fields(summary)) + "\n")

    def _write(self, text: str) -> None:
        self._out.write(text.encode("ascii"))
        self._out.flush()


def encode_event(line: EventLine) -> str:
    """One event as a JSON object, without the newline."""
    fields = encode_object(line.fields)
    return (
        f'{{"time":"{format_time_utc(line.time_ns)}",{_identity(line.event, *_who(line))}'
        f"{',' if len(fields) > 2 else ''}{fields[1:]}"
    )


def encode_object(fields: Mapping[str, Value]) -> str:
    """One JSON object on one line: valid, ASCII, and without loss (see the module's text)."""
    try:
        text = _encode(fields if type(fields) is dict else dict(fields))
    except ValueError:  # NaN or infinity
        text = _encode(_clean_object(fields))
    # "\ud" also begins the pair of a character beyond U+FFFF; _clean_object leaves those as they are
    if "\\ud" in text:
        text = _encode(_clean_object(fields))
    return text


def format_time_utc(time_ns: int) -> str:
    """Unix time as RFC 3339 in UTC with nanoseconds: `2026-01-02T03:04:05.000000006Z`."""
    seconds, ns = divmod(time_ns, _NS_PER_S)
    return f"{_second(seconds)}.{ns:09d}Z"


@lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


_Who = tuple[str | None, str | None, str | None, str | None, int, int | None, int | None, str | None]


def _who(line: EventLine) -> _Who:
    return (
        line.container_id,
        line.container_name,
        line.runtime,
        line.cgroup,
        line.pid,
        line.ns_pid,
        line.tid,
        line.comm,
    )


@lru_cache(maxsize=1024)
def _identity(event: str, *who: str | int | None) -> str:
    """The part of a line that is the same for every event of a thread, without its braces."""
    names = ("container_id", "container_name", "runtime", "cgroup", "pid", "ns_pid", "tid", "comm")
    return encode_object({"event": event, **dict(zip(names, who, strict=True))})[1:-1]


def _clean_object(fields: Mapping[str, Value]) -> dict[str, Value]:
    clean: dict[str, Value] = {}
    for key, value in fields.items():
        name = key if _is_text(key) else escape(key)
        clean[name] = _clean(value)
        raw = _hex(value)
        if raw is not None:
            clean[f"{name}_hex"] = raw
    return clean


def _clean(value: Value) -> Value:
    match value:
        case str():
            return value if _is_text(value) else _replaced(value)
        case float():
            return value if math.isfinite(value) else None
        case list():
            return [_clean(item) for item in value]
        case dict():
            return dict(_clean_object(value))
        case _:
            return value


def _hex(value: Value) -> Value:
    """All bytes of text that is not UTF-8; the same for the items of a list; None where there is none."""
    match value:
        case str() if not _is_text(value):
            return _bytes(value).hex()
        case list():
            items = [_hex(item) for item in value]
            return items if any(item is not None for item in items) else None
        case _:
            return None


def _is_text(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte, out of somebody's JSON
        return text.encode("utf-8", "surrogatepass")


def _replaced(text: str) -> str:
    return "".join("\ufffd" if 0xD800 <= ord(character) <= 0xDFFF else character for character in text)
