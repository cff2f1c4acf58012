"""Figures for people: the unit is chosen by the ending of a field's name (`_bytes`, `_ns`, `_pages`).

What is not known is None in the data and `-` on the screen, never 0.
"""

from __future__ import annotations

import re
import time

from rtdebug.render.escape import escape
from rtdebug.tracing.line import Value

UNKNOWN = "-"
_IEC = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_NS_PER_S = 1_000_000_000
_RANDOM_ID = 64
_SHORT_ID = 12
_LONG_ID = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")


def format_bytes(count: float | None) -> str:
    """`count` bytes in IEC units: `64 MiB` is exact, `64.0 MiB` is rounded."""
    if count is None:
        return UNKNOWN
    if abs(count) < 1024:
        return f"{count:.0f} B"
    value = float(count)
    for unit in _IEC:
        value /= 1024
        # 1023.95 would print as "1024.0": that is the next unit's 1.0
        if abs(value) < 1023.95 or unit == _IEC[-1]:
            return f"{value:.0f} {unit}" if value.is_integer() else f"{value:.1f} {unit}"
    raise AssertionError("unreachable: the last unit always returns")


def short_id(container_id: str) -> str:
    """A random id by its beginning, as docker shows it; one that somebody chose, or a cgroup, whole. Not escaped."""
    return container_id[:_SHORT_ID] if len(container_id) == _RANDOM_ID else container_id


def short_path(path: str) -> str:
    """A cgroup's path with container ids as runtimes shorten them. Not escaped."""
    return _LONG_ID.sub(r"\1", path)


def format_share(share: float) -> str:
    """A part of 1 as `98%`: only all of it is 100%, only nothing 0%."""
    percent = round(share * 100)
    if percent == 100 and share < 1:
        return "99%"
    return "<1%" if percent == 0 and share > 0 else f"{percent}%"


def format_count(count: int | None) -> str:
    """`1,234,567`."""
    return UNKNOWN if count is None else f"{count:,}"


def counted(count: int, noun: str) -> str:
    """`1 kill`, `2 kills`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_rate(per_second: float | None) -> str:
    """Events per second: `0.4/s`, `1,234/s`."""
    if per_second is None:
        return UNKNOWN
    return f"{per_second:,.1f}/s" if abs(per_second) < 10 else f"{per_second:,.0f}/s"


def format_duration(ns: int | None) -> str:
    """Nanoseconds as `350 ns`, `1.5 ms`, `42.0 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if ns is None:
        return UNKNOWN
    if ns < 0:
        return f"-{format_duration(-ns)}"
    if ns < 1_000:
        return f"{ns} ns"
    if ns < 999_950:
        return f"{ns / 1e3:.1f} us"
    if ns < 999_950_000:
        return f"{ns / 1e6:.1f} ms"
    if ns < 59_950_000_000:
        return f"{ns / 1e9:.1f} s"
    seconds = round(ns / _NS_PER_S)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    minutes = seconds // 60
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes // 60 % 24} h"


def format_time(time_ns: int) -> str:
    """Unix time as the local time of day with milliseconds: `14:05:09.123`."""
    seconds, ns = divmod(time_ns, _NS_PER_S)
    return f"{time.strftime('%H:%M:%S', time.localtime(seconds))}.{ns // 1_000_000:03d}"


def format_address(address: int) -> str:
    """`0x7f0012345000`."""
    return f"{address:#x}"


def format_value(key: str, value: Value) -> str:
    """Any field for people, by the ending of its name. Text comes out escaped."""
    match value:
        case None:
            return UNKNOWN
        case bool():
            return "yes" if value else "no"
        case int() | float() if key.endswith("_bytes"):
            return format_bytes(value)
        case float() if key.endswith("share"):
            return format_share(value)
        case int() if key.endswith("_ns"):
            return format_duration(value)
        case int() if key.endswith("address") or key.startswith("mapping_"):
            return format_address(value)
        case list():
            return "|".join(format_value(key, item) for item in value) or UNKNOWN
        case dict():
            return "{" + ", ".join(f"{escape(k)}={format_value(k, v)}" for k, v in value.items()) + "}"
        case _:
            return escape(str(value))
