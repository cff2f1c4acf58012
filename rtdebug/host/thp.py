"""Settings of transparent huge pages, Documentation/admin-guide/mm/transhuge.rst."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rtdebug.host.text import parse_int, read_text

_SIZE_FOLDER = re.compile(r"hugepages-(\d+)kB")


@dataclass(frozen=True, slots=True)
class SizeSettings:
    """One size of multi-size THP (mTHP, since Linux 6.8): what is chosen for it alone."""

    enabled: str | None
    """always, inherit, madvise, never."""
    shmem_enabled: str | None
    """always, inherit, within_size, advise, never; since 6.11."""


@dataclass(frozen=True, slots=True)
class ThpSettings:
    """The host's settings; what this kernel does not have is None."""

    enabled: str | None
    """always, madvise, never."""
    defrag: str | None
    """always, defer, defer+madvise, madvise, never."""
    shmem_enabled: str | None
    """always, within_size, advise, never, deny, force: for /dev/shm's internal mount, memfd and SysV."""
    use_zero_page: bool | None
    pmd_size_bytes: int | None
    """What one huge page holds: 2 MiB on x86-64; 512 MiB on arm64 with 64 KiB pages."""
    khugepaged: Mapping[str, int]
    """Files of khugepaged/ that hold a number, by name."""
    sizes: Mapping[int, SizeSettings]
    """By size in bytes; empty before mTHP."""


def read_thp(sys: Path = Path("/sys")) -> ThpSettings | None:
    """The host's settings; None on a kernel without transparent huge pages."""
    folder = sys / "kernel/mm/transparent_hugepage"
    if read_text(folder / "enabled") is None:
        return None
    zero_page = parse_int(read_text(folder / "use_zero_page"))
    return ThpSettings(
        enabled=_choice(folder / "enabled"),
        defrag=_choice(folder / "defrag"),
        shmem_enabled=_choice(folder / "shmem_enabled"),
        use_zero_page=None if zero_page is None else zero_page != 0,
        pmd_size_bytes=parse_int(read_text(folder / "hpage_pmd_size")),
        khugepaged=_numbers(folder / "khugepaged"),
        sizes={
            int(match[1]) * 1024: SizeSettings(_choice(path / "enabled"), _choice(path / "shmem_enabled"))
            for path in sorted(folder.glob("hugepages-*kB"))
            if (match := _SIZE_FOLDER.fullmatch(path.name))
        },
    )


def parse_choice(text: str | None) -> str | None:
    """The bracketed word of `always [madvise] never`; None if none is chosen."""
    match = re.search(r"\[([^\]]+)\]", text or "")
    return match[1] if match else None


def _choice(path: Path) -> str | None:
    return parse_choice(read_text(path))


def _numbers(folder: Path) -> dict[str, int]:
    if not folder.is_dir():
        return {}
    found = ((path.name, parse_int(read_text(path))) for path in sorted(folder.iterdir()) if path.is_file())
    return {name: value for name, value in found if value is not None}
