"""Logs of `docker stats`, `podman stats`, `kubectl top`, ps, top, and of programs: rounds of lines; JSON of docker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rtdebug.errors import UsageProblem
from rtdebug.leaks.foreign.hints import Hints
from rtdebug.leaks.foreign.limits import host_memory
from rtdebug.leaks.foreign.quantities import BEGIN_NS, NO_TIMES, parse_times
from rtdebug.leaks.foreign.records import flattened
from rtdebug.leaks.foreign.rows import Row, columned, rows_of, usage_in
from rtdebug.leaks.series import NS_PER_S, Labels, Series, clean

_HEADER = re.compile(
    r"^(?:.*?(?:CONTAINER(?: ID)?|ID|NAME)\s.*MEM USAGE|.*\bPID\b.*\b(?:RSS|RES)\b|.*\bMEMORY\(bytes\))", re.MULTILINE
)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z| ?[+-]\d\d:?\d\d)?|\b1\d{9}(?:\.\d+|\d{3})?(?![\w.])|"
    r"\b\d{1,2}/\d{1,2}/\d{4},? \d{1,2}:\d\d:\d\d(?: [AP]M)?|"
    r"\b[A-Z][a-z]{2},? (?:[A-Z][a-z]{2} +\d+|\d+ [A-Z][a-z]{2}),? (?:\d{4} )?\d\d:\d\d:\d\d(?: [AP]M)?(?: [A-Z]{3,5})?"
    r"(?: \d{4})?|^(?:top - |\W*)\d\d:\d\d:\d\d\b(?: [AP]M)?"
)
_LONGEST = 1000
"""No line of these tools is longer; what is longer is something else."""
_BEGIN = re.compile(r"[\[{]")


@dataclass(frozen=True, slots=True)
class _Sample:
    row: Row
    time: str | None
    """As it is written."""
    round: int


def is_table(head: str) -> bool:
    """Whether the text has lines that tell memory, and is no CSV with a header."""
    lines = [line for line in _ESCAPES.sub("", head).split("\n") if line.strip()]
    stamp, rows = _told(lines[0])
    if not rows and not stamp:
        for delimiter in ",;\t|":
            if 0 < lines[0].count(delimiter) <= "".join(lines[1:2]).count(delimiter):
                return False
    return any(_HEADER.match(line[:_LONGEST]) or _told(line)[1] for line in lines[:200])


def is_json_lines(head: str) -> bool:
    """Whether the text is of `docker stats --format json`, of `podman stats`, or of docker's API."""
    return bool(re.search(r'"memory_stats"\s*:|":\s*"[\d.]+ ?\w+ ?/ ?[\d.]+ ?\w*B"', head))


def parse(text: str, name: str, hints: Hints) -> list[Series]:
    """Parse a log. Raises UsageProblem when it has no times and `hints` have no interval."""
    text = _ESCAPES.sub("", text)
    if is_json_lines(text):
        samples = list(_json_samples(text))
    else:
        lines = text.split("\n")
        follow = _stamps_follow(lines)
        samples = list(_table_samples(lines[::-1] if follow else lines))[:: -1 if follow else 1]
    if not samples:
        raise UsageProblem(f"{name}: no whole line tells memory", "log rounds in a loop: docker stats --no-stream")
    timed = [sample for sample in samples if sample.time is not None]
    if not timed and hints.interval_s is None:
        raise UsageProblem(
            f"{name}: its lines have no times", "say how far its rounds are apart: --interval 10s"
        )
    left_out = len(samples) - len(timed or samples)
    return [
        replace(series, labels=replace(series.labels, name=series.labels.name or name))
        for series in _series(timed or samples, hints, left_out)
    ]


def _table_samples(lines: Sequence[str]) -> Iterator[_Sample]:
    number, moment = 0, None
    columns: list[str] = []
    seen: set[tuple[str, str | None]] = set()
    for line in lines:
        stamp, rows = _told(line)
        moment = stamp or moment
        if _HEADER.match(line[:_LONGEST]):
            number += bool(seen)
            seen.clear()
            columns = line.split()
            continue
        for row in rows or columned(line, columns):
            if (row.name, row.id) in seen:
                number += 1
                seen.clear()
            seen.add((row.name, row.id))
            yield _Sample(row, moment, number)


def _stamps_follow(lines: Sequence[str]) -> bool:
    """Whether each time stands below its round: the first figures come before the first time, the last time is last."""
    found = [_told(line) for line in (*lines[:200], *lines[-200:])]
    kinds = [(bool(stamp), bool(rows)) for stamp, rows in found if stamp or rows]
    return len(kinds) > 1 and kinds[0] == (False, True) and kinds[-1] == (True, False)


def _told(line: str) -> tuple[str | None, list[Row]]:
    """Return the time in a line, as it is written, and what else it tells."""
    line = line[:_LONGEST]
    stamp = _TIME.search(line)
    if stamp is None:
        rows = list(rows_of(line))
        since = next((row.at_s for row in rows if row.at_s is not None), None)
        return None if since is None else f"{since:.3f}", rows
    rest = line[stamp.end() :] if not line[: stamp.start()].strip(" [(\"'-#:") else line
    return stamp[0].removeprefix("top - "), list(rows_of(rest))


def _json_samples(text: str) -> Iterator[_Sample]:
    rounds: dict[str, int] = {}
    moment: str | None = None
    for before, fields in _objects(text):
        values = {key.lower(): value for key, value in flattened(fields)}
        for match in _TIME.finditer(before):
            moment = match[0]
        own = (values.get(key) for key in ("read", "time", "timestamp", "@timestamp"))
        stamp = next((str(each) for each in own if each), moment)
        ident = values.get("id") or values.get("container")
        named = str(values.get("name") or values.get("container_name") or ident or "").strip("/")
        figures = _json_figures(values)
        if named and figures:
            rounds[named] = rounds.get(named, -1) + 1
            row = Row(named, str(ident) if ident else None, *figures)
            yield _Sample(row, stamp, rounds[named])


def _objects(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give each object of JSON in a text, alone or in lists, with what stands before it."""
    decoder = json.JSONDecoder()
    at = done = 0
    while match := _BEGIN.search(text, at):
        begin = match.start()
        try:
            value, end = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            at = begin + 1
            continue
        before, done, at = text[done:begin], end, end
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield before, each


def _json_figures(values: dict[str, object]) -> tuple[float, float | None] | None:
    """Return usage and limit: of the text that the clients print, or of docker's API as its client reckons."""
    for key, value in values.items():
        if "mem" in key and isinstance(value, str) and (figures := usage_in(value)):
            return figures
    stats = "memory_stats.stats."
    usage, limit = values.get("memory_stats.usage"), values.get("memory_stats.limit")
    cache = values.get(stats + "total_inactive_file", values.get(stats + "inactive_file", 0))
    if not isinstance(usage, int) or not isinstance(cache, int):
        return None
    return float(usage - cache), float(limit) if isinstance(limit, int) and 0 < limit < 1 << 60 else None


def _series(samples: list[_Sample], hints: Hints, left_out: int) -> Iterator[Series]:
    import pandas as pd

    frame = pd.DataFrame(
        [(each.row.name, each.row.id, each.row.used, each.row.limit, each.row.kind, each.time, each.round)
         for each in samples],
        columns=["name", "id", "bytes", "limit", "kind", "time", "round"],
    )  # fmt: skip
    notes: tuple[str, ...] = (f"{left_out} samples before the first time left out",) if left_out else ()
    if frame["time"].notna().all():
        frame["time_ns"], wrong = parse_times(frame["time"])
        notes += (wrong,) if wrong else ()
    else:
        assert hints.interval_s is not None
        notes += (NO_TIMES,)
        frame["time_ns"] = BEGIN_NS + (frame["round"] * hints.interval_s * NS_PER_S).astype("int64")
    together = frame.groupby(["name", "time_ns"])["id"].nunique()
    workers = frame["name"].isin(together.index[together > 1].get_level_values("name"))
    frame["name"] = frame["name"].where(~workers, frame["name"] + " " + frame["id"].fillna("?"))
    groups = [(str(name), rows) for name, rows in frame.groupby("name", sort=False)]
    shown = host_memory(limit for _, rows in groups for limit in rows["limit"].dropna().unique())
    for name, rows in groups:
        last = rows["limit"].iloc[-1]
        series = clean(
            Labels(name, str(rows["kind"].iloc[0])),
            rows["time_ns"].to_numpy("int64"),
            rows["bytes"].round().to_numpy(float),
            limit=None if pd.isna(last) or last == shown else float(last),
            restarts_ns=tuple(sorted(rows.groupby("id")["time_ns"].min().tolist()))[1:],
        )
        yield replace(series, notes=notes + series.notes)
