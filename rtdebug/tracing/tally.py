"""Add up calls in bulk, for a summary of millions of them without a line for each."""

from __future__ import annotations

import numpy as np

from rtdebug.tracing.fields import MAX_ERRNO
from rtdebug.tracing.schema import Array, Schema

_ONE_BY_ONE = ("mremap", "brk")
"""What these add to the mapped bytes is lost in a sum: a summary needs each of them. They are rare."""


def tally(array: Array, schema: Schema) -> tuple[Array, Array]:
    """Add up records of the ring `calls` as the kernel does it when it aggregates, each stack apart.

    Returns (counts of dtype `Schema.aggregate_record`, the records that must be looked at one by one).
    """
    ids = schema.event_ids
    single = np.zeros(len(array), bool)
    for name in _ONE_BY_ONE:
        if name in ids:
            single |= array["event"] == ids[name]
    calls = array[~single] if single.any() else array
    if not len(calls):
        return np.empty(0, schema.aggregate_record), array[single]
    return _merged(_runs(calls, ids["mmap"], schema)), array[single]


def _runs(calls: Array, mmap_id: int, schema: Schema) -> Array:
    """Add up calls of one key that follow one another: of a storm there are few runs, and no sorting of millions."""
    ret = calls["ret"]
    columns = {name: calls[name] for name in ("pid", "event", "advice", "prot", "stack_id")}
    columns["error"] = np.where((ret < 0) & (ret >= -MAX_ERRNO), -ret, 0)
    columns["mapping"] = np.where(columns["event"] == mmap_id, calls["flags"] & 0xFFFF, 0)
    is_first = np.zeros(len(calls), bool)
    is_first[0] = True
    for column in columns.values():
        is_first[1:] |= column[1:] != column[:-1]
    starts = np.flatnonzero(is_first)
    runs = np.zeros(len(starts), schema.aggregate_record)
    for name, column in columns.items():
        runs["key"][name] = column[starts]
    runs["total"]["count"] = np.diff(starts, append=len(calls))
    runs["total"]["length_bytes"] = np.add.reduceat(calls["length_bytes"], starts)
    return runs


def _merged(runs: Array) -> Array:
    """Add up what has one key, in the order of the keys."""
    words = np.ascontiguousarray(runs["key"]).view(np.uint64).reshape(len(runs), -1)
    order = np.lexsort(words.T)
    words = words[order]
    starts = np.flatnonzero(np.r_[True, (words[1:] != words[:-1]).any(axis=1)])
    merged = runs[order[starts]]
    for name in ("count", "length_bytes"):
        merged["total"][name] = np.add.reduceat(runs["total"][name][order], starts)
    return merged
