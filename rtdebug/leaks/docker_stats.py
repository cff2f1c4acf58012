"""Logs of `docker stats` and `podman stats`: the table as it is printed again and again, other formats, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rtdebug.errors import UsageProblem
from rtdebug.leaks.csv import NO_TIMES, host_memory
from rtdebug.leaks.foreign import Hints
from rtdebug.leaks.quantities import BEGIN_NS, factor_of, parse_times
from rtdebug.leaks.series import NS_PER_S, Labels, Series, clean

_HEADER = re.compile(r"^(.*?)(?:CONTAINER(?: ID)?|ID|NAME)\s.*MEM USAGE", re.MULTILINE)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?[\d.]*(?:Z| ?[+-]\d\d:?\d\d)?|\b1\d{9}(?:\.\d+|\d{3})?(?![\w.])|"
    r"\b[A-Z][a-z]{2},? (?:[A-Z][a-z]{2} +\d+|\d+ [A-Z][a-z]{2}),? (?:\d{4} )?\d\d:\d\d:\d\d(?: [AP]M)?(?: [A-Z]{3,5})?"
    r"(?: \d{4})?|^\W*\d\d:\d\d:\d\d\b"
)
_USAGE = re.compile(r"(?<![\w.])([\d.]+) ?([KMGTPk]?i?B) ?/ ?([\d.]+) ?([KMGTPk]?i?B)\b")
_BEGIN = re.compile(r"[\[{]")
_ID = re.compile(r"[0-9a-f]{12}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class _Sample:
    name: str
    container_id: str | None
    used: float
    limit: float | None
    time: str | None
    """As it is written."""
    round: int


def is_table(head: str) -> bool:
    """Whether the text is like the table, or like lines of its figures without a header; and no CSV with a header."""
    head = _ESCAPES.sub("", head)
    first = head.lstrip().split("\n", 1)[0]
    if "," in first and not _USAGE.search(first) and not _TIME.search(first):
        return False
    return bool(_HEADER.search(head) or _USAGE.search(head))


def is_json_lines(head: str) -> bool:
    """Whether the text is of `docker stats --format json`, of `podman stats`, or of docker's API."""
    return bool(re.search(r'"(?:MemUsage|mem_usage|memory_stats)"\s*:', head))


def parse(text: str, name: str, hints: Hints) -> list[Series]:
    """Parse a log. Raises UsageProblem when it has no times and `hints` have no interval."""
    text = _ESCAPES.sub("", text)
    if is_json_lines(text):
        samples = list(_json_samples(text))
    else:
        lines = text.split("\n")
        follow = _stamps_follow(lines)
        samples = list(_table_samples(lines[::-1] if follow else lines))[:: -1 if follow else 1]
    samples = [sample for sample in samples if sample.limit]  # 0B / 0B: it does not run
    if not samples:
        raise UsageProblem(f"{name}: no line of `docker stats` that is whole", "log it with --no-stream in a loop")
    timed = [sample for sample in samples if sample.time is not None]
    if not timed and hints.interval_s is None:
        raise UsageProblem(
            f"{name}: `docker stats` prints no times", "say how far its rounds are apart: --interval 10s"
        )
    return list(_series(timed or samples, hints, len(samples) - len(timed or samples)))


def _table_samples(lines: list[str]) -> Iterator[_Sample]:
    number, moment = 0, None
    seen: set[str] = set()
    has_header = False
    for line in lines:
        if stamp := _TIME.search(line):
            moment = stamp[0]
            line = line[stamp.end() :] if not line[: stamp.start()].strip(" [(\"'-#:") else line
        if _HEADER.match(line):
            has_header = True
            number += 1
            continue
        usage = _USAGE.search(line)
        words = re.split(r"[\s,;|]+", line[: usage.start()].strip(" ,;|[]\"'")) if usage else []
        words = [word.strip(":\"'") for word in words if word.strip(":\"'-") and not re.fullmatch(r"[\d.]+ ?%?", word)]
        if usage and words:  # an id and a name, or one of them
            named = words[1] if len(words) > 1 and _ID.fullmatch(words[0]) else words[0]
            if not has_header and named in seen:
                number += 1
                seen.clear()
            seen.add(named)
            container_id = words[0] if _ID.fullmatch(words[0]) else None
            yield _Sample(named, container_id, *_figures(usage), moment, number)


def _stamps_follow(lines: list[str]) -> bool:
    """Whether each time stands below its round: the first figures come before the first time, the last time is last."""
    kinds = [bool(_USAGE.search(line)) for line in lines if _USAGE.search(line) or _TIME.search(line)]
    bare = not any(_USAGE.search(line) and _TIME.search(line) for line in lines[:100])
    return bare and len(kinds) > 1 and kinds[0] and not kinds[-1]


def _figures(usage: re.Match[str]) -> tuple[float, float | None]:
    try:
        used, limit = float(usage[1]) * factor_of(usage[2]), float(usage[3]) * factor_of(usage[4])
    except ValueError:
        return float("nan"), None
    return used, limit or None


def _json_samples(text: str) -> Iterator[_Sample]:
    rounds: dict[str, int] = {}
    for before, fields in _objects(text):
        stamp = next((str(fields[key]) for key in ("read", "time", "timestamp", "@timestamp") if fields.get(key)), None)
        if stamp is None and (match := _TIME.search(before)):
            stamp = match[0]
        named = str(fields.get("Name") or fields.get("name") or fields.get("Container") or fields.get("ID") or "")
        container_id = fields.get("ID") or fields.get("id")
        used, limit = _json_figures(fields)
        if named and used is not None:
            rounds[named] = rounds.get(named, -1) + 1
            yield _Sample(named.strip("/"), str(container_id) or None, used, limit, stamp, rounds[named])


def _objects(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give each object of JSON in a text, alone or in lists, with what stands before it in its line."""
    decoder = json.JSONDecoder()
    at = 0
    while match := _BEGIN.search(text, at):
        begin = match.start()
        before = text[max(at, text.rfind("\n", at, begin)) : begin]
        try:
            value, at = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            at = begin + 1
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield before, each


def _json_figures(fields: dict[str, Any]) -> tuple[float | None, float | None]:
    """Return usage and limit: of the text that the clients print, or of docker's API as its client reckons."""
    usage = _USAGE.search(str(fields.get("MemUsage") or fields.get("mem_usage") or ""))
    if usage:
        return _figures(usage)
    try:
        memory = fields["memory_stats"]
        stats = memory.get("stats") or {}
        cache = stats.get("total_inactive_file", stats.get("inactive_file", 0))
        limit = memory.get("limit")
        return float(memory["usage"] - cache), float(limit) if limit and limit < 1 << 60 else None
    except (KeyError, TypeError, AttributeError, ValueError):
        return None, None


def _series(samples: list[_Sample], hints: Hints, left_out: int) -> Iterator[Series]:
    import pandas as pd

    frame = pd.DataFrame(
        [(each.name, each.container_id, each.used, each.limit, each.time, each.round) for each in samples],
        columns=["name", "id", "bytes", "limit", "time", "round"],
    )
    notes = (f"{left_out} samples before the first time left out",) if left_out else ()
    if frame["time"].notna().all():
        frame["time_ns"], wrong = parse_times(frame["time"])
        notes += (wrong,) if wrong else ()
    else:
        assert hints.interval_s is not None
        notes += (NO_TIMES,)
        frame["time_ns"] = BEGIN_NS + (frame["round"] * hints.interval_s * NS_PER_S).astype("int64")
    groups = [(str(name), rows) for name, rows in frame.groupby("name", sort=False)]
    shown = host_memory(limit for _, rows in groups for limit in rows["limit"].unique())
    for name, rows in groups:
        limit = float(rows["limit"].iloc[-1])
        series = clean(
            Labels(name),
            rows["time_ns"].to_numpy("int64"),
            rows["bytes"].round().to_numpy(float),
            limit=None if limit == shown else limit,
            restarts_ns=tuple(sorted(rows.groupby("id")["time_ns"].min().tolist()))[1:],
        )
        yield replace(series, notes=notes + series.notes)
