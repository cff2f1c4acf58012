"""Logs of `docker stats`: the table as it is printed again and again, or JSON lines of `--format json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

from rtdebug.errors import UsageProblem
from rtdebug.leaks.csv import BEGIN_NS, NO_TIMES
from rtdebug.leaks.foreign import Hints
from rtdebug.leaks.quantities import factor_of, parse_times
from rtdebug.leaks.series import NS_PER_S, Labels, Series, clean

_HEADER = re.compile(r"^(.*?)CONTAINER(?: ID)?\s.*MEM USAGE", re.MULTILINE)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TIME = re.compile(r"^\W*(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|\d{10}(?:\.\d+)?)\b\W*")
_USAGE = re.compile(r"([\d.]+)\s*([KMGTPk]?i?B)\s*/\s*([\d.]+)\s*([KMGTPk]?i?B)")
_Sample = tuple[str, float, float, str | None, int]
"""Name, bytes, limit, time as written, number of the round."""


def is_table(head: str) -> bool:
    """Whether the text begins like the table."""
    return bool(_HEADER.search(_ESCAPES.sub("", head)))


def is_json_lines(head: str) -> bool:
    """Whether the text is of `docker stats --format json`."""
    return '"MemUsage"' in head.split("\n", 3)[0]


def parse(text: str, name: str, hints: Hints) -> list[Series]:
    """Parse a log. Raises UsageProblem when it has no times and `hints` have no interval."""
    lines = _ESCAPES.sub("", text).splitlines()
    samples = list(_json_samples(lines) if is_json_lines(text) else _table_samples(lines))
    if not samples:
        raise UsageProblem(f"{name}: no line of `docker stats` that is whole", "log it with --no-stream in a loop")
    if any(time is None for _, _, _, time, _ in samples) and hints.interval_s is None:
        raise UsageProblem(
            f"{name}: `docker stats` prints no times", "say how far its rounds are apart: --interval 10s"
        )
    return list(_series(samples, hints))


def _table_samples(lines: list[str]) -> Iterator[_Sample]:
    number, moment = 0, None
    for line in lines:
        stamp = _TIME.match(line)
        if stamp:
            moment, line = stamp[1], line[stamp.end() :]
        if _HEADER.match(line):
            number += 1
            continue
        words, usage = line.split(), _USAGE.search(line)
        if usage and len(words) > 3:
            # an id and a name, or with old versions the name alone
            named = words[1] if not re.fullmatch(r"[\d.]+%", words[1]) and words[1] != "--" else words[0]
            used, limit = float(usage[1]) * factor_of(usage[2]), float(usage[3]) * factor_of(usage[4])
            yield named, used, limit, moment, number


def _json_samples(lines: list[str]) -> Iterator[_Sample]:
    rounds: dict[str, int] = {}
    for line in lines:
        stamp = _TIME.match(line)
        try:
            fields = json.loads(line[stamp.end() - 0 :] if stamp and "{" not in stamp[0] else line[line.index("{") :])
            usage = _USAGE.search(fields["MemUsage"])
            named = str(fields["Name"])
        except (ValueError, KeyError, TypeError):
            continue
        if usage:
            rounds[named] = rounds.get(named, -1) + 1
            used, limit = float(usage[1]) * factor_of(usage[2]), float(usage[3]) * factor_of(usage[4])
            yield named, used, limit, stamp[1] if stamp else None, rounds[named]


def _series(samples: list[_Sample], hints: Hints) -> Iterator[Series]:
    import pandas as pd

    frame = pd.DataFrame(samples, columns=["name", "bytes", "limit", "time", "round"])
    notes: tuple[str, ...] = ()
    if frame["time"].notna().all():
        frame["time_ns"] = parse_times(frame["time"])
    else:
        assert hints.interval_s is not None
        notes = (NO_TIMES,)
        frame["time_ns"] = BEGIN_NS + (frame["round"] * hints.interval_s * NS_PER_S).astype("int64")
    names = frame["name"].nunique()
    is_host = names > 1 and frame["limit"].nunique() == 1
    for name, rows in frame.groupby("name", sort=False):
        limit = None if is_host else float(rows["limit"].iloc[-1])
        series = clean(
            Labels(str(name)), rows["time_ns"].to_numpy("int64"), rows["bytes"].round().to_numpy(float), limit=limit
        )
        yield replace(series, notes=notes + series.notes)
