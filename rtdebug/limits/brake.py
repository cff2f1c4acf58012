"""When to stop taking memory from a container: as soon as it, or the host, feels it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from rtdebug.host.memcg import MemoryState, parse_pressure, read_memory
from rtdebug.host.text import read_text

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STALL_SHARE = 0.05
"""Of the time, some task waits for memory: oomd acts at 5 to 60 %, Kubernetes' and Meta's guides begin at about 5."""
_REFAULT_SHARE = 0.01
"""Of its memory a second that comes back from disk right after it was taken: the working set is being cut."""
_REFAULT_LEAST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Reading:
    """What a container and its host say at one moment; all but the time are totals or gauges, None if not told."""

    time_ns: int
    usage_bytes: int | None
    stall_us: int | None
    """Time in which some task waited for memory: the cgroup's own (v2), else the whole host's."""
    stall_of_host: bool
    refaulted_bytes: int | None
    """Pages that came back soon after they had been taken (`workingset_refault_*`)."""
    ooms: int


def read_reading(path: Path, proc: Path = Path("/proc")) -> Reading | None:
    """The reading of a cgroup; None if it has vanished."""
    memory = read_memory(path)
    if memory is None:
        return None
    pressure = memory.pressure or parse_pressure(read_text(proc / "pressure/memory") or "")
    return Reading(
        time_ns=time.monotonic_ns(),
        usage_bytes=memory.usage_bytes,
        stall_us=pressure.some.total_us if pressure.some else None,
        stall_of_host=memory.pressure is None,
        refaulted_bytes=_refaulted_bytes(memory),
        ooms=memory.events.get("oom_kill", 0),
    )


def reason_to_stop(before: Reading, after: Reading) -> str | None:
    """Why to stop, in words; None: all is calm."""
    seconds = max((after.time_ns - before.time_ns) / 1e9, 1e-3)
    if after.ooms > before.ooms:
        return "a process of it was OOM-killed"
    if stalled(before, after):
        whose = "tasks of the host" if after.stall_of_host else "tasks of it"
        return f"{whose} waited for memory {_stalled_share(before, after):.0%} of the time"
    if before.refaulted_bytes is not None and after.refaulted_bytes is not None:
        per_second = (after.refaulted_bytes - before.refaulted_bytes) / seconds
        if per_second > max(_REFAULT_LEAST_BYTES, _REFAULT_SHARE * (before.usage_bytes or 0)):
            return f"it reads back {per_second / (1 << 20):.1f} MiB/s of what was taken"
    return None


def stalled(before: Reading, after: Reading) -> bool:
    """Whether tasks waited for memory for longer than is calm."""
    return _stalled_share(before, after) > _STALL_SHARE


def _stalled_share(before: Reading, after: Reading) -> float:
    if before.stall_us is None or after.stall_us is None:
        return 0.0
    return (after.stall_us - before.stall_us) / 1e6 / max((after.time_ns - before.time_ns) / 1e9, 1e-3)


def _refaulted_bytes(memory: MemoryState) -> int | None:
    prefix = "" if memory.version == 2 else "total_"
    known = [
        memory.stat[f"{prefix}{name}"]
        for name in ("workingset_refault_anon", "workingset_refault_file", "workingset_refault")
        if f"{prefix}{name}" in memory.stat
    ]
    return sum(known) * PAGE_BYTES if known else None
