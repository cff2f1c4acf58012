"""Why advice cannot act on this host, or has nothing to act on: said, so that nobody takes it for "no difference".

Sources: Documentation/admin-guide/mm/transhuge.rst, ksm.rst; man page madvise(2); mm/shmem.c
(`shmem_allowable_huge_orders`), mm/khugepaged.c (`madvise_collapse`: the `enabled` settings are not asked).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rtdebug.host.meminfo import read_meminfo
from rtdebug.host.mounts import mount_at, read_mountinfo
from rtdebug.host.text import parse_int, read_text
from rtdebug.host.thp import ThpSettings, read_thp

_KERNEL_SHMEM = frozenset({"memfd", "sysv", "shared-anon"})
"""On the kernel's own tmpfs mount, which shmem_enabled is for."""
_SHMEM = _KERNEL_SHMEM | {"shm"}
_ON_ADVICE_SHMEM = ("always", "within_size", "advise", "force")


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides whether advice can act."""

    thp: ThpSettings | None
    """None: a kernel without transparent huge pages."""
    thp_disabled: bool
    """The container's processes have prctl(PR_SET_THP_DISABLE)."""
    shm_huge: str | None
    """The `huge=` of the tmpfs at the container's /dev/shm; None: not given, which is `never`."""
    swap_bytes: int | None
    """Swap of the host in all."""
    ksm_runs: bool | None


def read_settings(
    pid: int, thp_disabled: bool, proc: Path = Path("/proc"), sys: Path = Path("/sys")
) -> Settings:
    """The settings for a container with the process `pid`."""
    mount = mount_at(read_mountinfo(pid, proc), "/dev/shm")
    ksm = parse_int((read_text(sys / "kernel/mm/ksm/run") or "").strip())
    return Settings(
        thp=read_thp(sys),
        thp_disabled=thp_disabled,
        shm_huge=mount.super_options.get("huge") if mount and mount.fstype == "tmpfs" else None,
        swap_bytes=read_meminfo(proc).get("SwapTotal"),
        ksm_runs=None if ksm is None else ksm == 1,
    )


def hindrance(memory: str, advice: str, settings: Settings) -> str | None:
    """What stands in the way of `advice` on this kind of memory; None: nothing that is known."""
    match advice:
        case "HUGEPAGE":
            return _no_huge_pages(settings) or _not_on_advice(memory, settings)
        case "COLLAPSE":
            denied = memory in _SHMEM and settings.thp is not None and settings.thp.shmem_enabled == "deny"
            return _no_huge_pages(settings) or ("transparent_hugepage/shmem_enabled is deny" if denied else None)
        case "NOHUGEPAGE":
            return _nothing_to_avoid(memory, settings)
        case "PAGEOUT" | "COLD" if memory != "file" and settings.swap_bytes == 0:
            return "no swap: the kernel has nowhere to put this memory"
        case "MERGEABLE" if not settings.ksm_runs:
            return "KSM does not run (/sys/kernel/mm/ksm/run)"
        case _:
            return None


def _no_huge_pages(settings: Settings) -> str | None:
    if settings.thp is None:
        return "this kernel has no transparent huge pages"
    if settings.thp_disabled:
        return "the container's processes have prctl(PR_SET_THP_DISABLE)"
    return None


def _not_on_advice(memory: str, settings: Settings) -> str | None:
    thp = settings.thp
    assert thp is not None
    if memory == "anon" and not anon_choices(thp) & {"always", "madvise"}:
        return f"transparent_hugepage/enabled is {thp.enabled}"
    if memory in _SHMEM and thp.shmem_enabled == "deny":
        return "transparent_hugepage/shmem_enabled is deny"
    if memory in _KERNEL_SHMEM and not shmem_choices(thp) & set(_ON_ADVICE_SHMEM):
        return f"transparent_hugepage/shmem_enabled is {thp.shmem_enabled}"
    if memory == "shm" and thp.shmem_enabled != "force" and settings.shm_huge in (None, "never"):
        return f"its /dev/shm is mounted with huge={settings.shm_huge or 'never'}"
    return None


def _nothing_to_avoid(memory: str, settings: Settings) -> str | None:
    """Without advice there is no huge page, so that forbidding it changes nothing."""
    if no := _no_huge_pages(settings):
        return no
    thp = settings.thp
    assert thp is not None
    if memory == "anon" and "always" not in anon_choices(thp):
        return f"transparent_hugepage/enabled is {thp.enabled}: without advice there are none to avoid"
    if memory in _KERNEL_SHMEM and not shmem_choices(thp) & {"always", "within_size", "force"}:
        return f"transparent_hugepage/shmem_enabled is {thp.shmem_enabled}: without advice there are none to avoid"
    return None


def anon_choices(thp: ThpSettings) -> set[str | None]:
    """What is in force for anonymous memory, over all sizes: `inherit` means the common setting."""
    sizes = [size.enabled for size in thp.sizes.values()] or ["inherit"]
    return {thp.enabled if choice == "inherit" else choice for choice in sizes}


def shmem_choices(thp: ThpSettings) -> set[str | None]:
    """The same for the kernel's own tmpfs mount."""
    sizes = [size.shmem_enabled for size in thp.sizes.values() if size.shmem_enabled] or ["inherit"]
    common = thp.shmem_enabled
    return {common if choice == "inherit" else choice for choice in sizes} | ({common} & {"force"})
