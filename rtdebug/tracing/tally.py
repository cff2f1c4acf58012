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
    single = np.isin(array["event"], [ids[name] for name in _ONE_BY_ONE if name in ids])
    keys, calls = _keys(array[~single], ids["mmap"], schema), array[~single]
    if not len(calls):
        return np.empty(0, schema.aggregate_record), array[single]
    words = keys.view(np.uint64).reshape(len(keys), -1)
    order = np.lexsort(words.T)
    words, keys = words[order], keys[order]
    starts = np.flatnonzero(np.r_[True, (words[1:] != words[:-1]).any(axis=1)])
    counts = np.zeros(len(starts), schema.aggregate_record)
    counts["key"] = keys[starts]
    counts["total"]["count"] = np.diff(np.r_[starts, len(keys)])
    counts["total"]["length_bytes"] = np.add.reduceat(calls["length_bytes"][order], starts)
    return counts, array[single]


def _keys(calls: Array, mmap_id: int, schema: Schema) -> Array:
    ret = calls["ret"]
    keys = np.zeros(len(calls), schema.structs["aggregate_key"])
    for name in ("pid", "event", "advice", "prot"):
        keys[name] = calls[name]
    keys["stack_id"] = np.maximum(calls["stack_id"], -1)  # why there is none makes no difference
    keys["error"] = np.where((ret < 0) & (ret >= -MAX_ERRNO), -ret, 0)
    keys["mapping"] = np.where(calls["event"] == mmap_id, calls["flags"] & 0xFFFF, 0)
    return keys
