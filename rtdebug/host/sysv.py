"""System V shared memory of any process's IPC namespace: its segments, and their removal.

/proc/sysvipc/shm shows the namespace of who opens it, so a thread enters it (setns(2) is per thread), acts and ends:
nothing of ours then keeps the namespace, and with it the segments of a dead container, alive.

Sources: proc_sysvipc(5), ipc/shm.c (sysvipc_shm_proc_show), shmctl(2).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rtdebug.host.text import decode, parse_int

_CLONE_NEWIPC = 0x08000000
_IPC_RMID = 0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SysvSegment:
    """One line of /proc/sysvipc/shm. None: this kernel has no such column."""

    shm_id: int
    key: int
    """0: IPC_PRIVATE."""
    size_bytes: int
    creator_pid: int | None
    """In the pid namespace of the /proc that was read, also after its end; None where that does not see it."""
    attached: int
    """How many times it is attached (nattch)."""
    uid: int
    changed_ns: int
    """Unix time of the last attach, detach or change, whichever was last."""
    rss_bytes: int | None
    swap_bytes: int | None

    @property
    def allocated_bytes(self) -> int | None:
        """Memory and swap that it takes."""
        return None if self.rss_bytes is None else self.rss_bytes + (self.swap_bytes or 0)


def parse_sysv_shm(text: str) -> tuple[SysvSegment, ...]:
    """/proc/sysvipc/shm; a line that is cut short is left out."""
    header, *lines = text.splitlines() or [""]
    names = header.split()
    segments = (_parse_row(dict(zip(names, map(parse_int, line.split()), strict=False))) for line in lines)
    return tuple(segment for segment in segments if segment is not None)


def read_sysv_shm(pid: int, proc: Path = Path("/proc")) -> tuple[SysvSegment, ...] | None:
    """The segments of the IPC namespace of `pid`; None when it cannot be entered (root only) or has exited."""
    try:
        return _in_ipc_namespace(pid, lambda: _read(proc), proc)
    except OSError:
        return None


def remove_sysv_segment(pid: int, expected: SysvSegment, proc: Path = Path("/proc")) -> str | None:
    """Removes a segment of the IPC namespace of `pid` if it is still the expected one and nobody has it attached.

    Returns why it was not removed; None: it is removed. Somebody who attaches it between the look and the removal
    keeps it: the kernel then frees it at the last detach (shmctl(2), IPC_RMID).
    """
    try:
        return _in_ipc_namespace(pid, lambda: _remove(expected, proc), proc)
    except OSError as error:
        return f"its IPC namespace cannot be entered: {error.strerror}"


def _remove(expected: SysvSegment, proc: Path) -> str | None:
    found = next((segment for segment in _read(proc) if segment.shm_id == expected.shm_id), None)
    if found is None:
        return "it is gone"
    if found.attached:
        return f"it is attached {found.attached} times now"
    if (found.key, found.creator_pid, found.changed_ns) != (expected.key, expected.creator_pid, expected.changed_ns):
        return "it has been used or replaced meanwhile"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.shmctl(found.shm_id, _IPC_RMID, None) != 0:
        return os.strerror(ctypes.get_errno())
    return None


def _read(proc: Path) -> tuple[SysvSegment, ...]:
    return parse_sysv_shm(decode((proc / "sysvipc" / "shm").read_bytes()))


def _in_ipc_namespace(pid: int, act: Callable[[], T], proc: Path) -> T:
    """What `act` returns in the IPC namespace of `pid`. Raises OSError: it cannot be entered, or as `act` does."""
    answers: list[T] = []
    errors: list[OSError] = []

    def run() -> None:
        try:
            namespace = os.open(proc / str(pid) / "ns" / "ipc", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWIPC) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
                answers.append(act())
            finally:
                os.close(namespace)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return answers[0]


def _parse_row(row: dict[str, int | None]) -> SysvSegment | None:
    shm_id, key, size, attached, uid = (row.get(name) for name in ("shmid", "key", "size", "nattch", "uid"))
    times = [seconds for name in ("atime", "dtime", "ctime") if (seconds := row.get(name)) is not None]
    if shm_id is None or key is None or size is None or attached is None or uid is None or len(times) < 3:
        return None
    return SysvSegment(
        shm_id=shm_id,
        key=key & 0xFFFFFFFF,  # printed as a signed number
        size_bytes=size,
        creator_pid=row.get("cpid") or None,
        attached=attached,
        uid=uid,
        changed_ns=max(times) * 1_000_000_000,
        rss_bytes=row.get("rss"),
        swap_bytes=row.get("swap"),
    )
