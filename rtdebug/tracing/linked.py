"""Shared memory that exists at the end of a trace, whoever made it: the files in /dev/shm and the SysV segments."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from rtdebug.containers.model import Container
from rtdebug.host.inside import open_inside, read_dev_shm
from rtdebug.host.sysv import read_sysv_shm
from rtdebug.tracing.summary import SharedKey

_MAX_FILES = 10_000
_MAX_DEPTH = 3


def still_linked(container: Container | None, whole_host: bool) -> dict[SharedKey, int | None] | None:
    """Return what is linked in the container now, with its size in bytes; None when nobody can look.

    That is so for the whole host (many IPC and mount namespaces), and for a container that has ended.
    """
    if whole_host or container is None or container.pid is None:
        return None
    files, segments = _files(container.pid), read_sysv_shm(container.pid)
    if files is None or segments is None:
        return None
    found: dict[SharedKey, int | None] = {}
    for path, size in files.items():
        found[SharedKey("posix", container.id, path)] = size
    for segment in segments:
        found[SharedKey("sysv", container.id, str(segment.shm_id))] = segment.size_bytes
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
