"""Columns of text as numbers: sizes with units, and times. What cannot be read is NaN or 0, for the caller to count."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from rtdebug.leaks.series import Floats, Ints

BINARY = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50, "e": 2**60}
DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15, "e": 10**18}
PERCENT = "percent"
_VALUE = r"^\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([kKMGTPE]i?[bB]?|[bB]|%|)\s*$"
_NAME_UNIT = re.compile(r"(?:^|[^a-z])(bytes?|[kmgtp]i?b|percent|pct|%)(?:$|[^a-z])|(percent|%)", re.IGNORECASE)


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
    match = _NAME_UNIT.search(name.replace("_", " "))
    if not match:
        return None
    unit = (match[1] or match[2]).lower()
    return PERCENT if unit in ("percent", "pct", "%") else unit


def parse_values(text: pd.Series[str]) -> tuple[Floats, pd.Series[str]]:
    """Return numbers and their units (`""` without one, `%`, `MiB`, ...). NaN for what is no number with a unit."""
    import pandas as pd

    parts = text.astype(str).str.extract(_VALUE)
    numbers = pd.to_numeric(parts[0], errors="coerce").to_numpy(float)
    return numbers, parts[1].fillna("")


def parse_times(text: pd.Series[str]) -> Ints:
    """Return Unix time in ns: of ISO 8601, or of seconds, ms, us or ns since 1970 by their size. 0: not readable.

    A time without a zone is taken as UTC.
    """
    import numpy as np
    import pandas as pd

    numbers = pd.to_numeric(text, errors="coerce").to_numpy(float)
    known = np.isfinite(numbers)
    if len(numbers) and np.count_nonzero(known) >= len(numbers) / 2:
        middle = float(np.median(np.abs(numbers[known])))
        per_unit = 1e9 if middle < 1e11 else 1e6 if middle < 1e14 else 1e3 if middle < 1e17 else 1.0
        ns = np.where(known, numbers, 0.0) * per_unit
        within = np.abs(ns) < 9e18
        return np.where(within, np.round(np.where(within, ns, 0.0)), 0.0).astype(np.int64)
    moments = pd.to_datetime(text, utc=True, errors="coerce", format="ISO8601")
    if moments.isna().mean() > 0.5:
        moments = pd.to_datetime(text, utc=True, errors="coerce", format="mixed")
    missing = moments.isna().to_numpy()
    ns_of = moments.dt.tz_localize(None).to_numpy().astype("datetime64[ns]").astype(np.int64)
    return np.where(missing, 0, ns_of)
