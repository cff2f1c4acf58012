"""Patterns of accesses, made from a seed before anything is measured, and done at native speed.

numpy's loops are compiled: a call is a million accesses. benchmarks/madvise_run.py has the same loops in C beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rtdebug.madvise.plan import CACHE_LINE_BYTES, Case

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Index = NDArray[np.int64]

_WORD_BYTES = 8
_ZIPF_EXPONENT = 0.99
"""As in the YCSB benchmarks (Cooper et al., SoCC 2010)."""

Words = Any
"""A numpy array of int64 over the memory."""


def populate(words: Words, page_bytes: int, write: bool) -> None:
    """Touch each page once, in order."""
    pages = words[:: page_bytes // _WORD_BYTES]
    if write:
        pages[:] = 1
    else:
        pages.sum()


def accesses(case: Case, page_bytes: int, seed: int) -> Callable[[Words], None]:
    """What one run does to the memory of `case`; equal for equal patterns, sizes and seeds, whatever the memory."""
    write = case.mode == "write"
    if case.access in ("sequential", "stride"):
        step = (CACHE_LINE_BYTES if case.access == "sequential" else case.stride_bytes) // _WORD_BYTES
        return lambda words: _in_order(words[::step], write)
    index = make_index(case, page_bytes, seed)
    return _scattered_write(index) if write else _scattered_read(index)


def make_index(case: Case, page_bytes: int, seed: int) -> Index:
    """Indices of words, in the order of the accesses; for `random` and `zipf`."""
    import numpy as np

    words = (case.size_bytes or 0) // _WORD_BYTES
    source = np.random.default_rng(seed)
    if case.access == "random":
        return source.integers(0, words, case.access_count, dtype=np.int64)
    per_page = page_bytes // _WORD_BYTES
    pages = words // per_page
    weights = np.arange(1, pages + 1, dtype=np.float64) ** -_ZIPF_EXPONENT
    ranks = np.searchsorted(weights.cumsum() / weights.sum(), source.random(case.access_count), side="right")
    # the popular pages lie anywhere, as in a real heap
    page = source.permutation(pages)[np.minimum(ranks, pages - 1)]
    index: Index = page * per_page + source.integers(0, per_page, case.access_count, dtype=np.int64)
    return index


def _in_order(words: Words, write: bool) -> None:
    if write:
        words[:] = 2
    else:
        words.sum()


def _scattered_read(index: Index) -> Callable[[Words], None]:
    import numpy as np

    block = index[: 1 << 14]
    out = np.zeros(len(block), dtype=np.int64)

    def read(words: Words) -> None:
        # blockwise, so that what is read stays in the cache and costs no memory traffic of its own
        for start in range(0, len(index), len(out)):
            part = index[start : start + len(out)]
            np.take(words, part, out=out[: len(part)], mode="clip")

    return read


def _scattered_write(index: Index) -> Callable[[Words], None]:
    def write(words: Words) -> None:
        words[index] = 3

    return write
