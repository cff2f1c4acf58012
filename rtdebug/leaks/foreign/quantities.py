"""Columns of text as numbers: sizes with units, and times. What cannot be read is NaN or 0, for the caller to count."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rtdebug.leaks.series import EARLIEST_NS, NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

    from rtdebug.leaks.series import Floats, Ints

BINARY = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50, "e": 2**60}
DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15, "e": 10**18}
PERCENT = "percent"
_VALUE = r"^\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([kKMGTPE]i?[bB]?|[kmgtp]i?b|[bB]|%|)\s*$"
_NAME_UNIT = re.compile(r"(?:^|[^a-z])(bytes?|[kmgtp]i?b|perc(?:ent)?|pct|%)(?:$|[^a-z])|(percent|%)", re.IGNORECASE)


def factor_of(unit: str) -> float:
    """Return how many bytes a unit is: `MiB`, `Mi`, `M` are 2**20, `MB` and `kB` are powers of 1000, as docker has it.

    1 for `B`, `bytes` and none.
    """
    small = unit.lower()
    if small in ("", "b", "byte", "bytes"):
        return 1
    powers = DECIMAL if small.endswith("b") and "i" not in small else BINARY
    return powers[small[0]]


def unit_in_name(name: str) -> str | None:
    """Return the unit that a column's name has: `percent`, or one for `factor_of`; None without one.

    `mem_mib`, `RSS (MB)`, `usage_bytes`, `mem_util_percent`.
    """
    match = _NAME_UNIT.search(re.sub(r"(?<=[a-z])(?=(?:[KMGTP]i?B|Perc)\b)", " ", name.replace("_", " ")))
    if not match:
        return None
    unit = (match[1] or match[2]).lower()
    return PERCENT if unit in ("percent", "perc", "pct", "%") else unit


def parse_values(text: pd.Series[str]) -> tuple[Floats, pd.Series[str]]:
    """Return numbers and their units (`""` without one, `%`, `MiB`, ...). NaN for what is no number with a unit."""
    import pandas as pd

    parts = text.astype(str).str.extract(_VALUE)
    numbers = pd.to_numeric(parts[0], errors="coerce").to_numpy(float)
    return numbers, parts[1].fillna("")


NO_DATES = "times without a date (or a year): only how far they are apart is known"
RELATIVE = "times count from a beginning that the file does not say: only how far they are apart is known"
NO_TIMES = "no times in the file: dates mean nothing, only --interval counts"
BEGIN_NS = 1_000_000_000 * NS_PER_S
"""2001-09-09: where series without dates begin. Only differences matter."""
_SERIAL_1970 = 25_569
_DAY_NS = 86_400 * NS_PER_S
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?(?: ?[AaPp][Mm])?"
_SYSLOG = r"[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)?"
_STEP = re.compile(r"(?:^|[^a-z])(ms|millis\w*|mins?|minutes?|h|hrs?|hours?|d|days?)(?:$|[^a-z])", re.IGNORECASE)


def parse_times(text: pd.Series[str], name: str = "") -> tuple[Ints, str | None]:
    """Return Unix time in ns, 0 where it is not readable, and what is wrong with all of them.

    Of dates in the forms that tools write; of seconds, ms, us or ns since 1970 by their size. A date without a zone is
    taken as UTC; so is one whose zone has a name only, which is not unique. Times of a day, and numbers too small to be
    of this century, count from BEGIN_NS; numbers in the unit that the column's `name` has, or seconds.
    """
    import numpy as np
    import pandas as pd

    text = text.astype(str).str.strip(" \t[](){}\"'").str.replace(r"(:\d\d),(\d)", r"\1.\2", regex=True)
    numbers = pd.to_numeric(text, errors="coerce").to_numpy(float)
    known = np.isfinite(numbers)
    if len(numbers) and np.count_nonzero(known) >= len(numbers) / 2:
        if (text.str.fullmatch(r"(?:19|20)\d{12}") | ~known).all():
            return _unix_ns(pd.to_datetime(text, utc=True, errors="coerce", format="%Y%m%d%H%M%S")), None
        if _are_serial(numbers[known]):
            return np.where(known, np.round((numbers - _SERIAL_1970) * 86_400e3) * 1e6, 0.0).astype(np.int64), None
        numbers = np.where(known, numbers, 0.0)
        if numbers.min() >= 0 and numbers.max() < EARLIEST_NS / NS_PER_S:
            return np.where(known, BEGIN_NS + (numbers * _step_s(name) * NS_PER_S), 0).astype(np.int64), RELATIVE
        middle = float(np.median(np.abs(numbers[known])))
        per_unit = 1e9 if middle < 1e11 else 1e6 if middle < 1e14 else 1e3 if middle < 1e17 else 1.0
        ns = numbers * per_unit
        within = np.abs(ns) < 9e18
        return np.where(within, np.round(np.where(within, ns, 0.0)), 0.0).astype(np.int64), None
    if text.str.fullmatch(_CLOCK).mean() > 0.5:
        return _unwrapped(_dates("2001-09-09 " + text.where(text.str.fullmatch(_CLOCK))), _DAY_NS), NO_DATES
    if text.str.fullmatch(_SYSLOG).mean() > 0.5:
        return _unwrapped(_dates("2001 " + text.where(text.str.fullmatch(_SYSLOG))), 365 * _DAY_NS), NO_DATES
    return _dates(text), None


def _are_serial(days: Floats) -> bool:
    """Whether numbers are dates of a spreadsheet: days since 1899, of this century, with times of day."""
    import numpy as np

    if float(days.min()) < 36_526 or float(days.max()) >= 60_000:
        return False
    return bool((days % 1 > 0).mean() > 0.5 and float(np.median(np.abs(np.diff(days, append=days[-1])))) < 1)


def _dates(text: pd.Series[str]) -> Ints:
    import warnings

    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zones' names and of days before months
        moments = pd.to_datetime(text, utc=True, errors="coerce", format="ISO8601")
        if moments.isna().mean() > 0.5:
            plain = text.str.replace(r"^(\d+/\w+/\d+):", r"\1 ", regex=True)
            plain = plain.str.replace(r"(?<=[+-]\d{4}) UTC$| \b(?!AM|PM|UTC|GMT)[A-Z]{3,5}\b", "", regex=True)
            first = pd.to_numeric(plain.str.extract(r"^(\d{1,2})[/.-]\d{1,2}[/.-]\d")[0], errors="coerce")
            day_first = bool((first > 12).any() or plain.str.match(r"\d{1,2}\.\d").mean() > 0.5)
            moments = pd.to_datetime(plain, utc=True, errors="coerce", format="mixed", dayfirst=day_first)
    return _unix_ns(moments)


def _unix_ns(moments: pd.Series[pd.Timestamp]) -> Ints:
    import numpy as np

    ns = moments.dt.tz_localize(None).to_numpy().astype("datetime64[ns]").astype(np.int64)
    return np.where(moments.isna().to_numpy(), 0, ns)


def _unwrapped(times_ns: Ints, round_ns: int) -> Ints:
    """Add a day (or a year) for each time that the clock fell back by more than half of it."""
    import numpy as np

    known = times_ns != 0
    falls = np.diff(times_ns[known], prepend=times_ns[known][:1]) < -round_ns / 2
    unwrapped = times_ns.copy()
    unwrapped[known] += np.cumsum(falls) * round_ns
    return unwrapped


def _step_s(name: str) -> float:
    """Seconds of one step of the times of a column: `elapsed_ms`, `Time (min)`, `hours`."""
    match = _STEP.search(name.replace("_", " "))
    if match is None:
        return 1.0
    unit = match[1].lower()
    return 0.001 if unit.startswith(("ms", "milli")) else {"m": 60.0, "h": 3600.0, "d": 86_400.0}[unit[0]]
