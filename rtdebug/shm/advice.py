"""What size to give a tmpfs, by what was seen of it: a figure, and the reasoning that a person can follow."""

from __future__ import annotations

from dataclasses import dataclass

from rtdebug.shm.limits import LimitKind
from rtdebug.shm.mounts import TmpfsMount
from rtdebug.shm.volumes import VolumeKind

MIB = 1 << 20
GIB = 1 << 30
HEADROOM = 1.5
"""Above a peak that met no limit: a watch sees some minutes of a job, and its peak once a second."""
HEADROOM_FULL = 2.0
"""Above what was asked for when it was full: a program that fails does not show all that it would have used."""


@dataclass(frozen=True, slots=True)
class MountPeak:
    """One tmpfs while it was watched."""

    mount: TmpfsMount
    """As last seen."""
    peak_bytes: int | None
    """The most that was in use, at a look or at a failure. None: not known."""
    demand_bytes: int | None = None
    """The most that was in use together with a request that failed; None: none failed."""
    times_full: int = 0
    """How often a request or a page found no room, as a trace saw it."""
    orphan_bytes: int = 0
    """What objects take that nobody uses any more, as last seen."""

    @property
    def was_full(self) -> bool:
        """Whether a trace saw a failure, or a look found it full."""
        full = self.mount.size_bytes is not None and (self.peak_bytes or 0) >= self.mount.size_bytes
        return full or self.times_full > 0


@dataclass(frozen=True, slots=True)
class Advice:
    """A size for one tmpfs."""

    path: str
    size_bytes: int
    enough: bool
    """The size it has is this or more, and nothing failed."""
    reasons: tuple[str, ...]
    change: tuple[str, ...]
    """How to set it; empty if it is enough."""


def advise(peak: MountPeak) -> Advice | None:
    """The size to give a tmpfs; None when it cannot be written to, or nothing is known of its use."""
    mount = peak.mount
    if peak.peak_bytes is None or mount.read_only:
        return None
    need = max(peak.peak_bytes, peak.demand_bytes or 0)
    size = round_up(int(need * (HEADROOM_FULL if peak.was_full else HEADROOM)))
    enough = not peak.was_full and mount.size_bytes is not None and size <= mount.size_bytes
    reasons = [*_reasons(peak, size), *_memory(mount, size)]
    return Advice(mount.path, size, enough, tuple(reasons), () if enough else _change(mount, size))


def round_up(size_bytes: int) -> int:
    """Up to a figure that people write: steps of 64 MiB, from 1 GiB on of 256 MiB, from 4 GiB on of 1 GiB."""
    step = 64 * MIB if size_bytes <= GIB else 256 * MIB if size_bytes <= 4 * GIB else GIB
    return max(1, -(-size_bytes // step)) * step


def as_option(size_bytes: int) -> str:
    """As docker and compose take it: `512m`, `2g`."""
    return f"{size_bytes // GIB}g" if size_bytes % GIB == 0 else f"{size_bytes // MIB}m"


def times(count: int) -> str:
    """`once`, `3 times`."""
    return "once" if count == 1 else f"{count} times"


def _reasons(peak: MountPeak, size: int) -> list[str]:
    of = "" if peak.mount.size_bytes is None else f" of {_size(peak.mount.size_bytes)}"
    reasons = [f"at most {_size(peak.peak_bytes or 0)}{of} were in use"]
    if peak.demand_bytes is not None:
        demand = _size(peak.demand_bytes)
        reasons.append(f"it was full {times(peak.times_full)}: with what was asked for then, {demand} were needed")
    if peak.was_full:
        reasons.append("twice that, for a program that fails does not show all it would have used; then watch again")
    else:
        reasons.append("half as much again, for what was not seen while watching")
    reasons.append(f"rounded up: {_size(size)}")
    if peak.orphan_bytes:
        reasons.append(f"{_size(peak.orphan_bytes)} of it are orphans: remove them (--remove-orphans) and watch again")
    return reasons


def _memory(mount: TmpfsMount, size: int) -> list[str]:
    """Its pages count in the memory limit too."""
    more = size - (mount.used_bytes or 0)
    limits = [limit for limit in mount.limits if limit.kind is LimitKind.MEMORY_CGROUP]
    tightest = min(limits, key=lambda limit: limit.left_bytes, default=None)
    if tightest is None:
        return ["its pages count as memory of the container, which has no memory limit"]
    short = more - tightest.left_bytes
    counts = f"its pages count in the memory limit of {_size(tightest.limit_bytes)} (cgroup {tightest.cgroup})"
    if short > 0:
        raise_by = _size(round_up(short))
        return [f"{counts}: raise that by {raise_by} at least, else a full tmpfs ends in an OOM kill"]
    return [f"{counts}, which has room for them now"]


def _change(mount: TmpfsMount, size: int) -> tuple[str, ...]:
    option, quantity = as_option(size), _size(size).replace(" ", "").removesuffix("B")
    volume = f'emptyDir: {{medium: Memory, sizeLimit: {quantity}}}, mounted at {mount.path}'
    if mount.volume.kind is VolumeKind.HOST:
        return (f"mount -o remount,size={option} {mount.volume.host_path}  (on the host: it is the host's own)",)
    if mount.volume.kind is VolumeKind.EMPTY_DIR:
        return (f"pod: {volume}",)
    if mount.is_dev_shm:
        return f"docker run --shm-size={option}", f"compose: shm_size: {option}", f"pod: {volume}"
    return f"docker run --tmpfs {mount.path}:size={option}", f"pod: {volume}"


def _size(size_bytes: int) -> str:
    """`64 MiB`; of what is less, `0.3 MiB`."""
    if size_bytes >= GIB and size_bytes % (GIB // 4) == 0:
        return f"{size_bytes / GIB:g} GiB"
    return f"{size_bytes / MIB:,.0f} MiB" if size_bytes % MIB == 0 else f"{size_bytes / MIB:,.1f} MiB"
