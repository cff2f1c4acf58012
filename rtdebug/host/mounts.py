"""/proc/PID/mountinfo: which file system is mounted where, and which part of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rtdebug.host.text import read_text

_OCTAL = re.compile(r"\\([0-7]{3})")
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo, man page proc_pid_mountinfo(5)."""

    mount_id: int
    device: str
    """`major:minor`: equal for two mounts of one file system."""
    root: str
    """The folder of the file system that is mounted; a cgroup's is relative to the reader's namespace."""
    mount_point: str
    """Relative to the root of the process that the file belongs to."""
    fstype: str
    source: str
    options: Mapping[str, str | None]
    """Of this mount: `{"rw": None, "nosuid": None}`."""
    super_options: Mapping[str, str | None]
    """Of the file system: `{"rw": None, "size": "65536k"}`."""


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """The mounts in the kernel's order (a later one may cover an earlier one), without lines cut short."""
    mounts = (_parse_line(line) for line in text.split("\n"))
    return tuple(mount for mount in mounts if mount is not None)


def read_mountinfo(pid: int | str = "self", proc: Path = Path("/proc")) -> tuple[Mount, ...]:
    """Mounts that `pid` sees; none if it has exited."""
    return parse_mountinfo(read_text(proc / str(pid) / "mountinfo") or "")


def mount_at(mounts: Iterable[Mount], mount_point: str) -> Mount | None:
    """What is seen at `mount_point`: the last mount there."""
    found = None
    for mount in mounts:
        if mount.mount_point == mount_point:
            found = mount
    return found


def parse_size(text: str) -> int | None:
    """Bytes of a tmpfs `size=` option: a number with k, m, g or t behind it (man page tmpfs(5)).

    None for a share of the RAM (`50%`), which only the kernel can turn into bytes.
    """
    match = re.fullmatch(r"(\d+)([kmgt]?)", text.strip().lower())
    return int(match[1]) * _SIZE_UNITS[match[2]] if match else None


def tmpfs_size_bytes(mount: Mount) -> int | None:
    """The `size=` of a tmpfs; None if it is no tmpfs, or has the default size (half of the RAM)."""
    size = mount.super_options.get("size")
    return parse_size(size) if mount.fstype == "tmpfs" and size else None


def _parse_line(line: str) -> Mount | None:
    before, separator, after = line.partition(" - ")
    fields, rest = before.split(" "), after.split(" ")
    if not separator or len(fields) < 6 or len(rest) < 3 or not fields[0].isdecimal():
        return None
    return Mount(
        mount_id=int(fields[0]),
        device=fields[2],
        root=_unescape(fields[3]),
        mount_point=_unescape(fields[4]),
        fstype=rest[0],
        source=_unescape(rest[1]),
        options=_parse_options(fields[5]),
        super_options=_parse_options(rest[2]),
    )


def _parse_options(text: str) -> dict[str, str | None]:
    pairs = (option.partition("=") for option in text.split(","))
    return {name: _unescape(value) if separator else None for name, separator, value in pairs}


def _unescape(text: str) -> str:
    r"""fs/proc_namespace.c writes space, tab, newline and backslash as \040, \011, \012, \134."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text) if "\\" in text else text
