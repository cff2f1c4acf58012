"""May a mapping have huge pages, and if not, why not?

Sources: Documentation/admin-guide/mm/transhuge.rst, mm/huge_memory.c (`__thp_vma_allowable_orders`), mm/shmem.c
(`shmem_allowable_huge_orders`), mm/khugepaged.c (`madvise_collapse` asks for no setting of the host but `deny`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rtdebug.host.maps import MappingKind, SmapsEntry
from rtdebug.host.thp import ThpSettings
from rtdebug.madvise.advice import Memory

_SPECIAL_FLAGS = frozenset({"io", "pf", "mm"})  # VM_IO, VM_PFNMAP, VM_MIXEDMAP
_BY_COLLAPSE = ": by COLLAPSE only"
_IN_USE = ("always", "inherit", "madvise", "within_size", "advise")


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Whether huge pages of the large size are possible."""

    faults: bool
    """New pages of it may be huge."""
    collapse: bool
    """MADV_COLLAPSE may make huge pages of what is there."""
    advisable: bool
    """MADV_HUGEPAGE is what it lacks."""
    why: str
    """In words for people, with the setting that decides."""


def aligned_bytes(start: int, end: int, page_bytes: int) -> int:
    """The part of a range that whole aligned pages of this size can cover."""
    return max(0, end // page_bytes * page_bytes - -(-start // page_bytes) * page_bytes)


def eligibility(
    entry: SmapsEntry, memory: Memory | None, thp: ThpSettings | None, disabled: bool, collapses: bool = True
) -> Eligibility:
    """Decide it. `disabled`: the process has prctl(PR_SET_THP_DISABLE). `collapses`: there is MADV_COLLAPSE."""
    found = _with_collapse(entry, memory, thp, disabled)
    return found if collapses else replace(found, collapse=False, why=found.why.removesuffix(_BY_COLLAPSE))


def _with_collapse(
    entry: SmapsEntry, memory: Memory | None, thp: ThpSettings | None, disabled: bool
) -> Eligibility:
    flags = entry.vm_flags or ()
    if entry.is_hugetlb:
        return _no("hugetlb: its pages are huge already")
    if thp is None or not thp.pmd_size_bytes:
        return _no("this kernel has no transparent huge pages")
    if memory is None or _SPECIAL_FLAGS & set(flags) or entry.mapping.kind is MappingKind.STACK:
        return _no("a device's or the kernel's" if memory is not Memory.ANON else "a stack")
    if memory is Memory.FILE:
        return _no("a file of a disk")
    if disabled:
        return _no("the process has PR_SET_THP_DISABLE")
    if not aligned_bytes(entry.mapping.start, entry.mapping.end, thp.pmd_size_bytes):
        return _no(f"no aligned {thp.pmd_size_bytes >> 20} MiB in it{_smaller_sizes(thp)}")
    if "nh" in flags:
        return _no("MADV_NOHUGEPAGE is set, as on the stacks of threads")
    return _shmem(entry, thp) if memory is Memory.SHMEM else _anon("hg" in flags, thp)


def _anon(advised: bool, thp: ThpSettings) -> Eligibility:
    own = thp.sizes.get(thp.pmd_size_bytes or 0)
    setting = own.enabled if own and own.enabled not in (None, "inherit") else thp.enabled
    match setting:
        case "always":
            return Eligibility(True, True, False, "enabled=always")
        case "madvise" if advised:
            return Eligibility(True, True, False, "enabled=madvise, and MADV_HUGEPAGE is set")
        case "madvise":
            return Eligibility(False, True, True, "enabled=madvise, and MADV_HUGEPAGE is not set")
    return Eligibility(False, True, False, f"enabled={setting}{_BY_COLLAPSE}")


def _shmem(entry: SmapsEntry, thp: ThpSettings) -> Eligibility:
    """The kernel's own answer where there is one: a tmpfs has a huge= of its own."""
    setting = thp.shmem_enabled
    where = "huge= of its tmpfs" if entry.mapping.kind is MappingKind.SHM else f"shmem_enabled={setting}"
    if setting == "deny":
        return _no("shmem_enabled=deny")
    if entry.thp_eligible:
        return Eligibility(True, True, False, where)
    advisable = setting == "advise" and "hg" not in (entry.vm_flags or ())
    return Eligibility(False, True, advisable, f"{where}{_BY_COLLAPSE}")


def _smaller_sizes(thp: ThpSettings) -> str:
    sizes = [
        f"{size >> 10} KiB"
        for size, settings in sorted(thp.sizes.items())
        if size != thp.pmd_size_bytes and settings.enabled in _IN_USE and _inherits(settings.enabled, thp)
    ]
    return f"; smaller sizes are on: {', '.join(sizes)}" if sizes else ""


def _inherits(enabled: str | None, thp: ThpSettings) -> bool:
    return enabled != "inherit" or thp.enabled in ("always", "madvise")


def _no(why: str) -> Eligibility:
    return Eligibility(False, False, False, why)
