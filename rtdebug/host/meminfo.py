"""Memory of the whole host: /proc/meminfo, /proc/vmstat, /proc/buddyinfo.

Sources: proc(5), Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rtdebug.host.text import parse_int, parse_keyed, read_text


@dataclass(frozen=True, slots=True)
class BuddyZone:
    """One line of /proc/buddyinfo."""

    node: int
    zone: str
    free_blocks: tuple[int, ...]
    """How many free blocks of 2^order pages there are, by order from 0."""


def read_meminfo(proc: Path = Path("/proc")) -> dict[str, int]:
    """/proc/meminfo with the kernel's names, in bytes; HugePages_* are counts of pages. Empty if it cannot be read."""
    return parse_meminfo(read_text(proc / "meminfo") or "")


def parse_meminfo(text: str) -> dict[str, int]:
    """`Name:  123 kB` lines as bytes; a line without `kB` is a count and stays one. Others are left out."""
    figures: dict[str, int] = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        count = parse_int(words[0]) if words else None
        if colon and count is not None and words[1:] in ([], ["kB"]):
            figures[name.strip()] = count * 1024 if words[1:] else count
    return figures


def read_vmstat(proc: Path = Path("/proc")) -> dict[str, int]:
    """/proc/vmstat with the kernel's names: counters since boot, and gauges in pages (`nr_*`)."""
    return parse_keyed(read_text(proc / "vmstat") or "")


def read_buddyinfo(proc: Path = Path("/proc")) -> tuple[BuddyZone, ...]:
    """/proc/buddyinfo; empty if it cannot be read."""
    return parse_buddyinfo(read_text(proc / "buddyinfo") or "")


def parse_buddyinfo(text: str) -> tuple[BuddyZone, ...]:
    """`Node 0, zone   Normal  216  55 ...` lines; a line cut short or of another form is left out."""
    zones = (_parse_zone(line.replace(",", " ").split()) for line in text.splitlines())
    return tuple(zone for zone in zones if zone is not None)


def _parse_zone(words: list[str]) -> BuddyZone | None:
    match words:
        case ["Node", node, "zone", zone, *counts] if counts:
            numbers = [parse_int(count) for count in counts]
            known = tuple(number for number in numbers if number is not None)
            node_id = parse_int(node)
            if node_id is not None and len(known) == len(numbers):
                return BuddyZone(node_id, zone, known)
    return None


def available_bytes(meminfo: Mapping[str, int]) -> int | None:
    """What could be used without swapping: MemAvailable, since Linux 3.14."""
    return meminfo.get("MemAvailable")
