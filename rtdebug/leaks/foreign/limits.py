"""Limits: the column that is one by its name or by what it holds, and what tools show where there is none."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rtdebug.leaks.foreign.columns import metric_of
from rtdebug.leaks.foreign.names import names_memory, words_in
from rtdebug.leaks.foreign.quantities import PERCENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rtdebug.leaks.foreign.columns import Scaled
    from rtdebug.leaks.foreign.groups import Group
    from rtdebug.leaks.series import Floats


def limit_of(column: str, limits: list[str]) -> str | None:
    """Return the limit that is named as the column is; without one the only one, unless it limits another thing."""
    words = {*words_in(metric_of(column)), "limit", "limits"}
    own = [limit for limit in limits if words.issuperset(words_in(metric_of(limit)))]
    of_memory = [limit for limit in limits if names_memory(metric_of(limit)) is not False]
    return own[0] if own else of_memory[0] if len(of_memory) == 1 else None


def limit_without_a_name(scaled: Mapping[str, Scaled], groups: list[Group]) -> str | None:
    """Return the last of the columns of a file without a header, if it is constant and no other is ever above it."""
    import numpy as np

    *others, last = scaled
    if not others or not re.fullmatch(r"column \d+", last) or PERCENT in {each.unit for each in scaled.values()}:
        return None
    limit = scaled[last].numbers
    constant = all(len(np.unique(limit[group.rows])) == 1 for group in groups)
    below = all(bool(np.all(np.nan_to_num(scaled[column].numbers) <= limit)) for column in others)
    return last if constant and below and np.nan_to_num(limit).min() > 0 else None


def last_limit(values: Floats) -> float | None:
    """Return the last that is known and set."""
    import numpy as np

    known = values[np.isfinite(values) & (values > 0)]
    return float(known[-1]) if len(known) else None


def host_memory(limits: Iterable[float | None]) -> float | None:
    """Return what is the memory of the host, of the limits of containers: it is shown for those that have none.

    So it is the largest one and that of several. The kernel keeps a part of the host's memory back, so it is no round
    number; limits that people set are.
    """
    shown = [limit for limit in limits if limit]
    largest = max(shown, default=0.0)
    rounding = 2e-4 * largest if largest < 4 << 30 else 0  # four digits are shown: 1500m is 1.465GiB
    is_round = any(abs(largest - round(largest / unit) * unit) <= rounding for unit in (50 << 20, 64 << 20, 10**8))
    return None if is_round or shown.count(largest) < 2 else largest
