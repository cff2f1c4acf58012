"""Which rows of a table are of one container, and where it was restarted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from rtdebug.leaks.foreign.frame import all_cells
from rtdebug.leaks.foreign.names import words_in

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

_ID = r"[0-9a-f]{12}|[0-9a-f]{64}"
_WHO = re.compile(
    r"names?|containers?|pod|image|process|comm|command|service|id|instance|host|node|namespace|app", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one container."""

    name: str
    rows: NDArray[np.int64]
    lives: NDArray[np.int64]
    """The first row of each of its ids but the first: it was restarted."""


def group_rows(frame: pd.DataFrame, texts: list[str], time_column: str | None) -> list[Group]:
    """Rows by what the columns of text say; all of them without one.

    Columns that say who it is suffice, unless they leave several rows to a time: `web,rss,7` and `web,cache,8`.
    """
    import numpy as np

    ids = [column for column in texts if "id" in words_in(column) or all_cells(frame[column].str.strip(), _ID)]
    others = [column for column in texts if column not in ids]
    who = [column for column in others if any(map(_WHO.fullmatch, words_in(column)))]
    if who and who != others and time_column and frame.duplicated([time_column, *who, *ids]).mean() > 0.2:
        who = others
    names = who or [column for column in others if frame[column].nunique() < max(2, len(frame))] or ids
    none = np.zeros(0, np.int64)
    if not names:
        return [Group("", np.arange(len(frame)), none)]
    found = []
    named, marked = frame[names].fillna("-"), frame[ids]
    for rows in _alike(named):
        name = " ".join(named.iloc[rows[0]])
        lives = [rows[part] for part in _alike(marked.iloc[rows])] if ids and names is not ids else [rows]
        if all(before[-1] < after[0] for before, after in pairwise(lives)):
            found.append(Group(name, rows, np.array([life[0] for life in lives[1:]], np.int64)))
        else:  # several at a time: only their ids tell them apart
            found += [Group(f"{name} {marked.iloc[life[0], 0]}", life, none) for life in lives]
    return found


def _alike(frame: pd.DataFrame) -> list[NDArray[np.int64]]:
    """Give the rows that are alike, in the order of the first of them."""
    import numpy as np

    code = frame.fillna("-").groupby(list(frame.columns), sort=False).ngroup().to_numpy()
    order = np.argsort(code, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(code[order])) + 1)
