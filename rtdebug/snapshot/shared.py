"""The shared memory of a container, as rtdebug.shm finds it, looked at in a forked child beside other work."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.host.cgroup import MemoryHierarchy
from rtdebug.host.child import Child
from rtdebug.shm.model import ObjectKind
from rtdebug.shm.report import ShmReport, read_shm
from rtdebug.snapshot.model import SharedMemory, Snapshot


class SharedMemoryQuestion:
    """A container whose shared memory is being looked at: all processes of the host are asked who uses it."""

    def __init__(self, container: Container, hierarchy: MemoryHierarchy, proc: Path = Path("/proc")) -> None:
        self._child = Child(partial(read_shm, container, hierarchy, proc))

    def answer(self) -> SharedMemory:
        """The answer. Raises RtdebugError: nothing of the container runs any more."""
        report = self._child.result()
        return SharedMemory(
            pid=report.pid,
            tmpfs=report.mounts,
            shm=tuple(each for each in report.objects if each.kind is not ObjectKind.SYSV),
            sysv=tuple(each for each in report.objects if each.kind is ObjectKind.SYSV),
            dev_shm_fstype=report.dev_shm_fstype,
            segments_seen=report.segments_seen,
            unseen_pids=report.unseen_pids,
            cut=report.cut,
        )


def report_of(snapshot: Snapshot) -> ShmReport | None:
    """The report that `rtdebug shm` would have given then; None: shared memory was not looked at."""
    shared = snapshot.shared
    if shared is None:
        return None
    return ShmReport(
        container=snapshot.container,
        pid=shared.pid,
        time_ns=snapshot.time_ns,
        mounts=shared.tmpfs,
        objects=tuple(sorted((*shared.shm, *shared.sysv), key=lambda each: -(each.allocated_bytes or 0))),
        dev_shm_fstype=shared.dev_shm_fstype,
        comms=frozenset(process.comm for process in snapshot.processes),
        segments_seen=shared.segments_seen,
        unseen_pids=shared.unseen_pids,
        cut=shared.cut,
    )
