"""A container's shared memory over time: peaks, requests that found no room, and who made what."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from rtdebug.containers.remedy import remedies_for
from rtdebug.errors import RtdebugError
from rtdebug.shm.advice import Advice, MountPeak, advise
from rtdebug.shm.model import Creator, ShmObject
from rtdebug.shm.mounts import TmpfsMount
from rtdebug.shm.report import ShmReport
from rtdebug.tracing.line import EventLine, Value

EVENTS = ("shm_open", "shm_unlink", "memfd_create", "shmget", "shm_full", "sigbus", "oom_kill")
"""What a trace is asked for."""
_FULL = frozenset({"shm_full", "sigbus"})
_COST_SHARE = 20
"""A look at all objects, for which every process of the host is visited, takes at most a twentieth of the time."""
_MOST_CREATORS = 10_000


class Watch:
    """Collects what is seen. `look_all` reads everything, `look_mounts` only the sizes."""

    def __init__(self, look_all: Callable[[], ShmReport], look_mounts: Callable[[], tuple[TmpfsMount, ...]]) -> None:
        self._look_all = look_all
        self._look_mounts = look_mounts
        self._peaks: dict[int, MountPeak] = {}
        self._creators: dict[tuple[int, int], Creator] = {}
        self._next_look_s = 0.0
        self._began_s = time.monotonic()
        self.report: ShmReport = look_all()
        self._add_mounts(self.report.mounts)

    @property
    def watched_s(self) -> float:
        """For how long."""
        return time.monotonic() - self._began_s

    @property
    def peaks(self) -> tuple[MountPeak, ...]:
        """Each tmpfs that was seen, /dev/shm first."""
        return tuple(self._peaks.values())

    @property
    def objects(self) -> Iterator[ShmObject]:
        """The objects as last seen, with who was seen to make them."""
        return map(self._with_creator, self.report.objects)

    def sample(self) -> bool:
        """Look again: at the sizes, and from time to time at the objects. False: the container has ended."""
        now_s = time.monotonic()
        try:
            if now_s >= self._next_look_s:
                self.report = self._look_all()
                self._next_look_s = time.monotonic() + _COST_SHARE * (time.monotonic() - now_s)
                self._add_mounts(self.report.mounts)
            else:
                self._add_mounts(self._look_mounts())
        except RtdebugError:
            return False
        return True

    def finish(self) -> None:
        """Look at everything once more, if the container is still there."""
        with suppress(RtdebugError):
            self.report = self._look_all()
            self._add_mounts(self.report.mounts)

    def add(self, line: EventLine) -> None:
        """Learn from an event of the trace."""
        if line.event in _FULL:
            self._add_failure(line)
        elif line.fields.get("created") or line.event == "memfd_create":
            device, inode = _device_id(line.fields.get("device_id")), line.fields.get("inode_id")
            if device is not None and isinstance(inode, int) and len(self._creators) < _MOST_CREATORS:
                self._creators[device, inode] = Creator(None, line.pid, line.comm)

    def advice(self) -> tuple[Advice, ...]:
        """A size for /dev/shm, and for each tmpfs that was used or full."""
        told = [peak for peak in self.peaks if peak.mount.is_dev_shm or peak.peak_bytes or peak.times_full]
        told = [replace(peak, orphan_bytes=self._orphan_bytes(peak.mount)) for peak in told]
        advice = [each for peak in told if (each := advise(peak)) is not None]
        container = self.report.container
        return tuple(replace(each, change=remedies_for(container, each.change)) for each in advice)

    def _orphan_bytes(self, mount: TmpfsMount) -> int:
        return sum(each.allocated_bytes or 0 for each in self.report.orphans if each.device_id == mount.device_id)

    def _add_mounts(self, mounts: tuple[TmpfsMount, ...]) -> None:
        for mount in mounts:
            known = self._peaks.get(mount.device_id) or MountPeak(mount, None)
            peak = _most(known.peak_bytes, mount.used_bytes)
            self._peaks[mount.device_id] = replace(known, mount=mount, peak_bytes=peak)

    def _add_failure(self, line: EventLine) -> None:
        """What was in use at that moment is a peak that no look saw; with the request, it is the demand."""
        fields = line.fields
        known = self._peaks.get(_device_id(fields.get("device_id")) or 0)
        if known is None or (line.event == "sigbus" and fields.get("reason") != "tmpfs_full"):
            return
        used = _most(_number(fields.get("used_bytes")), known.mount.used_bytes) or 0
        asked = _number(fields.get("length_bytes")) or 0
        if line.event == "sigbus":
            length, offset = _number(fields.get("file_length_bytes")), _number(fields.get("file_offset_bytes"))
            used = known.mount.size_bytes or used  # the page found no room: it was full, whatever the counter says
            asked = length - offset if length is not None and offset is not None else 0
        self._peaks[known.mount.device_id] = replace(
            known,
            peak_bytes=_most(known.peak_bytes, used),
            demand_bytes=_most(known.demand_bytes, used + asked),
            times_full=known.times_full + 1,
        )

    def _with_creator(self, found: ShmObject) -> ShmObject:
        seen = self._creators.get((found.device_id or 0, found.inode_id))
        return found if seen is None else replace(found, creator=replace(seen, uid=found.creator.uid))


def watch_sizes(watch: Watch, show: Callable[[], object], duration_s: float | None, interval_s: float = 1.0) -> None:
    """Watch without a trace: the sizes alone, until the container ends, the duration is over, SIGINT or SIGTERM."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    end_s = None if duration_s is None else time.monotonic() + duration_s
    try:
        while watch.sample():
            show()
            left_s = interval_s if end_s is None else min(interval_s, end_s - time.monotonic())
            if left_s <= 0:
                return
            time.sleep(left_s)
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)


def _device_id(kernel_id: Value) -> int | None:
    """st_dev of an event's device: the kernel's `major << 20 | minor`."""
    return os.makedev(kernel_id >> 20, kernel_id & 0xFFFFF) if isinstance(kernel_id, int) else None


def _number(value: Value) -> int | None:
    return value if isinstance(value, int) else None


def _most(*figures: int | None) -> int | None:
    return max((figure for figure in figures if figure is not None), default=None)
