"""Capabilities of this process, from /proc/self/status (man pages capabilities(7), proc_pid_status(5))."""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path


class Capability(IntEnum):
    """Those that rtdebug asks for, by their number in include/uapi/linux/capability.h."""

    CAP_SYS_PTRACE = 19
    CAP_SYS_ADMIN = 21
    CAP_SYS_RESOURCE = 24
    CAP_SYSLOG = 34
    CAP_PERFMON = 38  # since Linux 5.8, as CAP_BPF; both are part of CAP_SYS_ADMIN
    CAP_BPF = 39


_PART_OF_SYS_ADMIN = frozenset({Capability.CAP_PERFMON, Capability.CAP_BPF, Capability.CAP_SYSLOG})


def parse_effective(status: str) -> frozenset[Capability] | None:
    """What the line CapEff of a status file allows, CAP_SYS_ADMIN standing for its parts; None without it."""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    if not match:
        return None
    mask = int(match[1], 16)
    held = frozenset(capability for capability in Capability if mask >> capability & 1)
    return held | _PART_OF_SYS_ADMIN if Capability.CAP_SYS_ADMIN in held else held


def read_effective(proc: Path = Path("/proc")) -> frozenset[Capability] | None:
    """Effective capabilities of this process; None if /proc does not say. In its own user namespace only."""
    try:
        return parse_effective((proc / "self/status").read_text(errors="replace"))
    except OSError:
        return None
