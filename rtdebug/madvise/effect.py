"""What advice did, as smaps shows it: the range before and after, and what the difference means.

Sources: man page proc_pid_smaps(5), fs/proc/task_mmu.c (`show_smap_vma_flags`), mm/madvise.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rtdebug.host.maps import SmapsEntry
from rtdebug.madvise.advice import Advice

_READ_AHEAD_FLAGS = frozenset({"rr", "sr"})


@dataclass(frozen=True, slots=True)
class RangeState:
    """A range of a process's memory; None: this kernel does not say."""

    rss_bytes: int | None
    huge_bytes: int | None
    """Mapped by huge pages: AnonHugePages + ShmemPmdMapped + FilePmdMapped."""
    swap_bytes: int | None
    referenced_bytes: int | None
    """Accessed since the kernel last looked."""
    lazyfree_bytes: int | None
    vm_flags: tuple[str, ...] | None
    """Those that all of the range has."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Whether it took effect, and what is seen of that."""

    took: bool | None
    """None: smaps does not show it."""
    text: str


def range_state(entries: Sequence[SmapsEntry], start: int, end: int) -> RangeState | None:
    """The mappings that a range now consists of; None if it is not mapped any more.

    The kernel splits mappings and merges them as their flags change: one that reaches beyond the range counts whole.
    """
    within = [entry for entry in entries if entry.mapping.start < end and start < entry.mapping.end]
    if not within:
        return None
    flags = [entry.vm_flags for entry in within if entry.vm_flags is not None]
    common = None if len(flags) < len(within) else tuple(f for f in flags[0] if all(f in each for each in flags))
    return RangeState(
        rss_bytes=_total(entry.use.rss_bytes for entry in within),
        huge_bytes=_total(huge_bytes(entry) for entry in within),
        swap_bytes=_total(entry.use.swap_bytes for entry in within),
        referenced_bytes=_total(entry.use.referenced_bytes for entry in within),
        lazyfree_bytes=_total(entry.use.lazyfree_bytes for entry in within),
        vm_flags=common,
    )


def huge_bytes(entry: SmapsEntry) -> int | None:
    """What huge pages map of it; None if the kernel says nothing of them."""
    parts = (entry.use.anonhugepages_bytes, entry.use.shmempmdmapped_bytes, entry.use.filepmdmapped_bytes)
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def judge(advice: Advice, before: RangeState, after: RangeState) -> Effect:
    """What the advice did."""
    if advice.has_flag:
        return _judge_flags(advice, after)
    match advice.short_name:
        case "COLLAPSE":
            return _grew("huge pages", before.huge_bytes, after.huge_bytes)
        case "COLD":
            return _fell("referenced", before.referenced_bytes, after.referenced_bytes)
        case "FREE":
            return _grew("free for the kernel to take (LazyFree)", before.lazyfree_bytes, after.lazyfree_bytes)
        case "PAGEOUT" | "DONTNEED" | "DONTNEED_LOCKED" | "REMOVE":
            return _fell("resident", before.rss_bytes, after.rss_bytes)
    return Effect(None, "smaps does not show what it did")


def _judge_flags(advice: Advice, after: RangeState) -> Effect:
    if after.vm_flags is None:
        return Effect(None, "this kernel shows no VmFlags")
    flags = set(after.vm_flags)
    took = advice.sets_flag in flags if advice.sets_flag else advice.clears_flag not in flags
    if advice.name == "MADV_NORMAL":
        took = not flags & _READ_AHEAD_FLAGS
    return Effect(took, f"VmFlags: {' '.join(after.vm_flags)}")


def _grew(what: str, before: int | None, after: int | None) -> Effect:
    return _changed(what, before, after, 1)


def _fell(what: str, before: int | None, after: int | None) -> Effect:
    return _changed(what, before, after, -1)


def _changed(what: str, before: int | None, after: int | None, sign: int) -> Effect:
    if before is None or after is None:
        return Effect(None, f"this kernel does not show what is {what}")
    return Effect((after - before) * sign > 0, what)


def _total(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
