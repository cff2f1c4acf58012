"""Shared memory that exists at the end of a trace, whoever made it: the files in /dev/shm and the SysV segments."""

from __future__ import annotations

import ctypes
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.host.inside import open_inside, read_dev_shm
from rtdebug.tracing.summary import SharedKey

_MAX_FILES = 10_000
_MAX_DEPTH = 3
_CLONE_NEWIPC = 0x08000000


def still_linked(container: Container | None, whole_host: bool) -> dict[SharedKey, int | None] | None:
    """Return what is linked in the container now, with its size in bytes; None when nobody can look.

    That is so for the whole host (many IPC and mount namespaces), and for a container that has ended.
    """
    if whole_host or container is None or container.pid is None:
        return None
    files, segments = _files(container.pid), sysv_segments(container.pid)
    if files is None or segments is None:
        return None
    found: dict[SharedKey, int | None] = {}
    for path, size in files.items():
        found[SharedKey("posix", container.id, path)] = size
    for shm_id, size in segments.items():
        found[SharedKey("sysv", container.id, str(shm_id))] = size
    return found


def _files(pid: int) -> dict[str, int] | None:
    if read_dev_shm(pid) is None:
        return None
    try:
        folder = open_inside(pid, "dev/shm", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    found = {}
    for path, size in _walk(folder, "/dev/shm", _MAX_DEPTH):
        found[path] = size
        if len(found) >= _MAX_FILES:
            break
    return found


def _walk(folder: int, path: str, depth: int) -> Iterator[tuple[str, int]]:
    """Give the regular files below the folder; closes it. Links are never followed."""
    try:
        for name in os.listdir(folder):
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield f"{path}/{name}", status.st_size
                elif stat.S_ISDIR(status.st_mode) and depth:
                    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                    yield from _walk(inner, f"{path}/{name}", depth - 1)
            except OSError:
                continue  # gone meanwhile
    finally:
        os.close(folder)


def sysv_segments(pid: int) -> Mapping[int, int] | None:
    """Return the SysV segments of a process's IPC namespace: id -> bytes. None when it cannot be entered.

    /proc/sysvipc/shm shows the namespace of who opens it, so a thread enters it (setns(2) is per thread), reads
    and ends: nothing of ours then keeps the namespace, and with it the segments of a dead container, alive.
    """
    try:
        namespace = os.open(f"/proc/{pid}/ns/ipc", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    texts: list[str] = []

    def read() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, _CLONE_NEWIPC) == 0:
            texts.append(Path("/proc/sysvipc/shm").read_text(encoding="ascii"))

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    os.close(namespace)
    return parse_sysv_shm(texts[0]) if texts else None


def parse_sysv_shm(text: str) -> dict[int, int]:
    """Parse /proc/sysvipc/shm (ipc/shm.c, sysvipc_shm_proc_show): id -> size in bytes."""
    lines = text.splitlines()
    columns = lines[0].split() if lines else []
    if "shmid" not in columns or "size" not in columns:
        return {}
    shm_id, size = columns.index("shmid"), columns.index("size")
    rows = (line.split() for line in lines[1:])
    return {int(row[shm_id]): int(row[size]) for row in rows if len(row) > max(shm_id, size)}
