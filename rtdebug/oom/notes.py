"""Notes: what is easily misread in the figures of one OOM kill, told only where it matters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rtdebug.host.memcg import file_lists_bytes
from rtdebug.oom.facts import Facts
from rtdebug.tracing.line import Value

Evidence = dict[str, Value]
"""Figures by names that end in their unit."""

_MATTERS = 0.1
"""Less of the usage changes no conclusion."""
_BATCH_BYTES = 64 * 65536
"""A charge may go beyond a limit by one batch for each processor (MEMCG_CHARGE_BATCH), of pages up to 64 KiB."""


@dataclass(frozen=True, slots=True)
class Note:
    """One trap."""

    kind: str
    text: str
    """With `{names}` of evidence."""
    evidence: Evidence


def notes_of(facts: Facts) -> tuple[Note, ...]:
    """All that apply, in the order in which a reader meets the figures."""
    return tuple(note for find in _NOTES if (note := find(facts)) is not None)


def _tmpfs_is_cache(facts: Facts) -> Note | None:
    usage, shmem = facts.usage_bytes, facts.kinds.get("shmem")
    if not usage or shmem is None or shmem < _MATTERS * usage:
        return None
    stat = facts.stat or {}
    if "anon" in stat:
        text = (
            "`file` in memory.stat holds the {shmem_bytes} of tmpfs too (also counted as `shmem`): "
            "it is no page cache and cannot be dropped."
        )
    else:
        text = (
            "`cache` holds the {shmem_bytes} of tmpfs too: usage minus cache, as docker stats once showed it, "
            "hides memory that the limit counts and that cannot be dropped."
        )
    return Note("tmpfs_is_cache", text, {"shmem_bytes": shmem})


def _cache_may_be_tmpfs(facts: Facts) -> Note | None:
    file, usage = facts.kinds.get("file"), facts.usage_bytes
    if facts.parts is None or facts.parts.shmem_bytes is not None or not usage or not file:
        return None
    if file < _MATTERS * usage or file_lists_bytes(facts.stat or {}) is not None:
        return None
    text = "This kernel's memory.stat does not tell tmpfs from page cache: the {file_bytes} of `cache` may be either."
    return Note("cache_may_be_tmpfs", text, {"file_bytes": file})


def _limit_lowered(facts: Facts) -> Note | None:
    usage, limit = facts.usage_bytes, facts.limit_bytes
    if usage is None or limit is None or usage - limit <= max(_BATCH_BYTES, limit // 100):
        return None
    text = "The usage ({usage_bytes}) is above the limit ({limit_bytes}): the limit was lowered while it was in use."
    return Note("limit_lowered", text, {"usage_bytes": usage, "limit_bytes": limit})


def _swap_limit(facts: Facts) -> Note | None:
    if facts.counter != "memory+swap":
        return None
    return Note("memory_and_swap", "The limit of memory and swap together was hit, not that of memory.", {})


def _request(facts: Facts) -> Note | None:
    usage, limit, order = facts.usage_bytes, facts.limit_bytes, facts.order
    if usage is None or limit is None or not order or order < 1 or order > 20 or facts.scope != "memcg":
        return None
    request = (facts.page_size_bytes or 4096) << order
    if not 0 < limit - usage < request:
        return None
    text = "The limit was not full: {headroom_bytes} were left, and {request_bytes} asked for at once."
    return Note("larger_request", text, {"headroom_bytes": limit - usage, "request_bytes": request})


def _charged_elsewhere(facts: Facts) -> Note | None:
    held, usage = sum(facts.victim_kinds.get(kind, 0) for kind in ("anon", "shmem", "file")), facts.usage_bytes
    if facts.scope != "memcg" or not usage or held <= 1.5 * usage or facts.counter == "memory+swap":
        return None
    text = (
        "The victim's RSS ({rss_bytes}) is more than the limited cgroup's usage ({usage_bytes}): memory stays "
        "charged to the cgroup that first touched it."
    )
    return Note("charged_elsewhere", text, {"rss_bytes": held, "usage_bytes": usage})


def _swapped_out(facts: Facts) -> Note | None:
    kinds = facts.victim_kinds
    resident, swap = sum(size for kind, size in kinds.items() if kind != "swap"), kinds.get("swap", 0)
    if not swap or swap < resident:
        return None
    text = "Most of the victim was in swap ({swap_bytes}, and {rss_bytes} resident): its RSS understates it."
    return Note("swapped_out", text, {"swap_bytes": swap, "rss_bytes": resident})


def _zswap(facts: Facts) -> Note | None:
    zswap, usage = (facts.stat or {}).get("zswap", 0), facts.usage_bytes
    if not zswap or not usage or zswap < _MATTERS * usage:
        return None
    return Note("zswap", "{zswap_bytes} of the usage is memory compressed by zswap.", {"zswap_bytes": zswap})


_NOTES: tuple[Callable[[Facts], Note | None], ...] = (
    _swap_limit,
    _request,
    _limit_lowered,
    _tmpfs_is_cache,
    _cache_may_be_tmpfs,
    _zswap,
    _swapped_out,
    _charged_elsewhere,
)
